"""The accuracy of `phalanx plan`: predicted against measured steps of two nodes, at several bandwidths.

    python benchmarks/plan_check.py [--recipe R] [--set KEY=VALUE ...] [--rates unlimited 1gbit 200mbit] [--steps N]

The nodes are two network namespaces of this node with one core and one rank each, joined by a cable whose rate `tc` limits
at both ends. Needs root, two cores that nothing else uses, and the kernel's tbf queue. What the plan knows is measured first:
a step of one rank, on both nodes at once (what they share, memory say, then slows the profile as it slows the run), and what a
sum over the two costs without a limit. Then each rate is measured; all of that in turns.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from namespaces import limit, on_all, together, two_nodes

from phalanx.bench.network import FREE, Link, Network, parse_cable_bandwidth
from phalanx.bench.plan import plan
from phalanx.bench.profile import Profile
from phalanx.bench.show import format_text

PER_RANK = ('device=cpu', 'train.global_batch_size=null', 'train.workers=0')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--recipe', default='pp_liteseg_digits')
    parser.add_argument('--batch', type=int, default=4, help='samples of a step on each rank')
    parser.add_argument('--set', nargs='+', action='extend', default=[], metavar='KEY=VALUE')
    parser.add_argument('--rates', nargs='+', default=['unlimited', '1gbit', '200mbit'])
    parser.add_argument('--steps', type=int, default=20)
    parser.add_argument('--repeats', type=int, default=3)
    given = parser.parse_args()
    keys = [*PER_RANK, f'train.batch_size_per_rank={given.batch}', *given.set]
    run = ['train', given.recipe, '--steps', str(given.steps), '--set', *keys]
    # per repeat: exchanges, one rank alone on each node, then both at each bandwidth
    with tempfile.TemporaryDirectory() as folder, two_nodes(Path(folder)) as nodes:
        alone: list[Profile] = []
        measured: dict[str, list[float]] = {rate: [] for rate in given.rates}
        exchanges: list[dict[str, Any]] = []
        for _ in range(given.repeats):
            exchanges.append(json.loads(together(nodes, 'comm')))
            on_all(nodes, *run, '--profile', 'profile.json')
            alone += [Profile.read(node.folder / 'profile.json') for node in nodes]
            for rate in given.rates:
                limit(nodes, rate)
                measured[rate].append(json.loads(together(nodes, *run))['variants'][0]['step_s'])
                limit(nodes, 'unlimited')
    print(report(given.rates, alone, measured, exchanges))


def report(
    rates: Sequence[str], alone: Sequence[Profile], measured: dict[str, list[float]], exchanges: Sequence[dict[str, float]]
) -> str:
    """Measured and predicted steps beside each other. The profile is the one whose step is in the middle of all."""
    idle, in_work, host = (statistics.fmean(each[key] for each in exchanges) for key in ('latency_s', 'in_work_s', 'bandwidth'))
    profile = sorted(alone, key=lambda each: each.computing)[len(alone) // 2]
    one = profile.computing + profile.samples / profile.loader_rate  # the rank loads its own data
    rows = []
    for rate in rates:
        wire = parse_cable_bandwidth('inf' if rate == 'unlimited' else rate)
        between = Link(wire, in_work / 2)  # a small sum over two ranks is a hop there and one back
        (predicted,) = plan(profile, [2], 1, Network(between, FREE.within, host=host))
        step, expected = statistics.median(measured[rate]), predicted.seconds
        rows.append(
            {
                'bandwidth': rate,
                'measured': f'{1000 * step:.1f} ms',
                'predicted': f'{1000 * expected:.1f} ms',
                'error': f'{expected / step - 1:+.1%}',
            }
        )
    head = (
        f'{profile.recipe}, {profile.samples} samples per rank, {profile.device}: one rank {1000 * one:.1f} ms per step; '
        f'a small sum over two {1e6 * idle:.0f} us, in the midst of work {1e6 * in_work:.0f} us, {8 * host / 1e9:.2f} Gbit/s'
    )
    return f'{head}\n{format_text(rows)}'


if __name__ == '__main__':
    main()
