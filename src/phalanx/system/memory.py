"""Allocator settings of the host, and copies from host to device."""

import ctypes
import platform

import torch
from torch import Tensor

# Parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """Make this process and its forks keep freed memory for their next allocation.

    A training step frees and allocates the same gigabyte of activations each time, a loader worker the same images. By default
    glibc maps large blocks again each time and the kernel clears every page, which can cost a seventh of a step on a CPU. In
    exchange, the process never shrinks. Without glibc this does nothing.
    """
    if platform.libc_ver()[0] == 'glibc':
        # Blocks never by mmap, and never given back to the kernel.
        allocator = ctypes.CDLL(None)
        allocator.mallopt(M_MMAP_MAX, 0)
        allocator.mallopt(M_TRIM_THRESHOLD, -1)  # never


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy `values` from the host to `device`; on CUDA through pinned memory, so that the host does not wait."""
    return (values.pin_memory() if device.type == 'cuda' else values).to(device, non_blocking=True)
