"""Paths as people write them."""

import os
from pathlib import Path


def parse_path(text: str) -> Path:
    """The path that `text` names; `~` is the user's home, as in `--out=~/x` and in recipes, where no shell puts it."""
    return Path(os.path.expanduser(text))  # noqa: PTH111 -- leaves `~nobody` as it is, where pathlib raises RuntimeError


def normalise_path(path: Path) -> Path:
    """`path` absolute and without `..`, so that it can be compared with others. Links stay, except in front of a `..`."""
    parts = path.absolute().parts
    if os.pardir not in parts:
        return path.absolute()
    end = len(parts) - parts[::-1].index(os.pardir)
    return Path(*parts[:end]).resolve().joinpath(*parts[end:])


def shorten_path(path: Path) -> str:
    """`path` as a person would write it from the working folder."""
    path, here = Path(os.path.normpath(path.absolute())), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
