"""How a loader worker hands a batch to its rank: in a file in memory that has no name.

torch puts every tensor into a file of /dev/shm. Containers bound that folder, to 64 MiB by default, and a worker that finds it
full loses the batch without a word, or ends and leaves its files behind. A memfd counts as ordinary memory of the process, and
the kernel takes it back with the last process that holds it. Linux only.
"""

import io
import mmap
import os
import pickle
from multiprocessing.reduction import DupFd
from typing import Any

import torch
from torch import Tensor

ALIGNED = 64  # bytes: a cache line, and more than any dtype asks for
Span = tuple[int, int]  # where a buffer begins and ends in the file


class Transfer:
    """Any picklable value with its tensors and arrays, on the way to another process: unpickled there, it is the value itself.

    Writing happens at once, so what goes wrong is raised here and not in the thread of a queue, which would drop the value.
    """

    def __init__(self, value: Any) -> None:
        """Raises OSError, when no more files can be opened for instance."""
        buffers: list[pickle.PickleBuffer] = []
        pickled = io.BytesIO()
        _Pickler(pickled, protocol=5, buffer_callback=buffers.append).dump(value)
        self.pickled, self.spans = pickled.getvalue(), list[Span]()
        self.file = os.fdopen(os.memfd_create('phalanx-batch'), 'wb')
        for buffer in buffers:
            with buffer.raw() as data:
                begin = self.file.seek(-self.file.tell() % ALIGNED, os.SEEK_CUR)
                self.file.write(data)
                self.spans.append((begin, begin + data.nbytes))
        self.file.truncate()  # to where the last buffer ends: if that is empty, the seek before it has extended nothing

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, (DupFd(self.file.fileno()), self.pickled, self.spans)


class _Pickler(pickle.Pickler):
    """Leaves the bytes of tensors, as those of NumPy's arrays, to the buffer callback."""

    def reducer_override(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return NotImplemented
        storage = torch.empty(0, dtype=torch.uint8).set_(value.untyped_storage()).numpy()
        data = pickle.PickleBuffer(storage)  # type: ignore[arg-type]  # NumPy does not say so before Python 3.12
        layout = (value.dtype, value.size(), value.stride(), value.storage_offset())
        return _tensor, (data, *layout)


def _tensor(data: memoryview, dtype: torch.dtype, size: torch.Size, stride: tuple[int, ...], offset: int) -> Tensor:
    if len(data) == 0:
        return torch.empty(size, dtype=dtype)
    return torch.frombuffer(data, dtype=dtype, count=len(data) // dtype.itemsize).as_strided(size, stride, offset)


def _receive(sent: Any, pickled: bytes, spans: list[Span]) -> Any:
    end = spans[-1][1] if spans else 0
    with os.fdopen(sent.detach(), 'rb') as file:
        memory = memoryview(mmap.mmap(file.fileno(), end) if end else b'')
    return pickle.loads(pickled, buffers=[memory[begin:end] for begin, end in spans])  # noqa: S301 - from our own worker
