"""Networks of all families at the sizes of their papers, and their training steps, for the benchmarks of steps."""

import contextlib
import gc
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from plain_ddp import PlainTraining
from torch.profiler import ProfilerActivity, profile

from phalanx.bench.flops import read_clock
from phalanx.data.batch import ImageBatch
from phalanx.engine.job import Job, open_job
from phalanx.engine.trainer import Trainer

DIGITS, DIGITS_OF_DETECTION = 'pp_liteseg_digits', 'ppyoloe_digits'
ONE_LOSS, TWO_LOSSES = 'loss=[cross_entropy]', 'loss=[cross_entropy, cross_entropy]'
MIB = 2**20
Row = dict[str, str]  # of a table


class Network(NamedTuple):
    recipe: str
    keys: tuple[str, ...]
    batch: int
    size: str  # key of the image size
    on_gpu: str
    on_cpu: str


NETWORKS = {
    'SLANet': Network('slanet_rendered', ('max_length=500',), 24, 'image_size', '488', '64'),
    'SegFormer-B0': Network(
        DIGITS, ('model={name: segformer, backbone: mit_b0}', ONE_LOSS), 8, 'data.size', '[512,1024]', '[64,96]'
    ),
    'PP-LiteSeg-STDC1': Network(DIGITS, (), 16, 'data.size', '[512,1024]', '[64,96]'),
    'PP-YOLOE-s': Network(DIGITS_OF_DETECTION, ('model.size=s',), 16, 'data.size', '[640,640]', '[64,64]'),
    'CRNN': Network(
        'crnn_digits',
        ('model.backbone={name: mobilenet_v3, size: large, scale: 0.5}', 'model.hidden_size=96'),
        256,
        'image_size',
        '[32,320]',
        '[32,48]',
    ),
    'DB': Network(
        'db_pages', ('model.backbone.scale=0.5', 'model.neck_channels=96'), 16, 'data.page_size', '[640,640]', '[96,96]'
    ),
    'OCRNet-HRNet-W18': Network(
        DIGITS, ('model={name: ocrnet, backbone: hrnet_w18}', TWO_LOSSES), 4, 'data.size', '[512,1024]', '[64,96]'
    ),
}
BF16 = ('precision={dtype: bf16}', 'train.channels_last=true')
PLAIN_STEP = ('norm_sync=off', 'ema=null', 'clip=null')  # a plain loop has none of these


def open_network(name: str, device: torch.device, *keys: str) -> Job:
    network, tiny = NETWORKS[name], device.type == 'cpu'
    size = f'{network.size}={network.on_cpu if tiny else network.on_gpu}'
    batch = f'train.global_batch_size={2 if tiny else network.batch}'
    words = (*network.keys, size, batch, 'train.workers=0', f'device={device.type}', *keys)
    return open_job(network.recipe, [(word, word) for word in words])


class Side(NamedTuple):
    """One of the trainings that are timed in turns."""

    step: Callable[[ImageBatch], None]
    seconds: list[float]  # per step


def open_trainer(job: Job, device: torch.device, folder: str, batch: ImageBatch | None = None) -> tuple[Trainer, ImageBatch]:
    trainer = Trainer(job.recipe, job.task, folder=Path(folder), device=device)
    trainer.until = 10**6
    trainer.model.train()
    if batch is None:
        drawn = next(trainer.batches())
        batch = drawn.pin_memory() if device.type == 'cuda' else drawn
    return trainer, batch


def train_step(trainer: Trainer, batch: ImageBatch) -> None:
    trainer.train_step(batch)
    trainer.progress.step += 1


def time_steps(step: Callable[[ImageBatch], None], batch: ImageBatch, device: torch.device, steps: int) -> float:
    """Mean seconds of `steps` steps."""
    begin = read_clock(device)
    for _ in range(steps):
        step(batch)
    return (read_clock(device) - begin) / steps


def peak_mib(step: Callable[[ImageBatch], None], batch: ImageBatch, device: torch.device) -> float:
    """Peak memory of a step above what is allocated before it, in MiB."""
    if device.type == 'cpu':
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
            step(batch)
        assert profiled.profiler is not None
        events = [event for event in profiled.profiler.kineto_results.events() if event.name() == '[memory]']
        ordered = sorted(events, key=lambda event: event.start_ns())
        peak: float = max(itertools.accumulate(event.nbytes() for event in ordered)) / MIB
        return peak
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(batch)
    return (torch.cuda.max_memory_allocated() - base) / MIB


@contextlib.contextmanager
def open_sides(
    name: str, device: torch.device, batch: ImageBatch | None = None, *, keys: Sequence[str] = (*BF16, *PLAIN_STEP)
) -> Iterator[tuple[list[Side], ImageBatch]]:
    """Phalanx and the plain loop on the same network, warmed up: kernels are chosen, memory is taken."""
    job = open_network(name, device, *keys)
    with tempfile.TemporaryDirectory() as folder:
        trainer, batch = open_trainer(job, device, folder, batch)
        sides = [Side(partial(train_step, trainer), []), Side(PlainTraining(job, device).step, [])]
        for side in sides:
            time_steps(side.step, batch, device, 5)
        yield sides, batch
    del trainer, sides
    free()


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()
