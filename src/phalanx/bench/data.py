"""`phalanx bench data`: samples per second per core, time per transform, and cores that a device needs."""

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any

import cv2
import torch

from phalanx.bench.show import format_text
from phalanx.data.batch import ImageBatch
from phalanx.data.cache import node_cache, use_cache
from phalanx.data.samples import Dataset, Draw, SampleError
from phalanx.engine.job import Job
from phalanx.engine.loader import Stream, limit_to_one_core
from phalanx.report.readable import format_number, format_percent, pluralize

REST = 'all else'


@dataclass(frozen=True)
class PipelineFigures:
    """Seconds per sample on one core, by part; parts exclude the parts that they call."""

    recipe: str
    samples: int
    parts: dict[str, float]

    @property
    def seconds(self) -> float:
        return math.fsum(self.parts.values())

    @property
    def rate(self) -> float:
        """Samples per second per core."""
        return 1 / self.seconds

    def cores_for(self, rate: float) -> int:
        """Cores that feed a device which trains `rate` samples per second."""
        return math.ceil(rate * self.seconds)

    def record(self, device_rate: float | None) -> dict[str, Any]:
        cores = {} if device_rate is None else {'device_rate': device_rate, 'cores_for_one_device': self.cores_for(device_rate)}
        return {**asdict(self), 'samples_per_s_per_core': self.rate, **cores}

    def table(self, device_rate: float | None) -> str:
        rows = [
            {'': part, 'per sample': f'{1000 * seconds:.3f} ms', 'share': format_percent(seconds / self.seconds)}
            for part, seconds in sorted(self.parts.items(), key=lambda item: -item[1])
        ]
        lines = [
            f'{self.recipe}: {format_number(self.rate)} samples/s per core ({pluralize(self.samples, "sample")})',
            format_text(rows),
        ]
        if device_rate is not None:
            cores = self.cores_for(device_rate)
            lines.append(f'a device that trains {format_number(device_rate)} samples/s needs {pluralize(cores, "core")}')
        return '\n'.join(lines)


def measure_pipeline(job: Job, *, samples: int) -> PipelineFigures:
    """Read, transform and collate about `samples` training samples (whole batches) in this process, on one thread.

    With `train.cache` it measures a second pass over them, which finds them there.
    """
    train, clock = job.recipe.train, Clock()
    dataset, collate = clock.instrument(job.task.dataset('train')), TimedCall(clock, 'collate', job.task.collate)
    stream = Stream(len(dataset), train.global_batch(1), 1, train.seed, 0, 1)
    steps = math.ceil(samples / stream.global_batch_size)
    with one_thread(), use_cache(node_cache(train.cache)):
        prepare(dataset, collate, stream.share(0)[:2])  # what is read once and kept
        for step in range(steps if train.cache else 0):
            prepare(dataset, collate, stream.share(step))
        clock.restart()
        for step in range(steps):
            prepare(dataset, collate, stream.share(step))
        clock.switch(REST)
    samples = steps * stream.global_batch_size
    return PipelineFigures(job.name, samples, {part: seconds / samples for part, seconds in clock.seconds.items()})


def measure_worker_rate(dataset: Dataset[Any], collate: Callable[[Sequence[Any]], ImageBatch], stream: Stream) -> float:
    """Measure samples per second of a loader worker over whole batches that take at least a second."""
    with one_thread():
        prepare(dataset, collate, stream.share(0)[:2])
        begin, count = time.perf_counter(), 0
        while time.perf_counter() - begin < 1:
            draws = stream.share(count)
            prepare(dataset, collate, draws)
            count += 1
        return count * len(draws) / (time.perf_counter() - begin)


def prepare(dataset: Dataset[Any], collate: Callable[[Sequence[Any]], ImageBatch], draws: Sequence[Draw]) -> None:
    """Make a batch as a loader worker does; samples that cannot be used are left out."""
    samples = []
    for draw in draws:
        with contextlib.suppress(SampleError):
            samples.append(dataset[draw])
    if samples:
        collate(samples)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit libraries to one thread, as in a loader worker. (Freed memory is kept, also afterwards.)"""
    threads, of_opencv = torch.get_num_threads(), cv2.getNumThreads()
    limit_to_one_core()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        cv2.setNumThreads(of_opencv)


class Clock:
    """Seconds by part; parts exclude the parts that they call, so they add up to the whole."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.part, self.since = REST, time.perf_counter()

    def switch(self, part: str) -> str:
        """Count time for `part` from now on; return the previous part."""
        before, now = self.part, time.perf_counter()
        self.seconds[before] += now - self.since
        self.part, self.since = part, now
        return before

    @contextlib.contextmanager
    def during(self, part: str) -> Iterator[None]:
        before = self.switch(part)
        try:
            yield
        finally:
            self.switch(before)

    def instrument(self, dataset: Any) -> Any:
        """Return `dataset` with source and transforms timed; they are fields of a frozen dataclass in all families."""
        assert is_dataclass(dataset) and not isinstance(dataset, type)
        changes: dict[str, Any] = {}
        for field in fields(dataset):
            value = getattr(dataset, field.name)
            if field.name == 'source':
                changes['source'] = TimedCall(self, 'reading', value)
            elif isinstance(value, tuple) and all(map(callable, value)):
                changes[field.name] = tuple(TimedCall(self, type(part).__name__, part) for part in value)
            elif callable(value):
                changes[field.name] = TimedCall(self, type(value).__name__, value)
        return replace(dataset, **changes)


class TimedCall:
    """Wrapper that counts the time of calls and reads for a part, and forwards everything else."""

    def __init__(self, clock: Clock, part: str, held: Any) -> None:
        self._clock, self._part, self._held = clock, part, held

    def __len__(self) -> int:
        return len(self._held)

    def __call__(self, *args: Any) -> Any:
        with self._clock.during(self._part):
            return self._held(*args)

    def read(self, *args: Any) -> Any:
        with self._clock.during(self._part):
            return self._held.read(*args)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._held, name)
