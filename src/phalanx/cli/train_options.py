"""Options of `phalanx train`. Nothing here loads torch, so `--help` does not wait for it."""

import argparse

from phalanx.config.arguments import Assignments, Parser, add_offline, add_recipe_words
from phalanx.launch.flags import add_flags
from phalanx.paddle.configs.dialect import Dialect
from phalanx.paddle.options import BROUGHT_ALONG, TAKEN_ALONG
from phalanx.system.paths import parse_path

EXAMPLES = (
    'phalanx train pp_liteseg_digits                                 # on data that comes with the package; some minutes',
    'phalanx train mine.yml --set data.root=DIR optimizer.lr=0.01    # any key of the recipe; goes on where it was stopped',
    'phalanx train mine.yml --finetune                               # some minutes, from published weights',
    'phalanx train mine.yml --gpus 0,1,2,3                           # on four devices',
    'phalanx train mine.yml --gpus 0,1 --ips 10.0.0.1,10.0.0.2       # of two nodes: the same command on both',
)

# other names for keys that take a number
NUMBERS = (
    *('iters', 'batch_size', 'learning_rate', 'log_iters', 'keep_checkpoint_max', 'save_interval', 'num_workers'),
    'early_stop_intervals',
)


# assignments of options with the value false
SWITCHED_OFF = {'use_vdl': ('report.visualdl=false',), 'use_ema': ('ema=null',)}


def parse_switch(word: str) -> str:
    """Return `true` or `false`. Raises ArgumentTypeError."""
    if word.lower() not in ('true', 'yes', '1', 'false', 'no', '0'):
        raise argparse.ArgumentTypeError(f'expected true or false, got {word!r}')
    return 'true' if word.lower() in ('true', 'yes', '1') else 'false'


def train_parser() -> Parser:
    parser = Parser('phalanx train', 'Trains a recipe, on one rank or several.', EXAMPLES)
    add_recipe_words(parser)
    parser.add_argument('--save_dir', type=parse_path, metavar='DIR', help='the run folder (default: runs/<recipe name>)')
    parser.add_argument(
        *('--resume', '-r', '--resume_model'),
        dest='resume',
        nargs='?',
        const='auto',
        metavar='FROM',
        help='auto: continue the run in the folder; or a checkpoint',
    )
    parser.add_argument(
        '--fresh', action='store_true', help='start over; an earlier run in the folder is kept under another name'
    )
    parser.add_argument(
        '--finetune', action='store_true', help='some minutes from published weights of the network; prints its choices'
    )
    add_offline(parser)
    add_flags(parser)
    brought = parser.add_argument_group('other names for keys of the recipe, as in the Paddle projects')
    for option in NUMBERS:
        names = ('--log_iters', '--log_steps') if option == 'log_iters' else (f'--{option}',)
        brought.add_argument(*names, dest=option, metavar='N', help=BROUGHT_ALONG[option].removesuffix('={}'))
    brought.add_argument('--seed', metavar='N', help='train.seed')
    brought.add_argument('--precision', metavar='DTYPE', help='precision.dtype: fp32, bf16 or fp16')
    brought.add_argument('--amp', action='store_true', help='precision.dtype=fp16')
    brought.add_argument('--do_eval', '--eval', dest='eval', action='store_true', help='evaluate.enabled=true')
    for option in ('use_vdl', 'use_wandb', 'use_ema'):
        about = BROUGHT_ALONG[option].format()
        brought.add_argument(f'--{option}', nargs='?', const='true', type=parse_switch, metavar='BOOL', help=about)
    brought.add_argument('--slim_config', metavar='FILE', help='PaddleDetection: the configuration of distillation')
    about = 'device=cuda, or cpu'
    brought.add_argument('--use_gpu', nargs='?', const='true', type=parse_switch, metavar='BOOL', help=about)
    brought.add_argument('--device', choices=('gpu', 'cuda', 'cpu'), help='device=cuda, or cpu')
    for option, reason in TAKEN_ALONG.items():
        action = 'store' if option in ('vdl_log_dir', 'amp_level', 'profiler_options', 'output_op') else 'store_true'
        brought.add_argument(f'--{option}', action=action, help=f'nothing: {reason}')
    return parser


def translate_options(given: argparse.Namespace, dialect: Dialect | None, assigned: Assignments) -> Assignments:
    """Translate options of the Paddle projects to assignments, with the meaning of the project of the configuration."""
    if dialect and dialect.evaluates_on_request and not given.eval:
        assigned = [('evaluate.enabled=false', f'without --do_eval or --eval, as in {dialect.project}'), *assigned]
    meanings = {option: (assignment,) for option, assignment in BROUGHT_ALONG.items()} | (
        dict(dialect.options) if dialect else {}
    )
    for option in BROUGHT_ALONG:
        value = getattr(given, option)
        if value in (None, False):
            continue
        origin = f'--{option}' if value is True else f'--{option} {value}'
        chosen = SWITCHED_OFF.get(option, ()) if value == 'false' else meanings[option]
        assigned = [*assigned, *((assignment.format(value), origin) for assignment in chosen)]
    if given.use_gpu is not None:
        wish = 'cuda' if given.use_gpu == 'true' else 'cpu'
        assigned = [*assigned, (f'device={wish}', f'--use_gpu {given.use_gpu}')]
    if given.device is not None:
        assigned = [*assigned, (f'device={given.device.replace("gpu", "cuda")}', f'--device {given.device}')]
    return assigned
