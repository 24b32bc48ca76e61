"""Names of PaddleOCR's SVTR-LCNet."""

from phalanx.families.recognition.models.svtr_lcnet import SVTRLCNet
from phalanx.weights.originals.lstm import lstm_aliases
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original, Rule

NECK: tuple[Rule, ...] = (  # of PP-OCRv4 too
    (r'^neck\.narrow\.', 'neck.conv1.'),
    (r'^neck\.enter\.', 'neck.conv2.'),
    (r'^neck\.leave\.', 'neck.conv3.'),
    (r'^neck\.join\.', 'neck.conv4.'),
    (r'^neck\.out\.', 'neck.conv1x1.'),
    (r'^neck\.blocks\.', 'neck.svtr_block.'),
    (r'\.mixer\.out\.0\.', '.mixer.proj.'),
    (r'\.mlp\.0\.', '.mlp.fc1.'),
    (r'\.mlp\.3\.', '.mlp.fc2.'),
    (r'^neck\.', 'head.ctc_encoder.encoder.'),
)


def original(model: SVTRLCNet) -> Original:
    """How PaddleOCR names the parameters of `model`."""
    return Original(
        rules=(
            (r'^head\.', 'head.ctc_head.fc.'),
            (r'^backbone\.stem\.', 'backbone.conv1.'),
            (r'^backbone\.blocks\.', 'backbone.block_list.'),
            (r'^(backbone.*)\.depthwise\.', r'\1._depthwise_conv.'),
            (r'^(backbone.*)\.pointwise\.', r'\1._pointwise_conv.'),
            (r'^(backbone.*)\.squeeze\.squeeze\.', r'\1._se.conv1.'),
            (r'^(backbone.*)\.squeeze\.excite\.', r'\1._se.conv2.'),
            (r'^(backbone.*)\.conv\.weight$', r'\1._conv.weight'),
            (r'^(backbone.*)\.norm\.', r'\1._batch_norm.'),
            *NECK,
            (r'^sar\.encoder\.first\.', 'sar.encoder.rnn_encoder.'),
            (r'^sar\.encoder\.second\.(.*)_l0$', r'sar.encoder.rnn_encoder.\1_l1'),
            (r'^sar\.encoder\.out\.', 'sar.encoder.linear.'),
            (r'^sar\.decoder\.rnn\.', 'sar.decoder.rnn_decoder.'),
            (r'^sar\.decoder\.query\.', 'sar.decoder.conv1x1_1.'),
            (r'^sar\.decoder\.key\.', 'sar.decoder.conv3x3_1.'),
            (r'^sar\.decoder\.score\.', 'sar.decoder.conv1x1_2.'),
            (r'^sar\.decoder\.classify\.', 'sar.decoder.prediction.'),
            (r'^sar\.', 'head.sar_head.'),
            *PADDLE_BUFFERS,
        ),
        aliases=lstm_aliases('head.sar_head.encoder.rnn_encoder', layers=2)
        | lstm_aliases('head.sar_head.decoder.rnn_decoder', layers=2),
    )
