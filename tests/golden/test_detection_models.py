"""Detection networks, their assigners, losses and non-maximum suppression against PaddleDetection.

Expected numbers were produced by running the original on CPU with the weights and inputs of weights.py, shifted as
`detection_state` says; trim_detection.py copied them to data/. Forward passes are compared in float32; losses, gradients and
optimizer steps in float64. What remains there comes from the original's hard sigmoid, whose slope is 0.1666667 and not 1/6:
with that slope all of them agree ten times better.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from filling import load_original
from golden.weights import FloatArray, draw, images
from phalanx.families.detection.decode import REACH, Raw, decode_boxes
from phalanx.families.detection.loss import TaskAlignedLoss
from phalanx.families.detection.loss.assign import Assigned, Truths, pad_truths
from phalanx.families.detection.models.ppyoloe import PPYOLOE, ppyoloe
from phalanx.families.detection.nms import Nms, multiclass_nms
from phalanx.paddle.weights import original_of
from phalanx.parallel.step import WholeStep

BINS = REACH[1] - REACH[0] + 1

DATA = Path(__file__).parent / 'data'
FACTS = json.loads((DATA / 'detection_models.json').read_text())
TRAINED = ('det_ppyoloe_crn_s', 'det_ppyoloe_plus_crn_s')
EVALUATED = (
    'det_ppyoloe_crn_m',
    *(pytest.param(name, marks=pytest.mark.long) for name in ('det_ppyoloe_crn_l', 'det_ppyoloe_crn_x')),
)
STAGES = {'atss': 0, 'tal': 100}  # the epoch at which the original ran each
COLUMNS = ('loss', 'loss_cls', 'loss_iou', 'loss_dfl')
LOSS = TaskAlignedLoss(static_assigner_epochs=100)
COMPARED_STEPS = 3  # of five: training is chaotic with these weights, and the fourth loss is off by 1e-2


def detection_state(shapes: Sequence[tuple[str, Sequence[int]]], gain: float) -> dict[str, FloatArray]:
    """The state of an original detector, of (name, shape) of each entry; shifted biases of the head keep its losses small."""
    state: dict[str, FloatArray] = {}
    for name, shape in shapes:
        values = draw(name, shape, gain)
        if name == 'yolo_head.proj_conv.weight':
            values = np.arange(BINS, dtype=np.float32).reshape(shape)
        elif name.startswith('yolo_head.pred_cls.') and name.endswith('bias'):
            values = values - np.float32(4)
        elif name.startswith('yolo_head.pred_reg.') and name.endswith('bias'):
            slope = (0.35, 0.25, 0.15)[int(name.split('.')[2])]
            values = (values - slope * np.tile(np.arange(BINS), 4)).astype(np.float32)
        state[name] = values
    return state


@dataclass
class Golden:
    """Numbers of the original for one network."""

    name: str

    def __post_init__(self) -> None:
        self.facts: dict[str, Any] = FACTS['models'][self.name]
        self.arrays = dict(np.load(DATA / f'{self.name}.npz'))
        self.images = torch.from_numpy(images(self.facts['input_shape']))
        gt = self.facts['gt']
        exist = [np.array(mask)[:, 0] > 0 for mask in gt['pad_gt_mask']]
        self.boxes = [torch.tensor(boxes)[mask] for boxes, mask in zip(gt['gt_bbox'], exist, strict=True)]
        self.classes = [torch.tensor(classes)[:, 0][mask] for classes, mask in zip(gt['gt_class'], exist, strict=True)]

    def network(self, dtype: torch.dtype = torch.float32) -> PPYOLOE:
        model = ppyoloe(self.facts['num_classes'], size=self.name[-1], plus='plus' in self.name).to(dtype)  # type: ignore[arg-type]
        load_original(model, detection_state(self.facts['state'], self.facts['gain']))
        return model

    def sampled(self, key: str, ours: Tensor) -> npt.NDArray[Any]:
        """Our values at the places that the array `key` holds."""
        return ours.detach().reshape(-1)[:: self.facts['strides'][key]].numpy()

    def assert_close(self, key: str, ours: Tensor) -> None:
        """Within 1e-4, or 5 times the distance between the original's own float32 and float64 runs."""
        tolerance = max(1e-4, 5 * self.facts['noise'][key])
        np.testing.assert_allclose(self.sampled(key, ours), self.arrays[key], rtol=0, atol=tolerance, err_msg=key)

    def assert_aligned(self, key: str, ours: Tensor, tolerance: float = 1e-5) -> None:
        """Within a part of the length of the array, taken as one vector."""
        expected = self.arrays[key].astype(np.float64)
        distance = float(np.linalg.norm(self.sampled(key, ours) - expected) / np.linalg.norm(expected))
        assert distance < tolerance, f'{key} is off by {distance:.1e}'


