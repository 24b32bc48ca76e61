"""Parameter names of detectors with queries in the files of their authors (`.pth`) and of transformers (`.safetensors`)."""

import re
from collections.abc import Mapping

import numpy as np
from torch import Tensor

from phalanx.paddle.weights.original import PADDLE_BUFFERS, Rule, apply_rules
from phalanx.weights.matching import Naming, Slot, Weights


def _block(template: str) -> Rule:
    """Rule for a block of HGNetV2: every stage but the first begins with its downsampling, which the files keep apart."""
    return (
        r'^backbone\.stages\.(\d)\.(\d+)\.(?=layers|aggregation)',
        lambda match: template.format(match[1], int(match[2]) - (match[1] != '0')),
    )


HGNETV2: tuple[Rule, ...] = (
    (r'^backbone\.stages\.(\d)\.0\.(?=conv|norm)', r'backbone.stages.\1.downsample.'),
    _block('backbone.stages.{}.blocks.{}.'),
    (r'^(backbone\..*\.layers\.\d)\.([01])\.', lambda match: f'{match[1]}.conv{int(match[2]) + 1}.'),
    (r'^(backbone\..*)\.affine\.', r'\1.lab.'),
)
RESNET_BLOCKS: tuple[Rule, ...] = (
    (r'^(backbone\.stages\.\d\.\d+)\.squeeze\.', r'\1.branch2a.'),
    (r'^(backbone\.stages\.\d\.\d+)\.widen\.', r'\1.branch2c.'),
    (r'^(backbone\.stages\.\d\.\d+)\.mix\.', r'\1.branch2b.'),
    # With average pooling, the convolution of the shortcut has a name of its own.
    (r'^(backbone\.stages\.0\.0)\.shortcut\.', r'\1.short.'),
    (r'^(backbone\.stages\.\d\.\d+)\.shortcut\.', r'\1.short.conv.'),
)
ENCODER: tuple[Rule, ...] = (
    (r'^encoder\.attention\.', 'encoder.encoder.0.layers.0.'),
    (r'\.large\.', '.conv1.'),
    (r'\.small\.', '.conv2.'),
)
OWN: tuple[Rule, ...] = (  # the authors' D-FINE, RT-DETR and RT-DETRv2
    *HGNETV2,
    (r'^(backbone\.(?:stem|stages\.\d\.(?:blocks|downsample))\b.*)\.norm\.', r'\1.bn.'),
    (r'^backbone\.stem\.(\d)\.', lambda match: f'backbone.conv1.conv1_{int(match[1]) + 1}.'),
    (r'^(backbone\.conv1\..*)\.bn\.', r'\1.norm.'),
    *RESNET_BLOCKS,
    (r'^backbone\.stages\.(\d)\.(\d+)\.(?=branch|short)', r'backbone.res_layers.\1.blocks.\2.'),
    *ENCODER,
    (r'(downsample_convs\.\d)\.([01])\.', lambda match: f'{match[1]}.0.cv{int(match[2]) + 1}.'),
    (r'^input_proj\.', 'decoder.input_proj.'),
    (r'^select\.enc_output\.0\.', 'decoder.enc_output.proj.'),
    (r'^select\.enc_output\.1\.', 'decoder.enc_output.norm.'),
    (r'^select\.', 'decoder.'),
    (r'^denoising\.embedding\.', 'decoder.denoising_class_embed.'),
    (r'^decoder\.(score|bbox)_head\.', r'decoder.dec_\1_head.'),
    (r'^decoder\.(layers|lqe_layers)\.', r'decoder.decoder.\1.'),
    (r'\.join\.norm\.', '.norm2.'),
)
FIRST: tuple[Rule, ...] = (  # RT-DETR, before its second version: layers of a Sequential have numbers
    *OWN,
    (r'^encoder\.input_proj\.(\d)\.conv\.', r'encoder.input_proj.\1.0.'),
    (r'^encoder\.input_proj\.(\d)\.norm\.', r'encoder.input_proj.\1.1.'),
    (r'^decoder\.enc_output\.proj\.', 'decoder.enc_output.0.'),
    (r'^decoder\.enc_output\.norm\.', 'decoder.enc_output.1.'),
)
# The HGNetV2 of the authors' RT-DETR has Paddle's names, and a padding in front of two convolutions.
OF_RTDETR: tuple[Rule, ...] = (
    (r'^(backbone\..*)\.aggregation\.0\.', r'\1.aggregation_squeeze_conv.'),
    (r'^(backbone\..*)\.aggregation\.1\.', r'\1.aggregation_excitation_conv.'),
)
PADDED: Rule = (r'^(backbone\.stem\.stem2[ab]\.conv)\.', r'\1.1.')
PADDLE: tuple[Rule, ...] = (  # PaddleDetection's RT-DETR, after FIRST
    (r'^(backbone\.stem\.stem2[ab]\.conv)\.1\.', r'\1.'),
    (r'^encoder\.', 'neck.'),
    (r'^(neck\.(?:lateral_convs|fpn_blocks|downsample_convs|pan_blocks)\..*)\.norm\.', r'\1.bn.'),
    (r'^decoder\.', 'transformer.'),
    *PADDLE_BUFFERS,
)
TRANSFORMERS: tuple[Rule, ...] = (  # without the prefix `model.`, which is removed from all files
    *HGNETV2,
    (r'^backbone\.stem\.(\d)\.', r'backbone.embedder.embedder.\1.'),
    (r'^backbone\.stem\.', r'backbone.embedder.'),
    (r'^backbone\.stages\.(\d)\.(\d+)\.mix\.', r'backbone.encoder.stages.\1.layers.\2.layer.1.'),
    (r'^backbone\.stages\.(\d)\.(\d+)\.squeeze\.', r'backbone.encoder.stages.\1.layers.\2.layer.0.'),
    (r'^backbone\.stages\.(\d)\.(\d+)\.widen\.', r'backbone.encoder.stages.\1.layers.\2.layer.2.'),
    (r'^backbone\.stages\.0\.0\.shortcut\.', 'backbone.encoder.stages.0.layers.0.shortcut.'),
    (r'^backbone\.stages\.(\d)\.(\d+)\.shortcut\.', r'backbone.encoder.stages.\1.layers.\2.shortcut.1.'),
    (r'^backbone\.stages\.', 'backbone.encoder.stages.'),
    (r'^(backbone\..*)\.conv\.', r'\1.convolution.'),
    (r'^(backbone\..*)\.norm\.', r'\1.normalization.'),
    (r'^backbone\.', 'backbone.model.'),
    (r'^encoder\.input_proj\.', 'encoder_input_proj.'),
    (r'^input_proj\.', 'decoder_input_proj.'),
    (r'^(\w+_input_proj\.\d)\.conv\.', r'\1.0.'),
    (r'^(\w+_input_proj\.\d)\.norm\.', r'\1.1.'),
    *ENCODER,
    (r'^(encoder\.encoder\..*)\.norm2\.', r'\1.final_layer_norm.'),
    (r'(_blocks\.\d)\.cv([14])\.', r'\1.conv\2.'),
    (r'(_blocks\.\d)\.cv([23])\.0\.', lambda match: f'{match[1]}.csp_rep{int(match[2]) - 1}.'),
    (r'(_blocks\.\d)\.cv([23])\.1\.', r'\1.conv\2.'),
    (r'(downsample_convs\.\d)\.([01])\.', lambda match: f'{match[1]}.conv{int(match[2]) + 1}.'),
    (r'^select\.', ''),
    (r'^denoising\.embedding\.', 'denoising_class_embed.'),
    (r'^decoder\.score_head\.', 'decoder.class_embed.'),
    (r'^decoder\.bbox_head\.', 'decoder.bbox_embed.'),
    (r'\.cross_attn\.', '.encoder_attn.'),
    (r'\.join\.norm\.', '.encoder_attn_layer_norm.'),
    (r'(\.layers\.\d)\.norm1\.', r'\1.self_attn_layer_norm.'),
    (r'(\.layers\.\d)\.norm3\.', r'\1.final_layer_norm.'),
    (r'\.linear([12])\.', r'.fc\1.'),
)
# RT-DETR and RT-DETRv2 of transformers have the heads a second time beside the decoder; some files have only these.
HEADS_APART: tuple[Rule, ...] = (*TRANSFORMERS, (r'^decoder\.(class|bbox)_embed\.', r'\1_embed.'))
GATE: tuple[Rule, ...] = ((r'\.join\.', '.gateway.'),)  # of D-FINE
LIGHT: tuple[Rule, ...] = (  # of DEIMv2, after OWN
    (r'^encoder\.input_proj\.(?=conv|norm)', 'encoder.input_proj.0.'),
    (r'^encoder\.halve\.', 'encoder.down_sample1.'),
    (r'^encoder\.halve_again\.', 'encoder.down_sample2.'),
    (r'^(encoder\.down_sample\d)\.conv\.', r'\1.1.'),
    (r'^(encoder\.down_sample\d)\.norm\.', r'\1.2.'),
    (r'^encoder\.bi_fusion\.', 'encoder.bi_fusion.cv.'),
    (r'^(decoder\..*)\.linear1\.', r'\1.swish_ffn.w12.'),
    (r'^(decoder\..*)\.linear2\.', r'\1.swish_ffn.w3.'),
    (r'^(decoder\.decoder\.layers\..*norm\d?)\.weight$', r'\1.scale'),
)
BOTTLENECKS = 'branch2b', 'layer.1'  # the 3 x 3 convolution with the stride, at the authors and in transformers
BASIC = 'branch2a', 'layer.0'
COMPUTED = re.compile(r'(^|\.)(anchors|valid_mask|up|reg_scale|num_points_scale|n_points_scale|pos_embed\d)$')
HEADS = re.compile(r'^(class|bbox)_embed\.')
SHARED_HEAD = re.compile(r'^(decoder\.dec_bbox_head)\.[1-9]\.')  # in DEIMv2 all layers may have the first one's
PROJECTIONS = ('q_proj', 'k_proj', 'v_proj')


