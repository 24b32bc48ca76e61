"""Ranks that meet, and what one that waits for others says and answers."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phalanx.parallel import arrival
from phalanx.parallel.arrival import open_store
from phalanx.system.errors import RunError
from phalanx.system.stops import interrupt_at_stops, interrupting_signal, stop_signals

FOREVER = 900  # seconds


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, which the environment names for ranks to meet at."""
    with socket.socket() as free:
        free.bind(('localhost', 0))
        number = int(free.getsockname()[1])
    monkeypatch.delenv('PHALANX_INIT_METHOD', raising=False)
    monkeypatch.setenv('MASTER_ADDR', 'localhost')
    monkeypatch.setenv('MASTER_PORT', str(number))
    return number


@pytest.fixture
def stops() -> Iterator[None]:
    """Stops interrupt the main thread, until the end of the test."""
    before = {number: signal.getsignal(number) for number in stop_signals()}
    interrupt_at_stops()
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def all_meet(ranks: int) -> None:
    """Ranks, each in a thread, of which each reads what another has written."""
    with ThreadPoolExecutor(ranks) as pool:
        stores = [*pool.map(lambda rank: open_store(rank, ranks, FOREVER), range(ranks))]
    stores[0].set('word', 'value')
    assert [store.get('word') for store in stores] == [b'value'] * ranks


def test_ranks_meet_at_an_address(port: int) -> None:
    all_meet(3)


def test_ranks_meet_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('PHALANX_INIT_METHOD', f'file://{tmp_path}/ranks')
    all_meet(2)


def test_a_rank_says_which_others_it_waits_for_and_gives_up_in_time(
    port: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(arrival, 'REPORT', 0)
    with pytest.raises(RunError, match=f'^timed out after . s of waiting for ranks 1, 2 of 3 at localhost:{port}$'):
        open_store(0, 3, patience=1)
    assert f'phalanx: waiting for ranks 1, 2 of 3 at localhost:{port} (0 s)\n' in capsys.readouterr().err


def test_a_rank_that_reaches_nobody_says_where_and_why(port: int) -> None:
    with pytest.raises(RunError, match=f'waiting for rank 0 at localhost:{port}, Connection refused$'):
        open_store(1, 2, patience=0.1)


def test_of_a_large_world_the_first_missing_ranks_are_listed(port: int) -> None:
    with pytest.raises(RunError, match='for ranks 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 and 13 more of 30 at'):
        open_store(0, 30, patience=0.1)


def test_a_rank_without_an_address_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ('PHALANX_INIT_METHOD', 'MASTER_ADDR', 'MASTER_PORT'):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(RunError, match='set MASTER_ADDR and MASTER_PORT'):
        open_store(0, 2, patience=FOREVER)


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_stop_ends_the_wait(number: signal.Signals, port: int, stops: None, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = threading.Event()

    def missing(*_: object) -> str:
        waiting.set()
        return 'rank 1'

    monkeypatch.setattr(arrival, 'REPORT', 0)
    monkeypatch.setattr(arrival, '_missing', missing)
    stopper = threading.Thread(target=lambda: waiting.wait(FOREVER) and os.kill(os.getpid(), number))
    stopper.start()
    with pytest.raises(KeyboardInterrupt) as stop:
        open_store(0, 2, patience=FOREVER)
    stopper.join()
    assert interrupting_signal(stop.value) == number
