"""Training on this GPU: a section per question, a table per section.

    make gpu           or: python benchmarks/gpu.py [--device cpu] [--seconds 390] [--out runs/gpu] [--only plain precision ...]

    plain      a step of seven networks beside a plain PyTorch loop, in turns, in bf16 and channels last
    precision  a step of each family in fp32, tf32, bf16 and fp16
    graphs     the same steps as CUDA graphs or compiled
    fed        whole training steps, fed with files by loader workers
    accuracy   mean IoU of seeds in each precision

Each section runs in a process of its own and ends alone if it fails. gpu.md and gpu.json hold each row as soon as it is
measured. With `--device cpu` sizes are tiny: it shows that the benchmark works, and says nothing about a GPU.
"""

import argparse
import contextlib
import gc
import json
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from typing import NamedTuple

import torch
from input_pipeline import PIPELINES
from numpy.random import default_rng
from plain_ddp import PlainTraining
from torch.profiler import ProfilerActivity, profile

from phalanx.bench.flops import measure_peak, read_clock, step_flops
from phalanx.bench.show import format_markdown
from phalanx.bench.train import measure
from phalanx.data.batch import ImageBatch
from phalanx.engine.job import Job, open_job
from phalanx.engine.precision import DTYPES
from phalanx.engine.trainer import Trainer

Row = dict[str, str]

DIGITS = 'pp_liteseg_digits'
ONE_LOSS, TWO_LOSSES = 'loss=[cross_entropy]', 'loss=[cross_entropy, cross_entropy]'
MIB = 2**20


class Network(NamedTuple):
    recipe: str
    keys: tuple[str, ...]
    batch: int
    size: str  # key of the image size
    on_gpu: str
    on_cpu: str


