"""PaddleSeg's `lr_scheduler` and `optimizer`: the learning rate and its schedule, the optimizer, and the clipping."""

from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import (
    Section,
    as_number,
    convert,
    decay_by,
    multiples,
    optimizer_options,
    piecewise_rates,
    with_value,
)

SCHEDULES = ('PolynomialDecay', 'CosineAnnealingDecay', 'StepDecay', 'MultiStepDecay', 'PiecewiseDecay')
OPTIMIZERS = ('SGD', 'Momentum', 'Adam', 'AdamW')


def read_schedule(section: Section, steps: int) -> tuple[Node, Node]:
    """The base rate and its schedule. PaddleSeg counts steps from the end of the warm-up, Phalanx from the start."""
    kind = section.string('type')
    # a warm-up wraps the schedule, and delays it by its own length
    warmup, keys = 0, dict[str, Any]()
    if section.has('warmup_iters'):
        warmup = int(section.number('warmup_iters'))
        keys = {'warmup_steps': section.node.value['warmup_iters'], 'warmup_start_lr': section.require('warmup_start_lr')}
    own: dict[str, Any] = {}
    if kind.value != 'PiecewiseDecay':
        lr = section.require('learning_rate')
    match kind.value:
        case 'PolynomialDecay':
            own = {'name': 'polynomial', 'power': section.take('power', 1.0), 'end_lr': section.take('end_lr', 0.0001)}
            if section.has('decay_steps'):
                own['steps'] = _shift(section.take('decay_steps'), warmup)
            section.one_of('cycle', False)
        case 'CosineAnnealingDecay':
            # past its period, PaddleSeg's cosine rises again
            period = section.require('T_max')
            own = {'name': 'cosine', 'steps': _shift(period, warmup), 'end_lr': section.take('eta_min', 0)}
            if (as_number(period) or 0) + warmup < steps:
                message = f'the rate would rise again after step {to_plain(own["steps"])}, before the end of training'
                section.report(period, 'T_max', f'{message}; Phalanx has no such schedule')
        case 'StepDecay' if not warmup:
            own = {'name': 'step', 'every': section.require('step_size'), 'gamma': section.take('gamma', 0.1)}
        case 'StepDecay':  # ours counts intervals from the start of training
            size, gamma = max(int(as_number(section.count('step_size')) or 1), 1), section.number('gamma', 0.1)
            count = max(0, (steps - warmup - 1) // size)
            own = decay_by(
                section, 'boundaries', [warmup + step for step in multiples(section, 'step_size', size, count)], gamma
            )
        case 'MultiStepDecay':
            milestones = [_shift(node, warmup) for node in section.items('milestones')]
            own = decay_by(section, 'boundaries', milestones, section.number('gamma', 0.1))
        case 'PiecewiseDecay':
            lr, factors = piecewise_rates(section)
            boundaries = [_shift(node, warmup) for node in section.items('boundaries')]
            own = {'name': 'piecewise', 'boundaries': boundaries, 'factors': factors}
        case _:
            section.reject_value(kind, 'type', SCHEDULES)
    section.one_of('last_epoch', -1)
    section.ignore('verbose', reason='the rate is in every log line')
    return lr, section.to_node({**own, 'name': with_value(kind, own.get('name', '')), **keys})


def _shift(step: Node, warmup: int) -> Node:
    """A step counted from the end of the warm-up, counted from the start of training."""
    return convert(step, lambda number: int(number) + warmup)


def read_optimizer(section: Section, lr: Node) -> tuple[Node, Any, Any]:
    """The optimizer, the rules of its parameter groups, and the clipping of gradients."""
    kind = section.string('type')
    word = {'sgd': 'SGD', 'adam': 'Adam'}.get(str(kind.value), str(kind.value))
    decay = section.take('weight_decay', 0.01 if word == 'AdamW' else 0.0)
    decay = section.reading.default(0.0) if decay.value is None else decay
    keys = {'lr': lr, 'weight_decay': decay, **optimizer_options(section, word)}
    if word in ('Adam', 'AdamW'):
        section.one_of('lazy_mode', False)
    elif word not in OPTIMIZERS:
        section.reject_value(kind, 'type', OPTIMIZERS)
    rules = [_rule(rule, as_number(decay) or 0.0) for rule in section.sections('custom_cfg')]
    clip = _clip(section.section('grad_clip_cfg')) if section.has('grad_clip_cfg') else None
    optimizer = section.to_node({**keys, 'name': with_value(kind, keys.get('name', ''))})
    return optimizer, {'rules': rules} if rules else None, clip


def _rule(rule: Section, weight_decay: float) -> Node:
    """A group of parameters whose names contain a word; ours have other names, except that both say `backbone`."""
    rule.one_of('name', 'backbone')
    keys: dict[str, Any] = {'match': 'backbone.*', 'lr_factor': rule.take('lr_mult', 1.0)}
    if rule.has('weight_decay_mult'):
        keys['weight_decay'] = with_value(rule.node.value['weight_decay_mult'], weight_decay * rule.number('weight_decay_mult'))
    return rule.to_node(keys)


def _clip(section: Section) -> Node:
    kind = section.string('name')
    per_tensor = kind.value == 'ClipGradByNorm'
    section.left['name'] = kind
    section.one_of('name', 'ClipGradByGlobalNorm', 'ClipGradByNorm')
    norm = section.require('clip_norm')
    return section.to_node({'norm': norm, 'per_tensor': per_tensor})
