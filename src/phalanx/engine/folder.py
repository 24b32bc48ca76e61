"""Run folder: lock, comparison of its recipe with a new one, and earlier runs set aside."""

import contextlib
import fcntl
import json
import logging
import os
import platform
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from phalanx.config.bind import DEFAULT
from phalanx.config.read import Node, insert, load_yaml, to_plain
from phalanx.engine.initial import describe_moved
from phalanx.engine.job import Job, fetch_run
from phalanx.system.disk import LOCK, free_name
from phalanx.system.errors import RequestError
from phalanx.system.paths import parse_path
from phalanx.weights.checkpoint import Checkpoints, describe_checkpoint, resolve_pointer

log = logging.getLogger('phalanx')

# Keys that may differ between two starts of one run: they change what it costs or shows, not what it computes.
HARMLESS = (
    'train.workers',
    'train.cache',
    'buckets.',
    'train.init_misshapen',
    'train.bad_samples',
    'train.until',
    'report.',
    'checkpoint.',
    'evaluate.',
    'device',
)
BEFORE = ('log', 'data.html')  # of ranks of other launchers, and of `phalanx data check`: there before the run
START = 'start.json'  # file in the run folder: its last start, see `describe_start`
NEW_LOG = 'new.'  # prefix of the log of a rank until the earlier run, whose logs have the same names, is set aside
FROM_FILES = 'found at the start'  # origin label for values resolved from data files at start


def resolve_names(job: Job) -> Node:
    """Return the resolved recipe for the run folder, with class or character names read from files written out.

    Raises OSError and ValueError as reading those files does.
    """
    root = job.resolved
    for key, names in job.task.resolved_names().items():
        node = Node([Node(name, FROM_FILES, name) for name in names], FROM_FILES)
        root = insert(root, key.split('.'), node, FROM_FILES)
    return root


def differences(job: Job) -> list[str]:
    """Return the keys that differ from the recipe in the run folder and change the training, as `key: there x, now y`.

    A key that the folder lacks and the recipe leaves at its default is not a difference: it was added after that run.
    """
    stored = job.folder / 'config.yml'
    if not stored.is_file():
        return []
    # Compare plain values, not text: formatting, comments and the order of keys do not matter.
    before = {key: value for key, value, _ in leaves(load_yaml(stored))}
    now = {key: value for key, value, origin in leaves(resolve_names(job)) if key in before or origin != DEFAULT}
    keys = [key for key in sorted(before.keys() | now.keys()) if not key.startswith(HARMLESS)]
    return [
        f'{key}: there {before.get(key, "not set")}, now {now.get(key, "not set")}'
        for key in keys
        if before.get(key) != now.get(key)
    ]


def leaves(node: Node, path: str = '') -> Iterator[tuple[str, Any, str]]:
    """Yield key, plain value and origin of every leaf under `node`."""
    if isinstance(node.value, dict) and node.value:
        for key, child in node.value.items():
            yield from leaves(child, f'{path}.{key}' if path else str(key))
    else:
        yield path, to_plain(node), node.origin


def lock_folder(folder: Path) -> IO[str]:
    """Lock a run folder against other runs until the returned file is closed or this process ends.

    Raises RequestError naming the process that holds the lock, and OSError.
    """
    file = (folder / LOCK).open('a+', encoding='utf-8')
    try:
        # Unlike flock, lockf is not inherited by loader workers, which may outlive their rank.
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        file.seek(0)
        with file:
            raise RequestError(
                f'{folder}: another run writes here ({file.read()}); wait for its end, stop it, or use another --save_dir'
            ) from None
    except OSError as error:
        log.info('%s: cannot be locked against other runs: %s', folder, error)  # file system without locks
    # Name the holder, for the message above: on another node its process cannot be seen.
    try:
        file.truncate(0)
        file.write(f'process {os.getpid()} on {platform.node()}')
        file.flush()
    except OSError as error:  # a full disk; Python's error lacks the file name
        raise type(error)(error.errno, error.strerror, str(folder / LOCK)) from None
    return file


