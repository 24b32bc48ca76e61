"""Pages that are written by a program are what it writes today."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_keys_is_current() -> None:
    """`make docs` writes it."""
    assert runpy.run_path(str(ROOT / 'tools' / 'keys.py'))['page']() == (ROOT / 'docs' / 'keys.md').read_text(encoding='utf-8')
