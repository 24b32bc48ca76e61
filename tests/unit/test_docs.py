"""Pages that are written by a program are what it writes today, and all are fit to be read as plain text."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob('*.md'), *(ROOT / 'docs').glob('*.md')]


def test_the_page_of_keys_is_current() -> None:
    """`make docs` writes it."""
    assert runpy.run_path(str(ROOT / 'tools' / 'keys.py'))['page']() == (ROOT / 'docs' / 'keys.md').read_text(encoding='utf-8')


def test_prose_is_wrapped_at_120_columns() -> None:
    """Tables and code apart, whose lines cannot be broken."""
    long = [
        f'{page.name}:{number}'
        for page in PAGES
        if page.name != 'keys.md'  # written from the schema, whose lines are those of the code
        for number, line in prose(page)
        if len(line) > 120
    ]
    assert long == []


def test_tests_and_files_named_in_the_docs_exist() -> None:
    """A reader who follows a name finds it: tests by function or file, and files of the repository by their path."""
    tests = {name for file in (ROOT / 'tests').rglob('*.py') for name in re.findall(r'def (test_\w+)', file.read_text('utf-8'))}
    tests |= {file.stem for file in (ROOT / 'tests').rglob('test_*.py')}
    files = {file.relative_to(ROOT).as_posix() for file in ROOT.rglob('*') if file.is_file()}
    wrong = []
    for page in PAGES:
        text = page.read_text(encoding='utf-8')
        wrong += [f'{page.name}: {name}' for name in re.findall(r'`(test_\w+)`', text) if name not in tests]
        starts = re.findall(r'`(test_\w+_)\.\.\.`', text)  # a long name, abbreviated in a table
        wrong += [f'{page.name}: {start}...' for start in starts if not any(name.startswith(start) for name in tests)]
        paths = re.findall(r'`((?:src|tests|docs|benchmarks|examples|recipes)/[\w/.-]+\.\w+)', text)
        wrong += [f'{page.name}: {path}' for path in paths if path not in files]
    assert wrong == []


def test_names_that_the_docs_import_exist() -> None:
    wrong = []
    for page in PAGES:
        for module, names in re.findall(r'^ *from (phalanx[\w.]*) import ([\w, ]+)', page.read_text('utf-8'), re.MULTILINE):
            for name in names.replace(' ', '').split(','):
                with suppress(ImportError):  # a module, if it is one
                    import_module(f'{module}.{name}')
                if not hasattr(import_module(module), name):
                    wrong.append(f'{page.name}: {module}.{name}')
    assert wrong == []


def prose(page: Path) -> Iterator[tuple[int, str]]:
    in_code = False
    for number, line in enumerate(page.read_text(encoding='utf-8').splitlines(), 1):
        in_code ^= line.lstrip().startswith('```')
        if not in_code and not line.startswith('|'):
            yield number, line
