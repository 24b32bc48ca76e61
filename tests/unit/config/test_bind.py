"""Binding recipes to typed settings: what is accepted, and all problems in one message with their fixes."""

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml

from phalanx.config.bind import bind
from phalanx.config.read import ConfigError, Node, did_you_mean, override, read, to_plain
from phalanx.config.show import to_yaml


def circle(centre: tuple[float, float], *, radius: float = 1.0, colour: Literal['red', 'green', 'off'] = 'red') -> object:
    return centre, radius, colour


def square(centre: tuple[float, float], turn: float = 0, *, side: float) -> object:
    return centre, side


def polygon(centre: tuple[float, float], *, corners: list = [], sides: tuple = (), names: dict = {}) -> object:  # type: ignore[type-arg]  # noqa: B006
    return corners, sides, names


SHAPES = {'circle': circle, 'square': square, 'polygon': polygon}


@dataclass(frozen=True, kw_only=True)
class Inner:
    count: int = 1
    mode: Literal['off', 'on', 'auto'] = 'auto'

    def __post_init__(self) -> None:
        if self.count < 0:
            raise ValueError(f'count cannot be negative, got {self.count}')


@dataclass(frozen=True, kw_only=True)
class Outer:
    shape: Annotated[partial[object], SHAPES]
    more: tuple[Annotated[partial[object], SHAPES], ...] = ()
    ratio: float = 0.5
    root: Path = Path('here')
    size: tuple[int, int] = (1, 2)
    scale: Literal['dynamic'] | float = 'dynamic'
    limit: int | None = None
    title: str = ''
    inner: Inner = field(default_factory=Inner)


def bound(text: str, tmp_path: Path, *sets: str) -> tuple[Any, Node]:
    (tmp_path / 'r.yml').write_text(text)
    root = read(tmp_path / 'r.yml')
    for assignment in sets:
        root = override(root, assignment)
    result, _, resolved = bind(root, Outer)
    return result, resolved


