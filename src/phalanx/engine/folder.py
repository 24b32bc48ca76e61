"""The folder of a run: its recipe compared with a new one, its lock, and earlier runs set aside."""

import fcntl
import logging
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from phalanx.config.bind import DEFAULT
from phalanx.config.read import Node, insert, load_yaml, to_plain
from phalanx.engine.job import Job
from phalanx.system.errors import RequestError
from phalanx.system.paths import parse_path
from phalanx.weights.checkpoint import Checkpoints, describe_checkpoint, resolve_pointer

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


def resolve_names(job: Job) -> Node:
    """The resolved recipe as a run folder keeps it: names of classes or characters that stand in files are written out.

    Raises OSError and ValueError as reading those files does.
    """
    root = job.resolved
    for key, words in job.task.resolved_names().items():
        said = Node([Node(word, FOUND, word) for word in words], FOUND)
        root = insert(root, key.split('.'), said, FOUND)
    return root


def differences(job: Job) -> list[str]:
    """The keys that differ from the recipe in the run folder and change the training, as `key: there x, now y`.

    A key that the folder does not know and the recipe does not mention is not a difference: it is younger than the run.
    """
    stored = job.folder / 'config.yml'
    if not stored.is_file():
        return []
    before = {key: value for key, value, _ in _leaves(load_yaml(stored))}
    now = {key: value for key, value, origin in _leaves(resolve_names(job)) if key in before or origin != DEFAULT}
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
        yield path, to_plain(node), node.origin


def lock_folder(folder: Path) -> IO[str]:
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
        lock_folder(job.folder).close()
    if resume not in (None, 'auto') and not resolve_pointer(parse_path(str(resume))).is_dir():
        raise RequestError(f'--resume {resume}: there is no such folder; give a checkpoint or run folder, or `auto`')
    if resume is None and not fresh and Checkpoints(job.folder, keep=1).all() and (changed := differences(job)):
        listed = '\n'.join(f'  {line}' for line in changed)
        raise RequestError(
            f'{job.folder} holds a run of another recipe:\n{listed}\n'
            'go on with it under the new settings (--resume auto), keep it aside and start again (--fresh), '
            'or use another --save_dir'
        )


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


def describe_weights(job: Job, weights: str | Path | None, *, raw: bool) -> str:
    """Which weights a command uses, for a person. Raises CheckpointError when the run has none."""
    place = Path(weights or job.folder)
    return f'{place}, {describe_checkpoint(place, raw=raw)}' if weights is None or place.is_dir() else str(weights)
