"""Job: a recipe found by name or path, read and checked, with the folder of its run."""

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from phalanx.config.bind import bind, key_types
from phalanx.config.read import ConfigError, Node, did_you_mean, override, read, to_plain
from phalanx.config.shipped import shipped_recipes
from phalanx.engine.plugins import load_plugins
from phalanx.engine.schema import Recipe
from phalanx.families.base import Family
from phalanx.families.catalog import FAMILIES
from phalanx.families.task import Task
from phalanx.paddle.configs import Translation, dialect_of, translate
from phalanx.system.buckets import StorePath, is_url
from phalanx.system.paths import normalise_path, parse_path

log = logging.getLogger('phalanx')

if TYPE_CHECKING:
    from phalanx.engine.mirror import Mirror

MOST_NAMED = 10  # runs and recipes that a message about a missing one names


@dataclass(frozen=True)
class Job:
    """Checked recipe and run folder."""

    recipe: Recipe
    task: Task
    resolved: Node
    name: str
    folder: Path
    notes: tuple[str, ...] = ()  # ignored keys of an original configuration, and keys of former versions
    differs: tuple[str, ...] = ()  # deliberate differences from the original configuration
    mirror: 'Mirror | None' = None  # of a run folder in a bucket

    @property
    def place(self) -> Path:
        """The run folder as users name it, which may be in a bucket."""
        return self.mirror.url if self.mirror else self.folder

    def digest(self) -> str:
        """Digest of the resolved recipe."""
        return hashlib.sha256(json.dumps(to_plain(self.resolved), sort_keys=True).encode()).hexdigest()[:12]


def mirror_of(place: Path) -> 'Mirror | None':
    """Mirror of the run at a URL; None for a path of this machine. Raises RequestError for a web server."""
    if not isinstance(place, StorePath):
        return None
    from phalanx.engine.mirror import open_mirror  # here: runs on this machine do not need it

    return open_mirror(place)


def fetch_run(place: Path) -> Path:
    """Folder on this machine of the run at `place`, which is fetched if it is in a bucket. Raises StoreError."""
    if (mirror := mirror_of(place)) is None:
        return place
    mirror.restore()
    return mirror.folder


def open_job(recipe: str, assignments: Sequence[tuple[str, str]] = (), folder: Path | None = None) -> Job:
    """Open the job of a recipe: a path, a shipped name, a configuration of a Paddle project, or a run folder.

    `assignments` are (text, origin). A run folder in a bucket has one on this machine (`Mirror`). Raises ConfigError with
    every problem found.
    """
    load_plugins()
    path = find_recipe(recipe)
    translation = _read(path, assignments)
    bound, task, resolved = bind(translation.root, Recipe, _family(translation.root))
    bound.buckets.announce()
    # A run folder is named by itself: its recipe is always called config.yml.
    name = normalise_path(path.parent).name if path.name == 'config.yml' else path.stem
    is_run_in_bucket = is_url(recipe) and path.name == 'config.yml'
    place = folder or (parse_path(recipe.removesuffix('/config.yml')) if is_run_in_bucket else run_folder(path))
    mirror = mirror_of(place)
    place = mirror.folder if mirror else place
    return Job(bound, task, resolved, name, place, translation.notes, translation.differs, mirror)


def _read(path: Path, assignments: Sequence[tuple[str, str]]) -> Translation:
    """Read a recipe, or translate an original configuration, and apply the assignments."""
    dialect = dialect_of(path)
    if dialect:
        translation = translate(path, dialect, assignments)
    else:
        translation = Translation(read(path), (), (), tuple(assignments))
        own = {*translation.root.value, *key_types(Recipe)}
        if any(text.partition('=')[0].partition('.')[0].strip() not in own for text, _ in assignments):
            from phalanx.paddle.configs.command_line import for_recipe  # here: most command lines set keys of the recipe

            rest, notes = for_recipe(assignments, translation.root)
            translation = replace(translation, rest=tuple(rest), notes=tuple(notes))
    root, problems = translation.root, []
    for text, origin in order_assignments(translation.rest):
        try:
            root = override(root, text, origin)
        except ConfigError as error:
            # All problems at once: a user fixes a command in one go.
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return replace(translation, root=root, rest=())


