"""Memory of a training step, predicted without values, and the micro-batches that fit a device."""

import contextlib
import inspect
import logging
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phalanx.data.batch import ImageBatch, Tensors
from phalanx.data.samples import Dataset, Draw, SampleError
from phalanx.engine.device import pick_device
from phalanx.engine.job import Job
from phalanx.engine.loader import Stream
from phalanx.engine.parts import Parts
from phalanx.engine.precision import DTYPES, Precision, PrecisionOptions
from phalanx.engine.progress import Progress
from phalanx.engine.schema import Recipe
from phalanx.engine.shapes import META, Autocast, HostLstm, MemoryTracker
from phalanx.engine.trainer import Trainer
from phalanx.families.task import Task
from phalanx.parallel import dist
from phalanx.report.readable import format_mebibytes, pluralize
from phalanx.runtime.prepare import TooLargeError
from phalanx.system.errors import RequestError, SameRequestError
from phalanx.system.groups import memory_of_host

log = logging.getLogger('phalanx')

PARTS = ('parameters', 'gradients', 'optimizer', 'ema', 'activations', 'batch')
# Of cuBLAS on a GPU, which torch allocates with its tensors: 32 MiB on Hopper (less on older GPUs) for each of the two threads
# that multiply, forward and backward.
WORKSPACES_MB = 64
MIB = 2**20
TRIED = 32  # samples of which the largest stands for all
# Of the memory of a device, tensors can use what is left after the context of CUDA and its libraries, and after the gaps
# between blocks of the allocator and the error of the prediction.
CONTEXT_MB, USABLE = 1024, 0.9
UNITS = {'': 1, 'M': 2**20, 'G': 2**30, 'T': 2**40}  # by the first letter; a number alone is in bytes


class _ShapePrecision(Precision):
    """Autocast on `meta`; scaling a loss takes no memory worth counting."""

    def __init__(self, dtype: torch.dtype, is_gpu: bool) -> None:
        super().__init__(PrecisionOptions(), META)
        self.dtype, self.is_gpu = dtype, is_gpu

    @contextlib.contextmanager
    def autocast(self) -> Iterator[None]:
        with contextlib.ExitStack() as modes:
            if not self.is_gpu:
                modes.enter_context(HostLstm())
            if self.dtype != torch.float32:
                modes.enter_context(torch.autocast('cpu', self.dtype))  # of the host: recurrent layers ask for any autocast
                modes.enter_context(Autocast(self.dtype))
            yield


