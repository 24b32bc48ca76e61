"""Average precision of a detector trained from random weights on few images, at each tenth of a budget of processor time.

    OMP_NUM_THREADS=1 python benchmarks/few_data.py RECIPE [yolo11n|yolo26n] [--seconds 600] [--side 224] [--set KEY=VALUE ...]

RECIPE gives the data and, without a second name, the network: for example what `phalanx new --minutes 5` writes. Its length
and warm-up follow the budget as there, epochs of its transforms do not. A network of Ultralytics trains on the same images
from the same seed with its own settings. One process, one core; evaluations are not counted, and one metric measures both.
Ultralytics is under the AGPL: see detectors.py.
"""

import argparse
import contextlib
import copy
import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cv2
import torch
from networks import open_trainer, train_step

from phalanx.curation.new import plan
from phalanx.data.samples import Draw
from phalanx.engine.job import Job, open_job
from phalanx.runtime.detection import Detections

CPU = torch.device('cpu')
CALIBRATION = 20  # steps


class Budget:
    """Processor time of a training without its evaluations, which happen at each tenth."""

    def __init__(self, seconds: float, evaluate: Callable[[], dict[str, float]]) -> None:
        self.seconds, self.evaluate = seconds, evaluate
        self.spent, self.tenth, self.mark = 0.0, 1, time.process_time()

    def check(self, *, is_last: bool = False) -> None:
        """Call it after each step."""
        self.spent += time.process_time() - self.mark
        if is_last or (self.spent >= self.tenth * self.seconds / 10 and self.tenth < 10):
            found = self.evaluate()
            print(f'{self.spent:.0f} s: mean_ap {found["mean_ap"]:.3f}, ap50 {found["ap50"]:.3f}', flush=True)
            self.tenth += 1
        self.mark = time.process_time()


def open_keys(recipe: str, keys: list[str]) -> Job:
    return open_job(recipe, [(key, key) for key in ('train.workers=0', 'device=cpu', *keys)])


def train_phalanx(recipe: str, keys: list[str], seconds: float, folder: Path) -> None:
    trainer, _ = open_trainer(open_keys(recipe, keys), CPU, str(folder / 'trial'))
    batches = trainer.batches()
    begin = time.process_time()
    for batch in itertools.islice(batches, CALIBRATION):
        train_step(trainer, batch)
    rate = CALIBRATION * trainer.stream.global_batch_size / (time.process_time() - begin)
    length = plan.length_of('detection', len(trainer.dataset), plan.describe_node(), round(seconds * rate))
    batch_size = trainer.stream.global_batch_size
    steps = round(length.epochs * len(trainer.dataset) / batch_size)
    print(f'{rate:.1f} samples/s, {length.epochs} epochs, {steps} steps of {batch_size}', flush=True)
    fitted = (f'train.epochs={length.epochs}', f'schedule.warmup_steps={max(1, min(500, steps // 20))}')
    trainer, _ = open_trainer(open_keys(recipe, [*fitted, *keys]), CPU, str(folder / 'run'))
    trainer.until = trainer.steps

    def evaluate() -> dict[str, float]:
        settled = trainer.ema is not None and trainer.ema.is_settled
        with trainer.ema.applied() if trainer.ema and settled else contextlib.nullcontext():
            result = trainer.evaluator.evaluate(trainer.progress.step)
        assert result is not None
        return dict(result.metrics)

    budget = Budget(seconds, evaluate)
    for batch in trainer.batches():
        train_step(trainer, batch)
        budget.check(is_last=trainer.progress.step == trainer.steps)


def train_ultralytics(name: str, job: Job, seconds: float, side: int, epochs: int | None, folder: Path) -> None:
    """Raises ImportError without Ultralytics."""
    from ultralytics import YOLO  # type: ignore[import-not-found]

    task: Any = job.task
    for split in ('train', 'eval'):
        task.rewrite(split, folder, form='yolo')
    text = (folder / 'data.yaml').read_text()
    (folder / 'data.yaml').write_text(f'path: {folder}\n{text}')
    options = {'data': str(folder / 'data.yaml'), 'imgsz': side, 'device': 'cpu', 'workers': 0, 'project': str(folder)}
    options |= {'val': False, 'plots': False, 'save': False, 'amp': False, 'verbose': False, 'seed': job.recipe.train.seed}
    if epochs is None:  # one epoch after another that is not timed gives their number
        moments: list[float] = []
        trial = YOLO(f'{name}.yaml')
        for event in ('on_train_epoch_start', 'on_train_epoch_end'):
            trial.add_callback(event, lambda _: moments.append(time.process_time()))
        trial.train(**options, epochs=2)
        epochs = round(seconds / (moments[3] - moments[2]))
    print(f'{epochs} epochs', flush=True)
    budgets: list[Budget] = []

    def begin(trainer: Any) -> None:
        budgets.append(Budget(seconds, partial(evaluate_ultralytics, trainer, task, side)))

    model = YOLO(f'{name}.yaml')
    model.add_callback('on_train_start', begin)
    model.add_callback('on_train_batch_end', lambda _: budgets[0].check())
    model.add_callback(
        'on_train_epoch_end', lambda trainer: budgets[0].check(is_last=True) if trainer.epoch == epochs - 1 else None
    )
    model.train(**options, epochs=epochs)


@torch.no_grad()
def evaluate_ultralytics(trainer: Any, task: Any, side: int) -> dict[str, float]:
    """Evaluate the average of the weights as the validation of Ultralytics does, but by the metric of `task`."""
    from ultralytics.data.augment import LetterBox  # type: ignore[import-not-found]
    from ultralytics.utils import nms, ops  # type: ignore[import-not-found]

    model, samples, metric = copy.deepcopy(trainer.ema.ema).float().eval(), task.dataset('eval'), task.metric()
    for index in range(len(samples)):
        image, _ = samples.source.read(Draw(index))
        resized = LetterBox((side, side), auto=True, stride=32)(
            image=cv2.resize(image, (side, image.shape[0] * side // image.shape[1]))
        )
        tensor = torch.from_numpy(resized).permute(2, 0, 1)[None].float() / 255
        boxes = nms.non_max_suppression(
            model(tensor), 0.001, 0.7, multi_label=True, max_det=300, end2end=getattr(model, 'end2end', False)
        )[0]
        boxes[:, :4] = ops.scale_boxes(tensor.shape[2:], boxes[:, :4], image.shape[:2])
        x = boxes.numpy()
        found = Detections(x[:, :4], x[:, 4], x[:, 5].astype('int64'))
        metric.update([found], task.collate([samples[Draw(index)]]))
    values: dict[str, float] = metric.compute()
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('recipe')
    parser.add_argument('network', nargs='?', help='yolo11n or yolo26n')
    parser.add_argument('--seconds', type=float, default=600)
    parser.add_argument('--epochs', type=int, help='of Ultralytics; otherwise measured')
    parser.add_argument('--side', type=int, default=224, help='of the input of Ultralytics')
    parser.add_argument('--set', nargs='+', action='extend', default=[], metavar='KEY=VALUE')
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        if given.network:
            train_ultralytics(
                given.network, open_keys(given.recipe, given.set), given.seconds, given.side, given.epochs, Path(name)
            )
        else:
            train_phalanx(given.recipe, given.set, given.seconds, Path(name))


if __name__ == '__main__':
    main()
