"""Configurations of the Paddle projects, run as they are: a dialect is a file with the name of its project,
which reads in the order of a configuration and ends with its Dialect; what is longer stands in files beside it, by what they
translate: the model, the loss, the data and transforms, the optimizer and schedule.

To add one: a file that ends with its DIALECT, and its name in PROJECTS. A dialect is imported only for a file that is no recipe
of ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from phalanx.config.read import MOST_BASES, ConfigError, Node, find_base_file, load_yaml, parse_assignment
from phalanx.config.shipped import shipped_recipes
from phalanx.paddle.configs.dialect import Dialect, Reading, assign, holds

Assignment = tuple[str, str]  # text (`iters=100`) and origin


@dataclass(frozen=True)
class Translation:
    """A recipe made of an original configuration."""

    root: Node
    notes: tuple[str, ...]  # what was ignored, and why
    differs: tuple[str, ...]  # what is another thing here on purpose
    rest: tuple[Assignment, ...]  # assignments to keys of a recipe, still to be made


# What differs from all of them.
OWN_MEANS = 'a loss is the mean over what all ranks and micro-batches see in a step; there every rank takes the mean of its own'
PROJECTS = ('paddleseg', 'pdseg', 'paddleocr', 'paddledet')  # each a module here that ends with its DIALECT
BASES = ('_base_', '_BASE_')  # the keys by which their files, and recipes, name those underneath


def dialect_of(path: Path) -> Dialect | None:
    """The dialect of the configuration at `path`, recognised by its keys and those of its bases; None for a recipe of ours."""
    keys = _keys(path, set())
    if 'task' in keys:
        return None
    dialects: list[Dialect] = [import_module(f'{__name__}.{project}').DIALECT for project in PROJECTS]
    return next((dialect for dialect in dialects if any(marks <= keys for marks in dialect.recognised_by)), None)


def _keys(path: Path, seen: set[Path]) -> set[str]:
    """The top-level keys of a file and of its bases. Whoever reads it reports a missing base, or too many."""
    if path.resolve() in seen or len(seen) > MOST_BASES or not path.is_file():
        return set()
    seen.add(path.resolve())
    root = load_yaml(path, notes=[])
    keys = set(root.value)
    for named in filter(None, map(root.value.get, BASES)):
        for base in named.value if isinstance(named.value, list) else [named]:
            keys |= _keys(find_base_file(str(base.value), path, shipped_recipes(parts=True)), seen)
    return keys


def translate(path: Path, dialect: Dialect, assignments: Sequence[Assignment] = ()) -> Translation:
    """The recipe that says what the configuration at `path` says, after those `assignments` that are to its own keys: to
    those that are there, or stand in a section that recipes have not.

    Raises ConfigError with every problem found, each with the line of the original.
    """
    reading = Reading(dialect.project)
    root = dialect.read(path, reading)
    rest = []
    for text, origin in assignments:
        keys, value = parse_assignment(text, origin)
        if holds(root, keys) or keys[0] in dialect.keys:
            root = assign(root, keys, value)
        else:
            rest.append((text, origin))
    recipe = dialect.translate(root, reading)
    if reading.problems:
        raise ConfigError([f'{problem} [{dialect.project}]' for problem in reading.problems])
    differs = tuple(f'differs from {dialect.project} on purpose: {said}' for said in (OWN_MEANS, *dialect.differs))
    return Translation(recipe, tuple(dict.fromkeys(reading.notes)), differs, tuple(rest))