def check_folder(job: Job, resume: str | None, fresh: bool) -> None:
    """Raise RequestError if this run may not continue in its folder: another recipe was trained there, or a run is active."""
    # A run that is active now would continue to write there: fail before anything is started. (`run` locks for real.)
    if (job.folder / LOCK).is_file() and os.access(job.folder / LOCK, os.W_OK):
        lock_folder(job.folder).close()
    if job.mirror is not None:
        job.mirror.restore()
        if fresh and job.mirror.has_run() and not is_continued(job.folder):
            raise RequestError(f'--fresh: {job.mirror.url} has a run, which cannot be set aside there; use another --save_dir')
    if resume not in (None, 'auto') and not (found := resolve_pointer(fetch_run(parse_path(str(resume))))).is_dir():
        if found.is_file():
            cure = 'is a file, not the state of a run; to start from these weights: '
            raise RequestError(f'--resume {resume}: {cure}--set train.init_from={resume}')
        raise RequestError(f'--resume {resume}: no such folder; give a checkpoint or run folder, or `auto`')
    if resume is not None and not fresh and (moved := describe_moved(job.task, job.folder if resume == 'auto' else resume)):
        raise RequestError(f'--resume {resume}: {moved}')
    # Without --resume or --fresh, a changed recipe is probably a mistake: the folder would mix two experiments.
    if resume is None and not fresh and Checkpoints(job.folder, keep=1).has_steps() and (changed := differences(job)):
        listed = '\n'.join(f'  {line}' for line in changed)
        raise RequestError(
            f'{job.place} holds a run of another recipe:\n{listed}\n'
            'continue it with the new settings (--resume auto), set it aside and start again (--fresh), '
            'or use another --save_dir'
        )


def describe_start() -> dict[str, str]:
    """Name and start of the job that starts this program again after a stop or failure: of SLURM or Ray Train; else empty."""
    if number := os.environ.get('SLURM_JOB_ID'):
        return {'job': f'SLURM {number}', 'number': os.environ.get('SLURM_RESTART_COUNT', '0')}
    if (ray := sys.modules.get('ray')) is not None and 'ray.train' in sys.modules and ray.is_initialized():
        with contextlib.suppress(RuntimeError):  # not in a worker of Ray Train
            run = ray.train.get_context().get_experiment_name()
            return {'job': f'Ray {ray.get_runtime_context().get_job_id()} {run}', 'number': str(os.getpid())}
    return {}


def is_continued(folder: Path) -> bool:
    """True if an earlier start of the same job began the run, see `describe_start`."""
    if not (start := describe_start()) or not (folder / START).is_file():
        return False
    earlier = json.loads((folder / START).read_text(encoding='utf-8'))
    return bool(earlier.get('job') == start['job'] and earlier['number'] != start['number'])


def set_aside(folder: Path) -> Path | None:
    """Rename an earlier run so that a new one can start in its place; return its new path, None if there is none.

    Nothing is deleted, and nothing is moved if an earlier start of the same job began the run, see `describe_start`: a job that
    is started again repeats `--fresh`, but must continue. Raises RequestError if the folder is not a run folder.
    """
    if is_continued(folder):
        return None
    if not folder.exists() or (folder.is_dir() and all(path.name in BEFORE for path in folder.iterdir())):
        return None
    if not (folder / 'config.yml').is_file() or not folder.name:
        raise RequestError(f'--fresh: {folder} is not a run folder, so it is not set aside; use another --save_dir')
    return folder.rename(free_name(folder))


def name_logs(begun: Path, log: Path) -> None:
    """Move logs that ranks have begun with the prefix NEW_LOG, in the folder `begun`, to `log`, under their own names."""
    for file in begun.glob(f'{NEW_LOG}workerlog.*'):
        log.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # another rank has moved it
            file.replace(log / file.name.removeprefix(NEW_LOG))


def describe_weights(job: Job, weights: str | Path | None, *, raw: bool) -> str:
    """Describe the weights that a command uses. Raises CheckpointError if the run has none."""
    if weights is None:
        return f'{job.place}, {describe_checkpoint(job.folder, raw=raw)}'
    return f'{weights}, {describe_checkpoint(Path(weights), raw=raw)}' if Path(weights).is_dir() else str(weights)