def families_of(recipe: str | None) -> Mapping[str, type[Family]]:
    """Return the family of a recipe by name, even if the recipe is otherwise invalid; all families if it names none.

    Raises ConfigError if there is no such recipe.
    """
    load_plugins()
    if recipe is None:
        return FAMILIES
    path = find_recipe(recipe)
    try:
        root = _read(path, ()).root
        return {root.value['task'].value: _family(root)}
    except ConfigError as error:
        log.info('%s', error)
        return FAMILIES


def order_assignments(assignments: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Move `part.name=` before other assignments to the same part: a new name resets the part, in whichever order they were
    typed.
    """
    ordered: list[tuple[str, str]] = []
    for assignment in assignments:
        part, _, last = assignment[0].partition('=')[0].strip().rpartition('.')
        before = [text.partition('=')[0].strip() for text, _ in ordered]
        # Look only behind the last assignment to the part as a whole: `model=...` discards those to `model.*` before it.
        whole = max((place for place, key in enumerate(before) if f'{part}.'.startswith(f'{key}.')), default=-1)
        to_part = (place for place, key in enumerate(before) if place > whole and key.startswith(f'{part}.'))
        ordered.insert(next(to_part, len(ordered)) if last == 'name' else len(ordered), assignment)
    return ordered


def _family(root: Node) -> type[Family]:
    """Return the family of a recipe. Raises ConfigError, which also lists invalid keys among those of all families."""
    task = root.value.get('task')
    if task is not None and isinstance(task.value, str) and task.value in FAMILIES:
        return FAMILIES[task.value]
    # Without a family its keys are unknown: check only those that all families share.
    problem = f'{root.origin}: task: missing;' if task is None else f'{task.origin}: task: {to_plain(task)!r} is not'
    problems = [f'{problem} one of {", ".join(FAMILIES)}']
    of_families = {key for family in FAMILIES.values() for key in key_types(family.Keys)} - key_types(Recipe).keys()
    common = {key: child for key, child in root.value.items() if key not in of_families}
    try:
        bind(Node({**common, 'task': Node('any', root.origin, 'any')}, root.origin), Recipe)
    except ConfigError as error:
        problems += error.problems
    raise ConfigError(problems)


def run_folder(recipe: Path) -> Path:
    """Default run folder of the recipe in this file; that of a run is its own."""
    return recipe.parent if recipe.name == 'config.yml' else Path('runs') / recipe.stem


def find_recipe(recipe: str) -> Path:
    """Return the file of a recipe: a path, a run folder, or a shipped name. Raises ConfigError with the nearest name."""
    path = parse_path(recipe)
    if path.suffix not in ('.yml', '.yaml'):
        path = fetch_run(path)
    if path.is_dir() and (path / 'config.yml').is_file():
        return path / 'config.yml'
    if path.is_file() and path.suffix in ('.onnx', '.xml', '.pt2'):
        use = 'torch.export.load' if path.suffix == '.pt2' else '`phalanx eval` and `phalanx serve`'
        raise ConfigError([f'{recipe}: is an exported model, for {use}; give its run folder here'])
    if path.is_file():
        return path
    known, name = shipped_recipes(parts=True), recipe.removesuffix('.yml')
    if name in known:
        return known[name]
    if path.is_dir():
        raise ConfigError([f'{recipe}: is not a run folder: it has no config.yml'])
    # Suggest run folders and recipes nearby, then shipped names.
    candidates = [*path.parent.glob('*.yml'), *path.parent.glob('*/config.yml'), *Path('runs').glob('*/config.yml')]
    places = sorted({str(file.parent if file.name == 'config.yml' else file) for file in candidates})
    near = did_you_mean(recipe, places) or did_you_mean(name, known)
    if not near and places:
        near = f'; there are {", ".join(places[:MOST_NAMED])}' + (' ...' if len(places) > MOST_NAMED else '')
    elif not near:
        near = '; there are no runs and no recipes here'
    raise ConfigError([f'{recipe}: no such file or shipped recipe{near} (`phalanx config` lists them)'])
