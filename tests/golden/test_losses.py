"""Segmentation losses against PaddleSeg.

Expected values and gradients were produced by the original in float64 (data/segmentation.json, data/losses_seg.npz; copied by
trim.py). Its `min_kept` is a number of pixels in the batch, which has two samples.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from phalanx.segmentation.labels import VOID
from phalanx.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.step import WholeStep
from phalanx.task import Term

DATA = Path(__file__).parent / 'data'
EXPECTED = json.loads((DATA / 'segmentation.json').read_text())['losses']
ARRAYS = dict(np.load(DATA / 'losses_seg.npz'))
LABELS = torch.from_numpy(ARRAYS['labels']).long()
CLASS_WEIGHTS = tuple(ARRAYS['class_weight'].tolist())

LOSSES: dict[str, Callable[[Tensor, Tensor, WholeStep], Term]] = {
    'ce': CrossEntropy(),
    'ce_weight': CrossEntropy(class_weights=CLASS_WEIGHTS),
    'ce_avg_all': CrossEntropy(avg_non_ignore=False),
    'ce_topk0.3': CrossEntropy(top_k=0.3),
    'ohem_default(thresh0.7,min_kept10000)': OhemCrossEntropy(min_kept_per_sample=5000),
    'ohem_min_kept100': OhemCrossEntropy(min_kept_per_sample=50),
    'ohem_min_kept1200': OhemCrossEntropy(min_kept_per_sample=600),
    'ohem_min_kept0': OhemCrossEntropy(min_kept_per_sample=0),
    'ohem_min_kept1200_weight': OhemCrossEntropy(min_kept_per_sample=600, class_weights=CLASS_WEIGHTS),
}


def test_every_stored_case_is_compared() -> None:
    assert LOSSES.keys() == EXPECTED.keys()


@pytest.mark.parametrize('case', LOSSES)
def test_value_and_gradient_are_those_of_the_original(case: str) -> None:
    logits = torch.from_numpy(ARRAYS['logits']).double().requires_grad_()
    term = LOSSES[case](logits, LABELS, WholeStep())
    assert not term.weight.requires_grad
    loss = term.total / term.weight
    assert loss.item() == pytest.approx(EXPECTED[case], rel=1e-6)
    loss.backward()
    expected = ARRAYS[f'f64_grad__{case}'].astype(np.float64)
    assert np.linalg.norm(np.asarray(logits.grad) - expected) < 1e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize('case', LOSSES)
def test_value_in_float32_is_that_of_the_original(case: str) -> None:
    term = LOSSES[case](torch.from_numpy(ARRAYS['logits']), LABELS, WholeStep())
    assert (term.total / term.weight).item() == pytest.approx(EXPECTED[case], rel=1e-5)


@pytest.mark.parametrize('case', LOSSES)
def test_half_precision_logits_are_summed_in_float32(case: str) -> None:
    term = LOSSES[case](torch.from_numpy(ARRAYS['logits']).bfloat16(), LABELS, WholeStep())
    assert term.total.dtype == term.weight.dtype == torch.float32
    assert (term.total / term.weight).item() == pytest.approx(EXPECTED[case], rel=1e-2)


@pytest.mark.parametrize('loss', [CrossEntropy(), OhemCrossEntropy(min_kept_per_sample=50)])
def test_a_batch_of_void_pixels_costs_nothing(loss: Callable[[Tensor, Tensor, WholeStep], Term]) -> None:
    """0 in the original too."""
    logits = torch.from_numpy(ARRAYS['logits']).requires_grad_()
    term = loss(logits, torch.full_like(LABELS, VOID), WholeStep())
    value = term.total / term.weight
    value.backward()
    assert value.item() == 0
    assert logits.grad is not None
    assert logits.grad.abs().max() == 0
