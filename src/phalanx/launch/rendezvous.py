"""The rendezvous of a run: a key-value store on the first node, and what the nodes write there.

An attempt is one start of the ranks. Before each, the nodes join, the first node publishes the members in order of rank, and
each node checks its connection to every other. The same store then serves torch's agent and its ranks.
"""

import contextlib
import errno
import hashlib
import hmac
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import psutil
import torch.distributed as torch_dist

from phalanx.launch.cluster import Cluster
from phalanx.launch.names import shorten_silent_lookups

TCPStore: Any = torch_dist.TCPStore  # type: ignore[attr-defined]  # torch exports it without saying so
POLL = 0.1  # seconds between two looks at a key
REMIND = 10  # seconds between two lines that say who is missing
REJOIN_TIMEOUT = 20  # seconds within which a run notices that a node has died
QUIET = 3  # seconds without a newcomer after which an elastic run starts with fewer than its maximum
NODE_KEYS = ('heartbeat', 'ended', 'failure')  # keys of each node during an attempt, null until it writes them
WRONG_TOKEN = 'it uses another --job_id or PHALANX_TOKEN'
NodeInfo = dict[str, Any]  # the facts that a node publishes about itself


class RendezvousError(Exception):
    """The rendezvous failed and nothing was started. The message says which node, why, and the cure."""


class RendezvousLostError(Exception):
    """The first node no longer answers."""


@dataclass(frozen=True)
class Members:
    """The nodes of an attempt: number and info of each, in order of rank."""

    attempt: int
    nodes: tuple[tuple[int, NodeInfo], ...]
    port: int  # on the first node: the store of this attempt's ranks, which must not find what earlier ranks wrote

    @property
    def numbers(self) -> list[int]:
        """Of the nodes, in order of rank."""
        return [number for number, _ in self.nodes]

    @property
    def verdict(self) -> str:
        """The key that holds why the attempt ended, the same for all nodes."""
        return f'{self.attempt}/verdict'

    def key(self, what: str, number: int) -> str:
        """A key of one node in this attempt."""
        return f'{self.attempt}/{what}/{number}'

    def keys(self, what: str) -> list[str]:
        """The same key of all nodes, in order of rank."""
        return [self.key(what, number) for number in self.numbers]

    def name(self, number: int) -> str:
        return next((str(info['address']) for member, info in self.nodes if member == number), f'node {number}')


