"""Boxes, with numbers worked out by hand or by torchvision."""

from __future__ import annotations

import pytest
import torch
from torchvision import ops

from phalanx.data.boxes import area, contains, from_distances, generalised_iou, iou, pairwise_iou, to_distances


def some_boxes(count: int, seed: int) -> torch.Tensor:
    corners = torch.rand(count, 2, 2, generator=torch.Generator().manual_seed(seed)) * 100
    return torch.cat([corners.amin(1), corners.amax(1)], -1)


@pytest.mark.parametrize(
    ('other', 'expected'),
    [
        ((0, 0, 2, 2), 1),  # itself
        ((1, 0, 3, 2), 1 / 3),  # half of each
        ((2, 0, 4, 2), 0),  # touching
        ((5, 5, 7, 7), 0),  # apart
        ((1, 1, 1, 1), 0),  # without area
        ((0, 0, 4, 4), 1 / 4),  # around it
    ],
)
def test_iou_of_a_square_of_two(other: tuple[float, ...], expected: float) -> None:
    assert iou(torch.tensor([0.0, 0, 2, 2]), torch.tensor(other).float()).item() == pytest.approx(expected)


def test_two_boxes_without_area_overlap_by_nothing() -> None:
    assert iou(torch.zeros(4), torch.zeros(4)).item() == 0


def test_a_box_that_ends_before_it_starts_has_no_area() -> None:
    assert area(torch.tensor([[3.0, 3, 1, 1], [0, 0, 2, 3]])).tolist() == [0, 6]


def test_iou_of_all_pairs_is_that_of_torchvision() -> None:
    a, b = some_boxes(5, 0), some_boxes(7, 1)
    torch.testing.assert_close(pairwise_iou(a, b), ops.box_iou(a, b))
    torch.testing.assert_close(pairwise_iou(torch.stack([a, a + 1]), b)[1], ops.box_iou(a + 1, b))


def test_generalised_iou_is_that_of_torchvision() -> None:
    a, b = some_boxes(6, 0), some_boxes(6, 1)
    torch.testing.assert_close(generalised_iou(a, b), ops.generalized_box_iou(a, b).diagonal(), rtol=1e-5, atol=1e-5)


def test_distances_and_boxes_are_each_others_inverse() -> None:
    points, boxes = torch.tensor([[10.0, 20.0]]), torch.tensor([[4.0, 15.0, 30.0, 21.0]])
    assert to_distances(points, boxes).tolist() == [[6, 5, 20, 1]]
    assert from_distances(points, to_distances(points, boxes)).tolist() == boxes.tolist()


def test_a_point_on_the_border_is_not_inside() -> None:
    points = torch.tensor([[1.0, 1.0], [0.0, 1.0], [1.0, 2.0], [3.0, 1.0]])
    assert contains(torch.tensor([0.0, 0, 2, 2]), points).tolist() == [True, False, False, False]
