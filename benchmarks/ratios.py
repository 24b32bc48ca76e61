"""The ratios that matter, next to plain PyTorch, on one core within five minutes.

    make bench         or: OMP_NUM_THREADS=1 python benchmarks/ratios.py [--only step memory ...] [--keep]

    step        processor time of a training step of four networks, in turns with a plain loop (tiny sizes: the overhead shows)
    memory      peak of the memory that such a step allocates
    loader      time per sample of the input pipeline, in turns with plain OpenCV, Pillow and NumPy
    evaluation  time per image of the suppression of boxes, in turns with torchvision's function
    start       time until the first step of a script on two ranks, in turns with torchrun; of `phalanx config RECIPE`, in turns
                with `import torch`
    growth      time for four times the work, divided by four: list of samples, page of a run, metric of text detection

Each ratio is Phalanx / plain, so lower is better, and the median of several rounds. They are compared with those stored of this
machine in benchmarks/ratios.json (else of another one), and the result names each that is more than 10 % higher, with status 1.
runs/ratios.json holds the results with machine and date; `--keep` stores them.
"""

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from evaluation_phases import suppress_plainly, trained_scores
from input_pipeline import PIPELINES, Prepare, ours, plainly, rate
from networks import PLAIN_STEP, open_sides
from startup import LAUNCHERS, first_step, processor_time
from torch.profiler import ProfilerActivity, profile

from phalanx.bench.data import one_thread
from phalanx.bench.show import format_text
from phalanx.engine.loader import Stream
from phalanx.families.detection.nms import Nms, multiclass_nms
from phalanx.families.segmentation.data.file_list import FileList
from phalanx.families.text_detection.data.source import Texts
from phalanx.families.text_detection.metric.hmean import Hmean
from phalanx.report.page import write_page
from phalanx.runtime.results import TextRegion

CPU = torch.device('cpu')
NETWORKS = ('PP-LiteSeg-STDC1', 'PP-YOLOE-s', 'CRNN', 'SLANet')
LOADERS = ('segmentation', 'detection', 'table')
ROUNDS = 5
STORE, RESULT = Path(__file__).with_name('ratios.json'), Path('runs/ratios.json')
WORSE = 1.1  # times the stored ratio
Ratios = Iterator[tuple[str, list[float]]]  # name, and the ratio of each round


def repeat(call: Callable[[], object], times: int) -> None:
    for _ in range(times):
        call()


def used(call: Callable[[], object]) -> float:
    """Processor time of a call in seconds."""
    begin = time.process_time()
    call()
    return time.process_time() - begin


def in_turns(ours: Callable[[], float], plain: Callable[[], float], rounds: int = ROUNDS) -> list[float]:
    """Ratios of what two functions measure, called in turns; each is called once before."""
    ours(), plain()
    ratios = []
    for number in range(rounds):
        first, second = (ours, plain) if number % 2 else (plain, ours)
        values = {first: first(), second: second()}
        ratios.append(values[ours] / values[plain])
    return ratios


def step() -> Ratios:
    for name in NETWORKS:
        with open_sides(name, CPU, keys=PLAIN_STEP) as (sides, batch):
            own, plain = (partial(used, partial(repeat, partial(side.step, batch), 3)) for side in sides)
            yield name, in_turns(own, plain, 2 * ROUNDS)


def memory() -> Ratios:
    for name in NETWORKS:
        with open_sides(name, CPU, keys=PLAIN_STEP) as (sides, batch):
            own, plain = (partial(allocated, partial(side.step, batch)) for side in sides)
            yield name, in_turns(own, plain, 1)