class StepMemory:
    """Predicts the peak memory of one rank's training step, from the steps of its Trainer on torch's device `meta`.

    Not contained: the context of CUDA, workspaces of convolutions (large in float32 without tf32), compiled steps, and
    compression of gradients. Use it before this process joins a group: the Trainer must be alone.
    """

    def __init__(self, recipe: Recipe, parts: Parts, ranks: int = 1, is_gpu: bool = False) -> None:
        """`parts` are those of the run and stay as they are. Several `ranks` keep their gradients in buckets of DDP."""
        self.has_buckets, self.workspaces_mb = ranks > 1, WORKSPACES_MB * is_gpu
        self.sample = largest_sample(parts.task, parts.train, recipe.train.seed)
        own = Parts(recipe, parts.task)
        vars(own).update(train=parts.train, evaluation=parts.train)
        with META:
            _ = own.network  # shapes alone, whatever its initial weights
        with tempfile.TemporaryDirectory(prefix='phalanx-') as folder:
            self.trainer = Trainer(
                _without_side_effects(recipe), parts.task, folder=Path(folder), device=META, progress=Progress(), parts=own
            )
        trainer, self.tracker = self.trainer, MemoryTracker()
        trainer.precision = trainer.passes.precision = _ShapePrecision(DTYPES[recipe.precision.dtype], is_gpu)
        trainer.model.train()
        for parameter in trainer.model.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._count_gradient)  # type: ignore[no-untyped-call]
        self.tracker.assign('parameters', [*trainer.model.parameters(), *trainer.model.buffers()])
        self.tracker.assign('ema', trainer.ema.state()['averages'].values() if trainer.ema else ())
        self.parts = cache(self._parts)

    def _count_gradient(self, parameter: Tensor) -> None:
        self.tracker.assign('gradients', [parameter.grad])

    def _parts(self, samples: int, micro_batches: int) -> dict[str, float]:
        """MiB by part at the peak of a step with `samples` in `micro_batches`. Raises as the step does."""
        return self.parts_of(_repeat(self.sample, samples), micro_batches)

    def parts_of(self, batch: ImageBatch, micro_batches: int) -> dict[str, float]:
        """MiB by part at the peak of a step with `batch`."""
        trainer, tracker = self.trainer, self.tracker
        size = max(len(trainer.dataset), len(batch))
        stream = Stream(size, len(batch), micro_batches, trainer.stream.seed, 0, 1)
        trainer.stream = trainer.passes.stream = stream
        trainer.passes.micro_batches, trainer.with_loss.whole.samples = micro_batches, len(batch)
        with tracker:
            on_device = batch.to(META)
            tracker.assign('batch', on_device.tensors())
            if not tracker.now['optimizer']:
                self._make_optimizer_state()
            tracker.begin()
            self._step(on_device)
        return {**{part: tracker.peak[part] / MIB for part in PARTS}, 'workspaces': self.workspaces_mb}

    def _make_optimizer_state(self) -> None:
        """Most optimizers make it in their first step."""
        self._make_gradients()
        self.trainer.optimizer.step()
        self.trainer.optimizer.zero_grad()
        self.tracker.assign('optimizer', _state(self.trainer.optimizer.state))

    def _make_gradients(self) -> None:
        for parameter in self.trainer.model.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)
                self.tracker.assign('gradients', [parameter.grad])

    def _step(self, batch: ImageBatch) -> None:
        if self.has_buckets:
            self._make_gradients()
        try:
            self.trainer.train_step(batch)
        finally:
            self.trainer.optimizer.zero_grad()
            self.trainer.numbers.unread.clear()

    def parts_mb(self, samples: int, micro_batches: int = 1) -> dict[str, float]:
        """MiB by part at the peak of a step. Raises as the step does."""
        if self.has_buckets:  # norms that ranks share accept one sample in each; this prediction is made on one rank
            samples = max(samples, 2 * micro_batches)
        size = -(-samples // micro_batches)
        if micro_batches <= 2 or self.trainer.task.sees_whole_step:
            return self.parts(samples, micro_batches)
        # the second micro-batch is like all later ones: gradients of the whole network are there while it goes forward
        two, sample = self.parts(2 * size, 2), sum(each.nbytes for each in self.sample.tensors()) / MIB
        return {**two, 'batch': two['batch'] + max(0, samples - 2 * size) * sample}

    def peak_mb(self, samples: int, micro_batches: int = 1) -> float:
        """MiB at the peak of a step. Raises as the step does."""
        return sum(self.parts_mb(samples, micro_batches).values())


def _without_side_effects(recipe: Recipe) -> Recipe:
    """Recipe of the same step in eager mode, on one rank, with an optimizer for any device."""
    optimizer = recipe.optimizer
    if 'fused' in inspect.signature(optimizer).parameters:
        optimizer = partial(optimizer, fused=False)
    # the batch is set for each step
    train = replace(
        recipe.train,
        global_batch_size=1,
        batch_size_per_rank=None,
        micro_batches=1,
        compile=False,
        cuda_graph=False,
        cache=None,
    )
    return replace(recipe, train=train, optimizer=optimizer, gradients=type(recipe.gradients)(), precision=PrecisionOptions())


def largest_sample(task: Task, dataset: Dataset[Any], seed: int) -> ImageBatch:
    """Batch of the sample with most bytes among the first TRIED draws, each of a step of its own, which may set the size.

    Raises RequestError if none of them can be read.
    """
    found: list[ImageBatch] = []
    for step in range(TRIED if not task.has_fixed_size else TRIED // 4):
        try:
            found.append(task.collate([dataset[Draw(step % len(dataset), 0, step, seed)]]))
        except (SampleError, TooLargeError, OSError):
            continue  # the loader reports and counts it
    if not found:
        raise RequestError(f'none of the first {TRIED} training samples can be read')
    return max(found, key=lambda batch: sum(each.nbytes for each in batch.tensors()))


def _repeat(batch: Any, count: int) -> Any:
    """`batch` of one sample `count` times, on `meta`."""
    if isinstance(batch, Tensor):
        return torch.cat([batch.to(META)] * count)
    if isinstance(batch, Tensors):
        return replace(batch, **{name: _repeat(value, count) for name, value in vars(batch).items()})
    return batch * count


def _state(states: Any) -> list[Tensor]:
    """Tensors of the state of an optimizer."""
    return [value for state in states.values() for value in state.values() if isinstance(value, Tensor)]


def parse_size(text: str) -> float:
    """MiB of a device's memory. 24 GB, 24G and 24GiB all mean 24 * 2**30 bytes, as devices are sold. Raises ValueError."""
    match = re.fullmatch(r'\s*([0-9]*\.?[0-9]+)\s*([MGT]?)(i?B)?\s*', text, re.IGNORECASE)
    if match is None or float(match[1]) <= 0:
        raise ValueError(f'{text!r} is not a size of memory such as "24 GB"')
    return float(match[1]) * UNITS[match[2].upper()] / MIB


def memory_of_device(device: torch.device) -> float:
    """MiB of the memory of `device`; for a CPU, of this host, shared by its ranks."""
    if device.type == 'cuda':
        return torch.cuda.get_device_properties(device).total_memory / MIB
    ranks = int(os.environ.get('LOCAL_WORLD_SIZE', 1))
    return memory_of_host() / MIB / ranks


def usable(memory_mb: float) -> float:
    """MiB that tensors can use of a device with `memory_mb`."""
    return max(0.0, USABLE * memory_mb - CONTEXT_MB)


def largest_that_fits(memory: StepMemory, limit: float) -> int:
    """Largest number of samples in one micro-batch whose peak is at most `limit` MiB, to about 2 %; 0 if none fit.

    A peak grows linearly with the samples, from two on: a batch norm may need that many.
    """
    few, more = memory.peak_mb(2), memory.peak_mb(8)
    count = 2 + int((limit - few) * 6 / max(more - few, 1e-9))
    while count > 1 and (peak := memory.peak_mb(count)) > limit:
        count = min(count - 1, int(count * limit / peak))
    return max(count, 0) if count > 1 or (few - (more - few) / 6) <= limit else 0


def fewest_micro_batches(memory: StepMemory, share: int, limit: float) -> int | None:
    """Fewest micro-batches with which a step of `share` samples takes at most `limit` MiB; None if there are none.

    Raises ValueError for a loss that cannot be computed with micro-batches.
    """
    if memory.peak_mb(share) <= limit:
        return 1
    size = min(largest_that_fits(memory, limit), share - 1)
    while size > 0:
        count = -(-share // size)
        if (peak := memory.peak_mb(share, count)) <= limit:
            return count
        size = min(size - 1, int(size * limit / peak))
    return None


def predict_fit(job: Job, parts: Parts | None = None) -> int | str:
    """Micro-batches of this rank: those of the recipe, or the fewest that fit its device for `auto`; else the reason for none.

    On a CPU, which has no limit of its own, only `auto` is predicted. For `agree_on_micro_batches`; call it before this process
    joins a group.
    """
    train, device = job.recipe.train, pick_device(job.recipe.device, dist.local_rank())
    if device.type != 'cuda' and train.micro_batches != 'auto':
        return train.micro_batches
    if dist.world_size() > 1:
        alone = 'auto is chosen before ranks join a process group, and these have one already; give a number'
        return f'train.micro_batches: {alone}' if train.micro_batches == 'auto' else train.micro_batches
    ranks = int(os.environ['WORLD_SIZE']) if dist.is_launched() and not dist.is_initialized() else 1
    try:
        memory = StepMemory(job.recipe, parts or Parts(job.recipe, job.task), ranks, device.type == 'cuda')
        return choose_micro_batches(job.recipe, memory, memory_of_device(device), ranks)
    except RequestError as error:
        return str(error)
    except (RuntimeError, ValueError, OSError) as error:
        # a step that cannot be predicted, or faults of the data, which the checks report
        log.info('the memory of a step cannot be predicted: %s', error)
        return f'train.micro_batches: auto: {error}' if train.micro_batches == 'auto' else train.micro_batches


def agree_on_micro_batches(job: Job, own: int | str) -> Job:
    """Job with the most micro-batches that any rank needs; `own` are those of this one. Collective.

    Raises RequestError, on ranks other than 0 SameRequestError, with the reason of the first rank that has none.
    """
    needed = dist.gather_objects(own)
    if reasons := [each for each in needed if isinstance(each, str)]:
        raise RequestError(reasons[0]) if dist.rank() == 0 else SameRequestError(reasons[0])
    return replace(job, recipe=replace(job.recipe, train=replace(job.recipe.train, micro_batches=max(needed))))


def choose_micro_batches(recipe: Recipe, memory: StepMemory, total: float, ranks: int) -> int:
    """Micro-batches of a rank with a device of `total` MiB: those of the recipe, or the fewest that fit for `auto`.

    Raises RequestError, with the number that would fit, if a step is larger than the device.
    """
    train, share = recipe.train, -(-recipe.train.global_batch(ranks) // ranks)
    if train.micro_batches != 'auto' and memory.peak_mb(share, train.micro_batches) <= total:
        return train.micro_batches
    fitting, why = None, ''
    try:
        fitting = fewest_micro_batches(memory, share, usable(total))
    except ValueError as error:
        why = f' ({error})'
    if fitting is not None and train.micro_batches == 'auto':
        return fitting
    raise RequestError(f'train.micro_batches: {describe_misfit(memory, share, total, fitting)}{why}')


def describe_misfit(memory: StepMemory, share: int, total: float, fitting: int | None) -> str:
    """Message for a step of `share` samples that does not fit into `total` MiB, with what would."""
    if fitting is not None:
        peak = format_mebibytes(memory.peak_mb(share, fitting))
        cure = f'use train.micro_batches={fitting}, which takes about {peak}, or auto'
    elif largest := largest_that_fits(memory, usable(total)):
        cure = f'use at most {pluralize(largest, "sample")} per rank (train.batch_size_per_rank={largest})'
    else:
        cure = 'not even one sample fits: use smaller images or a smaller network'
    samples, peak = pluralize(share, 'sample'), format_mebibytes(memory.peak_mb(share))
    return f'a step of {samples} per rank takes about {peak}, and the device has {format_mebibytes(total)}; {cure}'
