"""Floating-point operations of a training step, and the peak rate of a device."""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode, conv_flop_count

from phalanx.data.batch import ImageBatch
from phalanx.engine.trainer import Trainer

REPEATS = 10  # runs per peak measurement


def step_flops(trainer: Trainer, batch: ImageBatch) -> int:
    """Train one step; return its floating-point operations on this rank, a multiplication and an addition as two.

    Counted are convolutions, matrix products and attention, as torch.utils.flop_counter knows them, in all micro-batches.
    """
    formulas = {torch.ops.aten.convolution_backward: _convolution_backward}
    network = trainer.with_loss.network
    trainer.with_loss.network = trainer.model  # as it was written: the counter does not see into compiled code
    try:
        with FlopCounterMode(display=False, custom_mapping=formulas) as counter:
            trainer.train_step(batch)
    finally:
        trainer.with_loss.network = network
    return int(counter.get_total_flops())


def _convolution_backward(
    grad_shape: Sequence[int], x_shape: Sequence[int], weight_shape: Sequence[int], *others: Any, out_shape: Any = None
) -> int:
    """Operations of the forward pass, once per requested gradient (input, weight).

    torch's own formula takes the weight of a depthwise convolution for that of a full one.
    """
    transposed, wanted = others[4], others[7]
    forward = conv_flop_count(list(x_shape), list(weight_shape), list(grad_shape), transposed=transposed)
    return int(forward * (wanted[0] + wanted[1]))


class Peak(NamedTuple):
    """Measured peak rates, in floating-point operations per second."""

    convolution: float
    matrix: float


def measure_peak(device: torch.device, dtype: torch.dtype, *, channels_last: bool) -> Peak:
    """Measure a large convolution (3 x 3, 256 -> 256) and a large matrix product, the best of REPEATS."""
    side, batch, width = (8192, 64, 64) if device.type == 'cuda' else (1024, 1, 32)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    maps = torch.randn(batch, 256, width, width, device=device, dtype=dtype).to(memory_format=layout)
    kernel = torch.randn(256, 256, 3, 3, device=device, dtype=dtype).to(memory_format=layout)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    return Peak(
        2 * maps.numel() * 256 * 9 / _fastest(lambda: F.conv2d(maps, kernel, padding=1), device),
        2 * side**3 / _fastest(lambda: left @ right, device),
    )


@torch.no_grad()
def _fastest(compute: Callable[[], torch.Tensor], device: torch.device) -> float:
    """Shortest time in seconds of REPEATS runs, or of those that fit into a second."""
    compute()  # which may take seconds by itself: libraries are loaded, kernels chosen
    moments = [read_clock(device)]
    while len(moments) <= REPEATS and moments[-1] - moments[0] < 1:
        compute()
        moments.append(read_clock(device))
    return min(later - earlier for earlier, later in pairwise(moments))


def read_clock(device: torch.device) -> float:
    """Return the time in seconds after all work launched on the device is done."""
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter()
