"""Options of `phalanx predict`, and of a run followed by other words. Nothing here loads torch, so `--help` does not wait."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from phalanx.cli.options import WEIGHTS
from phalanx.config.arguments import Assignments, Parser, add_assignments, add_offline, collect_assignments
from phalanx.system.paths import parse_path, parse_place

FORMS = {  # of --save, by family
    'segmentation': 'masks, json, pictures, labelme',
    'detection': 'json, txt, crops, pictures, voc, labelme',
    'recognition': 'txt, json, pictures',
    'table': 'html, json, crops, pictures',
    'text_detection': 'json, txt, crops, pictures, labelme, ppocrlabel',
}
MODEL = 'a run folder, an exported file (.onnx, .xml), or a name that `phalanx weights` lists'
PREDICT_EXAMPLES = (
    'phalanx predict runs/mine photos --out results',
    'phalanx predict runs/mine photos clip.mp4 --out results --threshold 0.5 --set device=cpu',
    'phalanx predict runs/mine photos --out results --save txt,crops # labels as YOLO has them, and the objects cut out',
    'phalanx predict runs/mine photos --out labels --save labelme     # to correct, in labelme or X-AnyLabeling',
    'phalanx predict runs/tables scans --rec PP-OCRv6_rec_small       # texts of cells, too',
    'find photos -newer seen | phalanx predict runs/mine - --out results',
    'phalanx predict runs/mine 0 --out results                        # camera 0, until Ctrl-C',
    'phalanx predict mine.yml a.jpg b.jpg --weights w.pdparams --out results',
    'phalanx predict ppyoloe_plus_crn_s_80e_coco photos --weights ppyoloe_plus_crn_s_80e_coco --out results',
)


def predict_parser() -> Parser:
    parser = Parser('phalanx predict', 'Writes the results of a trained model for images and videos.', PREDICT_EXAMPLES)
    what = 'files, folders, patterns in quotes; `-` reads paths from standard input, a number is a camera'
    add_run(parser, 'RUN IMAGE [IMAGE ...]', f'a run folder, or a recipe with --weights; then {what}')
    parser.add_argument('--infer_img', '--infer_dir', '--image_path', dest='images', metavar='IMAGE', help='an image or folder')
    out = 'the folder to write to (default: results)'
    names = ('--out', '--save_dir', '--output_dir')
    parser.add_argument(*names, dest='out', type=parse_path, metavar='DIR', default=Path('results'), help=out)
    parser.add_argument('--weights', '--model_path', type=parse_place, metavar='WEIGHTS', help=WEIGHTS)
    forms = '; '.join(f'{family}: {ways}' for family, ways in FORMS.items())
    parser.add_argument('--save', metavar='A,B,..', help=f'which files (default: the usual ones); {forms}')
    shown = 'draw, cut out and list as txt, voc or labelme objects of this score or more (shown_from)'
    parser.add_argument('--threshold', type=float, metavar='SCORE', help=shown)
    cells = 'for tables: reads the texts of cells: '
    parser.add_argument('--rec', metavar='MODEL', help=f'{cells}{MODEL}')
    add_offline(parser)
    add_assignments(parser)
    return parser


def add_run(parser: Parser, words: str, about: str) -> None:
    """Add a run folder or recipe and what follows it; the originals name it by an option."""
    parser.add_argument('words', metavar=words, nargs='*', help=about)
    parser.add_argument('-c', '--config', '--cfg', dest='config', metavar='RECIPE', help='the recipe')


def parse_run(parser: Parser, words: Sequence[str]) -> tuple[argparse.Namespace, str, list[str], Assignments]:
    """Options, run, the words after it, and assignments. Weights that an original configuration is given count as --weights."""
    given = parser.parse_intermixed_args(words)
    assigned, rest = collect_assignments(given), list(given.words)
    if given.config is None and not rest:
        parser.error('the run is missing: give a run folder, or a recipe with --weights')
    run = given.config or rest.pop(0)
    return given, run, rest, assigned
