"""Argument parsing shared by all commands: options, recipes and assignments."""

import argparse
import os
import shlex
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from phalanx.system.paths import normalise_path, parse_path

Assignments = list[tuple[str, str]]  # `KEY=VALUE`, and the words of the command line, for messages
PLUGINS = 'PHALANX_PLUGINS'  # environment: Python files separated as in PATH; ranks and loader workers inherit it


class Help(argparse.RawDescriptionHelpFormatter):
    """Help format: one usage line with the required options; each option with its value, without alternative spellings."""

    def add_usage(self, usage: Any, actions: Any, groups: Any, prefix: str | None = None) -> None:
        required = [action for action in actions if action.required and action.option_strings]
        places = [action for action in actions if not action.option_strings]
        options = argparse.Action([], 'options', metavar='[options]')
        # argparse would list every option; the usage line shows only what is needed.
        if len(actions) == len(places):  # prefix of a subcommand, which argparse derives from this usage
            words = places
        elif any(action.nargs == argparse.REMAINDER for action in places):  # later words belong to another program
            words = [options, *required, *places]
        else:
            words = [*required, *places, options]
        super().add_usage(usage, words, [], prefix)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        # Spellings with dashes are accepted everywhere, so they are not listed.
        names = [name for name in action.option_strings if '-' not in name[2:]]
        if not names:
            return super()._format_action_invocation(action)
        # argparse repeats the metavar for each spelling of an option.
        metavar = self._get_default_metavar_for_optional(action)
        return ', '.join(names) + ('' if action.nargs == 0 else f' {self._format_args(action, metavar)}')


class Parser(argparse.ArgumentParser):
    """Argument parser without abbreviations; options are declared with underscores and accept dashes too.

    Not for a command that passes words on to another program, whose options it would change. `examples` end its help.
    """

    def __init__(self, prog: str, description: str | None = None, examples: Sequence[str] = (), color: bool = False) -> None:
        lines = '\n  '.join(('examples:', *examples)) if examples else None
        super().__init__(prog, description=description, epilog=lines, formatter_class=Help, allow_abbrev=False)
        self.color = color  # an argument of all parsers, and of subcommands, since Python 3.14

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        return super().parse_known_args(None if args is None else replace_dashes(args), namespace)


def replace_dashes(words: Sequence[str]) -> list[str]:
    """`--save-dir=a-b` -> `--save_dir=a-b`."""
    # Only names of options: values keep their dashes.
    split = [word.partition('=') for word in words]
    return [
        (f'--{name[2:].replace("-", "_")}' if name.startswith('--') else name) + sign + value for name, sign, value in split
    ]


def fill_flag_values(words: Sequence[str], flags: Sequence[str]) -> list[str]:
    """`--use_gpu BATCH_SIZE 4` -> `--use_gpu=true BATCH_SIZE 4`: a flag takes the next word only if it is yes or no."""
    return [
        f'{word}=true' if word in flags and after.lower() not in ('true', 'false', 'yes', 'no', '1', '0') else word
        for word, after in pairwise([*words, ''])
    ]


def add_command(commands: Any, name: str, about: str) -> argparse.ArgumentParser:
    """Add a subcommand; `about` is its line in the list of commands and its description."""
    parser: argparse.ArgumentParser = commands.add_parser(name, help=about, description=about)
    return parser


def add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--json', action='store_true', help='print one JSON object and nothing else')


class Offline(argparse.Action):
    """Set PHALANX_OFFLINE in the environment, which ranks inherit."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        os.environ['PHALANX_OFFLINE'] = '1'


def add_offline(parser: argparse.ArgumentParser) -> None:
    parser.add_argument('--offline', nargs=0, action=Offline, help='fetch nothing from the network (as PHALANX_OFFLINE=1)')


def add_assignments(parser: argparse.ArgumentParser, about: str = 'overrides a key of the recipe') -> None:
    names = ('--set', '-o', '--opts')
    parser.add_argument(*names, dest='set', nargs='+', action='extend', default=[], metavar='KEY=VALUE', help=about)
    parser.add_argument('--plugin', action=_Plugin, metavar='FILE', help='a Python file with models or parts of your own')


class _Plugin(argparse.Action):
    """Add a file to PHALANX_PLUGINS, for `families.plugins` in this process and its children."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        path = str(normalise_path(parse_path(values)))
        if os.pathsep in path:
            parser.error(f'--plugin {path}: {os.pathsep} separates files in {PLUGINS}; rename the file or its folder')
        files = [*filter(None, os.environ.get(PLUGINS, '').split(os.pathsep)), path]
        os.environ[PLUGINS] = os.pathsep.join(dict.fromkeys(files))


def add_recipe(parser: argparse.ArgumentParser) -> None:
    """Add RECIPE and `--set`."""
    parser.add_argument('recipe', metavar='RECIPE', help='a recipe (a path, or the name of a shipped one) or a run folder')
    add_assignments(parser)


def collect_assignments(arguments: argparse.Namespace, others: Assignments | None = None) -> Assignments:
    """Assignments after `--set`, then `others`. Raises ConfigError if two of them say one thing, such as steps and epochs."""
    from phalanx.config.read import check_alternatives  # here: the options of the launcher do without yaml

    assigned = [*((word, f'--set {word}') for word in arguments.set), *(others or ())]
    check_alternatives(assigned)
    return assigned


def repeat_options(assigned: Sequence[tuple[str, str]] = ()) -> str:
    """Plugins and assignments of this command as options of the next one, each after a space: to be read at its end."""
    files = filter(None, os.environ.get(PLUGINS, '').split(os.pathsep))
    words = [word for file in files for word in ('--plugin', file)]
    words += ['--set', *(text for text, _ in assigned)] if assigned else []
    return ''.join(f' {shlex.quote(word)}' for word in words)


def add_recipe_words(parser: argparse.ArgumentParser) -> None:
    """Add a recipe in every usual spelling: `RECIPE` or `-c RECIPE`, then `--set`, `-o` or pairs `KEY VALUE`."""
    parser.add_argument(
        'words', nargs='*', metavar='RECIPE [KEY VALUE ...]', help='a path, or the name of a shipped one; then assignments'
    )
    parser.add_argument('-c', '--config', '--cfg', dest='recipe', metavar='RECIPE', help='the recipe')
    add_assignments(parser)


def parse_recipe_words(parser: argparse.ArgumentParser, words: Sequence[str]) -> tuple[argparse.Namespace, str, Assignments]:
    """Options, recipe and assignments: those of `--set` first, then the pairs, each in the order written."""
    arguments = parser.parse_intermixed_args(words)
    # In `--set a=1 recipe.yml` argparse takes the recipe as a value of --set, but it is not an assignment.
    bare = [*arguments.words, *(word for word in arguments.set if '=' not in word)]
    arguments.set = [word for word in arguments.set if '=' in word]
    if arguments.recipe is None and not bare:
        parser.error('the recipe is missing: give a path or the name of a shipped one')
    recipe = arguments.recipe if arguments.recipe is not None else bare.pop(0)
    # The rest: KEY=VALUE, or KEY VALUE as in PaddleSeg and PaddleOCR.
    pairs = []
    while bare:
        word = bare.pop(0)
        if '=' in word:
            pairs.append((word, word))
        elif bare:
            value = bare.pop(0)
            pairs.append((f'{word}={value}', f'{word} {value}'))
        else:
            parser.error(f'{word!r}: expected KEY VALUE pairs after the recipe, this key has no value')
    return arguments, recipe, collect_assignments(arguments, pairs)
