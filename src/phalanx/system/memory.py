"""Memory: how a process that works in rounds takes it from the system, and what goes between that of host and device."""

import ctypes
import platform

import torch
from torch import Tensor

# Parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """From now on this process, and those it forks, keep what they free for their next allocation.

    A training step frees and takes the same gigabyte of activations each time, a loader worker the same images. By default
    glibc maps large pieces again each time, and the kernel clears every page of them, which can cost a seventh of a step on a
    CPU. The price is that a process stays as large as it once was. Without glibc nothing happens.
    """
    if platform.libc_ver()[0] == 'glibc':
        allocator = ctypes.CDLL(None)
        allocator.mallopt(M_MMAP_MAX, 0)
        allocator.mallopt(M_TRIM_THRESHOLD, -1)  # never


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """`values` of the host on `device`. The host does not wait, as it would for a copy from memory that is not pinned."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == 'cuda' else values.to(device)
