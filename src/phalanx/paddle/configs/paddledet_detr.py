"""PaddleDetection's architecture `DETR` as RT-DETR and RT-DETRv2 use it: network, loss, and what of the backbone trains."""

from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import Section, as_number, with_value

PARTS = {
    'backbone': ('ResNet', 'PPHGNetV2'),
    'neck': ('HybridEncoder',),
    'transformer': ('RTDETRTransformer', 'RTDETRTransformerv2'),
    'detr_head': ('DINOHead',),
    'post_process': ('DETRPostProcess',),
}
SIZES = {  # depth or size of the backbone, expansion of the neck -> ours
    ('18', 0.5): 'r18vd',
    ('34', 0.5): 'r34vd',
    ('50', 0.5): 'r50vd_m',
    ('50', 1.0): 'r50vd',
    ('101', 1.0): 'r101vd',
    ('L', 1.0): 'hgnetv2_l',
    ('X', 1.0): 'hgnetv2_x',
}
GROUPS = {  # patterns of `param_groups` -> our pattern; norms and biases are those of `decay_norms` and `decay_biases`
    '^(?=.*backbone)(?!.*norm).*$': 'backbone.*',
    '^(?=.*backbone)(?=.*norm).*$': None,
    '^(?=.*(?:neck|transformer))(?=.*(?:norm|bn)).*$': None,
    '^(?=.*(?:neck|transformer))(?=.*(?:norm|bn|bias)).*$': None,
    '^(?=.*(?:norm|bn)).*$': None,
}


def read_detr(top: Section) -> tuple[Node, Node, dict[str, Any], dict[str, Any]]:
    """Translate the network, its loss, and the keys of `train` and of `parameters` that say how the backbone trains."""
    whole, head, post = top.section('DETR'), top.section('DINOHead'), top.section('DETRPostProcess')
    names = {part: str(whole.take(part).value) for part in PARTS}
    backbone, neck = top.section(names['backbone']), top.section('HybridEncoder')
    transformer = top.section(names['transformer'])
    for other in {name for known in PARTS.values() for name in known} - set(names.values()):
        top.ignore(other, reason='DETR does not name it')
    top.one_of('use_focal_loss', True)
    post.one_of('num_top_queries', 300)
    model = _model(top, names, backbone, neck, transformer)
    freeze, rules = _training(backbone, names['backbone'] == 'ResNet')
    return model, _loss(head), {'freeze': freeze} if freeze else {}, {'rules': rules}


def _model(top: Section, names: dict[str, str], backbone: Section, neck: Section, transformer: Section) -> Node:
    if names['backbone'] == 'ResNet':
        depth = backbone.take('depth', 50)
        backbone.expect({'variant': 'd'})
        backbone.expect_defaults({'num_stages': 4, 'norm_type': 'bn', 'norm_decay': 0})
    else:
        depth = backbone.require('arch')
    backbone.expect({'return_idx': [1, 2, 3]})
    layer = neck.section('encoder_layer')
    layer.expect({'name': 'TransformerLayer', 'nhead': 8, 'dropout': 0, 'activation': 'gelu'})
    neck.expect_defaults({'use_encoder_idx': [2], 'num_encoder_layers': 1, 'depth_mult': 1.0})
    width, expansion = neck.take('hidden_dim', 256), neck.take('expansion', 1.0)
    layer.one_of('d_model', to_plain(width))
    size = SIZES.get((str(depth.value), as_number(expansion) or 0.0))
    if size is None:
        known = ', '.join(f'{depth} and {expansion}' for depth, expansion in SIZES)
        top.report(depth, 'DETR', f'a backbone {depth.value} with an expansion of {expansion.value} has no size here ({known})')
    transformer.expect_defaults({'position_embed_type': 'sine', 'feat_strides': [8, 16, 32], 'num_levels': 3, 'nhead': 8})
    transformer.expect_defaults({'dropout': 0, 'activation': 'relu', 'learnt_init_query': False})
    last = transformer.take('eval_idx', -1)
    is_first = names['transformer'] == 'RTDETRTransformer'
    keys: dict[str, Any] = {
        'name': with_value(depth, 'rtdetr' if is_first else 'rtdetrv2'),
        'size': with_value(depth, size),
        'channels': width,
        'encoder_hidden': layer.take('dim_feedforward', 1024),
        'decoder_channels': top.take('hidden_dim', 256),
        'decoder_hidden': transformer.take('dim_feedforward', 1024),
        'decoder_layers': transformer.take('num_decoder_layers', 6),
        'queries': transformer.take('num_queries', 300),
        'denoising': transformer.take('num_denoising', 100),
        'label_noise': transformer.take('label_noise_ratio', 0.5),
        'box_noise': transformer.take('box_noise_scale', 1.0),
    }
    number, count = as_number(last) or 0.0, as_number(keys['decoder_layers']) or 0.0
    keys['eval_layers'] = with_value(last, int(number + 1 + (count if number < 0 else 0)))
    if is_first:
        transformer.expect_defaults({'num_decoder_points': 4})
    else:
        keys['points'] = transformer.take('num_decoder_points', [4, 4, 4])
        method = transformer.take('cross_attn_sampling_method', 'default')
        keys['sampling'] = transformer.counterpart(
            method, 'cross_attn_sampling_method', {'default': 'bilinear', 'discrete': 'discrete'}
        )
    return top.to_node(keys)


