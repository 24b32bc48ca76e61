"""Plugins: user-defined networks, losses, transforms, data sets, backbones, optimizers, schedules and trackers.

A plugin is a Python file, or an installed package, with a dict PLUGIN = {family: {kind: {name: builder}}}, with the kinds of
`catalog.CATALOGS`; {kind: {name: builder}} adds parts of no family. Plugins run code, so only the user names them: with
`--plugin FILE` or PHALANX_PLUGINS, or by installing a package with an entry point in the group `phalanx.plugins`. A recipe
or a run folder cannot.
"""

import inspect
import os
import sys
from functools import cache
from importlib.metadata import EntryPoints, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.config.arguments import PLUGINS
from phalanx.config.bind import key_types
from phalanx.engine.optim import OPTIMIZERS, SCHEDULES
from phalanx.families.catalog import CATALOGS
from phalanx.nn.backbones import BACKBONES
from phalanx.report.trackers import TRACKERS
from phalanx.system.errors import RequestError

SOURCE = '_phalanx_source'  # name in the module of a plugin: the bytes that it was made from
OF_ALL_FAMILIES: dict[str, dict[str, Any]] = {
    'backbones': BACKBONES,
    'optimizers': OPTIMIZERS,
    'schedules': SCHEDULES,
    'trackers': TRACKERS,
}


def load_plugins() -> None:
    """Add the parts of all plugins to the catalogs, once. Raises RequestError naming the file and the fix."""
    files = dict.fromkeys(filter(None, os.environ.get(PLUGINS, '').split(os.pathsep)))
    stems = dict[str, str]()
    for path in files:
        if (other := stems.setdefault(Path(path).stem, path)) != path:
            raise RequestError(f'--plugin {path}: {other} has the same file name; rename one of them')
        _add(_module(Path(path)), path)
    for entry in _installed(tuple(sys.path)):
        _add(entry.load(), f'the plugin {entry.name} ({entry.value})')


@cache
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """Plugins installed in the folders of `path`; to find them, the metadata of all packages there are read."""
    return entry_points(group='phalanx.plugins')


def _module(path: Path) -> Any:
    """Import a file once, and again when it has changed: in a notebook it is edited between two trainings.

    The module name is a function of the path, so that workers can unpickle its classes.
    """
    name, place = f'phalanx_plugin_{path.stem}', str(path.absolute())
    source = path.read_bytes() if path.is_file() else None
    before = sys.modules.get(name)
    if before is not None and (before.__file__, vars(before)[SOURCE]) == (place, source):
        return before
    spec = spec_from_file_location(name, place)
    if source is None or spec is None:
        raise RequestError(f'--plugin {path}: no such Python file')
    if before is not None:
        _remove(before)
    module = sys.modules[name] = module_from_spec(spec)
    vars(module)[SOURCE] = source
    try:
        # Not by the loader, whose cache tells files apart by whole seconds.
        exec(compile(source, place, 'exec'), vars(module))  # noqa: S102 - a plugin is code of the user
    except BaseException:
        del sys.modules[name]  # a failed import must not leave a half-initialised module behind
        raise
    return module


def _remove(plugin: ModuleType) -> None:
    """Take the parts of a plugin out of the catalogs, before those of its changed file are added."""
    for family, kinds in vars(plugin).get('PLUGIN', {}).items():
        catalogs = [(OF_ALL_FAMILIES[family], kinds)] if family in OF_ALL_FAMILIES else []
        catalogs += [(CATALOGS[family][kind], kinds[kind]) for kind in kinds if kind in CATALOGS.get(family, {})]
        for catalog, builders in catalogs:
            for name in [name for name, build in builders.items() if catalog.get(name) is build]:
                del catalog[name]


def _add(plugin: Any, where: str) -> None:
    """Add the parts of a plugin to the catalogs. Raises RequestError."""
    parts = plugin if isinstance(plugin, dict) else getattr(plugin, 'PLUGIN', None)
    if not isinstance(parts, dict) or not all(isinstance(kinds, dict) for kinds in parts.values()):
        raise RequestError(f'{where}: has no dict PLUGIN = {{family: {{kind: {{name: builder}}}}}}')
    for family, kinds in parts.items():
        if family in OF_ALL_FAMILIES:
            _add_to(OF_ALL_FAMILIES[family], kinds, f'{where}: PLUGIN: {family}')
            continue
        if family not in CATALOGS:
            raise RequestError(f'{where}: PLUGIN: {family!r} is not one of {", ".join([*CATALOGS, *OF_ALL_FAMILIES])}')
        for kind, builders in kinds.items():
            if kind not in CATALOGS[family]:
                raise RequestError(f'{where}: PLUGIN: {family}: {kind!r} is not one of {", ".join(CATALOGS[family])}')
            _add_to(CATALOGS[family][kind], builders, f'{where}: PLUGIN: {family}.{kind}')


def _add_to(catalog: dict[str, Any], builders: dict[str, Any], where: str) -> None:
    """Add `builders` to a catalog. Raises RequestError for a name that is taken, and for what is no builder."""
    if not isinstance(builders, dict):
        raise RequestError(f'{where}: expected {{name: builder}}, got {builders!r}')
    # Loading the same plugin twice is not a conflict.
    if conflicts := [name for name, build in builders.items() if catalog.get(name, build) is not build]:
        raise RequestError(f'{where}: {conflicts[0]!r} is taken; choose another name')
    for name, build in builders.items():
        if not inspect.isclass(build) and not inspect.isroutine(build):
            raise RequestError(f'{where}: {name!r} must be a class or a function, got an instance of {type(build).__name__}')
        try:
            key_types(build)
        except (NameError, TypeError, ValueError) as error:
            raise RequestError(f'{where}: {name!r}: its options are not known: {error}') from None
    catalog.update(builders)
