"""`phalanx data rewrite RECIPE --as FORMAT --out DIR`: the data set of a recipe in another format."""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

from phalanx.cli.data.census import SPLITS
from phalanx.config.arguments import assignments
from phalanx.data.samples import SampleError, Split
from phalanx.engine.runs import open_job
from phalanx.system.errors import RequestError


@runtime_checkable
class Rewritable(Protocol):
    """A Task whose data can be written in other formats."""

    @property
    def rewritten_as(self) -> tuple[str, ...]:
        """The names of those formats."""

    def rewrite(self, split: Split, out: Path, *, form: str) -> Mapping[str, object]:
        """Writes a split below `out`, and returns the keys of `data` that read it. Raises SampleError, OSError, ValueError."""


def rewrite(given: argparse.Namespace) -> int:
    """The exit status: 1 when a sample cannot be read or a file not be written. Raises ConfigError or RequestError."""
    job = open_job(given.recipe, assignments(given))
    task: object = job.task
    if not isinstance(task, Rewritable):
        raise RequestError(f'{job.name}: the data of {type(task).__name__} have no other format to be written in')
    if given.form not in task.rewritten_as:
        formats = ', '.join(task.rewritten_as)
        raise RequestError(f'--as {given.form}: the data of {type(task).__name__} can be written as {formats}')
    if given.out.exists():
        raise RequestError(f'--out {given.out}: is there already; give a new folder')
    keys: dict[str, object] = {}
    try:
        for split in SPLITS:
            keys |= task.rewrite(split, given.out, form=given.form)
    except (OSError, ValueError, SampleError) as error:
        print(f'the data set cannot be rewritten: {error}', file=sys.stderr)
        return 1
    print(f'in a recipe: data: {json.dumps({"root": str(given.out)} | keys)}')
    return 0
