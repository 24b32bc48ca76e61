"""PaddleSeg's configurations -> recipes: reading of the files, and translation of their sections in order.

Rules and defaults are those of its release 2.10 (paddleseg/cvlibs/config.py and builder.py, and the constructors that a
configuration names). Defaults of that code are written out here even where those of Phalanx are the same.
"""

from functools import reduce
from pathlib import Path
from typing import Any

from phalanx.config.read import Node, load_with_bases
from phalanx.paddle.configs.dialect import IGNORED_IN_ALL, Dialect, Reading, Section, as_number, turn_round
from phalanx.paddle.configs.paddleseg_data import read_data
from phalanx.paddle.configs.paddleseg_loss import read_losses
from phalanx.paddle.configs.paddleseg_model import is_known, read_model
from phalanx.paddle.configs.paddleseg_optim import read_optimizer, read_schedule

BASE, INHERITED = '_base_', '_inherited_'
IGNORED = {
    'to_static_training': IGNORED_IN_ALL['to_static'],
    'export': '`phalanx export` takes its own options',
    **IGNORED_IN_ALL,
}


def read(path: Path, reading: Reading) -> Node:
    """Read the configuration at `path`, merged with the files of its `_base_`; earlier ones win. Raises ConfigError."""
    merged = load_with_bases(path, BASE, lambda own, bases: reduce(_merge, bases, own), notes=reading.notes)
    return _remove_marks(merged)


def _merge(own: Node, base: Node) -> Node:
    """Merge `own` into `base` key by key; a mapping with `_inherited_: False` replaces that of the base."""
    if not (isinstance(own.value, dict) and isinstance(base.value, dict)):
        return own
    children = dict(own.value)
    inherited = children.pop(INHERITED, None)
    if inherited is not None and not inherited.value:
        return Node(children, own.origin)
    joined = dict(base.value)
    for key, node in children.items():
        joined[key] = _merge(node, joined[key]) if key in joined else node
    return Node(joined, own.origin)


def _remove_marks(node: Node) -> Node:
    """Copy of `node` without the remaining `_inherited_` marks."""
    if not isinstance(node.value, dict):
        return node
    return Node({key: _remove_marks(child) for key, child in node.value.items() if key != INHERITED}, node.origin)


def translate(root: Node, reading: Reading) -> Node:
    """Translate the configuration. Keys without counterpart become `reading.problems`, keys without effect `reading.notes`."""
    top = Section(root, '', reading)
    network = top.section('model')
    if not is_known(network):
        return root
    # OHEM's `min_kept` depends on the batch size, schedules on the number of steps
    batch_size, steps = top.count('batch_size'), top.count('iters')
    # each reader takes its keys from the sections and returns keys of a recipe
    data, data_keys, num_classes = read_data(top)
    model, initial = read_model(network, num_classes)
    losses, coefficients = read_losses(top.section('loss'), as_number(batch_size) or 1)
    lr, schedule = read_schedule(top.section('lr_scheduler'), int(as_number(steps) or 1))
    optimizer, parameters, clip = read_optimizer(top.section('optimizer'), lr)
    recipe = {
        'task': 'segmentation',
        'model': model,
        'data': data,
        'loss': losses,
        'loss_coefficients': coefficients,
        **data_keys,
        'inference': _inference(top.section('test_config')),
        'train': {'steps': steps, 'batch_size_per_rank': batch_size, **initial},
        'optimizer': optimizer,
        'parameters': parameters,
        'clip': clip,
        'schedule': schedule,
        'evaluate': {'every': 1000},  # as train.py with --do_eval
        'checkpoint': {'every': 1000, 'keep': 5},
    }
    # keys without effect, then every key that nobody has taken
    for key, reason in IGNORED.items():
        top.ignore(key, reason=reason)
    top.one_of('distill_loss', None)
    top.end()
    return top.to_node(recipe)


def _inference(section: Section) -> Node | None:
    """Test-time augmentation: several scales, flips, and sliding windows."""
    keys: dict[str, Any] = {}
    if section.take('aug_eval', False).value:
        scales = section.take('scales', 1.0)
        keys['scales'] = scales if isinstance(scales.value, list) else Node([scales], scales.origin)
        keys |= {key: section.take(key, False) for key in ('flip_horizontal', 'flip_vertical')}
    if section.take('is_slide', False).value:
        sizes = {'window': section.require('crop_size'), 'window_stride': section.require('stride')}
        keys |= {key: turn_round(size) for key, size in sizes.items()}
    section.ignore('scales', 'flip_horizontal', 'flip_vertical', reason='it has an effect only with aug_eval: True')
    section.ignore('crop_size', 'stride', reason='it has an effect only with is_slide: True')
    section.ignore('auc_roc', reason='there is no such metric')
    section.one_of('use_multilabel', False)
    return section.to_node(keys) if keys else None


DIALECT = Dialect(
    project='PaddleSeg',
    keys={'batch_size', 'iters', 'train_dataset', 'val_dataset', 'lr_scheduler', 'loss', 'test_config', *IGNORED},
    bases=BASE,
    recognised_by=({'model', 'train_dataset'}, {'iters'}, {'lr_scheduler'}, {'test_config'}),
    read=read,
    translate=translate,
    options={
        'iters': ('iters={}',),
        'batch_size': ('batch_size={}',),
        'learning_rate': ('lr_scheduler.learning_rate={}',),
        'save_interval': ('checkpoint.every={}', 'evaluate.every={}'),
    },
    differs=('batch norms take the statistics of all ranks (norm_sync: global), on CPUs too',),
)
