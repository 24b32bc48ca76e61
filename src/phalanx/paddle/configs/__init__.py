"""Configurations of the Paddle projects, translated into recipes as they are.

A dialect is a file with the name of its project. It follows the order of a configuration and ends with its DIALECT; longer
parts (the model, the loss, the data and transforms, the optimizer and schedule) have files beside it.

To add one: write a file that ends with its DIALECT, and add its name to PROJECTS. A dialect is imported only for a file that is
not a recipe of Phalanx.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from phalanx.config.read import MOST_BASES, ConfigError, Node, find_base_file, load_yaml, parse_assignment
from phalanx.config.shipped import shipped_recipes
from phalanx.paddle.configs.dialect import Dialect, Reading, assign, holds

Assignment = tuple[str, str]  # text (`iters=100`) and origin


@dataclass(frozen=True)
class Translation:
    """Recipe translated from an original configuration."""

    root: Node
    notes: tuple[str, ...]  # ignored keys, with the reason
    differs: tuple[str, ...]  # deliberate differences from the original
    rest: tuple[Assignment, ...]  # assignments to keys of a recipe, not yet applied


# A difference from all of them.
GLOBAL_MEANS = 'a loss is the mean over the samples of all ranks and micro-batches of a step; there each rank averages its own'
PROJECTS = ('paddleseg', 'pdseg', 'paddleocr', 'paddledet')  # each a module here that ends with its DIALECT
BASES = ('_base_', '_BASE_')  # keys that name the base files of a configuration or recipe


def dialect_of(path: Path) -> Dialect | None:
    """Dialect of the configuration at `path`, recognised by its keys and those of its bases; None for a recipe of Phalanx."""
    keys = _keys(path, shipped_recipes(parts=True), set())
    if 'task' in keys:
        return None
    dialects: list[Dialect] = [import_module(f'{__name__}.{project}').DIALECT for project in PROJECTS]
    return next((dialect for dialect in dialects if any(marks <= keys for marks in dialect.recognised_by)), None)


def _keys(path: Path, shipped: Mapping[str, Path], seen: set[Path]) -> set[str]:
    """Top-level keys of a file and of its bases. A missing base, or too many, are errors of the later reading."""
    if path in shipped.values():
        return {'task'}  # known without reading
    if path.resolve() in seen or len(seen) > MOST_BASES or not path.is_file():
        return set()
    seen.add(path.resolve())
    root = load_yaml(path, notes=[])
    keys = set(root.value)
    for named in filter(None, map(root.value.get, BASES)):
        for base in named.value if isinstance(named.value, list) else [named]:
            keys |= _keys(find_base_file(str(base.value), path, shipped), shipped, seen)
    return keys


def translate(path: Path, dialect: Dialect, assignments: Sequence[Assignment] = ()) -> Translation:
    """Translate the configuration at `path` into a recipe, after applying those `assignments` that set its own keys.

    Its own keys are those it contains, and those in sections that recipes do not have.

    Raises ConfigError with every problem found, each with the line of the original.
    """
    reading = Reading(dialect.project)
    root = dialect.read(path, reading)
    # a word of the command line belongs to the original if the configuration or its schema has that key
    rest = []
    for text, origin in assignments:
        keys, value = parse_assignment(text, origin)
        if holds(root, keys) or keys[0] in dialect.keys:
            root = assign(root, keys, value)
        else:
            rest.append((text, origin))
    recipe = dialect.translate(root, reading)
    # all problems at once, so that one attempt shows them all
    if reading.problems:
        raise ConfigError([f'{problem} [{dialect.project}]' for problem in reading.problems])
    differs = tuple(
        f'differs from {dialect.project} on purpose: {difference}' for difference in (GLOBAL_MEANS, *dialect.differs)
    )
    return Translation(recipe, tuple(dict.fromkeys(reading.notes)), differs, tuple(rest))
