"""Where the time of a step goes, on the real trainer and a network of two convolutions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.cli.bench.flops import step_flops
from phalanx.cli.bench.profile import phases_and_messages
from phalanx.cli.bench.timeline import Mark, Moment, Timeline, phase_seconds
from phalanx.cli.bench.train import Figures, advice
from phalanx.cli.bench.watched import PHASES, WatchedTrainer
from phalanx.data.samples import Draw
from phalanx.engine.optim import OPTIMIZERS, SCHEDULES
from phalanx.engine.schema import Recipe, Train
from phalanx.families.task import Loss, Term
from phalanx.parallel.norms import BatchNorm2d
from phalanx.parallel.step import WholeStep

CPU = torch.device('cpu')


@dataclass(frozen=True)
class Images:
    pixels: Tensor  # [B, 3, 8, 8]

    def __len__(self) -> int:
        return len(self.pixels)

    def to(self, device: torch.device) -> Images:
        return Images(self.pixels.to(device))


class Squares:
    """Random images."""

    notes = ()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, draw: Draw) -> Tensor:
        return torch.from_numpy(draw.rng().standard_normal((3, 8, 8)).astype('float32'))

    def name(self, index: int) -> str:
        return str(index)


class Toy:
    """A network of two convolutions with a norm in between, whose output should be small."""

    judged_by = 'none'

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), BatchNorm2d(4), nn.Conv2d(4, 2, 1))

    def dataset(self, split: str) -> Squares:
        return Squares()

    def collate(self, samples: Sequence[Tensor]) -> Images:
        return Images(torch.stack(list(samples)))

    has_fixed_size = True
    sees_whole_step = False

    def align(self, batch: Images, whole: WholeStep) -> Images:
        return batch

    def outputs(self, model: nn.Module, batch: Images) -> Tensor:
        return model(batch.pixels)  # type: ignore[no-any-return]

    def loss(self, outputs: Tensor, batch: Images, whole: WholeStep) -> Loss:
        return {'size': Term(outputs.square().sum(), torch.tensor(float(outputs.numel())))}


def watched(folder: Path, micro_batches: int = 1) -> WatchedTrainer[Any, Any, Any]:
    recipe = Recipe(
        task='toy',
        train=Train(steps=100, global_batch_size=4, micro_batches=micro_batches, workers=0),
        optimizer=partial(OPTIMIZERS['sgd'], lr=0.1),
        schedule=partial(SCHEDULES['constant']),
    )
    return WatchedTrainer(recipe, Toy(), folder=folder, device=CPU)  # type: ignore[arg-type]  # no pictures, no metric


@pytest.fixture
def trainer(tmp_path: Path) -> WatchedTrainer[Any, Any, Any]:
    return watched(tmp_path)


def test_phases_add_up_to_the_steps(trainer: WatchedTrainer[Any, Any, Any]) -> None:
    trainer.run(steps=3, warmup=1)
    seconds = trainer.timeline.seconds()
    assert len(seconds) == 3
    for marks, phases in zip(trainer.timeline.steps, seconds, strict=False):
        assert math.fsum(phases.values()) == pytest.approx(marks[0].moment.until(marks[-1].moment))
        assert set(phases) == set(PHASES) - {'communication'}  # one rank waits for nobody
        assert min(phases.values()) >= 0


def test_a_watched_step_is_the_step(trainer: WatchedTrainer[Any, Any, Any], tmp_path: Path) -> None:
    """The trainer's own steps from the same seed leave the same weights, to the bit."""
    trainer.run(steps=2, warmup=1)
    plain = WatchedTrainer.__mro__[1](trainer.recipe, Toy(), folder=tmp_path, device=CPU)
    plain.until = 3
    for batch in plain.batches():
        plain.train_step(batch)
        plain.at.step += 1
    for watched, other in zip(trainer.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(watched, other)


def test_messages_of_a_step_are_its_norms_its_numbers_and_its_gradients(trainer: WatchedTrainer[Any, Any, Any]) -> None:
    """A norm of 4 channels sends 9 numbers of 8 bytes, and 8 back; a step's numbers are a total, a weight, two news."""
    trainer.run(steps=2, warmup=1)
    timeline = trainer.timeline
    assert Counter(event.kind for event in timeline.events[0]) == {
        'forward exchange': 1,
        'backward exchange': 1,
        'other exchange': 1,
        'gradient': 5,
    }
    found = phases_and_messages(timeline.steps[:-1], timeline.events[:-1], timeline.seconds())
    assert [message.size for message in found['forward']] == [72]
    assert [message.size for message in found['backward']] == [64]
    assert [message.size for message in found['losses']] == [32]
    # Gradients become ready from the last layer to the first: 2 x 4 + 2 (its bias), 4 + 4 of the norm, 4 x 3 x 9; 4 bytes each.
    sizes = [message.size for message in found['gradients']]
    assert sorted(sizes[:2]) == [8, 32]
    assert sizes[2:] == [16, 16, 432]
    moments = [message.at for message in found['gradients']]
    assert moments == sorted(moments)
    assert 0 < moments[-1] <= found['phases']['backward']


def test_operations_are_those_of_the_convolutions(trainer: WatchedTrainer[Any, Any, Any]) -> None:
    """4 images of 64 pixels: 3 -> 4 channels by 3 x 3, whose input needs no gradient, and 4 -> 2 by 1 x 1, whose input does."""
    first, second = 2 * 4 * 64 * (4 * 3 * 9), 2 * 4 * 64 * (2 * 4)
    assert step_flops(trainer, next(trainer.batches())) == 2 * first + 3 * second
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_a_depthwise_convolution_counts_a_filter_a_channel(trainer: WatchedTrainer[Any, Any, Any]) -> None:
    """4 images of 64 pixels, 3 channels with a filter of 3 x 3 each; the input needs no gradient."""
    trainer.model[0] = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)  # type: ignore[index, operator]
    trainer.model[1], trainer.model[2] = nn.Identity(), nn.Identity()  # type: ignore[index, operator]
    assert step_flops(trainer, next(trainer.batches())) == 2 * (2 * 4 * 64 * 3 * 9)


