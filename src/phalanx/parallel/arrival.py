"""Store of the ranks, and the wait until all of them have arrived.

torch's own wait is one call of C++ that reports nothing and ignores signals for ten minutes. Here a rank polls several times
per second, reports every REPORT seconds which ranks are missing, and a signal ends the wait at once.
"""

import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial

from torch.distributed import DistNetworkError, FileStore, PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from phalanx.system.errors import RunError

POLL = 0.1  # seconds between two polls
REPORT = 10  # seconds between two messages
SHOWN = 16  # maximum number of ranks to list


class Wait:
    """Wait of a rank for others, at most `limit` seconds."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.begun = self.reported = time.monotonic()
        # One message per node is enough: with other launchers all ranks write to one terminal.
        self.is_shown = int(os.environ.get('LOCAL_RANK', 0)) == 0

    def go_on(self, whom: Callable[[], str]) -> None:
        """Sleep for POLL seconds. `whom`: returns the awaited ranks, in words. Raises RunError at the end of the limit."""
        seconds = time.monotonic() - self.begun
        if seconds > self.limit:
            raise RunError(f'timed out after {seconds:.0f} s of waiting for {whom()}')
        if self.is_shown and time.monotonic() - self.reported >= REPORT:
            self.reported = time.monotonic()
            sys.stderr.write(f'phalanx: waiting for {whom()} ({seconds:.0f} s)\n')
            sys.stderr.flush()
        time.sleep(POLL)


def open_store(rank: int, world_size: int, patience: float) -> Store:
    """Open the store of all ranks once all have arrived, at the place that the environment names.

    That is the file of PHALANX_INIT_METHOD, or MASTER_ADDR:MASTER_PORT, where rank 0 listens unless torch's agent does. Raises
    RunError if a rank does not arrive within `patience` seconds, or the place cannot be used.
    """
    address, port = os.environ.get('MASTER_ADDR', ''), os.environ.get('MASTER_PORT', '')
    file = os.environ.get('PHALANX_INIT_METHOD', '').removeprefix('file://')
    if not file and not (address and port.isdecimal()):
        values = f'they are {address!r} and {port!r}'
        raise RunError(f'RANK and WORLD_SIZE are set, so set MASTER_ADDR and MASTER_PORT too: {values}')
    wait = Wait(patience)
    # The store comes first: it is the place where ranks sign in, and torch's process group uses the same one.
    store: Store = FileStore(file, world_size) if file else _over_tcp(address, int(port), rank, wait)
    store.set_timeout(timedelta(seconds=patience))
    # A restarted launch may find the store of its earlier attempt: each attempt counts for itself.
    arrivals = PrefixStore(f'arrival/{os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)}', store)
    arrivals.set(f'rank {rank}', 'here')
    # The last rank to arrive tells all: each then polls one key instead of one per rank.
    if arrivals.add('count', 1) == world_size:
        arrivals.set('all', 'here')
    while not arrivals.check(['all']):
        wait.go_on(lambda: _missing(arrivals, world_size) + ('' if file else f' at {address}:{port}'))
    return store


def _over_tcp(address: str, port: int, rank: int, wait: Wait) -> Store:
    """Open the store at an address; wait until something listens there."""
    # torch's elastic agent may have opened the store already, in the launcher.
    listens = rank == 0 and os.environ.get('TORCHELASTIC_USE_AGENT_STORE') != 'True'
    while not listens and (refusal := _refusal(address, port)):
        wait.go_on(partial(str, f'rank 0 at {address}:{port}, {refusal}'))
    limit = timedelta(seconds=wait.limit)
    try:
        return TCPStore(address, port, None, listens, timeout=limit, wait_for_workers=False, multi_tenant=True)
    except DistNetworkError as error:
        why = str(error).splitlines()[0]
        raise RunError(f'ranks cannot meet at MASTER_ADDR:MASTER_PORT = {address}:{port}: {why}') from None


def _refusal(address: str, port: int) -> str:
    """Return the reason why an address cannot be reached; '' if it can. (torch prints a stack per failed attempt.)"""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)
    return ''


def _missing(arrivals: Store, world_size: int) -> str:
    """Return the missing ranks, in words."""
    missing = [rank for rank in range(world_size) if not arrivals.check([f'rank {rank}'])]
    listed = ', '.join(map(str, missing[:SHOWN])) + (f' and {len(missing) - SHOWN} more' if len(missing) > SHOWN else '')
    return f'rank{"" if len(missing) == 1 else "s"} {listed} of {world_size}'
