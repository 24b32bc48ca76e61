"""Names of PaddleDetection's PP-YOLOE and PP-YOLOE+."""

from collections.abc import Callable
from typing import Any

import numpy as np

from phalanx.families.detection.models.ppyoloe import PPYOLOE, SPP
from phalanx.nn.backbones.csp_rep_resnet import CSPStage
from phalanx.paddle.weights.original import Original, Rule, number_from


def original(model: PPYOLOE) -> Original:
    """Names of the parameters of `model` in PaddleDetection."""
    bins = np.arange(model.reach[0], model.reach[1] + 1)
    return Original(
        rules=(
            # backbone: a stem of three convolutions, and stages that begin with a strided one
            (r'^backbone\.stem\.(\d)\.', number_from('backbone.stem.conv{}.')),
            (r'^(backbone\.stages\.\d)\.0\.', r'\1.conv_down.'),
            (r'^(backbone\.stages\.\d)\.1\.', r'\1.'),
            *_pyramid_rules(model),
            # neck: the transformer encoder of PP-YOLOE-SOD
            (r'^neck\.encoder\.(.*)\.attention\.look\.', r'neck.encoder.\1.self_attn.in_proj_'),
            (r'^neck\.encoder\.(.*)\.attention\.out\.', r'neck.encoder.\1.self_attn.out_proj.'),
            (r'^neck\.encoder\.(.*)\.widen\.', r'neck.encoder.\1.linear1.'),
            (r'^neck\.encoder\.(.*)\.narrow\.', r'neck.encoder.\1.linear2.'),
            # neck: FPN (top-down) and PAN (bottom-up) of CSP stages
            (r'^neck\.top_down\.(\d)\.', r'neck.fpn_stages.\1.0.'),
            (r'^neck\.finer\.', r'neck.fpn_routes.'),
            (r'^neck\.bottom_up\.(\d)\.', r'neck.pan_stages.\1.0.'),
            (r'^neck\.coarser\.', r'neck.pan_routes.'),
            (r'^(neck.*)\.blocks\.', r'\1.convs.'),
            # blocks of both: conv1 to conv3 of a CSP stage, the two branches of RepVGG, ESE attention
            (r'\.(beside|first|large)\.', '.conv1.'),
            (r'\.(through|second)\.', '.conv2.'),
            (r'\.small\.', '.conv2.'),
            (r'\.out\.', '.conv3.'),
            (r'\.attention\.', '.attn.'),
            # heads: ESE attention and prediction of classes and distances
            (r'^heads\.(\d)\.class_attention\.', r'yolo_head.stem_cls.\1.'),
            (r'^heads\.(\d)\.distance_attention\.', r'yolo_head.stem_reg.\1.'),
            (r'^heads\.(\d)\.classify\.', r'yolo_head.pred_cls.\1.'),
            (r'^heads\.(\d)\.measure\.', r'yolo_head.pred_reg.\1.'),
            (r'\.norm\.', '.bn.'),
        ),
        constants={'yolo_head.proj_conv.weight': bins.reshape(1, -1, 1, 1)},
    )


def _pyramid_rules(model: PPYOLOE) -> list[Rule]:
    """Rules for the stage with SPP, which PaddleDetection does not count among the blocks of the stage."""
    stage = model.neck.top_down[0]
    assert isinstance(stage, CSPStage)
    place = next(number for number, block in enumerate(stage.blocks) if isinstance(block, SPP))
    after = [
        (rf'^neck\.top_down\.0\.blocks\.{number}\.', f'neck.top_down.0.blocks.{number - 1}.')
        for number in range(place + 1, len(stage.blocks))
    ]
    return [(rf'^neck\.top_down\.0\.blocks\.{place}\.', 'neck.top_down.0.blocks.spp.'), *after]


ORIGINALS = {PPYOLOE: original}
ONNX_LAYERS: dict[type, Callable[[Any], list[str]]] = {}  # none of their ONNX files is read
