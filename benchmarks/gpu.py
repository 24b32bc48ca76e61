"""Training on this GPU: a section per question, a table per section.

    make gpu           or: python benchmarks/gpu.py [--device cpu] [--seconds 540] [--out runs/gpu] [--only plain precision ...]

    tests       tests/gpu
    plain       a step of seven networks beside a plain PyTorch loop, in turns, in bf16 and channels last; its kernels
    graphs      the same steps as CUDA graphs or compiled
    fed         whole training steps, fed with files by loader workers
    evaluation  the phases of an evaluation: loading, network, post-processing, metric; boxes suppressed here and there
    yolo11      PP-YOLOE+ beside Ultralytics' YOLO11, if that is installed, in turns
    precision   a step of each family in fp32, tf32, bf16 and fp16, and its memory beside what `bench memory` predicts
    accuracy    mean IoU of seeds in each precision, images/s and memory

Each section runs in a process of its own, ends alone if it fails, and has a share of the time, with what those before it left.
gpu.md and gpu.json hold each row as soon as it is measured. With `--device cpu` sizes are tiny: it shows that the benchmark
works, and says nothing about a GPU.
"""

import argparse
import contextlib
import faulthandler
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
from importlib.util import find_spec
from itertools import product
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

import psutil
import torch
from detectors import yolo11
from evaluation_phases import evaluation
from input_pipeline import PIPELINES
from networks import (
    BF16,
    DIGITS,
    MIB,
    NETWORKS,
    Row,
    free,
    open_network,
    open_sides,
    open_trainer,
    peak_mib,
    time_steps,
    train_step,
)
from numpy.random import default_rng
from torch.profiler import ProfilerActivity, profile

from phalanx.bench.flops import measure_peak, step_flops
from phalanx.bench.show import format_markdown
from phalanx.bench.train import measure
from phalanx.data.batch import ImageBatch
from phalanx.engine.fit import StepMemory
from phalanx.engine.job import open_job
from phalanx.engine.parts import Parts
from phalanx.engine.precision import DTYPES
from phalanx.engine.trainer import Trainer

ROOT = Path(__file__).parents[1]
ROUND_SECONDS = 5  # of measuring, per network
FAMILIES = ('PP-LiteSeg-STDC1', 'PP-YOLOE-s', 'CRNN', 'DB', 'SLANet')
PRECISIONS = {
    'bf16': BF16,
    'tf32': ('precision={dtype: fp32, tf32: true}', 'train.channels_last=true'),
    'fp16': ('precision={dtype: fp16}', 'train.channels_last=true'),
    'fp32': ('precision={dtype: fp32, tf32: false}', 'train.channels_last=true'),
}
# Compiling takes a minute or more, so it comes last; a compilation that is interrupted can spoil those after it.
GRAPHS = (
    ('CRNN', 'train.cuda_graph=true'),
    ('SLANet', 'train.cuda_graph=true'),
    ('PP-LiteSeg-STDC1', 'train.compile=true'),
    ('PP-YOLOE-s', 'train.compile=true'),
)


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


def tests(_: torch.device) -> Iterator[Row]:
    words = [sys.executable, '-m', 'pytest', str(ROOT / 'tests' / 'gpu'), '-p', 'no:cacheprovider', '--color=no']
    words += ['-m', 'not long', *(['-n', '6'] if find_spec('xdist') else [])]  # they take minutes one after another
    ended = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    print(ended.stdout, file=sys.stderr)  # to the log
    result = 'passed' if ended.returncode == 0 else 'failed, see tests.log'
    yield {'result': result, 'tests': ended.stdout.strip().splitlines()[-1].strip('= ')}


def plain(device: torch.device) -> Iterator[Row]:
    """Both sides in one process, in turns: the ratio holds whatever else the machine does."""
    is_gpu, batches, medians = device.type == 'cuda', dict[str, ImageBatch](), dict[str, list[float]]()
    for name in NETWORKS:
        with open_sides(name, device) as (sides, batch):
            end = time.monotonic() + ROUND_SECONDS
            for number in range(10 if is_gpu else 2):
                if number > 2 and time.monotonic() > end:
                    break
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
    batches, predictions = dict[str, ImageBatch](), dict[tuple[str, bool], float]()  # by network, and by size of its numbers
    for (setting, keys), name in product(PRECISIONS.items(), FAMILIES):  # the first of each network loads its kernels: 10 s
        job = open_network(name, device, *keys)
        with tempfile.TemporaryDirectory() as folder:
            trainer, batch = open_trainer(job, device, folder, batches.get(name))
            batches[name] = batch
            row = timed(trainer, batch, step_flops(trainer, batch))
            del trainer
        key = name, job.recipe.precision.dtype == 'fp32'
        if key not in predictions:
            memory = StepMemory(job.recipe, Parts(job.recipe, job.task), is_gpu=True)
            predictions[key] = sum(memory.parts_of(batch, 1).values())
        yield {'network': name, 'precision': setting, **row, 'predicted': f'{predictions[key]:,.0f} MiB'}
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
        yield {'network': name, 'setting': setting, **compare_with(name, setting, device)}
        torch.compiler.reset()
        free()


