"""Options of `phalanx bench` and `phalanx plan`. Nothing here loads torch, so `--help` does not wait for it."""

import argparse

from phalanx.config.arguments import Parser, add_assignments, add_command, add_json, add_recipe
from phalanx.launch.flags import add_flags
from phalanx.system.paths import parse_path

ON_OFF = {'on': ('on',), 'off': ('off',), 'both': ('off', 'on')}
EXAMPLES = (
    'phalanx bench train RECIPE --precision fp32,bf16 --channels_last both',
    'phalanx bench data RECIPE --set data.root=DIR',
    'phalanx bench memory RECIPE --device "24 GB"',
    'phalanx bench comm --gpus 0,1',
    'phalanx bench scaling RECIPE --world 1,2,4',
)


def bench_parser() -> Parser:
    parser = Parser(
        'phalanx bench', 'Measures training, its input pipeline, the network, or the scaling; predicts memory.', EXAMPLES
    )
    commands = parser.add_subparsers(dest='command', required=True)
    # bench train
    training = add_command(commands, 'train', 'samples/s, where the time of a step goes, what to try')
    add_recipe(training)
    add_json(training)
    training.add_argument('--steps', type=int, default=20, metavar='N', help='steps to measure (20)')
    training.add_argument('--warmup', type=int, default=5, metavar='N', help='steps before the measurement (5)')
    training.add_argument('--precision', metavar='A,B,..', help='precisions to measure: fp32, bf16, fp16')
    training.add_argument('--channels_last', nargs='?', const='on', choices=ON_OFF, help='NHWC maps')
    training.add_argument('--compile', nargs='?', const='on', choices=ON_OFF, help='torch.compile')
    training.add_argument('--profile', type=parse_path, metavar='FILE', help='write the profile that `phalanx plan` reads')
    add_flags(training)
    # bench data
    loading = add_command(commands, 'data', 'the input pipeline alone, by transform')
    add_recipe(loading)
    add_json(loading)
    loading.add_argument('--samples', type=int, default=200, metavar='N', help='samples to prepare (200)')
    loading.add_argument('--rate', type=float, metavar='R', help='samples/s of the training on one device, from `bench train`')
    # bench memory
    memory = add_command(commands, 'memory', 'predicted memory of a step, and the batch that fits a device')
    add_recipe(memory)
    add_json(memory)
    memory.add_argument('--device', type=_memory, metavar='"24 GB"', help='memory of each device (default: of the device here)')
    memory.add_argument('--ranks', type=int, default=1, metavar='N', help='ranks that share the global batch (1)')
    # bench comm
    summing = add_command(commands, 'comm', 'all-reduce between ranks: time and bandwidth, by size')
    summing.add_argument('--device', choices=('auto', 'cpu', 'cuda'), default='auto', help='device of the ranks (auto)')
    summing.add_argument('--repeats', type=int, default=20, metavar='N', help='repetitions of each size (20)')
    add_json(summing)
    add_flags(summing)
    # bench scaling
    scaling = add_command(commands, 'scaling', 'one rank compared with several, as a table and a page')
    add_recipe(scaling)
    add_json(scaling)
    scaling.add_argument('--world', default='1,2', metavar='1,2,..', help='numbers of ranks (1,2)')
    scaling.add_argument(
        '--steps', type=int, default=30, metavar='N', help='steps per run; the first fifth is not measured (30)'
    )
    scaling.add_argument('--repeats', type=int, default=3, metavar='K', help='runs per world size, alternating (3)')
    scaling.add_argument('--full', action='store_true', help='train to the end instead, and compare accuracy')
    scaling.add_argument('--threads', type=int, metavar='N', help='threads per rank on CPUs (default: cores / largest world)')
    scaling.add_argument(
        '--out', type=parse_path, metavar='FOLDER', help='folder of runs and tables (default: runs/scaling/<recipe>)'
    )
    add_flags(scaling)
    return parser


def plan_parser() -> Parser:
    about = 'Predicts step time, speed-up and hours from a step measured on one rank, and figures of a network.'
    parser = Parser('phalanx plan', about, ['phalanx plan RECIPE --nodes 1,4,16 --devices_per_node 8 --bandwidth 100Gbit'])
    parser.add_argument(
        'recipe', metavar='RECIPE', nargs='?', help='the recipe to measure on this node, unless --profile is given'
    )
    add_assignments(parser)
    parser.add_argument(
        '--profile', type=parse_path, metavar='FILE', help='a profile written by `phalanx bench train RECIPE --profile FILE`'
    )
    parser.add_argument('--nodes', default='1,2,4,8,32', metavar='1,2,..', help='numbers of nodes (1,2,4,8,32)')
    parser.add_argument('--devices_per_node', type=int, default=8, metavar='N', help='devices per node (8)')
    parser.add_argument('--bandwidth', default='25Gbit', metavar='B', help="of a node's network card, each way (25Gbit)")
    parser.add_argument('--latency', default='20us', metavar='T', help='from node to node (20us)')
    parser.add_argument('--node_bandwidth', default='100GB', metavar='B', help='between devices of a node (100GB/s)')
    parser.add_argument('--node_latency', default='5us', metavar='T', help='between devices of a node (5us)')
    parser.add_argument(
        '--host_bandwidth', default='inf', metavar='B', help='of a CPU that copies and sums without a network card (inf)'
    )
    add_json(parser)
    return parser


def _memory(text: str) -> float:
    """MiB."""
    from phalanx.engine.fit import parse_size  # it imports torch

    try:
        return parse_size(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
