"""Options of `phalanx tune`. Nothing here loads torch, so `--help` does not wait for it."""

from phalanx.config.arguments import Parser, add_json, add_offline, add_recipe
from phalanx.system.paths import parse_path

EXAMPLES = (
    'phalanx tune mine.yml --search optimizer.lr=log:1e-4..1e-1 --trials 20',
    'phalanx tune mine.yml --search optimizer.lr=log:1e-4..1e-1 optimizer.name=sgd,adamw --trials 30 --set train.epochs=10',
    'phalanx tune mine.yml --search optimizer.lr=log:1e-4..1e-1 --trials 40 --gpus 0,1,2,3 --parallel 4   # one device each',
    'phalanx tune mine.yml --lr_range 1e-6..1                     # loss over learning rate, from one short run',
)


def tune_parser() -> Parser:
    about = 'Searches settings of a recipe: each trial is a training of its own, chosen by Optuna.'
    parser = Parser('phalanx tune', about, EXAMPLES)
    add_recipe(parser)
    search = 'KEY=LOW..HIGH, KEY=log:LOW..HIGH or KEY=A,B,C (A|B|C for values with commas)'
    parser.add_argument('--search', nargs='+', action='extend', default=[], metavar='KEY=VALUES', help=search)
    parser.add_argument('--trials', type=int, default=20, metavar='N', help='number of trials (default: 20)')
    parser.add_argument(
        *('--save_dir', '-s'), type=parse_path, metavar='DIR', help='folder of the search (default: runs/<recipe name>-search)'
    )
    parser.add_argument('--gpus', metavar='0,1', help='devices to train on; shared out to parallel trials')
    parser.add_argument('--nproc_per_node', type=int, metavar='N', help='ranks per trial')
    parser.add_argument('--parallel', type=int, default=1, metavar='N', help='trials at a time (default: 1)')
    parser.add_argument('--seed', type=int, default=0, metavar='N', help='of the choice of settings (default: 0)')
    parser.add_argument('--no_prune', action='store_true', help='let every trial train to its end')
    parser.add_argument('--lr_range', metavar='LOW..HIGH', help='instead of a search, one run with a rising learning rate')
    parser.add_argument('--steps', type=int, default=200, metavar='N', help='steps of --lr_range (default: 200)')
    add_offline(parser)
    add_json(parser)
    return parser
