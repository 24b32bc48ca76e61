"""Names of PaddleSeg's DeepLabv3+."""

import re

from phalanx.families.segmentation.models.deeplabv3p import DeepLabV3Plus
from phalanx.nn.backbones.mobilenet_v2 import MobileNetV2
from phalanx.nn.backbones.xception import Xception
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original, Rule


def original(model: DeepLabV3Plus) -> Original:
    """How PaddleSeg names the parameters of `model`."""
    return Original(
        rules=(
            *_backbone(model),
            (r'^pyramid\.windows\.', 'head.aspp.aspp_blocks.'),
            (r'^pyramid\.mean\.', 'head.aspp.global_avg_pool.1.'),
            (r'^pyramid\.mix\.', 'head.aspp.conv_bn_relu.'),
            (r'^fine\.', 'head.decoder.conv_bn_relu1.'),
            (r'^decoder\.(\d)\.', lambda match: f'head.decoder.conv_bn_relu{int(match[1]) + 2}.'),
            (r'^(head\.\w+\.(?:aspp_blocks\.|conv_bn_relu)\d)\.0\.', r'\1.depthwise_conv.'),
            (r'^(head\.\w+\.(?:aspp_blocks\.|conv_bn_relu)\d)\.1\.', r'\1.piontwise_conv.'),  # as it is spelt there
            (r'^(head.*)\.conv\.(weight|bias)$', r'\1._conv.\2'),
            (r'^(head.*)\.norm\.', r'\1._batch_norm.'),
            (r'^classify\.', 'head.decoder.conv.'),
            *PADDLE_BUFFERS,
        ),
    )


def _backbone(model: DeepLabV3Plus) -> tuple[Rule, ...]:
    if isinstance(model.backbone, MobileNetV2):
        return MOBILENET_V2
    return XCEPTION if isinstance(model.backbone, Xception) else RESNET_VD


def _mobilenet_block(match: re.Match[str]) -> str:
    """`backbone.groups.1.0.` -> `backbone.conv3._first_block.`: groups count from 2, and so do the later blocks of a group."""
    group, block = int(match[1]) + 2, int(match[2])
    return f'backbone.conv{group}.{f"conv{group}_{block + 1}" if block else "_first_block"}.'


MOBILENET_V2: tuple[Rule, ...] = (
    (r'^backbone\.stem\.', 'backbone.conv1.'),
    (r'^backbone\.groups\.(\d)\.(\d)\.', _mobilenet_block),
    (r'^(backbone\..*)\.widen\.', r'\1._expand_conv.'),
    (r'^(backbone\..*)\.filter\.', r'\1._bottleneck_conv.'),
    (r'^(backbone\..*)\.narrow\.', r'\1._linear_conv.'),
    (r'^(backbone.*)\.conv\.', r'\1._conv.'),
    (r'^(backbone.*)\.norm\.', r'\1._batch_norm.'),
)
XCEPTION: tuple[Rule, ...] = (
    (r'^backbone\.stem\.(\d)\.conv\.', lambda match: f'backbone._conv{int(match[1]) + 1}._conv.'),
    (r'^backbone\.stem\.(\d)\.norm\.', lambda match: f'backbone._conv{int(match[1]) + 1}._bn.'),
    (r'^backbone\.(entry|middle)\.(\d+)\.', lambda match: f'backbone.xception_65/{match[1]}_flow/block{int(match[2]) + 1}.'),
    (r'^backbone\.exit\.0\.', 'backbone._exit_flow_1.'),
    (r'^backbone\.exit\.(\d)\.0\.', r'backbone._exit_flow_2._conv\1.1.'),
    (r'^backbone\.exit\.(\d)\.1\.', r'backbone._exit_flow_2._conv\1.2.'),
    (r'\.convs\.(\d)\.', lambda match: f'._conv{int(match[1]) + 1}.'),
    (r'(\._conv\d)\.(\d)\.conv\.', r'\1._conv\2.'),
    (r'(\._conv\d)\.(\d)\.norm\.', r'\1._bn\2.'),
    (r'\.shortcut\.conv\.', '._short._conv.'),
    (r'\.shortcut\.norm\.', '._short._bn.'),
)
RESNET_VD: tuple[Rule, ...] = (
    (r'^backbone\.stem\.(\d)\.', lambda match: f'backbone.conv1_{int(match[1]) + 1}.'),
    (r'^backbone\.stages\.(\d)\.(\d+)\.', r'backbone.bb_\1_\2.'),
    (r'^(backbone\.bb_\d_\d+)\.squeeze\.', r'\1.conv0.'),
    (r'^(backbone\.bb_\d_\d+)\.spatial\.', r'\1.conv1.'),
    (r'^(backbone\.bb_\d_\d+)\.widen\.', r'\1.conv2.'),
    (r'^(backbone\.bb_\d_\d+)\.shortcut\.', r'\1.short.'),
    (r'^(backbone.*)\.conv\.', r'\1._conv.'),
    (r'^(backbone.*)\.norm\.', r'\1._batch_norm.'),
)
