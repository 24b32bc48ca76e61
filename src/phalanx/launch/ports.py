"""Connections between nodes: probing a port, and listening on one."""

import errno
import os
import socket
import time
from collections.abc import Sequence
from concurrent import futures

import psutil

ANSWER = 2  # seconds for a node to accept a connection


class RendezvousError(Exception):
    """The rendezvous failed and nothing was started. The message names the node, the reason and the fix."""


def probe(own: str, address: str, port: int) -> tuple[float, str | None]:
    """Seconds to connect from `own` to another node, and the error (None: connected)."""
    begun = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=ANSWER, source_address=(own, 0)):
            return time.monotonic() - begun, None
    except ConnectionRefusedError:
        return 0.0, 'nothing listens there yet'
    except TimeoutError:
        return 0.0, f'no answer within {ANSWER} s (wrong address, firewall, or no route)'
    except OSError as error:
        return 0.0, error.strerror or str(error)


def probe_all(own: str, addresses: Sequence[str], port: int) -> dict[str, tuple[float, str | None]]:
    """Probe several nodes in parallel."""
    with futures.ThreadPoolExecutor(max(1, len(addresses))) as pool:
        return dict(zip(addresses, pool.map(lambda address: probe(own, address, port), addresses), strict=True))


def listen(address: str, port: int) -> socket.socket:
    """Socket that listens on one address. Raises RendezvousError with the owner of the port if it is in use."""
    try:
        return socket.create_server((address, port), family=socket.AF_INET6 if ':' in address else socket.AF_INET, backlog=128)
    except OSError as error:
        number = error.errno or 0
        reason = f'in use by {_find_port_owner(port)}' if number == errno.EADDRINUSE else os.strerror(number)
        raise RendezvousError(
            f'{address}: port {port} is {reason}; end that process, or give another --start_port on all nodes'
        ) from None


def _find_port_owner(port: int) -> str:
    """Process that listens on a port, as far as this user may see it."""
    try:
        pids = [c.pid for c in psutil.net_connections('tcp') if c.laddr and c.laddr.port == port and c.status == 'LISTEN']
    except psutil.AccessDenied:
        pids = []
    for pid in pids:
        if pid is not None and pid != os.getpid():
            try:
                return f'process {pid} ({" ".join(psutil.Process(pid).cmdline())[:120]})'
            except psutil.Error:
                return f'process {pid}'
    return 'a process of another user'
