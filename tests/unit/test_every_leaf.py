"""Every key of a configuration is used, listed or an error: each value of the published files is changed, one at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from test_originals_paddledet import FILES as DETECTION
from test_originals_paddleocr import FILES as RECOGNITION
from test_originals_paddleseg import FILES as SEGMENTATION
from test_originals_pdseg import OCRNET, UNET_PET, XCEPTION

from mutations import places
from phalanx.config.originals import dialect_of
from phalanx.config.originals.dialect import Dialect, Reading, assigned
from phalanx.config.read import Node, plain
from phalanx.families.recognition.characters import BUILT_IN
from phalanx.families.table.tokens import PUBLISHED

WHOLE = {  # those that are no bases
    **{f'seg/{name}': text for name, text in SEGMENTATION.items()},
    **{f'ocr/{name}': text for name, text in RECOGNITION.items()},
    **{f'det/{name}': text for name, text in DETECTION.items()},
    **{f'old/{name}': text for name, text in {'unet_pet': UNET_PET, 'xception': XCEPTION, 'ocrnet': OCRNET}.items()},
}
BASES = ('seg/cityscapes', *(f'det/{name}' for name in ('coco', 'voc', 'runtime', 'optimizer', 'network', 'reader')))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in WHOLE.items():
        file = tmp_path / f'{name}.yml'
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.lstrip())
    dictionaries = {'en_dict.txt': BUILT_IN['en'], 'ppocr_keys_v1.txt': 'abc', 'dict/table_structure_dict.txt': PUBLISHED}
    (tmp_path / 'ppocr/utils/dict').mkdir(parents=True)
    for name, words in dictionaries.items():
        (tmp_path / 'ppocr/utils' / name).write_text(''.join(f'{word}\n' for word in words))
    return tmp_path


def changed(root: Node) -> Iterator[tuple[str, Node]]:
    """`root` with one of its scalars after the other replaced by another of its kind."""
    for place in places(root):
        node = at(root, place)
        if not isinstance(node.value, dict | list) and node.value is not None:
            yield (
                re.sub(r'\.(\d+)', r'[\1]', '.'.join(place)),
                assigned(root, list(place), Node(other(node.value), 'changed', str(other(node.value)))),
            )


def at(node: Node, place: tuple[str, ...]) -> Node:
    for key in place:
        node = node.value[int(key)] if isinstance(node.value, list) else node.value[key]
    return node


def other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    return f'{value}x'


class Outcome(NamedTuple):
    recipe: Any
    problems: list[str]
    notes: str


def outcome(dialect: Dialect, root: Node) -> Outcome:
    reading = Reading(dialect.project)
    recipe = dialect.translate(root, reading)
    return Outcome(plain(recipe), reading.problems, '\n'.join(reading.notes))


@pytest.mark.parametrize('name', sorted(WHOLE.keys() - set(BASES)))
def test_no_key_passes_silently(name: str) -> None:
    """Another value makes another recipe, a problem or another note, or the key is named in a note."""
    path = Path(f'{name}.yml')
    dialect = dialect_of(path)
    assert dialect is not None
    root = dialect.read(path, Reading(dialect.project))
    before = outcome(dialect, root)
    silent = []
    for place, tree in changed(root):
        after = outcome(dialect, tree)
        noted = re.findall(r': ([\w.\[\]]+)(?: is ignored)?: ', after.notes)
        if after == before and not any(re.match(rf'{re.escape(key)}(?![^.\[])', place) for key in noted):
            silent.append(place)
    assert not before.problems
    assert not silent
