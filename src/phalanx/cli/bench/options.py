"""The options of `phalanx bench` and `phalanx plan`. Nothing here loads torch, so `--help` does not wait for it."""

import argparse
from pathlib import Path

from phalanx.config.arguments import Parser, add_assignments, add_json, add_recipe
from phalanx.launch.flags import add_flags

ON_OFF = {'on': ('on',), 'off': ('off',), 'both': ('off', 'on')}
EXAMPLES = (
    'phalanx bench train RECIPE --precision fp32,bf16 --channels_last both',
    'phalanx bench data RECIPE --set data.root=DIR',
    'phalanx bench comm --gpus 0,1',
    'phalanx bench scaling RECIPE --world 1,2,4',
)


def bench_parser() -> Parser:
    parser = Parser('phalanx bench', 'Measures training, its input pipeline, the network, or the scaling.', EXAMPLES)
    commands = parser.add_subparsers(dest='command', required=True)
    for name, add_options, about in (
        ('train', _add_train, 'samples/s, where the time of a step goes, what to try'),
        ('data', _add_data, 'the input pipeline alone, by transform'),
        ('comm', _add_comm, 'what a sum over the ranks costs, by size'),
        ('scaling', _add_scaling, 'one rank against several, as a table and a page'),
    ):
        own = commands.add_parser(name, help=about, description=about)
        add_options(own)
    return parser


def _add_train(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    add_json(parser)
    parser.add_argument('--steps', type=int, default=20, metavar='N', help='how many are measured (20)')
    parser.add_argument('--warmup', type=int, default=5, metavar='N', help='how many go before (5)')
    parser.add_argument('--precision', metavar='A,B,..', help='fp32, bf16, fp16, one after the other')
    parser.add_argument('--channels_last', nargs='?', const='on', choices=ON_OFF, help='NHWC maps')
    parser.add_argument('--compile', nargs='?', const='on', choices=ON_OFF, help='torch.compile')
    parser.add_argument('--profile', type=Path, metavar='FILE', help='write what `phalanx plan` needs')
    add_flags(parser)


def _add_data(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    add_json(parser)
    parser.add_argument('--samples', type=int, default=200, metavar='N', help='how many are prepared (200)')
    parser.add_argument('--rate', type=float, metavar='R', help='samples/s that one device trains, as `bench train` says')


def _add_comm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--device', choices=('auto', 'cpu', 'cuda'), default='auto', help='between what')
    parser.add_argument('--repeats', type=int, default=20, metavar='N', help='how often each size is sent (20)')
    add_json(parser)
    add_flags(parser)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    add_recipe(parser)
    add_json(parser)
    parser.add_argument('--world', default='1,2', metavar='1,2,..', help='numbers of ranks (1,2)')
    parser.add_argument('--steps', type=int, default=30, metavar='N', help='of each run; the first fifth is not counted (30)')
    parser.add_argument('--repeats', type=int, default=3, metavar='K', help='of each world, taking turns (3)')
    parser.add_argument('--full', action='store_true', help='train to the end instead, and compare accuracy')
    parser.add_argument('--threads', type=int, metavar='N', help='of each rank on CPUs (default: cores / largest world)')
    parser.add_argument('--out', type=Path, metavar='FOLDER', help='where runs and tables go (default: runs/scaling/<recipe>)')
    add_flags(parser)


def plan_parser() -> Parser:
    about = 'Predicts step time, speed-up and hours from a step that was measured on one rank, and a network.'
    parser = Parser('phalanx plan', about, ['phalanx plan RECIPE --nodes 1,4,16 --devices_per_node 8 --bandwidth 100Gbit'])
    parser.add_argument(
        'recipe', metavar='RECIPE', nargs='?', help='measured here, now, unless --profile says what was measured before'
    )
    add_assignments(parser)
    parser.add_argument('--profile', type=Path, metavar='FILE', help='as `phalanx bench train RECIPE --profile FILE` wrote it')
    parser.add_argument('--nodes', default='1,2,4,8,32', metavar='1,2,..', help='numbers of nodes (1,2,4,8,32)')
    parser.add_argument('--devices_per_node', type=int, default=8, metavar='N', help='devices of a node (8)')
    parser.add_argument('--bandwidth', default='25Gbit', metavar='B', help="of a node's network card, each way (25Gbit)")
    parser.add_argument('--latency', default='20us', metavar='T', help='from node to node (20us)')
    parser.add_argument('--node_bandwidth', default='100GB', metavar='B', help='between devices of a node (100GB/s)')
    parser.add_argument('--node_latency', default='5us', metavar='T', help='between devices of a node (5us)')
    parser.add_argument('--host_bandwidth', default='inf', metavar='B', help='of a CPU that copies and adds itself (inf)')
    add_json(parser)
    return parser
