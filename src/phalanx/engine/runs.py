"""Run folders and recipes as a command finds them: found by name, read, checked, compared with what is already there."""

import fcntl
import hashlib
import logging
import os
import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import nn

from phalanx.config.bind import DEFAULT, bind, hints_of
from phalanx.config.read import ConfigError, Node, did_you_mean, document, override, placed, plain, read
from phalanx.config.shipped import shipped
from phalanx.data.cache import check_room
from phalanx.data.folders import text_of
from phalanx.data.samples import Draw, SampleError
from phalanx.engine.loader import Stream
from phalanx.engine.optim import REFUSING
from phalanx.engine.optim.frozen import freeze
from phalanx.engine.optim.groups import parameter_groups
from phalanx.engine.plugins import load_plugins
from phalanx.engine.schema import Recipe
from phalanx.families.base import Family
from phalanx.families.catalog import FAMILIES
from phalanx.families.task import Task
from phalanx.paddle.configs import Translation, dialect_of, translate
from phalanx.parallel.norms import NormSync, keep_folded
from phalanx.parallel.step import WholeStep
from phalanx.report.readable import counted
from phalanx.system.compiler import check_cache, use_own_cache
from phalanx.system.errors import CheckpointError, RequestError
from phalanx.system.paths import path_of, settled
from phalanx.weights.checkpoint import Checkpoints, pointed_to, said_of
from phalanx.weights.fetching import FetchError
from phalanx.weights.matching import Rows, few
from phalanx.weights.onnx_file import characters_in
from phalanx.weights.published import class_names, recipe_of
from phalanx.weights.reading import Taken, load_weights

log = logging.getLogger('phalanx')

# Keys that may differ between two starts of one run: they change what it costs or shows, not what it computes.
HARMLESS = (
    'train.workers',
    'train.cache',
    'train.init_misshapen',
    'train.bad_samples',
    'train.until',
    'report.',
    'checkpoint.',
    'evaluate.',
    'device',
)

LOCK = 'lock'  # in a run folder: locked as long as a run writes there
FOUND = 'found at the start'  # the origin of what a run folder's recipe says in the place of files


@dataclass(frozen=True)
class Job:
    """A recipe, read and checked, and the folder of its run."""

    recipe: Recipe
    task: Task[Any, Any, Any]
    resolved: Node
    name: str
    folder: Path
    notes: tuple[str, ...] = ()  # what of an original configuration was ignored, and keys of former versions
    differs: tuple[str, ...] = ()  # from the original on purpose

    def fingerprint(self) -> str:
        """One word for the samples by name, both splits: nodes that read other lists would train something else."""
        digest = hashlib.sha256()
        for dataset in (self.task.dataset('train'), self.task.dataset('eval')):
            for index in range(len(dataset)):
                digest.update(dataset.name(index).encode() + b'\0')
            digest.update(b'\n')
        return digest.hexdigest()[:12]


def open_job(recipe: str, assignments: Sequence[tuple[str, str]] = (), folder: Path | None = None) -> Job:
    """The job of a recipe (a path, the name of a shipped one, a configuration of a Paddle project, or a run folder).

    `assignments` are (text, origin).

    Raises ConfigError with every problem found.
    """
    load_plugins()
    path = find_recipe(recipe)
    found = _read(path, assignments)
    bound, task, resolved = bind(found.root, Recipe, _family(found.root))
    name = settled(path.parent).name if path.name == 'config.yml' else path.stem
    folder = folder or (path.parent if path.name == 'config.yml' else Path('runs') / name)
    return Job(bound, task, resolved, name, folder, found.notes, found.differs)


def _read(path: Path, assignments: Sequence[tuple[str, str]]) -> Translation:
    """What is written in a recipe, or made of an original configuration, and its assignments."""
    dialect = dialect_of(path)
    found = translate(path, dialect, assignments) if dialect else Translation(read(path), (), (), tuple(assignments))
    root, problems = found.root, []
    for text, origin in names_first(found.rest):
        try:
            root = override(root, text, origin)
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return replace(found, root=root, rest=())


