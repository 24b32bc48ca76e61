"""The options of `phalanx bench` and `phalanx plan`. Nothing here loads torch, so `--help` does not wait for it."""

from phalanx.config.arguments import Parser, add_assignments, add_command, add_json, add_recipe
from phalanx.launch.flags import add_flags
from phalanx.system.paths import parse_path

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
    training = add_command(commands, 'train', 'samples/s, where the time of a step goes, what to try')
    add_recipe(training)
    add_json(training)
    training.add_argument('--steps', type=int, default=20, metavar='N', help='how many are measured (20)')
    training.add_argument('--warmup', type=int, default=5, metavar='N', help='how many go before (5)')
    training.add_argument('--precision', metavar='A,B,..', help='fp32, bf16, fp16, one after the other')
    training.add_argument('--channels_last', nargs='?', const='on', choices=ON_OFF, help='NHWC maps')
    training.add_argument('--compile', nargs='?', const='on', choices=ON_OFF, help='torch.compile')
    training.add_argument('--profile', type=parse_path, metavar='FILE', help='write what `phalanx plan` needs')
    add_flags(training)
    loading = add_command(commands, 'data', 'the input pipeline alone, by transform')
    add_recipe(loading)
    add_json(loading)
    loading.add_argument('--samples', type=int, default=200, metavar='N', help='how many are prepared (200)')
    loading.add_argument('--rate', type=float, metavar='R', help='samples/s that one device trains, as `bench train` says')
    summing = add_command(commands, 'comm', 'what a sum over the ranks costs, by size')
    summing.add_argument('--device', choices=('auto', 'cpu', 'cuda'), default='auto', help='between what')
    summing.add_argument('--repeats', type=int, default=20, metavar='N', help='how often each size is sent (20)')
    add_json(summing)
    add_flags(summing)
    scaling = add_command(commands, 'scaling', 'one rank against several, as a table and a page')
    add_recipe(scaling)
    add_json(scaling)
    scaling.add_argument('--world', default='1,2', metavar='1,2,..', help='numbers of ranks (1,2)')
    scaling.add_argument('--steps', type=int, default=30, metavar='N', help='of each run; the first fifth is not counted (30)')
    scaling.add_argument('--repeats', type=int, default=3, metavar='K', help='of each world, taking turns (3)')
    scaling.add_argument('--full', action='store_true', help='train to the end instead, and compare accuracy')
    scaling.add_argument('--threads', type=int, metavar='N', help='of each rank on CPUs (default: cores / largest world)')
    scaling.add_argument(
        '--out', type=parse_path, metavar='FOLDER', help='where runs and tables go (default: runs/scaling/<recipe>)'
    )
    add_flags(scaling)
    return parser


def plan_parser() -> Parser:
    about = 'Predicts step time, speed-up and hours from a step that was measured on one rank, and a network.'
    parser = Parser('phalanx plan', about, ['phalanx plan RECIPE --nodes 1,4,16 --devices_per_node 8 --bandwidth 100Gbit'])
    parser.add_argument(
        'recipe', metavar='RECIPE', nargs='?', help='measured here, now, unless --profile says what was measured before'
    )
    add_assignments(parser)
    parser.add_argument(
        '--profile', type=parse_path, metavar='FILE', help='as `phalanx bench train RECIPE --profile FILE` wrote it'
    )
    parser.add_argument('--nodes', default='1,2,4,8,32', metavar='1,2,..', help='numbers of nodes (1,2,4,8,32)')
    parser.add_argument('--devices_per_node', type=int, default=8, metavar='N', help='devices of a node (8)')
    parser.add_argument('--bandwidth', default='25Gbit', metavar='B', help="of a node's network card, each way (25Gbit)")
    parser.add_argument('--latency', default='20us', metavar='T', help='from node to node (20us)')
    parser.add_argument('--node_bandwidth', default='100GB', metavar='B', help='between devices of a node (100GB/s)')
    parser.add_argument('--node_latency', default='5us', metavar='T', help='between devices of a node (5us)')
    parser.add_argument('--host_bandwidth', default='inf', metavar='B', help='of a CPU that copies and adds itself (inf)')
    add_json(parser)
    return parser
