"""Names of images that are in pairs or hold texts, for the message of `phalanx new` where it finds no annotation to read."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

from phalanx.curation.prepare.samples import Family
from phalanx.curation.prepare.tree import IMAGES, Tree
from phalanx.data.checks import AnnotationError, open_image, shorten

READ = 5  # images per folder that are looked at
FEW = 64  # colours; a photograph has more


def describe_near_misses(tree: Tree, family: Family | None) -> list[str]:
    """Lines about names of files that are in pairs, or hold texts: what they look like, and what takes them for `family`."""
    lines = _describe_pairs(tree) if family in (None, 'segmentation') else []
    return lines + (_named_texts(tree) if family in (None, 'recognition') else []) + _other_files(tree)


def _describe_pairs(tree: Tree) -> list[str]:
    """Lines about folders, or endings of names, that pair images, with the option that takes them for masks."""
    groups = _by_folder(tree.images)
    lines = []
    for name, own in groups.items():
        for other_name, other in groups.items():
            common = own.keys() & other.keys()
            if name == other_name or len(common) < max(2, 0.8 * min(len(own), len(other))):
                continue
            looks, other_looks = (_describe_colours([files[stem] for stem in sorted(common)]) for files in (own, other))
            if not looks.endswith('colours') and other_looks.endswith('colours'):
                lines.append(
                    f'{len(common)} images of {name} ({looks}) and {other_name} ({other_looks}) have equal names: '
                    f"if the latter are masks, add --masks '{other_name}'"
                )
    return lines


def _named_texts(tree: Tree) -> list[str]:
    """A line about names `TEXT_NUMBER` or `NUMBER_TEXT` of trdg."""
    names = [path.stem for path in tree.images if not path.stem.endswith(('_mask', '_boxes'))]
    for pattern in (r'(?P<text>.+)_(?P<number>\d+)', r'(?P<number>\d+)_(?P<text>.+)'):
        found = [match for name in names if (match := re.fullmatch(pattern, name))]
        is_count = len(found) > 1 and sorted(int(match['number']) for match in found) == [*range(len(names))]
        if is_count and 2 * len({match['text'] for match in found}) > len(found):
            example = shorten(found[0].string)
            return [
                f'{example}: if names hold texts, they lack characters such as , / ?; write labels.txt (trdg --name_format 2)'
            ]
    return []


def _by_folder(images: Sequence[Path]) -> dict[str, dict[str, Path]]:
    """Stem -> image, by folder, and by the ending `*_x.png` of names that go on where another's ends, or are the same."""
    groups = defaultdict[str, dict[str, Path]](dict)
    stems = Counter((path.parent, path.stem) for path in images)
    for path in images:
        cuts = (place for place in range(len(path.stem) - 1, 0, -1) if (path.parent, path.stem[:place]) in stems)
        cut = next(cuts, None)
        if stems[path.parent, path.stem] > 1:  # a.jpg beside a.png
            groups[f'*{path.suffix}'][str(path.with_suffix(''))] = path
        elif cut is None:
            groups[path.parent.name or '.'][path.stem] = path
        else:
            groups[f'*{path.name[cut:]}'][path.stem[:cut]] = path
    return groups


def _describe_colours(paths: Sequence[Path]) -> str:
    """`photographs`, or the median of the numbers of colours of the first few images."""
    counts = []
    for path in paths[:READ]:
        try:
            with open_image(path) as picture:
                pixels = np.asarray(picture.convert('RGB')).reshape(-1, 3)
        except AnnotationError as error:
            return str(error)
        counts.append(len(np.unique(pixels.astype(np.int32) @ (1 << 16, 1 << 8, 1))))
    usual = int(median(counts))
    return f'{usual} colours' if usual <= FEW else 'photographs'


def _other_files(tree: Tree) -> list[str]:
    """Endings of files that are named like the images, but are of no format."""
    stems = {path.stem for path in tree.images}
    endings = defaultdict[str, set[str]](set)
    for path in tree.files:
        stem, dot, ending = path.name.partition('.')
        if path.suffix.lower() not in IMAGES and stem in stems:
            endings[dot + ending].add(stem)
    return [
        f'{len(named)} files *{ending} are named like images' + (', --labels FOLDER takes them for labels' * (ending == '.txt'))
        for ending, named in endings.items()
        if len(named) >= max(2, len(stems) // 2)
    ]
