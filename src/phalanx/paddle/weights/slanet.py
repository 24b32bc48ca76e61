"""Names of PaddleOCR's SLANet."""

from phalanx.families.table.models.slanet import SLANet
from phalanx.paddle.weights.backbones import PP_LCNET
from phalanx.paddle.weights.original import Original, layers_with_weights, select_layers


def original(model: SLANet) -> Original:
    """Names of the parameters of `model` in PaddleOCR."""
    return Original(
        rules=(
            *PP_LCNET,
            # neck: CSP-PAN
            (r'^neck\.inputs\.', r'neck.conv_t.convs.'),
            (r'^neck\.top_down\.', r'neck.top_down_blocks.'),
            (r'^neck\.bottom_up\.', r'neck.bottom_up_blocks.'),
            (r'^neck\.halve\.', r'neck.downsamples.'),
            (r'\.main\.0\.', r'.main_conv.'),
            (r'\.main\.1\.', r'.blocks.0.conv1.'),
            (r'\.main\.2\.', r'.blocks.0.conv2.'),
            (r'^(neck.*)\.short\.', r'\1.short_conv.'),
            (r'^(neck.*)\.out\.', r'\1.final_conv.'),
            # depthwise separable convolutions
            (r'\.depthwise\.conv\.', r'.dwconv.'),
            (r'\.depthwise\.norm\.', r'.bn1.'),
            (r'\.pointwise\.conv\.', r'.pwconv.'),
            (r'\.pointwise\.norm\.', r'.bn2.'),
            (r'\.norm\.', r'.bn.'),
            # head: the structure attention cell, then tokens and boxes
            (r'^head\.attention\.of_pixel\.', r'head.structure_attention_cell.i2h.'),
            (r'^head\.attention\.of_state\.', r'head.structure_attention_cell.h2h.'),
            (r'^head\.attention\.score\.', r'head.structure_attention_cell.score.'),
            (r'^head\.cell\.', r'head.structure_attention_cell.rnn.'),
            (r'^head\.structure\.', r'head.structure_generator.'),
            (r'^head\.box\.', r'head.loc_generator.'),
        )
    )


def onnx_layers(model: SLANet) -> list[str]:
    """Layers of `model` that have weights, in the order in which PaddleOCR computes them; those of the head are in a loop."""
    parts, of_block = ['backbone', 'neck.inputs'], ('short', 'main', 'out')
    parts += [f'neck.top_down.{level}.{part}' for level in range(3) for part in of_block]
    for level in range(3):
        parts += [f'neck.halve.{level}', *(f'neck.bottom_up.{level}.{part}' for part in of_block)]
    attention = [f'head.attention.{part}' for part in ('of_pixel', 'of_state', 'score')]
    cell = ['head.cell.{}_ih', 'head.cell.{}_hh']
    outputs = ['head.structure.0', 'head.structure.1', 'head.box.0', 'head.box.1']
    return [*select_layers(layers_with_weights(model), parts), *attention, *cell, *outputs]


ORIGINALS = {SLANet: original}
ONNX_LAYERS = {SLANet: onnx_layers}
