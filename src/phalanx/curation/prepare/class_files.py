"""Files with the names of the classes of masks: in order, behind numbers, or beside colours."""

import csv
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.curation.prepare.colours import Colour
from phalanx.curation.prepare.label_maps import BACKGROUND
from phalanx.curation.prepare.tree import Tree, read_text
from phalanx.data.checks import AnnotationError, check_unique, read_json, shorten

CLASS_FILES = (
    *('classes.txt', 'class_names.txt', 'labels.txt', '_classes.csv'),  # names, in order or behind numbers
    *('id2label.json', 'class_id_to_name.json'),  # of Hugging Face, labelformat: names by number
    *('labelmap.txt', 'label_map.txt', 'class_dict.csv', 'class_mapping.csv', 'label_colors.txt', 'colors.txt'),
)
HEADERS = (['Pixel', 'Value', 'Class'], ['class_name', 'class_color'])  # of Roboflow, of V7


def find_class_file(tree: Tree) -> Path | None:
    return next((file for file in tree.files if file.name.lower() in CLASS_FILES), None)


class ClassFile(NamedTuple):
    names: list[str]  # in order
    numbered: dict[int, str]  # by the number that stands before each, if one does
    colours: dict[Colour, str]  # by colour, if each has one


def read_class_file(file: Path | None) -> ClassFile:
    """The names in a file with one on each line; empty without a file. Raises AnnotationError."""
    if file and file.suffix.lower() == '.json':
        return _read_numbered(file)
    colours: dict[Colour, str] = {}
    names = []
    lines = read_text(file).splitlines() if file else []
    for line in [line for line in lines if line.strip() and not line.startswith('#')]:
        (fields,) = csv.reader([line])
        line = re.sub(r'(?<!\w)_(_?)background_\1(?!\w)', BACKGROUND, ','.join(fields).strip())  # of labelme2voc, V7
        words = re.split(r'[,:\s]+', line.strip(' ,:'))
        behind = re.fullmatch(r'(.*?)[,:\s]+(\d+)[,:\s]+(\d+)[,:\s]+(\d+)[,:\s]*', line)
        before = re.fullmatch(r'(\d+)[,\s]+(\d+)[,\s]+(\d+)[,:\s]+(.*)', line)
        if before:
            colours[(int(before[1]), int(before[2]), int(before[3]))] = before[4].strip()
        elif behind:
            colours[(int(behind[2]), int(behind[3]), int(behind[4]))] = behind[1].strip()
        elif words[1:] != ['r', 'g', 'b'] and words not in HEADERS:
            names.append(line)
    check_unique(names, f'{file}')
    # labelme2voc: `__ignore__` is 255 in its masks, and the numbers begin behind it
    names = [name for name in names if name != '__ignore__']
    return ClassFile(list(colours.values()) or names, {} if colours else _parse_numbers(names), colours)


def _read_numbered(file: Path) -> ClassFile:
    """The names in an object of numbers and names. Raises AnnotationError."""
    content = read_json(file)
    wrong = [key for key, name in content.items() if not key.isdecimal() or not isinstance(name, str) or not name.strip()]
    if wrong or not content:
        raise AnnotationError(f'{file}: expected numbers and names such as {{"0": "background"}}, got {shorten(wrong[:1])}')
    numbered = dict(sorted((int(key), name.strip()) for key, name in content.items()))
    check_unique(numbered.values(), f'{file}')
    return ClassFile([*numbered.values()], numbered, {})


def _parse_numbers(lines: Sequence[str]) -> dict[int, str]:
    """The names by number, as in `_classes.csv` of Roboflow (`0, background`); empty where some line has no number.

    Without a comma or colon the numbers must be 0, 1, ...: `1 euro` and `2 euro` are names.
    """
    behind = [re.fullmatch(r'(\D.*?)\s*,\s*(\d+)', line) for line in lines]  # of V7
    if lines and all(behind):
        return dict(sorted((int(match[2]), match[1]) for match in behind if match))
    found = [re.fullmatch(r'(\d+)(\s*[,:;]\s*|\s+)(\D.*)', line) for line in lines]
    numbered = {int(match[1]): match[3].strip() for match in found if match}
    if len(numbered) < len(lines):
        return {}
    is_separated = all(match and match[2].strip() for match in found)
    return dict(sorted(numbered.items())) if is_separated or [*numbered] == [*range(len(lines))] else {}
