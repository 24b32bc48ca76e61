"""Splits that files name: lists of images, data.yaml of YOLO, obj.data of Darknet, ImageSets of Pascal VOC."""

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from phalanx.config.read import ConfigError, load_yaml
from phalanx.curation.prepare.samples import SplitName
from phalanx.curation.prepare.tree import IMAGES, SPLITS, Tree, read_bytes, read_text
from phalanx.data.checks import AnnotationError

NAME = re.compile(rf'.+?({"|".join(map(re.escape, IMAGES))})(?=[\s,;]|$)', re.IGNORECASE)  # of an image, with blanks or not
ORDER: tuple[SplitName, ...] = ('', 'train', 'val', 'test')  # later ones prevail: `trainval` yields to `val`


def listed_splits(tree: Tree) -> dict[Path, SplitName]:
    """The split of each image that a list or a settings file assigns; settings prevail over names of files."""
    named, referenced = dict[Path, SplitName](), dict[Path, SplitName]()
    for path in tree.having('.txt'):
        if path.stem.lower() in SPLITS and not tree.has_stem(path.stem):  # else these are the labels of an image
            with tree.unreadable.catch():
                _assign(_images_listed(path, tree), SPLITS[path.stem.lower()], named)
    with tree.unreadable.catch():
        for key, value in _references(tree):
            _assign(_images_of(value, tree), SPLITS[key], referenced)
    return named | referenced


def _assign(images: list[Path], split: SplitName, splits: dict[Path, SplitName]) -> None:
    for image in images:
        splits[image] = max(splits.get(image, ''), split, key=ORDER.index)


def _references(tree: Tree) -> Iterator[tuple[str, str]]:
    """(key, folder or list of images) of each settings file."""
    for _, settings in yaml_settings(tree):
        for key in settings.keys() & SPLITS.keys():
            value = settings[key].value
            for each in [one.value for one in value] if isinstance(value, list) else [value]:
                if isinstance(each, str):
                    yield key, each
    for path in tree.having('.data'):
        for line in read_text(path).splitlines():
            key, _, place = (part.strip() for part in line.partition('='))
            if key in SPLITS:
                yield key, place


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


def _images_of(place: str, tree: Tree) -> list[Path]:
    """The images of a list or folder as somebody's settings name it: of those that end alike, the most alike is meant."""
    parts = tuple(part for part in PurePosixPath(place.replace('\\', '/')).parts if part not in ('.', '..', '/'))

    def likeness(path: Path) -> int:
        own = path.relative_to(tree.root).parts
        return next((n for n in range(len(parts)) if own[-1 - n : len(own) - n] != parts[-1 - n : len(parts) - n]), len(parts))

    if place.endswith('.txt'):
        best = max(tree.having('.txt'), key=likeness, default=None)
        return _images_listed(best, tree) if best and likeness(best) else []
    folders = {folder for image in tree.images for folder in image.parents if folder.is_relative_to(tree.root)} - {tree.root}
    nearest = max(sorted(folders), key=likeness, default=None)
    return [image for image in tree.images if image.is_relative_to(nearest)] if nearest and likeness(nearest) else []


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