def compare_with(name: str, setting: str, device: torch.device) -> Row:
    """A step without and with a setting, and the seconds until the setting has made five."""
    seconds, batch, start = list[float](), None, 0.0
    for keys in ((), (setting,)):
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            lengths = ('fixed_length=true',) if name == 'SLANet' else ()
            trainer, batch = open_trainer(open_network(name, device, *BF16, *lengths, *keys), device, folder, batch)
            step = partial(train_step, trainer)
            time_steps(step, batch, device, 4)
            start = time.perf_counter() - begin
            seconds.append(median(time_steps(step, batch, device, 5) for _ in range(5)))
            del trainer, step
        free()
    times = {'without': f'{seconds[0] * 1e3:.2f} ms', 'with': f'{seconds[1] * 1e3:.2f} ms'}
    return {**times, 'time': f'{seconds[1] / seconds[0]:.3f}', 'until the fifth step': f'{start:.1f} s'}


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
    """Trainings of all seeds of a precision side by side, so compare their images/s with those of other precisions only."""
    is_gpu = device.type == 'cuda'
    seeds = range(3 if is_gpu else 2)

    def train(setting: str, seed: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            keys = [*PRECISIONS[setting], f'train.seed={seed}', f'device={device.type}', 'report.pictures=0']
            keys += [] if is_gpu else ['train.steps=2', 'data.eval_scenes=2', 'train.workers=0', 'data.size=[64,96]']
            line = [sys.executable, '-m', 'phalanx', 'train', DIGITS, '--save_dir', folder, '--set', *keys]
            subprocess.run(line, capture_output=True, check=True)
            summary: dict[str, Any] = json.loads(Path(folder, 'summary.json').read_text())
            return summary

    for setting in ('tf32', 'bf16', 'fp16'):
        with ThreadPoolExecutor(len(seeds) if is_gpu else 1) as pool:
            found = [*pool.map(partial(train, setting), seeds)]
        values = [run['best'] for run in found]
        yield {
            'precision': setting,
            'mean IoU': ', '.join(f'{value:.4f}' for value in values),
            'mean': f'{fmean(values):.4f}',
            'deviation': f'{stdev(values):.4f}',
            'images/s': ', '.join(f'{run["samples_per_s"]:,.0f}' for run in found),
            'memory': f'{max(run["peak_memory_mb"] for run in found):,.0f} MiB',
        }


class Section(NamedTuple):
    rows: Callable[[torch.device], Iterator[Row]]  # of a device
    share: float  # of the time, in seconds of 540


SECTIONS = {
    'tests': Section(tests, 75),
    'plain': Section(plain, 60),
    'graphs': Section(graphs, 160),
    'fed': Section(fed, 60),
    'evaluation': Section(evaluation, 40),
    'yolo11': Section(yolo11, 35),
    'precision': Section(precision, 75),
    'accuracy': Section(accuracy, 35),
}


def run_section(name: str, device: str, out: Path, seconds: float, write: Callable[[str, Row], None]) -> None:
    """Rows of a section from a process of its own, which is killed after `seconds` with all that it started."""
    line = [sys.executable, __file__, '--section', name, '--device', device, '--seconds', f'{seconds:.0f}']
    with (out / f'{name}.log').open('w') as log:
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, text=True)
        timer = threading.Timer(seconds, kill_tree, [process.pid])
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


def kill_tree(pid: int) -> None:
    """Kill a process and its descendants: compilers and trainings hold its standard output open."""
    process = psutil.Process(pid)
    for each in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()


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
    parser.add_argument('--seconds', type=float, default=540, help='of all sections together')
    parser.add_argument('--out', type=Path, default=Path('runs/gpu'))
    parser.add_argument('--only', nargs='+', choices=SECTIONS, default=[*SECTIONS], help='sections')
    parser.add_argument('--section', choices=SECTIONS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.device == 'cuda' and not torch.cuda.is_available():
        sys.exit('there is no CUDA device here; --device cpu shows that the benchmark works')
    if given.section:
        # To the log: where it was a second before it is killed. Its time began before its imports.
        left = given.seconds - (time.time() - psutil.Process().create_time())
        faulthandler.dump_traceback_later(max(1, left - 1))
        for row in SECTIONS[given.section].rows(torch.device(given.device)):
            print(json.dumps(row), flush=True)
        return
    name = torch.cuda.get_device_name() if given.device == 'cuda' else f'{platform.processor() or "cpu"} (not a GPU)'
    head = f'{name}, torch {torch.__version__}, {time.strftime("%Y-%m-%d")}, `make gpu`'
    given.out.mkdir(parents=True, exist_ok=True)
    end, rows = time.monotonic(), list[tuple[str, Row]]()

    def write(section: str, row: Row) -> None:
        rows.append((section, row))
        print(f'{section}: ' + ', '.join(f'{key} {value}' for key, value in row.items()), flush=True)
        write_tables(head, rows, given.out)

    unit = given.seconds / sum(SECTIONS[section].share for section in given.only)
    for section in given.only:
        end += unit * SECTIONS[section].share
        run_section(section, given.device, given.out, end - time.monotonic(), write)
    print(f'{given.out}/gpu.md, {given.out}/gpu.json')
    sys.exit(int(any(section == 'tests' and row.get('result') != 'passed' for section, row in rows)))


if __name__ == '__main__':
    main()