def namings_of_detectors(state: Mapping[str, Tensor], of_paddle: Mapping[str, Tensor] | None = None) -> list[Naming]:
    """Names of the tensors `state` of a detector with queries in files; none for another network.

    `of_paddle`: the same in the layout of Paddle, for a file that may have it.
    """
    if 'select.enc_score_head.weight' not in state:
        return []
    is_gated = any('.join.gate.' in name for name in state)
    if 'decoder.layers.0.norm1.bias' not in state:
        return [Naming(_slots(state, (*(GATE if is_gated else ()), *OWN, *LIGHT)), _is_computed)]
    gate = GATE if is_gated else ()
    own, layer = BOTTLENECKS if any('.widen.' in name for name in state) else BASIC
    of_authors: tuple[Rule, ...] = (
        (r'^(backbone\.stages\.\d\.\d+)\.spatial\.', rf'\1.{own}.'),
        *(GATE if is_gated else (PADDED, *OF_RTDETR)),
    )
    of_layers: Rule = (r'^backbone\.stages\.(\d)\.(\d+)\.spatial\.', rf'backbone.encoder.stages.\1.layers.\2.{layer}.')
    paddle = []
    if of_paddle is not None and not is_gated:
        # There, padding has no row of its own in the embedding of classes.
        stored = {name: x[:-1] if name == 'denoising.embedding.weight' else x for name, x in of_paddle.items()}
        paddle = [Naming(_slots(stored, (*of_authors, *FIRST, _paddle_blocks(state), *PADDLE)), _is_computed)]
    return [
        *(Naming(_slots(state, (*of_authors, *rules)), _is_computed) for rules in (OWN, FIRST)),
        *(Naming(_split(_slots(state, (of_layers, *gate, *rules))), _is_computed) for rules in (TRANSFORMERS, HEADS_APART)),
        *paddle,
    ]


