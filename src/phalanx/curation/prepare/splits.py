"""Splits that files name: lists of images, data.yaml of YOLO, obj.data of Darknet, ImageSets of Pascal VOC."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from phalanx.config.read import ConfigError, load_yaml
from phalanx.curation.prepare.samples import SPLIT_NAMES, SplitName
from phalanx.curation.prepare.tree import IMAGES, SPLITS, Tree, read_bytes, read_text
from phalanx.data.checks import AnnotationError

NAME = re.compile(rf'.+?({"|".join(map(re.escape, IMAGES))})(?=[\s,;]|$)', re.IGNORECASE)  # of an image, with blanks or not
Splits = Mapping[Path, Collection[SplitName]]  # of each image


def listed_splits(tree: Tree) -> Splits:
    """The splits of each image that a list or a settings file assigns; settings prevail over names of files."""
    named, referenced = defaultdict[Path, set[SplitName]](set), defaultdict[Path, set[SplitName]](set)
    for path in tree.having('.txt'):
        split = SPLITS.get(path.stem.lower().removeprefix('autosplit_'))  # a prefix of Ultralytics
        if split and not tree.has_stem(path.stem):  # else these are the labels of an image
            with tree.unreadable.catch():
                for image in _images_listed(path, tree):
                    named[image].add(split)
    with tree.unreadable.catch():
        places = [(where, SPLITS[key], *_images_of(value, tree)) for where, key, value in _references(tree)]
        certain = {image for _, _, images, is_whole in places for image in images if is_whole}
        for where, split, images, is_whole in places:
            if not images or (not is_whole and certain.intersection(images)):
                tree.unreadable.append(f'{where}: there is no such folder or list with images in it')
                continue
            for image in images:
                referenced[image].add(split)
    return named | referenced


def settle_splits(splits: Splits) -> tuple[dict[Path, tuple[SplitName, ...]], list[str]]:
    """The splits that each image is used in, and notes about those that share images.

    A validation or test set is kept out of the training set, as `val.txt` beside `trainval.txt`. But where two splits are the
    same images, their author has no others: those of training are evaluated, too, and those of the test are no third set.
    """
    train, val, test = ({image for image, own in splits.items() if split in own} for split in SPLIT_NAMES)
    found, notes = dict[Path, tuple[SplitName, ...]](), []
    if test and test in (train, val):
        notes.append(f'the test images are those of {"validation" if test == val else "training"}, so there is no test set')
        test = set[Path]()
    is_same = bool(train) and train == val
    if is_same:
        notes.append(
            'training and validation are given the same images, so the metrics tell what is learned by heart, unless --val 0.2 '
            'holds some out'
        )
    elif shared := len(train & (val | test)):
        notes.append(f'images of training that are validation or test images, too, and only used as these: {shared}')
    for image in splits:
        last: SplitName = 'test' if image in test else 'val' if image in val else 'train' if image in train else ''
        found[image] = ('train', 'val') if is_same and last == 'val' else (last,)
    return found, notes


def _references(tree: Tree) -> Iterator[tuple[str, str, str]]:
    """(beginning of a message, key, folder or list of images) of each settings file."""
    for path, settings in yaml_settings(tree):
        for key in settings.keys() & SPLITS.keys():
            value = settings[key].value
            for each in [one.value for one in value] if isinstance(value, list) else [value]:
                if isinstance(each, str):
                    yield f'{path}: {key}: {each}', key, each
    for path in tree.having('.data'):
        for line in read_text(path).splitlines():
            key, _, place = (part.strip() for part in line.partition('='))
            if key in SPLITS:
                yield f'{path}: {key}: {place}', key, place


def yaml_settings(tree: Tree) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The keys of each YAML file, as `phalanx.config.read.load_yaml` gives them.

    Raises AnnotationError for a file that cannot be read and has keys of data.yaml; other programs have YAML files, too.
    """
    for path in tree.having('.yaml', '.yml'):
        try:
            yield path, load_yaml(path, notes=[]).value
        except ConfigError as error:
            if re.search(rb'^(names|nc|kpt_shape)\s*:', read_bytes(path), re.MULTILINE):
                raise AnnotationError(str(error)) from None


def _images_of(place: str, tree: Tree) -> tuple[list[Path], bool]:
    """The images of a list or folder as somebody's settings name it: of those that end alike, the most alike is meant.

    Also whether all of its path below the root, or all of `place`, is alike.
    """
    parts = tuple(part for part in PurePosixPath(place.replace('\\', '/')).parts if part not in ('.', '..', '/'))

    def likeness(path: Path) -> int:
        own = path.relative_to(tree.root).parts
        return next((n for n in range(len(parts)) if own[-1 - n : len(own) - n] != parts[-1 - n : len(parts) - n]), len(parts))

    def is_whole(path: Path) -> bool:
        return likeness(path) in (len(parts), len(path.relative_to(tree.root).parts))

    if place.endswith('.txt'):
        best = max(tree.having('.txt'), key=likeness, default=None)
        return (_images_listed(best, tree), is_whole(best)) if best and likeness(best) else ([], False)
    folders = {folder for image in tree.images for folder in image.parents if folder.is_relative_to(tree.root)} - {tree.root}
    nearest = max(sorted(folders), key=likeness, default=None)
    if nearest is None or not likeness(nearest):
        return [], False
    return [image for image in tree.images if image.is_relative_to(nearest)], is_whole(nearest)


def _images_listed(path: Path, tree: Tree) -> list[Path]:
    """The images at the beginnings of the lines of a list; none where most lines do not begin with one."""
    images, lines = [], [line.strip() for line in read_text(path).splitlines() if line.strip()]
    for line in lines:
        image = NAME.match(line)
        names = (line, image[0] if image else '', line.split()[0])
        known = next((name for name in names if tree.has_image(name) or tree.has_stem(PurePosixPath(name).name)), None)
        if known is not None:
            images += tree.images_named(known, path)
    return images if 2 * len(images) > len(lines) else []
