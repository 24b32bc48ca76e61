"""Conversions of paths between text, absolute and displayed form."""

import argparse
import errno
import os
from pathlib import Path

from phalanx.system.buckets import StorePath, is_url, refuse_secrets
from phalanx.system.errors import RequestError


class EmptyPathError(argparse.ArgumentTypeError, ValueError, RequestError):
    """Path without a character. For argparse, which shows the messages of its own errors only."""

    def __init__(self) -> None:
        super().__init__('the path is empty; is a variable of the shell not set?')


def parse_path(text: str) -> Path:
    """Path named by `text`, also a URL, with `~` expanded: no shell does that for `--out=~/x` and recipes.

    Raises EmptyPathError, and UrlError for a URL with credentials; both are ValueErrors; OSError for a name that is too long.
    """
    if not text:  # else it would be the working folder
        raise EmptyPathError
    if is_url(text):
        return StorePath.parse(text)
    path = Path(os.path.expanduser(text))  # noqa: PTH111 -- leaves `~nobody` as it is, where pathlib raises RuntimeError
    try:
        path.lstat()
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:  # since Python 3.14, `path.exists()` is just false
            raise
    return path


def parse_place(text: str) -> str:
    """Return `text`, a path, address or name, as typed. Raises EmptyPathError, and UrlError for a URL with credentials."""
    if not text:  # else it would be the default
        raise EmptyPathError
    return refuse_secrets(text)


def normalise_path(path: Path) -> Path:
    """Absolute `path` without `..`, for comparisons. Links are kept, except in front of a `..`."""
    parts = path.absolute().parts
    if isinstance(path, StorePath):
        return path.resolve()
    if os.pardir not in parts:
        return path.absolute()
    # Resolve up to the last `..`: behind a link, `link/..` is not the folder of the link.
    end = len(parts) - parts[::-1].index(os.pardir)
    return Path(*parts[:end]).resolve().joinpath(*parts[end:])


def shorten_path(path: Path) -> str:
    """Shortest form of `path` for messages: relative to the working folder if it is inside."""
    if isinstance(path, StorePath):
        return str(path)
    # By text, as the user wrote it: links are not resolved.
    path, here = Path(os.path.normpath(path.absolute())), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def hint_slashes(path: str) -> str:
    """End of a message about a missing file whose path seems to come from Windows; else empty."""
    return '; folders are divided by /, not by \\' if '\\' in path else ''