def _loss(head: Section) -> Node:
    loss = head.section('loss')
    matcher, weights = loss.section('matcher'), loss.section('loss_coeff')
    loss.expect({'name': 'DINOLoss', 'use_vfl': True})
    loss.one_of('aux_loss', True)
    matcher.one_of('name', 'HungarianMatcher')
    matcher.section('matcher_coeff').expect({'class': 2, 'bbox': 5, 'giou': 2})
    ours = {'class_weight': ('class', 1), 'l1_weight': ('bbox', 5), 'giou_weight': ('giou', 2)}
    return head.to_node({'name': 'rtdetr', **{name: weights.take(*theirs) for name, theirs in ours.items()}})


def _training(backbone: Section, is_resnet: bool) -> tuple[list[str], list[dict[str, Any]]]:
    """Frozen parts of the backbone, and the factors of the learning rate of its stages."""
    frozen_at = int(as_number(backbone.take('freeze_at', 0)) or 0)
    if frozen_at < 0:
        backbone.ignore('freeze_stem_only', reason='with freeze_at: -1 nothing is frozen')
    only_stem = bool(backbone.take('freeze_stem_only', not is_resnet).value)
    freeze = ['backbone.stem'] if frozen_at >= 0 else []
    freeze += [] if only_stem else [f'backbone.stages.{stage}' for stage in range(min(frozen_at + 1, 4))]
    freeze += ['backbone.*.norm'] if backbone.take('freeze_norm', True).value else []
    factors = backbone.items('lr_mult_list')
    # That of HGNetV2 begins with the stem.
    parts = [*([] if is_resnet else ['stem']), *(f'stages.{stage}' for stage in range(4))]
    rules = zip(parts, factors, strict=False)
    return freeze, [{'match': f'backbone.{part}.*', 'lr_factor': factor} for part, factor in rules]


def read_groups(inner: Section, lr: Node) -> dict[str, Any]:
    """Translate `param_groups` of the optimizer: rate of the backbone, and parameters without weight decay."""
    parameters: dict[str, Any] = {'decay_norms': True, 'decay_biases': True, 'rules': []}
    for group in inner.sections('param_groups'):
        for pattern in group.items('params'):
            if str(pattern.value) not in GROUPS:
                group.report(
                    pattern, 'params', f'{to_plain(pattern)!r} is not a pattern that Phalanx knows ({", ".join(GROUPS)})'
                )
            ours = GROUPS.get(str(pattern.value))
            if ours is not None:
                parameters['rules'] = [
                    {'match': ours, 'lr_factor': group.number('learning_rate', 1.0) / (as_number(lr) or 1.0)}
                ]
            elif as_number(group.take('weight_decay')) == 0:
                parameters['decay_norms'] = False
                parameters['decay_biases'] &= 'bias' not in str(pattern.value)
            group.take('learning_rate')  # of norms: as that of the backbone
    return parameters