# Networks at the sizes of their papers, on synthetic samples.
NETWORKS = {
    'SLANet': Network('slanet_rendered', ('max_length=500',), 24, 'image_size', '488', '64'),
    'SegFormer-B0': Network(
        DIGITS, ('model={name: segformer, backbone: mit_b0}', ONE_LOSS), 8, 'data.size', '[512,1024]', '[64,96]'
    ),
    'PP-LiteSeg-STDC1': Network(DIGITS, (), 16, 'data.size', '[512,1024]', '[64,96]'),
    'PP-YOLOE-s': Network('ppyoloe_digits', ('model.size=s',), 16, 'data.size', '[640,640]', '[64,64]'),
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
FAMILIES = ('PP-LiteSeg-STDC1', 'PP-YOLOE-s', 'CRNN', 'DB', 'SLANet')
BF16 = ('precision={dtype: bf16}', 'train.channels_last=true')
PRECISIONS = {
    'fp32': ('precision={dtype: fp32, tf32: false}', 'train.channels_last=true'),
    'tf32': ('precision={dtype: fp32, tf32: true}', 'train.channels_last=true'),
    'bf16': BF16,
    'fp16': ('precision={dtype: fp16}', 'train.channels_last=true'),
}
GRAPHS = (
    ('SLANet', 'train.cuda_graph=true'),
    ('CRNN', 'train.cuda_graph=true'),
    ('PP-LiteSeg-STDC1', 'train.compile=true'),
    ('PP-YOLOE-s', 'train.compile=true'),
)
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
        return float('nan')
    base = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step(batch)
    return (torch.cuda.max_memory_allocated() - base) / MIB


def kernels(step: Callable[[ImageBatch], None], batch: ImageBatch) -> tuple[int, float]:
    """Number of kernels and copies of a step, and the seconds in which one of them runs.

    The profiler slows down all later launches of its process, so it comes after everything that is timed.
    """
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        step(batch)
        torch.cuda.synchronize()
    spans = sorted(
        (event.time_range.start, event.time_range.end) for event in seen.events() or () if event.device_type.name == 'CUDA'
    )
    busy = end = 0.0
    for start, stop in spans:
        busy += max(0.0, stop - max(start, end))
        end = max(end, stop)
    return len(spans), busy / 1e6


@contextlib.contextmanager
def open_sides(name: str, device: torch.device, batch: ImageBatch | None = None) -> Iterator[tuple[list[Side], ImageBatch]]:
    """Phalanx and the plain loop on the same network, warmed up: kernels are chosen, memory is taken."""
    job = open_network(name, device, *BF16, *PLAIN_STEP)
    with tempfile.TemporaryDirectory() as folder:
        trainer, batch = open_trainer(job, device, folder, batch)
        sides = [Side(partial(train_step, trainer), []), Side(PlainTraining(job, device).step, [])]
        for side in sides:
            time_steps(side.step, batch, device, 5)
        yield sides, batch
    del trainer, sides
    free()


def plain(device: torch.device) -> Iterator[Row]:
    """Both sides in one process, in turns: the ratio holds whatever else the machine does."""
    is_gpu, batches, medians = device.type == 'cuda', dict[str, ImageBatch](), dict[str, list[float]]()
    for name in NETWORKS:
        with open_sides(name, device) as (sides, batch):
            for number in range(10 if is_gpu else 2):
                for side in sides if number % 2 else reversed(sides):
                    side.seconds.append(time_steps(side.step, batch, device, 5 if is_gpu else 1))
            memory = [peak_mib(side.step, batch, device) for side in sides]
        batches[name], medians[name] = batch, [median(side.seconds) for side in sides]
        ours, theirs = medians[name]
        times = {'Phalanx': f'{ours * 1e3:.2f} ms', 'plain': f'{theirs * 1e3:.2f} ms', 'time': f'{ours / theirs:.3f}'}
        yield {'network': name, 'batch': str(len(batch)), **times, 'memory': f'{memory[0] / memory[1]:.3f}'}
    for name in NETWORKS if is_gpu else ():
        with open_sides(name, device, batches[name]) as (sides, batch):
            (count, busy), (count_plain, busy_plain) = (kernels(side.step, batch) for side in sides)
        yield {
            'network': name,
            'kernels, Phalanx': f'{count}',
            'kernels, plain': f'{count_plain}',
            'they run, Phalanx': f'{busy * 1e3:.2f} ms',
            'they run, plain': f'{busy_plain * 1e3:.2f} ms',
            'time without a kernel': f'{max(0, 1 - busy / medians[name][0]):.0%}',
        }


def precision(device: torch.device) -> Iterator[Row]:
    batches = dict[str, ImageBatch]()  # drawn once per network
    for name, (setting, keys) in product(FAMILIES, PRECISIONS.items()):
        job = open_network(name, device, *keys)
        with tempfile.TemporaryDirectory() as folder:
            trainer, batch = open_trainer(job, device, folder, batches.get(name))
            batches[name] = batch
            flops = step_flops(trainer, batch)
            yield {'network': name, 'precision': setting, **timed(trainer, batch, flops)}
            del trainer
        free()


PEAKS: dict[tuple[str, bool], float] = {}  # of this process; measured once


def timed(trainer: Trainer, batch: ImageBatch, flops: int) -> Row:
    device, options = trainer.device, trainer.recipe.precision
    key = options.dtype, options.tf32
    if key not in PEAKS:
        PEAKS[key] = max(measure_peak(device, DTYPES[options.dtype], channels_last=True))
    count = 20 if device.type == 'cuda' else 1
    time_steps(partial(train_step, trainer), batch, device, 3)
    if device.type == 'cuda':
        torch.cuda.reset_peak_memory_stats()
    step = time_steps(partial(train_step, trainer), batch, device, count)
    memory = torch.cuda.max_memory_allocated() / MIB if device.type == 'cuda' else float('nan')
    share = flops / step / PEAKS[key]
    return {
        'batch': str(len(batch)),
        'step': f'{step * 1e3:.2f} ms',
        'samples/s': f'{len(batch) / step:,.0f}',
        'peak memory': f'{memory:,.0f} MiB',
        'share of peak': f'{share:.1%}',
    }


def graphs(device: torch.device) -> Iterator[Row]:
    for name, setting in GRAPHS:
        seconds, batch = list[float](), None
        for keys in ((), (setting,)):
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                trainer, batch = open_trainer(open_network(name, device, *BF16, *keys), device, folder, batch)
                step = partial(train_step, trainer)
                time_steps(step, batch, device, 4)
                start = time.perf_counter() - begin
                seconds.append(median(time_steps(step, batch, device, 5) for _ in range(5)))
                del trainer, step
            free()
            torch.compiler.reset()
        times = {'without': f'{seconds[0] * 1e3:.2f} ms', 'with': f'{seconds[1] * 1e3:.2f} ms'}
        ratio = f'{seconds[1] / seconds[0]:.3f}'
        yield {'network': name, 'setting': setting, **times, 'time': ratio, 'until the fifth step': f'{start:.1f} s'}


def fed(device: torch.device) -> Iterator[Row]:
    """Published recipes on files: the step, and the share of it that waits for the loader."""
    workers, cuda = os.cpu_count() or 1, device.type == 'cuda'
    for family, batch in (('segmentation', 6), ('detection', 24), ('recognition', 128), ('table', 24)):
        pipeline = PIPELINES[family]
        with tempfile.TemporaryDirectory() as folder:
            pipeline.make(Path(folder), default_rng(0))
            serve_training_files_as_validation(Path(folder))
            words = (pipeline.setting.format(folder), *BF16, f'train.workers={workers if cuda else 0}', f'device={device.type}')
            size = f'train.global_batch_size={batch if cuda else 2}'
            job = open_job(pipeline.recipe, [(word, word) for word in (*words, size)])
            figures, _ = measure(job, device, steps=20 if cuda else 1, warmup=2)
        yield {
            'recipe': pipeline.recipe,
            'batch': str(figures['samples']),
            'step': f'{figures["step_s"] * 1e3:.1f} ms',
            'samples/s': f'{figures["samples_per_s"]:,.0f}',
            'of one worker': f'{figures["loader_rate"]:,.0f}',
            'waiting for samples': f'{figures["phases"]["data wait"] / figures["step_s"]:.0%}',
        }
        free()


def serve_training_files_as_validation(root: Path) -> None:
    """Opening a recipe needs an evaluation set, which this benchmark does not use."""
    for folder in ('leftImg8bit', 'gtFine'):
        if (root / folder).is_dir():
            (root / folder / 'val').symlink_to(root / folder / 'train')
    copies = {
        'annotations/instances_train2017.json': 'annotations/instances_val2017.json',
        'rec_gt_train.txt': 'rec_gt_test.txt',
    }
    for source, copy in copies.items():
        if (root / source).is_file():
            (root / copy).write_text((root / source).read_text())
    if (root / 'train2017').is_dir():
        (root / 'val2017').symlink_to(root / 'train2017')
    tables = root / 'PubTabNet_2.0.0.jsonl'
    if tables.is_file():
        text = tables.read_text()
        tables.write_text(text + text.replace('"split": "train"', '"split": "val"'))
        (root / 'val').symlink_to(root / 'train')


def accuracy(device: torch.device) -> Iterator[Row]:
    """Trainings of all seeds side by side: their results count here, not their time."""
    seeds = range(3)

    def train(case: tuple[str, int]) -> float:
        setting, seed = case
        with tempfile.TemporaryDirectory() as folder:
            keys = [*PRECISIONS[setting], f'train.seed={seed}', f'device={device.type}', 'report.pictures=0']
            keys += [] if device.type == 'cuda' else ['train.steps=2', 'data.eval_scenes=2']
            line = [sys.executable, '-m', 'phalanx', 'train', DIGITS, '--save_dir', folder, '--set', *keys]
            subprocess.run(line, capture_output=True, check=True)
            return float(json.loads(Path(folder, 'summary.json').read_text())['best'])

    cases = [(setting, seed) for setting in ('tf32', 'bf16', 'fp16') for seed in seeds]
    with ThreadPoolExecutor(len(cases) if device.type == 'cuda' else 1) as pool:
        found = [*pool.map(train, cases)]
    for setting in ('tf32', 'bf16', 'fp16'):
        values = [value for (of, _), value in zip(cases, found, strict=True) if of == setting]
        each = ', '.join(f'{value:.4f}' for value in values)
        yield {'precision': setting, 'mean IoU': each, 'mean': f'{fmean(values):.4f}', 'deviation': f'{stdev(values):.4f}'}


def free() -> None:
    gc.collect()
    torch.cuda.empty_cache()


SECTIONS: dict[str, Callable[[torch.device], Iterator[Row]]] = {
    'plain': plain,
    'precision': precision,
    'graphs': graphs,
    'fed': fed,
    'accuracy': accuracy,
}


def run_section(name: str, device: str, out: Path, seconds: float, write: Callable[[str, Row], None]) -> None:
    """Rows of a section from a process of its own, which is killed after `seconds`."""
    line = [sys.executable, __file__, '--section', name, '--device', device]
    with (out / f'{name}.log').open('w') as log:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True, start_new_session=True)
        timer = threading.Timer(seconds, process.kill)
        timer.daemon = True
        timer.start()
        assert process.stdout is not None
        for text in process.stdout:
            if text.startswith('{'):
                write(name, json.loads(text))
        late = not timer.is_alive()
        timer.cancel()
        if process.wait() != 0:
            last = ['out of time'] if late else (out / f'{name}.log').read_text().strip().splitlines()[-1:]
            write(name, {'ended early': ' '.join(last)[:200]})


