"""Steps in float32, bf16 and fp16, on the CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.engine.optim import OPTIMIZERS
from phalanx.engine.optim.clip import Clip, clip
from phalanx.engine.optim.optimizers import sgd
from phalanx.engine.precision import Precision, PrecisionOptions

CPU = torch.device('cpu')


def one_weight(lr: float = 0.1) -> tuple[nn.Parameter, Optimizer]:
    weight = nn.Parameter(torch.tensor([1.0]))
    return weight, sgd([{'params': [weight], 'lr_factor': 1.0}], lr=lr, momentum=0.0)


def step(precision: Precision, weight: nn.Parameter, optimizer: Optimizer, slope: float, limit: Clip | None = None) -> Tensor:
    """One step on the loss `slope * weight`; the gradient norm."""
    optimizer.zero_grad()
    precision.backward((weight * slope).sum())
    return precision.step(optimizer, partial(clip, [weight], limit))


@pytest.mark.parametrize('dtype', ['fp32', 'bf16', 'fp16'])
def test_the_loss_scale_does_not_show_in_the_step(dtype: Any) -> None:
    """1 - 0.1 x 3."""
    weight, optimizer = one_weight()
    norm = step(Precision(PrecisionOptions(dtype=dtype), CPU), weight, optimizer, slope=3.0)
    assert norm.item() == pytest.approx(3)
    assert weight.item() == pytest.approx(0.7)


@pytest.mark.parametrize('dtype', ['fp32', 'fp16'])
def test_the_clipping_limit_is_meant_for_true_gradients(dtype: Any) -> None:
    """A gradient of 3 clipped to 2, not one of 3 x 65536: 1 - 0.1 x 2."""
    weight, optimizer = one_weight()
    norm = step(Precision(PrecisionOptions(dtype=dtype), CPU), weight, optimizer, slope=3.0, limit=Clip(norm=2))
    assert norm.item() == pytest.approx(3)
    assert weight.item() == pytest.approx(0.8)


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        *((name, {'fused': fused}) for name in ('sgd', 'adam', 'adamw') for fused in (True, False)),
        *((name, {}) for name in sorted(OPTIMIZERS.keys() - {'sgd', 'adam', 'adamw'})),
    ],
)
def test_an_overflow_skips_the_step_and_halves_the_scale(name: str, options: dict[str, bool]) -> None:
    """The next step is then the first one: the optimizer has kept nothing of the overflow.

    Large enough that memory which was never written shows: torch's own fused SGD takes its momentum from there.
    """
    ends = []
    for slopes in ([2.0], [float('inf'), 2.0]):
        weight = nn.Parameter(torch.ones(1000))
        optimizer = OPTIMIZERS[name]([{'params': [weight], 'lr_factor': 1.0}], lr=0.1, **options)
        precision = Precision(PrecisionOptions(dtype='fp16'), CPU)
        for slope in slopes:
            step(precision, weight, optimizer, slope, limit=Clip(norm=1))
        ends.append(weight.detach())
    assert torch.equal(ends[0], ends[1])
    assert ends[0].max() < 1
    assert precision.scale == 2.0**15
    assert precision.skipped == 1


def test_a_constant_scale_stays_when_a_step_is_skipped() -> None:
    weight, optimizer = one_weight()
    precision = Precision(PrecisionOptions(dtype='fp16', loss_scale=128.0), CPU)
    for slope in (float('nan'), 2.0, float('inf')):
        step(precision, weight, optimizer, slope)
        assert precision.scale == 128
    assert weight.item() == pytest.approx(0.8)
    assert precision.skipped == 2


def test_nothing_is_scaled_or_skipped_in_float32() -> None:
    """A loss that is not finite is for the trainer to report."""
    weight, optimizer = one_weight()
    precision = Precision(PrecisionOptions(), CPU)
    step(precision, weight, optimizer, float('inf'))
    assert weight.item() == -float('inf')
    assert precision.scale is None
    assert precision.skipped == 0


@pytest.mark.parametrize(('dtype', 'expected'), [('fp32', torch.float32), ('bf16', torch.bfloat16), ('fp16', torch.float16)])
def test_products_are_computed_in_the_chosen_type(dtype: Any, expected: torch.dtype) -> None:
    layer = nn.Linear(2, 2)
    with Precision(PrecisionOptions(dtype=dtype), CPU).autocast():
        assert layer(torch.ones(1, 2)).dtype == expected
    assert layer.weight.dtype == torch.float32


@pytest.mark.parametrize('dtype', ['bf16', 'fp16'])
def test_half_precision_learns_a_straight_line(dtype: Any) -> None:
    torch.manual_seed(0)
    layer, inputs = nn.Linear(1, 1), torch.linspace(-1, 1, 16)[:, None]
    optimizer = sgd([{'params': list(layer.parameters()), 'lr_factor': 1.0}], lr=0.1)
    precision = Precision(PrecisionOptions(dtype=dtype), CPU)
    for _ in range(80):
        optimizer.zero_grad()
        with precision.autocast():
            predicted = layer(inputs)
        precision.backward((predicted.float() - (2 * inputs - 1)).square().mean())
        precision.step(optimizer, partial(clip, layer.parameters(), None))
    assert layer.weight.item() == pytest.approx(2, abs=0.05)
    assert layer.bias.item() == pytest.approx(-1, abs=0.05)


def test_a_resumed_run_keeps_its_loss_scale() -> None:
    weight, optimizer = one_weight()
    precision = Precision(PrecisionOptions(dtype='fp16'), CPU)
    for slope in (1.0, float('inf'), 1.0):
        step(precision, weight, optimizer, slope)
    resumed = Precision(PrecisionOptions(dtype='fp16'), CPU)
    resumed.restore(precision.state())
    step(resumed, weight, optimizer, float('inf'))
    assert resumed.scale == 2.0**14
    assert resumed.skipped == 2


@pytest.mark.parametrize(
    ('before', 'after', 'scale'),
    [
        (PrecisionOptions(), PrecisionOptions(dtype='fp16'), 2.0**16),
        (PrecisionOptions(dtype='fp16'), PrecisionOptions(), None),
        (PrecisionOptions(dtype='fp16'), PrecisionOptions(dtype='fp16', loss_scale=8.0), 8.0),
        (PrecisionOptions(dtype='fp16', loss_scale=8.0), PrecisionOptions(dtype='fp16'), 2.0**16),
    ],
)
def test_a_run_may_change_its_precision(before: PrecisionOptions, after: PrecisionOptions, scale: float | None) -> None:
    resumed = Precision(after, CPU)
    resumed.restore(Precision(before, CPU).state())
    assert resumed.scale == scale


def test_a_scale_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r'^loss_scale must be above 0 or dynamic, got 0$'):
        PrecisionOptions(dtype='fp16', loss_scale=0)
