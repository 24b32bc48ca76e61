"""Plain English in code: docstrings, comments and messages avoid the riddles that once recurred most."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(file for folder in ('src', 'tests', 'benchmarks', 'examples', 'tools') for file in (ROOT / folder).rglob('*.py'))
FIRST_WORD = re.compile(r'(What|How|Which|Where|Who|Whose|Whether|That|Those|As|When)\b')
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
def strings_and_comments(file: Path) -> list[tuple[int, str]]:
    """The docstrings, messages and comments of a file, by line."""
    text = file.read_text(encoding='utf-8')
    constants = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    comments = [
        (number, line.partition('#')[2]) for number, line in enumerate(text.splitlines(), 1) if line.lstrip().startswith('#')
    ]
    return [(node.lineno, str(node.value)) for node in constants] + comments


def test_docstrings_begin_with_a_noun_or_a_verb() -> None:
    """`What a rank says of itself` leaves the thing without a name; `Rank flags` says it."""
    found = []
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding='utf-8'))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ''
                if FIRST_WORD.match(text):
                    found.append(f'{file.relative_to(ROOT)}:{getattr(node, "lineno", 1)}: {text.splitlines()[0]}')
    assert found == []


@pytest.mark.parametrize('pattern', PATTERNS)
def test_riddles_do_not_come_back(pattern: str) -> None:
    """Each pattern with the plain words in its place; this file, which names them, is left out."""
    found = [
        f'{file.relative_to(ROOT)}:{number}: {match[0]} -> {PATTERNS[pattern]}'
        for file in FILES
        if file != Path(__file__)
        for number, text in strings_and_comments(file)
        for match in re.finditer(pattern, text)
    ]
    assert found == []
