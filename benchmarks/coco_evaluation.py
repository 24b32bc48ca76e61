"""Memory, time and efficiency of a COCO evaluation on several ranks.

    OMP_NUM_THREADS=1 python benchmarks/coco_evaluation.py [--ranks 8] [--images 5000] [--boxes 300] [--limit_mb 1000]
        [--size S]

Each rank holds the detections of its share of random images; the metric is gathered and computed as in an evaluation. With
`--size`, a PP-YOLOE+-n predicts images of that size first, and one rank evaluates all images, too: the efficiency compares
the processor time of one rank with that on the critical path, a share and the end of the evaluation on rank 0. Prints a line
for each rank, then JSON; the exit code is 1 when a rank took more memory than the limit.
"""

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.engine.meters import peak_memory_mb
from phalanx.families.detection.data import Objects
from phalanx.families.detection.metric import CocoAp
from phalanx.parallel import dist
from phalanx.runtime.detection import Detections

CPU = torch.device('cpu')
CLASSES = 80
OBJECTS = 7  # of an image; COCO has 7.3
BATCH = 8


@dataclass
class Batch:
    indices: list[int]
    truths: list[Objects]


def image(index: int, boxes: int) -> tuple[Detections, Objects]:
    """Random objects, and detections near them, the most probable first."""
    rng = np.random.default_rng(index)
    corners, sides = rng.uniform(0, 400, (OBJECTS, 2)), np.exp(rng.uniform(1.5, 5.5, (OBJECTS, 2)))
    truth = Objects.plain(np.concatenate([corners, corners + sides], 1).astype(np.float32), rng.integers(0, CLASSES, OBJECTS))
    seen = rng.integers(0, OBJECTS, boxes)
    shifts = rng.normal(0, 1, (boxes, 4)) * sides[seen].repeat(2, 1) * rng.choice([0.02, 0.1, 0.5], (boxes, 1))
    found = (truth.boxes[seen] + shifts).astype(np.float32)
    found[:, 2:] = np.maximum(found[:, 2:], found[:, :2] + 0.5)
    classes = np.where(rng.random(boxes) < 0.5, truth.classes[seen], rng.integers(0, CLASSES, boxes))
    return Detections(found, -np.sort(-rng.random(boxes)).astype(np.float32), classes), truth


def predictor(size: int) -> Callable[[], None]:
    """A function that predicts a batch of images with sides of `size`; without a size it does nothing."""
    if not size:
        return lambda: None
    job = open_job('ppyoloe_digits', [(key, key) for key in ('model.size=n', f'data.size=[{size},{size}]')])
    task, dataset = job.task, job.task.dataset('eval')
    model, batch = task.model().eval(), task.collate([dataset[Draw(index)] for index in range(BATCH)])

    @torch.no_grad()
    def predict() -> None:
        task.predict(model, batch)

    predict()  # the first call prepares
    return predict


def evaluate(rank: int, given: argparse.Namespace, ranks: int, store: Path) -> dict[str, float]:
    """The work and the measurement of one rank; ranks meet in the file `store`."""
    torch.set_num_threads(1)
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': str(ranks), 'PHALANX_INIT_METHOD': f'file://{store}'}
    dist.join(CPU)
    before = peak_memory_mb(CPU)
    metric, work, predict = CocoAp(tuple(map(str, range(CLASSES)))), 0.0, predictor(given.size)
    share = range(rank, given.images, ranks)
    for first in range(0, len(share), BATCH):
        indices = share[first : first + BATCH]
        found, truths = zip(*(image(index, given.boxes) for index in indices), strict=True)
        begin = time.process_time()
        predict()
        metric.update(found, Batch(list(indices), list(truths)))
        work += time.process_time() - begin
    dist.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    metric.gather()
    gathered, cpu_gathered = time.perf_counter(), time.process_time()
    metrics = dist.broadcast_object(metric.compute() if rank == 0 else None)
    seconds = {'gather_s': round(gathered - begin, 2), 'compute_s': round(time.perf_counter() - gathered, 2)}
    if rank == 0:
        metric.table()
        metric.figures()
    seconds |= {'share_cpu_s': round(work + cpu_gathered - cpu, 2), 'end_cpu_s': round(time.process_time() - cpu_gathered, 2)}
    peak = peak_memory_mb(CPU)
    memory = {'mb': round(peak), 'of_them_evaluation_mb': round(peak - before)}
    dist.leave()
    return {'rank': rank, **memory, **seconds, 'mean_ap': metrics['mean_ap']}


def run(given: argparse.Namespace, ranks: int) -> list[dict[str, float]]:
    fork = multiprocessing.get_context('fork')  # torch is imported once
    with TemporaryDirectory() as folder, ProcessPoolExecutor(ranks, fork) as pool:  # a process each: they wait in `join`
        return [*pool.map(partial(evaluate, given=given, ranks=ranks, store=Path(folder) / 'store'), range(ranks))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (('--ranks', 8), ('--images', 5000), ('--boxes', 300), ('--limit_mb', 1000), ('--size', 0)):
        parser.add_argument(name, type=int, default=default)
    given = parser.parse_args()
    results = run(given, given.ranks)
    for result in results:
        print(*(f'{key} {value}' for key, value in result.items()), sep=', ')
    print(json.dumps(results))
    if given.size:
        alone, together = (max(result['share_cpu_s'] for result in of) + of[0]['end_cpu_s'] for of in (run(given, 1), results))
        print(f'1 rank {alone:.1f} s, {given.ranks} ranks {together:.1f} s: efficiency {alone / together / given.ranks:.2f}')
    return int(max(result['mb'] for result in results) > given.limit_mb)


if __name__ == '__main__':
    sys.exit(main())
