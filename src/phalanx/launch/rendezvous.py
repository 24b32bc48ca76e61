"""Rendezvous of a run: a key-value store on the first node, and the keys that nodes write there.

An attempt is one start of the ranks. Before each, the nodes join, the first node publishes the position of each, and each node
checks its connections to some others. The same store then serves torch's agent and its ranks.

Only the first node reads what all nodes write, and publishes the result: messages and bytes grow with the nodes, not with their
square.
"""

import contextlib
import hashlib
import hmac
import json
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent import futures
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as torch_dist

from phalanx.launch.cluster import Cluster
from phalanx.launch.members import Members, NodeInfo, choose_neighbours, shorten
from phalanx.launch.names import shorten_silent_lookups
from phalanx.launch.ports import RendezvousError, listen, probe, probe_all

TCPStore: Any = torch_dist.TCPStore  # type: ignore[attr-defined]  # torch exports it without saying so
POLL = 0.1  # seconds between two looks at a key
REMIND = 10  # seconds between two lines about missing nodes
FIRST_ANSWER = 180  # seconds for the first answer of a store, more than a silent name server takes (see `Rendezvous`)
REJOIN_TIMEOUT = 20  # seconds within which a run notices that this node had died
QUIET = 3  # seconds without a new node after which an elastic run starts with fewer than its maximum
NODE_KEYS = ('heartbeat', 'ended', 'failure', 'records')  # keys per node and attempt, null until written
WRONG_TOKEN = 'it uses another --job_id or PHALANX_TOKEN'


class RendezvousLostError(Exception):
    """The first node no longer answers."""


