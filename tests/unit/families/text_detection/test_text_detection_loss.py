"""The loss of DB. Expected numbers are calculated by hand, or by torch's own sorting."""

from __future__ import annotations

import math
from typing import Literal

import pytest
import torch
from torch import Tensor

from phalanx.families.task import Loss
from phalanx.families.text_detection.loss import DbLoss
from phalanx.families.text_detection.models.maps import Maps, RefinedMaps
from phalanx.families.text_detection.targets import Targets
from phalanx.parallel.step import WholeStep


def row(*values: float) -> Tensor:
    """Map of one sample and one row of pixels, [1, 1, W]."""
    return torch.tensor(values).view(1, 1, -1)


def loss_of(
    loss: DbLoss, shrink: Tensor, truth: Tensor, mask: Tensor | None = None, *, refined: bool = False, binary: float = 0.5
) -> Loss:
    """Loss of a shrink map [1, 1, W]; the threshold map is 0.1 off everywhere."""
    ones = torch.ones_like(truth)
    maps = [each[:, None] for each in (shrink, 0.4 * ones, binary * ones)]
    targets = Targets(truth, ones if mask is None else mask, 0.3 * ones, ones)
    return loss((RefinedMaps if refined else Maps)(*maps), targets, WholeStep())


def test_dice_is_the_overlap_over_both_areas() -> None:
    terms = loss_of(DbLoss(), row(0.9, 0.8, 0.3, 1.0), row(1, 1, 0, 0), row(1, 1, 1, 0))
    assert terms['shrink'].mean() == pytest.approx(5 * (1 - 2 * 1.7 / (2.0 + 2)), rel=1e-5)
    assert terms['binary'].mean() == pytest.approx(1 - 2 * 1.0 / (1.5 + 2), rel=1e-5)


def test_the_threshold_is_a_mean_distance_over_its_own_mask() -> None:
    assert loss_of(DbLoss(), row(0.5, 0.5), row(1, 0))['threshold'].mean() == pytest.approx(10 * 0.1)
    assert loss_of(DbLoss(beta=2), row(0.5, 0.5), row(1, 0))['threshold'].mean() == pytest.approx(2 * 0.1)


def test_balanced_cross_entropy_counts_text_and_the_hardest_background() -> None:
    """By hand: two pixels of text, so with a ratio of 1.5 the three largest of four others; the last pixel is masked out."""
    shrink, truth = row(0.9, 0.6, 0.5, 0.2, 0.3, 0.1, 0.99), row(1, 1, 0, 0, 0, 0, 0)
    terms = loss_of(DbLoss(main='bce', ohem_ratio=1.5, alpha=1), shrink, truth, row(1, 1, 1, 1, 1, 1, 0))
    expected = -sum(math.log(p) for p in (0.9, 0.6, 0.5, 0.8, 0.7)) / 5
    assert terms['shrink'].mean() == pytest.approx(expected)


def test_unbalanced_cross_entropy_counts_all_valid_pixels() -> None:
    terms = loss_of(DbLoss(main='bce', balanced=False, alpha=1), row(0.9, 0.5, 0.2), row(1, 0, 0), row(1, 1, 0))
    assert terms['shrink'].mean() == pytest.approx(-(math.log(0.9) + math.log(0.5)) / 2)


def test_dice_and_focal_loss_are_added() -> None:
    """By hand, with alpha 0.25 and gamma 2: text at 0.9 and background at 0.2; the last pixel is masked out."""
    terms = loss_of(DbLoss(main='dice_focal', alpha=3), row(0.9, 0.2, 0.7), row(1, 0, 0), row(1, 1, 0))
    assert terms['shrink'].mean() == pytest.approx(3 * (1 - 2 * 0.9 / (1.1 + 1)), rel=1e-5)
    focal = -(0.25 * 0.1**2 * math.log(0.9) + 0.75 * 0.2**2 * math.log(0.8)) / 2
    assert terms['shrink_focal'].mean() == pytest.approx(3 * focal, rel=1e-5)
    assert terms['binary_focal'].mean() == pytest.approx(-(0.5**2) * math.log(0.5) * (0.25 + 0.75) / 2, rel=1e-5)


