"""Keys of the Paddle projects on command lines with a recipe of Phalanx: the keys of the recipe that they set."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path, PurePath
from typing import Any

from phalanx.config.read import ConfigError, Node, parse_assignment, to_plain
from phalanx.paddle.configs import Assignment, paddledet, paddleocr, paddleseg
from phalanx.paddle.configs.dialect import as_number, holds
from phalanx.paddle.configs.paddleocr_parts import built_in_name
from phalanx.paddle.configs.paddleocr_text import DICTIONARIES


def _init_from(value: Any) -> list[str]:
    return [f'train.init_from={json.dumps(value or None)}']


def _use_gpu(value: Any) -> list[str]:
    return [f'device={"auto" if value else "cpu"}']


def _use_ema(value: Any) -> list[str]:
    return ['ema={}' if value else 'ema=null']


def _dictionary(value: Any) -> list[str]:
    """A file, or the built-in dictionary of that path in PaddleOCR; texts keep their case."""
    if not value:
        return ['characters.dictionary=alphanumeric']
    path = str(value)
    named = path if Path(path).is_file() else built_in_name(PurePath(path), DICTIONARIES) or path
    arabic = ['characters.right_to_left=true'] if 'arabic' in path else []
    return [f'characters.dictionary={json.dumps(named)}', 'characters.lower_case=false', *arabic]


def _lists(split: str) -> Callable[[Any], list[str]]:
    """Files from the working folder, where recipes have them below `data.root`."""

    def assign(value: Any) -> list[str]:
        files = [str(Path(str(file)).absolute()) for file in (value if isinstance(value, list) else [value])]
        return [f'data.{split}={json.dumps(files)}']

    return assign


# key of theirs -> keys of a recipe that get its value, or what translates the value into assignments
KEYS: dict[str, tuple[str, ...] | Callable[[Any], list[str]]] = {
    'Global.epoch_num': ('train.epochs',),
    'Global.print_batch_step': ('report.every',),
    'Global.eval_batch_step': lambda value: [f'evaluate.every={value[-1] if isinstance(value, list) and value else value}'],
    'Global.eval_batch_epoch': ('evaluate.every_epochs',),
    'Global.seed': ('train.seed',),
    'Global.use_gpu': _use_gpu,
    'Global.use_visualdl': ('report.visualdl',),
    'Global.use_wandb': lambda value: ['report.trackers=[tensorboard, wandb]'] if value else [],
    'Global.use_amp': lambda value: [f'precision.dtype={"fp16" if value else "fp32"}'],
    'Global.amp_dtype': lambda value: [f'precision.dtype={paddleocr.DTYPES.get(str(value), value)}'],
    'Global.scale_loss': ('precision.loss_scale',),
    'Global.use_dynamic_loss_scaling': lambda value: ['precision.loss_scale=dynamic'] if value else [],
    'Global.use_sync_bn': lambda value: [f'norm_sync={"global" if value else "off"}'],
    'Global.use_ema': _use_ema,
    'Global.ema_decay': ('ema.decay',),
    'Global.character_dict_path': _dictionary,
    'Global.use_space_char': ('characters.space',),
    'Global.max_text_length': ('characters.max_length',),
    'Global.pretrained_model': _init_from,
    'Optimizer.lr.learning_rate': ('optimizer.lr',),
    'Optimizer.lr.warmup_epoch': ('schedule.warmup_epochs',),
    'Train.loader.batch_size_per_card': ('train.batch_size_per_rank',),
    'Train.loader.num_workers': ('train.workers',),
    'Train.dataset.label_file_list': _lists('train'),
    'Eval.dataset.label_file_list': _lists('eval'),
    'Eval.loader.batch_size_per_card': ('evaluate.batch_size',),
    'epoch': ('train.epochs',),
    'log_iter': ('report.every',),
    'snapshot_epoch': ('checkpoint.every_epochs', 'evaluate.every_epochs'),
    'worker_num': ('train.workers',),
    'use_gpu': _use_gpu,
    'use_ema': _use_ema,
    'ema_decay': ('ema.decay',),
    'pretrain_weights': _init_from,
    'LearningRate.base_lr': ('optimizer.lr',),
    'TrainReader.batch_size': ('train.batch_size_per_rank',),
    'EvalReader.batch_size': ('evaluate.batch_size',),
    'TrainDataset.anno_path': ('data.train',),
    'TrainDataset.image_dir': ('data.train_images',),
    'EvalDataset.anno_path': ('data.eval',),
    'EvalDataset.image_dir': ('data.eval_images',),
    'iters': ('train.steps',),
    'batch_size': ('train.batch_size_per_rank',),
    'lr_scheduler.learning_rate': ('optimizer.lr',),
    'train_dataset.train_path': _lists('train'),
    'val_dataset.val_path': _lists('eval'),
}
ROOTS = {
    *('Train.dataset.data_dir', 'Eval.dataset.data_dir', 'TrainDataset.dataset_dir', 'EvalDataset.dataset_dir'),
    *('train_dataset.dataset_root', 'val_dataset.dataset_root'),
}
KEYS |= dict.fromkeys(ROOTS, ('data.root',))
IGNORED = {
    **{f'Global.{key}': reason for key, reason in paddleocr.IGNORED.items()},
    **paddledet.IGNORED,
    **paddleseg.IGNORED,
    'Global.checkpoints': 'it names what to resume in a training, and weights elsewhere',
}
# key -> switch without which it has no effect, in the order in which they count, in whatever order they are written
SWITCHES = {
    'Global.amp_dtype': 'Global.use_amp',
    'Global.scale_loss': 'Global.use_amp',
    'Global.use_dynamic_loss_scaling': 'Global.use_amp',
    'Global.ema_decay': 'Global.use_ema',
    'ema_decay': 'use_ema',
}
# key -> what PaddleOCR does where it is off, unless another key says more
WHERE_OFF = {'Global.use_dynamic_loss_scaling': 'precision.loss_scale=1'}
# keys of a configuration that a recipe does not have, with the project
DIALECTS = (paddleocr.DIALECT, paddledet.DIALECT, paddleseg.DIALECT)
THEIRS = {key: dialect.project for dialect in DIALECTS for key in dialect.keys if key != 'loss'}


def for_recipe(assignments: Sequence[Assignment], recipe: Node) -> tuple[list[Assignment], list[str]]:
    """Replace keys of the Paddle projects in `assignments` by those of a recipe; return also notes on those without effect.

    Raises ConfigError with every key of theirs that has no counterpart.
    """
    ours: list[Assignment] = []
    notes, problems, roots, off = list[str](), list[str](), dict[str, str](), set[str]()
    order = {key: place for place, key in enumerate(SWITCHES, 1)}
    for text, origin in sorted(assignments, key=lambda pair: order.get(pair[0].partition('=')[0].strip(), 0)):
        try:
            path, node = parse_assignment(text, origin)
        except ConfigError as error:  # all problems at once
            problems += error.problems
            continue
        key, value = '.'.join(path), text.partition('=')[2]
        counterpart = KEYS.get(key)
        off = off - {key} if node.value else off | {key}
        if SWITCHES.get(key) in off:
            notes.append(f'{origin}: {key} is ignored: it has an effect only with {SWITCHES[key]}: True')
        elif key in IGNORED:
            notes.append(f'{origin}: {key} is ignored: {IGNORED[key]}')
        elif key in WHERE_OFF and not node.value:
            ours.insert(0, (WHERE_OFF[key], origin))
        elif callable(counterpart):
            ours += [(assignment, origin) for assignment in counterpart(to_plain(node))]
        elif counterpart is not None:
            ours += [(f'{each}={value}', origin) for each in counterpart]
        elif path[0] in THEIRS:
            cure = 'has no counterpart in a recipe; `phalanx config RECIPE --explain` lists the keys that it has'
            problems.append(f'{origin}: {key} is of configurations of {THEIRS[path[0]]}, and {cure}')
        else:
            ours.append((text, origin))
        if key in ROOTS:
            roots[os.path.normpath(value)] = origin
        if key == 'Global.epoch_num' and (longer := _longer_schedule(recipe)) is not None:
            ours.append((f'schedule.epochs={(as_number(node) or 0) + longer:g}', origin))
    if len(roots) > 1:
        problems.append(
            f'{" and ".join(roots.values())}: Phalanx has one folder for both, data.root, below which the lists lie'
        )
    if problems:
        raise ConfigError(problems)
    return ours, notes


def _longer_schedule(recipe: Node) -> float | None:
    """Epochs by which the schedule of a recipe is longer than its training, as in PaddleOCR; None unless both are in epochs."""
    parts = [recipe.value.get(key) for key in ('schedule', 'train')]
    schedule, train = (as_number(part.value['epochs']) if part and holds(part, ['epochs']) else None for part in parts)
    return schedule - train if schedule and train else None
