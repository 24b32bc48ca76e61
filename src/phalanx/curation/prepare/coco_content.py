"""Content of a COCO file: as objects of Python, a million annotations with their outlines would take gigabytes."""

import marshal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.curation.prepare.samples import LeftOut
from phalanx.data.checks import AnnotationError
from phalanx.data.coco import CocoImage, Key, parse_image, parse_key, place_of
from phalanx.data.coco_file import BLOCK, PARTS, Block, read_blocks


class Listed(NamedTuple):
    """Entry of `images`."""

    where: str  # beginning of a message about it
    image: CocoImage | AnnotationError
    title: str  # of Encord, which names files by hashes; empty without one
    split: str  # a word for it; empty without one


class CocoContent:
    """Entries of a COCO file; annotations belong to their image, and are kept as bytes."""

    def __init__(self, blocks: Iterable[Block], path: Path) -> None:
        """Collect the `blocks` of a file, of which those of annotations are the last. Raises the errors of `read_blocks`."""
        self.path, self.has_annotations = path, False
        self.categories, self.images = list[Any](), list[Listed]()
        self.orphans = LeftOut()  # annotations without an image that is known
        self._objects, self._repeated = dict[Key, list[bytes]](), set[Key]()
        for part, first, entries in blocks:
            if part == 'categories':
                self.categories += entries
            for number, entry in enumerate(entries, first):
                if part == 'images':
                    self._add_image(number, entry)
                elif part == 'annotations':
                    self.has_annotations = True
                    with self.orphans.catch():
                        self._add_object(number, entry)

    def _add_image(self, number: int, entry: Any) -> None:
        where = place_of(self.path, 'image', number, entry)
        if isinstance(entry, dict) and isinstance(key := entry.get('id'), int | str):
            if key in self._objects:
                self._repeated.add(key)
            self._objects[key] = []
        try:
            image = parse_image(entry, where)
            self.images.append(Listed(where, image, str(entry.get('image_title') or ''), stated_split(entry)))
        except AnnotationError as error:
            self.images.append(Listed(where, error, '', ''))

    def _add_object(self, number: int, entry: Any) -> None:
        where = place_of(self.path, 'annotation', number, entry)
        key = parse_key(entry, 'image_id', where, self._objects)
        if key not in self._objects:
            raise AnnotationError(f'{where}: image_id {key} is not the id of an image')
        self._objects[key].append(marshal.dumps((number, entry)))

    def take_annotations(self, key: Key) -> list[tuple[str, dict[str, Any]]]:
        """Beginning of a message about each annotation of an image, and its entry, in their order.

        They are forgotten, unless the image is listed again.
        """
        stored = self._objects.get(key, []) if key in self._repeated else self._objects.pop(key, [])
        entries = [marshal.loads(one) for one in stored]
        return [(place_of(self.path, 'annotation', number, entry), entry) for number, entry in entries]


def load_coco(path: Path) -> CocoContent | None:
    """The content of a COCO file; None for other files, and for those that cannot be read."""
    with suppress(AnnotationError, OSError):
        if _names_parts(path):
            return CocoContent(read_blocks(path), path)
    return None


def _names_parts(path: Path) -> bool:
    """True if the names of all parts of COCO's format occur in a file, wherever."""
    missing, data = {f'"{part}"'.encode() for part in PARTS}, b''
    with path.open('rb') as file:
        while missing and (block := file.read(BLOCK)):
            data = data[-BLOCK // 1024 :] + block
            missing = {name for name in missing if name not in data}
    return not missing


def stated_split(entry: Mapping[str, Any]) -> str:
    """Word that an entry of an export has for its split; empty without one."""
    return next((entry[key] for key in ('split', 'subset', 'set') if isinstance(entry.get(key), str)), '')
