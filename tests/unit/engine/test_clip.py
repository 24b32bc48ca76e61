"""Gradient clipping, by hand: 3, 4, 12 have norm 13."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from phalanx.engine.optim.clip import Clip, clip


def parameters() -> list[Tensor]:
    """Gradients (3, 4), of norm 5, and (12), together of norm 13; and a parameter that got none."""
    held = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(7))]
    held[0].grad, held[1].grad = torch.tensor([3.0, 4.0]), torch.tensor([12.0])
    return list(held)


def gradients(held: list[Tensor]) -> list[float]:
    return [value for parameter in held if parameter.grad is not None for value in parameter.grad.tolist()]


@pytest.mark.parametrize(
    ('limit', 'expected'),
    [
        (None, [3, 4, 12]),
        (Clip(norm=13), [3, 4, 12]),  # as long as allowed
        (Clip(norm=1.3), [0.3, 0.4, 1.2]),
        (Clip(norm=6, per_tensor=True), [3, 4, 6]),  # the first tensor is short enough
        (Clip(norm=1, per_tensor=True), [0.6, 0.8, 1]),
    ],
)
def test_gradients_are_scaled_down_to_the_limit(limit: Clip | None, expected: list[float]) -> None:
    held = parameters()
    assert clip(held, limit).item() == pytest.approx(13)
    assert gradients(held) == pytest.approx(expected)


def test_clipping_by_the_whole_norm_agrees_with_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = ([nn.Parameter(torch.zeros(size)) for size in (3, 50, 7)] for _ in range(2))
    for a, b in zip(ours, theirs, strict=True):
        a.grad = torch.randn(a.shape)
        b.grad = a.grad.clone()
    norm, expected = clip(ours, Clip(norm=0.5)), nn.utils.clip_grad_norm_(theirs, 0.5)
    torch.testing.assert_close(norm, expected)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_no_gradient_has_norm_zero() -> None:
    assert clip([nn.Parameter(torch.zeros(2))], Clip(norm=1)).item() == 0


def test_a_limit_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(ValueError, match=r'^norm must be above 0, got 0$'):
        Clip(norm=0)