class Rendezvous:
    """This node's end of the rendezvous. A node's number is its position in --ips, or the order of joining."""

    def __init__(self, cluster: Cluster, token: str, patience: float, heartbeat_timeout: float = 30) -> None:
        """`patience`: seconds to wait for nodes; `heartbeat_timeout`: those after which a silent one counts as lost."""
        assert cluster.rendezvous is not None
        self.cluster, self.token, self.patience = cluster, token, patience
        self.heartbeat_timeout = heartbeat_timeout
        self.address, self.port = cluster.rendezvous
        self.last = -1  # the attempt that this node joined last
        self.connect = timedelta(seconds=10)
        if shorten_silent_lookups(cluster.address) or shorten_silent_lookups(self.address):
            self.connect = timedelta(seconds=120)
            print_line(
                f'no name server answers when asked for {cluster.address}: starting takes longer; name nodes in /etc/hosts'
            )
        self.server: Any = _serve(self.address, self.port, self.connect) if cluster.hosts_rendezvous else None
        self.rank_server: Any = None
        self.store = self._connect()
        self._compare_lists()
        self.number = self._number()

    # Keys and values.

    def put(self, key: str, value: Any) -> None:
        self._ask(lambda: self.store.set(key, json.dumps(value)))

    def get(self, key: str) -> Any:
        """The value of a key; None when nobody has written it."""
        return self._ask(lambda: json.loads(self.store.get(key)) if self.store.check([key]) else None)

    def get_all(self, keys: Sequence[str]) -> list[Any]:
        """The values of keys that exist, in one request, so that the store scales to many nodes."""
        return [json.loads(value) for value in self._ask(lambda: self.store.multi_get(keys))]

    def put_if_unset(self, key: str, value: Any) -> Any:
        """Writes a prepared key unless another node did already; returns its value."""
        return self._ask(lambda: json.loads(self.store.compare_set(key, 'null', json.dumps(value))))

    def wait(self, keys: Sequence[str], seconds: float) -> list[Any]:
        """The values of keys as soon as all of them are written. Raises RendezvousError after `seconds`."""
        if not self._until(lambda: self._are_there(keys), seconds):
            raise RendezvousError(f'{self.address} (the first node) did not go on within {seconds:.0f} s')
        return self.get_all(keys)

    def _are_there(self, keys: Sequence[str]) -> bool:
        return bool(self._ask(lambda: self.store.check(keys)))

    def _ask(self, question: Callable[[], Any]) -> Any:
        """The answer of the store. Raises RendezvousLostError when there is none in time.

        A store client waits without end for the answer of a node whose cable was pulled. So the question is put by a thread
        of its own, which is left behind in that case.
        """
        answer: futures.Future[Any] = futures.Future()

        def put() -> None:
            try:
                answer.set_result(question())
            except (RuntimeError, OSError) as error:
                answer.set_exception(error)

        threading.Thread(target=put, name='question', daemon=True).start()
        waited, look = 0.0, min(1, self.heartbeat_timeout)
        while waited < self.heartbeat_timeout:  # in short looks: the time that this process itself is stopped does not count
            if futures.wait([answer], look).not_done:
                waited += look
            elif error := answer.exception():
                raise self._lost(str(error).splitlines()[0][:120])
            else:
                return answer.result()
        raise self._lost(f'it has not answered for {self.heartbeat_timeout:g} s')

    def _lost(self, why: str) -> RendezvousLostError:
        return RendezvousLostError(f'the first node, {self.address}, is lost: {why}')

    def _compare_lists(self) -> None:
        """The first node says which nodes were asked for. Raises RendezvousError when it was others there than here."""
        if self.server is not None:
            self.put('nodes', self.cluster.requested)
        (asked,) = self.wait(['nodes'], 60)
        if asked != self.cluster.requested:
            raise RendezvousError(self._lists_differ(self.address, asked))

    # Joining an attempt.

    def join(self, info: NodeInfo) -> Members:
        """Who takes part in the next attempt, once they are all there.

        Raises RendezvousError when nodes are missing for too long or this one is not wanted.
        """
        info = {**info, 'address': self.cluster.address, 'signature': self._signature(self.cluster.address)}
        attempt = self.last = self._attempt(info)
        self.put(f'{attempt}/info/{self.number}', info)
        if self.server is not None:
            self._gather(attempt)
        (published,) = self.wait([f'{attempt}/members'], self.patience + 30)
        if 'error' in published:
            self._part(attempt, published['numbers'])
            raise RendezvousError(published['error'])
        infos = self.get_all([f'{attempt}/info/{number}' for number in published['numbers']])
        members = Members(attempt, tuple(zip(published['numbers'], infos, strict=True)), published['port'])
        if self.number not in members.numbers:
            why = published['refused'].get(str(self.number), 'too late')
            raise RendezvousError(f'{self.address} has not admitted this node: {why}')
        return members

    def leave(self, members: Members, lost: Collection[int] = ()) -> None:
        """Signs off from all members but the `lost` ones."""
        self._part(members.attempt, [number for number in members.numbers if number not in lost])

    def _part(self, attempt: int, numbers: Collection[int]) -> None:
        """The first node goes last: the others still ask its store why there is nothing to do."""
        with contextlib.suppress(RendezvousLostError):
            self.put(f'{attempt}/left/{self.number}', True)
            if self.server is not None:
                self._until(lambda: self._are_there([f'{attempt}/left/{number}' for number in numbers]), 5)
                time.sleep(0.2)  # so that the last of them has its answer

    def newcomers(self, members: Members, unfit: Callable[[NodeInfo], str]) -> list[int]:
        """On the first node: those who wait for the next attempt, as far as there is room. The `unfit` get the reason."""
        fitting = []
        for number in self._numbers():
            info = self.get(f'waiting/{number}') if number not in members.numbers else None
            if info is None or self.get(f'refused/{number}') is not None:
                continue
            if trouble := unfit(info) if self._is_signed(info) else WRONG_TOKEN:
                self.put(f'refused/{number}', trouble)
            else:
                fitting.append(number)
        return fitting[: self.cluster.max_nodes - len(members.nodes)]

    def _attempt(self, info: NodeInfo) -> int:
        """The attempt to join: the one that is open, or the next when one has begun without this process."""
        if self.server is not None:
            self.put('attempt', self.last + 1)
            return self.last + 1
        if not self._until(lambda: self._opened() > self.last, self.patience):
            raise RendezvousError(f'{self.address} (the first node) did not begin again within {self.patience:.0f} s')
        attempt = self._opened()
        seat = self.get(f'{attempt}/info/{self.number}')
        if seat is None and self.get(f'{attempt}/members') is None:
            return attempt
        patience, trouble = float('inf'), 'a run is under way'
        if seat is not None:  # an earlier life of this node: the run ends that attempt as soon as it misses it
            patience = REJOIN_TIMEOUT
            trouble = f'{self.cluster.address} takes part in this run already (process {seat.get("pid")} there)'
        print_line(f'{trouble}; waiting to be let in')
        self.put(f'waiting/{self.number}', info)
        if not self._until(lambda: self._opened() != attempt or self.get(f'refused/{self.number}') is not None, patience):
            raise RendezvousError(f'{trouble}; end that one first, or use another --start_port for a second run')
        if (refused := self.get(f'refused/{self.number}')) is not None:
            raise RendezvousError(f'{self.address} does not let this node in: {refused}')
        return self._opened()

    def _opened(self) -> int:
        """The attempt that the first node has opened; -1 before the first one."""
        attempt = self.get('attempt')
        return -1 if attempt is None else int(attempt)

    def _numbers(self) -> range:
        """The numbers of all nodes that may have come so far."""
        if self.cluster.nodes:
            return range(len(self.cluster.nodes))
        return range(int(self._ask(lambda: self.store.add('joined', 0))) + 1)

    def _until(self, come: Callable[[], bool], seconds: float) -> bool:
        """Whether `come` came true within `seconds`."""
        end = time.monotonic() + seconds
        while not come():
            if time.monotonic() > end:
                return False
            time.sleep(POLL)
        return True

    def _gather(self, attempt: int) -> None:
        """On the first node: waits for the others and says who takes part."""
        for number in self._numbers():  # who waited is called now, and has to come
            self._ask(partial(self.store.delete_key, f'waiting/{number}'))
        begun = reminded = changed = time.monotonic()
        present: list[int] = []
        refused: dict[str, str] = {}
        while True:
            now = time.monotonic()
            if arrived := self._arrived(attempt, present, refused):
                present, changed = sorted([*present, *arrived]), now
            enough = len(present) >= self.cluster.min_nodes and now - changed > QUIET
            if len(present) >= self.cluster.max_nodes or (self.cluster.min_nodes < self.cluster.max_nodes and enough):
                break
            if now - begun > self.patience:
                error = f'{self._missing(present)} after {self.patience:.0f} s; nothing was started'
            else:
                error = self.get('conflict')
            if error is not None:
                self.put(f'{attempt}/members', {'error': error, 'numbers': present})
                return
            if now - reminded > REMIND:
                reminded = now
                self._compare_with_other_first(present)
                print_line(f'{self._missing(present)}; start this same command there')
            time.sleep(POLL)
        numbers = self._in_order(attempt, present[: self.cluster.max_nodes])
        keys = [f'{attempt}/verdict', *(f'{attempt}/{what}/{number}' for what in NODE_KEYS for number in numbers)]
        self._ask(lambda: self.store.multi_set(keys, ['null'] * len(keys)))
        self.put(f'{attempt}/members', {'numbers': numbers, 'port': self._serve_ranks(), 'refused': refused})

    def _serve_ranks(self) -> int:
        """Opens a fresh store for the ranks, at the first free port above that of the rendezvous; returns the port."""
        for port in range(self.port + 1, min(self.port + 100, 65536)):
            with contextlib.suppress(RendezvousError):
                self.rank_server = _serve(self.address, port, self.connect)
                return port
        raise RendezvousError(
            f'{self.address}: no port from {self.port + 1} on is free; give another --start_port on all nodes'
        )

    def _arrived(self, attempt: int, present: list[int], refused: dict[str, str]) -> list[int]:
        """The nodes that have joined an attempt since the last look and know the token of the job."""
        arrived = []
        for number in self._numbers():
            if number in present or str(number) in refused or (info := self.get(f'{attempt}/info/{number}')) is None:
                continue
            if self._is_signed(info):
                arrived.append(number)
            else:
                refused[str(number)] = WRONG_TOKEN
                print_line(f'{info.get("address")} wanted to join, but {WRONG_TOKEN}')
        return arrived

    def _in_order(self, attempt: int, numbers: list[int]) -> list[int]:
        """The first node first, then by the places that were asked for, then as they came."""
        infos = self.get_all([f'{attempt}/info/{number}' for number in numbers])
        wishes = {number: info.get('wanted_rank') for number, info in zip(numbers, infos, strict=True)}
        return sorted(numbers, key=lambda number: (number != 0, wishes[number] is None, wishes[number] or 0, number))

    def _missing(self, present: list[int]) -> str:
        if self.cluster.nodes:
            absent = [address for number, address in enumerate(self.cluster.nodes) if number not in present]
            missing = f'{", ".join(absent)} {"has" if len(absent) == 1 else "have"} not joined'
            tried = probe_all(self.cluster.address, absent, self.port)
            hosts = ', '.join(address for address, (_, trouble) in tried.items() if trouble is None)
            doubt = f' (something listens at port {self.port} of {hosts}: does its list of nodes begin with itself?)'
            return missing + (doubt if hosts else '')
        return f'{len(present)} of at least {self.cluster.min_nodes} nodes have joined'

    def _compare_with_other_first(self, present: list[int]) -> None:
        """A node whose list begins with itself waits at its own store: shows both sides both lists."""
        absent = [address for number, address in enumerate(self.cluster.nodes) if number not in present]
        for address, (_, trouble) in probe_all(self.cluster.address, absent, self.port).items():
            if trouble is None:
                with contextlib.suppress(RendezvousError, RuntimeError, ValueError):  # something else listens there
                    other = _connect(address, self.port, self.connect)
                    conflict = self._lists_differ(address, str(json.loads(other.get('nodes'))))
                    other.set('conflict', json.dumps(conflict))
                    self.put('conflict', conflict)

    def _lists_differ(self, other: str, asked: str) -> str:
        return (
            f'not the same everywhere: the nodes ({other}: {asked}; {self.cluster.address}: {self.cluster.requested}): '
            'give the same list, in the same order, on all nodes; nothing was started here'
        )

    def _signature(self, address: str) -> str:
        """Proves that the node at `address` knows the token, without revealing it."""
        return hmac.new(self.token.encode(), address.encode(), hashlib.sha256).hexdigest()

    def _is_signed(self, info: NodeInfo) -> bool:
        return hmac.compare_digest(str(info.get('signature')), self._signature(str(info.get('address'))))

    def _number(self) -> int:
        if self.cluster.nodes:
            return self.cluster.nodes.index(self.cluster.address)
        return 0 if self.server is not None else int(self._ask(lambda: self.store.add('joined', 1)))

    def _connect(self) -> Any:
        """A connection to the store. Raises RendezvousError when the first node cannot be reached for too long."""
        begun = reminded = time.monotonic()
        while (trouble := probe(self.cluster.address, self.address, self.port)[1]) is not None:
            now = time.monotonic()
            waited = f'cannot reach the first node, {self.address}, port {self.port}: {trouble}'
            if now - begun > self.patience:
                raise RendezvousError(f'{waited}; gave up after {self.patience:.0f} s')
            if now - reminded > REMIND:
                reminded = now
                print_line(f'{waited}; is this same command running there? still trying')
            time.sleep(0.5)
        return _connect(self.address, self.port, self.connect)


