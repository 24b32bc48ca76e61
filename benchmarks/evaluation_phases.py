"""Phases of an evaluation, for gpu.py: who waits for whom, and where boxes are suppressed fastest."""

import os
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from networks import BF16, Row, free, open_network
from torch import Tensor
from torchvision.ops import batched_nms

from phalanx.bench.flops import read_clock
from phalanx.engine.evaluation import Setup
from phalanx.engine.loader import evaluation_draws
from phalanx.engine.precision import Precision
from phalanx.families.detection.nms import Nms, Selected, multiclass_nms

# Network, samples, batch and key of the number of samples.
EVALUATED = (
    ('PP-YOLOE-s', 1000, 16, 'data.eval_scenes'),
    ('DB', 200, 8, 'data.eval_pages'),
    ('SLANet', 200, 8, 'data.eval_tables'),
)
PHASES = ('waiting', 'copy', 'network', 'rest of predicting', 'metric')
ANCHORS, CLASSES, CANDIDATES = 8400, 80, 600  # of an image of 640 x 640 under a network trained on COCO


def evaluation(device: torch.device) -> Iterator[Row]:
    """Untrained networks: decoding a table takes its longest, and few boxes and texts are found."""
    is_gpu = device.type == 'cuda'
    yield from suppression(device, 16 if is_gpu else 2)
    for name, samples, batch_size, key in EVALUATED:
        count, size = (samples, batch_size) if is_gpu else (4, 2)
        seconds, compute = time_phases(name, device, (f'{key}={count}', f'evaluate.batch_size={size}'))
        total = sum(seconds.values()) + compute
        yield {
            'network': name,
            'samples': f'{count}',
            'samples/s': f'{(count - size) / total:,.0f}',
            **{phase: f'{value / total:.0%}' for phase, value in seconds.items()},
            'metric, at the end': f'{compute / total:.0%}',
        }
        free()


def time_phases(name: str, device: torch.device, keys: tuple[str, ...]) -> tuple[dict[str, float], float]:
    """Seconds of the phases of all batches but the first, and of the metric at the end; the host waits for each phase."""
    job = open_network(name, device, *BF16, *keys, f'train.workers={(os.cpu_count() or 1) if device.type == "cuda" else 0}')
    task, recipe = job.task, job.recipe
    model = task.model().eval().to(device).to(memory_format=torch.channels_last)
    setup, metric, dataset = Setup(recipe, device, Precision(recipe.precision, device)), task.metric(), task.dataset('eval')
    draws = evaluation_draws(len(dataset), recipe.evaluate.batch_size, recipe.train.seed, 0, 1)
    batches = setup.loader(task, dataset).batches(iter([*draws]))
    seconds, inside = dict.fromkeys(PHASES, 0.0), list[float]()
    model.register_forward_pre_hook(lambda *_: inside.append(-read_clock(device)))
    model.register_forward_hook(lambda *_: inside.append(read_clock(device)))
    with torch.no_grad(), setup.precision.autocast():
        moments = [time.perf_counter()]
        for number, batch in enumerate(batches):
            moments.append(time.perf_counter())
            moved = batch.to(device)
            moments.append(read_clock(device))
            inside.clear()
            predicted = task.predict(model, moved)
            moments.append(read_clock(device))
            metric.update(predicted, moved)
            moments.append(time.perf_counter())
            wait, copy, predict, update = (later - earlier for earlier, later in pairwise(moments))
            network = sum(inside)
            if number:  # the first starts the loader and chooses kernels
                for phase, value in zip(PHASES, (wait, copy, network, predict - network, update), strict=True):
                    seconds[phase] += value
            moments = moments[-1:]
    begin = time.perf_counter()
    metric.gather()
    metric.compute()
    return seconds, time.perf_counter() - begin


def suppression(device: torch.device, batch: int) -> Iterator[Row]:
    """Suppression on the host, as an evaluation does it, and on the device."""
    boxes, scores = (values.to(device) for values in trained_scores(batch))
    for name, suppress in {'host': multiclass_nms, 'device': suppress_plainly}.items():
        yield {'suppression': name, 'images': f'{batch}', 'per image': f'{time_call(suppress, boxes, scores, device):.2f} ms'}


def trained_scores(batch: int) -> tuple[Tensor, Tensor]:
    """Boxes [batch, 8400, 4] and scores [batch, 8400, 80] as of a trained network: 600 candidates per image."""
    generator, rows = torch.Generator().manual_seed(0), torch.arange(batch).repeat_interleave(CANDIDATES)
    scores = torch.rand(batch, ANCHORS, CLASSES, generator=generator) * 0.009
    anchors = torch.randint(ANCHORS, (len(rows),), generator=generator)
    classes = torch.randint(CLASSES, (len(rows),), generator=generator)
    scores[rows, anchors, classes] = 0.02 + 0.98 * torch.rand(len(rows), generator=generator)
    corners = torch.rand(batch, ANCHORS, 2, generator=generator) * 560
    return torch.cat([corners, corners + 80 * torch.rand(batch, ANCHORS, 2, generator=generator)], 2), scores


def time_call(suppress: Callable[..., Any], boxes: Tensor, scores: Tensor, device: torch.device) -> float:
    """Milliseconds per image, the median of five calls after one that is not counted."""
    times = []
    for _ in range(6):
        begin = read_clock(device)
        suppress(boxes, scores, Nms())
        times.append(read_clock(device) - begin)
    return 1000 * sorted(times[1:])[2] / len(boxes)


def suppress_plainly(boxes: Tensor, scores: Tensor, nms: Nms) -> list[Selected]:
    """Boxes of each image by torchvision's function on the device, one copy of each result to the host."""
    selected = []
    for own, likelihoods in zip(boxes, scores, strict=True):
        anchors, classes = (likelihoods > nms.score_threshold).nonzero().unbind(1)
        candidates, likelihood = own[anchors], likelihoods[anchors, classes]
        kept = batched_nms(candidates, likelihood, classes, nms.nms_threshold)[: nms.keep_top_k]
        selected.append((candidates[kept].cpu(), likelihood[kept].cpu(), classes[kept].cpu()))
    return selected
