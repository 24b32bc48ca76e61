"""Two nodes for benchmarks: network namespaces of this node with a core each, joined by a cable whose rate can be limited.

Needs root, iproute2, taskset and the kernel's tbf queue.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Node:
    """A network namespace with one core."""

    name: str
    address: str
    core: int
    folder: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Python with `words`, on this node."""
        return subprocess.Popen(
            ['ip', 'netns', 'exec', self.name, 'taskset', '-c', str(self.core), sys.executable, *words],
            cwd=self.folder,
            env={**os.environ, 'OMP_NUM_THREADS': '1', 'GLOO_SOCKET_IFNAME': 'cable'},
            stdout=subprocess.PIPE,
            text=True,
        )


@contextmanager
def two_nodes(folder: Path) -> Iterator[list[Node]]:
    """Two nodes at the ends of a cable; gone again afterwards, with whatever still runs there."""
    if os.geteuid() != 0 or not all(map(shutil.which, ('ip', 'tc', 'taskset'))):
        sys.exit('needs root, iproute2 and taskset')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces go, too
    cores, names = sorted(os.sched_getaffinity(0)), [f'pc{os.getpid() % 100_000}n{number}' for number in (1, 2)]
    nodes = [Node(name, f'10.79.0.{n}', cores[(n - 1) % len(cores)], folder / name) for n, name in enumerate(names, start=1)]
    try:
        for node in nodes:
            ip('netns', 'add', node.name)
            node.folder.mkdir()
        ip('link', 'add', 'cable', 'netns', names[0], 'type', 'veth', 'peer', 'name', 'cable', 'netns', names[1])
        for node in nodes:
            ip('-n', node.name, 'addr', 'add', f'{node.address}/24', 'dev', 'cable')
            for card in ('cable', 'lo'):
                ip('-n', node.name, 'link', 'set', card, 'up')
        yield nodes
    finally:
        for node in nodes:
            for pid in subprocess.run(['ip', 'netns', 'pids', node.name], capture_output=True, text=True).stdout.split():
                os.kill(int(pid), 9)
            subprocess.run(['ip', 'netns', 'del', node.name], check=False, capture_output=True)


def ip(*words: str) -> None:
    subprocess.run(['ip', *words], check=True)


def limit(nodes: Sequence[Node], rate: str) -> None:
    """Sets the rate of both ends of the cable, such as `200mbit`, or `unlimited`."""
    for node in nodes:
        subprocess.run(['tc', '-n', node.name, 'qdisc', 'del', 'dev', 'cable', 'root'], check=False, capture_output=True)
        if rate != 'unlimited':
            queue = ['tbf', 'rate', rate, 'burst', '256kb', 'latency', '50ms']
            subprocess.run(['tc', '-n', node.name, 'qdisc', 'add', 'dev', 'cable', 'root', *queue], check=True)


def on_all(nodes: Sequence[Node], *words: str) -> list[str]:
    """The last output of `phalanx bench WORDS`, run on all nodes at once. Raises RuntimeError."""
    return outputs([node.start('-m', 'phalanx', 'bench', *words) for node in nodes])


def together(nodes: Sequence[Node], *words: str) -> str:
    """The JSON that rank 0 prints of a benchmark over the ranks of all nodes, one on each. Raises RuntimeError."""
    flags = ['--ips', ','.join(node.address for node in nodes), '--nproc_per_node', '1'] if len(nodes) > 1 else []
    return on_all(nodes, *words, *flags, '--json')[0]


def outputs(started: Sequence[subprocess.Popen[str]]) -> list[str]:
    """The last line that each writes to its standard output. Raises RuntimeError when one failed."""
    texts = [process.communicate()[0] for process in started]
    if failed := [process for process in started if process.returncode]:
        raise RuntimeError(f'{failed[0].args!r} ended with status {failed[0].returncode}')
    return [text.strip().rpartition('\n')[2] for text in texts]
