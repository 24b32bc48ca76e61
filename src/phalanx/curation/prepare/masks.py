"""Masks: one image for each image, in a folder of their own or called `NAME_mask.png`."""

import re
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

from phalanx.curation.prepare.class_files import find_class_file
from phalanx.curation.prepare.samples import AnnotationSet, Sample
from phalanx.curation.prepare.tree import Tree

WORDS = (
    *('mask', 'masks', 'label', 'labels', 'annotation', 'annotations', 'ann', 'anns', 'annot', 'annots'),
    *('gt', 'groundtruth', 'segmentation', 'seg', 'semantic', 'trimaps'),
)
FOR_PEOPLE = {
    'visualization',
    'viz',
    'vis',
    'overlay',
    'overlays',
    'object',
    'instance',
    'instances',
    'colored',
    'coloured',
} | {'color', 'colour', 'rgb', 'polygons'}
CITYSCAPES = re.compile(r'_(leftimg8bit|gt(?:fine|coarse)_(label(?:train)?ids|color|instance(?:train)?ids))$')
IMAGE_WORDS = {'image', 'images', 'img', 'imgs'}


def find_masks(tree: Tree, found: AnnotationSet) -> None:
    """Add pairs of images and masks; masks lie in a folder `masks` (labels, annotations, ...) or have names that end so."""
    of_masks = {path: is_mask(path, tree) for path in tree.images}
    of_stem = defaultdict(list)
    for path in tree.images:
        if not of_masks[path]:
            of_stem[CITYSCAPES.sub('', path.stem.lower())].append(path)
    for mask in tree.images:
        if of_masks[mask]:
            stem = (own_stem(mask, tree) or mask.stem).lower()
            names = stem, _without_word(stem), CITYSCAPES.sub('', stem), re.sub(r'[_. -][a-z]+$', '', stem)  # `a_class`
            known = next((of_stem[name] for name in names if name in of_stem), [])
            if not known:
                found.left_out.append(f'{mask}: there is no image that is named like this mask')
                continue
            image = max(known, key=lambda path: (not _is_aside(path, tree), len(set(path.parts) & set(mask.parts))))
            found.samples.append(Sample(image, tree.split_of(image), mask=mask))
    for path in [path for path in tree.images if not of_masks[path]]:  # `a_mask_1`: another one of the image of `a_mask`
        if match := re.fullmatch(rf'(.+[_. -](?:{"|".join(WORDS)}))[_. -]?\d+', path.stem.lower()):
            beside = (one for one in found.samples if one.mask and one.mask.parent == path.parent)
            found.samples += [replace(one, mask=path) for one in beside if one.mask and one.mask.stem.lower() == match[1]]
    if tree.masks and not any(of_masks.values()):
        found.left_out.append(f'--masks {tree.masks}: no image lies in such a folder, or has such a name')
    # Exporters write masks of classes, of instances, and pictures to look at, side by side; those of classes count.
    rank = {sample.mask: _rank(sample, tree) for sample in found.samples}
    least = defaultdict[Path, int](lambda: 2)
    for sample in found.samples:
        least[sample.image] = min(least[sample.image], rank[sample.mask])
    found.samples = [sample for sample in found.samples if rank[sample.mask] == least[sample.image]]
    if found.samples:
        found.classes_from = find_class_file(tree)


def is_mask(path: Path, tree: Tree) -> bool:
    """True for the masks that `tree.masks` names, or else those in a folder or with a name that says so."""
    if tree.masks:
        return own_stem(path, tree) is not None
    folders = [_words(folder) for folder in path.relative_to(tree.root).parts[:-1]]
    words = {word for folder in folders for word in folder}
    by_folder = bool(words & {*WORDS}) and not words & IMAGE_WORDS
    both = bool(folders) and bool(folders[-1] & {*WORDS}) and bool(folders[-1] & IMAGE_WORDS)  # `mask_images`
    stem = path.stem.lower()
    return by_folder or both or _without_word(stem) != stem


def own_stem(path: Path, tree: Tree) -> str | None:
    """The name of the image that `path` is the mask of by `tree.masks`, a folder or a pattern `*_l.png`; None if it is none."""
    relative, wanted = path.relative_to(tree.root), tree.masks.strip('/')
    if '*' not in wanted:
        return path.stem if tree.is_below(path, wanted) else None
    before, _, behind = Path(wanted).name.partition('*')
    is_there = relative.match(wanted) and len(path.name) > len(before) + len(behind)
    return path.name[len(before) : len(path.name) - len(behind)] if is_there else None


def _rank(sample: Sample, tree: Tree) -> int:
    """0 for masks of classes, 1 for Cityscapes' numbers before they became classes, 2 for instances and pictures to look at."""
    mask = sample.mask or sample.image
    ending = CITYSCAPES.search(mask.stem.lower())
    if _is_aside(mask, tree) or (ending and 'label' not in ending[1]):
        return 2
    return 1 if ending and 'train' not in ending[1] else 0


def _is_aside(path: Path, tree: Tree) -> bool:
    """True below a folder of instances or of pictures to look at."""
    return any(_words(part) & FOR_PEOPLE for part in path.relative_to(tree.root).parts[:-1])


def _words(folder: str) -> set[str]:
    """`Ground_Truth`, `GroundTruth` -> {'groundtruth'}, `mask_images` -> {'mask', 'images'}, `trainannot` -> {'annot'}."""
    spaced = re.sub(r'([a-z])([A-Z])', r'\1 \2', folder).lower()
    plain = re.sub(r'^(train|val|test)(?=annot)', '', re.sub(r'ground[^a-z]*truth', 'groundtruth', spaced))
    return set(re.split(r'[^a-z]+', plain))


def _without_word(stem: str) -> str:
    """`a_mask` -> `a`."""
    return re.sub(rf'[_. -]({"|".join(WORDS)}|l)$', '', stem)
