"""Non-maximum suppression, by hand and against torchvision class by class."""

from __future__ import annotations

import torch
from torchvision import ops

from phalanx.families.detection.nms import Nms, multiclass_nms

BOXES = torch.tensor([[0.0, 0, 10, 10], [1, 0, 11, 10], [50, 50, 60, 60]])  # the first two have an IoU of 9/11


def test_of_two_boxes_of_a_class_that_overlap_the_likelier_stays() -> None:
    boxes, scores, classes = multiclass_nms(BOXES, torch.tensor([[0.6], [0.9], [0.3]]), Nms())
    assert boxes.tolist() == BOXES[[1, 2]].tolist()
    torch.testing.assert_close(scores, torch.tensor([0.9, 0.3]))
    assert classes.tolist() == [0, 0]


def test_an_overlap_as_large_as_the_threshold_is_allowed() -> None:
    scores = torch.tensor([[0.6], [0.9], [0.3]])
    assert len(multiclass_nms(BOXES, scores, Nms(nms_threshold=0.81))[0]) == 2
    assert len(multiclass_nms(BOXES, scores, Nms(nms_threshold=0.82))[0]) == 3


def test_boxes_of_two_classes_do_not_compete() -> None:
    """The same box is found twice when it is probable as both."""
    boxes, _, classes = multiclass_nms(BOXES[:1], torch.tensor([[0.4, 0.7]]), Nms())
    assert classes.tolist() == [1, 0]
    assert boxes.tolist() == BOXES[[0, 0]].tolist()


def test_boxes_beyond_the_border_do_not_meet_those_of_the_next_class() -> None:
    """Moving class 1 aside by the largest coordinate, 100, would put its box at -100 onto that of class 0."""
    boxes = torch.tensor([[-101.0, -101, 0, 0], [0, 0, 100, 100]])
    assert len(multiclass_nms(boxes, torch.tensor([[0.0, 0.9], [0.8, 0.0]]), Nms())[0]) == 2


def test_what_is_not_above_the_score_threshold_is_no_candidate() -> None:
    assert multiclass_nms(BOXES, torch.tensor([[0.01], [0.02], [0.0]]), Nms())[1].tolist() == torch.tensor([0.02]).tolist()


def test_nothing_found_is_no_boxes() -> None:
    boxes, scores, classes = multiclass_nms(BOXES, torch.zeros(3, 80), Nms())
    assert (boxes.shape, scores.shape, classes.shape) == ((0, 4), (0,), (0,))


def test_only_the_likeliest_of_a_class_compete_and_of_all_stay() -> None:
    apart = torch.arange(6)[:, None] * 20 + torch.tensor([0, 0, 10, 10])
    scores = torch.tensor([[0.6, 0.1], [0.5, 0.2], [0.4, 0.3], [0.3, 0.4], [0.2, 0.55], [0.1, 0.45]])
    kept = multiclass_nms(apart.float(), scores, Nms(pre_top_k=2, keep_top_k=3))
    torch.testing.assert_close(kept[1], torch.tensor([0.6, 0.55, 0.5]))
    assert kept[2].tolist() == [0, 1, 0]
    assert len(multiclass_nms(apart.float(), scores, Nms(pre_top_k=2))[0]) == 4


def test_many_boxes_are_kept_as_torchvision_keeps_them_class_by_class() -> None:
    generator = torch.Generator().manual_seed(0)
    corners = torch.rand(600, 2, generator=generator) * 100 - 20
    boxes = torch.cat([corners, corners + 10 + torch.rand(600, 2, generator=generator) * 30], 1)
    scores = torch.rand(600, 4, generator=generator)
    _, found, classes = multiclass_nms(boxes, scores, Nms(score_threshold=0.3, keep_top_k=2400))
    for number in range(4):
        above = scores[:, number] > 0.3
        expected = scores[above, number][ops.nms(boxes[above], scores[above, number], 0.7)]
        assert found[classes == number].tolist() == expected.tolist()
