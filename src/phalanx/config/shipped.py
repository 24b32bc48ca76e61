"""The recipes that come with the package, by their names."""

from itertools import groupby
from pathlib import Path

import phalanx

BASES = '_base_'  # the folder of those that are not whole recipes, but what several have in common


def recipes_folder() -> Path:
    """Where the shipped recipes lie: inside the installed package, or at the top of a checkout."""
    inside = Path(phalanx.__file__).parent / 'recipes'
    return inside if inside.is_dir() else Path(phalanx.__file__).parents[2] / 'recipes'


def shipped_recipes(*, parts: bool = False) -> dict[str, Path]:
    """The shipped recipes by name, and with `parts` what they have in common, too: a recipe may name it as its base."""
    files = sorted(recipes_folder().glob('*/*.yml'))
    return {file.stem: file for file in files if parts or file.parent.name != BASES}


def list_recipes() -> str:
    """The shipped recipes for a person to choose from: the folder of each family; each name with what its file says first."""
    found = shipped_recipes()
    width = max(map(len, found))
    lines: list[str] = []
    for folder, files in groupby(found.values(), key=lambda file: file.parent):
        lines.append(f'{folder.name} ({folder}):')
        lines += [f'  {file.stem:<{width}}  {_title(file)}' for file in files]
    return '\n'.join(lines)


def _title(file: Path) -> str:
    """The first sentence of the comment that a recipe begins with."""
    with file.open(encoding='utf-8') as text:
        return text.readline().removeprefix('# ').rstrip().partition('. ')[0].removesuffix('.')
