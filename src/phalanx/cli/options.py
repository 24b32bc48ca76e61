"""Options of `phalanx eval`, `config`, `weights` and `convert`. Nothing here loads torch, so `--help` does not wait for it."""

from phalanx.config.arguments import Parser, add_assignments, add_command, add_json, add_offline, add_recipe_words
from phalanx.launch.flags import add_flags
from phalanx.system.paths import parse_path, parse_place

WEIGHTS = 'a checkpoint, run folder, file, https:// or hf:// address, or a name that `phalanx weights` lists'
EVAL_EXAMPLES = (
    'phalanx eval runs/mine',
    'phalanx eval runs/mine --set data.eval=test.txt --json',
    'phalanx eval runs/mine --page eval.html                         # with pictures of the worst samples',
    'phalanx eval mine.yml --weights model.pdparams',
    'phalanx eval runs/mine/model.onnx                               # the exported file, beside the weights of its run',
)
CONFIG_EXAMPLES = (
    'phalanx config                                # the shipped recipes',
    'phalanx config pp_liteseg_digits              # one of them, with all defaults',
    'phalanx config mine.yml --set train.steps=10  # check your own',
    'phalanx config mine.yml --explain             # every key: its type, its default and its meaning',
    'phalanx config mine.yml --explain transforms  # one key, with its choices',
    'phalanx config --explain train.init_from      # without a recipe: in every family that has it',
)
WEIGHTS_EXAMPLES = (
    'phalanx weights',
    'phalanx weights get ppyoloe_plus_crn_s_80e_coco',
    'phalanx weights get hf://OWNER/REPO@REVISION/model.safetensors',
    'phalanx train mine.yml --set train.init_from=ppyoloe_plus_crn_s_80e_coco    # fetches it too, if missing',
)
CONVERT_EXAMPLES = (
    'phalanx convert recipe configs/pp_liteseg/their.yml --out mine.yml',
    'phalanx convert weights model.pdparams --recipe mine.yml --out model.safetensors',
)


def eval_parser() -> Parser:
    about = 'Evaluates the weights of a run folder, or those of --weights with a recipe.'
    parser = Parser('phalanx eval', about, EVAL_EXAMPLES)
    add_recipe_words(parser)
    parser.add_argument('--weights', type=parse_place, metavar='WEIGHTS', help=f'{WEIGHTS} (default: the best of the run)')
    add_offline(parser)
    parser.add_argument(
        '--data', metavar='RUN', help='for MODEL.onnx: the run or recipe of its data (default: the folder it is in)'
    )
    parser.add_argument('--raw', action='store_true', help='the weights of the run as trained, not their EMA')
    page = 'write a page: metrics, PR curves, confusion matrix, worst samples'
    parser.add_argument('--page', type=parse_path, metavar='FILE', help=page)
    add_json(parser)
    add_flags(parser)
    return parser


def config_parser() -> Parser:
    about = 'Prints the resolved recipe, each value followed by where it was written; without a recipe, lists the shipped ones.'
    parser = Parser('phalanx config', about, CONFIG_EXAMPLES)
    add_recipe_words(parser)
    add_json(parser)
    parser.add_argument('--explain', metavar='KEY', nargs='?', const='', help='print the reference of a key, or of all keys')
    return parser


def weights_parser() -> Parser:
    about = 'Lists the names that train.init_from accepts, and fetches their weights.'
    parser = Parser('phalanx weights', about, WEIGHTS_EXAMPLES)
    commands = parser.add_subparsers(dest='command')
    about = 'list the names: network, training data, published figure, licence (with --json also the address)'
    listing = add_command(commands, 'list', about)
    add_json(listing)
    getting = add_command(commands, 'get', 'fetch weights into the cache, and print where they are')
    getting.add_argument('names', metavar='NAME', nargs='+', help='a name of the list, an https:// or hf:// address')
    add_offline(getting)
    return parser


def convert_parser() -> Parser:
    about = 'Converts a configuration or weights of a Paddle project to our files.'
    parser = Parser('phalanx convert', about, CONVERT_EXAMPLES)
    commands = parser.add_subparsers(dest='command', required=True)
    recipe = add_command(commands, 'recipe', 'write a configuration of a Paddle project as a recipe')
    recipe.add_argument('file', metavar='FILE', help='the configuration')
    recipe.add_argument('--out', type=parse_path, metavar='FILE', help='where to write it (default: standard output)')
    add_assignments(recipe)
    weights = add_command(commands, 'weights', 'write weights of a Paddle project as .safetensors')
    weights.add_argument('file', metavar='FILE', type=parse_path, help='a .pdparams, or a .tar or .tar.gz that holds one')
    which = weights.add_mutually_exclusive_group(required=True)
    which.add_argument('--recipe', metavar='RECIPE', help='the recipe (ours or theirs) of their network')
    which.add_argument('--model', metavar='NAME', help='the name of that network')
    weights.add_argument(
        '--num_classes', type=int, metavar='N', help='of the network (default: from the recipe, or its data set)'
    )
    add_assignments(weights, 'sets a key of the recipe, or an option of the network')
    weights.add_argument('--out', type=parse_path, required=True, metavar='FILE', help='the .safetensors file to write')
    return parser
