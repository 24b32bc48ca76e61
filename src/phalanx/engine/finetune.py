"""`phalanx train RECIPE --finetune`: a training of some minutes from published weights, chosen for a recipe.

What is chosen are overrides of keys, over which a person's own go: the training loop knows nothing of it.
"""

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml

from phalanx.config.arguments import Assignments
from phalanx.config.read import to_plain
from phalanx.config.shipped import shipped_recipes
from phalanx.engine.ema import TRIAL, WINDOWS
from phalanx.engine.job import Job, open_job
from phalanx.system.errors import RequestError
from phalanx.weights.published import PUBLISHED

EVALUATIONS = 10  # at most, in a run
ALREADY_TRAINED = 'the network knows already where objects are'


class Budget(NamedTuple):
    """How a family is trained on from weights that know its task. Pairs are for a CPU and for a GPU."""

    samples: tuple[int, int]  # seen in some minutes
    batch: tuple[int, int]
    lr: float  # of AdamW for a batch of 8, a third of what a network takes from random weights; it grows as the batch's root


BUDGETS = {
    'detection': Budget((1_600, 16_000), (8, 32), 1.5e-4),
    'segmentation': Budget((1_200, 12_000), (8, 16), 3e-4),
    'recognition': Budget((8_000, 80_000), (32, 128), 5e-5),
    'table': Budget((1_600, 16_000), (8, 32), 3e-4),
    'text_detection': Budget((800, 8_000), (8, 16), 3e-4),
}


class Setting(NamedTuple):
    """One key of the recipe."""

    key: str
    value: Any
    why: str = ''  # for a person

    def __str__(self) -> str:
        return f'{self.key}={yaml.safe_dump(self.value, default_flow_style=True, width=math.inf).splitlines()[0]}'


def open_finetune_job(recipe: str, assigned: Assignments, folder: Path | None = None) -> tuple[Job, list[Setting]]:
    """The job of a recipe as it is trained on from published weights, and what was chosen for that.

    `assigned` goes over what is chosen. Raises ConfigError, and RequestError where the data set cannot be read or no weights of
    the network are published.
    """
    said = {text.partition('=')[0].strip() for text, _ in assigned}
    unknown = [Setting('train.steps', 1), Setting('train.global_batch_size', 1), *_moving(1, 1.0)]  # a base leaves them open
    chosen = choose_settings(open_job(recipe, [*_assignments(unknown), *assigned], folder), said)
    chosen = [choice for choice in chosen if choice.key not in said]
    return open_job(recipe, [*_assignments(chosen), *assigned], folder), chosen


def choose_settings(job: Job, said: Collection[str] = ()) -> list[Setting]:
    """What the recipe of `job` has to say to be trained on from published weights; `said` are keys that a person gives.

    Raises RequestError where the data set cannot be read or no weights of the network are published.
    """
    train, pace = job.recipe.train, BUDGETS[job.recipe.task]
    on_gpu = torch.cuda.is_available() and job.recipe.device != 'cpu'
    try:
        samples, evaluated = len(job.task.dataset('train')), len(job.task.dataset('eval'))
    except (OSError, ValueError) as error:
        raise RequestError(str(error)) from None
    batch = max(1, min(pace.batch[on_gpu], samples // 4))
    if {'train.global_batch_size', 'train.batch_size_per_rank'} & {*said}:
        batch = train.global_batch(1)
    steps = max(1, pace.samples[on_gpu] // batch)
    if {'train.steps', 'train.epochs'} & {*said}:
        steps = train.steps or max(1, round((train.epochs or 1) * samples / batch))
    seen = steps * batch
    evaluations = min(EVALUATIONS, max(2, seen // (2 * max(1, evaluated))))  # which take less time than the training
    every = max(1, steps // evaluations)
    ema = Setting('ema', None, 'for so few steps')
    if steps > TRIAL:
        ema = Setting('ema', {'kind': 'ramp', 'decay': round(1 - 2 * WINDOWS / steps, 3)}, 'that suits so many steps')
    found = [] if train.init_from or train.init_networks else [Setting('train.init_from', *_weights(job))]
    found += [
        Setting('train.steps', steps, f'{seen:,} samples, {seen / samples:.2g} times the {samples:,} that there are'),
        Setting('train.global_batch_size', batch),
        *_moving(steps, float(f'{pace.lr * math.sqrt(batch / 8):.2g}')),
        ema,
        Setting('evaluate.every', every),
        Setting('evaluate.patience', max(2, evaluations // 2), 'an early end when so many evaluations bring nothing better'),
        Setting('checkpoint.every', every),
    ]
    losses = job.resolved.value['loss']
    if isinstance(losses.value, dict) and 'static_assigner_epochs' in losses.value:
        found.append(Setting('loss.static_assigner_epochs', 0, ALREADY_TRAINED))
    assigner = job.resolved.value.get('assigner')
    if assigner is not None and isinstance(assigner.value, dict) and 'static_epochs' in assigner.value:
        found.append(Setting('assigner.static_epochs', 0, ALREADY_TRAINED))
    return found


def format_settings(chosen: Sequence[Setting]) -> list[str]:
    """What was chosen, for a person."""
    width = max(len(str(choice)) for choice in chosen)
    return [
        '--finetune takes (--set KEY=VALUE takes another):',
        *(f'  {choice!s:<{width}}  {choice.why}'.rstrip() for choice in chosen),
    ]


def _moving(steps: int, lr: float) -> list[Setting]:
    """What moves the weights."""
    return [
        Setting('optimizer', {'name': 'adamw', 'lr': lr, 'weight_decay': 0.01}),
        Setting('scaling.rule', 'none'),
        Setting('schedule.name', 'cosine'),
        Setting('schedule.steps', steps),
        Setting('schedule.warmup_steps', max(1, steps // 10)),
    ]


def _weights(job: Job) -> tuple[str, str]:
    """The first of the published weights that are of this network, and what they are; those of this very recipe go before.

    Raises RequestError.
    """
    model = to_plain(job.resolved.value['model'])
    for name, entry in sorted(PUBLISHED.items(), key=lambda item: job.name not in (item[0], item[1].network)):
        if entry.network in shipped_recipes():
            options = to_plain(open_job(entry.network).resolved.value['model'])
        else:
            options = yaml.safe_load(f'{{name: {entry.network}}}')
        if _is_within(options, model):
            figure = f', {entry.figure}' if entry.figure else ''
            what = 'this network' if entry.part == 'all' else 'its backbone'
            return name, f'published weights of {what}: {entry.trained_on}{figure}; {entry.licence}'
    raise RequestError(
        f'--finetune: no weights of this network ({model["name"]}) are published in `phalanx weights`; '
        'name others: --set train.init_from=FILE_OR_ADDRESS'
    )


def _is_within(part: Any, whole: Any) -> bool:
    """Whether `whole` has all the keys of `part` with the same values; a name alone stands for {name: ...}."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_within(value, whole[key]) for key, value in part.items())
    return bool(part == (whole['name'] if isinstance(whole, dict) and 'name' in whole else whole))


def _assignments(chosen: Sequence[Setting]) -> Assignments:
    return [(str(choice), f'--finetune: {choice}') for choice in chosen]
