"""Recipes shipped with the package, by name."""

from functools import cache
from itertools import groupby
from pathlib import Path

import phalanx

BASES = '_base_'  # folder of bases, which are not complete recipes


def recipes_folder() -> Path:
    """Folder of the shipped recipes: inside the installed package, or at the top of a checkout."""
    inside = Path(phalanx.__file__).parent / 'recipes'
    return inside if inside.is_dir() else Path(phalanx.__file__).parents[2] / 'recipes'


@cache
def shipped_recipes(*, parts: bool = False) -> dict[str, Path]:
    """Shipped recipes by name; with `parts` their bases too, which a recipe may name in `_base_`."""
    files = sorted(recipes_folder().glob('*/*.yml'))
    return {file.stem: file for file in files if parts or file.parent.name != BASES}


def list_recipes() -> str:
    """Table of the shipped recipes: the folder of each family, then its recipes, each with its title."""
    recipes = shipped_recipes()
    width = max(map(len, recipes))
    lines: list[str] = []
    for folder, files in groupby(recipes.values(), key=lambda file: file.parent):
        lines.append(f'{folder.name} ({folder}):')
        lines += [f'  {file.stem:<{width}}  {_title(file)}' for file in files]
    return '\n'.join(lines)


def _title(file: Path) -> str:
    """First sentence of the comment at the top of a recipe."""
    with file.open(encoding='utf-8') as text:
        return text.readline().removeprefix('# ').rstrip().partition('. ')[0].removesuffix('.')
