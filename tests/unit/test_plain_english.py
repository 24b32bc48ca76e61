"""Plain English in code: docstrings, comments and messages avoid the riddles that once recurred most."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(file for folder in ('src', 'tests', 'benchmarks', 'examples', 'tools') for file in (ROOT / folder).rglob('*.py'))
FIRST_WORD = r'(What|How|Which|Where|Who|Whose|Whether|That|Those|As|When)\b'
PATTERNS = {  # the pattern -> what to write in its place
    r'\b(ranks?|nodes?|samples|images|steps|classes|losses|processes) an? (rank|node|class|step|sample|second|image)\b': 'per',
    r'\bof so many\b|\bso many (classes|steps|samples|ranks|nodes|batch)': 'the number itself',
    r'\bwhat is (to be )?said (of|there)\b': 'a noun: remarks, description',
    r'\b(is|are|was|were|be|been) told\b': 'is reported',
    r'\bthat there (is|are)\b': 'the noun alone',
    r'\bnone given\b': 'default, null',
    r'\banew\b': 'again',
    r'\bjudged (by|on)\b': 'evaluated',
    r'\ba whole number\b(?! of)': 'an integer',
}


@cache
def prose(file: Path) -> str:
    """Text of a file in which strings that follow each other are one line."""
    return re.sub(r"'\n *f?'", '', file.read_text(encoding='utf-8'))


def find(pattern: str) -> list[str]:
    """Matches of `pattern` in all files but this one, which names the riddles."""
    return [
        f'{file.relative_to(ROOT)}: {match[0]}'
        for file in FILES
        if file != Path(__file__)
        for match in re.finditer(pattern, prose(file))
    ]


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    """`What a rank says of itself` leaves the thing without a name; `Rank flags` says it."""
    assert find(rf'"""{FIRST_WORD}.*') == []


@pytest.mark.parametrize('pattern', PATTERNS)
def test_riddles_do_not_come_back(pattern: str) -> None:
    """Each pattern with the plain words in its place."""
    assert find(pattern) == [], PATTERNS[pattern]
