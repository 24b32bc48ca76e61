"""`phalanx config RECIPE --explain`: the reference of the keys of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytest

from phalanx.config.explain import explain
from phalanx.config.read import ConfigError
from phalanx.engine.schema import Recipe
from phalanx.families.catalog import FAMILIES
from running import Command, run_here


def circle(centre: tuple[float, float], *, radius: float, colours: tuple[str, ...] = ('red',)) -> object:
    """All points with one distance from another point.

    It is round.
    """
    return centre, radius, colours


class Square:
    """Four corners, all alike."""

    def __init__(self, *, side: float = 2.0) -> None:
        self.side = side


@dataclass(frozen=True, kw_only=True)
class Pen:
    """A pen."""

    width: int = 3
    """In pixels."""
    tip: str | None = None


@dataclass(frozen=True, kw_only=True)
class Drawing:
    shape: Annotated[partial[object], {'circle': circle, 'square': Square}]
    """The shape to draw.
    Once."""
    pen: Pen = field(default_factory=Pen)


@pytest.mark.parametrize(
    ('key', 'expected'),
    [
        (
            '',
            'shape: one of circle, square (required)\n      The shape to draw.\n      Once.\n'
            'pen:\n      A pen.\n  width: an integer (default: 3)\n        In pixels.\n'
            '  tip: a string or null (default: null)\n',
        ),
        ('pen.width', 'pen.width: an integer (default: 3)\n      In pixels.\n'),
        (
            'shape.circle',
            'name: circle\n      All points with one distance from another point.\n\n      It is round.\n'
            '  radius: a number (required)\n  colours: a list, each a string (default: [red])\n',
        ),
        (
            'shape',
            'shape: one of circle, square (required)\n      The shape to draw.\n      Once.\n\n'
            'name: circle\n      All points with one distance from another point.\n\n      It is round.\n'
            '  radius: a number (required)\n  colours: a list, each a string (default: [red])\n\n'
            'name: square\n      Four corners, all alike.\n  side: a number (default: 2.0)\n',
        ),
    ],
)
def test_a_key_is_reported_with_what_it_takes_its_default_and_its_meaning(key: str, expected: str) -> None:
    assert explain([Drawing], key) == expected


def test_an_unknown_key_is_reported_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"shape\.square\.sid: unknown key; did you mean 'side'\? \(shape\.square has side\)"):
        explain([Drawing], 'shape.square.sid')


def parts(text: str) -> Iterator[tuple[str, str]]:
    """Each `name: X` of an explanation, with the line below."""
    lines = [*text.splitlines(), '']
    return ((line, below) for line, below in pairwise(lines) if line.startswith('name: '))


@pytest.mark.parametrize('family', FAMILIES)
def test_everything_that_can_be_chosen_says_what_it_is(family: str) -> None:
    schemas: list[Any] = [Recipe, FAMILIES[family].Keys]
    keys = [line.partition(':')[0] for line in explain(schemas, '').splitlines() if line[:1].strip()]
    assert {'model', 'data', 'optimizer', 'schedule', 'train'} <= {*keys}
    named = [part for key in keys for part in parts(explain(schemas, key))]
    assert len(named) > 12
    assert [name for name, below in named if not below.startswith('      ')] == []


def test_the_command_explains_a_key_of_a_recipe(phalanx_here: Command) -> None:
    output = phalanx_here('config', 'ppyoloe_digits', '--explain', 'transforms.0.mix_up')
    assert output.returncode == 0
    assert output.stdout.startswith('name: mix_up\n      Blend two images 50:50')
    assert '  probability: a number (default: 1.0)\n' in output.stdout
    assert phalanx_here('config', 'ppyoloe_digits', '--explain', 'trian').stderr.startswith(
        "trian: unknown key; did you mean 'train'?"
    )


def test_keys_are_explained_for_a_recipe_that_is_wrong_or_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'mine.yml').write_text('task: recognition\ntrian: {}\n')
    assert run_here('config', str(tmp_path / 'mine.yml'), '--explain', 'characters.space') == 0
    assert capsys.readouterr().out.startswith('characters.space: true or false')
    (tmp_path / 'mine.yml').write_text('task: [\n')
    for words in ((str(tmp_path / 'mine.yml'),), ()):
        assert run_here('config', *words, '--explain', 'loss') == 0
        output = capsys.readouterr().out
        assert [line for line in output.splitlines() if line.startswith('# ')] == [
            '# segmentation',
            '# detection',
            '# recognition',
            '# table',
            '# text_detection',
        ]
    assert run_here('config', '--explain', 'charcters') == 2
    assert "did you mean 'characters'?" in capsys.readouterr().err
