"""Configurations of the Paddle projects, run as they are: a dialect is a file with the name of its project,
which reads in the order of a configuration and ends with its Dialect; what is longer stands in files beside it, by what they
translate: the model, the loss, the data and transforms, the optimizer and schedule.

To add one: a file that ends with its Dialect, which goes into DIALECTS.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.config.read import MOST_BASES, ConfigError, Node, base_file, document, parsed_assignment
from phalanx.config.shipped import shipped
from phalanx.paddle.configs import paddledet, paddleocr, paddleseg, pdseg
from phalanx.paddle.configs.dialect import Dialect, Reading, assigned, holds

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
DIALECTS = (paddleseg.DIALECT, pdseg.DIALECT, paddleocr.DIALECT, paddledet.DIALECT)


def dialect_of(path: Path) -> Dialect | None:
    """The dialect of the configuration at `path`, told by its keys and those of its bases; None for a recipe of ours."""
    keys = _keys(path, set())
    if 'task' in keys:
        return None
    return next((dialect for dialect in DIALECTS if any(marks <= keys for marks in dialect.recognised_by)), None)


def _keys(path: Path, seen: set[Path]) -> set[str]:
    """The top-level keys of a file and of all that lie under it. A missing base, or too many, are told by who reads it."""
    if path.resolve() in seen or len(seen) > MOST_BASES or not path.is_file():
        return set()
    seen.add(path.resolve())
    root = document(path, notes=[])
    keys = set(root.value)
    for dialect in DIALECTS:
        named = root.value.get(dialect.bases) if dialect.bases else None
        for base in named.value if named and isinstance(named.value, list) else filter(None, [named]):
            keys |= _keys(base_file(str(base.value), path, shipped(parts=True)), seen)
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
        keys, value = parsed_assignment(text, origin)
        if holds(root, keys) or keys[0] in dialect.keys:
            root = assigned(root, keys, value)
        else:
            rest.append((text, origin))
    recipe = dialect.translate(root, reading)
    if reading.problems:
        raise ConfigError([f'{problem} [{dialect.project}]' for problem in reading.problems])
    differs = tuple(f'differs from {dialect.project} on purpose: {said}' for said in (OWN_MEANS, *dialect.differs))
    return Translation(recipe, tuple(dict.fromkeys(reading.notes)), differs, tuple(rest))
