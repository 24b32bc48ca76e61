"""COCO-Text: words on the images of COCO, one JSON file for both splits.

Veit et al., COCO-Text: Dataset and Benchmark for Text Detection and Recognition in Natural Images, 2016,
https://arxiv.org/abs/1601.07140.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.data.folders import Problems, check_folder, check_inside, read_json
from phalanx.data.listed import Packed
from phalanx.data.samples import Split
from phalanx.data.texts import ILLEGIBLE
from phalanx.families.text_detection.data.source import PackedTexts, Pages, Points, make_texts, parse_outline

SETS = {'train': 'train', 'eval': 'val'}  # names of the splits in the file


@dataclass(frozen=True, kw_only=True)
class CocoText:
    """Images of the folder `images` with the words of the JSON file `annotations`, which assigns them to `train` or `val`.

    Both paths are relative to `root`. Words have an outline (`mask`, or `polygon` in the first version) or a `bbox`; illegible
    words are ignored. `empty_images`: train on images without words too (evaluation always includes them).
    """

    root: Path
    annotations: str = 'cocotext.v2.json'
    images: str = 'train2014'
    empty_images: bool = False

    def split(self, split: Split) -> Pages:
        """Read the annotations of a split. Raises FileNotFoundError, and ValueError with all faults of the file."""
        check_folder(self.root)
        file, folder = self.root / self.annotations, self.root / self.images
        images, words = read_annotations(file)
        # Images of the split.
        problems, names = Problems(), dict[str, str]()
        for number, image in images.items():
            with problems:
                if not isinstance(image, dict) or not isinstance(image.get('file_name'), str):
                    raise ValueError(f'{file}: image {number}: expected set and file_name, got {str(image)[:80]}')
                if image.get('set') == SETS[split]:
                    names[number] = check_inside(image['file_name'], folder, f'{file}: image {number}')
        # Words of each image; those of the other split are only checked for their image.
        words_of: dict[str, list[tuple[Points, str]]] = {number: [] for number in names}
        for identity, annotation in words.items():
            with problems:
                number = str(annotation.get('image_id')) if isinstance(annotation, dict) else ''
                if number not in images:
                    raise ValueError(f'{file}: word {identity}: image_id: no such image, got {str(annotation)[:80]}')
                if number in words_of:
                    words_of[number].append(parse_word(annotation, f'{file}: word {identity}'))
        problems.check()
        selected = [number for number in names if words_of[number] or split == 'eval' or self.empty_images]
        texts = PackedTexts(make_texts(words_of[number]) for number in selected)
        return Pages(folder, Packed.of(names[number] for number in selected), texts)


def read_annotations(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return images and words by their ids. Raises FileNotFoundError, and ValueError for another format."""
    content = read_json(file)
    images, words = (content.get(key) if isinstance(content, dict) else None for key in ('imgs', 'anns'))
    if not isinstance(images, dict) or not isinstance(words, dict):
        raise ValueError(f'{file}: is not in the format of COCO-Text: it needs objects `imgs` and `anns`')
    return images, words


def parse_word(annotation: dict[str, Any], where: str) -> tuple[Points, str]:
    """Return outline and text of a word. Raises ValueError that starts with `where`."""
    # Outline of the second or the first version; otherwise the corners of the box.
    flat = annotation.get('mask') or annotation.get('polygon')
    if not isinstance(flat, list) or len(flat) < 6:
        box = annotation.get('bbox')
        try:
            x, y, width, height = box  # type: ignore[misc]
            flat = [x, y, x + width, y, x + width, y + height, x, y + height]
        except (TypeError, ValueError):
            raise ValueError(f'{where}: has no mask, and its bbox is not x, y, width, height: {str(box)[:80]}') from None
    text = str(annotation.get('utf8_string') or '')
    corners = parse_outline([flat[at : at + 2] for at in range(0, len(flat), 2)], where)
    return corners, ILLEGIBLE if annotation.get('legibility') == 'illegible' else text
