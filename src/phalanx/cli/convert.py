"""`phalanx convert recipe|weights`: what people bring along from the Paddle projects, written as files of ours."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import nn

from phalanx.config.arguments import Assignments, Parser, add_assignments, assignments
from phalanx.config.originals import dialect_of, translate
from phalanx.config.originals.dialect import Reading
from phalanx.config.read import parsed_assignment, plain
from phalanx.config.show import show
from phalanx.engine.runs import find_recipe, open_job
from phalanx.engine.zoo import create_model
from phalanx.system.errors import RequestError
from phalanx.weights.checkpoint import CheckpointError
from phalanx.weights.reading import load_weights

EXAMPLES = (
    'phalanx convert recipe configs/pp_liteseg/their.yml --out mine.yml',
    'phalanx convert weights model.pdparams --recipe mine.yml --out model.safetensors',
)


def command(words: Sequence[str]) -> int:
    """The exit status: 0 done, 1 the weights cannot be used, 2 the request was wrong."""
    parser = Parser('phalanx convert', 'Writes a configuration or weights of a Paddle project as files of ours.', EXAMPLES)
    commands = parser.add_subparsers(dest='command', required=True)
    about = 'write a configuration of a Paddle project as a recipe'
    recipe = commands.add_parser('recipe', help=about, description=about)
    recipe.add_argument('file', metavar='FILE', help='the configuration')
    recipe.add_argument('--out', type=Path, metavar='FILE', help='where to write it (default: standard output)')
    add_assignments(recipe)
    about = 'write weights of a Paddle project as .safetensors'
    weights = commands.add_parser('weights', help=about, description=about)
    weights.add_argument('file', metavar='FILE', type=Path, help='a .pdparams, or a .tar or .tar.gz that holds one')
    which = weights.add_mutually_exclusive_group(required=True)
    which.add_argument('--recipe', metavar='RECIPE', help='the recipe (ours or theirs) of the network that they belong to')
    which.add_argument('--model', metavar='NAME', help='the name of that network')
    weights.add_argument('--num_classes', type=int, metavar='N', help='of the network; a recipe says it, or its data set')
    add_assignments(weights, 'sets a key of the recipe, or an option of the network')
    weights.add_argument('--out', type=Path, required=True, metavar='FILE', help='the .safetensors file to write')
    given = parser.parse_args(words)
    return convert_recipe(given) if given.command == 'recipe' else convert_weights(given)


def convert_recipe(given: argparse.Namespace) -> int:
    """Raises ConfigError or RequestError."""
    assigned = assignments(given)
    path = find_recipe(given.file)
    dialect = dialect_of(path)
    if dialect is None:
        raise RequestError(f'{path}: is not a configuration of a Paddle project that is known here')
    open_job(given.file, assigned)  # reports whatever is wrong with it
    translation = translate(path, dialect, assigned)
    for text, _ in translation.rest:
        raise RequestError(f'{text}: is not a key of {path}; set it where the recipe is used')
    head = [
        f'What {dialect.project} has in {path}, as a recipe. Behind each value stands where it comes from.',
        *translation.notes,
        *translation.differs,
    ]
    text = ''.join(f'# {line}\n' for line in head) + show(translation.root)
    if given.out is None:
        print(text, end='')
        return 0
    try:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, encoding='utf-8')
    except OSError as error:
        raise RequestError(f'{given.out}: cannot be written: {error.strerror}') from None
    return 0


def convert_weights(given: argparse.Namespace) -> int:
    """Raises ConfigError or RequestError."""
    model = _network(given)
    try:
        load_weights(model, given.file)
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, given.out)
    except (CheckpointError, OSError, safetensors.SafetensorError) as error:
        print(f'the conversion failed: {error}', file=sys.stderr)
        return 1
    print(f'{given.out}: {sum(tensor.numel() for tensor in model.state_dict().values()):,} numbers')
    return 0


def _network(given: argparse.Namespace) -> nn.Module:
    """The network that the weights belong to."""
    try:
        if given.recipe is not None:
            return _of_recipe(given.recipe, assignments(given), given.num_classes)
        if given.num_classes is None:
            raise RequestError('--model needs --num_classes')
        options: dict[str, Any] = {}
        for assignment in assignments(given):
            keys, value = parsed_assignment(*assignment)
            options['.'.join(keys)] = plain(value)
        return create_model(given.model, num_classes=given.num_classes, **options)
    except (ValueError, TypeError, OSError) as error:  # an unknown network or option; a data set that names the classes
        raise RequestError(str(error)) from None


def _of_recipe(recipe: str, assigned: Assignments, num_classes: int | None) -> nn.Module:
    """The network of a recipe. Its data set is asked for the number of classes only where nothing else says it."""
    job, path = open_job(recipe, assigned), find_recipe(recipe)
    dialect = dialect_of(path)
    if num_classes is None and dialect is not None:
        said = dialect.read(path, Reading(dialect.project)).value.get('num_classes')
        num_classes = said.value if said is not None and isinstance(said.value, int) else None
    if num_classes is None or job.recipe.task != 'detection':
        return job.task.model()
    options = plain(job.resolved.value['model'])
    return create_model(options.pop('name'), num_classes=num_classes, **options)
