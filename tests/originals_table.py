"""Tables of docs/coming-from-paddle.md: the recipe key for each key of the published configurations.

They are found by changing one value at a time. To rewrite them:
`PYTHONPATH=src:tests:tests/unit/paddle python tests/originals_table.py`.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from test_originals_paddledet import FILES as DETECTION
from test_originals_paddleocr import FILES as RECOGNITION
from test_originals_paddleseg import FILES as SEGMENTATION
from test_originals_pdseg import LITE, OCRNET, UNET_PET, XCEPTION

from mutations import places
from phalanx.config.read import Node, to_plain
from phalanx.families.recognition.characters import SHORT_DICTIONARIES
from phalanx.families.table.tokens import CHINESE, PUBLISHED
from phalanx.paddle.configs import dialect_of
from phalanx.paddle.configs.dialect import Dialect, Reading, assign

TEXTS = {
    **{f'seg/{name}': text for name, text in SEGMENTATION.items()},
    **{
        f'old/{name}': text
        for name, text in {'unet_pet': UNET_PET, 'xception': XCEPTION, 'ocrnet': OCRNET, 'lite': LITE}.items()
    },
    **{f'det/{name}': text for name, text in DETECTION.items()},
    **{f'ocr/{name}': text for name, text in RECOGNITION.items()},
}
BASES = ('seg/cityscapes', *(f'det/{name}' for name in ('coco', 'voc', 'runtime', 'optimizer', 'network', 'reader', 'detr')))
WHOLE = [name for name in TEXTS if name not in BASES]
DOCUMENT = Path(__file__).parents[1] / 'docs' / 'coming-from-paddle.md'
MARK = '<!-- from here on written by tests/originals_table.py -->\n'
MOST = 3  # keys of a recipe shown in a row


class Outcome(NamedTuple):
    recipe: Any
    problems: list[str]
    notes: list[str]


def write_texts(folder: Path) -> None:
    """Write the configurations, and the dictionaries that they name."""
    for name, text in TEXTS.items():
        file = folder / f'{name}.yml'
        file.parent.mkdir(exist_ok=True)
        file.write_text(text.lstrip())
    dictionaries = {
        'en_dict.txt': SHORT_DICTIONARIES['en'],
        'ppocr_keys_v1.txt': 'abc',
        'dict/table_structure_dict.txt': PUBLISHED,
    }
    dictionaries['dict/table_structure_dict_ch.txt'] = CHINESE
    (folder / 'ppocr/utils/dict').mkdir(parents=True)
    for name, words in dictionaries.items():
        (folder / 'ppocr/utils' / name).write_text(''.join(f'{word}\n' for word in words))


def outcome(dialect: Dialect, root: Node) -> Outcome:
    reading = Reading(dialect.project)
    recipe = dialect.translate(root, reading)
    return Outcome(to_plain(recipe), reading.problems, reading.notes)


def changes(name: str) -> Iterator[tuple[str, Dialect, Outcome, Outcome]]:
    """Key of each scalar of a configuration, with the outcomes before and after changing its value."""
    dialect = dialect_of(Path(f'{name}.yml'))
    assert dialect is not None
    root = dialect.read(Path(f'{name}.yml'), Reading(dialect.project))
    before = outcome(dialect, root)
    for place in places(root):
        node = _at(root, place)
        if not isinstance(node.value, dict | list) and node.value is not None:
            value = _other(node.value)
            changed = assign(root, list(place), Node(value, 'changed', str(value)))
            yield re.sub(r'\.(\d+)', r'[\1]', '.'.join(place)), dialect, before, outcome(dialect, changed)


def reason(key: str, notes: list[str]) -> str | None:
    """Reason in the notes for a key, or for its section; None without one."""
    for note in notes:
        found = re.search(r': ([\w.\[\]]+)(?: is ignored)?: (.*)', note)
        if found and re.match(rf'{re.escape(found[1])}(?![^.\[])', key):
            return found[2]
    return None


def tables() -> str:
    """One table per project and family, with a row per key that becomes another key or is ignored with a reason.

    Keys that accept no other value (names of parts, mostly) have no row.
    """
    rows: dict[str, dict[str, str]] = {}
    for name in WHOLE:
        for key, dialect, before, after in changes(name):
            row = rows.setdefault(f'{dialect.project}: {before.recipe["task"].replace("_", " ")}', {})
            if meaning := _meaning(key, before, after):
                row.setdefault(re.sub(r'\[\d+\]', '[]', key), meaning)
    parts = []
    for title, row in rows.items():
        lines = [f'| `{key}` | {meaning} |' for key, meaning in sorted(row.items())]
        parts.append('\n'.join([f'### {title}', '', '| key | here |', '| --- | --- |', *lines, '']))
    return '\n'.join(parts)


def _meaning(key: str, before: Outcome, after: Outcome) -> str | None:
    if after.problems and not before.problems:
        return None
    now, then = dict(_leaves(after.recipe)), dict(_leaves(before.recipe))
    keys = sorted({re.sub(r'\.\d+', '[]', at) for at in now.keys() | then.keys() if now.get(at) != then.get(at)})
    if keys:
        return ', '.join(f'`{at}`' for at in keys[:MOST]) + (' ...' if len(keys) > MOST else '')
    why = reason(key, before.notes) or reason(key, after.notes)
    return f'ignored: {why}' if why else 'ignored, with a note'


def _leaves(value: Any, path: str = '') -> Iterator[tuple[str, Any]]:
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if children is None:
        yield path, value
    else:
        for key, child in children:
            yield from _leaves(child, f'{path}.{key}' if path else str(key))


def _at(node: Node, place: tuple[str, ...]) -> Node:
    for key in place:
        node = node.value[int(key)] if isinstance(node.value, list) else node.value[key]
    return node


def _other(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else f'{value}x'


if __name__ == '__main__':
    with tempfile.TemporaryDirectory() as folder:
        write_texts(Path(folder))
        os.chdir(folder)
        written = tables()
    DOCUMENT.write_text(DOCUMENT.read_text().partition(MARK)[0] + MARK + '\n' + written)
