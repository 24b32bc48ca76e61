"""Rendezvous, preflight and heartbeats of many nodes with 8 ranks each, simulated on this machine.

The nodes are launchers without ranks: threads of a few processes, each with a loopback address of its own; the ranks are files
with their heartbeats. The first node has a process of its own, whose processor time is the cost of the first node.

    OMP_NUM_THREADS=1 python benchmarks/many_nodes.py --nodes 4,8,16,32,64,128
"""

import argparse
import multiprocessing
import os
import socket
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import psutil

from phalanx.launch import preflight, rendezvous
from phalanx.launch.cluster import Cluster
from phalanx.launch.members import Members
from phalanx.launch.rendezvous import Rendezvous
from phalanx.launch.watchdog import HEARTBEAT, Watchdog
from phalanx.parallel.heartbeat import Heartbeat

RANKS = 8  # per node
PROCESSES = 4  # for all nodes but the first
SECONDS = 20  # of heartbeats


class Node:
    """Launcher of a node; counts its requests to the store of the first node, and their bytes."""

    def __init__(self, addresses: list[str], number: int, port: int) -> None:
        count, first = len(addresses), (addresses[0], port)
        self.cluster = Cluster(RANKS, (), tuple(addresses), count, count, addresses[number], rendezvous=first)
        self.requests = self.bytes = 0
        self.rendezvous: Rendezvous
        self.members: Members

    def start(self) -> None:
        """Join the others, compare facts, and test connections, as the launcher does before the ranks start."""
        self.rendezvous = Rendezvous(self.cluster, 'token', 120)
        self.rendezvous.store = Counted(self.rendezvous.store, self)
        self.members = self.rendezvous.join({'pid': os.getpid(), 'wanted_rank': None, **facts_of(self.cluster.ranks_per_node)})
        preflight.compare_nodes(self.rendezvous, self.members)

    def watch(self, seconds: float) -> None:
        """Exchange heartbeats of eight ranks that make progress."""
        own = range(self.members.position * RANKS, (self.members.position + 1) * RANKS)
        with tempfile.TemporaryDirectory(prefix='node-') as folder:
            ranks = [beating(Path(folder), rank) for rank in own]
            watchdog = Watchdog(Path(folder), own, 600, self.rendezvous, self.members)
            watchdog.start()
            end, steps = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                for rank in ranks:
                    rank.beat(steps, 'training')
                steps += 1
                time.sleep(HEARTBEAT)
            watchdog.over.set()
            watchdog.join()
        assert watchdog.verdict is None, watchdog.verdict


@cache
def facts_of(ranks: int) -> dict[str, Any]:
    """Facts of this machine, found once for all nodes of a process: each node has a processor of its own for that."""
    return preflight.node_facts(Cluster(ranks))


class Counted:
    """Store that counts requests and bytes of keys and values."""

    def __init__(self, store: Any, node: Node) -> None:
        self.store, self.node = store, node

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.store, name)

        def request(*values: Any) -> Any:
            answer = method(*values)
            self.node.requests += 1
            self.node.bytes += measure(values) + measure(answer)
            return answer

        return request


def measure(value: Any) -> int:
    """Bytes of a value in a request."""
    if isinstance(value, str | bytes):
        return len(value)
    return sum(map(measure, value)) if isinstance(value, list | tuple) else 8


def beating(folder: Path, rank: int) -> Heartbeat:
    """Heartbeats of a fake rank of this process."""
    rank_beats = Heartbeat.__new__(Heartbeat)  # without the pipes and stacks of a process of its own
    rank_beats.file = (folder / f'beat.{rank}').open('w')
    return rank_beats


def run_nodes(addresses: list[str], numbers: list[int], port: int, seconds: float, barrier: Any, results: Any) -> None:
    """Run some of the nodes in this process; put what they measured into `results`."""
    vars(rendezvous)['shorten_silent_lookups'] = lambda _: False  # loopback addresses have no names to look up
    facts_of(RANKS)
    nodes = [Node(addresses, number, port) for number in numbers]
    own = psutil.Process()
    with ThreadPoolExecutor(len(nodes)) as pool:
        barrier.wait()
        begun = time.monotonic()
        list(pool.map(Node.start, nodes))
        start = time.monotonic() - begun
        before = [(node.requests, node.bytes) for node in nodes]
        barrier.wait()
        used, begun = sum(own.cpu_times()[:2]), time.monotonic()
        list(pool.map(lambda node: node.watch(seconds), nodes))
        passed = time.monotonic() - begun
        cpu = (sum(own.cpu_times()[:2]) - used) / passed
        barrier.wait()
    joined = [sum(values) for values in zip(*before, strict=True)]
    total = sum(node.requests for node in nodes) - joined[0], sum(node.bytes for node in nodes) - joined[1]
    results.put({'first': 0 in numbers, 'start': start, 'cpu': cpu, 'joined': joined, 'beats': [v / passed for v in total]})


def simulate(count: int, seconds: float) -> dict[str, float]:
    """Start-up and heartbeats of `count` nodes."""
    addresses = [f'127.1.{number // 250}.{number % 250 + 1}' for number in range(count)]
    with socket.socket() as sock:
        sock.bind((addresses[0], 0))
        port = int(sock.getsockname()[1])
    shares = [[0], *([number for number in range(1, count) if number % PROCESSES == part] for part in range(PROCESSES))]
    shares = [share for share in shares if share]
    spawning = multiprocessing.get_context('spawn')
    barrier, results = spawning.Barrier(len(shares)), spawning.Queue()
    processes = [
        spawning.Process(target=run_nodes, args=(addresses, share, port, seconds, barrier, results)) for share in shares
    ]
    for process in processes:
        process.start()
    found = [results.get() for _ in processes]
    for process in processes:
        process.join()
    (first,) = (one for one in found if one['first'])
    joined = [sum(one['joined'][part] for one in found) for part in (0, 1)]
    beats = [sum(one['beats'][part] for one in found) for part in (0, 1)]
    return {
        'nodes': count,
        'start in s': max(one['start'] for one in found),
        'requests at the start': joined[0],
        'KiB at the start': joined[1] / 1024,
        'requests per s': beats[0],
        'KiB per s': beats[1] / 1024,
        'ms of CPU per s, first node': first['cpu'] * 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--nodes', default='4,8,16,32,64,128')
    parser.add_argument('--seconds', type=float, default=SECONDS)
    options = parser.parse_args()
    rows = [simulate(int(count), options.seconds) for count in options.nodes.split(',')]
    print('| ' + ' | '.join(rows[0]) + ' |')
    for row in rows:
        print('| ' + ' | '.join(f'{value:,.1f}' if isinstance(value, float) else str(value) for value in row.values()) + ' |')


if __name__ == '__main__':
    main()
