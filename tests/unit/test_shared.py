"""Sums through shared memory: ranks are threads here, each with its own view of the memory."""

import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from phalanx import dist, shared
from phalanx.shared import CAN_SHARE, CAPACITY, SharedSums, share

pytestmark = pytest.mark.skipif(not CAN_SHARE, reason='ranks share memory on Linux on x86-64 only')
RANKS = 3


def on_ranks(work: Callable[[int, SharedSums], Any], patience: float = 60) -> list[Any]:
    """What `work` returns on each of three ranks that share memory."""
    told: list[Any] = [None] * RANKS
    meeting = threading.Barrier(RANKS)

    def rank(number: int) -> Any:
        def gather(value: Any) -> list[Any]:
            told[number] = value
            meeting.wait()
            everything = list(told)
            meeting.wait()
            return everything

        sums = share(number, gather, patience)
        assert sums is not None
        return work(number, sums)

    with ThreadPoolExecutor(RANKS) as threads:
        return list(threads.map(rank, range(RANKS)))


@pytest.mark.parametrize('dtype', [torch.float64, torch.float32, torch.int64])
def test_every_rank_has_the_same_sums_whoever_comes_late(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    parts = (1000 * torch.randn(30, RANKS, 5, 7)).to(dtype)

    def work(rank: int, sums: SharedSums) -> torch.Tensor:
        found = []
        for number, part in enumerate(parts[:, rank]):
            if number % 7 == rank:
                time.sleep(0.01)
            found.append(sums.sum(part))
        return torch.stack(found)

    first, *others = on_ranks(work)
    torch.testing.assert_close(first, parts.sum(1))
    assert all(torch.equal(first, other) for other in others)


def test_parts_may_have_another_size_each_time_up_to_the_capacity() -> None:
    sizes = (1, CAPACITY // 8, 2, 0, 1000)

    def work(rank: int, sums: SharedSums) -> list[float]:
        assert sums.fits(torch.zeros(CAPACITY // 8, dtype=torch.float64))
        assert not sums.fits(torch.zeros(CAPACITY // 8 + 1, dtype=torch.float64))
        return [float(sums.sum(torch.full((size,), rank + 1, dtype=torch.float64)).sum()) for size in sizes]

    assert on_ranks(work) == [[6.0 * size for size in sizes]] * RANKS


def test_a_rank_that_has_left_is_not_waited_for() -> None:
    def work(rank: int, sums: SharedSums) -> str:
        whole = sums.sum(torch.ones(1))  # all have brought this one, so it counts even when one leaves at once
        assert whole == RANKS
        if rank == 1:
            sums.leave()
            return ''
        with pytest.raises(ConnectionResetError) as raised:
            sums.sum(torch.ones(1))
        return str(raised.value)

    assert on_ranks(work) == [gone := 'connection closed by rank 1 of this machine', '', gone]


def test_a_rank_that_never_comes_is_waited_for_in_bounds() -> None:
    def work(rank: int, sums: SharedSums) -> None:
        if rank == 1:
            return
        with pytest.raises(TimeoutError, match='rank 1 of this machine has brought nothing'):
            sums.sum(torch.ones(1))

    on_ranks(work, patience=0.1)


def test_ranks_are_more_patient_than_the_launcher_that_watches_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can tell which of them is behind; they can only tell that an exchange took too long."""
    monkeypatch.delenv(dist.HANG_TIMEOUT, raising=False)
    assert dist.patience() == 600
    for hang_timeout in (10, 1800, 7200):
        monkeypatch.setenv(dist.HANG_TIMEOUT, str(hang_timeout))
        assert dist.patience() > hang_timeout
        assert dist.patience() >= 600  # a rank that is slow but goes on is waited for


def test_a_rank_that_was_killed_is_not_waited_for() -> None:
    with subprocess.Popen(['sleep', '60']) as other:

        def gather(value: Any) -> list[Any]:
            return [value, other.pid if isinstance(value, int) else value]

        sums = share(0, gather, 60)
        assert sums is not None
        other.kill()
        with pytest.raises(ConnectionResetError, match='rank 1'):
            sums.sum(torch.ones(1))


def test_where_one_rank_cannot_have_it_none_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, 'CAN_SHARE', False)
    assert share(0, lambda value: [value], 60) is None
