"""How long the preflight of eight nodes takes, from the last one's coming to the verdict on all of them.

`python benchmarks/preflight.py [RUNS]` (root): each node is a network namespace on one bridge, with a process in which torch
is loaded already when the clock starts. They come together RUNS times (5); medians, without and with the bandwidth test.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phalanx.launch import preflight
from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import START_PORT
from phalanx.launch.rendezvous import Rendezvous, say

NODES = 8
ADDRESSES = tuple(f'10.80.0.{number}' for number in range(1, NODES + 1))


def main() -> None:
    if os.geteuid() != 0 or shutil.which('ip') is None:
        sys.exit('skipped: needs root and iproute2 for network namespaces')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces go, too
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder, namespaces() as names:
        commands = [
            ['ip', 'netns', 'exec', name, sys.executable, __file__, '--node', address, str(runs)]
            for name, address in zip(names, ADDRESSES, strict=True)
        ]
        started = [subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) for command in commands]
        told = [json.loads(node.communicate()[0]) for node in started]
    ends = {'checks': 1, 'with the bandwidth test': 2}
    for what, end in ends.items():
        seconds = [max(run[end] for run in nodes) - max(run[0] for run in nodes) for nodes in zip(*told, strict=True)]
        middle, worst = statistics.median(seconds), max(seconds)
        print(f'{what:<24} {middle:5.2f} s (median of {runs}; at most {worst:.2f}) for {NODES} nodes')


def node(address: str, runs: int) -> None:
    """One node: prints when it came, when it knew what differs, and when it knew the bandwidth, once a run."""
    cluster = Cluster(
        1, nodes=ADDRESSES, min_nodes=NODES, max_nodes=NODES, address=address, rendezvous=(ADDRESSES[0], START_PORT)
    )
    os.environ.update(cluster.environment() | {'GLOO_SOCKET_IFNAME': 'info'})
    rendezvous, times = Rendezvous(cluster, 'benchmark', 120, say), []
    rendezvous.leave(rendezvous.join({}))  # all are there now
    for _ in range(runs):
        facts = {'disk': preflight.disk_free(Path()), **preflight.node_facts(cluster)}
        come = time.monotonic()
        members = rendezvous.join(facts)
        preflight.look_around(rendezvous, members)
        checked = time.monotonic()
        preflight.bandwidth(rendezvous, members)
        times.append((come, checked, time.monotonic()))
    rendezvous.leave(members)
    print(json.dumps(times))


@contextmanager
def namespaces() -> Iterator[list[str]]:
    """The names of network namespaces with the ADDRESSES, all on one bridge; gone again afterwards."""
    bridge = f'pb{os.getpid() % 100_000}'
    names = [f'{bridge}m{number}' for number in range(NODES)]
    try:
        ip('link', 'add', bridge, 'type', 'bridge')
        ip('link', 'set', bridge, 'up')
        for number, (name, address) in enumerate(zip(names, ADDRESSES, strict=True)):
            ip('netns', 'add', name)
            ip('link', 'add', f'{bridge}v{number}', 'type', 'veth', 'peer', 'name', 'info', 'netns', name)
            ip('link', 'set', f'{bridge}v{number}', 'master', bridge, 'up')
            ip('-n', name, 'addr', 'add', f'{address}/24', 'dev', 'info')
            for info in ('info', 'lo'):
                ip('-n', name, 'link', 'set', info, 'up')
        yield names
    finally:
        for name in names:
            for pid in subprocess.run(['ip', 'netns', 'pids', name], capture_output=True, text=True).stdout.split():
                os.kill(int(pid), 9)
            subprocess.run(['ip', 'netns', 'del', name], check=False, capture_output=True)
        subprocess.run(['ip', 'link', 'del', bridge], check=False, capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(['ip', *words], check=True)


if __name__ == '__main__':
    if sys.argv[1:2] == ['--node']:
        node(sys.argv[2], int(sys.argv[3]))
    else:
        main()
