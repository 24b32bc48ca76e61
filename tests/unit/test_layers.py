"""Layers that several networks are made of."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from phalanx.layers import enlarged_logits

sides = st.tuples(st.integers(1, 7), st.integers(1, 7))


def gradient(enlarged: Tensor, logits: Tensor, wanted: Tensor) -> Tensor:
    (found,) = torch.autograd.grad((enlarged * wanted).sum(), [logits])
    return found


@given(sides, st.tuples(st.integers(1, 40), st.integers(1, 40)), st.booleans())
def test_enlarged_logits_and_their_gradient_are_those_of_torch(
    small: tuple[int, int], large: tuple[int, int], align_corners: bool
) -> None:
    torch.manual_seed(0)
    logits, images = torch.randn(2, 3, *small, dtype=torch.float64, requires_grad=True), torch.empty(2, 3, *large)
    wanted = torch.randn(2, 3, *large, dtype=torch.float64)
    enlarged = enlarged_logits(logits, images, align_corners=align_corners)
    expected = F.interpolate(logits, large, mode='bilinear', align_corners=align_corners)
    assert torch.equal(enlarged, expected)
    torch.testing.assert_close(gradient(enlarged, logits, wanted), gradient(expected, logits, wanted))


def test_enlarged_logits_are_float32_and_lie_class_by_class() -> None:
    """As a softmax wants them, whatever precision and layout the network has."""
    logits = torch.randn(2, 3, 4, 4).bfloat16().to(memory_format=torch.channels_last).requires_grad_()
    enlarged = enlarged_logits(logits, torch.empty(2, 3, 16, 16))
    assert enlarged.dtype is torch.float32
    assert enlarged.is_contiguous()
    assert gradient(enlarged, logits, torch.ones(2, 3, 16, 16)).dtype is torch.bfloat16
