"""Whether `phalanx plan` is right: predicted against measured steps of two nodes, at several bandwidths.

    python benchmarks/plan_check.py [--recipe R] [--set KEY=VALUE ...] [--rates unlimited 1gbit 200mbit] [--steps N]

The nodes are two network namespaces of this machine with one core and one rank each, joined by a cable whose rate `tc` limits
at both ends. Needs root, two cores that nothing else uses, and the kernel's tbf queue. What the plan knows is measured first:
a step of one rank, on both nodes at once (what they share, memory say, then slows the profile as it slows the run), and what a
sum over the two costs without a limit. Then each rate is measured, in turns.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.bench.network import FREE, Link, Network, bandwidth
from phalanx.bench.plan import plan
from phalanx.bench.profile import Profile
from phalanx.bench.show import as_text

PER_RANK = ('device=cpu', 'train.global_batch_size=null', 'train.workers=0')


@dataclass(frozen=True)
class Node:
    """A network namespace with one core."""

    name: str
    address: str
    core: int
    folder: Path

    def start(self, *words: str) -> subprocess.Popen[str]:
        """`phalanx` with `words`, on this node."""
        return subprocess.Popen(
            ['ip', 'netns', 'exec', self.name, 'taskset', '-c', str(self.core), sys.executable, '-m', 'phalanx', *words],
            cwd=self.folder,
            env={**os.environ, 'OMP_NUM_THREADS': '1'},
            stdout=subprocess.PIPE,
            text=True,
        )

    def limit(self, rate: str) -> None:
        """Sets the rate of this end of the cable."""
        subprocess.run(['tc', '-n', self.name, 'qdisc', 'del', 'dev', 'cable', 'root'], check=False, capture_output=True)
        if rate != 'unlimited':
            queue = ['tbf', 'rate', rate, 'burst', '256kb', 'latency', '50ms']
            subprocess.run(['tc', '-n', self.name, 'qdisc', 'add', 'dev', 'cable', 'root', *queue], check=True)


@contextmanager
def two_nodes(folder: Path) -> Iterator[list[Node]]:
    """Two nodes at the ends of a cable; gone again afterwards, with whatever still runs there."""
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


def on_all(nodes: Sequence[Node], *words: str) -> list[str]:
    """What `phalanx` with `words` writes to standard output, run on all nodes at once. Raises RuntimeError."""
    started = [node.start(*words) for node in nodes]
    said = [process.communicate()[0] for process in started]
    if any(process.returncode for process in started):
        raise RuntimeError(f'phalanx {" ".join(words)} ended with status {[process.returncode for process in started]}')
    return said


def together(nodes: Sequence[Node], *words: str) -> dict[str, Any]:
    """The JSON object that rank 0 prints of a benchmark over the ranks of all nodes."""
    ips = ','.join(node.address for node in nodes)
    said = on_all(nodes, 'bench', *words, '--ips', ips, '--nproc_per_node', '1', '--json')
    found: dict[str, Any] = json.loads(said[0].strip().rpartition('\n')[2])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--recipe', default='pp_liteseg_digits')
    parser.add_argument('--batch', type=int, default=4, help='samples of a step on each rank')
    parser.add_argument('--set', nargs='+', action='extend', default=[], metavar='KEY=VALUE')
    parser.add_argument('--rates', nargs='+', default=['unlimited', '1gbit', '200mbit'])
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--repeats', type=int, default=3)
    given = parser.parse_args()
    if os.geteuid() != 0 or not all(map(shutil.which, ('ip', 'tc', 'taskset'))):
        sys.exit('needs root, iproute2 and taskset')
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the namespaces go, too
    keys = [*PER_RANK, f'train.batch_size_per_rank={given.batch}', *given.set]
    run = ['train', given.recipe, '--steps', str(given.steps), '--set', *keys]
    with tempfile.TemporaryDirectory() as folder, two_nodes(Path(folder)) as nodes:
        alone: list[Profile] = []
        measured: dict[str, list[float]] = {rate: [] for rate in given.rates}
        exchanges = together(nodes, 'comm')
        for _ in range(given.repeats):
            on_all(nodes, 'bench', *run, '--profile', 'profile.json')
            alone += [Profile.read(node.folder / 'profile.json') for node in nodes]
            for rate in given.rates:
                for node in nodes:
                    node.limit(rate)
                measured[rate].append(together(nodes, *run)['variants'][0]['step_s'])
                for node in nodes:
                    node.limit('unlimited')
    print(report(given.rates, alone, measured, exchanges))


def report(rates: Sequence[str], alone: Sequence[Profile], measured: dict[str, list[float]], exchanges: dict[str, Any]) -> str:
    """Measured and predicted steps beside each other. The profile is the one whose step is in the middle of all."""
    profile = sorted(alone, key=lambda each: each.computing)[len(alone) // 2]
    one = profile.computing + profile.samples / profile.loader_rate  # the rank loads its own data
    rows = []
    for rate in rates:
        wire = math.inf if rate == 'unlimited' else bandwidth(rate)
        between = Link(wire, exchanges['latency_s'] / 2)  # the smallest sum over two ranks is a hop there and one back
        (predicted,) = plan(profile, [2], 1, Network(between, FREE.within, host=exchanges['bandwidth']))
        step, expected = statistics.median(measured[rate]), predicted.seconds
        rows.append(
            {
                'rate': rate,
                'measured': f'{1000 * step:.1f} ms',
                'predicted': f'{1000 * expected:.1f} ms',
                'off by': f'{expected / step - 1:+.1%}',
                'efficiency': f'{one / step:.2f}',
                'predicted efficiency': f'{one / expected:.2f}',
                'norms': f'{1000 * predicted.norms:.1f} ms',
                'gradients': f'{1000 * predicted.gradients:.1f} ms',
                'host': f'{1000 * predicted.host:.1f} ms',
            }
        )
    head = (
        f'{profile.recipe}, {profile.samples} samples a rank, {profile.device}: one rank {1000 * one:.1f} ms a step; '
        f'a sum over two ranks {1e6 * exchanges["latency_s"]:.0f} us, {8 * exchanges["bandwidth"] / 1e9:.2f} Gbit/s'
    )
    return f'{head}\n{as_text(rows)}'


if __name__ == '__main__':
    main()
