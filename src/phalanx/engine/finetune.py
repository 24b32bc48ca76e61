"""`phalanx train RECIPE --finetune`: settings for a short fine-tuning from published weights.

The settings are overrides of recipe keys, below the user's own: the training loop knows nothing about them.
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

EVALUATIONS = 10  # maximum per run
ALREADY_TRAINED = 'the network can already locate objects'


class Budget(NamedTuple):
    """Length, batch size and learning rate to fine-tune a family with pretrained weights. Pairs are for a CPU and for a GPU."""

    samples: tuple[int, int]  # processed in a few minutes
    batch: tuple[int, int]
    lr: float  # AdamW at batch size 8, a third of the rate for random weights; scales with the square root of the batch size


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
    why: str = ''  # reason, for the user

    def __str__(self) -> str:
        return f'{self.key}={yaml.safe_dump(self.value, default_flow_style=True, width=math.inf).splitlines()[0]}'


def open_finetune_job(recipe: str, assigned: Assignments, folder: Path | None = None) -> tuple[Job, list[Setting]]:
    """Return the job of a recipe as fine-tuned from published weights, and the settings chosen for that.

    `assigned` overrides the chosen settings. Raises ConfigError, and RequestError if the data set cannot be read or no weights
    of the network are published.
    """
    user_keys = {text.partition('=')[0].strip() for text, _ in assigned}
    # Placeholders for keys that a base recipe leaves open, so that it can be read before they are chosen.
    placeholders = [Setting('train.steps', 1), Setting('train.global_batch_size', 1), *_optimizer_settings(1, 1.0)]
    settings = choose_settings(open_job(recipe, [*_assignments(placeholders), *assigned], folder), user_keys)
    settings = [setting for setting in settings if setting.key not in user_keys]
    return open_job(recipe, [*_assignments(settings), *assigned], folder), settings


def choose_settings(job: Job, user_keys: Collection[str] = ()) -> list[Setting]:
    """Return the settings to fine-tune the recipe of `job`; `user_keys` are keys that the user has set.

    Raises RequestError if the data set cannot be read or no weights of the network are published.
    """
    train, budget = job.recipe.train, BUDGETS[job.recipe.task]
    on_gpu = torch.cuda.is_available() and job.recipe.device != 'cpu'
    try:
        samples, evaluated = len(job.task.dataset('train')), len(job.task.dataset('eval'))
    except (OSError, ValueError) as error:
        raise RequestError(str(error)) from None
    # Batch size, length and evaluation interval; keys that the user has set are inputs.
    batch = max(1, min(budget.batch[on_gpu], samples // 4))
    if {'train.global_batch_size', 'train.batch_size_per_rank'} & {*user_keys}:
        batch = train.global_batch(1)
    steps = max(1, budget.samples[on_gpu] // batch)
    if {'train.steps', 'train.epochs'} & {*user_keys}:
        steps = train.steps or max(1, round((train.epochs or 1) * samples / batch))
    trained = steps * batch
    evaluations = min(EVALUATIONS, max(2, trained // (2 * max(1, evaluated))))  # together shorter than the training
    every = max(1, steps // evaluations)
    # An EMA with its default window would still hold the start of such a short run.
    ema = Setting('ema', None, 'too few steps for an average')
    if steps > TRIAL:
        ema = Setting(
            'ema', {'kind': 'ramp', 'decay': round(1 - 2 * WINDOWS / steps, 3)}, 'an average over the last seventh of the run'
        )
    settings = [] if train.init_from or train.init_networks else [Setting('train.init_from', *_weights(job))]
    settings += [
        Setting('train.steps', steps, f'{trained:,} samples, {trained / samples:.2g} times the {samples:,} of the data set'),
        Setting('train.global_batch_size', batch),
        *_optimizer_settings(steps, float(f'{budget.lr * math.sqrt(batch / 8):.2g}')),
        ema,
        Setting('evaluate.every', every),
        Setting('evaluate.patience', max(2, evaluations // 2), 'early stopping'),
        Setting('checkpoint.every', every),
    ]
    # PP-YOLOE and PicoDet start with a static assigner, which a trained network does not need.
    losses = job.resolved.value['loss']
    if isinstance(losses.value, dict) and 'static_assigner_epochs' in losses.value:
        settings.append(Setting('loss.static_assigner_epochs', 0, ALREADY_TRAINED))
    # Recipes with an `assigner` have that number there.
    assigner = job.resolved.value.get('assigner')
    if assigner is not None and isinstance(assigner.value, dict) and 'static_epochs' in assigner.value:
        settings.append(Setting('assigner.static_epochs', 0, ALREADY_TRAINED))
    return settings


def check_ranks(job: Job, ranks: int) -> None:
    """Raise RequestError if the settings, chosen for the batch of one rank, are used with a larger one."""
    each = job.recipe.train.batch_size_per_rank
    if ranks > 1 and each is not None:
        raise RequestError(
            f'--finetune: chooses length and learning rate for a global batch, and train.batch_size_per_rank={each} makes it '
            f'depend on the number of ranks; for {ranks} ranks give --set train.global_batch_size={ranks * each} in its place'
        )


def format_settings(settings: Sequence[Setting]) -> list[str]:
    """Return the chosen settings as lines of text."""
    width = max(len(str(choice)) for choice in settings)
    return [
        '--finetune uses these settings (change one with --set KEY=VALUE):',
        *(f'  {choice!s:<{width}}  {choice.why}'.rstrip() for choice in settings),
    ]


def _optimizer_settings(steps: int, lr: float) -> list[Setting]:
    """Return optimizer, learning rate and schedule."""
    return [
        Setting('optimizer', {'name': 'adamw', 'lr': lr, 'weight_decay': 0.01}),
        Setting('scaling.rule', 'none'),
        Setting('schedule.name', 'cosine'),
        Setting('schedule.steps', steps),
        Setting('schedule.warmup_steps', max(1, steps // 10)),
    ]


def _weights(job: Job) -> tuple[str, str]:
    """Return the name of published weights for this network, and a description. Those of this very recipe come first.

    Raises RequestError if there are none.
    """
    model = to_plain(job.resolved.value['model'])
    for name, entry in sorted(PUBLISHED.items(), key=lambda item: job.name not in (item[0], item[1].network)):
        # The network of an entry is a shipped recipe, whose model options this recipe must have too, or just the name of a
        # model.
        if entry.network in shipped_recipes():
            options = to_plain(open_job(entry.network).resolved.value['model'])
        else:
            options = yaml.safe_load(f'{{name: {entry.network}}}')
        if _is_within(options, model):
            figure = f', {entry.figure}' if entry.figure else ''
            what = 'this network' if entry.part == 'all' else 'its backbone'
            return name, f'published weights of {what}: {entry.trained_on}{figure}; {entry.licence}'
    raise RequestError(
        f'--finetune: `phalanx weights` lists no weights of this network ({model["name"]}); '
        'give others: --set train.init_from=FILE_OR_ADDRESS'
    )


def _is_within(part: Any, whole: Any) -> bool:
    """True if `whole` has all the keys of `part` with the same values; a name alone stands for {name: ...}."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(key in whole and _is_within(value, whole[key]) for key, value in part.items())
    return bool(part == (whole['name'] if isinstance(whole, dict) and 'name' in whole else whole))


def _assignments(settings: Sequence[Setting]) -> Assignments:
    return [(str(choice), f'--finetune: {choice}') for choice in settings]
