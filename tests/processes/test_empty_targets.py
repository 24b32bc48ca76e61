"""Samples, batches, shares of ranks and evaluations without targets, in every family, on one rank and on two."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from doubled import InDouble
from phalanx.engine.job import open_job
from phalanx.engine.loader import epoch_order
from phalanx.engine.trainer import Trainer
from phalanx.families.catalog import FAMILIES
from phalanx.families.detection.data.source import Objects
from phalanx.families.segmentation.labels import VOID
from phalanx.families.table.annotation import Table
from phalanx.families.text_detection.data.source import Texts
from phalanx.parallel import dist
from running import as_ranks, made_once

SMALL = (
    'train={steps: 6, global_batch_size: 2, workers: 0}',
    'optimizer={name: sgd, lr: 0.01}',
    'schedule={name: constant}',
    'evaluate={batch_size: 1, loss: true}',
    'ema=null',
    'norm_sync=global',
    'device=cpu',
)
DEMOS = {
    'segmentation': ('unet_digits', 'data={name: digit_scenes, train_scenes: 12, eval_scenes: 5, size: [32, 64]}'),
    'detection': ('ppyoloe_digits', 'data={name: digit_scenes, train_scenes: 12, eval_scenes: 5, size: [64, 64]}'),
    'recognition': (
        'crnn_digits',
        'data={name: digit_lines, train_lines: 12, eval_lines: 5, digits: [1, 2]}',
        'train_image_sizes=[]',
    ),
    'table': (
        *('slanet_rendered', 'data={name: rendered_tables, train_tables: 12, eval_tables: 5, rows: [1, 2], columns: [1, 2]}'),
        *('image_size=64', 'max_length=60'),
    ),
    'text_detection': ('db_pages', 'data={name: drawn_pages, train_pages: 12, eval_pages: 5, page_size: [64, 64]}'),
}
# Of the six steps, ranks 0 and 1 have targets in these: step 0 all, 1 rank 0 alone, 2 none, 3 rank 1 alone, 4 and 5 none.
WITH_TARGETS = {'train': {int(epoch_order(0, 0, 12)[place]) for place in (0, 1, 2, 7)}, 'eval': {0}}


Found = tuple[list[list[float]], dict[str, float], dict[str, float]]


class Emptied:
    """A source of which only some samples have targets. A text must not be empty: too long for its line, it costs nothing."""

    def __init__(self, source: Any, with_targets: set[int]) -> None:
        self.source, self.with_targets = source, with_targets

    def __getattr__(self, name: str) -> Any:
        if name.startswith('__'):
            raise AttributeError(name)
        return getattr(self.source, name)

    def __len__(self) -> int:
        return len(self.source)

    def read(self, draw: Any) -> tuple[Any, Any]:
        image, truth = self.source.read(draw)
        return image, truth if draw.index in self.with_targets else emptied(truth)


def emptied(truth: Any) -> Any:
    match truth:
        case np.ndarray():
            return np.full_like(truth, VOID)
        case Objects():
            return Objects.none()
        case Table():
            return Table()
        case Texts():
            return Texts()
    return '1' * 25


class WithFewTargets(InDouble):
    """A task some of whose samples have targets; `evaluated` says which ones of those to evaluate with."""

    def __init__(self, task: Any, evaluated: set[int]) -> None:
        super().__init__(task)
        self.evaluated = evaluated

    def dataset(self, split: str) -> Any:
        data = self.task.dataset(split)
        is_training = split == 'train' and self.task.training_source is None
        return replace(data, source=Emptied(data.source, WITH_TARGETS['train'] if is_training else self.evaluated))

    def for_validation_loss(self, samples: Any) -> WithFewTargets:
        return WithFewTargets(self.task.for_validation_loss(samples), self.evaluated)


def trained(family: str, folder: Path, *words: str) -> Found:
    """Terms and total of each step; the metrics of an evaluation with one target, and of one without any."""
    recipe, *small = DEMOS[family]
    job = open_job(recipe, [(word, word) for word in (*SMALL, *small, *words)], folder)
    task = WithFewTargets(job.task, WITH_TARGETS['eval'])
    trainer: Trainer[Any, Any, Any] = Trainer(job.recipe, task, folder=folder, device=torch.device('cpu'))  # type: ignore[arg-type]
    for batch in trainer.batches():
        trainer.train_step(batch)
        trainer.progress.step += 1
    trainer.read_numbers(keep=0)
    found = []
    for task.evaluated in (WITH_TARGETS['eval'], set()):
        evaluation = replace(trainer.evaluator, samples=task.dataset('eval')).evaluate(trainer.progress.step)
        assert evaluation is not None and evaluation.samples == 5
        found.append(dict(evaluation.metrics))
    return trainer.numbers.logged, *found


FEW = ('detection',)  # that two ranks train in `make test`


def as_rank(rank: int, folder: Path, families: Sequence[str]) -> None:
    torch.set_num_threads(1)
    torch.multiprocessing.set_start_method('fork', force=True)  # of loader workers, as in a rank of a launcher
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': '2', 'PHALANX_INIT_METHOD': f'file://{folder}/rendezvous'}
    dist.join(torch.device('cpu'))
    for family in families:
        found = trained(family, folder / f'{family}_{rank}', 'train.workers=1')
        if rank == 0:
            torch.save(found, folder / f'{family}.pt')
    gc.collect()  # DDP lets go of the process group
    dist.leave()


@pytest.fixture(scope='session')
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    """The losses and metrics of two ranks by family, which train the few in one start and the others in another.

    Each rank has a loader worker.
    """

    def of_family(family: str) -> Found:
        families = [other for other in FAMILIES if (other in FEW) == (family in FEW)]
        folder = made_once(
            tmp_path_factory, f'few_targets_of_{"_".join(families)}', lambda folder: as_ranks(2, as_rank, folder, families)
        )
        found: Found = torch.load(folder / f'{family}.pt')
        return found

    return of_family


@pytest.fixture(scope='module')
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Found]:
    """The losses and metrics of one rank without loader workers, by family."""
    return cache(lambda family: trained(family, tmp_path_factory.mktemp(family)))


@pytest.mark.parametrize('family', [pytest.param(each, marks=() if each in FEW else pytest.mark.long) for each in FAMILIES])
def test_samples_without_targets_count_the_same_on_two_ranks_as_on_one(
    family: str, alone: Callable[[str], Found], two_ranks: Callable[[str], Found]
) -> None:
    losses, *metrics = alone(family)
    losses_of_ranks, *metrics_of_ranks = two_ranks(family)
    np.testing.assert_allclose(losses_of_ranks, losses, rtol=1e-5, atol=1e-12)
    for ours, theirs in zip(metrics, metrics_of_ranks, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, nan_ok=True)


UNDEFINED = {  # where nothing is annotated
    'segmentation': {'mean_iou', 'accuracy', 'kappa', 'mean_dice', 'mean_iou_all'},
    'detection': {'mean_ap', 'ap50', 'ap75', 'ar100'},
    'recognition': set[str](),  # a text cannot be empty
    'table': {'teds', 'cell_precision', 'cell_recall'},
    'text_detection': {'hmean', 'recall'},
}


@pytest.mark.parametrize('family', FAMILIES)
def test_metrics_of_nothing_are_undefined_and_never_zero(family: str, alone: Callable[[str], Found]) -> None:
    losses, metrics, of_nothing = alone(family)
    assert len(losses) == 6
    assert np.isfinite(losses).all()
    assert not [name for name, value in metrics.items() if math.isnan(value)]
    assert {name for name, value in of_nothing.items() if math.isnan(value)} - {'precision'} == UNDEFINED[family]
