"""`phalanx data prepare KIND`: kinds of annotations, their options, and the data sets made of them."""

import argparse
import contextlib
import json
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from phalanx.config.arguments import add_command
from phalanx.curation.prepare.coco import read_coco
from phalanx.curation.prepare.colours import pair_masks, parse_colours, read_colour_file
from phalanx.curation.prepare.dealing import deal, split_samples
from phalanx.curation.prepare.formats import FORMATS, choose_format, find_annotations, keep_usable
from phalanx.curation.prepare.labelme import read_labelme
from phalanx.curation.prepare.mask_values import Meaning, name_colours
from phalanx.curation.prepare.samples import FAMILIES, SPLIT_NAMES, AnnotationSet, Family, LeftOut, SplitName
from phalanx.curation.prepare.splits import listed_splits, settle_splits
from phalanx.curation.prepare.targets import find_meaning, write_copies
from phalanx.curation.prepare.tree import Tree
from phalanx.curation.prepare.unpack import fetch_data
from phalanx.data.checks import AnnotationError
from phalanx.system.buckets import StorePath
from phalanx.system.errors import RequestError, describe_error
from phalanx.system.paths import normalise_path, parse_path

SHOWN = 50  # problems that are listed


class Kind(NamedTuple):
    """Kind of annotations: description, options and writer."""

    about: str
    add_options: Callable[[argparse.ArgumentParser], None]
    make: Callable[[argparse.Namespace], int]  # the exit status; raises RequestError


def add_kinds(parser: argparse.ArgumentParser) -> None:
    kinds = parser.add_subparsers(dest='kind', required=True)
    for name, kind in KINDS.items():
        own = add_command(kinds, name, kind.about)
        kind.add_options(own)
        own.add_argument(
            '--out', type=parse_path, required=True, metavar='DIR', help='the folder to make; it must not be there yet'
        )
        shares = 'shares of train, val and, if there is a third, test (default: as the annotations say, else 0.8,0.2)'
        own.add_argument('--split', metavar='SHARES', help=shares)
        own.add_argument('--seed', type=int, metavar='N', default=0, help='of the random choice which image belongs to which')
        own.add_argument('--skip', action='store_true', help='leave out what cannot be used, instead of stopping')


def prepare(given: argparse.Namespace) -> int:
    """Return the exit status, 1 if annotations cannot be used. Raises RequestError."""
    if given.out.exists():
        raise RequestError(f'--out {given.out}: exists; give a new folder')
    for folder in (vars(given).get(name) for name in ('folder', 'masks', 'images')):
        if folder is not None and not folder.is_dir():
            raise RequestError(f'{folder}: there is no such folder')
    if isinstance(given.out, StorePath):
        raise RequestError(f'--out {given.out}: give a folder of this machine, and copy it to the bucket afterwards')
    with contextlib.ExitStack() as stack:
        for name, value in list(vars(given).items()):
            paths = value if name == 'files' else [value]
            if any(isinstance(path, StorePath) for path in paths):
                given.out.absolute().parent.mkdir(parents=True, exist_ok=True)
                aside = TemporaryDirectory(dir=given.out.absolute().parent, prefix=f'.{given.out.name}-fetched-')
                place = stack.enter_context(aside)
                fetched = [fetch_data(path, Path(place, str(number))) for number, path in enumerate(paths)]
                setattr(given, name, fetched if name == 'files' else fetched[0])
        return KINDS[given.kind].make(given)


def parse_shares(text: str) -> list[float]:
    """Parse the shares of the splits. Raises RequestError."""
    try:
        shares = [float(word) for word in text.split(',')]
    except ValueError:
        shares = []
    if not 2 <= len(shares) <= len(SPLIT_NAMES) or abs(sum(shares) - 1) > 1e-6 or not all(0 < share < 1 for share in shares):
        raise RequestError(f'--split {text}: give two or three shares that add up to 1, as in 0.8,0.2')
    return shares


def _labelme_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('folder', type=parse_path, help='the folder with the JSON files; their images lie in it too')
    parser.add_argument('--classes', nargs='+', metavar='NAME', help='the classes after the background (default: all labels)')
    _family_options(parser)


def _from_labelme(given: argparse.Namespace) -> int:
    if given.family not in (None, 'segmentation') or given.groups:
        if given.classes:
            raise RequestError('--classes: is for label maps without --groups; leave it out')
        return _from_folder(given)
    return _label_maps(given, read_labelme(given.folder, given.classes), given.folder)


def _coco_options(parser: argparse.ArgumentParser) -> None:
    about = 'the JSON file, or those of a data set with one for each split or class; or a folder with files and images'
    parser.add_argument('files', type=parse_path, nargs='+', help=about)
    parser.add_argument('--images', type=parse_path, metavar='DIR', help='the folder that their file names are relative to')
    _family_options(parser)


def _from_coco(given: argparse.Namespace) -> int:
    if len(given.files) == 1 and given.files[0].is_dir() and given.images is None:
        given.folder = given.files[0]
        return _from_folder(given)
    if given.images is None:
        raise RequestError('--images: is needed, the folder that the file names in the JSON file are relative to')
    outlined = given.family in (None, 'segmentation') and not given.groups
    root = given.images if outlined else normalise_path(given.images)
    try:
        found = read_coco(given.files, root, outlined=outlined)
    except AnnotationError as error:
        raise RequestError(str(error)) from None
    if outlined:
        return _label_maps(given, found, root)
    held = {'coco': keep_usable(found, Tree(root), {})}
    return _write_chosen(given, held, root, f'{given.files[0]}: holds nothing that can be used', found.left_out)


