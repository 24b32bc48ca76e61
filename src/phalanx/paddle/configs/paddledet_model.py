"""PaddleDetection's architecture sections: the network PP-YOLOE, its loss, non-maximum suppression, and initial weights."""

from pathlib import Path
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import Section, as_number, with_value
from phalanx.paddle.configs.paddledet_detr import PARTS as RTDETR

SIZES = {  # (depth_mult, width_mult) -> ours
    (0.33, 0.25): 'n',
    (0.33, 0.375): 't',
    (0.33, 0.5): 's',
    (0.67, 0.75): 'm',
    (1.0, 1.0): 'l',
    (1.33, 1.25): 'x',
}
ARCHITECTURES = ('YOLOv3', 'PPYOLOE', 'DETR')
PARTS = {'backbone': 'CSPResNet', 'neck': 'CustomCSPPAN', 'yolo_head': 'PPYOLOEHead'}
METHODS = {
    'ssod_method': 'semi-supervised training',
    'aux_head': 'an auxiliary head',
    'slim_method': 'a distillation by itself (it is a file for --slim_config, beside that of the student)',
}
CLASSIFIERS = ('CSPResNet', 'ResNet18_', 'ResNet34_', 'ResNet50_', 'ResNet101_', 'PPHGNetV2_')
ASSIGNERS = ('TaskAlignedAssigner', 'TaskAlignedAssigner_CR')
ENCODER = {  # options of the transformer in CustomCSPPAN that must have these defaults
    'dim_feedforward': 2048,
    'dropout': 0.1,
    'activation': 'gelu',
    'nhead': 4,
    'attn_dropout': None,
    'act_dropout': None,
    'normalize_before': False,
}


def is_known(top: Section, architecture: Node) -> bool:
    """True if Phalanx has the model and its training. If not, this is the only problem reported of the file."""
    if architecture.value not in ARCHITECTURES:
        top.report_value(architecture, 'architecture', ARCHITECTURES)
        return False
    is_detr = architecture.value == 'DETR'
    detector, parts = ('RT-DETR', RTDETR) if is_detr else ('PP-YOLOE', {part: (name,) for part, name in PARTS.items()})
    for part, known in parts.items():
        named = top.peek(str(architecture.value), part)
        if (named is not None or is_detr) and (named is None or named.value not in known):
            message = f'the {part} {named and to_plain(named)!r} has no counterpart in Phalanx'
            names = ', '.join(' or '.join(each) for each in parts.values())
            top.report(named or architecture, str(architecture.value), f'{message}, whose detector {detector} is {names}')
            return False
    for key, what in METHODS.items():
        if top.has(key):
            node = top.take(key)
            top.report(node, key, f'{to_plain(node)!r}: {what} of a detector has no counterpart in Phalanx')
            return False
    return True


def read_network(top: Section, architecture: Node) -> tuple[Node, Node, dict[str, Any]]:
    """Translate the network, its loss, and non-maximum suppression."""
    whole, backbone = top.section(str(architecture.value)), top.section('CSPResNet')
    neck, head = top.section('CustomCSPPAN'), top.section('PPYOLOEHead')
    for other in set(ARCHITECTURES) - {architecture.value}:
        top.ignore(other, reason=f'the architecture is {architecture.value}')
    whole.expect(PARTS)
    whole.one_of('post_process', None)
    depth, width = top.take('depth_mult', 1.0), top.take('width_mult', 1.0)
    # depth and width multipliers together name one of the published sizes
    size = SIZES.get((as_number(depth) or 0.0, as_number(width) or 0.0))
    if size is None:
        known = ', '.join(f'{depth} and {width}' for depth, width in SIZES)
        message = f'{depth.value} with a width_mult of {width.value} is not a size that Phalanx has ({known})'
        top.report(depth, 'depth_mult', message)
    # the remaining shape of the backbone is fixed, except for the number of levels
    backbone.expect_defaults({'layers': [3, 6, 6, 3], 'channels': [64, 128, 256, 512, 1024], 'act': 'swish'})
    levels = backbone.take('return_idx', [0, 1, 2, 3, 4])
    count = len(levels.value) if isinstance(levels.value, list) else 0
    if to_plain(levels) not in ([1, 2, 3], [0, 1, 2, 3]):
        backbone.report(levels, 'return_idx', f'{to_plain(levels)} is neither [1, 2, 3] nor [0, 1, 2, 3]')
    backbone.expect({'use_large_stem': True})
    plus = backbone.take('use_alpha', False)
    # likewise for the neck
    neck.expect({'out_channels': [768, 384, 192, 64][:count]})
    neck.expect_defaults({'stage_num': 1, 'block_num': 3})
    neck.expect({'act': 'swish', 'spp': True})
    keys: dict[str, Any] = {'name': with_value(architecture, 'ppyoloe'), 'size': with_value(depth, size), 'plus': plus}
    keys |= {'levels': with_value(levels, count), 'neck_alpha': neck.take('use_alpha', False)}
    keys |= {'encoder': _encoder(neck), 'reach': _reach(head)}
    model = whole.to_node(keys)
    loss, nms = _head(head, count)
    return model, loss, nms