def families_of(recipe: str | None) -> Mapping[str, type[Family]]:
    """The family of a recipe, which need not be right otherwise, by name; all families where it does not say one.

    Raises ConfigError when there is no such recipe.
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


def names_first(assignments: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """`assignments` with `part.name=` before others to the same part: a new name starts it again, whichever was typed first."""
    ordered: list[tuple[str, str]] = []
    for assignment in assignments:
        part, _, last = assignment[0].partition('=')[0].strip().rpartition('.')
        before = [text.partition('=')[0].strip() for text, _ in ordered]
        whole = max((place for place, key in enumerate(before) if f'{part}.'.startswith(f'{key}.')), default=-1)
        to_part = (place for place, key in enumerate(before) if place > whole and key.startswith(f'{part}.'))
        ordered.insert(next(to_part, len(ordered)) if last == 'name' else len(ordered), assignment)
    return ordered


def _family(root: Node) -> type[Family]:
    """The family that a recipe says. Raises ConfigError, also with what is wrong with the keys that all families have."""
    task = root.value.get('task')
    if task is not None and isinstance(task.value, str) and task.value in FAMILIES:
        return FAMILIES[task.value]
    said = f'{root.origin}: task: missing;' if task is None else f'{task.origin}: task: {plain(task)!r} is not'
    problems = [f'{said} one of {", ".join(FAMILIES)}']
    of_families = {key for family in FAMILIES.values() for key in hints_of(family.Keys)} - hints_of(Recipe).keys()
    common = {key: child for key, child in root.value.items() if key not in of_families}
    try:
        bind(Node({**common, 'task': Node('any', root.origin, 'any')}, root.origin), Recipe)
    except ConfigError as error:
        problems += error.problems
    raise ConfigError(problems)


def find_recipe(recipe: str) -> Path:
    """The file of a recipe: a path, a run folder, or the name of a shipped one. Raises ConfigError with the nearest name."""
    path = path_of(recipe)
    if path.is_dir() and (path / 'config.yml').is_file():
        return path / 'config.yml'
    if path.is_file() and path.suffix in ('.onnx', '.xml', '.pt2'):
        raise ConfigError([f'{recipe}: is an exported model, which `phalanx eval` and `phalanx serve` take; name its run'])
    if path.is_file():
        return path
    known, name = shipped(parts=True), recipe.removesuffix('.yml')
    if name in known:
        return known[name]
    if path.is_dir():
        raise ConfigError([f'{recipe}: is a folder without config.yml, so no run folder'])
    raise ConfigError(
        [f'{recipe}: there is no such file or shipped recipe{did_you_mean(name, known)} (`phalanx config` lists them)']
    )


def with_names(job: Job) -> Node:
    """The resolved recipe as a run folder keeps it: with what it leaves to files of the data set, the names of classes say.

    Raises what reading them raises.
    """
    root = job.resolved
    for key, words in job.task.resolved_names().items():
        said = Node([Node(word, FOUND, word) for word in words], FOUND)
        root = placed(root, key.split('.'), said, FOUND)
    return root


def differences(job: Job) -> list[str]:
    """What the recipe in the run folder says otherwise, where that changes the training: `key: there x, now y`.

    A key that the folder does not know and the recipe does not mention is not a difference: it is younger than the run.
    """
    stored = job.folder / 'config.yml'
    if not stored.is_file():
        return []
    before = {key: value for key, value, _ in _leaves(document(stored))}
    now = {key: value for key, value, origin in _leaves(with_names(job)) if key in before or origin != DEFAULT}
    keys = [key for key in sorted(before.keys() | now.keys()) if not key.startswith(HARMLESS)]
    return [
        f'{key}: there {before.get(key, "not set")}, now {now.get(key, "not set")}'
        for key in keys
        if before.get(key) != now.get(key)
    ]


def _leaves(node: Node, path: str = '') -> Iterator[tuple[str, Any, str]]:
    """The key, plain value and origin of everything under `node` that holds no further keys."""
    if isinstance(node.value, dict) and node.value:
        for key, child in node.value.items():
            yield from _leaves(child, f'{path}.{key}' if path else str(key))
    else:
        yield path, plain(node), node.origin


def hold(folder: Path) -> IO[str]:
    """Keeps other runs out of a run folder until what comes back is closed, or this process ends, however it ends.

    Raises RequestError naming the process that is there, and OSError.
    """
    file = (folder / LOCK).open('a+', encoding='utf-8')
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # unlike flock, no loader worker that outlives its rank has it too
    except (BlockingIOError, PermissionError):
        file.seek(0)
        with file:
            raise RequestError(
                f'{folder}: another run writes here ({file.read()}); wait for its end, stop it, or use another --save_dir'
            ) from None
    except OSError as error:
        log.info('%s: nothing keeps other runs out: %s', folder, error)  # of a disk that knows no locks
    try:
        file.truncate(0)
        file.write(f'process {os.getpid()} on {platform.node()}')
        file.flush()
    except OSError as error:  # a full disk, which Python says without the name of the file
        raise type(error)(error.errno, error.strerror, str(folder / LOCK)) from None
    return file


def check_folder(job: Job, resume: str | None, fresh: bool) -> None:
    """Raises RequestError when this run may not go on in its folder: another recipe was trained there, or a run is in it."""
    if (job.folder / LOCK).is_file() and os.access(job.folder / LOCK, os.W_OK):
        hold(job.folder).close()
    if resume not in (None, 'auto') and not pointed_to(path_of(str(resume))).is_dir():
        raise RequestError(f'--resume {resume}: there is no such folder; give a checkpoint or run folder, or `auto`')
    if resume is None and not fresh and Checkpoints(job.folder, keep=1).all() and (changed := differences(job)):
        listed = '\n'.join(f'  {line}' for line in changed)
        raise RequestError(
            f'{job.folder} holds a run of another recipe:\n{listed}\n'
            'go on with it under the new settings (--resume auto), keep it aside and start again (--fresh), '
            'or use another --save_dir'
        )


def check_parts(job: Job, world_size: int) -> None:
    """Builds what can be wrong without a wrong key: data sets, network, optimizer, shares.

    Raises RequestError with every problem found.
    """
    train, task = job.recipe.train, job.task
    if train.compile:
        use_own_cache()
        check_cache()
    if train.compile and pick_device(job.recipe.device).type == 'cpu':
        check_compiler()

    def check_cached() -> None:
        if train.cache is not None:
            check_room(train.cache)

    def check_stream() -> None:
        size = len(task.dataset('train'))
        Stream(size, train.global_batch(world_size), train.micro_batches, train.seed, 0, world_size)

    def check_network() -> None:
        model = task.model()
        freeze(model, train.freeze)
        groups = parameter_groups(model, job.recipe.parameters)
        if getattr(job.recipe.optimizer, 'func', None) in REFUSING:  # making any optimizer makes torch import its compiler: 3 s
            job.recipe.optimizer(groups)
        check_norms(job, model, world_size)

    problems: list[str] = []
    for check in (check_cached, check_stream, lambda: task.dataset('eval'), check_network):
        try:
            check()
        except (ValueError, OSError) as error:
            if str(error) not in problems:  # one missing folder keeps several parts from being built
                problems.append(str(error))
    if problems:
        raise RequestError('\n'.join(problems))


def check_norms(job: Job, model: nn.Module, world_size: int) -> None:
    """Raises ValueError where a batch norm would see one value a channel: of one sample, of which pooling left one pixel.

    Which networks have such maps only a forward pass shows. It is made where a rank normalises a single sample by itself, but
    for published weights, whose norms may be part of convolutions.
    """
    train, shared = job.recipe.train, job.recipe.norm_sync in ('global', 'node') and world_size > 1
    samples = train.global_batch(world_size) // (world_size * train.micro_batches)
    if samples > 1 or shared or job.recipe.norm_sync == 'frozen' or train.init_from or train.init_networks:
        return
    try:
        sample = job.task.dataset('train')[Draw(0, 0, 0, train.seed)]
    except (SampleError, OSError):
        return  # the loader deals with it, and counts
    with torch.no_grad():
        job.task.outputs(model.train(), job.task.align(job.task.collate([sample]), WholeStep()))


def load_initial(model: nn.Module, recipe: Recipe, task: Task[Any, Any, Any]) -> list[Taken]:
    """Fills `model` with the weights that a recipe starts from, when it names any. Raises CheckpointError."""
    train, taken = recipe.train, list[Taken]()
    if train.init_from is not None:
        theirs = _their_labels(train.init_from, train.init_classes, task)
        rows = Rows(task.labels(), theirs) if theirs else None
        found = load_weights(model, train.init_from, part=train.init_part, misshapen=train.init_misshapen, rows=rows)
        taken.append(with_remarks(found, keep_folded(model), recipe.norm_sync))
    for name, source in (train.init_networks or {}).items():
        found = load_weights(model, source, misshapen=train.init_misshapen, network=name)
        taken.append(with_remarks(found, keep_folded(model), recipe.norm_sync))
    return taken


def with_remarks(taken: Taken, folded: int, norm_sync: NormSync) -> Taken:
    """`taken` with what is to be said of so many batch norms that are part of a convolution in its file, and of fresh ones."""
    remarks = list(taken.remarks)
    if folded:
        many = counted(folded, 'batch norm is', 'batch norms are')
        remarks.append(f'{many} part of a convolution there, and so here: a scale and an offset that train, without statistics')
    if norm_sync == 'frozen' and (fresh := taken.fresh_norms):
        frozen = f'norm_sync: frozen keeps fresh batch norms from seeing any data ({few(fresh)})'
        remarks.append(f'{frozen}; norm_sync: off or global does not')
    return replace(taken, remarks=tuple(remarks))


def _their_labels(source: str, given: tuple[str, ...] | Path | None, task: Task[Any, Any, Any]) -> Sequence[Sequence[str]]:
    """What the rows of the heads of `source` stand for; none where that is not known. Raises CheckpointError."""
    if given is not None:
        try:
            return task.labels(given if isinstance(given, tuple) else text_of(given).removesuffix('\n').split('\n'))
        except (OSError, ValueError) as error:
            raise CheckpointError(f'train.init_classes: {error}') from None
    place = Path(source)
    if names := class_names(source) or (characters_in(place) if place.suffix == '.onnx' else ()):
        return task.labels(names)
    run = next((str(folder) for folder in (place, *place.parents[:2]) if (folder / 'config.yml').is_file()), None)
    recipe = run or recipe_of(source)
    if recipe is None:
        return ()
    try:
        other = open_job(recipe).task
        return other.labels() if type(other) is type(task) else ()
    except (ConfigError, ValueError, OSError) as error:
        log.info('%s: its classes are not known: %s', recipe, error)
        return ()


def check_initial(job: Job, fresh: bool) -> None:
    """Loads the weights that the run starts from, once for trial, and fetches them before. Raises RequestError.

    Unless it goes on from a checkpoint in its folder.
    """
    if not fresh and Checkpoints(job.folder, keep=1).all():
        return
    try:
        load_initial(job.task.model(), job.recipe, job.task)
    except CheckpointError as error:
        cure = '; to start from random weights: --set train.init_from=null' if isinstance(error, FetchError) else ''
        raise RequestError(f'train.init_from: {error}{cure}') from None


def check_compiler() -> None:
    """Raises RequestError without the compiler of C++ that torch takes for CPUs; torch itself says so at the first step."""
    compiler = os.environ.get('CXX', 'clang++' if sys.platform == 'darwin' else 'g++')
    if shutil.which(compiler) is None:
        cure = 'install it (Debian and Ubuntu: apt install g++), name another in CXX, or set train.compile=false'
        raise RequestError(f'train.compile: on a CPU torch needs the compiler {compiler}, which is not here; {cure}')


def set_aside(folder: Path) -> Path | None:
    """Renames an earlier run so that a fresh one can start in its place; nothing is deleted. Returns its new name.

    Raises RequestError for what is not a run folder: it is somebody's own.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not (folder / 'config.yml').is_file() or not folder.name:
        raise RequestError(f'--fresh: {folder} is not a run folder, so it is not put aside; use another --save_dir')
    aside = next(path for n in range(1, 10_000) if not (path := folder.with_name(f'{folder.name}.old-{n}')).exists())
    return folder.rename(aside)


def pick_device(wish: str, local_rank: int = 0) -> torch.device:
    """The device of a rank. Raises RequestError when there are fewer devices than ranks, or CUDA is wanted and absent."""
    if wish not in ('auto', 'cpu', 'cuda'):
        raise RequestError(f'device: {wish!r} is not one of auto, cpu, cuda')
    if wish == 'cpu' or (wish == 'auto' and not torch.cuda.is_available()):
        return torch.device('cpu')
    if not torch.cuda.is_available():
        raise RequestError('device: cuda was asked for, but torch sees no CUDA device here; use device=cpu or fix the driver')
    if local_rank >= torch.cuda.device_count():
        raise RequestError(f'local rank {local_rank} has no device: torch sees {torch.cuda.device_count()} CUDA devices')
    return torch.device('cuda', local_rank)


def said_of_weights(job: Job, weights: str | Path | None, *, raw: bool) -> str:
    """Which weights a command uses, for a person. Raises CheckpointError when the run has none."""
    place = Path(weights or job.folder)
    return f'{place}, {said_of(place, raw=raw)}' if weights is None or place.is_dir() else str(weights)