def _colours_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('masks', type=parse_path, help='the folder with the label maps in colours')
    parser.add_argument(
        '--images', type=parse_path, metavar='DIR', required=True, help='the folder with the images, named as their label maps'
    )
    parser.set_defaults(groups=None)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument('--colours', '--colors', type=parse_path, metavar='FILE', help='a file with lines `red green blue name`')
    which.add_argument('--classes', nargs='+', metavar='NAME=#RRGGBB', help='the colours; that of the name void is not a class')


def _from_colours(given: argparse.Namespace) -> int:
    try:
        colours = read_colour_file(given.colours) if given.colours else parse_colours(given.classes)
    except (OSError, ValueError) as error:
        raise RequestError(str(error)) from None
    return _label_maps(given, pair_masks(given.masks, given.images), given.images, name_colours(colours))


def _folder_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('folder', type=parse_path, help='the folder with the images and their annotations')
    _family_options(parser)


def _family_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--family', choices=FAMILIES, help='what the data set is for (default: what the annotations suit best)')
    parser.add_argument('--groups', metavar='GROUPS', help='what stays together: `folder`, or a regular expression on paths')


def _from_folder(given: argparse.Namespace) -> int:
    """Prepare any format that `phalanx new` reads, for any family, with copies of the images."""
    tree = Tree(normalise_path(given.folder))
    refused: dict[str, LeftOut] = {}
    held = find_annotations(tree, [given.kind], refused)
    reasons = [problem for found in held.values() for problem in found.left_out] + refused.get(given.kind, [])
    _print_problems([f'left out: {problem}' for problem in tree.unreadable])
    nothing = f'{given.folder}: holds nothing of the format {given.kind} that can be used'
    return _write_chosen(given, held, tree.root, nothing, reasons)


def _label_maps(given: argparse.Namespace, found: AnnotationSet, root: Path, meaning: Meaning | None = None) -> int:
    """Write label maps with copies of the images below `root`, split as lists or folders of images say."""
    tree = Tree(normalise_path(root))
    listed, own = listed_splits(tree), defaultdict[Path, set[SplitName]](set)
    for sample in found.samples:
        own[sample.image].add(sample.split or tree.split_of(normalise_path(sample.image)))
    splits, notes = settle_splits({image: listed.get(normalise_path(image)) or own[image] for image in own})
    of_image = {sample.image: sample for sample in found.samples}
    found.samples = [replace(sample, split=split) for image, sample in of_image.items() for split in splits[image]]
    found.notes += notes
    if not found.samples and not found.left_out:
        raise RequestError('there is nothing to prepare: no annotation was found')
    return _write_copies(given, found, 'segmentation', root, meaning)


def _write_chosen(
    given: argparse.Namespace, held: dict[str, AnnotationSet], root: Path, nothing: str, reasons: Sequence[str]
) -> int:
    """Write the data set of the chosen format; without any, the message is `nothing` and the `reasons`."""
    picked = choose_format(held, given.family)
    if picked is None:
        raise RequestError('\n'.join([nothing, *reasons[:SHOWN]]))
    _, found, family = picked
    return _write_copies(given, found, family, root)


def _write_copies(
    given: argparse.Namespace, found: AnnotationSet, family: Family, root: Path, meaning: Meaning | None = None
) -> int:
    """Write the data set with copies of the images below `root`, and report the result."""
    shares = parse_shares(given.split) if given.split else None
    # a copy with fewer samples than the source must be asked for (--skip)
    if found.left_out and not (given.skip and found.samples):
        return _report_problems(found.left_out)
    try:
        # split, then write all files to a temporary folder that is renamed at the end
        if shares:
            lists = dict(zip(SPLIT_NAMES, deal(found.samples, shares, given.seed, given.groups), strict=False))
            how = f'at random (seed {given.seed})'
        else:
            lists, how = split_samples(found.samples, None, given.seed, given.groups)
        meaning = meaning or find_meaning(family, found)
        written = write_copies(family, found, lists, given.out, root, meaning, skip=given.skip)
    except (AnnotationError, ValueError) as error:
        raise RequestError(str(error)) from None
    except OSError as error:
        print(f'{given.out} cannot be written: {describe_error(error)}', file=sys.stderr)
        return 1
    # what is missing, what was written, and the `data` of a recipe
    problems = [*found.left_out, *written.left_out]
    if not given.out.exists():
        return _report_problems(problems)
    _print_problems([f'left out: {problem}' for problem in problems])
    _print_problems([f'note: {note}' for note in (*found.notes, *written.notes)])
    print(
        f'{given.out}: {family}, '
        + ', '.join(f'{count} in {split}' for split, count in written.counts.items())
        + f'; split {how}'
    )
    print('in a recipe: data: ' + json.dumps(written.data | {'root': str(given.out)}, ensure_ascii=False))
    return 0


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems[:SHOWN]:
        print(problem, file=sys.stderr)
    if len(problems) > SHOWN:
        print(f'and {len(problems) - SHOWN} more', file=sys.stderr)


def _report_problems(problems: Sequence[str]) -> int:
    _print_problems(problems)
    print(f'{len(problems)} problems, nothing was made; fix them, or leave them out with --skip', file=sys.stderr)
    return 1


OWN = {
    'labelme': Kind('label maps of labelme polygons, or their boxes', _labelme_options, _from_labelme),
    'coco': Kind('label maps of COCO instances', _coco_options, _from_coco),
    'colours': Kind('label maps of masks in which each class has a colour', _colours_options, _from_colours),
}
KINDS = OWN | {name: Kind(each.about, _folder_options, _from_folder) for name, each in FORMATS.items() if name not in OWN}
