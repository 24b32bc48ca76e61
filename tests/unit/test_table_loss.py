"""Losses of tables. Against the original: tests/golden/test_table_models.py."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from phalanx.step import WholeStep
from phalanx.table.loss import LOCATION_LOSSES, structure_loss
from phalanx.table.models.slanet import slanet
from phalanx.task import Term


def test_the_padding_of_short_tables_is_judged() -> None:
    """Logits of 0 cost log 4 whatever the token: 2 tables x 3 steps of it."""
    term = structure_loss(torch.zeros(2, 3, 4), torch.tensor([[1, 2, 3], [3, 0, 0]]))
    assert term.total.item() == pytest.approx(6 * torch.tensor(4.0).log().item())
    assert term.weight.item() == 6


@pytest.mark.parametrize(('name', 'expected'), [('smooth_l1', 0.5 * 0.04 + 0.5 * 0.16), ('l1', 0.2 + 0.4)])
def test_only_true_boxes_are_judged(name: str, expected: float) -> None:
    """By hand: the box that counts is off by 0.2 and by 0.4."""
    boxes = torch.tensor([[[0.2, 0, 1, 0.6], [0.9, 0.9, 0.9, 0.9]]])
    truth = torch.tensor([[[0.0, 0, 1, 1.0], [0.0, 0, 0, 0]]])
    term = LOCATION_LOSSES[name](boxes, truth, torch.tensor([[True, False]]))
    assert term.total.item() == pytest.approx(expected)
    assert term.weight.item() == pytest.approx(1)


def test_a_batch_without_boxes_costs_nothing_and_reaches_all_parameters() -> None:
    boxes = torch.rand(2, 3, 4, requires_grad=True)
    term = LOCATION_LOSSES['smooth_l1'](boxes, torch.zeros(2, 3, 4), torch.zeros(2, 3, dtype=torch.bool))
    (term.total / term.weight).backward()
    assert term.total.item() == 0
    assert boxes.grad is not None and not boxes.grad.any()


def test_losses_do_not_depend_on_how_the_batch_is_cut() -> None:
    """Tables of 2 to 7 tokens, cut 3 + 1: each part takes as many steps as the longest table of the step."""
    torch.manual_seed(0)
    model = slanet(30, scale=0.25, channels=16, hidden=16).double().eval()
    images, lengths = torch.rand(4, 3, 32, 32, dtype=torch.float64), (3, 2, 5, 7)
    ids, boxes, has_box = torch.randint(30, (4, 12)), torch.rand(4, 12, 4, dtype=torch.float64), torch.rand(4, 12) < 0.5

    def terms(part: slice, whole: WholeStep) -> tuple[Term, Term]:
        steps = whole.largest([max(lengths[part])], 10)[0] + 1
        said = model(images[part], ids[part, :steps])
        after = slice(1, steps + 1)
        located = LOCATION_LOSSES['smooth_l1'](said.boxes, boxes[part, after], has_box[part, after])
        return structure_loss(said.logits, ids[part, after]), located

    def losses(parts: list[slice]) -> tuple[list[float], Tensor]:
        whole = WholeStep()
        found = whole.run([partial(terms, part, whole) for part in parts])
        means = torch.stack([sum(t.total for t in kind) / sum(t.weight for t in kind) for kind in zip(*found, strict=True)])
        (gradient,) = torch.autograd.grad(means.sum(), [model.head.cell.weight_ih])
        return means.tolist(), gradient

    (at_once, gradient), (cut, gradient_cut) = losses([slice(0, 4)]), losses([slice(0, 3), slice(3, 4)])
    assert cut == pytest.approx(at_once, rel=1e-12)
    torch.testing.assert_close(gradient_cut, gradient, rtol=1e-9, atol=1e-12)
