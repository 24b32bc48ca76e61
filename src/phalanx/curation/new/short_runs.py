"""Short runs that choose learning rate, norms and frozen parts of fine-tuning, by the metric on held-out samples.

Rates suit some data and ruin others: for early prints, 1e-4 made a published recogniser worse within an epoch.
"""

import math
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torch import nn

from phalanx.config.read import to_plain
from phalanx.curation.prepare.targets import Written
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.engine.worker import process_group
from phalanx.parallel.norms import norms_can_follow
from phalanx.report.readable import format_number
from phalanx.system.errors import RunError

HELD_OUT = 48  # evaluation samples, spread evenly
STEPS = (6, 40)  # per run, at least and at most
RUNS = 5
BATCH = 16  # at most: more steps in the same time
SHARE, MOST = 0.25, 0.5  # of the announced time of the training, for all short runs together: wanted, and at most
LOWER, HIGHER = (1 / 3, 1 / 10), (3.0,)  # multiples of the rate of the recipe, where it makes the weights worse, or better

Score = tuple[float, ...]  # main metric, then those that break ties
DIVERGED: Score = (-math.inf,)


def choose_settings(
    path: Path, written: Written, *, rate: float, seconds: float, report: Callable[[str], None]
) -> tuple[str, ...] | None:
    """Choose settings KEY=VALUE for the recipe at `path`, which names initial weights: those of the best of some short runs.

    If no run is better than the start, the best one harmed least: for words of ICDAR 2015, a whole training at its rate kept
    what the weights knew, and one at the rate of the recipe did not (docs/own-data.md). `rate`: samples per second of the
    training; `seconds`: its announced time, which limits the short runs; `report` gets a line for the user after each of them.
    Returns no settings if all runs diverge, and None if there is too little time for them. Raises the errors of training.
    """
    job = open_job(str(path))
    batch = min(BATCH, job.recipe.train.global_batch(1))
    affordable = seconds * rate / (RUNS * batch)  # steps per run in the time of the whole training
    if MOST * affordable < STEPS[0]:
        return None
    steps = min(STEPS[1], max(STEPS[0], round(SHARE * affordable)))
    with tempfile.TemporaryDirectory(prefix='.trial_', dir=path.parent) as folder:
        common = (
            f'data.eval={write_held_out(written, Path(folder))}',
            f'train.steps={steps}',
            f'train.global_batch_size={batch}',
            # The rate falls to 0, as in the training: a high one looks worse than it is until it falls.
            f'schedule={{name: cosine, steps: {steps}, warmup_steps: 2}}',
            *SHORT,
        )
        start, main, model = _start(path, common)
        report(f'{main} on held-out samples: {_format(start)} at the start, after {steps} steps with')
        # Rates first, then norms and frozen parts at the best rate.
        tried: dict[tuple[str, ...], Score] = {}

        def run_with(*settings: str) -> Score:
            tried[settings] = _run(path, (*common, *settings))
            report(f'{" ".join(settings)}: {_format(tried[settings])}')
            return tried[settings]

        lr = float(to_plain(job.resolved.value['optimizer'])['lr'])
        first = run_with(f'optimizer.lr={lr:.2g}')
        for by in HIGHER if first > start else LOWER:
            run_with(f'optimizer.lr={lr * by:.2g}')
        best = max(tried, key=tried.__getitem__)
        if norms_can_follow(model):
            run_with(*best, f'norm_sync={"global" if job.recipe.norm_sync == "frozen" else "frozen"}')
        if _has_backbone(model) and 'backbone' not in job.recipe.train.freeze:
            run_with(*best, 'train.freeze=[backbone]')
    best = max(tried, key=tried.__getitem__)
    if tried[best] == DIVERGED:
        report('every short run diverged, so the recipe has the settings of its base')
        return ()
    report(f'chosen: {" ".join(best)}')
    if tried[best] <= start:
        report('no short run was better than the start: this one harmed least; the weights may fit your data already, and stay')
        report('the best checkpoint until an evaluation is better; --minutes allows longer runs')
    return best


SHORT = ('train.epochs=null', 'train.workers=0', 'ema=null', 'evaluate.start=false', 'report.pictures=0')


def write_held_out(written: Written, folder: Path) -> str:
    """Write a list of HELD_OUT evaluation samples; return the value of `data.eval` for it."""
    given = written.data['eval']
    root, name = Path(written.data['root']), given[0] if isinstance(given, list) else given
    lines = (root / name).read_bytes().removesuffix(b'\n').split(b'\n')
    chosen = lines[:: math.ceil(len(lines) / HELD_OUT)]
    file = folder / Path(name).name
    file.write_bytes(b'\n'.join(chosen) + b'\n')
    below = file.resolve().relative_to(root.resolve())
    return f'["{below}"]' if isinstance(given, list) else f'"{below}"'


def _start(path: Path, settings: Sequence[str]) -> tuple[Score, str, nn.Module]:
    """Score of the initial weights, the names of the metrics in it, and the network."""
    with process_group('auto') as device, tempfile.TemporaryDirectory(prefix='phalanx-') as folder:
        trainer = _trainer(path, settings, Path(folder), device)
        task = trainer.task
        return _evaluate(trainer), ', '.join(dict.fromkeys((task.main_metric, *task.tie_breakers))), trainer.model


def _run(path: Path, settings: Sequence[str]) -> Score:
    """Score after a short run; minus infinity if its loss is not finite or diverges."""
    with process_group('auto') as device, tempfile.TemporaryDirectory(prefix='phalanx-') as folder:
        trainer = _trainer(path, settings, Path(folder), device)
        try:
            for batch in trainer.batches():
                trainer.train_step(batch)
                trainer.progress.step += 1
            trainer.read_numbers(keep=0)
        except RunError:
            return DIVERGED
        return _evaluate(trainer)


def _trainer(path: Path, settings: Sequence[str], folder: Path, device: Any) -> Trainer:
    job = open_job(str(path), [(setting, 'a short run') for setting in settings])
    return Trainer(job.recipe, job.task, folder=folder, device=device)


def _evaluate(trainer: Trainer) -> Score:
    result = trainer.evaluator.evaluate(trainer.progress.step)
    if result is None:
        raise KeyboardInterrupt
    names = (trainer.task.main_metric, *trainer.task.tie_breakers)
    return tuple(-math.inf if math.isnan(result.metrics[name]) else result.metrics[name] for name in names)


def _has_backbone(model: nn.Module) -> bool:
    """True if the network has a part named `backbone`, with something to train beside it."""
    parts = dict(model.named_children())
    return 'backbone' in parts and len(parts) > 1


def _format(score: Score) -> str:
    """Format the metrics; a run that failed has none."""
    if score == DIVERGED:
        return 'the loss diverged'
    return ', '.join(map(format_number, score))
