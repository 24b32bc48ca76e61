"""LARS and LAMB give each layer a rate in proportion to its length."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from phalanx.engine.optim.layerwise import Lamb, Lars
from phalanx.engine.optim.optimizers import adam, set_lr, sgd

RATES = (0.1, 0.2, 0.05)  # a changing rate tells whether it enters the velocity
Make = Callable[..., Optimizer]


def layers() -> list[nn.Parameter]:
    """Two tensors of very different lengths."""
    rng = np.random.default_rng(0)
    return [nn.Parameter(torch.from_numpy(scale * rng.normal(size=shape))) for scale, shape in ((1, (3, 4)), (100, (5,)))]


def group(weights: list[nn.Parameter], **options: float) -> list[dict[str, Any]]:
    return [{'params': weights, 'lr_factor': 1.0, **options}]


def take_steps(optimizer: Optimizer, weights: list[nn.Parameter], rates: tuple[float, ...] = RATES) -> None:
    """Steps on the sum of `w ** 2`, whose gradient is 2 w."""
    for rate in rates:
        set_lr(optimizer, rate)
        optimizer.zero_grad()
        torch.stack([weight.square().sum() for weight in weights]).sum().backward()
        optimizer.step()


def test_lars_takes_the_steps_of_its_paper() -> None:
    """Algorithm 1 of You, Gitman & Ginsburg 2017, written out in numpy: every layer by itself."""
    weights = layers()
    expected = []
    for w in [weight.detach().numpy().copy() for weight in weights]:
        velocity = np.zeros_like(w)
        for rate in RATES:
            g = 2 * w
            local = 0.02 * np.linalg.norm(w) / (np.linalg.norm(g) + 0.3 * np.linalg.norm(w))
            velocity = 0.9 * velocity + rate * local * (g + 0.3 * w)
            w = w - velocity
        expected.append(w)
    take_steps(Lars(group(weights), lr=1.0, momentum=0.9, weight_decay=0.3, coefficient=0.02), weights)
    for weight, w in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight.detach().numpy(), w, rtol=1e-12)


def test_lamb_takes_the_steps_of_its_paper() -> None:
    """Algorithm 2 of You et al. 2020, written out in numpy, with phi(z) = z."""
    weights = layers()
    expected = []
    for w in [weight.detach().numpy().copy() for weight in weights]:
        m, v = np.zeros_like(w), np.zeros_like(w)
        for t, rate in enumerate(RATES, 1):
            g = 2 * w
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            r = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-6) + 0.3 * w
            w = w - rate * np.linalg.norm(w) / np.linalg.norm(r) * r
        expected.append(w)
    take_steps(Lamb(group(weights), lr=1.0, weight_decay=0.3), weights)
    for weight, w in zip(weights, expected, strict=True):
        np.testing.assert_allclose(weight.detach().numpy(), w, rtol=1e-10)


def test_the_first_step_of_lamb_moves_every_layer_by_the_same_share_of_itself() -> None:
    """`lr * |w| / |update| * |update|`: the rate, times its length."""
    weights = layers()
    before = [weight.detach().clone() for weight in weights]
    take_steps(Lamb(group(weights), lr=1.0), weights, (0.1,))
    moved = [((weight - was).norm() / was.norm()).item() for weight, was in zip(weights, before, strict=True)]
    assert moved == pytest.approx([0.1, 0.1], rel=1e-12)


@pytest.mark.parametrize(
    ('make', 'moved'),
    [(Lars, 0.1 * 3), (Lamb, 0.1)],  # the gradient; the first step of Adam, which is the gradient's sign
)
def test_a_layer_of_zeros_learns_at_the_plain_rate(make: Make, moved: float) -> None:
    weight = nn.Parameter(torch.zeros(4, dtype=torch.float64))
    optimizer = make(group([weight]), lr=0.1, weight_decay=0.5)
    (3 * weight.sum()).backward()
    optimizer.step()
    assert weight.tolist() == pytest.approx([-moved] * 4, rel=1e-6)


@pytest.mark.parametrize('make', [Lars, Lamb])
def test_a_layer_without_a_gradient_to_follow_only_decays(make: Make) -> None:
    """And gets no numbers that are none of a division by a length of 0."""
    weight = nn.Parameter(torch.full((4,), 2.0))
    optimizer = make(group([weight]), lr=0.1, weight_decay=0.5)
    (0 * weight.sum()).backward()
    optimizer.step()
    assert ((weight > 0) & (weight < 2)).all()


@pytest.mark.parametrize(('make', 'plain'), [(Lars, sgd), (Lamb, adam)])
def test_what_does_not_decay_learns_at_the_plain_rate(make: Make, plain: Make) -> None:
    """Norms and biases, with `parameters: {decay_norms: false, decay_biases: false}`: one step of momentum, or of Adam."""
    ends = []
    for optimizer_of in (make, plain):
        (weight, free) = layers()
        groups = [*group([weight]), *group([free], weight_decay=0.0)]
        optimizer = optimizer_of(groups, lr=1.0, weight_decay=0.1)
        take_steps(optimizer, [weight, free], (0.1,))
        ends.append(free.detach())
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-7, atol=0)


@pytest.mark.parametrize(('make', 'name'), [(Lars, 'lars'), (Lamb, 'lamb')])
def test_an_optimizer_that_would_adapt_nothing_is_refused(make: Make, name: str) -> None:
    with pytest.raises(ValueError, match=rf'{name} adapts .* set optimizer.weight_decay above 0'):
        make(group(layers(), weight_decay=0.0), lr=1.0, weight_decay=0.5)


@pytest.mark.parametrize('make', [Lars, Lamb])
def test_steps_go_on_from_a_saved_state_as_if_nothing_had_happened(make: Make) -> None:
    """Bit for bit, through a file that holds no code."""
    whole = layers()
    one = make(group(whole), lr=1.0)
    take_steps(one, whole)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    halves = [nn.Parameter(weight.detach().clone()) for weight in whole]
    other = make(group(halves), lr=1.0)
    other.load_state_dict(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    for optimizer, weights in ((one, whole), (other, halves)):
        take_steps(optimizer, weights)
    assert all(torch.equal(a, b) for a, b in zip(whole, halves, strict=True))


@pytest.mark.parametrize('make', [Lars, Lamb])
def test_a_group_without_gradients_stays_as_it_is(make: Make) -> None:
    """Parts that are frozen at first have none."""
    still, moving = layers()
    before = still.detach().clone(), moving.detach().clone()
    optimizer = make([*group([still]), *group([moving])], lr=0.1, weight_decay=0.3)
    moving.square().sum().backward()
    optimizer.step()
    assert torch.equal(still, before[0]) and not torch.equal(moving, before[1])