def _encoder(neck: Section) -> Node | None:
    """Number of layers of the transformer in the neck; None without one."""
    if neck.take('use_trans', False).value:
        neck.expect_defaults(ENCODER)
        return neck.take('num_layers', 4)
    neck.ignore('num_layers', *ENCODER, reason='it has an effect only with use_trans: True')
    return None


def _reach(head: Section) -> Node | None:
    """Smallest and largest regression distance (reg_min, reg_max); the end of `reg_range` is exclusive."""
    node = head.take('reg_range')
    if node.value is None:
        return None
    ends = [as_number(end) for end in node.value] if isinstance(node.value, list) else []
    if len(ends) != 2 or None in ends:
        head.report(node, 'reg_range', f'expected two numbers, got {to_plain(node)!r}')
        return None
    return Node([node.value[0], with_value(node.value[1], int((ends[1] or 0) - 1))], node.origin)


def _head(head: Section, levels: int) -> tuple[Node, dict[str, Any]]:
    # the shape of the head is fixed
    head.one_of('fpn_strides', [32, 16, 8, 4][:levels])
    head.expect_defaults({'grid_cell_offset': 0.5, 'reg_max': 16, 'act': 'swish'})
    head.ignore('eval_input_size', reason='anchors follow the image')
    weights, static, dynamic = head.section('loss_weight'), head.section('static_assigner'), head.section('assigner')
    static.one_of('name', 'ATSSAssigner')
    kind = dynamic.take('name', 'TaskAlignedAssigner')
    if kind.value not in ASSIGNERS:
        dynamic.report_value(kind, 'name', ASSIGNERS)
    # weights of the terms, then ATSS for the first epochs and TAL after them
    loss = {
        'name': 'task_aligned',
        'static_assigner_epochs': head.take('static_assigner_epoch', 4),
        'use_varifocal': head.take('use_varifocal_loss', True),
        'anchor_size': head.take('grid_cell_scale', 5.0),
        'cls_weight': weights.take('class', 1.0),
        'iou_weight': weights.take('iou', 2.5),
        'dfl_weight': weights.take('dfl', 0.5),
        'static_top_k': static.take('topk', 9),
        'top_k': dynamic.take('topk', 13),
        'alpha': dynamic.take('alpha', 1.0),
        'beta': dynamic.take('beta', 6.0),
        'center_radius': dynamic.require('center_radius') if kind.value == ASSIGNERS[1] else None,
    }
    # non-maximum suppression
    nms = head.section('nms')
    nms.one_of('name', 'MultiClassNMS')
    picks = {
        'score_threshold': nms.take('score_threshold', 0.05),
        'nms_threshold': nms.take('nms_threshold', 0.5),
        'pre_top_k': nms.take('nms_top_k', -1),
        'keep_top_k': nms.take('keep_top_k', 100),
    }
    return head.to_node(loss), picks


def read_initial(top: Section) -> dict[str, Any]:
    """Initial weights of the network. From the file of a classifier only the backbone is taken."""
    node = top.left.get('pretrain_weights')
    is_classifier = node is not None and any(name in str(node.value) for name in CLASSIFIERS)
    part = 'backbone' if is_classifier else 'all'
    weights = top.weights('pretrain_weights')
    if weights is None:
        return {}
    path = str(weights.value)
    if not Path(path).exists() and Path(f'{path}.pdparams').exists():
        weights = with_value(weights, f'{path}.pdparams')
    return {'init_from': weights, 'init_part': with_value(weights, part)}
