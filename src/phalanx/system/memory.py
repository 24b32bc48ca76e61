"""Allocator settings of the host, and copies from host to device."""

import ctypes
import platform
from functools import cache

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


@cache
def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return `values`, settings of a run, as a tensor on `device`: copied there once, since each copy costs a kernel's time."""
    return to_device(torch.tensor(values, dtype=dtype), device)


class AsyncCopy:
    """Asynchronous copy of a device tensor to the host."""

    def __init__(self, values: Tensor) -> None:
        # Copy behind the kernels that are queued now, then mark the end of the copy: reading waits for the mark only.
        self._host = values.to('cpu', non_blocking=True)  # into pinned memory if it comes from a device
        self._ready = torch.cuda.Event() if values.is_cuda else None  # type: ignore[no-untyped-call]
        if self._ready is not None:
            self._ready.record()

    def is_complete(self) -> bool:
        """True if `read` would not wait."""
        return self._ready is None or bool(self._ready.query())  # type: ignore[no-untyped-call]

    def read(self) -> Tensor:
        """Return the values on the host. Waits for this copy, not for work enqueued after it."""
        if self._ready is not None:
            self._ready.synchronize()
        return self._host
