"""A value on its way from a worker to its rank, through the queue that loader workers use."""

import gc
import multiprocessing
import pickle
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.engine.transfer import Transfer

pytestmark = pytest.mark.skipif(sys.platform != 'linux', reason='needs memfd_create, which Linux has')

VALUE = {
    'images': torch.arange(24, dtype=torch.uint8).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
    'a part': torch.arange(10.0)[3:7],
    'turned': torch.arange(6).view(2, 3).T,
    'half': torch.tensor([1.5, -2], dtype=torch.bfloat16),
    'flags': torch.tensor([True, False]),
    'one': torch.tensor(7),
    'none': torch.empty(0, 4),
    'array': np.arange(5, dtype=np.float32),
    'other': ('name', {3: 'is broken'}, None),
}


def sent(value: Any) -> Any:
    return pickle.loads(bytes(ForkingPickler.dumps(Transfer(value))))  # noqa: S301 - what a queue does


def give(queue: Any, received: Any) -> None:
    queue.put(Transfer(VALUE))
    received.wait()  # as a worker does, which ends when its rank says so


def same(found: dict[str, Any]) -> None:
    for name, value in VALUE.items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(found[name], value), name
            assert (found[name].dtype, found[name].stride()) == (value.dtype, value.stride()), name
        else:
            assert np.array_equal(found[name], value) if isinstance(value, np.ndarray) else found[name] == value


def test_a_value_arrives_as_it_was_sent_with_the_layout_of_its_tensors() -> None:
    context = multiprocessing.get_context('fork')
    queue, received = context.SimpleQueue(), context.Event()
    process = context.Process(target=give, args=(queue, received))
    process.start()
    same(queue.get())
    received.set()
    process.join()


@pytest.mark.parametrize('sizes', [(3, 0), (0, 3, 0, 0), (0,), (0, 0), ()], ids=str)
def test_empty_tensors_arrive_wherever_they_stand(sizes: tuple[int, ...]) -> None:
    """The boxes of an image that shows nothing, for instance, are often the last of a batch."""
    assert [tuple(found.shape) for found in sent([torch.ones(size, 4) for size in sizes])] == [(size, 4) for size in sizes]


def test_what_has_arrived_may_be_written_to() -> None:
    found = sent(VALUE)
    found['a part'] += 1
    found['array'] += 1
    assert found['a part'].tolist() == [4, 5, 6, 7]


def test_a_value_that_is_no_longer_used_leaves_no_open_file_and_no_memory() -> None:
    sent(VALUE)  # opens what stays open: the socket of the sender
    gc.collect()  # files of earlier tests
    before = len(list(Path('/proc/self/fd').iterdir()))
    for _ in range(20):
        sent(VALUE)
    assert len(list(Path('/proc/self/fd').iterdir())) == before
