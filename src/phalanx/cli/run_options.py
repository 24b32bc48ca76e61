"""Options of the commands about run folders. Nothing here loads torch, so `--help` does not wait for it."""

from phalanx.config.arguments import Parser, add_assignments, add_json
from phalanx.system.paths import parse_path


def report_parser() -> Parser:
    about = 'Builds report.html of a run folder from its files so far.'
    parser = Parser('phalanx report', about, ['phalanx report runs/pp_liteseg_digits'])
    parser.add_argument('run', metavar='RUN', type=parse_path, help='a run folder')
    page = 'the HTML page to write (default: report.html in the run folder)'
    parser.add_argument('--page', type=parse_path, metavar='FILE', help=page)
    return parser


def runs_parser() -> Parser:
    about = 'Lists the runs in a folder: recipe, differences between runs of one recipe, best metric, state, time, host.'
    parser = Parser('phalanx runs', about, ['phalanx runs', 'phalanx runs experiments --json'])
    parser.add_argument('folder', metavar='FOLDER', nargs='?', default='runs', type=parse_path, help='(default: runs)')
    add_json(parser)
    return parser


def compare_parser() -> Parser:
    about = (
        'Compares runs on one page: curves, keys of the recipes, and the best weights of each on the same evaluation images, '
        'with intervals and the images that differ most.'
    )
    examples = (
        'phalanx compare runs/a runs/b',
        'phalanx compare runs/a runs/b runs/c --set data.root=DIR     # the others next to the first',
        'phalanx compare runs/a runs/b --no_eval                      # curves and recipes alone',
    )
    parser = Parser('phalanx compare', about, examples)
    parser.add_argument('first', metavar='RUN', type=parse_path, help='the run folder that the others are compared with')
    parser.add_argument('others', metavar='RUN', nargs='+', type=parse_path, help='other run folders')
    page = 'the page (default: compare.html)'
    parser.add_argument('--page', type=parse_path, metavar='FILE', default=parse_path('compare.html'), help=page)
    parser.add_argument('--no_eval', action='store_true', help='do not evaluate; needs neither data nor weights')
    resamples = 'resamples of the images, for the intervals (default: 200; 0: no intervals)'
    parser.add_argument('--resamples', type=int, metavar='N', default=200, help=resamples)
    add_assignments(parser, 'overrides a key of all recipes')
    add_json(parser)
    return parser
