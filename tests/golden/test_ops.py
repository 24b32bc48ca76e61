"""Layers against the operators of Paddle: expected arrays were produced by these (data/ops.npz)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from phalanx.nn.backbones.stdc import STDCBlock
from phalanx.nn.layers import ConvBN, resize
from phalanx.parallel.norms import BatchNorm2d

ARRAYS = {name: torch.from_numpy(array) for name, array in np.load(Path(__file__).parent / 'data' / 'ops.npz').items()}


def assert_close(ours: torch.Tensor, name: str) -> None:
    torch.testing.assert_close(ours, ARRAYS[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize('parity', ['even', 'odd'])
@pytest.mark.parametrize('size', [(13, 17), (5, 4)])
def test_bilinear_resizing_has_unaligned_corners(size: tuple[int, int], parity: str) -> None:
    resized = resize(ARRAYS[f'x_{parity}'], torch.empty(2, 1, *size))
    assert_close(resized, f'interp_bilinear_{size[0]}x{size[1]}_{parity}')


@pytest.mark.parametrize('parity', ['even', 'odd'])
def test_average_pooling_in_an_stdc_block_ignores_padding(parity: str) -> None:
    assert_close(STDCBlock(3, 8, stride=2).pool(ARRAYS[f'x_{parity}']), f'avgpool3_s2_p1_{parity}')


@pytest.mark.parametrize('parity', ['even', 'odd'])
def test_a_convolution_of_stride_2_pads_one_pixel_on_each_side(parity: str) -> None:
    layer = ConvBN(3, 4, 3, stride=2)
    layer.conv.weight = nn.Parameter(ARRAYS['conv_w'])
    assert_close(layer.conv(ARRAYS[f'x_{parity}']).detach(), f'conv_pad1_s2_{parity}')


@pytest.mark.parametrize('parity', ['even', 'odd'])
def test_adaptive_pooling_has_the_cells_of_paddle(parity: str) -> None:
    assert_close(F.adaptive_avg_pool2d(ARRAYS[f'x_{parity}'], 4), f'adaptive_avg_4_{parity}')


def test_the_running_variance_follows_the_biased_batch_variance() -> None:
    norm = BatchNorm2d(3)
    assert_close(norm(ARRAYS['bn_x']).detach(), 'bn_y')
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert_close(norm.running_mean, 'bn_mean_after')
    assert_close(norm.running_var, 'bn_var_after')
