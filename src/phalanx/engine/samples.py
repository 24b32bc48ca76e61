"""Samples of a run, read once per node: by its launcher, or by its first rank; the other ranks map what that one has read.

They live in an unnamed file in memory (`system.shared`), so that a list of a million entries is in memory once per node. The
launcher has it open until the end: all attempts of a launch train on the same list, and the next launch reads it again.
"""

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

from phalanx.data.samples import Dataset, digest_names
from phalanx.engine.job import Job
from phalanx.engine.parts import Parts
from phalanx.parallel import dist
from phalanx.system.shared import Handle, Shared

log = logging.getLogger('phalanx')

SAMPLES = 'PHALANX_SAMPLES'  # environment variable of ranks: digest of the recipe, handle of what their launcher has read
NAMES = ('train', 'evaluation')  # of `Parts`
Datasets = Sequence[Dataset[Any]]


class NodeSamples:
    """Data sets that a launcher has read for the ranks of its node."""

    def __init__(self, job: Job, *datasets: Dataset[Any]) -> None:
        self.job = job
        self._shared = Shared.of(datasets)
        # Mapped, so that this process does not keep a second copy.
        self.datasets: Datasets = self._shared.load() if self._shared else datasets

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """Context in which the ranks that this process starts find the data sets."""
        before = os.environ.pop(SAMPLES, None)
        if self._shared is not None:
            os.environ[SAMPLES] = json.dumps([self.job.digest(), *self._shared.handle])
        try:
            yield
        finally:
            os.environ.pop(SAMPLES, None)
            os.environ |= {SAMPLES: before} if before else {}

    def fingerprint(self) -> str:
        """Digest of the sample names; nodes compare it to detect different file lists."""
        digest = hashlib.sha256()
        for dataset in self.datasets:
            digest.update(digest_names(dataset.source) + b'\n')
        return digest.hexdigest()[:12]


def rank_parts(job: Job) -> Parts:
    """Parts of a job on a rank, with the data sets of its launcher if that has read them."""
    parts = Parts(job.recipe, job.task)
    if (shared := _open(announced_handle(job))) is not None:
        _take(parts, shared, NAMES)
    return parts


def share_samples(job: Job, parts: Parts, names: Sequence[str] = NAMES) -> None:
    """Give all ranks of a node the same data sets `names` of their `parts`. Collective. Raises as reading them does.

    The first rank of a node takes those of its launcher, or reads them. Where the others cannot map them (a plug-in whose data
    set cannot be pickled, containers that hide processes from each other), each rank reads its own.
    """
    if dist.world_size() == 1:
        return
    shared: Shared | None = None
    problem: Exception | None = None
    if dist.local_rank() == 0:
        try:
            shared = _open(announced_handle(job)) or Shared.of([getattr(parts, name) for name in names])
        except (OSError, ValueError) as error:  # of its files; raised when the others no longer wait
            problem = error
    handles = dist.gather_objects(shared and shared.handle)
    if problem is not None:
        raise problem
    shared = shared or _open(handles[dist.rank() - dist.local_rank()])  # nodes hold consecutive ranks
    if shared is not None:
        _take(parts, shared, names)


def _take(parts: Parts, shared: Shared, names: Sequence[str]) -> None:
    for name, dataset in zip(names, shared.load(), strict=True):
        setattr(parts, name, dataset)
    parts.shared = shared  # open until the end of the run, for ranks that come later


def announced_handle(job: Job) -> Handle | None:
    """Handle of the data sets that the launcher of this rank has read; None without one, or if it read those of another job."""
    recipe, path, device, inode = json.loads(os.environ.get(SAMPLES, 'null')) or ('', '', 0, 0)
    return (path, device, inode) if recipe == job.digest() else None


def _open(handle: Handle | None) -> Shared | None:
    """Open the data sets of another process; None if there are none, or if they cannot be opened."""
    if handle is None:
        return None
    try:
        return Shared.opened(handle)
    except OSError as error:
        log.info('reads its lists itself: those of another process cannot be opened (%s)', error)
        return None