@dataclass
class LossResult:
    """One float64 training pass."""

    raw: Raw
    truths: Truths
    assigned: Assigned
    losses: dict[str, float]  # by the original's names, without the coefficients of the terms
    gradients: dict[str, Tensor]  # by original name


def losses_of(golden: Golden, raw: Raw, stage: str) -> dict[str, Tensor]:
    """The losses by the original's names: terms without their coefficients, and `loss` with them."""
    truths = pad_truths(golden.boxes, golden.classes, raw.points.dtype)
    with torch.no_grad():
        assigned = LOSS.assigner(raw, truths, WholeStep(epoch=STAGES[stage]))
    terms = LOSS(raw, truths, assigned)
    values = {name: term.mean() for name, term in terms.items()}
    of_one = {'cls': LOSS.cls_weight, 'iou': LOSS.iou_weight, 'dfl': LOSS.dfl_weight}
    return {'loss': torch.stack(list(values.values())).sum()} | {
        f'loss_{name}': value / of_one[name] for name, value in values.items()
    }


@pytest.fixture(scope='module', params=TRAINED)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


@pytest.fixture(scope='module', params=STAGES)
def stage(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope='module')
def loss_result(golden: Golden, stage: str) -> LossResult:
    model = golden.network(torch.float64).train()
    raw = model(golden.images.double())
    truths = pad_truths(golden.boxes, golden.classes, torch.float64)
    with torch.no_grad():
        assigned = LOSS.assigner(raw, truths, WholeStep(epoch=STAGES[stage]))
    losses = losses_of(golden, raw, stage)
    losses['loss'].backward()
    original = original_of(model).name
    gradients = {original(name): p.grad for name, p in model.named_parameters() if p.grad is not None}
    return LossResult(raw, truths, assigned, {name: loss.item() for name, loss in losses.items()}, gradients)


def test_the_weight_rule_is_that_of_the_original() -> None:
    for case in FACTS['weight_rule_check']:
        values = detection_state([(case['name'], case['shape'])], case['gain'])[case['name']]
        assert values.reshape(-1)[:4] == pytest.approx(case['first4'])
        assert values.sum(dtype=np.float64) == pytest.approx(case['sum'])


def assert_evaluates_as_the_original(golden: Golden, model: PPYOLOE) -> Raw:
    with torch.no_grad():
        raw: Raw = model.eval()(golden.images)
    golden.assert_close('eval_scores', raw.logits.sigmoid().transpose(1, 2))
    in_strides = (decode_boxes(raw) - raw.points.repeat(1, 2)) / raw.strides[:, None]
    golden.assert_close('eval_dist', in_strides * torch.tensor([-1, -1, 1, 1]))
    return raw


def test_evaluation_is_that_of_the_original(golden: Golden) -> None:
    model = golden.network()
    raw = assert_evaluates_as_the_original(golden, model)
    golden.assert_close('eval_boxes', decode_boxes(raw))
    assert_evaluates_as_the_original(golden, model.switch_to_deploy())
    assert raw.num_per_level == (20, 80, 320)


@pytest.mark.parametrize('name', EVALUATED)
def test_evaluation_of_larger_sizes_is_that_of_the_original(name: str) -> None:
    golden = Golden(name)
    model = golden.network()
    assert sum(p.numel() for p in model.parameters()) == golden.facts['n_trainable']
    assert_evaluates_as_the_original(golden, model)


def test_training_logits_and_running_statistics_are_those_of_the_original(golden: Golden) -> None:
    model = golden.network().train()
    raw = model(golden.images)
    sizes = ((4, 5), (8, 10), (16, 20))
    for kind, output in (('cls', raw.logits), ('reg', raw.distances)):
        for level, part in enumerate(output.split(raw.num_per_level, dim=1)):
            golden.assert_close(f'train_{kind}_logit{level}', part.transpose(1, 2).unflatten(2, sizes[level]))
    original = original_of(model).name
    running = {f'bn_after__{original(name)}': buffer for name, buffer in model.named_buffers()}
    expected = {key: values for key, values in golden.arrays.items() if key.startswith('bn_after__')}
    assert expected
    for key, values in expected.items():
        np.testing.assert_allclose(running[key], values, rtol=1e-5, atol=1e-6, err_msg=key)


