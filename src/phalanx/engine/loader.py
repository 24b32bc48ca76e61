"""Data stream (assignment of samples to steps and ranks) and the loader with its worker processes.

The stream is a function of (seed, step, rank) and of the number of samples seen before, so a run can start at any position
without replaying earlier ones.
"""

import contextlib
import ctypes
import errno
import multiprocessing
import signal
import sys
import tempfile
import warnings
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache, partial
from typing import Any, Generic, NamedTuple, TypeVar

import cv2
import numpy as np
import torch
from torch.utils.data import DataLoader, get_worker_info

from phalanx.data.batch import ImageBatch
from phalanx.data.cache import PictureCache, use_cache
from phalanx.data.samples import Dataset, Draw, SampleError
from phalanx.engine.transfer import Transfer
from phalanx.report.readable import pluralize
from phalanx.runtime.prepare import TooLargeError
from phalanx.system.buckets import StoreError, fetch_ahead, uses_buckets
from phalanx.system.cores import count_cores
from phalanx.system.disk import LONGEST_TMPDIR
from phalanx.system.errors import RequestError, describe_error
from phalanx.system.memory import keep_freed_memory
from phalanx.system.stops import STOPS, in_main_thread

S = TypeVar('S')  # a sample
B = TypeVar('B', bound=ImageBatch)  # samples collated for one forward pass

PR_SET_PDEATHSIG = 1
BATCH_TIMEOUT_S = 480  # wait of a rank for its workers; shorter than the timeout of collectives, so this error comes first
# Torch's words for a wait that was too long, for a dead worker, and for an error that a worker raised and survived.
TIMED_OUT, DIED, RAISED = 'DataLoader timed out', 'DataLoader worker', 'in DataLoader worker process'
AHEAD = 256  # samples per rank whose files are fetched from a bucket before workers get to them
POLL_S = 1  # seconds between two checks for cancellation while a batch is awaited


class LoadingCancelledError(Exception):
    """Waiting for a batch was cancelled: the run is to stop."""


class BadSampleError(Exception):
    """More samples are unusable than the recipe allows."""


@dataclass(frozen=True)
class Stream:
    """Endless sequence of draws: a new permutation of the samples per epoch, cut into steps and shares."""

    size: int  # samples of the data set
    global_batch_size: int
    micro_batches: int
    seed: int
    rank: int
    world_size: int
    offset: int = 0  # samples, after a change of the global batch: `Timeline.offset`

    def __post_init__(self) -> None:
        pieces = self.micro_batches * self.world_size
        if self.global_batch_size < pieces:
            raise ValueError(
                f'a global batch of {self.global_batch_size} cannot be shared by {self.world_size} ranks with '
                f'{self.micro_batches} micro-batches each: it needs at least {pieces} samples; '
                'enlarge train.global_batch_size or use fewer ranks'
            )

    def position(self, step: int) -> int:
        """Number of samples seen before `step`."""
        return self.offset + step * self.global_batch_size

    def share(self, step: int) -> list[Draw]:
        """Draws of this rank for `step`.

        Shares may differ by one sample; losses and norms count samples, so the result is the same.
        """
        least, longer = divmod(self.global_batch_size, self.world_size)  # the first `longer` ranks have one more
        first = self.position(step) + self.rank * least + min(self.rank, longer)
        return [self.draw(position, step) for position in range(first, first + least + (self.rank < longer))]

    def draw(self, position: int, step: int) -> Draw:
        """Draw at `position` of the stream, for `step`."""
        epoch, offset = divmod(position, self.size)
        return Draw(int(epoch_order(self.seed, epoch, self.size)[offset]), epoch, step, self.seed)

    def epoch_of(self, step: int) -> int:
        """Epoch of the global batch of `step`: the mean over its samples, rounded down.

        That is the epoch of its first sample, since a batch has at most `size` samples (`check_batch`).
        """
        return self.position(step) // self.size

    def epoch(self, step: int) -> float:
        """Epochs completed before `step`."""
        return self.position(step) / self.size


def check_batch(size: int, global_batch_size: int, ranks: int) -> None:
    """Raise RequestError if a global batch has more samples than the training set (`size`)."""
    if global_batch_size > size:
        raise RequestError(
            f'train.global_batch_size: a batch of {global_batch_size:,} samples would contain some of the {size:,} training '
            f'samples twice; use at most {size:,}'
            + (f' (train.batch_size_per_rank on {ranks} ranks: at most {size // ranks:,})' if ranks > 1 else '')
        )


