"""The loss of PP-YOLOE and its two assigners; expected numbers are worked out by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from phalanx.families.detection.decode import REACH, Raw, decode_boxes
from phalanx.families.detection.loss import TaskAlignedLoss
from phalanx.families.detection.loss.assign import Assigned, pad_truths
from phalanx.families.detection.models.ppyoloe import anchor_points
from phalanx.families.task import Loss
from phalanx.parallel.step import WholeStep

BINS = REACH[1] - REACH[0] + 1

STATIC, ALIGNED = 0, 1  # epochs
LOSS = TaskAlignedLoss(static_assigner_epochs=1)
BOTH_STAGES = pytest.mark.parametrize('epoch', [STATIC, ALIGNED])


def raw_of(images: int, *, size: int = 64, num_classes: int = 3, seed: int | None = None) -> Raw:
    """Output of a network in float64 for square images: zeros, or random numbers with a seed."""
    sizes = [(size // stride, size // stride) for stride in (32, 16, 8)]
    points, strides = anchor_points(sizes, torch.float64, torch.device('cpu'))
    generator = torch.Generator().manual_seed(seed or 0)
    logits, distances = (
        torch.randn(images, len(points), depth, dtype=torch.float64, generator=generator) * (seed is not None)
        for depth in (num_classes, 4 * BINS)
    )
    return Raw(logits.requires_grad_(), distances.requires_grad_(), points, strides, tuple(h * w for h, w in sizes))


def loss_of(
    raw: Raw, boxes: Sequence[Tensor], classes: Sequence[Tensor], whole: WholeStep, loss: TaskAlignedLoss = LOSS
) -> Loss:
    truths = pad_truths(boxes, classes, raw.points.dtype)
    with torch.no_grad():
        assigned = loss.assigner(raw, truths, whole)
    return loss(raw, truths, assigned)


def no_boxes() -> Tensor:
    return torch.empty(0, 4)


class Positives(NamedTuple):
    """The anchors that answer for a true box, P, in order of image and anchor."""

    image: Tensor  # [P]
    anchor: Tensor  # [P]
    truth: Tensor  # [P]
    score: Tensor  # [P]


def assigned_of(raw: Raw, boxes: Sequence[Tensor], classes: Sequence[Tensor], epoch: int) -> Assigned:
    truths = pad_truths(boxes, classes, torch.float64)
    with torch.no_grad():
        return LOSS.assigner(raw, truths, WholeStep(epoch=epoch))


def positives_of(raw: Raw, boxes: Sequence[Tensor], classes: Sequence[Tensor], epoch: int) -> Positives:
    assigned = assigned_of(raw, boxes, classes, epoch)
    image, anchor = assigned.fg_mask.nonzero(as_tuple=True)
    return Positives(image, anchor, assigned.truth_index[image, anchor], assigned.score[image, anchor])


def values(loss: Loss) -> dict[str, float]:
    return {name: term.mean().item() for name, term in loss.items()}


@BOTH_STAGES
def test_a_batch_without_boxes_teaches_that_all_is_background(epoch: int) -> None:
    """Every probability is 1/2: 0.75 (1/2)^2 log 2 for each of 2 x 84 x 3 logits, divided by 1."""
    raw = raw_of(2)
    loss = loss_of(raw, [no_boxes()] * 2, [torch.empty(0)] * 2, WholeStep(epoch=epoch))
    assert values(loss) == pytest.approx({'cls': 2 * 84 * 3 * 0.75 * 0.25 * math.log(2), 'iou': 0, 'dfl': 0})
    torch.stack([term.total for term in loss.values()]).sum().backward()
    assert raw.logits.grad is not None and (raw.logits.grad > 0).all()
    assert raw.distances.grad is not None and not raw.distances.grad.any()  # there is a gradient, and it is zero


def test_anchors_are_assigned_by_position_for_a_third_of_the_run_unless_the_recipe_says_how_long() -> None:
    """Of 12 epochs the first four. The two stages give other losses for anything a network says."""
    raw, box, label = raw_of(1, seed=1), [torch.tensor([[4.0, 4, 60, 50]])], [torch.tensor([2])]
    static, aligned = (values(loss_of(raw, box, label, WholeStep(epoch=epoch))) for epoch in (STATIC, ALIGNED))
    assert static != aligned
    ours = [values(loss_of(raw, box, label, WholeStep(epoch=epoch, epochs=12.0), TaskAlignedLoss())) for epoch in (0, 3, 4, 11)]
    assert ours == [static, static, aligned, aligned]


@BOTH_STAGES
def test_an_image_without_boxes_has_no_positive_anchor(epoch: int) -> None:
    raw = raw_of(3, seed=1)
    box, nothing = torch.tensor([[4.0, 4, 60, 50]]), torch.empty(0, dtype=torch.int64)
    positives = positives_of(raw, [no_boxes(), box, no_boxes()], [nothing, torch.tensor([2]), nothing], epoch)
    assert set(positives.image.tolist()) == {1}


@BOTH_STAGES
def test_one_giant_and_many_tiny_boxes_share_the_anchors(epoch: int) -> None:
    """Boxes of 2 x 2 pixels: half of them lie around the centre of a cell of stride 8, the others around no anchor."""
    corners = [(x, y) for x in range(3, 60, 8) for y in (3, 19, 35, 51)] + [(x, 0) for x in range(0, 64, 2)]
    tiny = torch.tensor([(x, y, x + 2, y + 2) for x, y in corners])
    boxes = torch.cat([torch.tensor([[0, 0, 64, 64]]), tiny]).float()
    raw = raw_of(1, seed=2)
    positives = positives_of(raw, [boxes], [torch.arange(len(boxes)) % 3], epoch)
    answering = positives.truth.unique().tolist()
    assert len(positives.anchor) == len(positives.anchor.unique()) > 1  # each anchor answers for one box
    assert len(answering) > 1
    assert all(truth <= 32 for truth in answering)  # none for a box that no anchor is in
    loss = loss_of(raw, [boxes], [torch.arange(len(boxes)) % 3], WholeStep(epoch=epoch))
    assert all(math.isfinite(value) for value in values(loss).values())


@BOTH_STAGES
def test_what_answers_for_a_box_does_not_depend_on_the_other_images(epoch: int) -> None:
    raw = raw_of(3, seed=3)
    generator = torch.Generator().manual_seed(3)
    corners = [(torch.rand(count, 2, 2, generator=generator) * 64).sort(1).values for count in (1, 9, 4)]
    boxes, classes = [part.flatten(1) for part in corners], [torch.arange(len(part)) % 3 for part in corners]
    together = positives_of(raw, boxes, classes, epoch)
    for image in range(3):
        own = raw._replace(logits=raw.logits[image : image + 1], distances=raw.distances[image : image + 1])
        alone = positives_of(own, boxes[image : image + 1], classes[image : image + 1], epoch)
        here = together.image == image
        assert len(alone.anchor) > 0
        assert together.anchor[here].tolist() == alone.anchor.tolist()
        assert together.truth[here].tolist() == alone.truth.tolist()
        torch.testing.assert_close(together.score[here], alone.score)


@BOTH_STAGES
def test_the_anchors_that_answer_are_the_first_of_each_image(epoch: int) -> None:
    """Of three images: with a box that many anchors answer for, with none, with a small one."""
    raw = raw_of(3, seed=4)
    boxes = [torch.tensor([[4.0, 4, 60, 50]]), no_boxes(), torch.tensor([[19.0, 19, 40, 36]])]
    assigned = assigned_of(raw, boxes, [torch.zeros(len(of_image)) for of_image in boxes], epoch)
    for answers, first in zip(assigned.fg_mask, assigned.positives[1], strict=True):
        own = answers.nonzero().flatten().tolist()
        assert len(set(first.tolist())) == assigned.max_positives >= len(own)
        assert first[: len(own)].tolist() == own
    assert assigned.fg_mask.any(1).tolist() == [True, False, True]


def test_by_position_the_cells_about_the_centre_answer() -> None:
    """A square of 40 pixels about (32, 32): IoU 1 with the anchor boxes of stride 8 at its centre would need a centre there.

    Of the nine nearest ones of each level, the anchor boxes of 160 and 80 pixels overlap by 1/16 and 1/4 at most, those of 40
    pixels by more the nearer they are. The four nearest, 4 pixels off in x and y, have IoU 36^2 / (2 40^2 - 36^2) = 0.68; the
    next five of which topk takes some are 12 pixels off one way, 36 28 / (2 40^2 - 36 28) = 0.46.
    """
    raw = raw_of(1)
    positives = positives_of(raw, [torch.tensor([[12.0, 12, 52, 52]])], [torch.tensor([1])], STATIC)
    near = {(28, 28), (36, 28), (28, 36), (36, 36)}
    assert near <= {tuple(point) for point in raw.points[positives.anchor].long().tolist()}
    assert (raw.strides[positives.anchor] == 8).all()


def test_an_anchor_that_two_boxes_claim_goes_to_the_one_it_overlaps_most() -> None:
    """The small box is inside the large one, and about its centre."""
    raw = raw_of(1)
    boxes = torch.tensor([[0.0, 0, 64, 64], [12, 12, 52, 52]])
    both = positives_of(raw, [boxes], [torch.tensor([0, 1])], STATIC)
    small = positives_of(raw, [boxes[1:]], [torch.tensor([1])], STATIC)
    assert set(both.anchor[both.truth == 1].tolist()) >= set(small.anchor.tolist())


def test_the_best_aligned_anchor_scores_the_highest_overlap() -> None:
    """For any probabilities of the network."""
    raw = raw_of(1, seed=5)
    raw = raw._replace(distances=raw.distances - 0.3 * torch.arange(BINS).repeat(4))  # boxes about as large as the true ones
    boxes = torch.tensor([[2.0, 2, 40, 60], [30, 10, 62, 50]])
    _, anchor, truth, score = positives_of(raw, [boxes], [torch.tensor([0, 2])], ALIGNED)
    ious = decode_boxes(raw)[0, anchor]
    for number in range(2):
        own = truth == number
        overlaps = [_iou(box.tolist(), boxes[number].tolist()) for box in ious[own]]
        assert 0 < own.sum() <= LOSS.top_k
        assert score[own].max().item() == pytest.approx(max(overlaps), rel=1e-4)


def _iou(a: Sequence[float], b: Sequence[float]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    overlap = max(width, 0) * max(height, 0)
    return overlap / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap)


def one_anchor(logit: float, distances: Tensor) -> Raw:
    """An image with one anchor at (16, 16) of stride 8, and one class."""
    return Raw(
        torch.full((1, 1, 1), logit, dtype=torch.float64),
        distances.double().reshape(1, 1, -1),
        torch.tensor([[16.0, 16.0]]).double(),
        torch.tensor([8.0]).double(),
        (1,),
    )


def test_the_terms_of_one_anchor_and_one_box() -> None:
    """The anchor predicts a reach of 1 stride to each side, 16 x 16; the box is 8 pixels wider to the right: IoU 2/3.

    Score 2/3, probability 1/2. Varifocal: 2/3 log 2. GIoU = IoU, as one box encloses the other: 1/3 2/3. Distribution focal:
    three sides hit bin 1 (log 1), the right one wants bin 2, whose logit is 20 below that of bin 1: 20 / 4 2/3. Divided by 1,
    not by the sum of scores 2/3.
    """
    distances = torch.full((4, BINS), -20.0)
    distances[:, 1] = 0
    loss = loss_of(one_anchor(0, distances), [torch.tensor([[8.0, 8, 32, 24]])], [torch.tensor([0])], WholeStep(epoch=ALIGNED))
    assert [term.weight.item() for term in loss.values()] == [pytest.approx(2 / 3)] * 3
    expected = {'cls': 2 / 3 * math.log(2), 'iou': 2.5 * 2 / 9, 'dfl': 0.5 * 5 * 2 / 3}
    assert values(loss) == pytest.approx(expected, rel=1e-5)


def test_a_distance_between_two_bins_wants_both() -> None:
    """The right side is 2.25 strides away: 3/4 of bin 2 and 1/4 of bin 3, each with probability 1/17 here, as all bins.

    A side farther than the last bin counts as 15.99 strides: the bottom.
    """
    box = torch.tensor([[8.0, 8, 34, 500]])
    outputs = one_anchor(0, torch.zeros(4, BINS))
    loss = loss_of(outputs, [box], [torch.tensor([0])], WholeStep(epoch=ALIGNED))
    positives = positives_of(outputs, [box], [torch.tensor([0])], ALIGNED)
    assert loss['dfl'].total.item() == pytest.approx(0.5 * math.log(17) * positives.score.item())

    distances = torch.zeros(4, BINS)
    distances[2, 2:4] = torch.tensor([100.0, 99.0])  # shares e / (1 + e) and 1 / (1 + e)
    log_shares = (-math.log(1 + math.exp(-1)), -1 - math.log(1 + math.exp(-1)))
    outputs = one_anchor(0, distances)
    loss = loss_of(outputs, [box], [torch.tensor([0])], WholeStep(epoch=ALIGNED))
    score = positives_of(outputs, [box], [torch.tensor([0])], ALIGNED).score.item()
    right = -(0.75 * log_shares[0] + 0.25 * log_shares[1])
    assert loss['dfl'].total.item() == pytest.approx(0.5 * (3 * math.log(17) + right) / 4 * score)


@pytest.mark.parametrize(('epoch', 'shares'), [(STATIC, (0.25, 0.75)), (ALIGNED, (1, 1))])
def test_focal_loss_weighs_by_the_distance_to_the_score(epoch: int, shares: tuple[float, float]) -> None:
    """Two classes of probability 1/2 and the score 1 (IoU 1): (1/2)^2 log 2 each, times shares in the static stage."""
    distances = torch.full((1, 1, 4, BINS), -100.0)
    distances[..., 1] = 0
    points, strides = torch.tensor([[16.0, 16.0], [80, 80], [144, 144]]), torch.full((3,), 8.0)
    raw = Raw(torch.zeros(1, 3, 2), distances.expand(1, 3, 4, BINS).flatten(2), points, strides, (1, 1, 1))
    loss = TaskAlignedLoss(static_assigner_epochs=1, use_varifocal=False, anchor_size=2.0)
    terms = loss_of(raw, [torch.tensor([[8.0, 8, 24, 24]])], [torch.tensor([0])], WholeStep(epoch=epoch), loss)
    one = 0.25 * math.log(2)
    assert values(terms)['cls'] == pytest.approx(one * (shares[0] + 5 * shares[1]))


def test_half_precision_is_computed_in_single() -> None:
    raw = raw_of(1, seed=1)
    half = Raw(raw.logits.bfloat16(), raw.distances.bfloat16(), raw.points.float(), raw.strides.float(), raw.num_per_level)
    loss = loss_of(half, [torch.tensor([[4.0, 4, 60, 50]])], [torch.tensor([2])], WholeStep(epoch=ALIGNED))
    assert {term.total.dtype for term in loss.values()} == {torch.float32}


@pytest.mark.parametrize(
    ('options', 'message'),
    [
        ({'top_k': 0}, 'top_k must be at least 1, got 0'),
        ({'iou_weight': -1.0}, 'iou_weight must be at least 0, got -1.0'),
        ({'anchor_size': 0.0}, 'anchor_size must be above 0 strides, got 0.0'),
    ],
)
def test_options_that_cannot_be_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=f'^{message}$'):
        TaskAlignedLoss(**options)  # type: ignore[arg-type]
