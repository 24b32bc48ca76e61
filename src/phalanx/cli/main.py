"""`phalanx COMMAND ...`: finds the command, and loads no more than it needs."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import NamedTuple

import phalanx
from phalanx.system.errors import RequestError


class Command(NamedTuple):
    """Where a command is: its function takes the words after its name and returns the exit status."""

    module: str
    function: str
    about: str


COMMANDS = {
    'new': Command('cli.data.new.command', 'command', 'Writes a recipe for a folder of images and their annotations.'),
    'train': Command('cli.commands', 'train', 'Trains a recipe, on one rank or several.'),
    'eval': Command('cli.commands', 'evaluate', 'Evaluates the weights of a run, or others.'),
    'predict': Command('cli.commands', 'predict', 'Writes the results of a trained model for images.'),
    'read': Command('deploy.read', 'command', 'Reads pages: finds their texts and writes them in reading order.'),
    'config': Command('cli.commands', 'config', 'Lists the shipped recipes; of one, prints each value with its origin.'),
    'weights': Command('cli.weights', 'command', 'Lists published weights by name, and fetches them.'),
    'data': Command('cli.data.command', 'command', 'Checks a data set, or makes one of annotations in other formats.'),
    'report': Command('cli.commands', 'report', 'Rebuilds the page of a run folder, also during the run.'),
    'export': Command('deploy.export', 'command', 'Writes a trained network as an ONNX file, checked.'),
    'serve': Command('deploy.serve.command', 'command', 'Serves an exported model over HTTP, with a page to try it.'),
    'convert': Command('cli.convert', 'command', 'Converts a configuration or weights of a Paddle project.'),
    'launch': Command('launch.command', 'command', 'Runs any script as the ranks of a run, on one node or many.'),
    'doctor': Command('launch.doctor', 'command', 'Checks this node, or whether several can run together; starts nothing.'),
    'bench': Command('cli.bench.command', 'command', 'Measures training, the input pipeline, the network, or scaling.'),
    'plan': Command('cli.bench.plan_command', 'command', 'Projects the speed-up of more nodes.'),
}
BEGINNING = (
    'examples:',
    '  phalanx train pp_liteseg_digits                # a training on data that comes with the package',
    '  phalanx new DIR                                # a recipe for your own images and annotations',
    '  phalanx config                                 # the shipped recipes',
    '  phalanx data check RECIPE --set data.root=DIR  # reads all images and annotations',
    '  phalanx train --help                           # the options of a command',
)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit status: 0 done, 1 the run failed, 2 the request was wrong, 130/143 stopped after a checkpoint."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in ('-V', '--version'):
        print(f'phalanx {phalanx.__version__}')
        return 0
    if not words or words[0] in ('-h', '--help', 'help'):
        print(_help())
        return 0 if words else 2
    command = COMMANDS.get(words[0])
    if command is None:
        print(f'phalanx: {words[0]!r} is not a command\n{_help()}', file=sys.stderr)
        return 2
    try:
        run: Callable[[Sequence[str]], int] = getattr(import_module(f'phalanx.{command.module}'), command.function)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith('phalanx'):
            raise
        print(f'phalanx {words[0]} needs {error.name}: pip install "phalanx-vision[train]"', file=sys.stderr)
        return 2
    try:
        return run(words[1:])
    except RequestError as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        print(f'{str(error.filename)[:60]}...: {error.strerror}; no file has such a name', file=sys.stderr)
        return 2


def _help() -> str:
    lines = [f'  {name:<8} {command.about}' for name, command in COMMANDS.items()]
    return '\n'.join(('usage: phalanx COMMAND ...', '', *lines, '', *BEGINNING))


if __name__ == '__main__':
    sys.exit(main())
