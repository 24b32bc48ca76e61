"""Non-maximum suppression, by hand and against torchvision class by class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torchvision import ops

from phalanx.families.detection.nms import NO_SUPPRESSION, Nms, Selected, multiclass_nms


def select(boxes: Tensor, scores: Tensor, nms: Nms) -> Selected:
    """Boxes selected from an image."""
    (selected,) = multiclass_nms(boxes[None], scores[None], nms)
    return selected


BOXES = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [50, 50, 60, 60]])  # the first two have an IoU of 9/11


def test_of_two_boxes_of_a_class_that_overlap_the_likelier_stays() -> None:
    boxes, scores, classes = select(BOXES, torch.tensor([[0.6], [0.9], [0.3]]), Nms())
    assert boxes.tolist() == BOXES[[1, 2]].tolist()
    torch.testing.assert_close(scores, torch.tensor([0.9, 0.3]))
    assert classes.tolist() == [0, 0]


def test_an_overlap_as_large_as_the_threshold_is_allowed() -> None:
    scores = torch.tensor([[0.6], [0.9], [0.3]])
    assert len(select(BOXES, scores, Nms(nms_threshold=0.81))[0]) == 2
    assert len(select(BOXES, scores, Nms(nms_threshold=0.82))[0]) == 3


def test_boxes_of_two_classes_do_not_compete() -> None:
    """The same box is found twice when it is probable as both."""
    boxes, _, classes = select(BOXES[:1], torch.tensor([[0.4, 0.7]]), Nms())
    assert classes.tolist() == [1, 0]
    assert boxes.tolist() == BOXES[[0, 0]].tolist()


def test_boxes_beyond_the_border_do_not_meet_those_of_the_next_class() -> None:
    """Moving class 1 aside by the largest coordinate, 100, would put its box at -100 onto that of class 0."""
    boxes = torch.tensor([[-101.0, -101, 0, 0], [0, 0, 100, 100]])
    assert len(select(boxes, torch.tensor([[0.0, 0.9], [0.8, 0.0]]), Nms())[0]) == 2


def test_what_is_not_above_the_score_threshold_is_no_candidate() -> None:
    assert select(BOXES, torch.tensor([[0.01], [0.02], [0.0]]), Nms())[1].tolist() == torch.tensor([0.02]).tolist()


def test_nothing_found_is_no_boxes() -> None:
    boxes, scores, classes = select(BOXES, torch.zeros(3, 80), Nms())
    assert (boxes.shape, scores.shape, classes.shape) == ((0, 4), (0,), (0,))


def test_only_the_likeliest_of_a_class_compete_and_of_all_stay() -> None:
    apart = torch.arange(6)[:, None] * 20 + torch.tensor([0, 0, 10, 10])
    scores = torch.tensor([[0.6, 0.1], [0.5, 0.2], [0.4, 0.3], [0.3, 0.4], [0.2, 0.55], [0.1, 0.45]])
    kept = select(apart.float(), scores, Nms(pre_top_k=2, keep_top_k=3))
    torch.testing.assert_close(kept[1], torch.tensor([0.6, 0.55, 0.5]))
    assert kept[2].tolist() == [0, 1, 0]
    assert len(select(apart.float(), scores, Nms(pre_top_k=2))[0]) == 4


def test_many_boxes_are_kept_as_torchvision_keeps_them_class_by_class() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(600, 2, generator=generator) * 100 - 20
    boxes = torch.cat([corners, corners + 10 + torch.rand(600, 2, generator=generator) * 30], 1)
    scores = torch.rand(600, 4, generator=generator)
    _, found, classes = select(boxes, scores, Nms(score_threshold=0.3, keep_top_k=2400))
    for number in range(4):
        above = scores[:, number] > 0.3
        expected = scores[above, number][ops.nms(boxes[above], scores[above, number], 0.7)]
        assert found[classes == number].tolist() == expected.tolist()


@pytest.mark.parametrize(('spread', 'expected'), [(10, [80, 320]), (2000, [80])])
def test_the_best_of_many_boxes_stay_without_a_comparison_of_all(
    spread: int, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A detector that has begun to learn has thousands of candidates per image."""
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(8000, 2, generator=generator) * spread
    boxes = torch.cat([corners, corners + 10 + torch.rand(8000, 2, generator=generator) * 10], 1)
    scores = torch.rand(8000, 1, generator=generator).clamp(min=0.02)
    compared: list[int] = []
    batched_nms = ops.batched_nms

    def count_boxes(boxes: Tensor, *others: Any) -> Tensor:
        compared.append(len(boxes))
        return batched_nms(boxes, *others)

    monkeypatch.setattr(ops, 'batched_nms', count_boxes)
    _, found, _ = select(boxes, scores, Nms(pre_top_k=8000, keep_top_k=40))
    assert found.tolist() == scores[ops.nms(boxes, scores[:, 0], 0.7)[:40], 0].tolist()
    assert compared == expected


