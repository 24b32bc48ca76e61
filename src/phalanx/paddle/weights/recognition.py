"""Names of PaddleOCR's recognisers, and the layers of the exported files of those of PP-OCRv4 to v6."""

from phalanx.families.recognition.models.crnn import CRNN
from phalanx.families.recognition.models.svtr_lcnet import SVTRLCNet
from phalanx.families.recognition.models.svtr_lcnetv3 import ConvLCNetV4, SVTRLCNetV3, SVTRLCNetV4
from phalanx.nn.backbones.line_mobilenet_v3 import LineMobileNetV3
from phalanx.paddle.weights import backbones
from phalanx.paddle.weights.original import Original, Rule, check_merged, layers_with_weights


def lstm_aliases(place: str, *, bidirectional: bool = False) -> dict[str, str]:
    """The second name of each parameter of the LSTM of two layers at `place` -> the first, which is torch's too."""
    cells = (('cell_fw', ''), ('cell_bw', '_reverse')) if bidirectional else (('cell', ''),)
    return {
        f'{place}.{layer}.{cell}.{parameter}': f'{place}.{parameter}_l{layer}{direction}'
        for layer in range(2)
        for cell, direction in cells
        for parameter in ('weight_ih', 'weight_hh', 'bias_ih', 'bias_hh')
    }


MOBILENET_V3: tuple[Rule, ...] = (
    (r'^backbone\.stem\.', 'backbone.conv1.'),
    (r'^backbone\.last\.', 'backbone.conv2.'),
    *backbones.MOBILENET_V3,
)
RESNET34_VD: tuple[Rule, ...] = (
    (r'\.shortcut\.1\.', '.shortcut.'),
    *backbones.RESNET_VD,
    (r'\.first\.', '.conv0.'),
    (r'\.second\.', '.conv1.'),
)


def crnn(model: CRNN) -> Original:
    return Original(
        rules=(
            *(MOBILENET_V3 if isinstance(model.backbone, LineMobileNetV3) else RESNET34_VD),
            (r'^neck\.', 'neck.encoder.lstm.'),
            (r'^head\.', 'head.fc.'),
        ),
        aliases=lstm_aliases('neck.encoder.lstm', bidirectional=True),
    )


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


def svtr_lcnet(model: SVTRLCNet) -> Original:
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
        ),
        aliases=lstm_aliases('head.sar_head.encoder.rnn_encoder') | lstm_aliases('head.sar_head.decoder.rnn_decoder'),
    )


NRTR: tuple[Rule, ...] = (
    (r'^nrtr\.enter\.', 'head.before_gtc.1.fc.'),
    (r'^nrtr\.embedding\.', 'nrtr.embedding.embedding.'),
    (r'^nrtr\.classify\.', 'nrtr.tgt_word_prj.'),
    (r'^nrtr\.blocks\.', 'nrtr.decoder.'),
    (r'^(nrtr.*)\.qkv\.', r'\1.self_attn.qkv.'),
    (r'^(nrtr.*)\.before\.', r'\1.self_attn.out_proj.'),
    (r'^(nrtr.*)\.query\.', r'\1.cross_attn.q.'),
    (r'^(nrtr.*)\.key_value\.', r'\1.cross_attn.kv.'),
    (r'^(nrtr.*)\.seen\.', r'\1.cross_attn.out_proj.'),
    (r'^nrtr\.', 'head.gtc_head.'),
)


def svtr_lcnetv3(model: SVTRLCNetV3) -> Original:
    """Names of the parameters of `model` in PaddleOCR. Where `model` has no NRTR head, that of a file is left over."""
    return Original(
        rules=((r'^head\.', 'head.ctc_head.fc.'), *backbones.PP_LCNET_V3, *NECK, *NRTR),
        computed=frozenset({'head.gtc_head.positional_encoding.pe'}),
    )


def svtr_onnx_layers(model: SVTRLCNetV3) -> list[str]:
    """Layers of `model` that have weights in evaluation, in the order in which PaddleOCR computes them, which is ours.

    Raises ValueError where exported files have other layers.
    """
    check_merged(model, 'svtr_lcnetv3')
    return [name for name in layers_with_weights(model) if not name.startswith('nrtr.')]


def svtr_v4_onnx_layers(model: SVTRLCNetV4 | ConvLCNetV4) -> list[str]:
    """Layers of `model` that have weights in the file, in its order, which is ours.

    In the file, norms of the backbone are merged into its convolutions; those of the neck and of a plain stem are not.
    """
    merged = ('backbone.stages.', 'backbone.stem.') if isinstance(model, SVTRLCNetV4) else ('backbone.stages.',)
    return [name for name in svtr_onnx_layers(model) if not (name.startswith(merged) and name.endswith('.norm'))]


ORIGINALS = {CRNN: crnn, SVTRLCNet: svtr_lcnet, SVTRLCNetV3: svtr_lcnetv3}
ONNX_LAYERS = {SVTRLCNetV3: svtr_onnx_layers, SVTRLCNetV4: svtr_v4_onnx_layers, ConvLCNetV4: svtr_v4_onnx_layers}
