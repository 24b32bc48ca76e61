"""`phalanx bench train`: training rate of a recipe, time of a step by phase, and advice."""

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from phalanx.bench.data import measure_worker_rate
from phalanx.bench.flops import measure_peak, read_clock, step_flops
from phalanx.bench.profile import PHASES, Profile, Step, profile_steps
from phalanx.bench.show import format_text
from phalanx.data.batch import ImageBatch
from phalanx.engine.job import Job
from phalanx.engine.meters import peak_memory_mb, slower_ranks
from phalanx.engine.parts import Parts
from phalanx.engine.precision import DTYPES
from phalanx.engine.samples import share_samples
from phalanx.engine.trainer import Trainer
from phalanx.parallel import dist
from phalanx.parallel.gradients import gradients_mb
from phalanx.report.readable import format_mebibytes, format_number, format_percent, pluralize
from phalanx.system.memory import keep_freed_memory

Variant = tuple[str, str, str]  # values of --precision, --channels_last and --compile; '' for the value of the recipe
PROFILED = 5  # steps under the profiler

Figures = dict[str, Any]  # measurements of the training steps of one rank, as `--json` prints them


def measure_apart(words: Sequence[str], variants: Sequence[Variant]) -> tuple[list[Figures], bool]:
    """Measure `phalanx bench WORDS` in each variant; return the figures, and True if one failed.

    Each runs in processes of its own, so that none finds memory or compiled code of another.
    """
    found, failed = [], False
    for variant in variants:
        flags = zip(('--precision', '--channels_last', '--compile'), variant, strict=True)
        own = [word for flag, value in flags if value for word in (flag, value)]
        line = [sys.executable, '-m', 'phalanx', 'bench', *words, *own, '--json']  # the later flag holds
        ended = subprocess.run(line, stdout=subprocess.PIPE, check=False, text=True)
        if ended.returncode != 0:
            print(f'{" ".join(own)}: ended with status {ended.returncode}', file=sys.stderr)
            failed = True
        elif ended.stdout:  # only the node of rank 0 has anything to say
            found += json.loads(ended.stdout)['variants']
    return found, failed