@lru_cache(maxsize=2)  # two, since a step may span two epochs
def epoch_order(seed: int, epoch: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Permutation of the samples of an epoch."""
    return np.random.default_rng((seed, 0, epoch)).permutation(size)


class LoadedBatch(NamedTuple):
    """Collated batch and unusable samples: index in the data set -> reason."""

    batch: Any
    bad: dict[int, str]
    error: str = ''  # reason why the samples cannot be collated


def _never() -> bool:
    return False


@dataclass
class Loader(Generic[S, B]):
    """Batches of this rank, prefetched by worker processes. Records unusable samples in `bad`.

    Raises OSError if the path of the temporary folder is too long for the sockets of the workers.
    """

    dataset: Dataset[S]
    collate: Callable[[Sequence[S]], B]
    _: KW_ONLY
    workers: int
    bad_samples: int
    device: torch.device
    replace: bool  # replace an unusable sample by the next one (training) instead of leaving it out (evaluation)
    cache: PictureCache | None = None  # of decoded images
    is_cancelled: Callable[[], bool] = _never  # polled about once per second while a batch is awaited
    bad: dict[int, str] = field(default_factory=dict, init=False)  # unusable samples of this rank so far: index -> reason

    def __post_init__(self) -> None:
        if self.workers and len(folder := tempfile.gettempdir()) > LONGEST_TMPDIR:
            cure = f'loader workers need a TMPDIR of at most {LONGEST_TMPDIR} characters; set another one, or train.workers=0'
            raise OSError(errno.ENAMETOOLONG, cure, folder)

    def batches(self, draws: Iterator[list[Draw]]) -> Iterator[B]:
        """Yield one batch per list of draws, in order.

        Raises BadSampleError for more unusable samples than the recipe allows and for samples that cannot be collated;
        RuntimeError if a worker died or brings nothing for BATCH_TIMEOUT_S seconds; LoadingCancelledError if `is_cancelled`
        returns True meanwhile.
        """
        # Without workers the reader itself checks for cancellation; with workers `receive_batches` does.
        is_cancelled = _never if self.workers else self.is_cancelled
        reader = _Reader(self.dataset, self.bad_samples, self.replace, self.cache, is_cancelled)
        warnings.filterwarnings('ignore', 'This DataLoader will create')  # as `worker_notes`, at length, for each data set
        # torch starts new workers for each pass, so each evaluation forks again; a training is a single pass.
        loader: DataLoader[LoadedBatch] = DataLoader(
            reader,  # type: ignore[arg-type]  # a map from Draw, not from int
            batch_sampler=_fetch_upcoming(self.dataset, draws),
            collate_fn=partial(_collate_samples, self.collate),
            num_workers=self.workers,
            # A fork has PyTorch and the data set already, whatever it contains. Python 3.14 no longer forks by default.
            multiprocessing_context='fork' if self.workers and sys.platform == 'linux' else None,
            worker_init_fn=_start_worker,
            pin_memory=self.device.type == 'cuda',
            prefetch_factor=4 if self.workers else None,
            timeout=min(POLL_S, BATCH_TIMEOUT_S) if self.workers else 0,
        )
        with _block_stops():
            prefetched = iter(loader)  # starts the workers
        for batch, bad, error in receive_batches(prefetched, self.is_cancelled):
            if error:
                raise BadSampleError(error)
            self.bad |= bad
            check_bad_samples(self.bad, self.bad_samples)
            if batch is not None:
                yield batch
            elif self.replace:
                raise BadSampleError(f'no sample of the data set can be used: {next(iter(bad.values()))}')


def _fetch_upcoming(dataset: Dataset[Any], draws: Iterator[list[Draw]]) -> Iterator[list[Draw]]:
    """Yield `draws`; the files in buckets of those that follow are requested meanwhile."""
    following = deque[list[Draw]]()
    for batch in draws:
        if uses_buckets():
            fetch_ahead(file for draw in batch for file in dataset.files(draw))
            following.append(batch)
            if sum(map(len, following)) <= AHEAD:
                continue
            batch = following.popleft()
        yield batch
    yield from following


def worker_notes(workers: int) -> list[str]:
    """Warn of more workers per rank than cores."""
    cores = count_cores()
    here = f'train.workers: {workers} per rank, but {pluralize(cores, "core")} here'
    return [f'{here}: the rest helps only where reading waits for a disk or a network'] if workers > cores else []


def receive_batches(read_ahead: Iterator[LoadedBatch], is_cancelled: Callable[[], bool]) -> Iterator[LoadedBatch]:
    """Yield the batches of the workers, polling every POLL_S seconds by torch's timeout.

    A worker that dies while it sends a batch shows up as a broken connection before torch notices its death.
    """
    timeouts = 0
    while True:
        try:
            loaded = next(read_ahead)
        except StopIteration:
            return
        except (ConnectionError, EOFError) as error:
            if RAISED in str(error):
                raise
            raise RuntimeError(f'{DIED} is gone: {error!r}') from error
        except RuntimeError as error:
            timeouts += 1
            if TIMED_OUT not in str(error) or timeouts * POLL_S >= BATCH_TIMEOUT_S:
                raise
            # The workers are killed: one that is stuck on I/O would keep this process from ending.
            if is_cancelled():
                end_workers()
                raise LoadingCancelledError from None
            continue
        timeouts = 0
        yield loaded


def check_bad_samples(bad: dict[int, str], allowed: int) -> None:
    """Raise BadSampleError, naming the first ones, if more samples are unusable than the recipe allows."""
    reasons = list(dict.fromkeys(bad.values()))  # unique: in a mixture of data sets the index of a sample changes every epoch
    if len(reasons) > allowed:
        # A truncated download or a wrong folder makes hundreds of alike messages: print one, with the names of more files.
        alike = defaultdict[str, list[str]](list)  # messages that differ only in the file they begin with
        for reason in reasons:
            alike[reason.partition(': ')[2]].append(reason)
        problems = []
        for same in alike.values():
            others = ', '.join(reason.partition(': ')[0] for reason in same[1:6])
            more = f' and {len(same) - 6} more' if len(same) > 6 else ''
            problems.append(f'{same[0]} (also {others}{more})' if others else same[0])
        listed = '; '.join(problems[:3]) + (f'; and {len(problems) - 3} other problems' if len(problems) > 3 else '')
        cure = 'fix or remove them, or allow some with train.bad_samples'
        raise BadSampleError(
            f'{pluralize(len(reasons), "sample")} cannot be used, the recipe allows {allowed} ({cure}): {listed}'
        )


class _Reader(Generic[S]):
    """Map-style data set from draws to samples, for a worker process."""

    def __init__(
        self, dataset: Dataset[S], bad_samples: int, replace: bool, cache: PictureCache | None, is_cancelled: Callable[[], bool]
    ) -> None:
        self.dataset, self.bad_samples, self.replace, self.cache = dataset, bad_samples, replace, cache
        self.is_cancelled = is_cancelled

    def __getitems__(self, draws: Sequence[Draw]) -> 'list[tuple[S | None, dict[int, str]]] | str':
        """Samples of the draws, or the reason why the run cannot go on."""
        try:
            with use_cache(self.cache):
                return [self.read(draw) for draw in draws]
        except StoreError as error:
            return describe_error(error)

    def read(self, draw: Draw) -> tuple[S | None, dict[int, str]]:
        """Return the sample, or its replacement, and the samples found unusable on the way. Depends on the data set alone."""
        if self.is_cancelled():
            raise LoadingCancelledError
        bad: dict[int, str] = {}
        # The replacement is the next readable sample of the data set, the same one at any world size and with any number of
        # workers.
        for index in range(draw.index, draw.index + len(self.dataset)):
            try:
                return self.dataset[draw.of(index % len(self.dataset))], bad
            except SampleError as error:
                bad[index % len(self.dataset)] = str(error)
            except TooLargeError as error:
                bad[index % len(self.dataset)] = f'{self.dataset.name(index % len(self.dataset))}: {error}'
            except Exception as error:  # of a plug-in
                error.add_note(f'while reading {self.dataset.name(index % len(self.dataset))}')
                raise
            if not self.replace or len(set(bad.values())) > self.bad_samples:  # unique reasons: samples may share a bad file
                break
        return None, bad


def _collate_samples(
    collate: Callable[[Sequence[S]], Any], read: Sequence[tuple[S | None, dict[int, str]]] | str
) -> LoadedBatch | Transfer:
    """Collate the readable samples; in a worker, wrapped for the transfer to its rank."""
    if isinstance(read, str):
        return LoadedBatch(None, {}, read)
    samples = [sample for sample, _ in read if sample is not None]
    bad = {index: message for _, reasons in read for index, message in reasons.items()}
    try:
        # As an exception, torch would wrap the message in the traceback of the worker.
        loaded = LoadedBatch(collate(samples) if samples else None, bad)
    except ValueError as error:
        loaded = LoadedBatch(None, bad, str(error))
    in_worker = get_worker_info() is not None
    return Transfer(loaded) if in_worker and sys.platform == 'linux' else loaded


@contextlib.contextmanager
def _block_stops() -> Iterator[None]:
    """Block stop signals while workers are forked: until `_start_worker` runs, torch's handlers would end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(number: int) -> None:
    """Set up a worker process."""
    # A terminal or scheduler signals all processes at once. The rank still needs its workers until it has saved, however long
    # its step takes, so they ignore the signal; the rank ends them through its queue, or kills them (`end_workers`).
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    if sys.platform == 'linux':
        # End with the rank at once: later, the worker would report files that the launcher removes, after its last line.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    limit_to_one_core()


def end_workers(others: Collection[object] = ()) -> None:
    """Kill loader workers left by a fault; otherwise this process waits for them at exit, and its launcher for it.

    They ignore SIGTERM, which may come from a scheduler, and one stuck on I/O never exits. `others`: other children.
    """
    if workers := [child for child in multiprocessing.active_children() if child not in others]:
        if in_main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # otherwise torch raises an error for each worker killed here
        for worker in workers:
            worker.kill()


def limit_to_one_core() -> None:
    """Set up a process whose work is to prepare samples: one thread per library."""
    cv2.setNumThreads(0)  # parallelism comes from the workers; threads inside them would compete for the same cores
    torch.set_num_threads(1)
    keep_freed_memory()  # forked workers inherit it from their rank


def evaluation_draws(size: int, batch_size: int, seed: int, rank: int, world_size: int) -> Iterator[list[Draw]]:
    """Yield the share of `rank` in one pass over all samples, in batches: each sample on exactly one rank."""
    indices = range(rank, size, world_size)
    for start in range(0, len(indices), batch_size):
        yield [Draw(index, 0, 0, seed) for index in indices[start : start + batch_size]]
