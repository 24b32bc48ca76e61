"""Hand-computed losses of table structure."""

from __future__ import annotations

import pytest
import torch

from phalanx.families.table.loss import LOSSES, Targets
from phalanx.families.table.output import TableOutput


def test_the_padding_of_short_tables_counts() -> None:
    """Logits of 0 cost log 4 whatever the token: 2 tables x 3 steps of it."""
    ids = torch.tensor([[1, 2, 3], [3, 0, 0]])
    output = TableOutput(torch.zeros(2, 3, 4), torch.zeros(2, 3, 4))
    term = LOSSES['structure']()(output, Targets(ids, torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool)))['structure']
    assert term.total.item() == pytest.approx(6 * torch.tensor(4.0).log().item())
    assert term.weight.item() == 6


@pytest.mark.parametrize(('name', 'expected'), [('smooth_l1', 0.5 * 0.04 + 0.5 * 0.16), ('l1', 0.2 + 0.4)])
def test_only_true_boxes_count(name: str, expected: float) -> None:
    """By hand: the box that counts is off by 0.2 and by 0.4."""
    boxes = torch.tensor([[[0.2, 0, 1, 0.6], [0.9, 0.9, 0.9, 0.9]]])
    truth = torch.tensor([[[0.0, 0, 1, 1.0], [0.0, 0, 0, 0]]])
    term = LOSSES[name]()(*boxes_against(boxes, truth, torch.tensor([[True, False]])))['location']
    assert term.total.item() == pytest.approx(expected)
    assert term.weight.item() == pytest.approx(1)


def test_a_batch_without_boxes_costs_nothing_and_reaches_all_parameters() -> None:
    boxes = torch.rand(2, 3, 4, requires_grad=True)
    none = torch.zeros(2, 3, dtype=torch.bool)
    term = LOSSES['smooth_l1']()(*boxes_against(boxes, torch.zeros(2, 3, 4), none))['location']
    (term.total / term.weight).backward()
    assert term.total.item() == 0
    assert boxes.grad is not None and not boxes.grad.any()


def boxes_against(boxes: torch.Tensor, truth: torch.Tensor, has_box: torch.Tensor) -> tuple[TableOutput, Targets]:
    return TableOutput(torch.zeros(*boxes.shape[:2], 4), boxes), Targets(has_box.long(), truth, has_box)


def test_a_step_without_boxes_is_divided_by_a_millionth_of_a_millionth_per_table() -> None:
    none = torch.zeros(3, 2, dtype=torch.bool)
    term = LOSSES['l1']()(*boxes_against(torch.zeros(3, 2, 4), torch.zeros(3, 2, 4), none))['location']
    assert term.weight.item() == pytest.approx(3e-12)
