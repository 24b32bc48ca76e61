"""Scaling rules, by hand."""

from __future__ import annotations

import re

import pytest

from phalanx.engine.optim.scaling import Scaling, scale_lr

TABLE = [
    (Scaling(rule='linear', reference_batch_size=16), 64, 0.04),  # four times the batch, four times the rate
    (Scaling(rule='linear', reference_batch_size=16), 8, 0.005),
    (Scaling(rule='linear', reference_batch_size=16), 16, 0.01),
    (Scaling(rule='sqrt', reference_batch_size=16), 64, 0.02),
    (Scaling(rule='none'), 64, 0.01),
    (Scaling(rule='none', reference_batch_size=16), 64, 0.01),
    (Scaling(rule=3.0), 64, 0.03),
    (Scaling(), 64, 0.01),
]


@pytest.mark.parametrize(('scaling', 'batch', 'expected'), TABLE)
def test_the_rate_follows_the_batch(scaling: Scaling, batch: int, expected: float) -> None:
    assert scale_lr(0.01, scaling, batch) == pytest.approx(expected, rel=1e-15)


def test_a_rule_without_its_reference_is_refused() -> None:
    message = 'rule linear needs reference_batch_size: the global batch size that optimizer.lr was tuned for'
    with pytest.raises(ValueError, match=f'^{message}$'):
        Scaling(rule='linear')


def test_numbers_that_are_not_above_zero_are_refused() -> None:
    with pytest.raises(ValueError, match=re.escape('reference_batch_size must be above 0, got 0')):
        Scaling(rule='linear', reference_batch_size=0)
    with pytest.raises(ValueError, match=re.escape('a scaling factor must be above 0, got -2.0')):
        Scaling(rule=-2.0)
