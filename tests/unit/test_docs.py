"""Pages that are written by a program are what it writes today, and all are fit to be read as plain text."""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_keys_is_current() -> None:
    """`make docs` writes it."""
    assert runpy.run_path(str(ROOT / 'tools' / 'keys.py'))['page']() == (ROOT / 'docs' / 'keys.md').read_text(encoding='utf-8')


def test_prose_is_wrapped_at_120_columns() -> None:
    """Tables and code apart, whose lines cannot be broken."""
    pages = [ROOT / 'README.md', ROOT / 'CHANGELOG.md', *(ROOT / 'docs').glob('*.md')]
    long = [
        f'{page.name}:{number}'
        for page in pages
        if page.name != 'keys.md'  # written from the schema, whose lines are those of the code
        for number, line in prose(page)
        if len(line) > 120
    ]
    assert long == []


def prose(page: Path) -> Iterator[tuple[int, str]]:
    in_code = False
    for number, line in enumerate(page.read_text(encoding='utf-8').splitlines(), 1):
        in_code ^= line.lstrip().startswith('```')
        if not in_code and not line.startswith('|'):
            yield number, line
