"""Options of `phalanx new` and `phalanx data`. Nothing here loads torch, so `--help` does not wait for it."""

from phalanx.config.arguments import Parser, add_json, add_recipe
from phalanx.curation.prepare.command import add_kinds
from phalanx.curation.prepare.formats import FORMATS
from phalanx.curation.prepare.samples import FAMILIES
from phalanx.system.paths import parse_path

EXAMPLES = (
    'phalanx new photos                            # inspects it and writes ./photos_phalanx/photos.yml',
    'phalanx new photos --family segmentation      # outlines as classes of pixels, not as boxes',
    'phalanx new photos --minutes 30               # as many steps as this node does in half an hour',
    'phalanx new scans --groups folder             # images of one folder stay on one side of the split',
    'phalanx new export.zip --out cells            # an archive is unpacked into ./cells',
)


def new_parser() -> Parser:
    parser = Parser('phalanx new', 'Writes a recipe for a folder of images and their annotations.', EXAMPLES)
    parser.add_argument('folder', metavar='DIR', type=parse_path, help='the folder, or a zip archive; nothing in it is changed')
    parser.add_argument('--family', choices=FAMILIES, help='what to train (default: what fits the annotations best)')
    parser.add_argument('--format', choices=tuple(FORMATS), help='the annotations to read, if there are several kinds')
    masks = "the folder of the masks, or a pattern of their names such as '*_seg.png', if `new` does not find them"
    parser.add_argument('--masks', metavar='FOLDER', help=masks)
    parser.add_argument('--images', metavar='FOLDER', help='the folder of the images, if others lie beside them')
    parser.add_argument('--labels', metavar='FOLDER', help='the folder of the annotations, if `new` does not find or know it')
    parser.add_argument(
        '--out', type=parse_path, metavar='FOLDER', help='where to write (default: NAME_phalanx in this folder)'
    )
    parser.add_argument(
        '--val', type=float, metavar='SHARE', help='share of the images to evaluate with (default: 0.2 or less)'
    )
    parser.add_argument('--groups', metavar='GROUPS', help='what stays together: `folder`, or a regular expression on paths')
    parser.add_argument('--seed', type=int, default=0, metavar='N', help='seed of the random split (0)')
    parser.add_argument('--minutes', type=float, metavar='N', help='time limit of the training on this node')
    of_texts = 'published weights to begin with, of a detector or for lines of text, pages and tables (docs/own-data.md)'
    parser.add_argument('--weights', type=parse_path, metavar='FILE', help=of_texts)
    kept = 'keep all characters that the published weights read, not only those of the training texts'
    parser.add_argument('--keep_characters', action='store_true', help=kept)
    parser.add_argument(
        '--no_trial', action='store_true', help='skip the trial of the recipe; --minutes still times a few steps'
    )
    return parser


def data_parser() -> Parser:
    parser = Parser('phalanx data')
    commands = parser.add_subparsers(dest='command', required=True)
    checking = commands.add_parser('check', help='read all of a data set: balance, sizes, bad files, duplicates')
    add_recipe(checking)
    checking.add_argument('--limit', type=int, metavar='N', help='read only N samples of each split, evenly spread')
    checking.add_argument('--workers', type=int, metavar='N', help='reading processes (default: one per core, at most 8)')
    checking.add_argument(
        '--page', type=parse_path, metavar='FILE', help='the HTML page to write (default: data.html in the run folder)'
    )
    add_json(checking)
    preparing = commands.add_parser('prepare', help='make a data set from the files of annotation tools')
    add_kinds(preparing)
    rewriting = commands.add_parser('rewrite', help='write the data set of a recipe in another format')
    add_recipe(rewriting)
    rewriting.add_argument('--as', dest='form', metavar='FORMAT', required=True, help='boxes: coco, voc, yolo; texts: lmdb')
    new = 'the folder to create; it must not exist yet'
    rewriting.add_argument('--out', type=parse_path, metavar='DIR', required=True, help=new)
    return parser
