"""A detector that learns from a larger one, from recipe to step."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from phalanx.data.samples import Draw
from phalanx.families.detection.data import DATA
from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss import ASSIGNERS, LOSSES, TEACHER_LOSSES
from phalanx.families.detection.loss.assign import pad_truths
from phalanx.families.detection.loss.distill import foreground_weights
from phalanx.families.detection.metric import METRICS
from phalanx.families.detection.models import MODELS
from phalanx.families.detection.task import Detection
from phalanx.families.distillation import student_of
from phalanx.parallel.step import WholeStep

SMALL, LARGE = (partial(MODELS['ppyoloe'], size=size) for size in ('s', 'm'))


def task(**changes: Any) -> Detection:
    data = partial(DATA['digit_scenes'], train_scenes=2, eval_scenes=1, size=(64, 64))
    parts = {'model': SMALL, 'data': data, 'loss': (partial(LOSSES['task_aligned']),), 'metric': partial(METRICS['coco'])}
    taught = {'networks': {'teacher': LARGE}, 'from_teacher': tuple(map(partial, TEACHER_LOSSES.values()))}
    return Detection(Detection.Keys(**{**parts, **taught, **changes}))


def test_a_step_learns_from_the_truth_and_from_the_teacher() -> None:
    torch.manual_seed(0)
    ours = task(loss_coefficients=(0.125,))
    network, samples = ours.model(), ours.dataset('train')
    batch = ours.collate([samples[Draw(number, 0, 0, 0)] for number in range(2)])
    terms = ours.loss(ours.outputs(network, batch), batch, WholeStep())
    learned = ['teacher_cls', 'teacher_iou', 'teacher_dfl', 'teacher_classes', 'teacher_features']
    assert list(terms) == [f'{name}_student' for name in ('cls', 'iou', 'dfl', *learned)]
    sum(term.total for term in terms.values()).backward()  # type: ignore[union-attr]
    networks: Any = network
    assert all(value.grad is not None for value in networks.student.parameters())
    assert all(value.grad is None for value in networks.networks['teacher'].parameters())


def test_the_student_alone_predicts() -> None:
    ours = task()
    network, samples = ours.model().eval(), ours.dataset('eval')
    batch = ours.collate([samples[Draw(0, 0, 0, 0)]])
    networks: Any = network
    assert not any('teacher' in name for name, _ in ours.export(student_of(network)).network.named_parameters())
    with torch.no_grad():
        found, alone = ours.predict(network, batch), ours.predict(networks.student, batch)
    assert (found[0].boxes == alone[0].boxes).all() and (found[0].scores == alone[0].scores).all()


def test_a_teacher_and_what_it_teaches_belong_together() -> None:
    with pytest.raises(ValueError, match='distillation needs both `networks` and losses `between` them'):
        task(from_teacher=())
    for changes in ({'networks': {'other': LARGE}}, {'networks': None}, {'frozen': ('student',)}):
        with pytest.raises(ValueError, match="`networks` must hold one network, named 'teacher'"):
            task(**changes)


def test_coefficients_of_what_the_teacher_gives_follow_those_of_the_loss() -> None:
    assert [coefficient for _, coefficient in task(loss_coefficients=(0.125,)).losses] == [0.125] * 3
    assert [coefficient for _, coefficient in task(loss_coefficients=(1.0, 2.0, 3.0)).losses] == [1.0, 2.0, 3.0]
    with pytest.raises(ValueError, match='loss has 3 entries, but loss_coefficients has 2'):
        task(loss_coefficients=(1.0, 2.0))

    def weights(self, boxes: Any, classes: Any) -> None:
        return None


def test_the_teacher_guides_the_task_aligned_assignment() -> None:
    """Two anchors in the box; the student prefers the first, the teacher the second."""

    def raw(*logits: float) -> Raw:
        distances = torch.full((1, 2, 4, 17), -100.0)
        distances[..., 1] = 0  # 1 stride to each side
        points = torch.tensor([[12.0, 16.0], [20.0, 16.0]])
        return Raw(torch.tensor(logits).view(1, 2, 1), distances.flatten(2), points, torch.full((2,), 8.0), (2,))

    truths = pad_truths([torch.tensor([[8.0, 8, 24, 24]])], [torch.tensor([0])], torch.float32)
    own, guided = raw(4.0, -4.0), raw(4.0, -4.0)._replace(teacher=raw(-4.0, 4.0))
    assigner = ASSIGNERS['task_aligned'](top_k=1)
    assert [assigner(each, truths, WholeStep()).fg_mask.tolist() for each in (own, guided)] == [
        [[True, False]],
        [[False, True]],
    ]


def test_cells_in_boxes_weigh_the_inverse_of_the_area_of_the_smallest_box_around_them() -> None:
    """Cells 0 to 1 in both directions have an area of 4; the second box is the whole map; the third does not exist."""
    cells = torch.tensor([[[0.0, 0, 1, 1], [0, 0, 2, 2], [2, 2, 2, 2]]])
    exist = torch.tensor([[True, True, False]])
    expected = torch.full((1, 3, 3), 1 / 9)
    expected[:, :2, :2] = 1 / 4
    torch.testing.assert_close(foreground_weights(cells, exist, 3, 3), expected)