def _paddle_blocks(state: Mapping[str, Tensor]) -> Rule:
    """Rule for the blocks of a ResNet, which have letters; in a stage with more than ten, all but the first have numbers."""
    long_stages = {name.split('.')[2] for name in state if name.startswith('backbone.stages.') and name.split('.')[3] == '10'}

    def rename(match: re.Match[str]) -> str:
        stage, block = int(match[1]) + 2, int(match[2])
        suffix = f'b{block}' if match[1] in long_stages and block > 0 else chr(ord('a') + block)
        return f'backbone.res{stage}.res{stage}{suffix}.'

    return (r'^backbone\.res_layers\.(\d)\.blocks\.(\d+)\.', rename)


def _slots(state: Mapping[str, Tensor], rules: tuple[Rule, ...]) -> dict[str, Slot]:
    return {apply_rules(name, rules): Slot(name, tensor) for name, tensor in state.items()}


def _split(slots: Mapping[str, Slot]) -> dict[str, Slot]:
    """Split the projections of attentions, which are one tensor here and three in transformers, into views."""
    result = {}
    for name, slot in slots.items():
        if '.in_proj_' not in name:
            result[name] = slot
            continue
        before, kind = name.split('.in_proj_')
        for projection, part in zip(PROJECTIONS, slot.tensor.chunk(3), strict=True):
            result[f'{before}.{projection}.{kind}'] = Slot(slot.ours, part)
    return result


def _is_computed(name: str, weights: Weights) -> bool:
    """True for arrays that are computed here, and for heads that the file has twice."""
    is_second = HEADS.match(name) is not None and f'decoder.{name}' in weights
    first = SHARED_HEAD.sub(r'\1.0.', name)
    if first != name and first in weights:
        is_second = np.array_equal(np.asarray(weights[name]), np.asarray(weights[first]))
    return is_second or COMPUTED.search(name) is not None
