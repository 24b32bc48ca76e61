"""Layers that several networks are made of."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile

from phalanx.nn.layers import DepthwiseConv2d, adaptive_avg_pool, upsample_logits

sides = st.tuples(st.integers(1, 7), st.integers(1, 7))


def gradient(enlarged: Tensor, logits: Tensor, wanted: Tensor) -> Tensor:
    (found,) = torch.autograd.grad((enlarged * wanted).sum(), [logits])
    return found


@given(sides, st.tuples(st.integers(1, 40), st.integers(1, 40)), st.booleans())
def test_upsampled_logits_and_their_gradient_match_torch(
    small: tuple[int, int], large: tuple[int, int], align_corners: bool
) -> None:
    torch.manual_seed(0)
    logits, images = torch.randn(2, 3, *small, dtype=torch.float64, requires_grad=True), torch.empty(2, 3, *large)
    wanted = torch.randn(2, 3, *large, dtype=torch.float64)
    enlarged = upsample_logits(logits, images, align_corners=align_corners)
    expected = F.interpolate(logits, large, mode='bilinear', align_corners=align_corners)
    assert torch.equal(enlarged, expected)
    torch.testing.assert_close(gradient(enlarged, logits, wanted), gradient(expected, logits, wanted))


def test_upsampled_logits_are_float32_and_contiguous() -> None:
    """A softmax needs that, for any precision and layout of the network."""
    logits = torch.randn(2, 3, 4, 4).bfloat16().to(memory_format=torch.channels_last).requires_grad_()
    enlarged = upsample_logits(logits, torch.empty(2, 3, 16, 16))
    assert enlarged.dtype is torch.float32
    assert enlarged.is_contiguous()
    assert gradient(enlarged, logits, torch.ones(2, 3, 16, 16)).dtype is torch.bfloat16


def test_the_gradient_of_upsampled_logits_does_not_depend_on_the_rest_of_the_batch() -> None:
    """Bit for bit: two ranks with a part of a batch each train as one does."""
    torch.manual_seed(0)
    logits, wanted = torch.randn(5, 11, 12, 16, requires_grad=True), torch.randn(5, 11, 96, 128)

    def of(part: slice) -> Tensor:
        return gradient(upsample_logits(logits[part], wanted[part]), logits, wanted[part])[part]

    assert torch.equal(torch.cat([of(slice(0, 1)), of(slice(1, 3)), of(slice(3, 5))]), of(slice(0, 5)))


@pytest.mark.parametrize('dtype', [torch.float32, torch.bfloat16])
def test_a_depthwise_kernel_of_one_pixel_multiplies(dtype: torch.dtype) -> None:
    """Output and gradients are those of a convolution, which CPUs compute channel by channel."""
    torch.manual_seed(0)
    own, expected = DepthwiseConv2d(6, 6, 1, groups=6, bias=False), nn.Conv2d(6, 6, 1, groups=6, bias=False)
    expected.load_state_dict(own.state_dict())
    x, direction = torch.randn(2, 6, 5, 7), torch.randn(2, 6, 5, 7)
    results = []
    for layer in (own, expected):
        image = x.clone().requires_grad_()
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            with torch.autocast('cpu', dtype, enabled=layer is own and dtype != torch.float32):
                out = layer(image)
            out.backward(direction.to(out.dtype))
        assert image.grad is not None and layer.weight.grad is not None
        results.append((out, image.grad, layer.weight.grad))
        assert ('aten::convolution' in {event.name for event in seen.events() or ()}) == (layer is expected)
    assert results[0][0].dtype == dtype
    close = {'rtol': 1e-5, 'atol': 1e-5} if dtype == torch.float32 else {'rtol': 0.02, 'atol': 0.05}
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found.float(), wanted, **close)


@pytest.mark.parametrize('cells', [1, 2, 3])
def test_adaptive_pooling_of_an_export_is_that_of_torch(cells: int) -> None:
    class Pooled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return adaptive_avg_pool(x, cells)

    x = torch.randn(2, 3, 7, 10, dtype=torch.float64)
    exported = torch.export.export(Pooled(), (x,), strict=False).module()
    torch.testing.assert_close(exported(x), F.adaptive_avg_pool2d(x, cells))