def test_anchors_are_assigned_as_in_the_original(golden: Golden, stage: str, loss_result: LossResult) -> None:
    image, anchor = loss_result.assigned.fg_mask.nonzero(as_tuple=True)
    truth, score = loss_result.assigned.truth_index[image, anchor], loss_result.assigned.score[image, anchor]
    labels = torch.full(loss_result.raw.logits.shape[:2], golden.facts['num_classes'])
    labels[image, anchor] = loss_result.truths.classes[image, truth]
    np.testing.assert_array_equal(labels.flatten(), golden.arrays[f'{stage}_assigned_labels'])
    at = (image * labels.shape[1] + anchor).numpy()
    boxes = golden.arrays[f'{stage}_assigned_bboxes'].reshape(-1, 4)[at]
    np.testing.assert_allclose(loss_result.truths.boxes[image, truth], boxes, rtol=1e-6)
    scores = golden.arrays[f'{stage}_assigned_scores']  # float32: up to 5e-5 from the original's float64
    np.testing.assert_allclose(score.detach(), scores[at], atol=2e-4)
    assert scores.sum() == pytest.approx(scores[at].sum())


def test_losses_are_those_of_the_original(golden: Golden, stage: str, loss_result: LossResult) -> None:
    for name in COLUMNS:
        assert loss_result.losses[name] == pytest.approx(golden.facts['losses_f64'][stage][name], rel=1e-5), name


def test_gradients_are_those_of_the_original(golden: Golden, stage: str, loss_result: LossResult) -> None:
    keys = [key for key in golden.arrays if key.startswith(f'f64_grad_{stage}__')]
    assert keys
    for key in keys:
        tolerance = 1e-4 if key.endswith('.alpha') else 1e-5  # one number, a difference of many
        golden.assert_aligned(key, loss_result.gradients[key.partition('__')[2]], tolerance)


def test_every_gradient_has_the_length_of_the_original(golden: Golden, stage: str, loss_result: LossResult) -> None:
    names = golden.facts['trainable_order']
    assert loss_result.gradients.keys() == set(names)
    expected = dict(zip(names, golden.arrays[f'f64_gradnorm_all_{stage}'].tolist(), strict=True))
    for name in names:
        tolerance = 1e-4 if name.endswith('.alpha') else 2e-5
        assert loss_result.gradients[name].norm().item() == pytest.approx(expected[name], rel=tolerance), name


def test_optimizer_steps_are_those_of_the_original(golden: Golden) -> None:
    """SGD with momentum 0.9, learning rate 0.001 and weight decay 5e-4, but none on norms."""
    model = golden.network(torch.float64).train()
    norms = {id(p) for name, p in model.named_parameters() if '.norm.' in name}
    decayed = [p for p in model.parameters() if id(p) not in norms]
    others = [p for p in model.parameters() if id(p) in norms]
    groups = [{'params': decayed, 'weight_decay': 5e-4}, {'params': others}]
    optimizer = torch.optim.SGD(groups, lr=0.001, momentum=0.9)
    for expected in golden.facts['traj']['losses_f64'][:COMPARED_STEPS]:
        losses = losses_of(golden, model(golden.images.double()), 'tal')
        assert [losses[name].item() for name in COLUMNS] == pytest.approx(expected, rel=1e-3)
        optimizer.zero_grad()
        losses['loss'].backward()
        optimizer.step()


def test_suppression_keeps_what_the_original_keeps() -> None:
    """300 of the boxes of a network; the original groups them by class."""
    stored = np.load(DATA / 'detection_nms.npz')
    ((boxes, scores, classes),) = multiclass_nms(
        torch.from_numpy(stored['boxes'])[None], torch.from_numpy(stored['scores']).T[None], Nms()
    )
    assert (scores.diff() <= 0).all()
    ours = np.column_stack([classes, scores, boxes])
    by_class = np.lexsort((-ours[:, 1], ours[:, 0]))
    np.testing.assert_allclose(ours[by_class], stored['kept'], rtol=1e-6)
