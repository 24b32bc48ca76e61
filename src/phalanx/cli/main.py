"""`phalanx COMMAND ...`: finds the command and imports only its modules."""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import phalanx
from phalanx.config.shipped import list_recipes
from phalanx.system.errors import CheckpointError, RequestError


class Command(NamedTuple):
    """Location of a command: its function `command` takes the words after its name and returns the exit status."""

    module: str  # of the function `command`
    options: str  # module of its parser, `<name>_parser`; imports no torch
    about: str


COMMANDS = {
    'new': Command('cli.new', 'cli.data_options', 'Writes a recipe for a folder of images and their annotations.'),
    'train': Command('cli.train', 'cli.train_options', 'Trains a recipe, on one rank or several.'),
    'eval': Command('cli.evaluate', 'cli.options', 'Evaluates the weights of a run, or others.'),
    'predict': Command('cli.predict', 'cli.predict_options', 'Writes the results of a trained model for images.'),
    'read': Command('cli.read', 'cli.deploy_options', 'Reads pages: finds their texts and writes them in reading order.'),
    'config': Command('cli.config', 'cli.options', 'Lists the shipped recipes; of one, prints each value with its origin.'),
    'weights': Command('cli.weights', 'cli.options', 'Lists published weights by name, and fetches them.'),
    'data': Command('cli.data', 'cli.data_options', 'Checks a data set, or makes one from annotations in other formats.'),
    'tune': Command('cli.tune', 'cli.tune_options', 'Searches settings of a recipe, or shows its loss over the learning rate.'),
    'report': Command('cli.report', 'cli.run_options', 'Rebuilds the page of a run folder, also during the run.'),
    'runs': Command('cli.runs', 'cli.run_options', 'Lists runs: recipe, differences, metric, state, time, host.'),
    'compare': Command(
        'cli.compare', 'cli.run_options', 'Compares runs: curves, recipes, and their models on the same images.'
    ),
    'export': Command('cli.export', 'cli.deploy_options', 'Writes a trained network as an ONNX file, checked.'),
    'serve': Command('cli.serve', 'cli.deploy_options', 'Serves an exported model over HTTP, with a page to try it.'),
    'convert': Command('cli.convert', 'cli.options', 'Converts a configuration or weights of a Paddle project.'),
    'launch': Command('cli.launch', 'launch.options', 'Runs any script as the ranks of a run, on one node or many.'),
    'doctor': Command('cli.doctor', 'launch.options', 'Checks this node, or whether several can run together; starts nothing.'),
    'bench': Command('cli.bench', 'cli.bench_options', 'Measures training, the input pipeline, the network, or scaling.'),
    'plan': Command('cli.plan', 'cli.bench_options', 'Predicts the speed-up of more nodes.'),
}
EXAMPLES = (
    'examples:',
    '  phalanx train pp_liteseg_digits                # a training on data that comes with the package',
    '  phalanx new DIR                                # a recipe for your own images and annotations',
    '  phalanx config                                 # the shipped recipes',
    '  phalanx data check RECIPE --set data.root=DIR  # reads all images and annotations',
    '  phalanx train --help                           # the options of a command',
)


def main(argv: Sequence[str] | None = None, loading: Callable[[], AbstractContextManager[object]] = nullcontext) -> int:
    """Run a command; exit status: 0 done, 1 the run failed, 2 the request was wrong, 130/143 stopped after a checkpoint.

    `loading`: returns a context manager for the imports of the command.
    """
    # version and help need no imports
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in ('-V', '--version'):
        print(f'phalanx {phalanx.__version__}')
        return 0
    if not words or words[0] in ('-h', '--help', 'help'):
        print(_help())
        return 0 if words else 2
    # the command must exist, and its words must be UTF-8
    command = COMMANDS.get(words[0])
    if command is None:
        print(f'phalanx: {words[0]!r} is not a command\n{_help()}', file=sys.stderr)
        return 2
    if words[0] != 'launch' and (problem := _bad_name(words)):  # words of a launched program may be any bytes
        print(problem, file=sys.stderr)
        return 2
    if words == ['config']:
        print(f'{list_recipes()}\nnext: phalanx config NAME, phalanx train NAME')
        return 0
    # help imports the options only, and no torch
    if {'-h', '--help'} & set(words):  # the parser exits, unless the word belongs to a launched program
        getattr(import_module(f'phalanx.{command.options}'), f'{words[0]}_parser')().parse_known_args(words[1:])
    try:
        # now the command itself, with all that it imports
        with loading():
            run: Callable[[Sequence[str]], int] = import_module(f'phalanx.{command.module}').command
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith('phalanx'):
            raise
        extra = 'serve' if words[0] == 'serve' else 'train'
        print(
            f'phalanx {words[0]} needs {error.name.partition(".")[0]}: pip install "phalanx-vision[{extra}]"', file=sys.stderr
        )
        return 2
    try:
        # wrong requests end with status 2 and one line; other errors are bugs, with a traceback
        return run(words[1:])
    except (RequestError, CheckpointError) as error:  # CheckpointError: the weights that it names
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        if str(error.strerror).startswith('No usable temporary directory'):  # of Python's tempfile
            print(f'{error.strerror}: set TMPDIR to a folder that can be written', file=sys.stderr)
        elif error.errno == errno.ENAMETOOLONG:
            print(f'{str(error.filename)[:60]}...: {error.strerror}; no file name is that long', file=sys.stderr)
        else:
            raise
        return 2


def _bad_name(words: Sequence[str]) -> str | None:
    """Error message for a word or working folder that is not UTF-8: recipes, logs and reports could not name it."""
    try:
        folder = str(Path.cwd())
    except FileNotFoundError:
        return 'the working folder does not exist any more; change to another one'
    for word in (*words, folder):
        if (raw := os.fsencode(word)).decode(errors='replace') != word:
            shown = raw.decode(errors='backslashreplace')
            return f'{shown}: this name is not UTF-8 text, so no recipe, log or report could name it; rename it'
    return None


def _help() -> str:
    lines = [f'  {name:<8} {command.about}' for name, command in COMMANDS.items()]
    return '\n'.join(('usage: phalanx COMMAND ...', '', *lines, '', *EXAMPLES))


if __name__ == '__main__':
    sys.exit(main())
