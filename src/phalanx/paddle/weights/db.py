"""Names of PaddleOCR's DB, with each of its backbones, necks and heads."""

import re

import numpy.typing as npt

from phalanx.families.text_detection.models.db import DB
from phalanx.families.text_detection.models.necks import LKPAN, RSELayer
from phalanx.nn.backbones.lcnetv3 import PPLCNetV3, RepConv
from phalanx.nn.backbones.lcnetv4 import PPLCNetV4
from phalanx.nn.backbones.mobilenet_v3 import MobileNetV3
from phalanx.paddle.weights import backbones
from phalanx.paddle.weights.original import Original, Rule, check_merged, layers_with_weights, select_layers

MOBILENET_V3: tuple[Rule, ...] = (
    (r'^backbone\.stem\.', 'backbone.conv.'),
    (r'^backbone\.stages\.(\d)\.', r'backbone.stage\1.'),
    (r'^backbone\.last\.', 'backbone.stage3.3.'),
    *backbones.MOBILENET_V3,
)
RESIDUAL: tuple[Rule, ...] = ((r'^(backbone.*)\.spatial\.', r'\1.conv0.'), (r'^(backbone.*)\.mix\.', r'\1.conv1.'))


def _level(match: re.Match[str]) -> str:
    """`inputs.0.` -> `in2_conv.`: maps are numbered by the log2 of their stride."""
    return f'neck.{"in" if match[1] == "inputs" else "p"}{int(match[2]) + 2}_conv.'


FPN: tuple[Rule, ...] = ((r'^neck\.(inputs|outputs)\.(\d)\.', _level),)
RSE_FPN: tuple[Rule, ...] = (
    (r'^neck\.inputs\.', 'neck.ins_conv.'),
    (r'^neck\.outputs\.', 'neck.inp_conv.'),
    (r'^(neck.*)\.conv\.', r'\1.in_conv.'),
    (r'^(neck.*)\.squeeze\.squeeze\.', r'\1.se_block.conv1.'),
    (r'^(neck.*)\.squeeze\.excite\.', r'\1.se_block.conv2.'),
)
LK_PAN: tuple[Rule, ...] = (
    (r'^neck\.inputs\.', 'neck.ins_conv.'),
    (r'^neck\.top_down\.', 'neck.inp_conv.'),
    (r'^neck\.halve\.', 'neck.pan_head_conv.'),
    (r'^neck\.outputs\.', 'neck.pan_lat_conv.'),
)
HEAD: tuple[Rule, ...] = (
    (r'^head\.shrink\.', 'head.binarize.'),
    (r'^head\.threshold\.', 'head.thresh.'),
    (r'^(head.*)\.conv\.conv\.', r'\1.conv1.'),
    (r'^(head.*)\.conv\.norm\.', r'\1.conv_bn1.'),
    (r'^(head.*)\.twice\.', r'\1.conv2.'),
    (r'^(head\.(?:binarize|thresh))\.norm\.', r'\1.conv_bn2.'),
    (r'^(head.*)\.classify\.', r'\1.conv3.'),
    (r'^head\.look\.conv\.', 'head.cbn_layer.last_3.conv.'),
    (r'^head\.look\.norm\.', 'head.cbn_layer.last_3.bn.'),
    (r'^head\.decide\.', 'head.cbn_layer.last_1.'),
)


def original(model: DB) -> Original:
    """Names of the parameters of `model` in PaddleOCR."""
    names = Original(rules=(*_backbone_rules(model), *_neck_rules(model), *HEAD))
    return Original(names.rules, constants=_fill_unused(model, names))


def onnx_layers(model: DB) -> list[str]:
    """Layers of `model` that have weights in evaluation, in the order in which PaddleOCR computes them.

    PaddleOCR begins with the coarsest map, Phalanx with the finest; in evaluation there is no threshold head. Raises ValueError
    where exported files have other layers.
    """
    check_merged(model, 'pp_lcnet_v3')
    layers = layers_with_weights(model)
    if isinstance(model.backbone, PPLCNetV4):  # their norms are parts of the convolutions
        layers = [name for name in layers if not name.endswith('.norm')]
    if isinstance(model.neck, LKPAN):
        of_neck = [*_levels('inputs', coarsest_first=True), *_levels('top_down', coarsest_first=True)]
        of_neck += [*_levels('halve'), *_levels('outputs')]
    else:
        of_neck = [*_levels('inputs', coarsest_first=True), *_levels('outputs', coarsest_first=True)]
    parts = ['backbone', *of_neck, 'head.shrink', 'head.look', 'head.decide']
    return select_layers(layers, parts)


def _levels(part: str, *, coarsest_first: bool = False) -> list[str]:
    return [f'neck.{part}.{level}' for level in (range(3, -1, -1) if coarsest_first else range(4))]


def _backbone_rules(model: DB) -> tuple[Rule, ...]:
    if isinstance(model.backbone, PPLCNetV3):
        return backbones.PP_LCNET_V3
    if isinstance(model.backbone, MobileNetV3):
        return MOBILENET_V3
    if isinstance(model.backbone, PPLCNetV4):
        return ()  # its names in PaddleOCR are unknown; its exported files are read
    return *backbones.RESNET_VD, *(backbones.BOTTLENECK if model.backbone.channels[0] == 256 else RESIDUAL)


def _neck_rules(model: DB) -> tuple[Rule, ...]:
    if isinstance(model.neck, LKPAN):
        return LK_PAN
    return RSE_FPN if isinstance(model.neck.inputs[0], RSELayer) else FPN


def _fill_unused(model: DB, names: Original) -> dict[str, npt.ArrayLike]:
    """Factors and offsets that the original has after an activation, also where it has no activation."""
    without = [name for name, module in model.named_modules() if isinstance(module, RepConv) and module.after is None]
    values = {'scale': 1.0, 'bias': 0.0}
    return {names.name(f'{name}.after.{part}'): value for name in without for part, value in values.items()}


ORIGINALS = {DB: original}
ONNX_LAYERS = {DB: onnx_layers}
