"""Names of PaddleSeg's networks, some of which number their parts from 1."""

import re
from collections.abc import Callable
from typing import Any

from torch import nn

from phalanx.families.segmentation.models.deeplabv3p import DeepLabV3Plus
from phalanx.families.segmentation.models.ocrnet import OCRNet
from phalanx.families.segmentation.models.pp_liteseg import PPLiteSeg
from phalanx.families.segmentation.models.segformer import SegFormer
from phalanx.families.segmentation.models.unet import UNet
from phalanx.nn.backbones.mobilenet_v2 import MobileNetV2
from phalanx.nn.backbones.stdc import STDC
from phalanx.nn.backbones.xception import Xception
from phalanx.paddle.weights.backbones import BOTTLENECK, RESNET_VD
from phalanx.paddle.weights.original import Original, Rule, number_from


def pp_liteseg(model: PPLiteSeg) -> Original:
    return Original(
        rules=(
            *(_stdc_rules(model.backbone.stages) if isinstance(model.backbone, STDC) else ()),
            (r'^context\.stages\.(\d)\.', r'ppseg_head.cm.stages.\1.1.'),
            (r'^context\.out\.', r'ppseg_head.cm.conv_out.'),
            (r'^fusions\.(\d)\.low\.', r'ppseg_head.arm_list.\1.conv_x.'),
            (r'^fusions\.(\d)\.attention\.', r'ppseg_head.arm_list.\1.conv_xy_atten.'),
            (r'^fusions\.(\d)\.out\.', r'ppseg_head.arm_list.\1.conv_out.'),
            (r'^heads\.(\d)\.classify\.', r'seg_heads.\1.conv_out.'),
            (r'^heads\.(\d)\.conv\.', r'seg_heads.\1.conv.'),
            (r'^(ppseg_head|seg_heads)(.*)\.conv\.(weight|bias)$', r'\1\2._conv.\3'),
            (r'^(ppseg_head|seg_heads)(.*)\.norm\.', r'\1\2._batch_norm.'),
        ),
        constants={f'ppseg_head.arm_list.{number}._scale': 1.0 for number in range(len(model.fusions))},
    )


def _stdc_rules(stages: nn.ModuleList) -> list[tuple[str, str]]:
    """Rules of STDC, whose blocks PaddleSeg numbers consecutively over all stages."""
    places: list[str] = []
    for number, stage in enumerate(stages):
        places += [rf'{number}\.{block}' for block in range(len(stage))] if isinstance(stage, nn.Sequential) else [str(number)]
    return [
        *((rf'^backbone\.stages\.{place}\.', f'backbone.features.{number}.') for number, place in enumerate(places)),
        (r'^(backbone.*)\.first\.', r'\1.conv_list.0.'),
        *((rf'^(backbone.*)\.rest\.{place}\.', rf'\1.conv_list.{place + 1}.') for place in range(3)),
        (r'^(backbone.*)\.halve\.conv\.', r'\1.avd_layer.0.'),
        (r'^(backbone.*)\.halve\.norm\.', r'\1.avd_layer.1.'),
        (r'^(backbone.*)\.norm\.', r'\1.bn.'),
    ]


def unet(model: UNet) -> Original:
    return Original(
        rules=(
            (r'^classify\.', 'cls.'),
            (r'^encoder\.0\.', 'encode.double_conv.'),
            *(  # the first entry of each level is the pooling
                (rf'^encoder\.{level}\.{place}\.', f'encode.down_sample_list.{level - 1}.{place + 1}.')
                for level in range(1, len(model.encoder))
                for place in range(2)
            ),
            (r'^decoder\.(\d)\.convs\.', r'decode.up_sample_list.\1.double_conv.'),
            (r'^decoder\.(\d)\.enlarge\.', r'decode.up_sample_list.\1.deconv.'),
            (r'\.conv\.(weight|bias)$', r'._conv.\1'),
            (r'\.norm\.', '._batch_norm.'),
        ),
        aliases={'conv.weight': 'cls.weight', 'conv.bias': 'cls.bias'},  # PaddleSeg registers its last convolution twice
    )


def segformer(model: SegFormer) -> Original:
    return Original(
        rules=(
            (r'^backbone\.stages\.(\d)\.', number_from('backbone.{}.')),
            (r'^backbone\.(\d)\.embed\.', r'backbone.patch_embed\1.proj.'),
            (r'^backbone\.(\d)\.embed_norm\.', r'backbone.patch_embed\1.norm.'),
            (r'^backbone\.(\d)\.norm\.', r'backbone.norm\1.'),
            (r'^backbone\.(\d)\.blocks\.', r'backbone.block\1.'),
            (r'\.attention\.query\.', '.attn.q.'),
            (r'\.attention\.key_value\.', '.attn.kv.'),
            (r'\.attention\.out\.', '.attn.proj.'),
            (r'\.attention\.reduce\.', '.attn.sr.'),
            (r'\.attention\.reduced_norm\.', '.attn.norm.'),
            (r'\.mlp\.widen\.', '.mlp.fc1.'),
            (r'\.mlp\.mix\.', '.mlp.dwconv.dwconv.'),
            (r'\.mlp\.narrow\.', '.mlp.fc2.'),
            (r'^linear\.(\d)\.', number_from('linear_c{}.proj.')),
            (r'^fuse\.conv\.', 'linear_fuse._conv.'),
            (r'^fuse\.norm\.', 'linear_fuse._batch_norm.'),
            (r'^classify\.', 'linear_pred.'),
        )
    )


