"""A fixed number of true boxes and denoising queries: one shape for the network, the same losses and gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from phalanx.config.read import ConfigError
from phalanx.engine.job import open_job
from phalanx.families.detection.data import Objects
from phalanx.families.detection.task import Detection, Sample
from phalanx.nn import stochastic
from phalanx.parallel.step import WholeStep

SMALL = 'queries: 12, decoder_layers: 2, denoising: 4'
NARROW = f'channels: 32, encoder_hidden: 32, decoder_hidden: 32, {SMALL}'
NETWORKS = {
    'dfine': (f'model={{name: dfine, {NARROW}}}', 'loss=[dfine]'),
    'deimv2': (f'model={{name: deimv2, size: atto, {SMALL}}}', 'loss=[{name: dfine, classes: matchability}]'),
    'rtdetr': (f'model={{name: rtdetr, backbone: hgnetv2, {NARROW}}}', 'loss=[rtdetr]'),
    'rtdetrv2': (f'model={{name: rtdetrv2, backbone: hgnetv2, {NARROW}}}', 'loss=[rtdetr]'),
}
COUNTS = [(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (6, 0)]  # of boxes of two images: from four groups of queries to one
REPEATED = [('dfine', 3), ('rtdetr', 3), *((name, number) for name in ('deimv2', 'rtdetrv2') for number in (3, 8))]


def sample(seed: int, count: int) -> Sample:
    rng = np.random.default_rng(seed)
    low = rng.uniform(0, 40, (count, 2))
    boxes = np.concatenate([low, low + rng.uniform(6, 24, (count, 2))], 1).astype(np.float32)
    image = torch.from_numpy(rng.integers(0, 256, (3, 64, 64), np.uint8))
    return Sample(image, Objects.plain(boxes, rng.integers(0, 10, count)), seed, (64, 64), torch.zeros(4))


def steps(name: str, fixed: int, counts: list[tuple[int, int]]) -> tuple[list[Any], list[dict[str, float]], list[Tensor]]:
    """Shapes that the network meets, terms of the loss, and gradients of a step for each of `counts`, in float64."""
    job = open_job('ppyoloe_digits', [(key, key) for key in (*NETWORKS[name], f'fixed_objects={fixed}')])
    task, whole = job.task, WholeStep()
    assert isinstance(task, Detection)
    torch.manual_seed(0)
    model: Any = task.model().double().train()
    shapes: list[Any] = []
    model.decoder.register_forward_pre_hook(lambda _, inputs: shapes.append([inputs[0].shape, inputs[-1].shape]))
    model.denoising.register_forward_pre_hook(lambda _, inputs: shapes.append([x.shape for x in inputs[0] if x is not None]))
    model.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(), *inputs[1:]))
    keys = stochastic.SampleKeys()
    stochastic.tie(model, keys)
    found, gradients = [], []
    for step, pair in enumerate(counts):
        batch = task.collate([sample(10 * step + place, count) for place, count in enumerate(pair)])
        batch = task.align(replace(batch, boxes=batch.boxes.double()), whole)
        keys.begin(torch.tensor([11, 22]) + step)
        terms = task.loss(task.outputs(model, batch), batch, whole)
        found.append({term: each.mean().item() for term, each in terms.items()})
        model.zero_grad()
        torch.stack([each.mean() for each in terms.values()]).sum().backward()  # type: ignore[no-untyped-call]
        gradients.append(torch.cat([torch.zeros(1) if p.grad is None else p.grad.flatten() for p in model.parameters()]))
    return [str(pair) for pair in zip(shapes[::2], shapes[1::2], strict=True)], found, gradients


@pytest.mark.parametrize(
    ('name', 'fixed'),  # below and above the number of denoising queries
    [('rtdetr', 8), *(pytest.param(name, number, marks=pytest.mark.long) for name, number in (('dfine', 8), *REPEATED))],
)
def test_the_network_meets_one_shape_and_losses_and_gradients_stay_the_same(name: str, fixed: int) -> None:
    counts = [pair for pair in COUNTS if max(pair) <= fixed]
    shapes, losses, gradients = steps(name, 0, counts)
    assert len(set(shapes)) == len({max(1, *pair) for pair in counts}) > 2
    fixed_shapes, fixed_losses, fixed_gradients = steps(name, fixed, counts)
    assert len(set(fixed_shapes)) == 1
    assert losses[1]['denoising'] > 0
    for own, expected in zip(fixed_losses, losses, strict=True):
        assert own == pytest.approx(expected, rel=1e-10)
    for gradient, wanted in zip(fixed_gradients, gradients, strict=True):
        assert (gradient - wanted).norm() < 1e-10 * wanted.norm()


def test_more_objects_than_the_fixed_number_make_that_step_larger_and_change_no_loss() -> None:
    counts = [(1, 0), (6, 0), (2, 0)]
    (few, many, few_again), losses, _ = steps('dfine', 3, counts)
    assert few == few_again != many
    for own, expected in zip(losses, steps('dfine', 0, counts)[1], strict=True):
        assert own == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize('keys', [('fixed_objects=5',), (*NETWORKS['dfine'], 'fixed_objects=-1')])
def test_a_fixed_number_is_for_detectors_with_queries(keys: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match='fixed_objects: must be at least 0, and 0 for detectors without queries'):
        open_job('ppyoloe_digits', [(key, key) for key in keys])
