"""Distillation of PP-YOLOE, against numbers that PaddleDetection's DistillPPYOLOELoss gave with Paddle 3.3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.detection.decode import Raw
from phalanx.families.detection.distilled import DistilledDetector
from phalanx.families.detection.loss.assign import Assigned, Truths
from phalanx.families.detection.loss.distill import FeaturesFromTeacher, LogitsFromTeacher
from phalanx.families.detection.models.ppyoloe import anchor_points, ppyoloe

GOLDEN = np.load(Path(__file__).parent / 'data' / 'ppyoloe_distill.npz')
CELLS, K = (10, 20, 40), 5
A = sum(count**2 for count in CELLS)


def wave(shape: tuple[int, ...], speed: float, start: float) -> Tensor:
    values = np.sin(speed * np.arange(np.prod(shape), dtype=np.float64) + start)
    return torch.from_numpy(values.astype(np.float32).reshape(shape))


def raw(speed: float) -> Raw:
    """Waves in the place of what a network says; each channel of its maps has the mean 0 and the deviation 1 over the batch."""
    points, strides = anchor_points([(count, count) for count in CELLS], torch.float32, torch.device('cpu'))
    maps = [wave((2, 8, count, count), speed * 0.7, 0.3 + level) for level, count in enumerate(CELLS)]
    normal = tuple(F.batch_norm(each, None, None, training=True, eps=1e-12) for each in maps)
    distances = 2 * wave((2, A, 68), speed * 1.3, 0.2)
    return Raw(3 * wave((2, A, K), speed, 0.1), distances, points, strides, tuple(count**2 for count in CELLS), normal)


def taught() -> Raw:
    return raw(0.43)._replace(teacher=raw(0.31))


def assigned() -> Assigned:
    answers = torch.zeros(2, A, dtype=torch.bool)
    answers[0, 5::97] = answers[1, 11::211] = True
    score = (0.5 + 0.5 * wave((2, A), 0.9, 0.4).abs()) * answers
    return Assigned(answers, torch.zeros(2, A, dtype=torch.int64), score, 60)


def truths() -> Truths:
    boxes = torch.zeros(2, 3, 4)
    boxes[0] = torch.tensor([[30, 40, 90, 200], [100.5, 60.2, 130.9, 77.7], [0, 0, 320, 320.0]])
    boxes[1, 0] = torch.tensor([200, 210, 230, 233.0])
    return Truths(boxes, torch.zeros(2, 3, dtype=torch.int64), torch.tensor([[True] * 3, [True, False, False]]))


def test_logits_cost_what_they_cost_in_paddledetection() -> None:
    learn = LogitsFromTeacher(weight=1.0, iou_weight=1.0, dfl_weight=1.0)
    terms = learn(taught(), truths(), assigned())
    values = {name.removeprefix('teacher_'): float(term.total / term.weight) for name, term in terms.items()}
    assert values == pytest.approx({name: float(GOLDEN[name]) for name in ('cls', 'iou', 'dfl', 'classes')}, rel=1e-4)


def test_features_cost_what_they_cost_in_paddledetection() -> None:
    """But for the deviation of channels, which there is that of a sample: of 200 values a channel, a four-hundredth more."""
    ((name, term),) = FeaturesFromTeacher()(taught(), truths(), assigned()).items()
    assert name == 'teacher_features'
    assert float(term.total / term.weight) == pytest.approx(float(GOLDEN['features']), rel=3e-3)


def test_a_step_without_objects_costs_no_nan() -> None:
    nothing = Assigned(torch.zeros(2, A, dtype=torch.bool), torch.zeros(2, A, dtype=torch.int64), torch.zeros(2, A), 60)
    none = truths()._replace(exist=torch.zeros(2, 3, dtype=torch.bool), boxes=torch.zeros(2, 3, 4))
    for learn in (LogitsFromTeacher(), FeaturesFromTeacher()):
        for term in learn(taught(), none, nothing).values():
            assert torch.isfinite(term.total / term.weight.clamp(min=term.least or 1.0))


def test_the_teacher_and_what_aligns_maps_do_not_learn() -> None:
    networks = DistilledDetector(ppyoloe(2, size='s'), ppyoloe(2, size='m')).train()
    outputs = networks(torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0)))
    shapes = [[tuple(each.shape) for each in outputs[name].maps] for name in ('student', 'teacher')]
    assert shapes[0] == shapes[1] == [(2, 576, 2, 2), (2, 288, 4, 4), (2, 144, 8, 8)]
    for maps in (outputs['student'].maps, outputs['teacher'].maps):
        for each in maps:
            assert torch.allclose(each.mean((0, 2, 3)), torch.zeros(()), atol=1e-4)
    learning = [name for name, value in networks.named_parameters() if value.requires_grad]
    assert learning and all(name.startswith('networks.student.') for name in learning)
    assert not networks.networks['teacher'].training and isinstance(networks.aligned[0], nn.Conv2d)
    assert isinstance(networks.eval()(torch.zeros(1, 3, 64, 64)), Raw)
    with pytest.raises(ValueError, match='must have the same levels and reach as the model'):
        DistilledDetector(ppyoloe(2), ppyoloe(2, levels=4))
