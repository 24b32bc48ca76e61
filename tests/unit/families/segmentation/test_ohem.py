"""Hard-pixel mining over a whole step. Expected numbers come from torch's own sorting."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.families.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.families.task import Term
from phalanx.parallel.hardest import kth_largest
from phalanx.parallel.step import WholeStep

Loss = Callable[[Tensor, Tensor, WholeStep], Term]


def batch() -> tuple[Tensor, Tensor]:
    """Logits [7, 5, 6, 8] and labels [7, 6, 8]; the last sample is nearly all void, one in the middle completely."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(7, 5, 6, 8, generator=generator)
    labels = torch.randint(0, 5, (7, 6, 8), generator=generator)
    labels[4] = VOID
    labels[6, 1:] = VOID
    return logits.requires_grad_(), labels


def value_and_gradient(loss: Loss) -> tuple[float, Tensor]:
    logits, labels = batch()
    value = loss(logits, labels, WholeStep()).mean()
    value.backward()
    assert logits.grad is not None
    return value.item(), logits.grad


def test_pixels_less_probable_than_the_min_kept_th_are_hard() -> None:
    """By hand: 70 pixels of 7 samples are kept, those less probable than the 70th least probable one."""
    logits, labels = batch()
    valid = labels != VOID
    probability = logits.detach().softmax(1).gather(1, labels.where(valid, 0)[:, None])[:, 0]
    cutoff = probability[valid].sort().values[69]
    expected = valid & (probability < cutoff)
    _, gradient = value_and_gradient(OhemCrossEntropy(threshold=0.001, min_kept_per_sample=10))
    assert expected.sum() == 69
    assert torch.equal(gradient.abs().sum(1) > 0, expected)


def test_pixels_below_the_threshold_are_hard_even_beyond_min_kept() -> None:
    logits, labels = batch()
    loss = F.cross_entropy(logits, labels, ignore_index=VOID, reduction='none')
    hard = (labels != VOID) & (loss > -math.log(0.7))
    value, _ = value_and_gradient(OhemCrossEntropy(threshold=0.7, min_kept_per_sample=10))
    assert hard.sum() > 70
    assert value == pytest.approx(loss[hard].mean().item(), rel=1e-4)  # up to the epsilon in the divisor


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
@pytest.mark.parametrize('k', [1, 2, 500, 999, 1000])
def test_the_kth_largest_value_is_found_exactly(k: int, dtype: torch.dtype) -> None:
    values = torch.rand(2000, dtype=dtype, generator=torch.Generator().manual_seed(k)).exp2() - 1
    among = torch.arange(2000) % 2 == 0
    found, share = kth_largest(values, among, torch.tensor(k), WholeStep())
    assert found == values[among].sort(descending=True).values[k - 1]
    assert share == 1


def test_ties_at_the_kth_value_share_the_rest() -> None:
    values = torch.tensor([3.0, 2.0, 2.0, 2.0, 2.0, -0.0, 0.0])
    everywhere = torch.ones(7, dtype=torch.bool)
    assert kth_largest(values, everywhere, torch.tensor(2), WholeStep()) == (2.0, 0.25)  # one of four
    assert kth_largest(values, everywhere, torch.tensor(6), WholeStep()) == (0.0, 0.5)  # both zeros are zero


def test_wrong_options_are_reported() -> None:
    with pytest.raises(ValueError, match=r'^threshold is 7; it must be a probability above 0$'):
        OhemCrossEntropy(threshold=7, min_kept_per_sample=10)
    with pytest.raises(ValueError, match=r'^min_kept_per_sample is -1; it must be a number of pixels, at least 0$'):
        OhemCrossEntropy(min_kept_per_sample=-1)
    with pytest.raises(ValueError, match=r'^top_k is 0; it must be a share of the pixels, above 0 and at most 1$'):
        CrossEntropy(top_k=0)
    logits, labels = batch()
    with pytest.raises(ValueError, match=r'^class_weights has 2 values, but there are 5 classes: give one per class$'):
        CrossEntropy(class_weights=(1, 2))(logits, labels, WholeStep())