def _connect(address: str, port: int, timeout: timedelta) -> Any:
    """A store client. Raises RendezvousError when no store is there."""
    try:
        return TCPStore(address, port, None, False, timeout, wait_for_workers=False)
    except (RuntimeError, OSError) as error:
        raise RendezvousError(
            f'what answers at {address}, port {port}, is not a Phalanx rendezvous ({str(error).splitlines()[0][:120]}); '
            'use another --start_port on all nodes'
        ) from None


def probe(own: str, address: str, port: int, seconds: float = 2) -> tuple[float, str | None]:
    """Seconds that it takes to connect from `own` to another node, and what is in the way (None: nothing)."""
    begun = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=seconds, source_address=(own, 0)):
            return time.monotonic() - begun, None
    except ConnectionRefusedError:
        return 0.0, 'nothing listens there yet'
    except TimeoutError:
        return 0.0, f'no answer within {seconds:.0f} s (wrong address, firewall, or no route)'
    except OSError as error:
        return 0.0, error.strerror or str(error)


def probe_all(own: str, addresses: Sequence[str], port: int) -> dict[str, tuple[float, str | None]]:
    """`reach` for several nodes at once: as long as the slowest of them takes."""
    with futures.ThreadPoolExecutor(max(1, len(addresses))) as pool:
        return dict(zip(addresses, pool.map(lambda address: probe(own, address, port), addresses), strict=True))


