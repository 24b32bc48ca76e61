"""The data stream: which sample goes to which rank at which step, and the workers that read ahead.

The stream is a function of (seed, step, rank) and of the samples seen before, so a run starts anywhere in it without replaying
what came before.
"""

import contextlib
import ctypes
import errno
import multiprocessing
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
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
from phalanx.system.disk import LONGEST_TMPDIR
from phalanx.system.errors import RequestError
from phalanx.system.memory import keep_freed_memory
from phalanx.system.stops import STOPS

S = TypeVar('S')  # a sample
B = TypeVar('B', bound=ImageBatch)  # samples collated for one forward pass

PR_SET_PDEATHSIG = 1
PATIENCE = 480  # seconds that a rank waits for a batch of its workers; less than ranks wait for each other
TIMED_OUT = 'DataLoader timed out'  # what torch says then
LOOK = 1  # seconds between two looks at whether somebody still wants the batch


class UnwantedError(Exception):
    """A batch was no longer waited for: the run is to stop."""


class BadSampleError(Exception):
    """More samples cannot be used than the recipe allows."""


@dataclass(frozen=True)
class Stream:
    """The endless sequence of draws: epoch after epoch, each a fresh permutation of the samples, cut into steps and shares."""

    size: int  # samples of the data set
    global_batch_size: int
    micro_batches: int
    seed: int
    rank: int
    world_size: int
    offset: int = 0  # of a run whose global batch was another before: `Timeline.offset`

    def __post_init__(self) -> None:
        pieces = self.micro_batches * self.world_size
        if self.global_batch_size < pieces:
            raise ValueError(
                f'a global batch of {self.global_batch_size} cannot be shared by {self.world_size} ranks with '
                f'{self.micro_batches} micro-batches each: it needs at least {pieces} samples; '
                'enlarge train.global_batch_size or use fewer ranks'
            )

    def position(self, step: int) -> int:
        """The samples seen before `step`."""
        return self.offset + step * self.global_batch_size

    def share(self, step: int) -> list[Draw]:
        """The samples that this rank reads for `step`.

        Where the shares are unequal, some hold one sample more; losses and norms count samples, so nothing changes by it.
        """
        first = self.position(step)
        mine = np.array_split(np.arange(first, first + self.global_batch_size), self.world_size)[self.rank]
        return [self.draw(int(position), step) for position in mine]

    def draw(self, position: int, step: int) -> Draw:
        epoch, offset = divmod(position, self.size)
        return Draw(int(order(self.seed, epoch, self.size)[offset]), epoch, step, self.seed)

    def epoch_of(self, step: int) -> int:
        """The epoch of the global batch of `step`: the mean over its samples, rounded down, where it spans the end of one."""
        epochs, offset = divmod(self.position(step), self.size)
        later = sum((offset + sample) // self.size for sample in range(self.global_batch_size))
        return epochs + later // self.global_batch_size

    def epoch(self, step: int) -> float:
        """Passes over the data set made before `step`."""
        return self.position(step) / self.size


def check_batch(size: int, global_batch_size: int, ranks: int) -> None:
    """Raises RequestError for a global batch of more samples than the training set has, `size`."""
    if global_batch_size > size:
        raise RequestError(
            f'train.global_batch_size: a batch of {global_batch_size:,} samples would hold some of the {size:,} training '
            f'samples twice; take at most {size:,}'
            + (f' (train.batch_size_per_rank on {ranks} ranks: at most {size // ranks:,})' if ranks > 1 else '')
        )


@lru_cache(maxsize=2)  # for steps that span two epochs
def order(seed: int, epoch: int, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """The samples of an epoch in the order of their use."""
    return np.random.default_rng((seed, 0, epoch)).permutation(size)


class Loaded(NamedTuple):
    """A collated batch, and the samples that could not be used: number in the data set -> what is wrong."""

    batch: Any
    bad: dict[int, str]
    refused: str = ''  # why the samples make no batch


def _never() -> bool:
    return False


@dataclass
class Loader(Generic[S, B]):
    """Batches of this rank, read ahead by worker processes; keeps count of what could not be read.

    Raises OSError when the workers could not hand over what they read.
    """

    dataset: Dataset[S]
    collate: Callable[[Sequence[S]], B]
    _: KW_ONLY
    workers: int
    bad_samples: int
    device: torch.device
    replace: bool  # whether an unusable sample is replaced by the next one (training) or left out (evaluation)
    cache: PictureCache | None = None  # where decoded pictures are kept
    is_unwanted: Callable[[], bool] = _never  # asked about once a second while a batch is read: whether to give it up
    bad: dict[int, str] = field(default_factory=dict, init=False)  # what this rank could not use so far

    def __post_init__(self) -> None:
        if self.workers and len(folder := tempfile.gettempdir()) > LONGEST_TMPDIR:
            cure = f'loader workers need a TMPDIR of at most {LONGEST_TMPDIR} letters; set another one, or train.workers=0'
            raise OSError(errno.ENAMETOOLONG, cure, folder)

    def batches(self, draws: Iterator[list[Draw]]) -> Iterator[B]:
        """One batch a list of draws, in that order.

        Raises BadSampleError beyond the number that the recipe allows and for samples that make no batch, and RuntimeError
        when a worker has died, or brings nothing for PATIENCE seconds; UnwantedError when `is_unwanted` says so meanwhile.
        """
        is_unwanted = _never if self.workers else self.is_unwanted  # of workers, the reading of whose batch is not waited for
        reader = _Reader(self.dataset, self.bad_samples, self.replace, self.cache, is_unwanted)
        loader: DataLoader[Loaded] = DataLoader(
            reader,  # type: ignore[arg-type]  # a map from Draw, not from int
            batch_sampler=draws,
            collate_fn=partial(_collated, self.collate),
            num_workers=self.workers,
            worker_init_fn=_start_worker,
            pin_memory=self.device.type == 'cuda',
            prefetch_factor=4 if self.workers else None,
            timeout=min(LOOK, PATIENCE) if self.workers else 0,
        )
        with _stops_held():
            read_ahead = iter(loader)  # starts the workers
        for batch, bad, refused in received(read_ahead, self.is_unwanted):
            if refused:
                raise BadSampleError(refused)
            self.bad |= bad
            check_bad(self.bad, self.bad_samples)
            if batch is not None:
                yield batch
            elif self.replace:
                raise BadSampleError(f'no sample of the data set can be used: {next(iter(bad.values()))}')


def received(read_ahead: Iterator[Loaded], is_unwanted: Callable[[], bool]) -> Iterator[Loaded]:
    """What workers bring, each waited for in looks of LOOK seconds, which torch takes for its time-out.

    A worker that dies while it hands over a batch is met as its broken connection, before torch misses it.
    """
    looks = 0
    while True:
        try:
            loaded = next(read_ahead)
        except StopIteration:
            return
        except (ConnectionError, EOFError) as error:
            raise RuntimeError(f'DataLoader worker is gone: {error!r}') from error
        except RuntimeError as error:
            looks += 1
            if TIMED_OUT not in str(error) or looks * LOOK >= PATIENCE:
                raise
            if is_unwanted():
                end_workers()
                raise UnwantedError from None
            continue
        looks = 0
        yield loaded


def check_bad(bad: dict[int, str], allowed: int) -> None:
    """Raises BadSampleError, naming the first of them, when more samples are unusable than the recipe allows."""
    reasons = list(dict.fromkeys(bad.values()))  # each once: in a mixture of data sets a sample has another number every epoch
    if len(reasons) > allowed:
        shown = '; '.join(reasons[:10]) + (f'; and {len(reasons) - 10} more' if len(reasons) > 10 else '')
        cure = 'fix or remove them, or allow some with train.bad_samples'
        raise BadSampleError(
            f'{pluralize(len(reasons), "sample")} cannot be used, the recipe allows {allowed} ({cure}): {shown}'
        )


class _Reader(Generic[S]):
    """Draws -> samples, in a worker process."""

    def __init__(
        self, dataset: Dataset[S], bad_samples: int, replace: bool, cache: PictureCache | None, is_unwanted: Callable[[], bool]
    ) -> None:
        self.dataset, self.bad_samples, self.replace, self.cache = dataset, bad_samples, replace, cache
        self.is_unwanted = is_unwanted

    def __getitems__(self, draws: Sequence[Draw]) -> list[tuple[S | None, dict[int, str]]]:
        with use_cache(self.cache):
            return [self.read(draw) for draw in draws]

    def read(self, draw: Draw) -> tuple[S | None, dict[int, str]]:
        """The sample and what was found unusable on the way to it. Its replacement is a function of the data set alone."""
        if self.is_unwanted():
            raise UnwantedError
        bad: dict[int, str] = {}
        for index in range(draw.index, draw.index + len(self.dataset)):
            try:
                return self.dataset[draw.of(index % len(self.dataset))], bad
            except SampleError as error:
                bad[index % len(self.dataset)] = str(error)
            except TooLargeError as error:
                bad[index % len(self.dataset)] = f'{self.dataset.name(index % len(self.dataset))}: {error}'
            if not self.replace or len(set(bad.values())) > self.bad_samples:  # several samples may name one file
                break
        return None, bad


def _collated(collate: Callable[[Sequence[S]], Any], read: Sequence[tuple[S | None, dict[int, str]]]) -> Loaded | Transfer:
    samples = [sample for sample, _ in read if sample is not None]
    bad = {index: message for _, found in read for index, message in found.items()}
    try:
        loaded = Loaded(collate(samples) if samples else None, bad)
    except ValueError as error:
        loaded = Loaded(None, bad, str(error))
    in_worker = get_worker_info() is not None
    return Transfer(loaded) if in_worker and sys.platform == 'linux' else loaded


@contextlib.contextmanager
def _stops_held() -> Iterator[None]:
    """Workers that are forked in here are reached by no stop before `_start_worker`: until then torch's handlers end them."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_worker(number: int) -> None:
    # A terminal or scheduler signals all processes at once; the rank will save, and needs its workers until then, however long
    # its step takes. It ends them by its queue, or kills them (`end_workers`).
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    if sys.platform == 'linux':
        # It ends with its rank, at once: later it would miss files that the launcher removes, and say so after its last line.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    prepare_on_one_core()


def end_workers() -> None:
    """Ends the loader workers that a fault has left; else this process waits for them at its end, and its launcher for it.

    They ignore SIGTERM, which may have come from a scheduler; one with a hung disk would outlive anything else.
    """
    if workers := multiprocessing.active_children():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # else torch raises an error of its own for each that is killed here
        for worker in workers:
            worker.kill()


def prepare_on_one_core() -> None:
    """What a process does first whose work is to prepare samples."""
    cv2.setNumThreads(0)  # as many workers as there are cores; threads of their own would only fight for them
    torch.set_num_threads(1)
    keep_freed_memory()  # a forked worker has it from its rank


def evaluation_draws(size: int, batch_size: int, seed: int, rank: int, world_size: int) -> Iterator[list[Draw]]:
    """The share of `rank` in one pass over all samples: every sample on exactly one rank, none twice."""
    mine = range(rank, size, world_size)
    for start in range(0, len(mine), batch_size):
        yield [Draw(index, 0, 0, seed) for index in mine[start : start + batch_size]]