def ocrnet(model: OCRNet) -> Original:
    return Original(
        rules=(
            (r'^backbone\.stem\.(\d)\.', number_from('backbone.conv_layer1_{}.')),
            (r'^backbone\.first\.(\d)\.', number_from('backbone.la1.bb_layer2_{}.')),
            (r'^backbone\.finest\.', 'backbone.tr1.transition_tr1_layer_1.'),
            (r'^backbone\.joining\.(\d)\.', _joining),
            (r'^backbone\.stages\.(\d)\.(\d)\.branches\.(\d)\.(\d)\.', _block),
            (r'^backbone\.stages\.(\d)\.(\d)\.sums\.(\d)\.paths\.(\d)(?:\.(\d))?\.', _path),
            (r'\.convs\.(\d)\.', number_from('.conv{}.')),
            (r'\.shortcut\.', '.conv_down.'),
            (r'^guess\.', 'head.aux_head.'),
            (r'^pixels\.', 'head.conv3x3_ocr.'),
            (r'^attention\.query\.', 'head.spatial_ocr.attention_block.f_pixel.'),
            (r'^attention\.key\.', 'head.spatial_ocr.attention_block.f_object.'),
            (r'^attention\.value\.', 'head.spatial_ocr.attention_block.f_down.'),
            (r'^attention\.out\.', 'head.spatial_ocr.attention_block.f_up.'),
            (r'^mix\.', 'head.spatial_ocr.conv1x1.0.'),
            (r'^classify\.', 'head.cls_head.'),
            (r'\.conv\.(weight|bias)$', r'._conv.\1'),
            (r'\.norm\.', '._batch_norm.'),
        )
    )


def _from_1(match: re.Match[str]) -> list[int]:
    """Numbers of a match, counted from 1."""
    return [int(number) + 1 for number in match.groups() if number is not None]


def _joining(match: re.Match[str]) -> str:
    (number,) = _from_1(match)
    return f'backbone.tr{number}.transition_tr{number}_layer_{number + 1}.'


def _block(match: re.Match[str]) -> str:
    stage, module, branch, block = _from_1(match)
    place = f'st{stage + 1}_{module}'
    return f'backbone.st{stage + 1}.stage_{place}.branches_func.bb_{place}_branch_layer_{branch}_{block}.'


def _path(match: re.Match[str]) -> str:
    stage, module, *steps = _from_1(match)
    place = f'st{stage + 1}_{module}'
    return f'backbone.st{stage + 1}.stage_{place}.fuse_func.residual_{place}_layer_{"_".join(map(str, steps))}.'


def deeplabv3p(model: DeepLabV3Plus) -> Original:
    return Original(
        rules=(
            *_backbone_rules(model),
            (r'^pyramid\.windows\.', 'head.aspp.aspp_blocks.'),
            (r'^pyramid\.mean\.', 'head.aspp.global_avg_pool.1.'),
            (r'^pyramid\.mix\.', 'head.aspp.conv_bn_relu.'),
            (r'^fine\.', 'head.decoder.conv_bn_relu1.'),
            (r'^decoder\.(\d)\.', number_from('head.decoder.conv_bn_relu{}.', 2)),
            (r'^(head\.\w+\.(?:aspp_blocks\.|conv_bn_relu)\d)\.0\.', r'\1.depthwise_conv.'),
            (r'^(head\.\w+\.(?:aspp_blocks\.|conv_bn_relu)\d)\.1\.', r'\1.piontwise_conv.'),  # as it is spelt there
            (r'^(head.*)\.conv\.(weight|bias)$', r'\1._conv.\2'),
            (r'^(head.*)\.norm\.', r'\1._batch_norm.'),
            (r'^classify\.', 'head.decoder.conv.'),
        )
    )


def _backbone_rules(model: DeepLabV3Plus) -> tuple[Rule, ...]:
    if isinstance(model.backbone, MobileNetV2):
        return MOBILENET_V2
    return XCEPTION if isinstance(model.backbone, Xception) else (*RESNET_VD, *BOTTLENECK)


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
    (r'^backbone\.stem\.(\d)\.conv\.', number_from('backbone._conv{}._conv.')),
    (r'^backbone\.stem\.(\d)\.norm\.', number_from('backbone._conv{}._bn.')),
    (r'^backbone\.(entry|middle)\.(\d+)\.', lambda match: f'backbone.xception_65/{match[1]}_flow/block{int(match[2]) + 1}.'),
    (r'^backbone\.exit\.0\.', 'backbone._exit_flow_1.'),
    (r'^backbone\.exit\.(\d)\.0\.', r'backbone._exit_flow_2._conv\1.1.'),
    (r'^backbone\.exit\.(\d)\.1\.', r'backbone._exit_flow_2._conv\1.2.'),
    (r'\.convs\.(\d)\.', number_from('._conv{}.')),
    (r'(\._conv\d)\.(\d)\.conv\.', r'\1._conv\2.'),
    (r'(\._conv\d)\.(\d)\.norm\.', r'\1._bn\2.'),
    (r'\.shortcut\.conv\.', '._short._conv.'),
    (r'\.shortcut\.norm\.', '._short._bn.'),
)


ORIGINALS = {DeepLabV3Plus: deeplabv3p, OCRNet: ocrnet, PPLiteSeg: pp_liteseg, SegFormer: segformer, UNet: unet}
ONNX_LAYERS: dict[type, Callable[[Any], list[str]]] = {}  # none of their ONNX files is read
