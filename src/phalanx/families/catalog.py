"""Families, and the parts of each that a recipe selects by name; `engine.plugins` adds those of users.

A family is imported on first use, so that a training loads only its own.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib import import_module
from typing import Any, TypeVar

from torch import nn

from phalanx.families.base import Family

T = TypeVar('T')

# Value of `task` in a recipe, also the folder of the family -> class in its file `task.py`.
TASKS = {
    'segmentation': 'Segmentation',
    'detection': 'Detection',
    'recognition': 'Recognition',
    'table': 'TableStructure',
    'text_detection': 'TextDetection',
}
# The kinds of parts of a family, each in one of its modules: `losses` are the dict LOSSES of the module `loss`.
KINDS = {'models': 'models', 'data': 'data', 'losses': 'loss', 'transforms': 'transforms', 'metrics': 'metric'}
OWN_KINDS = {'detection': {'assigners': 'loss', 'teacher_losses': 'loss'}}  # kinds of single families


class LazyMapping(Mapping[str, T]):
    """Mapping with known keys and values that are loaded on first use."""

    def __init__(self, keys: Iterable[str], load: Callable[[str], T]) -> None:
        self._keys, self._load = tuple(keys), load
        self._loaded: dict[str, T] = {}

    def __getitem__(self, key: str) -> T:
        if key not in self._keys:
            raise KeyError(key)
        if key not in self._loaded:
            self._loaded[key] = self._load(key)
        return self._loaded[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: object) -> bool:  # Mapping's own would load it
        return key in self._keys


def _task(family: str) -> type[Family]:
    task: type[Family] = getattr(import_module(f'phalanx.families.{family}.task'), TASKS[family])
    return task


def _parts(family: str) -> dict[str, dict[str, Any]]:
    kinds = KINDS | OWN_KINDS.get(family, {})
    modules = {kind: import_module(f'phalanx.families.{family}.{module}') for kind, module in kinds.items()}
    return {kind: getattr(module, kind.upper()) for kind, module in modules.items()}


# The Task class of each family; its `Keys` are the family's part of a recipe.
FAMILIES: Mapping[str, type[Family]] = LazyMapping(TASKS, _task)
# family -> kind of part -> name -> builder
CATALOGS: Mapping[str, dict[str, dict[str, Any]]] = LazyMapping(TASKS, _parts)


def models() -> dict[str, Callable[..., nn.Module]]:
    """Builders of the networks of all families, for `phalanx.create_model`."""
    return {name: build for catalogs in CATALOGS.values() for name, build in catalogs['models'].items()}