def test_pixels_that_tie_at_the_cutoff_share_the_weight() -> None:
    shrink = row(0.5, 0.8, 0.2, 0.2, 0.2, 0.2).requires_grad_()
    terms = loss_of(DbLoss(main='bce', ohem_ratio=2, alpha=1), shrink, row(1, 0, 0, 0, 0, 0))
    value = terms['shrink'].mean()
    assert value.item() == pytest.approx(-(math.log(0.5) + math.log(0.2) + math.log(0.8)) / 3)
    (gradient,) = torch.autograd.grad(value, shrink)
    torch.testing.assert_close(gradient[0, 0, 2:], torch.full((4,), 1 / 0.8 / 4 / 3))


@pytest.mark.parametrize('loss', [DbLoss(), DbLoss(main='bce'), DbLoss(main='bce', balanced=False), DbLoss(main='dice_focal')])
def test_a_step_without_valid_pixels_has_no_gradient(loss: DbLoss) -> None:
    shrink = row(0.2, 0.7).requires_grad_()
    nothing = torch.zeros(1, 1, 2)
    value = loss_of(loss, shrink, nothing, nothing)['shrink'].mean()
    (gradient,) = torch.autograd.grad(value, shrink)
    assert value == 0
    assert not gradient.any()


@pytest.mark.parametrize('loss', [DbLoss(), DbLoss(main='bce')])
def test_without_text_the_balanced_loss_of_the_shrink_map_is_zero(loss: DbLoss) -> None:
    terms = loss_of(loss, row(0.2, 0.7), row(0, 0))
    assert terms['shrink'].mean() == 0
    assert terms['binary'].mean() == 1


def test_the_coarse_map_has_the_main_loss_too() -> None:
    truth = row(1, 0, 0)
    assert 'coarse' not in loss_of(DbLoss(), row(0.9, 0.1, 0.1), truth)
    terms = loss_of(DbLoss(main='bce', ohem_ratio=1), row(0.9, 0.1, 0.1), truth, refined=True, binary=0.25)
    assert terms['coarse'].mean() == pytest.approx(-(math.log(0.25) + math.log(0.75)) / 2)


def test_gradients_of_dice_match_autograd() -> None:
    generator = torch.Generator().manual_seed(0)
    maps = torch.rand(2, 3, 5, 7, generator=generator).double().requires_grad_()
    targets = Targets(*(torch.rand(4, 2, 5, 7, generator=generator) < 0.5).float())
    total = DbLoss(alpha=1)(Maps(*maps.split(1, dim=1)), targets, WholeStep())['shrink'].mean()
    predicted, truth, mask = maps[:, 0], targets.shrink_map, targets.shrink_mask
    plain = 1 - 2 * (predicted * truth * mask).sum() / (((predicted + truth) * mask).sum() + 1e-6)
    torch.testing.assert_close(total, plain)
    torch.testing.assert_close(torch.autograd.grad(total, maps), torch.autograd.grad(plain, maps))


@pytest.mark.parametrize('main', ['dice', 'bce'])
def test_the_loss_is_the_same_under_autocast(main: Literal['dice', 'bce']) -> None:
    loss = DbLoss(main=main)
    shrink, truth = row(0.9, 0.6, 0.5, 0.2), row(1, 1, 0, 0)
    plain = {name: term.mean() for name, term in loss_of(loss, shrink, truth).items()}
    with torch.autocast('cpu', dtype=torch.bfloat16):
        half = {name: term.mean() for name, term in loss_of(loss, shrink, truth).items()}
    assert half == plain


@pytest.mark.parametrize('name', ['alpha', 'beta', 'ohem_ratio'])
def test_invalid_options_are_rejected(name: str) -> None:
    with pytest.raises(ValueError, match=rf'^{name} must be at least 0, got -1$'):
        DbLoss(**{name: -1})
