"""Parameter names of detectors with queries in the files of their authors (`.pth`)."""

import re
from collections.abc import Mapping

from torch import Tensor

from phalanx.paddle.weights.original import Rule, apply_rules
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
OWN: tuple[Rule, ...] = (  # the authors' D-FINE, RT-DETR and RT-DETRv2
    *HGNETV2,
    (r'^(backbone\.(?:stem|stages\.\d\.(?:blocks|downsample))\b.*)\.norm\.', r'\1.bn.'),
    (r'^backbone\.stem\.(\d)\.', lambda match: f'backbone.conv1.conv1_{int(match[1]) + 1}.'),
    (r'^(backbone\.conv1\..*)\.bn\.', r'\1.norm.'),
    *RESNET_BLOCKS,
    (r'^backbone\.stages\.(\d)\.(\d+)\.(?=branch|short)', r'backbone.res_layers.\1.blocks.\2.'),
    (r'^encoder\.attention\.', 'encoder.encoder.0.layers.0.'),
    (r'\.large\.', '.conv1.'),
    (r'\.small\.', '.conv2.'),
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
GATED: tuple[Rule, ...] = ((r'\.join\.', '.gateway.'), *OWN)  # D-FINE
BOTTLENECKS: tuple[Rule, ...] = ((r'^(backbone\.stages\.\d\.\d+)\.spatial\.', r'\1.branch2b.'),)
BASIC: tuple[Rule, ...] = ((r'^(backbone\.stages\.\d\.\d+)\.spatial\.', r'\1.branch2a.'),)
COMPUTED = re.compile(r'(^|\.)(anchors|valid_mask|up|reg_scale|num_points_scale|n_points_scale|pos_embed\d)$')


def namings_of_detectors(state: Mapping[str, Tensor]) -> list[Naming]:
    """Names of the tensors `state` of a detector with queries in files; none for another network."""
    if 'select.enc_output.0.weight' not in state:
        return []
    has_bottlenecks = any('.widen.' in name for name in state)
    is_gated = any('.join.gate.' in name for name in state)
    rules = (*(BOTTLENECKS if has_bottlenecks else BASIC), *(GATED if is_gated else OWN))
    return [Naming({apply_rules(name, rules): Slot(name, tensor) for name, tensor in state.items()}, _is_computed)]


def _is_computed(name: str, weights: Weights) -> bool:
    return COMPUTED.search(name) is not None
