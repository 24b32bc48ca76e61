"""Arguments that all commands share."""

from __future__ import annotations

import subprocess
import sys

import pytest

from phalanx.cli.main import COMMANDS, main
from phalanx.config.arguments import (
    Parser,
    add_assignments,
    add_recipe_words,
    collect_assignments,
    parse_recipe_words,
    replace_dashes,
)
from phalanx.config.read import ConfigError
from phalanx.families.catalog import TASKS


@pytest.mark.parametrize('word', ['--save-dir', '--save_dir', '--save-dir=a-b', '--save_dir=a-b'])
def test_dashes_and_underscores_name_the_same_option_and_values_keep_theirs(word: str) -> None:
    parser = Parser('phalanx try')
    parser.add_argument('--save_dir')
    words = [word] if '=' in word else [word, 'a-b']
    assert parser.parse_args(words).save_dir == 'a-b'


def test_words_that_are_not_options_are_unchanged() -> None:
    assert replace_dashes(['a-b', '-o', '--', '--x-y=p-q', 'k-e=v']) == ['a-b', '-o', '--', '--x_y=p-q', 'k-e=v']


def test_a_subcommand_takes_dashes_too() -> None:
    parser = Parser('phalanx try')
    below = parser.add_subparsers(dest='command').add_parser('it')
    below.add_argument('--no_check', action='store_true')
    assert parser.parse_args(['it', '--no-check']).no_check


@pytest.mark.parametrize('flag', ['--set', '-o', '--opts'])
def test_an_assignment_is_named_as_one_of_set(flag: str) -> None:
    parser = Parser('phalanx try')
    add_assignments(parser)
    assert collect_assignments(parser.parse_args([flag, 'a=1', 'b=2'])) == [('a=1', '--set a=1'), ('b=2', '--set b=2')]


@pytest.mark.parametrize(
    'words', ['r.yml --set a=1 b 2', '--set a=1 r.yml b 2', '-c r.yml -o a=1 --seed 3 b 2', '--cfg r.yml b 2 --opts a=1']
)
def test_a_recipe_and_its_assignments_in_the_orders_that_people_write(words: str) -> None:
    parser = Parser('phalanx try')
    add_recipe_words(parser)
    parser.add_argument('--seed')
    _, recipe, assigned = parse_recipe_words(parser, words.split())
    assert recipe == 'r.yml'
    assert sorted(text for text, _ in assigned) == ['a=1', 'b=2']


def test_a_value_of_set_and_a_pair_do_not_say_one_thing_in_two_ways() -> None:
    parser = Parser('phalanx try')
    add_recipe_words(parser)
    with pytest.raises(ConfigError, match=r'^train\.epochs 4: train\.steps is given, too \(--set train\.steps=5\)'):
        parse_recipe_words(parser, ['r.yml', 'train.epochs', '4', '--set', 'train.steps=5'])


def test_help_shows_an_option_once_and_required_arguments_in_the_first_line() -> None:
    """`--log_dir DIR, --log-dir DIR`, as argparse has it, hides what is new in every second word."""
    parser = Parser('phalanx try', 'About.', ['phalanx try it'])
    parser.add_argument('run', metavar='RUN')
    parser.add_argument('--out', metavar='DIR', required=True)
    parser.add_argument('--log_dir', '--log-dir', metavar='DIR', help='of logs')
    first, *rest = parser.format_help().splitlines()
    assert first == 'usage: phalanx try --out DIR RUN [options]'
    assert '  --log_dir DIR  of logs' in rest
    assert rest[-2:] == ['examples:', '  phalanx try it']


def test_the_first_line_of_a_subcommand_names_the_command_once() -> None:
    parser = Parser('phalanx try')
    below = parser.add_subparsers(dest='command').add_parser('it')
    assert below.format_help().startswith('usage: phalanx try it [options]\n')


@pytest.mark.parametrize('name', COMMANDS)
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match='0'):
        main([name, '--help'])
    assert f'usage: phalanx {name}' in capsys.readouterr().out


@pytest.mark.parametrize('words', [*([name, '--help'] for name in COMMANDS), ['config'], ['weights', 'list']], ids=' '.join)
def test_commands_that_need_no_torch_do_not_import_it(words: list[str]) -> None:
    """It is nine tenths of the time that `phalanx config RECIPE` takes to answer."""
    said = subprocess.run([sys.executable, '-X', 'importtime', '-m', 'phalanx', *words], capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    loaded = {line.rpartition('|')[2].strip() for line in said.stderr.splitlines()}
    assert 'phalanx.cli.main' in loaded
    assert 'torch' not in loaded


@pytest.mark.parametrize(
    ('recipe', 'family'),
    [('pp_liteseg_digits', 'segmentation'), pytest.param('slanet_rendered', 'table', marks=pytest.mark.long)],
)
def test_a_training_imports_no_family_but_its_own(recipe: str, family: str) -> None:
    """Every rank pays for what is imported: 292 modules of ours when all families were; 208 take 0.15 s of one core."""
    code = f"""if True:
        import sys
        from phalanx.cli.train import parse_command, build_job
        build_job(*parse_command(['{recipe}'])).task.model()
        print(*(name for name in sys.modules if name.startswith('phalanx.')))"""
    ended = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True)
    loaded = [name.split('.') for name in ended.stdout.split()]
    families = {folder for folder in TASKS if ['phalanx', 'families', folder] in [name[:3] for name in loaded]}
    assert families == {family}
    assert not [name for name in loaded if name[:3] == ['phalanx', 'paddle', 'configs'] and len(name) > 4]
    assert len(loaded) < 220


def test_reading_pages_with_exported_files_loads_no_torch() -> None:
    """It would take 0.4 GB of the memory of each process, and most of its start."""
    code = "import sys, phalanx.cli.read; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout == 'False\n'


def test_modules_loaded_at_the_start_are_exempt_from_garbage_collection() -> None:
    asked = 'import gc, phalanx.__main__ as it; print(it.main(), gc.isenabled(), gc.get_freeze_count() > 100_000)'
    words = [sys.executable, '-c', asked, 'config', 'crnn_digits']
    said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert said.endswith('0 True True\n')


def test_a_name_that_is_not_utf8_is_refused_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['train', 'runs/latin\udce9.yml']) == 2
    assert capsys.readouterr().err.startswith('runs/latin\\xe9.yml: this name is not UTF-8 text')