def problems(text: str, tmp_path: Path, *sets: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        bound(text, tmp_path, *sets)
    return caught.value.problems


def test_a_named_part_becomes_its_builder_with_the_options_filled_in(tmp_path: Path) -> None:
    outer, _ = bound('shape: {name: circle, radius: 2}\n', tmp_path)
    assert outer.shape((0, 0)) == ((0, 0), 2.0, 'red')


def test_an_option_whose_hint_names_no_elements_takes_any(tmp_path: Path) -> None:
    outer, _ = bound('shape: {name: polygon, corners: [[1, 2], a], sides: [3], names: {a: [x]}}\n', tmp_path)
    assert outer.shape((0, 0)) == ([[1, 2], 'a'], (3,), {'a': ['x']})


@pytest.mark.parametrize('more', ['square', '{name: square}', '[square]'])
def test_a_part_that_stands_for_a_list_of_one_has_the_index_0(tmp_path: Path, more: str) -> None:
    outer, _ = bound(f'shape: circle\nmore: {more}\n', tmp_path, 'more.0.side=2')
    assert [part((0, 0)) for part in outer.more] == [((0, 0), 2.0)]


@pytest.mark.parametrize(
    ('line', 'attribute', 'value'),
    [
        ('ratio: 1e-4', 'ratio', 1e-4),  # YAML 1.1 reads 1e-4 as text
        ('ratio: 3', 'ratio', 3.0),
        ('scale: 128', 'scale', 128.0),
        ('scale: dynamic', 'scale', 'dynamic'),
        ('limit: null', 'limit', None),
        ('limit: 4', 'limit', 4),
        ('title: 2015', 'title', '2015'),  # a string that looks like a number
        ('title: 010', 'title', '010'),
        ('title: on', 'title', 'on'),  # and one that looks like a truth value
        ('inner: {mode: off}', 'inner', Inner(mode='off')),  # YAML 1.1 reads off as false
        ('size: [3, 4]', 'size', (3, 4)),
        ('root: a/b', 'root', Path('a/b')),
    ],
)
def test_values_are_read_as_the_field_says(tmp_path: Path, line: str, attribute: str, value: object) -> None:
    outer, _ = bound(f'shape: circle\n{line}\n', tmp_path)
    assert getattr(outer, attribute) == value
    assert type(getattr(outer, attribute)) is type(value)


@pytest.mark.parametrize(
    ('line', 'message'),
    [
        ('ration: 1', "ration: unknown key; did you mean 'ratio'?"),
        ('inner: {cuont: 1}', "inner.cuont: unknown key; did you mean 'count'? (inner has count, mode)"),
        ('base: pp_liteseg', "base: unknown key; did you mean '_base_'?"),
        ('ratio: fast', "ratio: expected a number, got 'fast'"),
        ('size: [1]', 'size: expected 2 values, got [1]'),
        ('size: 1', "size: expected a list such as [1], got '1'"),
        ('size: null', "size: expected a list, got 'null'"),
        ('limit: 1.5', "limit: expected an integer, got '1.5'"),
        ('scale: fast', "scale: expected dynamic or a number, got 'fast'"),
        ('limit: "4"', "limit: expected an integer, got '4', a string; leave out the quotes"),
        ('limit: 010', "limit: expected an integer, got '010'; a leading zero means octal in YAML: write 10"),
        ('limit: 08', "limit: expected an integer, got '08'; a leading zero means octal in YAML: write 8"),
        ('limit: 0o10', "limit: expected an integer, got '0o10'"),
        ('ratio: -0_12', "ratio: expected a number, got '-0_12'; a leading zero means octal in YAML: write -12"),
        ('ratio: 1:30', "ratio: expected a number, got '1:30', which YAML reads as 90 (base 60)"),
        ('scale: 010', "scale: expected dynamic or a number, got '010'; a leading zero means octal"),
        ('limit: on', "limit: expected an integer, got 'on'"),
        ('limit: off', "limit: expected an integer, got 'off'; null leaves it out"),
        ('size: (3, 4)', "size: expected a list such as [3, 4], got '(3, 4)'"),
        ('root: null', "root: expected a path, got 'null'"),
        ('inner: {mode: of}', "inner.mode: 'of' is not one of off, on, auto; did you mean 'off'?"),
        ('inner: {count: -1}', 'inner: count cannot be negative, got -1'),
        ('inner: 3', "inner: expected a mapping with count, mode, got '3'"),
        (
            'more: [{name: sqare, side: 1}]',
            "more[0].name: 'sqare' is not one of circle, square, polygon; did you mean 'square'?",
        ),
        ('more: [{name: square}]', 'more[0].side: missing; square needs it'),
        ('more: [{name: circle, side: 1}]', 'more[0].side: unknown key'),
        ('more: [{name: x}]', "more[0].name: 'x' is not one of circle, square, polygon; parts of your own need --plugin FILE"),
        (
            'more: [{name: square, side: 1, turn: 2}]',
            'more[0].turn: unknown key; to make it an option, write `*, turn` in the signature of square (square has side)',
        ),
    ],
)
def test_a_problem_names_line_key_value_and_cure(tmp_path: Path, line: str, message: str) -> None:
    (problem,) = problems(f'shape: circle\n{line}\n', tmp_path)
    assert problem.startswith(f'{tmp_path}/r.yml:2: {message}')


def test_the_bases_of_a_recipe_are_a_key_of_its_file_alone(tmp_path: Path) -> None:
    (problem,) = problems('shape: circle\n', tmp_path, '_base_=other')
    assert problem.startswith('--set _base_=other: _base_: unknown key (a recipe has ')
    assert problem.endswith(', and its file _base_)')


def test_all_problems_are_reported_at_once(tmp_path: Path) -> None:
    found = problems('shape: {name: circle, radus: 1}\nratio: x\ninner: {count: y}\n', tmp_path, 'size=[1,b]')
    assert [problem.split(': ')[1] for problem in found] == ['shape.radus', 'ratio', 'inner.count', 'size[1]']
    assert found[3].startswith('--set size=[1,b]')


def test_a_missing_part_is_reported_with_the_choices(tmp_path: Path) -> None:
    assert problems('ratio: 1\n', tmp_path)[0].endswith('shape: missing; a recipe needs it, one of circle, square, polygon')
    assert problems('shape: {radius: 1}\n', tmp_path)[0].endswith('shape.name: missing; give one of circle, square, polygon')


def test_the_resolved_recipe_reads_back_as_the_same_recipe(tmp_path: Path) -> None:
    text = 'shape: {name: circle, colour: off}\nmore: [{name: square, side: 2}]\ninner: {mode: on}\ntitle: "a: b # c"\n'
    outer, resolved = bound(text, tmp_path, 'ratio=0.25')
    again, second = bound(to_yaml(resolved), tmp_path)
    assert to_plain(second) == to_plain(resolved)
    assert (again.ratio, again.title, again.inner, again.shape((0, 0))) == (
        0.25,
        'a: b # c',
        Inner(mode='on'),
        outer.shape((0, 0)),
    )


def test_the_resolved_recipe_says_where_each_value_comes_from(tmp_path: Path) -> None:
    _, resolved = bound('shape: circle\nsize: [3, 4]\n', tmp_path, 'ratio=0.25')
    lines = {line.split(':')[0].strip(): line.rpartition('# ')[2] for line in to_yaml(resolved).splitlines()}
    assert lines['size'] == f'{tmp_path}/r.yml:2'
    assert (lines['ratio'], lines['limit']) == ('--set ratio=0.25', 'default')
    assert yaml.safe_load(to_yaml(resolved))['size'] == [3, 4]


def test_a_value_that_an_assignment_gives_is_refused_at_the_assignment(tmp_path: Path) -> None:
    """Not at the line of the section, which another file may hold."""
    with pytest.raises(ConfigError, match=r'^--set inner\.count=-1: inner: count cannot be negative, got -1$'):
        bound('shape: circle\ninner: {mode: auto}', tmp_path, 'inner.count=-1')


@pytest.mark.parametrize(
    ('word', 'known', 'meant'),
    [('SGD', ('sgd', 'adam'), 'sgd'), ('gpu', ('cpu', 'cuda'), 'cuda'), ('bfloat16', ('fp32', 'bf16', 'fp16'), 'bf16')],
)
def test_a_word_in_other_case_or_of_other_tools_is_understood(word: str, known: tuple[str, ...], meant: str) -> None:
    assert did_you_mean(word, known) == f'; did you mean {meant!r}?'
