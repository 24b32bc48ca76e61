"""Transfer of batches from loader workers to their rank, in unnamed files in memory.

torch puts every tensor into a file in /dev/shm. Containers limit that folder, to 64 MiB by default, and a worker that finds it
full loses the batch silently, or ends and leaves its files behind. A memfd counts as ordinary process memory, and the kernel
frees it with its last holder. Linux only.
"""

import io
import mmap
import os
import pickle
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

ALIGNED = 64  # bytes: a cache line, more than any dtype requires
Span = tuple[int, int]  # start and end of a buffer in the file


class Transfer:
    """Wrapper of a picklable value with tensors and arrays, sent to another process; unpickling gives the value itself.

    The data is written in the constructor, so errors are raised there and not in the thread of a queue, which would drop the
    value.
    """

    def __init__(self, value: Any) -> None:
        """Write the value. Raises OSError, for example if no more files can be opened."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = io.BytesIO()
        # Protocol 5 leaves large buffers out of the pickle, so that they are copied once, into the file.
        _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(value)
        self.pickled, self.spans = pickled.getvalue(), list[Span]()
        self.file = os.fdopen(os.memfd_create('phalanx-batch'), 'wb')
        for buffer in buffers:
            with buffer.raw() as data:
                # Align each buffer: tensors are later views of the mapped file.
                begin = self.file.seek(-self.file.tell() % ALIGNED, os.SEEK_CUR)
                self.file.write(data)
                self.spans.append((begin, begin + data.nbytes))
        self.file.truncate()  # extend to the end of the last buffer: an empty one writes nothing after its seek

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (DupFd(self.file.fileno()), self.pickled, self.spans)


class _Pickler(pickle.Pickler):
    """Pickler that leaves the bytes of tensors, as of NumPy arrays, to the buffer callback."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        storage = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).numpy()
        data = pickle.PickleBuffer(storage)  # type: ignore[arg-type]  # NumPy does not say so before Python 3.12
        layout = (value.dtype, value.size(), value.stride(), value.storage_offset())
        return _tensor, (data, *layout)


def _tensor(data: memoryview, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int) -> Tensor:
    """Rebuild a tensor from its bytes and layout."""
    if len(data) == 0:
        return torch.empty(size, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=len(data) // dtype.itemsize).as_strided(size, stride, offset)


def _receive(sent: Any, pickled: bytes, spans: list[Span]) -> Any:
    """Rebuild the value from the file of a `Transfer`."""
    end = spans[-1][1] if spans else 0
    with os.fdopen(sent.detach(), 'rb') as file:
        # The mapping outlives the closed file; the tensors keep it alive.
        memory = memoryview(mmap.mmap(file.fileno(), end) if end else b'')
    return pickle.loads(pickled, buffers=[memory[begin:end] for begin, end in spans])  # noqa: S301 - from our own worker