def listen(address: str, port: int) -> socket.socket:
    """A socket that listens on this one address. Raises RendezvousError naming who holds the port when it is taken."""
    try:
        return socket.create_server((address, port), family=socket.AF_INET6 if ':' in address else socket.AF_INET, backlog=128)
    except OSError as error:
        number = error.errno or 0
        reason = f'in use by {_holder(port)}' if number == errno.EADDRINUSE else os.strerror(number)
        raise RendezvousError(
            f'{address}: port {port} is {reason}; end that process, or give another --start_port on all nodes'
        ) from None


def _serve(address: str, port: int, timeout: timedelta) -> Any:
    """The store, on a socket that is bound already: nobody can take the port in between, and no other address listens."""
    sock = listen(address, port)
    return TCPStore(
        address,
        port,
        None,
        True,
        timeout,
        wait_for_workers=False,
        multi_tenant=True,  # torch's agent opens the same store once more in this process
        master_listen_fd=sock.detach(),
    )


def _holder(port: int) -> str:
    """Which process listens on a port, as far as this user may know."""
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


def get_token(environment: Mapping[str, str], job_id: str | None) -> str:
    """What nodes must share to be admitted: PHALANX_TOKEN if set, else the name of the job."""
    return environment.get('PHALANX_TOKEN') or f'job {job_id or ""}'


def print_line(line: str) -> None:
    """One line for the person at this node."""
    print(f'phalanx: {line}', file=sys.stderr, flush=True)
