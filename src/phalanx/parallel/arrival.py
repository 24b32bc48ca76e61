"""The store through which ranks meet, and the wait until all of them are there.

torch's own wait is one call of C++, which says nothing and answers no signal for ten minutes. Here a rank looks several times a
second, says every REPORT seconds whom it waits for, and a signal ends the wait at once.
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

POLL = 0.1  # seconds between two looks
REPORT = 10  # seconds between two lines about a wait
SHOWN = 16  # ranks that are listed by their number


class Wait:
    """The wait of a rank for others, `limit` seconds at most."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.begun = self.reported = time.monotonic()
        # One line a node is enough: under other launchers all ranks write to one terminal.
        self.is_shown = int(os.environ.get('LOCAL_RANK', 0)) == 0

    def go_on(self, whom: Callable[[], str]) -> None:
        """Sleeps for POLL seconds. `whom`: who is waited for, in words. Raises RunError at the end of the limit."""
        seconds = time.monotonic() - self.begun
        if seconds > self.limit:
            raise RunError(f'timed out after {seconds:.0f} s of waiting for {whom()}')
        if self.is_shown and time.monotonic() - self.reported >= REPORT:
            self.reported = time.monotonic()
            sys.stderr.write(f'phalanx: waiting for {whom()} ({seconds:.0f} s)\n')
            sys.stderr.flush()
        time.sleep(POLL)


def open_store(rank: int, world_size: int, patience: float) -> Store:
    """The store of all ranks, once all are there, at the place that the environment names.

    That is the file of PHALANX_INIT_METHOD, or MASTER_ADDR:MASTER_PORT, where rank 0 listens unless torch's agent does. Raises
    RunError when a rank does not come within `patience` seconds, or the place cannot be used.
    """
    address, port = os.environ.get('MASTER_ADDR', ''), os.environ.get('MASTER_PORT', '')
    file = os.environ.get('PHALANX_INIT_METHOD', '').removeprefix('file://')
    if not file and not (address and port.isdecimal()):
        given = f'they are {address!r} and {port!r}'
        raise RunError(f'RANK and WORLD_SIZE make this one rank of several, so set MASTER_ADDR and MASTER_PORT, too: {given}')
    wait = Wait(patience)
    store: Store = FileStore(file, world_size) if file else _over_tcp(address, int(port), rank, wait)
    store.set_timeout(timedelta(seconds=patience))
    here = PrefixStore(f'arrival/{os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)}', store)
    here.set(f'rank {rank}', 'here')
    if here.add('count', 1) == world_size:
        here.set('all', 'here')
    while not here.check(['all']):
        wait.go_on(lambda: _missing(here, world_size) + ('' if file else f' at {address}:{port}'))
    return store


def _over_tcp(address: str, port: int, rank: int, wait: Wait) -> Store:
    """The store at an address; waits until somebody listens there."""
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
    """Why nobody can be reached at an address; '' when somebody can. (torch writes a stack for each attempt that fails.)"""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except OSError as error:
        return error.strerror or str(error)
    return ''


def _missing(here: Store, world_size: int) -> str:
    """The ranks that have not come yet, in words."""
    missing = [rank for rank in range(world_size) if not here.check([f'rank {rank}'])]
    shown = ', '.join(map(str, missing[:SHOWN])) + (f' and {len(missing) - SHOWN} more' if len(missing) > SHOWN else '')
    return f'rank{"" if len(missing) == 1 else "s"} {shown} of {world_size}'
