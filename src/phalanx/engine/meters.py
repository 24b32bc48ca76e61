"""Measurements of a run: data waits, slow ranks, memory, and step values read without blocking the device."""

import math
import resource
import time
from collections.abc import Iterator, Mapping, Sequence
from statistics import median_low
from typing import Any, TypeVar

import torch
from torch import Tensor

from phalanx.engine.progress import Progress
from phalanx.parallel import dist
from phalanx.system.buckets import fetched
from phalanx.system.memory import AsyncCopy

T = TypeVar('T')

MIN_DELAY_S = 1.0  # smaller differences between ranks of a node are noise from other processes
WARMUP_S = 300  # seconds of training before data throughput is evaluated: workers start cold
MORE_DATA = (
    'more train.workers help while cores are idle, train.cache where images are large; '
    '`phalanx bench data RECIPE` shows what takes how long and how many cores a device needs'
)


class StepNumbers:
    """Reduced loss terms, gradient norm and flags of recent steps, read one step late."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, AsyncCopy]] = []  # latest steps, still being copied to the host
        self.logged: list[list[float]] = []  # terms and total of each step since the last log line

    def add(self, step: int, means: Tensor, flags: Tensor, norm: Tensor) -> None:
        """Store the means of the loss terms [terms], `flags` [2] and the gradient norm [] of a step. Does not wait."""
        # One copy per step: each transfer from the device has a fixed cost.
        self.unread.append((step, AsyncCopy(torch.cat([means, means.sum()[None], flags, norm[None]]))))

    def read(self, keep: int) -> Iterator[tuple[int, list[float], float, Sequence[float]]]:
        """Yield (step, terms and total, gradient norm, flags) of all but the last `keep` steps, each once."""
        while len(self.unread) > keep:
            step, copy = self.unread.pop(0)
            *values, stop, new_bad, norm = copy.read().tolist()
            self.logged.append(values)
            yield step, values, norm, (stop, new_bad)

    def means(self) -> tuple[int, list[float]]:
        """Number of steps since the last call, and the means of their terms and total."""
        steps, logged = len(self.logged), self.logged
        self.logged = []
        return steps, [math.fsum(column) / steps for column in zip(*logged, strict=True)]


class BucketMeter:
    """Rates of the reads of this node from buckets since the last lap. Empty if no samples are read from one."""

    def __init__(self) -> None:
        self._begun = self._before = fetched()

    def lap(self, seconds: float) -> dict[str, float]:
        """MB/s that arrived, share of files found in the cache, and repeated requests."""
        now, before = fetched(), self._before
        if not now or now['ahead'] == self._begun.get('ahead', 0):  # nothing, or a run folder alone, is there
            return {}
        self._before = now
        arrived, files, found, repeated = (now[key] - before.get(key, 0) for key in ('bytes', 'asked', 'hits', 'retries'))
        rates = {'bucket_mb_per_s': arrived / 1e6 / seconds, 'bucket_hits': found / files if files else 1.0}
        return rates | ({'bucket_retries': repeated} if repeated else {})


class Stopwatch:
    """Time since the last lap and the part spent waiting for data, without pauses."""

    def __init__(self) -> None:
        self.seconds = self.waited = 0.0  # since the last lap
        self.total_seconds = self.total_waited = 0.0
        self._since = time.perf_counter()
        self._compared = False

    def time_waits(self, items: Iterator[T]) -> Iterator[T]:
        """Yield `items`, counting the time until each arrives as waiting."""
        while True:
            begin = time.perf_counter()
            try:
                item = next(items)
            except StopIteration:
                return
            self.waited += time.perf_counter() - begin
            yield item

    def pause(self) -> None:
        """Stop the clock for an evaluation or checkpoint; `resume` starts it again."""
        self.seconds += time.perf_counter() - self._since

    def resume(self) -> None:
        """Start the clock again."""
        self._since = time.perf_counter()

    def lap(self) -> tuple[float, float]:
        """Seconds, and seconds waited, since the last lap."""
        self.pause()
        self.resume()
        lap = self.seconds, self.waited
        self.total_seconds += self.seconds
        self.total_waited += self.waited
        self.seconds = self.waited = 0.0
        return lap

    def data_wait_warning(self) -> str | None:
        """Warning, once and not before WARMUP_S, if more than a tenth of the time was spent waiting for data; else None."""
        if self._compared or self.total_seconds < WARMUP_S:
            return None
        self._compared = True
        share = self.total_waited / self.total_seconds
        return f'{share:.0%} of the time so far was spent waiting for data: {MORE_DATA}' if share > 0.1 else None


def slower_ranks(ranks: Sequence[Mapping[str, float]]) -> list[str]:
    """Messages about ranks much slower than the median rank. `ranks`: seconds by phase, in order of rank.

    Much slower: more than 1.5 times as long in a phase, by more than a tenth of the median rank's total and by more than
    MIN_DELAY_S, below which the difference is noise. Of two ranks, the faster one is the median. Leave out phases in which a
    rank waits for others: they do not measure that rank.
    """
    whole = median_low([sum(phases.values()) for phases in ranks])
    usual = {phase: median_low([phases[phase] for phases in ranks]) for phase in ranks[0]}
    return [
        f'rank {rank} is slower than the others: {phase} took {seconds:.3g} s, {usual[phase]:.3g} s on the median rank'
        for rank, phases in enumerate(ranks)
        for phase, seconds in phases.items()
        if seconds > 1.5 * usual[phase] and seconds - usual[phase] > max(0.1 * whole, MIN_DELAY_S)
    ]


def peak_memory_mb(device: torch.device) -> float:
    """Peak memory of this rank in MiB: of the device on CUDA, of the process on a CPU."""
    if device.type == 'cuda':
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure_throughput(clock: Stopwatch, samples: int, device: torch.device, *, before: Progress) -> dict[str, Any]:
    """Return samples per second of training alone, data waits and memory, over all ranks and starts, for the summary.

    `samples` are those of all starts, `before` is the progress of earlier starts. Slow ranks are those of this start.
    """
    ranks = dist.gather_objects(
        # Ranks wait for each other in each step, so the slowest determines the time of the run.
        {'memory_mb': peak_memory_mb(device), 'seconds': clock.total_seconds, 'waited': clock.total_waited}
    )
    trained = before.training_seconds + max(rank['seconds'] for rank in ranks)
    # Earlier starts recorded the times of the main rank alone: assume the same for the others.
    seconds = before.training_seconds * len(ranks) + sum(rank['seconds'] for rank in ranks)
    waited = before.waiting_seconds * len(ranks) + sum(rank['waited'] for rank in ranks)
    return {
        **({'buckets': counts} if (counts := fetched()) else {}),
        'samples_per_s': samples / trained if trained else None,
        'data_wait': waited / seconds if trained else None,
        'peak_memory_mb': max(before.peak_memory_mb, *(rank['memory_mb'] for rank in ranks)),
        'slow_ranks': slower_ranks(
            [{'waiting for data': rank['waited'], 'training': rank['seconds'] - rank['waited']} for rank in ranks]
        ),
    }
