"""Assignment of anchors to true boxes: conflicts, and how much of the work is done for all pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss.assign import Truths, assign_atss, assign_task_aligned, pad_truths


class LargeTensors(TorchDispatchMode):
    """Count the tensors of at least `size` elements that operations allocate."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size, self.count = size, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        results = func(*args, **(kwargs or {}))
        for result in results if isinstance(results, tuple) else (results,):
            allocated = isinstance(result, Tensor) and result._base is None and not any(result is each for each in args)
            self.count += allocated and result.numel() >= self.size
        return results


def raw_of(points: Tensor, classes: int, stride: float = 8.0) -> Raw:
    count = len(points)
    logits = torch.zeros(1, count, classes)
    return Raw(logits, torch.zeros(1, count, 4), points, torch.full((count,), stride), (count,))


def test_an_anchor_of_two_boxes_goes_to_the_box_of_the_highest_iou_even_if_that_did_not_choose_it() -> None:
    """Each box chooses one anchor: boxes 0 and 1 the one that predicts box 2, which chooses the other by its class."""
    truths = pad_truths(
        [torch.tensor([[0.0, 0, 40, 40], [0, 0, 44, 40], [0, 0, 20, 20]])], [torch.tensor([0, 1, 2])], torch.float32
    )
    raw = raw_of(torch.tensor([[10.0, 10], [12, 12]]), 3)
    # Anchor 0 has IoU 1/4, 10/44 and 1 with the boxes; anchor 1 has 1/16, 1/17.6 and 1/4.
    predicted = torch.tensor([[[0.0, 0, 20, 20], [5, 5, 15, 15]]])
    raw.logits[0, :, 2] = torch.tensor([-9.0, 9.0])  # so that box 2 chooses anchor 1
    found = assign_task_aligned(truths, predicted, raw, top_k=1, alpha=1.0, beta=1.0)
    assert found.fg_mask.tolist() == [[True, True]]
    assert found.truth_index.tolist() == [[2, 2]]
    # The better aligned anchor of box 2 is number 1, sigmoid(9) / 4; its score becomes the highest IoU of the box's anchors, 1.
    alignments = torch.tensor([-9.0, 9.0]).sigmoid() * torch.tensor([1.0, 0.25])
    torch.testing.assert_close(found.score[0], alignments / alignments.max())


def test_anchors_without_a_box_are_background_with_a_score_of_zero() -> None:
    truths = pad_truths([torch.tensor([[0.0, 0, 16, 16]])], [torch.tensor([0])], torch.float32, most=3)
    points = torch.tensor([[8.0, 8], [40, 40], [60, 60]])
    predicted = torch.cat([points - 8, points + 8], -1)[None]
    for found in (
        assign_task_aligned(truths, predicted, raw_of(points, 1), top_k=3, alpha=1.0, beta=6.0),
        assign_atss(truths, predicted, raw_of(points, 1), top_k=3, anchor_size=2.0),
    ):
        assert found.fg_mask.tolist() == [[True, False, False]]
        assert found.truth_index.tolist() == [[0, 0, 0]]
        torch.testing.assert_close(found.score, torch.tensor([[1.0, 0, 0]]))


def test_conflicts_are_solved_among_candidates_and_not_among_all_pairs() -> None:
    """28 tensors of all pairs, for the IoUs, what is inside, and the alignment; 40 with conflicts solved over all pairs."""
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(4000, 2, generator=generator) * 640
    boxes = torch.rand(20, 4, generator=generator) * 300
    boxes[:, 2:] += boxes[:, :2] + 10
    truths = Truths(boxes[None], torch.zeros(1, 20, dtype=torch.int64), torch.ones(1, 20, dtype=torch.bool))
    predicted = torch.cat([points - 50, points + 50], -1)[None]
    with torch.no_grad(), LargeTensors(20 * 4000) as large:
        assign_task_aligned(truths, predicted, raw_of(points, 1), top_k=13, alpha=1.0, beta=6.0)
    assert large.count <= 28
