"""The time of a step by phase, on the real trainer and a network of two convolutions."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import DeviceType
from torch.nn import functional as F

from phalanx.bench.data import Clock
from phalanx.bench.flops import step_flops
from phalanx.bench.profile import NETWORK, PHASES, WAIT, WITH_LOSS, Step, profile_steps, split_steps
from phalanx.bench.train import Figures, format_peak_share, suggest
from phalanx.data.samples import Draw
from phalanx.engine.optim import OPTIMIZERS, SCHEDULES
from phalanx.engine.schema import Recipe, Train
from phalanx.engine.trainer import Trainer
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

    def split(self, count: int) -> list[Images]:
        return [Images(pixels) for pixels in self.pixels.chunk(count)]


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

    main_metric = 'none'

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, bias=False), BatchNorm2d(4), nn.Conv2d(4, 2, 1))

    def dataset(self, split: str) -> Squares:
        return Squares()

    def notes(self, epochs: float) -> Sequence[str]:
        return ()

    def collate(self, samples: Sequence[Tensor]) -> Images:
        return Images(torch.stack(list(samples)))

    has_fixed_size = True
    sees_whole_step = False

    def align(self, batch: Images, whole: WholeStep) -> Images:
        return batch

    def outputs(self, model: nn.Module, batch: Images) -> Tensor:
        return model(batch.pixels)  # type: ignore[no-any-return]

    def weights(self, batch: Images) -> None:
        return None

    def loss(self, outputs: Tensor, batch: Images, whole: WholeStep) -> Loss:
        return {'size': Term(outputs.square().sum(), torch.tensor(float(outputs.numel())))}


@pytest.fixture
def trainer(tmp_path: Path) -> Trainer:
    recipe = Recipe(
        task='toy',
        train=Train(steps=100, global_batch_size=4, workers=0),
        optimizer=partial(OPTIMIZERS['sgd'], lr=0.1),
        schedule=partial(SCHEDULES['constant']),
    )
    return Trainer(recipe, Toy(), folder=tmp_path, device=CPU)  # type: ignore[arg-type]  # no pictures, no metric


def test_phases_of_profiled_steps_add_up_to_their_time(trainer: Trainer) -> None:
    begin = time.perf_counter()
    steps = profile_steps(trainer, trainer.batches(), 3)
    assert len(steps) == 3 and trainer.progress.step == 3
    assert 0 < math.fsum(step.seconds for step in steps) < time.perf_counter() - begin
    for step in steps:
        assert set(step.phases) == set(PHASES)
        assert step.phases['communication'] == step.exchanges == 0  # one rank waits for nobody
        assert min(step.phases.values()) >= 0
        assert min(step.phases[phase] for phase in ('data wait', 'forward', 'loss', 'backward', 'optimizer')) > 0


def test_messages_of_a_step_are_its_norms_its_numbers_and_its_gradients(trainer: Trainer) -> None:
    """A norm of 4 channels sends 9 numbers of 8 bytes, and 8 back; a step's numbers are a total, a weight, two flags."""
    *_, step = profile_steps(trainer, trainer.batches(), 2)
    assert [message.size for message in step.forward] == [72]
    assert [message.size for message in step.backward] == [64]
    assert [message.size for message in step.losses] == [32]
    # Gradients become ready from the last layer to the first: 2 x 4 + 2 (its bias), 4 + 4 of the norm, 4 x 3 x 9; 4 bytes each.
    sizes = [message.size for message in step.gradients]
    assert sorted(sizes[:2]) == [8, 32]
    assert sizes[2:] == [16, 16, 432]
    moments = [message.at for message in step.gradients]
    assert moments == sorted(moments)
    assert 0 < moments[-1] <= step.phases['backward']


def event(name: str, begin: int, end: int, *, id: int = 0, kernel_of: int | None = None, **others: Any) -> SimpleNamespace:
    """An event of torch.profiler, in ms. `kernel_of`: the id of what launched it, where it is on the device."""
    about = {'is_async': False, 'is_user_annotation': False, 'input_shapes': [], **others}
    device = DeviceType.CPU if kernel_of is None else DeviceType.CUDA
    times = SimpleNamespace(start=1000 * begin, end=1000 * end)
    return SimpleNamespace(name=name, time_range=times, device_type=device, id=id, linked_correlation_id=kernel_of, **about)


LABELS = (
    event(WAIT, 0, 1),
    event(WITH_LOSS, 2, 7),
    event(NETWORK, 2, 6),
    event('autograd::engine::evaluate_function: A', 8, 10),
    event('autograd::engine::evaluate_function: B', 11, 12),
    event('Optimizer.step#SGD.step', 20, 23),
    event(WAIT, 24, 25),
)


def milliseconds(step: Step) -> dict[str, float]:
    return {phase: round(1000 * seconds, 6) for phase, seconds in step.phases.items() if seconds}