def test_counting_operations_leaves_the_network_as_it_was(trainer: WatchedTrainer[Any, Any, Any]) -> None:
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    step_flops(trainer, next(trainer.batches()))
    assert all(torch.equal(value, before[name]) for name, value in trainer.model.state_dict().items())


def test_a_phase_that_comes_twice_counts_twice() -> None:
    moments = [Moment(CPU) for _ in range(4)]
    for moment, seconds in zip(moments, (0.0, 1.0, 3.0, 7.0), strict=True):
        moment._host = seconds
    marks = [Mark(phase, moment) for phase, moment in zip(('a', 'b', 'a', 'c'), moments, strict=True)]
    assert phase_seconds(marks) == {'a': 1 + 4, 'b': 2}


def test_what_a_phase_calls_counts_without_it() -> None:
    timeline = Timeline(CPU, 'all else')
    with timeline.during('outer'), timeline.during('inner'):
        pass
    timeline.end_step()
    assert [mark.phase for mark in timeline.steps[0]] == ['all else', 'outer', 'inner', 'outer', 'all else', 'all else']


def figures(**changes: Any) -> Figures:
    """A step of 100 ms that does nothing but compute, at 90 % of what the device can."""
    phases = {**dict.fromkeys(PHASES, 0.0), 'forward': 0.04, 'backward': 0.06}
    values: dict[str, Any] = {
        'recipe': 'toy',
        'device': 'cpu',
        'world_size': 1,
        'precision': 'fp32',
        'channels_last': False,
        'compiled': False,
        'samples': 10,
        'steps': 1,
        'step_s': 0.1,
        'fastest_step_s': 0.1,
        'samples_per_s': 100.0,
        'phases': phases,
        'peak_memory_mb': 1.0,
        'gflops': 9.0,
        'gflops_per_s': 90.0,
        'peak_convolution': 100.0,
        'peak_matrix': 80.0,
        'exchanges': 0,
        'gradients_mb': 1.0,
        'workers': 2,
        'loader_rate': 60.0,
    }
    return Figures(**{**values, **changes})


def test_a_device_that_is_busy_needs_no_advice() -> None:
    assert advice(figures()) == []


def test_waiting_for_data_names_the_workers_that_would_do() -> None:
    """10 samples in 0.1 s of computing are 100 a second; a worker makes 30: four are needed."""
    phases = {**figures().phases, 'data wait': 0.1}
    (tip,) = advice(figures(step_s=0.2, phases=phases, loader_rate=30.0))
    assert 'train.workers=4' in tip


def test_a_step_far_from_the_peak_is_told_what_makes_arithmetic_faster() -> None:
    tips = ' '.join(advice(figures(gflops_per_s=20.0)))
    assert 'bf16' in tips and 'channels_last' in tips and 'compile' in tips


def test_what_was_tried_is_not_suggested_again() -> None:
    slow = figures(gflops_per_s=20.0)
    tips = advice(slow, [slow, figures(precision='bf16', channels_last=True, compiled=True)])
    assert tips == []


def test_figures_survive_their_record() -> None:
    assert Figures.of_record(figures().record()) == figures()


def test_relu_is_not_counted() -> None:
    """What the counter leaves out is known: torch.utils.flop_counter has no entry for elementwise work."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        F.relu(torch.ones(10))
    assert counter.get_total_flops() == 0
