"""Speed-up of a second node: two network namespaces with one core and one rank each, Phalanx beside plain DDP under torchrun.

    python benchmarks/scaling_between_nodes.py [--steps N] [--repeats N] [--rates unlimited 1gbit 200mbit]

Each rank has the same batch with one rank and with two. Everything is run in turns, `--repeats` times. `two at once`: two
processes that know nothing of each other, the most that this node can give. At the last rate Phalanx also compresses its
gradients. Needs root.
"""

import argparse
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from namespaces import Node, limit, on_all, outputs, together, two_nodes

from phalanx.bench.show import format_text

PLAIN = Path(__file__).with_name('plain_ddp.py')
RECIPE = 'pp_liteseg_digits'
SETTINGS = (
    *('device=cpu', 'train.global_batch_size=null', 'train.batch_size_per_rank=4', 'train.workers=0'),
    *('data.size=[256,512]', 'data.eval_scenes=1', 'norm_sync=off', 'ema=null'),
)
COMPRESSIONS = ('bf16', 'power_sgd')


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('--rates', nargs='+', default=['unlimited', '1gbit', '200mbit'])
    parser.add_argument('--steps', type=int, default=6, help='how many are measured in each run')
    parser.add_argument('--repeats', type=int, default=2)
    parser.add_argument('--set', nargs='+', action='extend', default=[], metavar='KEY=VALUE')
    given = parser.parse_args()
    keys = (*SETTINGS, *given.set)
    seconds: dict[tuple[str, str], list[float]] = defaultdict(list)  # (program, where) -> mean steps
    with tempfile.TemporaryDirectory() as folder, two_nodes(Path(folder)) as nodes:
        for _ in range(given.repeats):
            one_round(nodes, given.rates, keys, given.steps, seconds)
    print(report(seconds, given.rates))


def one_round(
    nodes: Sequence[Node], rates: Sequence[str], keys: Sequence[str], steps: int, seconds: dict[tuple[str, str], list[float]]
) -> None:
    """Every run once."""
    seconds['plain DDP', 'alone'] += plain(nodes[:1], keys, steps)
    seconds['Phalanx', 'alone'] += phalanx(nodes[:1], keys, steps)
    at_once = on_all(nodes, *training(keys, steps), '--json')
    seconds['two at once', 'alone'].append(statistics.fmean(map(without_data, at_once)))
    for rate in rates:
        limit(nodes, rate)
        seconds['plain DDP', rate] += plain(nodes, keys, steps)
        seconds['Phalanx', rate] += phalanx(nodes, keys, steps)
        for compression in COMPRESSIONS if rate == rates[-1] else ():
            chosen = (*keys, f'gradients={{compression: {compression}, plain_steps: 1}}')
            seconds[f'Phalanx, {compression}', rate] += phalanx(nodes, chosen, steps)
        limit(nodes, 'unlimited')


def plain(nodes: Sequence[Node], keys: Sequence[str], steps: int) -> list[float]:
    """The mean step of plain DDP over the nodes, under torchrun; of one node without both."""
    script = [str(PLAIN), RECIPE, str(steps), *keys]
    rendezvous = ['--master_addr', nodes[0].address, '--master_port', '29400', '--nnodes', str(len(nodes))]
    launcher = ['-m', 'torch.distributed.run', *rendezvous, '--nproc_per_node', '1'] if len(nodes) > 1 else []
    ranks = [[*launcher, '--node_rank', str(rank)] if launcher else [] for rank in range(len(nodes))]
    said = outputs([node.start(*words, *script) for node, words in zip(nodes, ranks, strict=True)])
    return [json.loads(said[0])['step_s']]


def phalanx(nodes: Sequence[Node], keys: Sequence[str], steps: int) -> list[float]:
    """The mean step of Phalanx over the nodes."""
    return [without_data(together(nodes, *training(keys, steps)))]


def training(keys: Sequence[str], steps: int) -> list[str]:
    """The arguments of `phalanx bench`."""
    return ['train', RECIPE, '--steps', str(steps), '--warmup', '3', '--set', *keys]


def without_data(output: str) -> float:
    """Seconds of a step but for loading its batch, which plain DDP does not do here."""
    (figures,) = json.loads(output)['variants']
    return float(figures['step_s'] - figures['phases']['data wait'])


def report(seconds: dict[tuple[str, str], list[float]], rates: Sequence[str]) -> str:
    step = {key: statistics.median(values) for key, values in seconds.items()}
    rows = []
    for program, where in step:
        one = step['plain DDP' if program == 'plain DDP' else 'Phalanx', 'alone']
        rows.append(
            {
                'program': program,
                'between nodes': where,
                'step': f'{1000 * step[program, where]:.0f} ms',
                'of all': ' '.join(f'{1000 * value:.0f}' for value in seconds[program, where]),
                'efficiency': f'{one / step[program, where]:.3f}',
                'times plain DDP': f'{step["plain DDP", where] / step[program, where]:.3f}',
            }
        )
    rows.sort(key=lambda row: ['alone', *rates].index(row['between nodes']))
    return f'{format_text(rows)}\nefficiency: of two ranks against one of the same program, the same batch on each.'


if __name__ == '__main__':
    main()
