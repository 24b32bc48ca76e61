"""Every convolution of the catalog on a CPU, in bf16 and channels last: its gradients are those of float32, but for rounding.

A kernel can be wrong for one combination of groups, gaps and memory format alone.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from phalanx.engine.zoo import create_model
from phalanx.families.catalog import models

CLASSES = {'db': 1}  # text is the only one
OTHERS = {'deeplabv3p': ({'backbone': 'resnet50_vd'},), 'pp_liteseg': ({'backbone': 'stdc2'},)}  # what is not their default


def convolutions(name: str) -> Iterator[nn.Conv2d]:
    """One of each kind that the network and its variants have."""
    seen = set()
    for options in ({}, *OTHERS.get(name, ())):
        for module in create_model(name, num_classes=CLASSES.get(name, 5), **options).modules():
            if isinstance(module, nn.Conv2d):
                kind = (type(module), repr(module))
                if kind not in seen:
                    seen.add(kind)
                    yield module


def gradients(conv: nn.Conv2d, images: Tensor, memory_format: torch.memory_format, dtype: torch.dtype) -> list[Tensor]:
    """Of the sum of its squared outputs, with respect to the images, its weights and its bias, in memory that held NaN."""
    conv = copy.deepcopy(conv).to(memory_format=memory_format)
    images = images.to(memory_format=memory_format, copy=True).requires_grad_()
    with torch.autocast('cpu', dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
        loss = conv(images).float().square().sum()
        leave_nan_in_memory()
        return list(torch.autograd.grad(loss, [images, *conv.parameters()]))


def leave_nan_in_memory() -> None:
    for size in range(8, 18):
        _ = [torch.full((2**size,), torch.nan) for _ in range(4)]


LARGE = ('pp_liteseg', 'deeplabv3p', 'ocrnet', 'unet', 'ppyoloe', 'rtdetr', 'rtdetrv2', 'deimv2', 'svtr_lcnet')


@pytest.mark.parametrize('name', [pytest.param(name, marks=pytest.mark.long if name in LARGE else ()) for name in models()])
def test_gradients_in_bf16_and_channels_last_are_those_of_float32(name: str) -> None:
    torch.manual_seed(0)
    for conv in convolutions(name):
        images = torch.randn(1, conv.in_channels, 32, 32)  # smaller ones take another kernel, which is right
        exact = gradients(conv, images, torch.contiguous_format, torch.float32)
        rounded = gradients(conv, images, torch.channels_last, torch.bfloat16)
        for one, other in zip(exact, rounded, strict=True):
            assert (one - other).norm() <= 2**-6 * one.norm(), conv