def test_each_image_of_a_batch_is_judged_alone() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(3, 50, 2, generator=generator) * 100
    boxes, scores = torch.cat([corners, corners + 30], 2), torch.rand(3, 50, 2, generator=generator)
    scores[1] = 0  # an image without boxes
    limits = Nms(score_threshold=0.3, pre_top_k=20, keep_top_k=9)
    for number, found in enumerate(multiclass_nms(boxes, scores, limits)):
        for part, expected in zip(found, select(boxes[number], scores[number], limits), strict=True):
            assert part.tolist() == expected.tolist()


@pytest.mark.parametrize('pre_top_k', [4, 1000])
def test_of_equal_scores_lower_classes_then_lower_anchors_come_first(pre_top_k: int) -> None:
    apart = (torch.arange(8)[:, None] * 20 + torch.tensor([0, 0, 10, 10])).float()
    scores = torch.full((8, 2), 0.5)
    scores[6, 1] = 0.9
    boxes, _, classes = select(apart, scores, Nms(pre_top_k=pre_top_k, keep_top_k=6))
    assert classes.tolist() == [1, *[0] * min(pre_top_k, 5), *[1] * (5 - min(pre_top_k, 5))]
    assert boxes[:, 0].tolist() == [120, 0, 20, 40, 60, 80 if pre_top_k > 4 else 0]


def test_scores_of_a_trained_network_are_not_sorted_before_the_threshold() -> None:
    """Sorting all scores takes ten times as long as all else."""
    scores = torch.rand(1, 3000, 80, generator=torch.Generator().manual_seed(0)) * 0.0101
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        multiclass_nms(torch.zeros(1, 3000, 4), scores, Nms())
    assert 'aten::topk' not in {event.name for event in seen.events() or ()}


def test_without_suppression_the_highest_scores_of_all_classes_stay() -> None:
    """Of equal scores those of the lower class come first; a box may be of two classes."""
    scores = torch.tensor([[0.5, 0.9], [0.2, 0.5], [0.0, 0.4]])
    limits = Nms(score_threshold=0.0, nms_threshold=1, keep_top_k=4)
    boxes, found, classes = select(BOXES, scores, limits)
    torch.testing.assert_close(found, torch.tensor([0.9, 0.5, 0.5, 0.4]))
    assert classes.tolist() == [1, 0, 1, 1]
    assert boxes.tolist() == BOXES[[0, 0, 1, 2]].tolist()


def test_without_suppression_a_score_that_is_not_a_number_is_no_result() -> None:
    scores = torch.tensor([[[0.2, float('nan')], [0.9, 0.1]]])
    ((_, found, classes),) = multiclass_nms(torch.rand(1, 2, 4), scores, NO_SUPPRESSION)
    assert (found.tolist(), classes.tolist()) == (pytest.approx([0.9, 0.2, 0.1]), [0, 0, 1])


def test_without_suppression_the_result_is_that_of_a_threshold_that_no_overlap_reaches() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(40, 2, generator=generator) * 50
    boxes = torch.cat([corners, corners + 1 + torch.rand(40, 2, generator=generator)], 1)
    scores = (torch.rand(40, 3, generator=generator) * 8).round() / 8  # with equal ones
    highest = select(boxes, scores, NO_SUPPRESSION)
    # The other route: its limit per class is below that of all.
    for own, other in zip(highest, select(boxes, scores, Nms(score_threshold=0, nms_threshold=1, pre_top_k=299)), strict=True):
        assert own.tolist() == other.tolist()
