"""What a run says of itself: before its first step, in its log, where its loss is not finite, and at its end."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

import phalanx
from phalanx.engine.meters import peak_memory_mb, throughput
from phalanx.engine.runs import Job
from phalanx.parallel import dist
from phalanx.report.readable import counted, number

if TYPE_CHECKING:
    from phalanx.engine.trainer import Trainer


def place(device: torch.device) -> dict[str, str | int]:
    """Who this rank is, for the table of the world."""
    name = torch.cuda.get_device_name(device) if device.type == 'cuda' else f'cpu ({torch.get_num_threads()} threads)'
    node = os.environ.get('PHALANX_ADDRESS') or platform.node()
    return {'rank': dist.rank(), 'node': node, 'device': name, 'pid': os.getpid()}


def facts(job: Job, trainer: Trainer[Any, Any, Any]) -> dict[str, str]:
    """What a person wants to see before a run begins."""
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    stream, recipe = trainer.stream, job.recipe
    shares = f'{counted(stream.world_size, "rank")} x {counted(stream.micro_batches, "micro-batch", "micro-batches")}'
    return {
        'recipe': job.name,
        'run folder': str(job.folder),
        'model': f'{job.resolved.value["model"].value["name"].value}, {parameters / 1e6:.2f} M parameters',
        'data': f'{stream.size} training, {len(trainer.evalset)} evaluation samples',
        'length': f'{counted(trainer.steps, "step")} = {stream.epoch(trainer.steps):.1f} epochs',
        'global batch': f'{counted(stream.global_batch_size, "sample")}, {shares}',
        'learning rate': f'{trainer.lr:g} (scaling rule {recipe.scaling.rule})',
        'precision': f'{recipe.precision.dtype}, norm_sync {recipe.norm_sync}',
        **(
            {'EMA': f'decay {recipe.ema.decay:g}, used from step {trainer.ema.settles:,}'} if recipe.ema and trainer.ema else {}
        ),
        'versions': f'phalanx {phalanx.__version__}, torch {torch.__version__}, python {platform.python_version()}',
    }


def log_line(trainer: Trainer[Any, Any, Any]) -> dict[str, Any]:
    """One line of the log: losses averaged over the steps since the last one."""
    seconds, waited = trainer.clock.lap()
    steps, means = trainer.numbers.means()
    step, scale = trainer.progress.step, trainer.precision.scale
    return {
        'step': step,
        'epoch': trainer.stream.epoch(step),
        'loss': means[-1],
        **{f'loss/{name}': value for name, value in zip(trainer.with_loss.names, means, strict=False)},
        'lr': trainer.schedule(step - 1),
        'samples_per_s': steps * trainer.stream.global_batch_size / seconds,
        'data_wait': waited / seconds,
        'memory_mb': peak_memory_mb(trainer.device),
        **({'loss_scale': scale} if scale is not None else {}),
    }


def not_finite(trainer: Trainer[Any, Any, Any], step: int, values: Sequence[float]) -> str:
    """Why the run cannot go on from `step`, whose terms and total are `values`. All ranks call this together."""
    terms = ', '.join(f'{name} = {value}' for name, value in zip(trainer.with_loss.names, values, strict=False))
    drawn = dist.gather_objects([draw.index for draw in trainer.stream.share(step)])
    names = [trainer.dataset.name(index) for share in drawn for index in share]
    shown = ', '.join(names[:16]) + (f' and {len(names) - 16} more' if len(names) > 16 else '')
    what = 'the loss is' if not math.isfinite(values[-1]) else 'the loss is finite but its gradients are'
    return (
        f'{what} not finite at step {step} ({terms}; learning rate {trainer.schedule(step):.3g}); '
        f'samples of that step: {shown}; last good checkpoint: {trainer.saver.newest()}; '
        'try a lower optimizer.lr, a longer schedule.warmup_steps, clip.norm, or precision.dtype=fp32'
    )


def summary(trainer: Trainer[Any, Any, Any]) -> dict[str, Any]:
    """What a run comes to, the same on all ranks, which call this together."""
    at, stream = trainer.progress, trainer.stream
    return {
        'metrics': at.metrics,
        'main_metric': trainer.task.main_metric,
        'best': at.best,
        'best_step': at.best_step,
        'start': at.start,
        'steps': at.step,
        'epochs': stream.epoch(at.step),
        'global_batch_size': stream.global_batch_size,
        'world_size': dist.world_size(),
        'seconds': at.seconds,
        **throughput(trainer.clock, at.timed_samples, trainer.device, before=trainer.before),
        'initial_weights': [taken.facts() for taken in trainer.initial],
        'skipped_samples': sorted(set(trainer.flags.bad.values())),
    }


def remarks(summary: Mapping[str, Any]) -> Iterator[str]:
    """What somebody should know of a run that came to its end."""
    yield from summary['slow_ranks']
    start, best = summary['start'], summary['best']
    if start is not None and best is not None and best <= start:
        yield (
            f'this run is not better than its start: {summary["main_metric"]} {number(best)} at step {summary["best_step"]}, '
            f'{number(start)} before the first step; try a lower optimizer.lr, norm_sync=frozen, or train.freeze'
        )
