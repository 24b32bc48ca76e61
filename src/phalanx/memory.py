"""Memory: how a process that works in rounds takes it from the system, and what goes between that of host and device."""

from __future__ import annotations

import contextlib
import ctypes
import platform
from collections.abc import Iterator

import torch
from torch import Tensor, nn

# Parameters of mallopt, from glibc's malloc.h.
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


def keep_freed_memory() -> None:
    """From now on this process, and those it forks, keep what they free for their next allocation.

    A training step frees and takes the same gigabyte of activations each time, a loader worker the same images. By default
    glibc maps large pieces anew each time, and the kernel clears every page of them, which can cost a seventh of a step on a
    CPU. The price is that a process stays as large as it once was. Without glibc nothing happens.
    """
    if platform.libc_ver()[0] == 'glibc':
        allocator = ctypes.CDLL(None)
        allocator.mallopt(M_MMAP_MAX, 0)
        allocator.mallopt(M_TRIM_THRESHOLD, -1)  # never


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """`values` of the host on `device`. The host does not wait, as it would for a copy from memory that is not pinned."""
    return values.pin_memory().to(device, non_blocking=True) if device.type == 'cuda' else values.to(device)


@contextlib.contextmanager
def parked(device: torch.device) -> Iterator[None]:
    """What the backward pass of this thread needs waits for it in host memory, and `device` is the current one.

    Parameters stay where they are. (torch's `save_on_cpu` copies them too, and gives maps in channels last another layout.)
    """
    on_cuda = device.type == 'cuda'

    def pack(tensor: Tensor) -> tuple[torch.device, Tensor]:
        if isinstance(tensor, nn.Parameter) or tensor.device != device:
            return tensor.device, tensor
        return tensor.device, torch.empty_like(tensor, device='cpu', pin_memory=on_cuda).copy_(tensor)

    def unpack(held: tuple[torch.device, Tensor]) -> Tensor:
        return held[1].to(held[0], non_blocking=True)

    current = torch.cuda.device(device) if on_cuda else contextlib.nullcontext()
    with current, torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