def test_time_that_a_cpu_waits_for_an_exchange_is_communication() -> None:
    """A bucket travels from 9 to 15, of which the backward pass computes until 12; the next work begins at 16."""
    work = (event('aten::mm', 3, 5), event('aten::mm', 8, 10), event('aten::mm', 11, 12), event('aten::add_', 16, 22))
    (step,) = split_steps((*LABELS, *work, event('gloo:all_reduce', 9, 15, is_async=True)), 4, 0)
    assert milliseconds(step) == {
        'data wait': 1,
        'host to device': 1,
        'forward': 4,
        'loss': 1,
        'backward': 4,
        'optimizer': 7,
        'other': 2,
        'communication': 4,
    }
    assert step.exchanges == 1


def test_an_exchange_that_ends_while_something_is_computed_costs_nothing() -> None:
    work = (event('aten::mm', 8, 13), event('aten::add_', 16, 22))
    (step,) = split_steps((*LABELS, *work, event('gloo:all_reduce', 9, 12, is_async=True)), 4, 0)
    assert step.phases['communication'] == step.exchanges == 0


def test_on_a_gpu_a_phase_lasts_until_its_kernels_are_done() -> None:
    """The host launches the forward pass at 3, which takes the GPU until 10, and the backward pass at 9: from 10 to 18.

    NCCL sends from 16 to 22, of which 4 ms pass without a kernel; the update follows. The host waits for data from 24 to 25 and
    launches nothing new, so the step ends for the GPU with what the host had launched before 24.
    """
    launches = [event('aten::mm', 3, 4, id=1), event('aten::mm', 9, 10, id=2), event('aten::add_', 21, 22, id=3)]
    nccl = event('record_param_comms', 9, 10, id=4)
    call = event('cudaLaunchKernel', 21, 22, id=1)  # a number that is not its own
    kernels = [event('gemm', 4, 10, kernel_of=1), event('gemm', 10, 18, kernel_of=2), event('add', 22, 26, kernel_of=3)]
    (step,) = split_steps((*LABELS, *launches, nccl, call, *kernels, event('ncclDevKernel', 16, 22, kernel_of=4)), 4, 0)
    # Forward until the GPU has done what was launched before 6, which is 10; the loss and what is between launch nothing.
    assert milliseconds(step) == {
        'data wait': 1,
        'host to device': 1,
        'forward': 8,
        'backward': 8,
        'communication': 4,
        'optimizer': 4,
    }


@pytest.mark.parametrize('micro_batches', [1, 2])
def test_operations_are_those_of_the_convolutions(trainer: Trainer, micro_batches: int) -> None:
    """4 images of 64 pixels: 3 -> 4 channels by 3 x 3, whose input needs no gradient, and 4 -> 2 by 1 x 1, whose input does."""
    first, second = 2 * 4 * 64 * (4 * 3 * 9), 2 * 4 * 64 * (2 * 4)
    trainer.passes.micro_batches = micro_batches
    assert step_flops(trainer, next(trainer.batches())) == 2 * first + 3 * second


def test_a_depthwise_convolution_counts_one_filter_per_channel(trainer: Trainer) -> None:
    """4 images of 64 pixels, 3 channels with a filter of 3 x 3 each; the input needs no gradient."""
    trainer.model[0] = nn.Conv2d(3, 3, 3, padding=1, groups=3, bias=False)  # type: ignore[index, operator]
    trainer.model[1], trainer.model[2] = nn.Identity(), nn.Identity()  # type: ignore[index, operator]
    assert step_flops(trainer, next(trainer.batches())) == 2 * (2 * 4 * 64 * 3 * 9)


def test_time_of_nested_parts_counts_only_for_them() -> None:
    clock = Clock()
    begin = clock.since
    with clock.during('outer'), clock.during('inner'):
        pass
    assert set(clock.seconds) == {'all else', 'outer', 'inner'}
    assert math.fsum(clock.seconds.values()) == pytest.approx(clock.since - begin)


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
    values |= changes
    return {**values, 'share_of_peak': values['gflops_per_s'] / max(values['peak_convolution'], values['peak_matrix'])}


def test_a_device_that_is_busy_needs_no_advice() -> None:
    assert suggest(figures()) == []


def test_waiting_for_data_names_the_workers_that_would_do() -> None:
    """10 samples in 0.1 s of computing are 100 a second; a worker makes 30: four are needed."""
    phases = {**figures()['phases'], 'data wait': 0.1}
    (tip,) = suggest(figures(step_s=0.2, phases=phases, loader_rate=30.0))
    assert 'train.workers=4' in tip


def test_a_step_far_from_the_peak_gets_suggestions_for_faster_arithmetic() -> None:
    tips = ' '.join(suggest(figures(gflops_per_s=20.0)))
    assert 'bf16' in tips and 'channels_last' in tips and 'compile' in tips


def test_a_share_of_a_peak_that_a_step_exceeds_is_not_shown() -> None:
    """The measured peak was too low then: the device was busy with something else, say."""
    assert format_peak_share(0.9) == '90.0 %'
    assert '%' not in format_peak_share(1.1)


def test_settings_that_were_measured_are_not_suggested_again() -> None:
    slow = figures(gflops_per_s=20.0)
    tips = suggest(slow, [slow, figures(precision='bf16', channels_last=True, compiled=True)])
    assert tips == []


def test_relu_is_not_counted() -> None:
    """A known gap of the counter: torch.utils.flop_counter has no entry for elementwise work."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        F.relu(torch.ones(10))
    assert counter.get_total_flops() == 0