class Rendezvous:
    """Rendezvous on this node. The number of a node is its position in --ips, or the order of joining."""

    def __init__(self, cluster: Cluster, token: str, patience: float, heartbeat_timeout: float = 30) -> None:
        """`patience`: seconds to wait for nodes; `heartbeat_timeout`: seconds of silence after which a node is lost."""
        assert cluster.rendezvous is not None
        self.cluster, self.token, self.patience = cluster, token, patience
        self.heartbeat_timeout = heartbeat_timeout
        self.address, self.port = cluster.rendezvous
        self.last = -1  # last attempt that this node joined
        self.connect = timedelta(seconds=10)
        if shorten_silent_lookups(cluster.address) or shorten_silent_lookups(self.address):
            self.connect = timedelta(seconds=120)
            print_line(f'no name server answers a lookup of {cluster.address}: the start takes longer; see /etc/resolv.conf')
        self.server: Any = _serve(self.address, self.port, self.connect) if cluster.hosts_rendezvous else None
        self.rank_server: Any = None
        self.signposts = self._put_up_signposts() if cluster.hosts_rendezvous else []
        self.store = self._connect()
        self._compare_lists()
        self.number = self._number()

    # Keys and values.

    def put(self, key: str, value: Any) -> None:
        self._request(lambda: self.store.set(key, json.dumps(value)))

    def get(self, key: str) -> Any:
        """Value of a key; None if it is not written."""
        return self._request(lambda: json.loads(self.store.get(key)) if self.store.check([key]) else None)

    def get_all(self, keys: Sequence[str]) -> list[Any]:
        """Values of existing keys, in one request, so that the store scales to many nodes."""
        return [json.loads(value) for value in self._request(lambda: self.store.multi_get(keys))]

    def put_if_unset(self, key: str, value: Any) -> Any:
        """Write a key that is null, unless another node did already; return its value."""
        return self._request(lambda: json.loads(self.store.compare_set(key, 'null', json.dumps(value))))

    def wait(self, keys: Sequence[str], seconds: float) -> list[Any]:
        """Wait until all keys are written; return their values. Raises RendezvousError after `seconds`."""
        if not self._wait_until(lambda: self._exist(keys), seconds):
            raise RendezvousError(f'{self.address} (the first node) did not continue within {seconds:.0f} s')
        return self.get_all(keys)

    def _exist(self, keys: Sequence[str]) -> bool:
        return bool(self._request(lambda: self.store.check(keys)))

    def _request(self, request: Callable[[], Any]) -> Any:
        """Send a request to the store; return its answer. Raises RendezvousLostError after the heartbeat timeout."""
        try:
            return _ask(request, self.heartbeat_timeout)
        except (RuntimeError, OSError) as error:
            raise self._lost(str(error).splitlines()[0][:120]) from None

    def _lost(self, why: str) -> RendezvousLostError:
        return RendezvousLostError(f'the first node, {self.address}, is lost: {why}')

    def _compare_lists(self) -> None:
        """Compare the requested nodes with those of the first node. Raises RendezvousError if they differ."""
        digest = hashlib.sha256(self.cluster.requested.encode()).hexdigest()[:12]
        if self.server is not None:
            self.put('nodes', self.cluster.requested)
            self.put('digest of nodes', digest)  # so that not every node reads the names of all
        (of_first,) = self.wait(['digest of nodes'], 60)
        if (first := self.get('first')) is not None:
            conflict = (
                f'the name of the first node resolves to {first} there, but to {self.address} on {self.cluster.address}: '
                'give its address instead of its name, on all nodes; nothing was started here'
            )
            self.put('conflict', conflict)
            raise RendezvousError(conflict)
        if digest != of_first:
            raise RendezvousError(self._lists_differ(self.address, self.get('nodes')))

    # Joining an attempt.

    def join(self, info: NodeInfo) -> Members:
        """Join the next attempt; return its members as soon as all are there.

        Raises RendezvousError if nodes are missing for too long, or if this node is not admitted.
        """
        info = {**info, 'address': self.cluster.address, 'signature': self._signature(self.cluster.address)}
        attempt = self.last = self._choose_attempt(info)
        self.put(f'{attempt}/info/{self.number}', info)
        if self.server is not None:
            return self._gather(attempt)
        (published,) = self.wait([f'{attempt}/members'], self.patience + 30)
        if 'error' in published:
            self._sign_off(attempt)
            raise RendezvousError(published['error'])
        place = self.get(f'{attempt}/place/{self.number}') or {'refused': 'too late'}
        if 'refused' in place:
            raise RendezvousError(f'{self.address} has not admitted this node: {place["refused"]}')
        first = (0, {'address': self.address})
        return Members(attempt, (first,), published['port'], place['position'], published['count'], tuple(place['neighbours']))

    def meet(
        self, members: Members, what: str, value: Any, combine: Callable[[list[Any]], NodeInfo], seconds: float
    ) -> NodeInfo:
        """Result of `combine` on the values of all nodes, in order of rank: the first node computes and publishes it.

        Raises RendezvousError with the names of nodes without a value after `seconds`.
        """
        self.put(members.key(what, self.number), value)
        absent: list[int] = []
        if self.server is None:
            (common,) = self.wait([members.common(what)], seconds + 30)
        else:
            keys = members.keys(what)
            if not self._wait_until(lambda: self._exist(keys), seconds):
                absent = [number for number in members.numbers if self.get(members.key(what, number)) is None]
            names = shorten([members.name(number) for number in absent])
            common = {'absent': names} if absent else combine(self.get_all(keys))
            self.put(members.common(what), common)
        if 'absent' in common:
            self.leave(members, absent)
            raise RendezvousError(
                f'{common["absent"]} did not answer within {seconds:.0f} s during the checks of the nodes: '
                'see what happened to the launcher there; nothing was started'
            )
        return dict(common)

    def leave(self, members: Members, lost: Collection[int] = ()) -> None:
        """Leave the attempt, without waiting for `lost` nodes."""
        self._sign_off(members.attempt, [number for number in members.numbers if number not in lost])

    def _sign_off(self, attempt: int, numbers: Collection[int] = ()) -> None:
        """Sign off; the first node waits for the others, `numbers`, because they still read the reason from its store."""
        with contextlib.suppress(RendezvousLostError):
            self.put(f'{attempt}/left/{self.number}', True)
            if self.server is not None:
                self._wait_until(lambda: self._exist([f'{attempt}/left/{number}' for number in numbers]), 5)
                time.sleep(0.2)  # so that the last of them has its answer

    def find_newcomers(self, members: Members, find_misfits: Callable[[NodeInfo], str]) -> list[int]:
        """On the first node: nodes that wait for the next attempt, up to the maximum; those with misfits are refused."""
        fitting, present = [], set(members.numbers)
        for number in self._numbers():
            info = self.get(f'waiting/{number}') if number not in present else None
            if info is None or self.get(f'refused/{number}') is not None:
                continue
            if trouble := find_misfits(info) if self._is_signed(info) else WRONG_TOKEN:
                self.put(f'refused/{number}', trouble)
            else:
                fitting.append(number)
        return fitting[: self.cluster.max_nodes - len(members.nodes)]

    def _choose_attempt(self, info: NodeInfo) -> int:
        """Number of the attempt to join: the open one, or the next if it has started without this process."""
        if self.server is not None:
            self.put('attempt', self.last + 1)
            return self.last + 1
        if not self._wait_until(lambda: self._open_attempt() > self.last, self.patience):
            raise RendezvousError(f'{self.address} (the first node) did not start another attempt within {self.patience:.0f} s')
        attempt = self._open_attempt()
        earlier = self.get(f'{attempt}/info/{self.number}')
        if earlier is None and self.get(f'{attempt}/members') is None:
            return attempt
        patience, trouble = float('inf'), 'a run is in progress'
        if earlier is not None:  # of a dead process on this node: the run ends that attempt when it notices
            patience = REJOIN_TIMEOUT
            trouble = f'{self.cluster.address} takes part in this run already (process {earlier.get("pid")} there)'
        print_line(f'{trouble}; waiting for admission')
        self.put(f'waiting/{self.number}', info)
        if not self._wait_until(
            lambda: self._open_attempt() != attempt or self.get(f'refused/{self.number}') is not None, patience
        ):
            raise RendezvousError(f'{trouble}; end that one first, or use another --start_port for a second run')
        if (refused := self.get(f'refused/{self.number}')) is not None:
            raise RendezvousError(f'{self.address} has refused this node: {refused}')
        return self._open_attempt()

    def _open_attempt(self) -> int:
        """Attempt opened by the first node; -1 before the first one."""
        attempt = self.get('attempt')
        return -1 if attempt is None else int(attempt)

    def _numbers(self) -> range:
        """Numbers of all nodes that may have joined so far."""
        if self.cluster.nodes:
            return range(len(self.cluster.nodes))
        return range(int(self._request(lambda: self.store.add('joined', 0))) + 1)

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """True if `condition` became true within `seconds`."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                return False
            time.sleep(POLL)
        return True

    def _gather(self, attempt: int) -> Members:
        """On the first node: wait for the others and publish the place of each. Raises RendezvousError if nodes are missing."""
        for number in self._numbers():  # nodes that waited are admitted now, and must join
            self._request(partial(self.store.delete_key, f'waiting/{number}'))
        begun = reminded = changed = time.monotonic()
        present: list[int] = []
        refused: dict[str, str] = {}
        while True:
            now = time.monotonic()
            if arrived := self._find_arrivals(attempt, present, refused):
                present, changed = sorted([*present, *arrived]), now
            # An elastic run starts with fewer than its maximum when no more nodes come.
            enough = len(present) >= self.cluster.min_nodes and now - changed > QUIET
            if len(present) >= self.cluster.max_nodes or (self.cluster.min_nodes < self.cluster.max_nodes and enough):
                break
            if now - begun > self.patience:
                error = f'{self._describe_missing(present)} after {self.patience:.0f} s; nothing was started'
            else:
                lost = [post.get('conflict') for post in self.signposts if attempt == 0 and post.check(['conflict'])]
                error = json.loads(lost[0]) if lost else self.get('conflict')
            if error is not None:
                self.put(f'{attempt}/members', {'error': error})
                self._sign_off(attempt, present)
                raise RendezvousError(error)
            if now - reminded > REMIND:
                reminded = now
                self._compare_with_other_first(present)
                print_line(f'{self._describe_missing(present)}; start this same command there')
            time.sleep(POLL)
        return self._publish(attempt, self._sort_by_rank(attempt, present[: self.cluster.max_nodes]), refused)

    def _publish(self, attempt: int, nodes: Sequence[tuple[int, NodeInfo]], refused: Mapping[str, str]) -> Members:
        """Publish the places of the nodes, given in order of rank, and the reasons of refusals."""
        places: dict[str, NodeInfo] = {number: {'refused': why} for number, why in refused.items()}
        for position, (number, _) in enumerate(nodes):
            neighbours = [nodes[other][1]['address'] for other in choose_neighbours(position, len(nodes))]
            places[str(number)] = {'position': position, 'neighbours': neighbours}
        values = {f'{attempt}/place/{number}': json.dumps(place) for number, place in places.items()}
        values |= {f'{attempt}/{what}/{number}': 'null' for what in NODE_KEYS for number, _ in nodes}
        values |= {f'{attempt}/verdict': 'null', f'{attempt}/end': 'null'}
        self._request(lambda: self.store.multi_set([*values], [*values.values()]))
        port = self._serve_ranks()
        self.put(f'{attempt}/members', {'count': len(nodes), 'port': port})
        return Members(attempt, tuple(nodes), port, 0, len(nodes), tuple(places['0']['neighbours']))

    def _serve_ranks(self) -> int:
        """Open a new store for the ranks on the first free port above that of the rendezvous; return the port."""
        for port in range(self.port + 1, min(self.port + 100, 65536)):
            with contextlib.suppress(RendezvousError):
                self.rank_server = _serve(self.address, port, self.connect)
                return port
        raise RendezvousError(
            f'{self.address}: no port from {self.port + 1} on is free; give another --start_port on all nodes'
        )

    def _find_arrivals(self, attempt: int, present: list[int], refused: dict[str, str]) -> list[int]:
        """Nodes with the token of the job that have joined an attempt since the last call; others are refused."""
        arrived = []
        for number in self._numbers():
            if number in present or str(number) in refused or (info := self.get(f'{attempt}/info/{number}')) is None:
                continue
            if self._is_signed(info):
                arrived.append(number)
            else:
                refused[str(number)] = WRONG_TOKEN
                print_line(f'{info.get("address")} tried to join, but {WRONG_TOKEN}')
        return arrived

    def _sort_by_rank(self, attempt: int, numbers: list[int]) -> list[tuple[int, NodeInfo]]:
        """Numbers and infos of nodes: the first node first, then by their --rank, then in the order of joining."""
        infos = self.get_all([f'{attempt}/info/{number}' for number in numbers])

        def order(node: tuple[int, NodeInfo]) -> tuple[bool, bool, int, int]:
            number, wanted = node[0], node[1].get('wanted_rank')
            return number != 0, wanted is None, wanted or 0, number

        return sorted(zip(numbers, infos, strict=True), key=order)

    def _describe_missing(self, present: list[int]) -> str:
        if self.cluster.nodes:
            absent = [address for number, address in enumerate(self.cluster.nodes) if number not in present]
            missing = f'{shorten(absent)} {"has" if len(absent) == 1 else "have"} not joined'
            tried = probe_all(self.cluster.address, absent, self.port)
            hosts = ', '.join(address for address, (_, trouble) in tried.items() if trouble is None)
            hint = f' (something listens at port {self.port} of {hosts}: does its list of nodes start with itself?)'
            return missing + (hint if hosts else '')
        return f'{len(present)} of at least {self.cluster.min_nodes} nodes have joined'

    def _compare_with_other_first(self, present: list[int]) -> None:
        """Report different lists of nodes on both sides: a node whose list starts with itself waits at its own store."""
        absent = [address for number, address in enumerate(self.cluster.nodes) if number not in present]
        for address, (_, trouble) in probe_all(self.cluster.address, absent, self.port).items():
            if trouble is None:
                with contextlib.suppress(RendezvousError, RuntimeError, ValueError):  # something else listens there
                    other = _connect(address, self.port, self.connect)
                    conflict = self._lists_differ(address, str(json.loads(other.get('nodes'))))
                    other.set('conflict', json.dumps(conflict))
                    self.put('conflict', conflict)

    def _put_up_signposts(self) -> list[Any]:
        """Stores at the addresses of the other family, where a node arrives whose resolver gives it another one than ours."""
        signposts = []
        for address in self.cluster.other_family:
            with contextlib.suppress(RendezvousError):  # another process has that port: nodes do not see a signpost then
                signposts.append(_serve(address, self.port, self.connect, is_shared=False))
                signposts[-1].set('first', json.dumps(self.address))
                signposts[-1].set('nodes', json.dumps(self.cluster.requested))
                signposts[-1].set('digest of nodes', json.dumps(''))
        return signposts

    def _lists_differ(self, other: str, requested: str) -> str:
        return (
            'not the same on all nodes: the list of nodes '
            f'({other}: {requested}; {self.cluster.address}: {self.cluster.requested}): '
            'give the same list, in the same order, on all nodes; nothing was started here'
        )

    def _signature(self, address: str) -> str:
        """HMAC of `address`, which proves that its node has the token without revealing it."""
        return hmac.new(self.token.encode(), address.encode(), hashlib.sha256).hexdigest()

    def _is_signed(self, info: NodeInfo) -> bool:
        return hmac.compare_digest(str(info.get('signature')), self._signature(str(info.get('address'))))

    def _number(self) -> int:
        if self.cluster.nodes:
            return self.cluster.nodes.index(self.cluster.address)
        return 0 if self.server is not None else int(self._request(lambda: self.store.add('joined', 1)))

    def _connect(self) -> Any:
        """Connect to the store. Raises RendezvousError if the first node cannot be reached for `patience` seconds."""
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


def _ask(request: Callable[[], Any], seconds: float) -> Any:
    """Answer to a request to a store. Raises TimeoutError after `seconds`, and what the request raises.

    A store client waits forever for a node whose cable was pulled, and for another service that says nothing. So a separate
    thread sends the request, and is abandoned in that case.
    """
    answer: futures.Future[Any] = futures.Future()

    def send() -> None:
        try:
            answer.set_result(request())
        except (RuntimeError, OSError) as error:
            answer.set_exception(error)

    threading.Thread(target=send, name='request', daemon=True).start()
    waited, interval = 0.0, min(1, seconds)
    while waited < seconds:  # in short intervals, so that pauses of this process do not count
        if futures.wait([answer], interval).done:
            return answer.result()
        waited += interval
    raise TimeoutError(f'it has not answered for {seconds:g} s')


def _connect(address: str, port: int, timeout: timedelta) -> Any:
    """Client of the store. Raises RendezvousError if no store answers."""
    try:
        return _ask(lambda: TCPStore(address, port, None, False, timeout, wait_for_workers=False), FIRST_ANSWER)
    except (RuntimeError, OSError) as error:
        raise RendezvousError(
            f'the service at {address}, port {port}, is not a Phalanx rendezvous ({str(error).splitlines()[0][:120]}); '
            'use another --start_port on all nodes'
        ) from None


def _serve(address: str, port: int, timeout: timedelta, *, is_shared: bool = True) -> Any:
    """Store on a socket that is bound already: no other process can take the port, and only this address listens.

    `is_shared`: other stores of this process at the same port are this one; torch's agent opens it once more.
    """
    sock = listen(address, port)
    return TCPStore(
        address, port, None, True, timeout, wait_for_workers=False, multi_tenant=is_shared, master_listen_fd=sock.detach()
    )


def get_token(environment: Mapping[str, str], job_id: str | None) -> str:
    """Token that nodes must share to be admitted: PHALANX_TOKEN if set, else the name of the job."""
    return environment.get('PHALANX_TOKEN') or f'job {job_id or ""}'


def print_line(line: str) -> None:
    """Print one line for the user on standard error."""
    print(f'phalanx: {line}', file=sys.stderr, flush=True)
