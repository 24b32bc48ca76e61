"""Writes docs/keys.md: every key that a recipe can have, from the types and docstrings that check it."""

from __future__ import annotations

import sys
from pathlib import Path

from phalanx.config.explain import explain
from phalanx.engine.schema import Recipe
from phalanx.families.catalog import FAMILIES

PAGE = Path(__file__).parents[1] / 'docs' / 'keys.md'


def page() -> str:
    parts = [
        '# Keys of a recipe\n\n'
        '`phalanx config RECIPE --explain KEY` shows one of them with all that can be chosen there. This page is written by '
        '`tools/keys.py`.\n\n## Every recipe\n\n' + block(explain([Recipe], ''))
    ]
    for name, family in FAMILIES.items():
        parts.append(f'## task: {name}\n\n' + block(explain([family.Keys], '')))
    return '\n'.join(parts)


def block(text: str) -> str:
    return f'```text\n{text.rstrip()}\n```\n'


if __name__ == '__main__':
    PAGE.write_text(page(), encoding='utf-8')
    sys.exit(0)
