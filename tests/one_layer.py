"""The smallest training: a linear layer without bias that learns to double numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from phalanx.data.batch import ImageBatch
from phalanx.data.samples import Dataset, Draw, SampleError, Split
from phalanx.engine.job import open_job
from phalanx.engine.progress import Progress
from phalanx.engine.schema import Recipe
from phalanx.engine.trainer import Trainer
from phalanx.families.figures import Figure, Grade
from phalanx.families.task import Loss, Task, Term
from phalanx.parallel import dist
from phalanx.parallel.step import WholeStep
from phalanx.report.report import Report

SIZES = {'train': 8, 'eval': 5}


@dataclass(frozen=True)
class Numbers(ImageBatch):
    """Numbers [B, 1] in place of images, and their doubles [B, 1]."""

    targets: Tensor


@dataclass(frozen=True)
class Source:
    split: Split
    unreadable: frozenset[int]

    def __len__(self) -> int:
        return SIZES[self.split]

    def name(self, index: int) -> str:
        return f'{self.split} {index}'


@dataclass(frozen=True)
class Samples(Dataset[float]):
    """The numbers 1, 2, ... of one split."""

    def __getitem__(self, draw: Draw) -> float:
        if draw.index in self.source.unreadable:
            raise SampleError(f'{self.name(draw.index)}: cannot be read')
        return 1.0 + draw.index


class Closeness:
    """Minus the mean distance to the targets, and the share of predictions that hit them."""

    names = ('closeness',)
    tie_breakers = ('hits',)
    worst = 'Furthest off'

    def __init__(self) -> None:
        self.distances: list[float] = []

    def update(self, prediction: Tensor, batch: Numbers) -> list[Grade | None]:
        distances = (prediction - batch.targets).abs().flatten().tolist()
        self.distances += distances
        return [Grade(-distance, f'{distance} off') if distance else None for distance in distances]

    def gather(self) -> None:
        self.distances = [distance for share in dist.gather_objects(self.distances) for distance in share]

    def compute(self) -> dict[str, float]:
        count = len(self.distances)
        return {'closeness': -sum(self.distances) / count, 'hits': self.distances.count(0) / count}

    def table(self) -> list[dict[str, str | float]]:
        return []

    def figures(self) -> Sequence[Figure]:
        return []


class Doubling(Task):
    """Holds its network, so that a test can set the weight that is evaluated or saved."""

    main_metric = 'closeness'
    tie_breakers = ('hits',)
    has_fixed_size = True  # type: ignore[assignment]

    def __init__(self, weight: float = 0.0, unreadable: Sequence[int] = ()) -> None:
        self.network = nn.Linear(1, 1, bias=False)
        self.set_weight(weight)
        self.unreadable = frozenset(unreadable)  # numbers of evaluation samples

    def set_weight(self, weight: float) -> None:
        nn.init.constant_(self.network.weight, weight)

    def model(self) -> nn.Module:
        return self.network

    def dataset(self, split: Split) -> Samples:
        return Samples(Source(split, self.unreadable if split == 'eval' else frozenset()), (), split)

    def for_validation_loss(self, samples: object) -> Self:
        return self

    def collate(self, samples: Sequence[float]) -> Numbers:
        numbers = torch.tensor(samples)[:, None]
        return Numbers(numbers, 2 * numbers)

    def network_input(self, batch: Numbers) -> Tensor:
        return batch.images

    def loss(self, outputs: Tensor, batch: Numbers, whole: WholeStep) -> Loss:
        return {'square': Term((outputs - batch.targets).square().sum(), self.weights(batch)['square'])}

    def weights(self, batch: Numbers) -> Mapping[str, Tensor]:
        return {'square': torch.tensor(float(len(batch)))}

    def begin_prediction(self, model: nn.Module, batch: Numbers) -> Callable[[], Tensor]:
        prediction: Tensor = model(batch.images)
        return lambda: prediction

    def metric(self) -> Closeness:
        return Closeness()


Doubling.__abstractmethods__ = frozenset()  # those without a body here are for requests, pictures and exports


@cache
def recipe(*settings: str) -> Recipe:
    """Recipe of 12 steps with 2 samples each and a constant learning rate of 0.01, changed by `settings` (`key=value`)."""
    usual = (
        'train={steps: 12, global_batch_size: 2, workers: 0}',
        *('optimizer={name: sgd, lr: 0.01, momentum: 0.9}', 'schedule={name: constant}', 'scaling.rule=none'),
        *('clip=null', 'ema=null', 'evaluate.batch_size=2', 'report={pictures: 0, every: 1, trackers: []}', 'device=cpu'),
    )
    return open_job('unet_digits', [(setting, '--set') for setting in (*usual, *settings)], folder=Path('unused')).recipe


def trainer(folder: Path, task: Doubling, *settings: str, progress: Progress | None = None) -> Trainer:
    return Trainer(recipe(*settings), task, folder=folder, device=torch.device('cpu'), progress=progress)


def report(folder: Path) -> tuple[Report, list[Mapping[str, Any]]]:
    """Report of the main rank into `folder`, and the list that collects its events."""
    events: list[Mapping[str, Any]] = []
    return Report(folder, main=True, name='doubling', total_steps=12, callback=events.append), events


def of_kind(events: Sequence[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [event for event in events if event['kind'] == kind]
