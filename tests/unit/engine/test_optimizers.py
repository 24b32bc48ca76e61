"""The optimizers follow Paddle's, and the learning rate of a step reaches every group."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phalanx.engine.optim import OPTIMIZERS
from phalanx.engine.optim.clip import Clip, clip
from phalanx.engine.optim.groups import ParameterRule, Parameters, parameter_groups
from phalanx.engine.optim.optimizers import adam, adamw, load_state, set_lr, sgd

ADAM = json.loads((Path(__file__).parents[2] / 'golden' / 'data' / 'adam_toy.json').read_text())


def one_group(*parameters: Tensor) -> list[dict[str, object]]:
    return [{'params': list(parameters), 'lr_factor': 1.0}]


@pytest.mark.parametrize(
    ('case', 'weight_decay', 'limit'),
    [
        ('plain', 0.0, None),
        ('weight_decay_0.05', 0.05, None),
        ('ClipGradByNorm_5', 0.0, Clip(norm=5, per_tensor=True)),
        ('ClipGradByNorm_1_and_weight_decay_0.05', 0.05, Clip(norm=1, per_tensor=True)),
    ],
)
def test_adam_and_clipping_go_the_way_of_paddle(case: str, weight_decay: float, limit: Clip | None) -> None:
    """Three steps of Paddle's Adam at rate 0.1 on `sum(w ** 3) * v + v ** 2` (golden/data/adam_toy.json, float32).

    Paddle keeps the powers of beta in float32: 1 - 0.999 ** 2 is then wrong by 2e-5 of itself, and its steps by several 1e-6.
    """
    w, v = nn.Parameter(torch.tensor([1.0, -2.0, 3.0])), nn.Parameter(torch.tensor([0.5]))
    optimizer = adam(one_group(w, v), lr=0.1, weight_decay=weight_decay)
    for expected_w, expected_v in ADAM[case]:
        optimizer.zero_grad()
        (w.pow(3).sum() * v + v**2).sum().backward()
        clip([w, v], limit)
        optimizer.step()
        assert w.tolist() == pytest.approx(expected_w, rel=1e-5)
        assert v.tolist() == pytest.approx(expected_v, rel=1e-5)


@pytest.mark.parametrize('nesterov', [False, True])
def test_sgd_is_the_momentum_of_paddle(nesterov: bool) -> None:
    """The update that Paddle documents: velocity = mu * velocity + g, then param -= lr * velocity, with Nesterov's
    lr * (g + mu * velocity). L2Decay adds decay * param to g. The gradient of x ** 2 is 2 x.
    """
    x = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = sgd(one_group(x), lr=0.1, momentum=0.9, nesterov=nesterov, weight_decay=0.5)
    expected, velocity = 2.0, 0.0
    for rate in (0.1, 0.2, 0.05):  # a changing rate tells this form from those that keep it in the velocity
        gradient = 2 * expected + 0.5 * expected
        velocity = 0.9 * velocity + gradient
        expected -= rate * (gradient + 0.9 * velocity if nesterov else velocity)
        set_lr(optimizer, rate)
        optimizer.zero_grad()
        x.square().sum().backward()
        optimizer.step()
        assert x.item() == pytest.approx(expected, rel=1e-12)


def test_the_decay_of_adamw_does_not_pass_through_the_moments() -> None:
    """First step, by hand: 2 x (1 - 0.1 x 0.5) = 1.9 by decay, then the rate 0.1 against the sign of the gradient."""
    x = nn.Parameter(torch.tensor([2.0], dtype=torch.float64))
    optimizer = adamw(one_group(x), lr=0.1, weight_decay=0.5)
    x.square().sum().backward()
    optimizer.step()
    assert x.item() == pytest.approx(1.8, rel=1e-8)


@pytest.mark.parametrize('make', [partial(sgd, nesterov=True), adam, adamw])
def test_the_fused_kernel_gives_what_the_plain_form_gives(make: Callable[..., Optimizer]) -> None:
    ends = []
    for fused in (True, False):
        x = nn.Parameter(torch.linspace(-2, 2, 101, dtype=torch.float64))
        optimizer = make(one_group(x), lr=0.1, weight_decay=0.01, fused=fused)
        for _ in range(5):
            optimizer.zero_grad()
            x.pow(4).sum().backward()
            optimizer.step()
        ends.append(x.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize('name', OPTIMIZERS)
def test_each_group_learns_with_its_share_of_the_rate(name: str) -> None:
    net = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    groups = parameter_groups(net, Parameters(rules=(ParameterRule(match='0.*', lr_factor=0.1, weight_decay=0.3),)))
    optimizer = OPTIMIZERS[name](groups, lr=1.0, weight_decay=0.7)
    set_lr(optimizer, 0.5)
    assert [(group['lr'], group['weight_decay']) for group in optimizer.param_groups] == [(0.05, 0.3), (0.5, 0.7)]


def a_step(kind: str, layout: torch.memory_format, number: int, optimizer: Optimizer | None, weight: Tensor) -> Optimizer:
    optimizer = optimizer or OPTIMIZERS[kind](one_group(weight), lr=0.1, weight_decay=1e-3)
    gradient = torch.randn(3, 4, 2, 5, generator=torch.Generator().manual_seed(number))
    weight.grad = gradient.to(memory_format=layout)
    optimizer.step()
    return optimizer


@pytest.mark.parametrize('kind', ['sgd', 'adam', 'adamw', 'lamb'])
def test_a_run_continues_in_another_memory_layout_as_in_its_own(kind: str) -> None:
    start = torch.randn(3, 4, 2, 5, generator=torch.Generator().manual_seed(9))
    whole = start.clone().requires_grad_()
    optimizer = a_step(kind, torch.contiguous_format, 1, None, whole)
    halves = whole.detach().clone(memory_format=torch.channels_last).requires_grad_()
    other = OPTIMIZERS[kind](one_group(halves), lr=0.1, weight_decay=1e-3)
    load_state(other, optimizer.state_dict(), OPTIMIZERS[kind])
    a_step(kind, torch.contiguous_format, 2, optimizer, whole)
    a_step(kind, torch.channels_last, 2, other, halves)
    assert torch.allclose(whole, halves, rtol=1e-6, atol=1e-7)


def test_a_resumed_run_uses_the_settings_of_its_recipe_not_of_the_checkpoint() -> None:
    weight = torch.ones(2, requires_grad=True)
    before, after = sgd(one_group(weight), lr=0.1, momentum=0.9), sgd(one_group(weight), lr=0.1, momentum=0.5, weight_decay=0.3)
    weight.grad = torch.ones(2)
    before.step()
    load_state(after, before.state_dict(), sgd)
    (group,) = after.param_groups
    assert (group['momentum'], group['weight_decay']) == (0.5, 0.3)
    assert after.state[weight]['momentum_buffer'].tolist() == [1, 1]
