"""Names of PaddleSeg's PP-LiteSeg."""

from torch import nn

from phalanx.families.segmentation.models.pp_liteseg import PPLiteSeg
from phalanx.weights.originals.original import PADDLE_BUFFERS, Original


def original(model: PPLiteSeg) -> Original:
    """How PaddleSeg names the parameters of `model`."""
    return Original(
        rules=(
            *_backbone_rules(model.backbone.stages),
            (r'^context\.stages\.(\d)\.', r'ppseg_head.cm.stages.\1.1.'),
            (r'^context\.out\.', r'ppseg_head.cm.conv_out.'),
            (r'^fusions\.(\d)\.low\.', r'ppseg_head.arm_list.\1.conv_x.'),
            (r'^fusions\.(\d)\.attention\.', r'ppseg_head.arm_list.\1.conv_xy_atten.'),
            (r'^fusions\.(\d)\.out\.', r'ppseg_head.arm_list.\1.conv_out.'),
            (r'^heads\.(\d)\.classify\.', r'seg_heads.\1.conv_out.'),
            (r'^heads\.(\d)\.conv\.', r'seg_heads.\1.conv.'),
            (r'^(ppseg_head|seg_heads)(.*)\.conv\.(weight|bias)$', r'\1\2._conv.\3'),
            (r'^(ppseg_head|seg_heads)(.*)\.norm\.', r'\1\2._batch_norm.'),
            *PADDLE_BUFFERS,
        ),
        constants={f'ppseg_head.arm_list.{number}._scale': 1.0 for number in range(len(model.fusions))},
    )


def _backbone_rules(stages: nn.ModuleList) -> list[tuple[str, str]]:
    """PaddleSeg numbers the blocks of all stages through."""
    rules, number = [], 0
    for stage_number, stage in enumerate(stages):
        blocks = len(stage) if isinstance(stage, nn.Sequential) else 1
        for block in range(blocks):
            place = rf'{stage_number}\.{block}\.' if isinstance(stage, nn.Sequential) else rf'{stage_number}\.'
            rules.append((rf'^backbone\.stages\.{place}', f'backbone.features.{number}.'))
            number += 1
    return [
        *rules,
        (r'^(backbone.*)\.first\.', r'\1.conv_list.0.'),
        *((rf'^(backbone.*)\.rest\.{place}\.', rf'\1.conv_list.{place + 1}.') for place in range(3)),
        (r'^(backbone.*)\.halve\.conv\.', r'\1.avd_layer.0.'),
        (r'^(backbone.*)\.halve\.norm\.', r'\1.avd_layer.1.'),
        (r'^(backbone.*)\.norm\.', r'\1.bn.'),
    ]
