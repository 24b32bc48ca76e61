"""D-FINE and RT-DETRv2 beside transformers, on one core: a training step, the network alone, and a prediction.

    OMP_NUM_THREADS=1 python benchmarks/query_detectors.py [--size 320] [--batch 2] [--repeats 5] [--only dfine_hgnetv2_n_coco]

Both are initialised at random and train with AdamW in float32 and channels last on the same images of 80 classes with seven
boxes each, 300 queries and 100 denoising queries. Times are processor times in turns; memory is what torch allocates in a step
at its peak.
"Network" is a forward and a backward pass from the sum of all outputs. A prediction ends with the 300 best boxes in pixels.
The losses are not the same: see tests/golden/test_transformers_detectors.py, which builds the other side, too.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from networks import PLAIN_STEP, Row, open_trainer, peak_mib, train_step
from small_data import write
from torch import Tensor
from torch.utils import _pytree as pytree

from phalanx.bench.show import format_text
from phalanx.engine.job import open_job
from phalanx.families.detection.queries import centres

sys.path.append(str(Path(__file__).parents[1] / 'tests'))
CPU, CLASSES, BOXES = torch.device('cpu'), 80, 7
OTHERS = {'dfine_hgnetv2_n_coco': 'dfine_n', 'rtdetrv2_r18vd_120e_coco': 'rtdetrv2_r18vd'}
Calls = dict[str, Callable[[], Any]]


def write_data(folder: Path, size: int, count: int) -> None:
    """Write `count` images of noise as both splits."""
    rng = np.random.default_rng(0)
    for split in ('train', 'eval'):
        scenes = []
        for _ in range(count):
            sides = rng.integers(size // 10, size // 2, (BOXES, 2))
            corners = rng.integers(0, size - sides)
            boxes = [
                (int(rng.integers(CLASSES)), [*map(int, (*corner, *side))]) for corner, side in zip(corners, sides, strict=True)
            ]
            scenes.append((rng.integers(0, 256, (size, size, 3)).astype(np.uint8), boxes))
        write(folder, split, iter(scenes), [f'class {number}' for number in range(CLASSES)])


def of_phalanx(recipe: str, size: int, count: int, folder: Path) -> tuple[Calls, Any]:
    names = [f'class {number}' for number in range(CLASSES)]
    data = {'name': 'coco', 'root': str(folder), 'train': 'train.json', 'eval': 'eval.json', 'classes': names}
    keys = (
        f'data={ {**data, "train_images": "", "eval_images": ""} }', 'transforms=[]', f'train.global_batch_size={count}',
        f'eval_transforms=[{{name: resize, target_size: [{size}, {size}]}}]', 'train.workers=0', 'device=cpu',
        'train.channels_last=true', 'precision.dtype=fp32', 'schedule.warmup_steps=0', *PLAIN_STEP,
    )  # fmt: skip
    job = open_job(recipe, [(key, key) for key in keys])
    trainer, batch = open_trainer(job, CPU, str(folder / 'run'))
    task: Any = job.task

    def network() -> None:
        back_from(task.outputs(trainer.model, batch))
        trainer.optimizer.zero_grad()

    @torch.no_grad()
    def predict() -> None:
        trainer.model.eval()
        task.predict(trainer.model, batch)
        trainer.model.train()

    return {'step': lambda: train_step(trainer, batch), 'network': network, 'prediction': predict}, batch


def back_from(outputs: Any) -> None:
    tensors = [x for x in pytree.tree_leaves(outputs) if isinstance(x, Tensor) and x.requires_grad]
    torch.autograd.backward(torch.stack([x.sum() for x in tensors]).sum())


def of_transformers(name: str, batch: Any) -> Calls:
    from golden import test_transformers_detectors as other  # type: ignore[import-not-found]

    model = getattr(other, name)(num_labels=CLASSES, num_queries=300).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    decoder = other.transformers.RTDetrImageProcessor()
    size = torch.tensor(batch.images.shape[:1:-1] * 2)
    labels = [
        {'class_labels': classes, 'boxes': centres(boxes / size)} for boxes, classes in zip(*batch.per_image(), strict=True)
    ]

    def step() -> None:
        model(pixel_values=batch.images.float() / 255, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def network() -> None:
        back_from(dict(model.model(batch.images.float() / 255, labels=labels)))
        optimizer.zero_grad()

    @torch.no_grad()
    def predict() -> None:
        model.eval()
        found = model(pixel_values=batch.images.float() / 255)
        decoder.post_process_object_detection(found, threshold=0.0, target_sizes=list(batch.sizes))
        model.train()

    return {'step': step, 'network': network, 'prediction': predict}


def compare(recipe: str, size: int, count: int, repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        write_data(Path(name), size, count)
        ours, batch = of_phalanx(recipe, size, count, Path(name))
        theirs = of_transformers(OTHERS[recipe], batch)
        for what in ours:
            seconds: tuple[list[float], list[float]] = ([], [])
            for _ in range(repeats + 2):  # the first two are not counted
                for side, taken in zip((ours, theirs), seconds, strict=True):
                    begin = time.process_time()
                    side[what]()
                    taken.append(time.process_time() - begin)
            times = [1e3 * median(taken[2:]) for taken in seconds]
            memory = [peak_mib(lambda _, call=side[what]: call(), batch, CPU) for side in (ours, theirs)]  # type: ignore[misc]
            yield {
                'recipe': recipe,
                '': what,
                'Phalanx': f'{times[0]:,.0f} ms, {memory[0]:,.0f} MiB',
                'transformers': f'{times[1]:,.0f} ms, {memory[1]:,.0f} MiB',
                'time': f'{times[0] / times[1]:.2f}',
                'memory': f'{memory[0] / memory[1]:.2f}',
            }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--size', type=int, default=320)
    parser.add_argument('--batch', type=int, default=2)
    parser.add_argument('--repeats', type=int, default=5)
    parser.add_argument('--only', nargs='+', choices=OTHERS, default=list(OTHERS))
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows = [row for recipe in given.only for row in compare(recipe, given.size, given.batch, given.repeats)]
    print(format_text(rows))


if __name__ == '__main__':
    main()
