"""Names of PaddleOCR's CRNN. Its LSTM is laid out as torch's: gates i, f, g, o, two biases."""

from phalanx.families.recognition.models.crnn import CRNN
from phalanx.families.recognition.models.mobilenet_v3 import MobileNetV3
from phalanx.weights.originals.lstm import lstm_aliases
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original, Rule

MOBILENET_V3: tuple[Rule, ...] = (
    (r'^backbone\.stem\.', 'backbone.conv1.'),
    (r'^backbone\.last\.', 'backbone.conv2.'),
    (r'\.widen\.', '.expand_conv.'),
    (r'\.filter\.', '.bottleneck_conv.'),
    (r'\.squeeze\.squeeze\.', '.mid_se.conv1.'),
    (r'\.squeeze\.excite\.', '.mid_se.conv2.'),
    (r'\.narrow\.', '.linear_conv.'),
    (r'\.norm\.', '.bn.'),
)
RESNET34_VD: tuple[Rule, ...] = (
    (r'^backbone\.stem\.(\d)\.', lambda match: f'backbone.conv1_{int(match[1]) + 1}.'),
    (r'^backbone\.stages\.(\d)\.(\d)\.', r'backbone.bb_\1_\2.'),
    (r'\.first\.', '.conv0.'),
    (r'\.second\.', '.conv1.'),
    (r'\.shortcut\.(1\.)?', '.short.'),
    (r'\.conv\.weight$', '._conv.weight'),
    (r'\.norm\.', '._batch_norm.'),
)


def original(model: CRNN) -> Original:
    """How PaddleOCR names the parameters of `model`."""
    return Original(
        rules=(
            *(MOBILENET_V3 if isinstance(model.backbone, MobileNetV3) else RESNET34_VD),
            (r'^neck\.', 'neck.encoder.lstm.'),
            (r'^head\.', 'head.fc.'),
            *PADDLE_BUFFERS,
        ),
        aliases=lstm_aliases('neck.encoder.lstm', layers=2, bidirectional=True),
    )
