"""Reading recipes: bases, overrides and origins."""

import contextlib
import re
from pathlib import Path

import pytest

from phalanx.config.read import ConfigError, Node, check_alternatives, override, read, to_plain


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f'{name}.yml').write_text(text)
    return folder / f'{next(iter(files))}.yml'


def test_own_keys_win_over_bases_and_later_bases_over_earlier(tmp_path: Path) -> None:
    recipe = write(tmp_path, run='_base_: [a.yml, b.yml]\nx: 1\n', a='x: 2\ny: 2\nz: 2\n', b='x: 3\ny: 3\n')
    assert to_plain(read(recipe)) == {'x': 1, 'y': 3, 'z': 2}


def test_every_value_knows_its_file_and_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = write(tmp_path, run='_base_: a.yml\n\nx:\n  y: 1\n', a='x:\n  z: 2\n')
    x = read(recipe).value['x']
    assert (x.value['y'].origin, x.value['z'].origin) == ('run.yml:4', 'a.yml:2')


def test_a_part_with_another_name_starts_again(tmp_path: Path) -> None:
    """Else AdamW would inherit the momentum of SGD."""
    recipe = write(tmp_path, run='_base_: a.yml\no: {name: adamw, lr: 1}\n', a='o: {name: sgd, momentum: 0.9}\n')
    assert to_plain(read(recipe)) == {'o': {'name': 'adamw', 'lr': 1}}


def test_two_ways_to_say_one_thing_replace_each_other(tmp_path: Path) -> None:
    recipe = write(tmp_path, run='_base_: a.yml\ntrain: {steps: 10}\n', a='train: {epochs: 3, seed: 1}\n')
    assert to_plain(read(recipe)) == {'train': {'steps': 10, 'seed': 1}}
    assert to_plain(override(read(recipe), 'train.epochs=2')) == {'train': {'epochs': 2, 'seed': 1}}
    assert to_plain(override(read(recipe), 'train.epochs=null')) == {'train': {'steps': 10, 'epochs': None, 'seed': 1}}


@pytest.mark.parametrize(
    ('words', 'problem'),
    [
        ('train.steps=5 train.epochs=4', 'train.epochs=4: train.steps is given, too (train.steps=5); leave one of the two out'),
        ('train.epochs=4 x=1 train.steps=5', 'train.epochs=4: train.steps is given, too (train.steps=5)'),
        ('train.steps=null train.epochs=4', ''),  # the way to clear what the recipe says
        ('train.epochs=4 train.steps=5 train.epochs=null', ''),  # as `tune --lr_range` clears what the user says
        ('train.steps=5 train.steps=6', ''),  # a script's default and its user's choice
        ('checkpoint.every=5 evaluate.every_epochs=4', ''),  # of different parts
    ],
)
def test_one_command_line_does_not_say_one_thing_in_two_ways(words: str, problem: str) -> None:
    assignments = [(word, word) for word in words.split()]
    with pytest.raises(ConfigError, match=re.escape(problem)) if problem else contextlib.nullcontext():
        check_alternatives(assignments)


def test_a_shipped_recipe_or_a_part_of_several_is_a_base_by_its_name(tmp_path: Path) -> None:
    """Whoever installed the package need not know where it lies; a file beside the recipe goes first."""
    recipe = write(tmp_path, run='_base_: [pp_liteseg, slanet.yml, own.yml]\ntrain: {steps: 1}\n', own='clip: {norm: 2}\n')
    own = to_plain(read(recipe))
    assert own['loss'] == ['structure', 'smooth_l1']  # of slanet
    assert own['transforms'][0]['name'] == 'resize_step_scaling'  # of pp_liteseg
    assert own['clip']['norm'] == 2


