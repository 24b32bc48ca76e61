"""Segmentation losses against PaddleSeg.

Expected values and gradients were produced by the original in float64 (data/segmentation.json, data/losses_seg.npz; copied by
trim.py). Its `min_kept` is a number of pixels in the batch, which has two samples.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from phalanx.config.bind import Part
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss import LOSSES as CATALOG
from phalanx.families.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.families.segmentation.loss.dice import Dice
from phalanx.families.segmentation.loss.lovasz import LovaszSoftmax
from phalanx.families.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss
from phalanx.families.segmentation.loss.terms import Mixed, build_terms
from phalanx.parallel.step import WholeStep

DATA = Path(__file__).parent / 'data'
EXPECTED = json.loads((DATA / 'segmentation.json').read_text())['losses']
ARRAYS = dict(np.load(DATA / 'losses_seg.npz'))
LABELS = torch.from_numpy(ARRAYS['labels']).long()
CLASS_WEIGHTS = tuple(ARRAYS['class_weight'].tolist())

LOSSES: dict[str, PixelLoss] = {
    'ce': CrossEntropy(),
    'ce_weight': CrossEntropy(class_weights=CLASS_WEIGHTS),
    'ce_avg_all': CrossEntropy(avg_non_ignore=False),
    'ce_topk0.3': CrossEntropy(top_k=0.3),
    'ohem_default(thresh0.7,min_kept10000)': OhemCrossEntropy(min_kept_per_sample=5000),
    'ohem_min_kept100': OhemCrossEntropy(min_kept_per_sample=50),
    'ohem_min_kept1200': OhemCrossEntropy(min_kept_per_sample=600),
    'ohem_min_kept0': OhemCrossEntropy(min_kept_per_sample=0),
    'ohem_min_kept1200_weight': OhemCrossEntropy(min_kept_per_sample=600, class_weights=CLASS_WEIGHTS),
    'dice': Dice(),
    'dice_weight': Dice(class_weights=CLASS_WEIGHTS),
    'lovasz_softmax': LovaszSoftmax(),
}
# How far a gradient may be off, as a part of its length: Lovász counts errors in bins.
TOLERANCES = {'lovasz_softmax': 1e-3}
WITH_VOID_AS_CLASS_0 = 'mixed_dice0.5_ce0.5'  # there the Dice loss makes void pixels class 0 for the losses after it


def test_every_stored_case_is_compared() -> None:
    assert {*LOSSES, WITH_VOID_AS_CLASS_0, 'mixed_ce0.8_lovasz0.2'} == EXPECTED.keys()


@pytest.mark.parametrize('case', LOSSES)
def test_value_and_gradient_are_those_of_the_original(case: str) -> None:
    logits = torch.from_numpy(ARRAYS['logits']).double().requires_grad_()
    term = LOSSES[case](logits, LABELS, WholeStep())
    assert not term.weight.requires_grad
    loss = term.total / term.weight
    assert loss.item() == pytest.approx(EXPECTED[case], rel=1e-6)
    loss.backward()
    assert_gradient(logits.grad, case)


def assert_gradient(ours: Tensor | None, case: str) -> None:
    """Close to the stored one, which holds every eighth value."""
    assert ours is not None
    expected = ARRAYS[f'f64_grad__{case}'].astype(np.float64)
    distance = np.linalg.norm(ours.flatten()[::8].numpy() - expected)
    assert distance < TOLERANCES.get(case, 1e-6) * np.linalg.norm(expected)


def mixed(logits: Tensor, names: tuple[str, ...], coefficients: tuple[float, ...]) -> float:
    loss = Mixed(losses=tuple(Part(CATALOG[name]).with_name(name) for name in names), coefficients=coefficients)
    terms = build_terms([('mixed', loss, 1.0)])
    return sum((term.coefficient * term.loss(logits, LABELS, WholeStep()).mean()).item() for term in terms)


def test_dice_beside_another_loss_is_that_of_the_original_but_for_void_pixels() -> None:
    logits = torch.from_numpy(ARRAYS['logits']).double().requires_grad_()
    parts = (Dice(), LABELS), (CrossEntropy(), LABELS.where(LABELS != VOID, 0))  # the labels that each part sees there
    terms = [loss(logits, labels, WholeStep()) for loss, labels in parts]
    value = sum(0.5 * term.total / term.weight for term in terms)
    value.backward()
    assert value.item() == pytest.approx(EXPECTED[WITH_VOID_AS_CLASS_0], rel=1e-6)
    assert_gradient(logits.grad, WITH_VOID_AS_CLASS_0)
    ours = mixed(logits, ('cross_entropy', 'lovasz'), (0.8, 0.2))
    assert ours == pytest.approx(EXPECTED['mixed_ce0.8_lovasz0.2'], rel=1e-5)
    ours = mixed(logits, ('dice', 'cross_entropy'), (0.5, 0.5))
    assert ours == pytest.approx(0.5 * EXPECTED['dice'] + 0.5 * EXPECTED['ce'], rel=1e-6)


@pytest.mark.parametrize('case', LOSSES)
def test_value_in_float32_is_that_of_the_original(case: str) -> None:
    term = LOSSES[case](torch.from_numpy(ARRAYS['logits']), LABELS, WholeStep())
    assert (term.total / term.weight).item() == pytest.approx(EXPECTED[case], rel=1e-5)


@pytest.mark.parametrize('case', LOSSES)
def test_half_precision_logits_are_summed_in_float32(case: str) -> None:
    term = LOSSES[case](torch.from_numpy(ARRAYS['logits']).bfloat16(), LABELS, WholeStep())
    assert term.total.dtype == torch.float32
    assert (term.total / term.weight).item() == pytest.approx(EXPECTED[case], rel=1e-2)


@pytest.mark.parametrize('loss', [CrossEntropy(), OhemCrossEntropy(min_kept_per_sample=50), Dice(), LovaszSoftmax()], ids=str)
def test_a_batch_of_void_pixels_costs_nothing(loss: PixelLoss) -> None:
    """0 in the original too."""
    logits = torch.from_numpy(ARRAYS['logits']).requires_grad_()
    term = loss(logits, torch.full_like(LABELS, VOID), WholeStep())
    value = term.total / term.weight
    value.backward()
    assert value.item() == pytest.approx(0, abs=1e-6)
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0
