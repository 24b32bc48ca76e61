"""`phalanx convert recipe|weights`: files of the Paddle projects, converted to ours."""

import argparse
import sys
from collections.abc import Sequence
from shlex import quote
from typing import Any

import safetensors.torch
from torch import nn

from phalanx.cli.options import convert_parser
from phalanx.config.arguments import Assignments, collect_assignments
from phalanx.config.read import parse_assignment, to_plain
from phalanx.config.show import to_yaml
from phalanx.engine.job import find_recipe, open_job
from phalanx.engine.zoo import create_model
from phalanx.paddle.configs import dialect_of, translate
from phalanx.paddle.configs.dialect import Reading
from phalanx.system.errors import RequestError, describe_error
from phalanx.weights.reading import load_weights


def command(words: Sequence[str]) -> int:
    """Exit status: 0 done, 1 a file cannot be written, 2 the request was wrong."""
    given = convert_parser().parse_args(words)
    return convert_recipe(given) if given.command == 'recipe' else convert_weights(given)


def convert_recipe(given: argparse.Namespace) -> int:
    """Write a Paddle configuration as a recipe. Raises ConfigError or RequestError."""
    # the configuration must be one that would train
    assigned = collect_assignments(given)
    path = find_recipe(given.file)
    dialect = dialect_of(path)
    if dialect is None:
        raise RequestError(f'{path}: is not a configuration of a known Paddle project')
    open_job(given.file, assigned)  # reports all its problems
    # the notes of the translation become comments at the top
    translation = translate(path, dialect, assigned)
    for text, _ in translation.rest:
        raise RequestError(f'{text}: is not a key of {path}; set it where the recipe is used')
    head = [
        f'Recipe converted from {path} of {dialect.project}. The comment after each value is its origin.',
        *translation.notes,
        *translation.differs,
    ]
    text = ''.join(f'# {line}\n' for line in head) + to_yaml(translation.root)
    if given.out is None:
        print(text, end='')
        return 0
    try:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(text, encoding='utf-8')
    except OSError as error:
        raise RequestError(f'{given.out}: cannot be written: {error.strerror}') from None
    print(f'next: phalanx train {quote(str(given.out))}')
    return 0


def convert_weights(given: argparse.Namespace) -> int:
    """Write Paddle weights as .safetensors. Raises ConfigError, RequestError or CheckpointError."""
    model = _network(given)
    try:
        load_weights(model, given.file).announce()
        safetensors.torch.save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, given.out)
    except (OSError, safetensors.SafetensorError) as error:
        print(f'the conversion failed: {describe_error(error)}', file=sys.stderr)
        return 1
    print(f'{given.out}: {sum(tensor.numel() for tensor in model.state_dict().values()):,} numbers')
    if given.recipe:
        print(f'next: phalanx eval {quote(given.recipe)} --weights {quote(str(given.out))}')
    return 0


def _network(given: argparse.Namespace) -> nn.Module:
    """Network of the weights."""
    try:
        if given.recipe is not None:
            return _build_network(given.recipe, collect_assignments(given), given.num_classes)
        if given.num_classes is None:
            raise RequestError('--model needs --num_classes')
        options: dict[str, Any] = {}
        for assignment in collect_assignments(given):
            keys, value = parse_assignment(*assignment)
            options['.'.join(keys)] = to_plain(value)
        return create_model(given.model, num_classes=given.num_classes, **options)
    except (
        ValueError,
        TypeError,
        OSError,
    ) as error:  # an unknown network or option, or a data set that cannot be read for its classes
        raise RequestError(str(error)) from None


def _build_network(recipe: str, assigned: Assignments, num_classes: int | None) -> nn.Module:
    """Network of a recipe. Its data set is read only if neither option nor configuration gives the number of classes."""
    job, path = open_job(recipe, assigned), find_recipe(recipe)
    dialect = dialect_of(path)
    if num_classes is None and dialect is not None:
        node = dialect.read(path, Reading(dialect.project)).value.get('num_classes')
        num_classes = node.value if node is not None and isinstance(node.value, int) else None
    if num_classes is None or job.recipe.task != 'detection':
        return job.task.model()
    options = to_plain(job.resolved.value['model'])
    return create_model(options.pop('name'), num_classes=num_classes, **options)