def allocated(call: Callable[[], object]) -> float:
    """Peak of the bytes that a call allocates."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    assert seen.profiler is not None
    events = [event for event in seen.profiler.kineto_results.events() if event.name() == '[memory]']
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return float(peak)


def loader() -> Ratios:
    for family in LOADERS:
        pipeline = PIPELINES[family]
        with tempfile.TemporaryDirectory() as folder, one_thread():
            files = pipeline.make(Path(folder), np.random.default_rng(0))
            stream = Stream(len(files), pipeline.batch, 1, 0, 0, 1)
            sides = ours(pipeline, Path(folder), stream), plainly(pipeline, files, stream)
            own, plain = (partial(per_sample, side, pipeline.batch) for side in sides)
            yield family, in_turns(own, plain)


def per_sample(prepare_batch: Prepare, batch: int) -> float:
    return 1 / rate(prepare_batch, batch, 1.0)


def evaluation() -> Ratios:
    boxes, scores = trained_scores(4)
    own, plain = (
        partial(used, partial(repeat, partial(suppress, boxes, scores, Nms()), 5))
        for suppress in (multiclass_nms, suppress_plainly)
    )
    yield '600 of 8400 x 80 boxes', in_turns(own, plain)


def start() -> Ratios:
    own, plain = (partial(first_step, LAUNCHERS[name]) for name in ('phalanx launch', 'torchrun'))
    yield 'launch to first step', in_turns(own, plain, 3)
    own, plain = (
        partial(processor_time, words) for words in (['-m', 'phalanx', 'config', 'crnn_digits'], ['-c', 'import torch'])
    )
    yield 'config of a recipe', in_turns(own, plain, 3)


def growth() -> Ratios:
    with tempfile.TemporaryDirectory() as folder:
        for name, work in {'list of samples': read_list, 'page': build_page, 'metric of texts': match_texts}.items():
            few, many = work(Path(folder), 1), work(Path(folder), 4)
            yield name, [ratio / 4 for ratio in in_turns(partial(used, many), partial(used, few))]


def read_list(root: Path, times: int) -> Callable[[], object]:
    """Read a list of 20,000 images, or `times` as many."""
    file = root / f'list{times}.txt'
    file.write_text(''.join(f'images/{number:08}.png labels/{number:08}.png\n' for number in range(20_000 * times)))
    data = FileList(root=root, train=file.name, eval=file.name, classes=('a', 'b'))
    return lambda: data.split('train')


def build_page(root: Path, times: int) -> Callable[[], object]:
    """Build the page of a run without the summary of its log, of 10,000 lines or `times` as many."""
    folder = root / f'run{times}'
    folder.mkdir()
    lines = ({'kind': 'train', 'step': step, 'epoch': 0.0, 'loss': 1 / step} for step in range(1, 10_000 * times))
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps({**line, 'terms': {'a': 1.0}}) + '\n' for line in lines))
    return lambda: write_page(folder)


def match_texts(_: Path, times: int) -> Callable[[], object]:
    """Compare a page of 100 texts, or `times` as many, with a prediction that finds all."""
    side = int(10 * times**0.5)
    x, y = (40.0 * axis.ravel() for axis in np.meshgrid(np.arange(side), np.arange(side)))
    outlines = np.stack([x, y, x + 30, y, x + 30, y + 20, x, y + 20], 1).reshape(-1, 4, 2).astype(np.float32)
    texts = Texts(tuple(outlines), ('text',) * len(outlines), (False,) * len(outlines))
    found = [TextRegion(0.9, tuple(map(tuple, outline.tolist()))) for outline in outlines]
    return lambda: Hmean().update([found] * 4, SimpleNamespace(truths=[texts] * 4, indices=range(4)))


SECTIONS: dict[str, Callable[[], Ratios]] = {
    'step': step,
    'loader': loader,
    'evaluation': evaluation,
    'start': start,
    'growth': growth,
    'memory': memory,  # last: the profiler slows down what its process does later
}


def machine() -> str:
    model = next((line for line in Path('/proc/cpuinfo').read_text().splitlines() if line.startswith('model name')), '')
    return f'{model.partition(": ")[2] or platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__.split("+")[0]}'


def compare(found: dict[str, float], stored: dict[str, float]) -> list[str]:
    """Names of the ratios that got more than 10 % worse."""
    return [name for name, ratio in found.items() if name in stored and ratio > WORSE * stored[name]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--only', nargs='+', choices=SECTIONS, default=[*SECTIONS])
    parser.add_argument('--keep', action='store_true', help=f'store the results of this machine in {STORE.name}')
    given = parser.parse_args()
    torch.set_num_threads(1)
    kept: dict[str, Any] = json.loads(STORE.read_text()) if STORE.is_file() else {}
    name, date = machine(), time.strftime('%Y-%m-%d')
    other = next(iter(kept), '')
    reference = name if name in kept else other
    stored = kept.get(reference, {}).get('ratios', {})
    found: dict[str, float] = {}
    rows = []
    for section in given.only:
        for what, ratios in SECTIONS[section]():
            key = f'{section}: {what}'
            found[key] = round(median(ratios), 3)
            before = f'{stored[key]:.2f}' if key in stored else ''
            rows.append(
                {'': key, 'ratio': f'{found[key]:.2f}', 'of all': f'{min(ratios):.2f}-{max(ratios):.2f}', 'stored': before}
            )
            print(f'{key}: {found[key]:.2f}', file=sys.stderr, flush=True)
    print(f'{name}, {date}; Phalanx / plain, lower is better; stored: {reference or "nothing"}')
    print(format_text(rows))
    entry = {'date': date, 'ratios': {**stored, **found} if reference == name else found}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps({name: entry}, indent=1) + '\n')
    if given.keep:
        STORE.write_text(json.dumps({**kept, name: entry}, indent=1) + '\n')
    worse = compare(found, stored)
    for key in worse:
        print(f'worse: {key} was {stored[key]:.2f} ({reference}, {kept[reference]["date"]}), is {found[key]:.2f}')
    return int(bool(worse))


if __name__ == '__main__':
    sys.exit(main())
