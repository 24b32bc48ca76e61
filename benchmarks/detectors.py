"""PP-YOLOE+ beside YOLO11 of Ultralytics, for gpu.py: training steps and forward passes with decoding, in turns.

Ultralytics is under the AGPL. Phalanx neither contains nor requires it: it is measured where a user has installed it.
"""

import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any, cast

import torch
from networks import BF16, DIGITS_OF_DETECTION, PLAIN_STEP, Row, free, open_trainer, peak_mib, time_steps, train_step
from torch import nn

from phalanx.engine.job import open_job
from phalanx.families.detection.task import Detection

Step = Callable[[Any], None]
Sides = dict[str, tuple[Step, Step, nn.Module]]  # training step, forward pass and network by name


def yolo11(device: torch.device) -> Iterator[Row]:
    """Sizes n and s on the same images and boxes, 640 x 640, batch 32, bf16, SGD, no EMA. Their accuracy is not equal."""
    is_gpu = device.type == 'cuda'
    size, batch_size = ('[640,640]', 32) if is_gpu else ('[64,64]', 2)
    for letter in 'ns':
        network = f'model={{name: ppyoloe, size: {letter}, plus: true}}'
        rest = (f'data.size={size}', f'train.global_batch_size={batch_size}', 'train.workers=0', f'device={device.type}')
        keys = (network, *rest, *BF16, *PLAIN_STEP, 'optimizer={name: sgd, lr: 0.001, momentum: 0.9}')
        job = open_job(DIGITS_OF_DETECTION, [(key, key) for key in keys])
        with tempfile.TemporaryDirectory() as folder:
            trainer, batch = open_trainer(job, device, folder)
            model, task = trainer.model, cast(Detection, job.task)
            sides: Sides = {f'PP-YOLOE+ {letter}': (partial(train_step, trainer), predicting(model, task, device), model)}
            try:
                sides[f'YOLO11{letter}'] = of_ultralytics(letter, len(task.class_names), device)
            except ImportError:
                yield {'network': f'YOLO11{letter}', 'batch': 'not installed (pip install ultralytics, AGPL-3.0)'}
            yield from compare(sides, batch, device)
            del trainer, sides
        free()


def compare(sides: Sides, batch: Any, device: torch.device) -> Iterator[Row]:
    times: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in sides}
    rounds, steps = (6, 5) if device.type == 'cuda' else (2, 1)
    for number in range(-1, rounds):  # the first is not counted
        for name, calls in sides.items():
            for call, seconds in zip(calls[:2], times[name], strict=True):
                taken = time_steps(call, batch, device, steps)
                if number >= 0:
                    seconds.append(taken)
    for name, (step, _, model) in sides.items():
        training, forward = map(median, times[name])
        yield {
            'network': name,
            'batch': f'{len(batch)}',
            'parameters': f'{sum(each.numel() for each in model.parameters()) / 1e6:.2f} M',
            'step': f'{training * 1e3:.2f} ms',
            'images/s, training': f'{len(batch) / training:,.0f}',
            'memory': f'{peak_mib(step, batch, device):,.0f} MiB',
            'images/s, forward and decoding': f'{len(batch) / forward:,.0f}',
        }


def predicting(model: Any, task: Any, device: torch.device) -> Step:
    def predict(batch: Any) -> None:
        model.eval()
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            model.decode(model(task.network_input(batch.to(device))))
        model.train()

    return predict


def of_ultralytics(letter: str, classes: int, device: torch.device) -> tuple[Step, Step, nn.Module]:
    """Training step, forward pass and network of YOLO11. Raises ImportError."""
    from ultralytics.cfg import get_cfg  # type: ignore[import-not-found]
    from ultralytics.nn.tasks import DetectionModel  # type: ignore[import-not-found]

    model = DetectionModel(f'yolo11{letter}.yaml', nc=classes, verbose=False).to(device).to(memory_format=torch.channels_last)
    model.args = get_cfg()
    optimizer = torch.optim.SGD(model.parameters(), 0.001, 0.9)

    def images_of(batch: Any) -> torch.Tensor:
        images: torch.Tensor = batch.images.to(device, non_blocking=True).to(memory_format=torch.channels_last)
        return images.float() / 255

    def train(batch: Any) -> None:
        H, W = batch.images.shape[2:]
        x0, y0, x1, y1 = (batch.boxes / torch.tensor([W, H, W, H])).unbind(1)
        counts = torch.tensor([len(each) for each in batch.truths])
        targets = {
            'img': images_of(batch),
            'cls': batch.classes[:, None].float().to(device),
            'bboxes': torch.stack([(x0 + x1) / 2, (y0 + y1) / 2, x1 - x0, y1 - y0], 1).to(device),
            'batch_idx': torch.arange(len(counts)).repeat_interleave(counts).float().to(device),
        }
        model.train()
        with torch.autocast(device.type, torch.bfloat16):
            loss, _ = model(targets)
        loss.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    def predict(batch: Any) -> None:
        model.eval()
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            model(images_of(batch))
        model.train()

    return train, predict, model
