"""Options of the commands about run folders. Nothing here loads torch, so `--help` does not wait for it."""

from phalanx.config.arguments import Parser, add_json
from phalanx.system.paths import parse_path


def report_parser() -> Parser:
    about = 'Builds report.html of a run folder from its files so far.'
    parser = Parser('phalanx report', about, ['phalanx report runs/pp_liteseg_digits'])
    parser.add_argument('run', metavar='RUN', type=parse_path, help='a run folder')
    return parser


def runs_parser() -> Parser:
    about = 'Lists the runs in a folder: recipe, differences between runs of one recipe, best metric, state, time, host.'
    parser = Parser('phalanx runs', about, ['phalanx runs', 'phalanx runs experiments --json'])
    parser.add_argument('folder', metavar='FOLDER', nargs='?', default='runs', type=parse_path, help='(default: runs)')
    add_json(parser)
    return parser
