"""Segmentation metrics against PaddleSeg.

Expected values were produced by the original (data/metrics_seg.npz, data/segmentation.json; copied by trim.py).
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from phalanx.families.segmentation.metric import Confusion

DATA = Path(__file__).parent / 'data'
EXPECTED = json.loads((DATA / 'segmentation.json').read_text())['metrics']
ARRAYS = dict(np.load(DATA / 'metrics_seg.npz'))


@pytest.fixture(scope='module')
def confusion() -> Confusion:
    metric = Confusion([f'class {number}' for number in range(EXPECTED['num_classes'])])
    prediction, labels = torch.from_numpy(ARRAYS['pred'])[:, 0], torch.from_numpy(ARRAYS['label'])[:, 0]
    metric.update(list(prediction), SimpleNamespace(truths=list(labels)))
    return metric


def test_numbers_over_all_classes_are_those_of_the_original(confusion: Confusion) -> None:
    values = confusion.compute()
    names = {'mean_iou_all': 'miou', 'accuracy': 'acc', 'kappa': 'kappa', 'mean_dice': 'mdice'}
    assert {name: values[name] for name in names} == pytest.approx(
        {ours: EXPECTED[theirs] for ours, theirs in names.items()}, rel=1e-12
    )


@pytest.mark.parametrize('column', ['iou', 'precision', 'recall', 'dice'])
def test_numbers_of_each_class_are_those_of_the_original(confusion: Confusion, column: str) -> None:
    ours = [row[column] for row in confusion.table()]
    np.testing.assert_allclose(ours, ARRAYS[f'class_{column}'], rtol=1e-12)


def test_pixels_of_each_class_are_those_of_the_original(confusion: Confusion) -> None:
    assert [row['pixels'] for row in confusion.table()] == ARRAYS['label_area'].tolist()
