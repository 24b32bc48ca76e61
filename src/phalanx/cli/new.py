"""`phalanx new DIR`: writes a recipe for a folder of images and their annotations."""

import argparse
import contextlib
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from phalanx.cli.data_options import new_parser
from phalanx.curation.new.create import UNPACKED, create
from phalanx.curation.prepare.unpack import FETCHED
from phalanx.system.disk import remove_own
from phalanx.system.errors import RequestError, describe_error
from phalanx.system.paths import normalise_path, shorten_path


def command(words: Sequence[str]) -> int:
    """Exit status: 0 done, 1 the recipe does not train, 2 the folder has nothing to train on."""
    given = new_parser().parse_args(words)
    _check(given)
    folder = normalise_path(given.folder)
    out = normalise_path(given.out) if given.out else _beside(folder)
    if out.exists() and (not out.is_dir() or {path.name for path in out.iterdir()} - {UNPACKED, FETCHED}):
        raise RequestError(f'--out {given.out or shorten_path(out)}: exists already; give a new folder')
    try:
        with _leaving_nothing_half_made(out):
            return create(given, folder, out)
    except OSError as error:
        print(f'{shorten_path(out)} was not written: {describe_error(error)}', file=sys.stderr)
        return 1


@contextlib.contextmanager
def _leaving_nothing_half_made(out: Path) -> Iterator[None]:
    """Remove what was written into `out` if an error ends the work, so that the same command can be given again.

    What was unpacked or fetched stays: it is whole, and the next start uses it.
    """
    was_there = out.exists()
    try:
        yield
    except Exception:
        for path in [*out.iterdir()] if out.is_dir() else ():  # nothing else was there, see `command`
            if path.name not in (UNPACKED, FETCHED):
                remove_own(path)
        if not was_there and out.is_dir() and not any(out.iterdir()):
            remove_own(out)
        raise


def _beside(folder: Path) -> Path:
    """Default output folder: NAME_phalanx in the working folder, or next to `folder` if the working folder is inside it."""
    name = (folder.name if folder.is_dir() else folder.stem) or 'data'
    working = Path.cwd()
    within = folder.is_dir() and working.resolve().is_relative_to(folder.resolve())
    return (folder.parent if within else working) / f'{name}_phalanx'


def _check(given: argparse.Namespace) -> None:
    if not given.folder.exists():
        raise RequestError(f'{given.folder}: there is no such folder')
    if given.out and given.out.suffix in ('.yml', '.yaml'):
        raise RequestError(f'--out {given.out}: is the folder to write to; give --out {given.out.with_suffix("")}')
    if given.weights and not given.weights.is_file():
        raise RequestError(f'--weights {given.weights}: there is no such file')
    if given.val is not None and not 0 < given.val < 1:
        raise RequestError(f'--val {given.val}: give a share between 0 and 1')
    if given.minutes is not None and not given.minutes > 0:
        raise RequestError(f'--minutes {given.minutes}: must be above 0')
    if given.masks and given.format not in (None, 'masks'):
        raise RequestError(f'--masks: is for --format masks, not {given.format}; leave one of them out')
    if given.groups:
        try:
            re.compile(given.groups)
        except re.error as error:
            raise RequestError(f'--groups {given.groups}: is not a regular expression: {error}') from None