@pytest.mark.parametrize(
    ('text', 'result'),
    [
        ('b: {<<: *a, steps: 6}', {'steps': 6, 'seed': 1}),
        ('b: {steps: 6, <<: *a}', {'steps': 6, 'seed': 1}),  # in either order
        ('b: {<<: *a, epochs: 2}', {'epochs': 2, 'seed': 1}),  # another way to say how long
        ('b: {<<: [{seed: 2}, *a]}', {'steps': 5, 'seed': 2}),  # of several the first wins
        ('b: &b {<<: *a, steps: 6}\nc: {<<: *b}', {'steps': 6, 'seed': 1}),
    ],
)
def test_a_merge_key_brings_in_what_the_mapping_does_not_say(tmp_path: Path, text: str, result: object) -> None:
    assert to_plain(read(write(tmp_path, run=f'a: &a {{steps: 5, seed: 1}}\n{text}\n')).value['b']) == result


@pytest.mark.parametrize(
    ('assignment', 'result'),
    [
        ('a.b=1', {'a': {'b': 1, 'c': [{'d': 0}]}}),
        ('a.c.0.d=5', {'a': {'b': 0, 'c': [{'d': 5}]}}),  # into a list
        ('n=[1, 2]', {'a': {'b': 0, 'c': [{'d': 0}]}, 'n': [1, 2]}),  # YAML values
        ('n=', {'a': {'b': 0, 'c': [{'d': 0}]}, 'n': None}),
        ('n=,', {'a': {'b': 0, 'c': [{'d': 0}]}, 'n': ','}),  # which YAML wants to be quoted
        ('n=*.png', {'a': {'b': 0, 'c': [{'d': 0}]}, 'n': '*.png'}),
        ('n=x=y', {'a': {'b': 0, 'c': [{'d': 0}]}, 'n': 'x=y'}),  # the first = divides
    ],
)
def test_an_assignment_overrides_one_key(assignment: str, result: object) -> None:
    under = Node({'a': Node({'b': Node(0, ''), 'c': Node([Node({'d': Node(0, '')}, '')], '')}, '')}, '')
    assert to_plain(override(under, assignment)) == result


@pytest.mark.parametrize(
    ('files', 'message'),
    [
        ({'run': 'x: 1\ny: 2\nx: 3\n'}, "run.yml:3: the key 'x' is written twice, first at run.yml:1"),
        ({'run': 'x: {<<: {y: 1}, z: 1, z: 2}\n'}, "run.yml:1: the key 'z' is written twice"),
        ({'run': 'x: {<<: 1}\n'}, 'run.yml:1: `<<` takes a mapping or a list of mappings'),
        ({'run': 'x: 1\ny: "a\\0b"\n'}, "run.yml:2: 'a\\x00b' cannot be read as str: it has a zero byte"),
        ({'run': '_base_: "a\\0b"\n'}, "run.yml:1: 'a\\x00b' cannot be read as str: it has a zero byte"),
        ({'run': 'x: "\\ud800"\n'}, "run.yml:1: '\\ud800' cannot be read as str: 'utf-8' codec can't encode character"),
        ({'run': 'x: [1\n'}, "run.yml:2: is not YAML: expected ',' or ']', but got '<stream end>'"),
        ({'run': 'y: 1\nx:\t1\n'}, "run.yml:2: is not YAML: found character '\\t' that cannot start any token"),
        ({'run': '- 1\n'}, 'run.yml:1: expected a mapping of keys, this is a list'),
        ({'run': 'x: !!python/object/apply:os.system [ls]\n'}, 'run.yml:1: the tag tag:yaml.org'),  # a recipe is data
        ({'run': 'x: !Tag {y: 1}\n'}, 'run.yml:1: the tag !Tag means nothing in a recipe'),
        ({'run': '_base_: none.yml\n'}, 'run.yml:1: _base_: there is no file none.yml'),
        ({'run': '_base_: pp_litseg\n'}, "run.yml:1: _base_: there is no file pp_litseg; did you mean 'pp_liteseg'?"),
        (
            {'run': '_base_: a.yml\n', 'a': '_base_: run.yml\n'},
            'run.yml: `_base_` comes back to itself: run.yml -> a.yml -> run.yml',
        ),
    ],
)
def test_a_recipe_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as caught:
        read(write(tmp_path, **files))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize('assignment', ['no equals', '=1', 'a.9.b=1', 'x=[1'])
def test_a_malformed_assignment_is_refused_with_its_text(assignment: str) -> None:
    with pytest.raises(ConfigError, match='--set'):
        override(Node({'a': Node([], '')}, ''), assignment)