def measure(job: Job, device: torch.device, *, steps: int, warmup: int) -> tuple[Figures, Profile]:
    """Measure this rank; return its figures and the profile that a plan needs (valid for one rank alone).

    Steps are timed without the profiler; where their time goes is what it sees in further ones.
    """
    recipe = job.recipe
    keep_freed_memory()  # as ranks do
    with tempfile.TemporaryDirectory(prefix='phalanx-') as folder:
        # the trainer of a real run, in a temporary folder, with batches from real workers
        parts = Parts(recipe, job.task)
        share_samples(job, parts)
        trainer = Trainer(recipe, job.task, folder=Path(folder), device=device, parts=parts)
        trainer.until = 10 * (warmup + steps + PROFILED)  # not reached: else workers would have less to do towards the end
        batches = trainer.batches()
        # warm up before timing: kernels are chosen, buckets arranged, caches filled
        flops = step_flops(trainer, next(batches))
        trainer.progress.step += 1
        time_steps(trainer, batches, warmup)
        if device.type == 'cuda':
            torch.cuda.reset_peak_memory_stats(device)
        seconds = time_steps(trainer, batches, steps)
        memory = peak_memory_mb(device)
        profiled = profile_steps(trainer, batches, min(steps, PROFILED))
        trainer.read_numbers(keep=0)
    # the profiler slows steps down, so scale its phases to the steps that were timed without it
    step = math.fsum(seconds) / steps
    factor = step * len(profiled) / math.fsum(each.seconds for each in profiled)
    profiled = [each.scale(factor) for each in profiled]
    phases = {phase: math.fsum(each.phases[phase] for each in profiled) / len(profiled) for phase in PHASES}
    # a plan needs one representative step: the median
    median_step = sorted(profiled, key=lambda each: each.seconds)[len(profiled) // 2]
    if recipe.norm_sync not in ('global', 'node'):
        median_step = median_step._replace(forward=(), backward=())
    own = {phase: share for phase, share in phases.items() if phase != 'communication'}
    # what this device and one loader worker can reach at best
    peak = measure_peak(device, DTYPES[recipe.precision.dtype], channels_last=recipe.train.channels_last)
    rate = measure_worker_rate(trainer.dataset, job.task.collate, trainer.stream)
    batch, name = trainer.stream.global_batch_size, device_name(device)
    train = recipe.train
    figures: Figures = {
        'recipe': job.name,
        'device': name,
        'world_size': dist.world_size(),
        'precision': recipe.precision.dtype,
        'channels_last': train.channels_last,
        'compiled': train.compile,
        'samples': batch,  # of a step, over all ranks
        'steps': steps,
        'step_s': step,
        'fastest_step_s': min(seconds),
        'samples_per_s': batch / step,
        'phases': phases,  # seconds of a step
        'peak_memory_mb': memory,
        'gflops': flops / 1e9,  # of a step on this rank, in billions of operations
        'gflops_per_s': flops / step / 1e9,
        'peak_convolution': peak.convolution / 1e9,  # billions of operations a second
        'peak_matrix': peak.matrix / 1e9,
        'share_of_peak': flops / step / max(peak),
        'exchanges': median_step.exchanges,  # that a step waits for
        'gradients_mb': gradients_mb(trainer.model),
        'workers': train.workers,
        'loader_rate': rate,  # samples per second of one worker
        'slow_ranks': slower_ranks(dist.gather_objects(own)),  # slower than the median, by phase
    }
    return {**figures, 'next': suggest(figures)}, _profile_of(job, trainer, median_step, name, rate)


def _profile_of(job: Job, trainer: Trainer, step: Step, device: str, rate: float) -> Profile:
    """Profile for a plan, of a representative `step`; `rate`: samples per second per loader worker."""
    batch = trainer.stream.global_batch_size
    return Profile(
        recipe=job.name,
        device=device,
        samples=batch,
        run_samples=trainer.steps * batch,
        norm_sync=job.recipe.norm_sync,
        loader_rate=rate,
        workers=job.recipe.train.workers,
        bucket_mb=job.recipe.gradients.bucket(trainer.model),
        **{key: value for key, value in step._asdict().items() if key != 'exchanges'},
    )


def time_steps(trainer: Trainer, batches: Iterator[ImageBatch], steps: int) -> list[float]:
    """Seconds of each of `steps` steps, loading its batch included; they add up to the time of all."""
    moments = [read_clock(trainer.device)]
    for left in reversed(range(steps)):
        trainer.train_step(next(batches))
        trainer.progress.step += 1
        moments.append(time.perf_counter() if left else read_clock(trainer.device))
    return [later - earlier for earlier, later in pairwise(moments)]


def share(figures: Figures, phase: str) -> float:
    return float(figures['phases'][phase] / figures['step_s'])


def variant(figures: Figures) -> str:
    switches = ['channels last'] * figures['channels_last'] + ['compiled'] * figures['compiled']
    return ', '.join([figures['precision'], *switches])


def device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == 'cuda' else f'cpu ({torch.get_num_threads()} threads)'


def suggest(figures: Figures, measured: Sequence[Figures] = ()) -> list[str]:
    """Suggestions from the figures: first for the largest share of the step, then for faster arithmetic.

    What was in `measured` already is not suggested again.
    """
    # loader workers needed to prepare the samples of a step while the device computes
    computing = figures['step_s'] - figures['phases']['data wait']
    needed = math.ceil(figures['samples'] / figures['world_size'] / computing / figures['loader_rate'])
    waits = (  # phase, from which share on it is worth a word
        (
            'data wait',
            0.02,
            f'the device waits for data: train.workers={max(needed, figures["workers"] + 1)} (one prepares '
            f'{format_number(figures["loader_rate"])} samples/s); `phalanx bench data` shows which transform takes how long; '
            'where that is decoding, train.cache.gib=N keeps decoded images',
        ),
        (
            'communication',
            0.05,
            f'ranks wait for each other: {figures["exchanges"]} exchanges and {figures["gradients_mb"]:.0f} MiB of gradients '
            'a step; norm_sync=node or off saves nearly all of the exchanges, gradients.compression=bf16 half of the '
            'gradients, a larger batch makes both rarer',
        ),
        ('host to device', 0.05, 'copies to the device: samples should travel as bytes and be normalised there'),
        ('optimizer', 0.1, 'the update costs as much with any batch: a larger batch makes it rarer'),
        ('other', 0.1, 'the host is busy with small things: a larger batch, or train.compile=true'),
    )
    # waits are suggested in the order of their share, then faster arithmetic
    ranked = sorted(
        ((share(figures, phase), text) for phase, least, text in waits if share(figures, phase) > least), reverse=True
    )
    known = (figures, *measured)
    faster = (
        (all(each['precision'] == 'fp32' for each in known), 'precision.dtype=bf16 (see whether the accuracy holds)'),
        (not any(each['channels_last'] for each in known), 'train.channels_last=true, best together with bf16'),
        (not any(each['compiled'] for each in known), 'train.compile=true'),
    )
    slow = figures['share_of_peak'] < 0.5
    return [text for _, text in ranked] + [text for open_yet, text in faster if slow and open_yet]


def format_table(all_figures: Sequence[Figures]) -> str:
    """The variants beside each other, and what the fastest could try next."""
    rows = []
    first, best = all_figures[0], max(all_figures, key=lambda figures: figures['samples_per_s'])
    compared = ('times the first', lambda f: f'{f["samples_per_s"] / first["samples_per_s"]:.2f}')
    for name, show in (
        ('samples/s', lambda f: format_number(f['samples_per_s'])),
        *([compared] if len(all_figures) > 1 else []),
        ('step', lambda f: f'{1000 * f["step_s"]:.1f} ms'),
        ('fastest step', lambda f: f'{1000 * f["fastest_step_s"]:.1f} ms'),
        *((f'  {phase}', _phase(phase)) for phase in PHASES),
        ('peak memory', lambda f: format_mebibytes(f['peak_memory_mb'])),
        ('arithmetic of a step', lambda f: f'{f["gflops"]:.2f} GFLOP'),
        ('reached', lambda f: f'{format_number(f["gflops_per_s"])} GFLOP/s'),
        ('a convolution reaches', lambda f: f'{format_number(f["peak_convolution"])} GFLOP/s'),
        ('a matrix product', lambda f: f'{format_number(f["peak_matrix"])} GFLOP/s'),
        ('share of the best', lambda f: format_peak_share(f['share_of_peak'])),
        ('loader, one worker', lambda f: f'{format_number(f["loader_rate"])} samples/s'),
    ):
        rows.append({'': name, **{variant(figures): show(figures) for figures in all_figures}})
    work = f'{pluralize(first["samples"], "sample")} a step, {pluralize(first["world_size"], "rank")}'
    head = f'{first["recipe"]}: {work}, {first["device"]}, {pluralize(first["steps"], "step")}'
    tips = [f'  - {tip}' for tip in suggest(best, all_figures)] or ['  - nothing stands out']
    slow = [f'{variant(figures)}: {rank}' for figures in all_figures for rank in figures['slow_ranks']]
    return '\n'.join([head, format_text(rows), *slow, f'to try next with {variant(best)}:', *tips])


def format_peak_share(share: float) -> str:
    """In words; none where a step is faster than what was measured as the peak, which then was none."""
    return format_percent(share if share <= 1 else None)


def _phase(phase: str) -> Any:
    return lambda figures: f'{1000 * figures["phases"][phase]:.1f} ms {100 * share(figures, phase):5.1f} %'