def write_tables(head: str, rows: Sequence[tuple[str, Row]], out: Path) -> None:
    (out / 'gpu.json').write_text(json.dumps({'head': head, 'rows': rows}, indent=1) + '\n')
    text = [head]
    for name in SECTIONS:
        own = [row for section, row in rows if section == name]
        # a row of the table needs all columns
        columns = list(dict.fromkeys(column for row in own for column in row))
        if own:
            text += [f'### {name}', format_markdown([{column: row.get(column, '') for column in columns} for row in own])]
    (out / 'gpu.md').write_text('\n\n'.join(text) + '\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--device', choices=('cuda', 'cpu'), default='cuda')
    parser.add_argument('--seconds', type=float, default=390, help='of the whole table; later sections are left out')
    parser.add_argument('--out', type=Path, default=Path('runs/gpu'))
    parser.add_argument('--only', nargs='+', choices=SECTIONS, default=[*SECTIONS], help='sections')
    parser.add_argument('--section', choices=SECTIONS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == 'cuda' and not torch.cuda.is_available():
        sys.exit('there is no CUDA device here; --device cpu shows that the benchmark works')
    if given.section:
        for row in SECTIONS[given.section](torch.device(given.device)):
            print(json.dumps(row), flush=True)
        return
    name = torch.cuda.get_device_name() if given.device == 'cuda' else f'{platform.processor() or "cpu"} (not a GPU)'
    head = f'{name}, torch {torch.__version__}, {time.strftime("%Y-%m-%d")}, `make gpu`'
    given.out.mkdir(parents=True, exist_ok=True)
    end, rows = time.monotonic() + given.seconds, list[tuple[str, Row]]()

    def write(section: str, row: Row) -> None:
        rows.append((section, row))
        print(f'{section}: ' + ', '.join(f'{key} {value}' for key, value in row.items()), flush=True)
        write_tables(head, rows, given.out)

    for section in given.only:
        if (left := end - time.monotonic()) < 10:
            write(section, {'ended early': 'out of time'})
        else:
            run_section(section, given.device, given.out, left, write)
    print(f'{given.out}/gpu.md, {given.out}/gpu.json')


if __name__ == '__main__':
    main()
