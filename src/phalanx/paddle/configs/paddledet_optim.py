"""PaddleDetection's `LearningRate` and `OptimizerBuilder`: the schedule, the optimizer, and which parameters decay."""

from typing import Any

from phalanx.config.read import Node
from phalanx.paddle.configs.dialect import Section, as_number, convert, optimizer_options, with_value
from phalanx.paddle.configs.paddledet_detr import read_groups

SCHEDULES = ('CosineDecay', 'PiecewiseDecay')
OPTIMIZERS = ('Momentum', 'SGD', 'Adam', 'AdamW')


def read_schedule(section: Section) -> tuple[Node, Node]:
    """Base learning rate and its schedule; both projects count from the start of training."""
    lr = section.take('base_lr', 0.01)
    base = as_number(lr) or 0.0
    keys: dict[str, Any] = {}
    # a list of a decay and a warm-up, in either order; rates here are relative to `base_lr`
    for node in section.items('schedulers'):
        part = section.open(node, 'schedulers')
        kind = part.string('type') if part.has('type') else part.string('name')
        part.path = section.key_path(str(kind.value))
        match kind.value:
            case 'CosineDecay':
                keys |= {'name': with_value(kind, 'cosine'), 'epochs': part.take('max_epochs', 1000)}
                keys['end_lr'] = base * part.number('min_lr_ratio', 0.0)
                part.expect_defaults({'last_plateau_epochs': 0, 'use_warmup': True})
            case 'PiecewiseDecay':
                milestones = part.take('milestones', [8, 11])
                keys |= {'name': with_value(kind, 'piecewise'), 'boundary_epochs': milestones}
                keys['factors'] = _factors(part, len(milestones.value) if isinstance(milestones.value, list) else 0, base)
                part.expect_defaults({'use_warmup': True})
            case 'LinearWarmup':
                steps, epochs = part.take('steps', 500), part.take('epochs')
                keys |= {'warmup_epochs': epochs} if epochs.value is not None else {'warmup_steps': steps}
                keys['warmup_start_lr'] = base * part.number('start_factor', 1 / 3)
            case _:
                part.reject_value(kind, 'name', (*SCHEDULES, 'LinearWarmup'))
    return lr, section.to_node(keys)


def _factors(part: Section, count: int, base: float) -> list[Any]:
    """Multiples of the base rate, one from each milestone on."""
    if part.has('values'):
        part.take('gamma')
        return [convert(node, lambda rate: rate / (base or 1.0)) for node in part.items('values')[1:]]
    gamma = part.take('gamma', [0.1, 0.01])
    if isinstance(gamma.value, list):
        return list(gamma.value)

    def decayed(place: int) -> Node:
        return convert(gamma, lambda factor: factor / 10**place)

    return [decayed(place) for place in range(count)]


def read_optimizer(section: Section, lr: Node) -> tuple[Node, dict[str, Any] | None, dict[str, Any]]:
    """Optimizer, gradient clipping, and `parameters` of a DETR."""
    inner = section.section('optimizer')
    kind = inner.string('type', 'Momentum')
    decay = section.reading.default(0.0001)  # of a configuration that has no regularizer
    if section.has('regularizer') and section.left['regularizer'].value is not False:
        regularizer = section.section('regularizer')
        regularizer.expect({'type': 'L2'})
        decay = regularizer.require('factor')
    elif 'regularizer' in section.left:  # there, and null or false
        section.take('regularizer')
        decay = section.reading.default(0.0)
    keys = {'lr': lr, 'weight_decay': decay, **optimizer_options(inner, str(kind.value))}
    groups = read_groups(inner, lr)
    if kind.value == 'AdamW':
        keys['weight_decay'] = inner.take('weight_decay', 0.01)
    elif kind.value not in OPTIMIZERS:
        inner.reject_value(kind, 'type', OPTIMIZERS)
    clip = {'norm': section.take('clip_grad_by_norm')} if section.has('clip_grad_by_norm') else None
    section.one_of('clip_grad_by_value', None)
    return section.to_node({**keys, 'name': with_value(kind, keys.get('name', ''))}), clip, groups


def read_parameters(model: Node, optimizer: Node) -> dict[str, Any]:
    """Weight decay by parameter: none for batch norms, the usual one for the norms of the transformer."""
    if 'encoder' not in model.value:
        return {'decay_norms': False}
    return {
        'decay_norms': False,
        'rules': [{'match': '*neck.encoder.*.norm?.*', 'weight_decay': optimizer.value['weight_decay']}],
    }


def read_ema(top: Section) -> dict[str, Any] | None:
    used, decay, kind = top.take('use_ema', False), top.take('ema_decay', 0.9998), top.take('ema_decay_type', 'threshold')
    skipped = top.items('ema_black_list')
    top.ignore('ema_filter_no_grad', reason='the average of what does not change is that itself')
    if not used.value:
        return None
    # The names are the original's, except that the one that PP-YOLOE+ lists is not a parameter here.
    skip = [with_value(node, f'*{node.value}*') for node in skipped if node.value != 'proj_conv.weight']
    return {'decay': decay, 'kind': kind, 'skip': skip}
