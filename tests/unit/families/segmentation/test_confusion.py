"""The confusion matrix against scikit-learn."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from phalanx.families.figures import Legend, Matrix
from phalanx.families.segmentation.draw import draw_class_map, draw_overlay
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.metric import Confusion

NAMES = ('road', 'car', 'sky', 'tree')


def maps() -> tuple[list[Tensor], list[Tensor]]:
    """Predictions and labels of three images of different sizes; a tenth of the pixels is void."""
    rng = np.random.default_rng(0)
    predictions, labels = [], []
    for size in ((9, 7), (4, 12), (1, 30)):
        truth = rng.integers(0, 4, size)
        wrong = rng.random(size) < 0.3
        predictions.append(torch.from_numpy(np.where(wrong, rng.integers(0, 4, size), truth).astype(np.uint8)))
        labels.append(torch.from_numpy(np.where(rng.random(size) < 0.1, VOID, truth).astype(np.uint8)))
    return predictions, labels


def test_all_metrics_match_scikit_learn() -> None:
    from sklearn.metrics import accuracy_score, cohen_kappa_score, f1_score, jaccard_score, precision_score, recall_score

    predictions, labels = maps()
    metric = Confusion(NAMES)
    metric.update(predictions, SimpleNamespace(truths=labels))
    seen = torch.cat([prediction.flatten() for prediction in predictions]).numpy()
    truth = torch.cat([label.flatten() for label in labels]).numpy()
    pair = (truth[truth != VOID], seen[truth != VOID])
    assert metric.compute() == pytest.approx(
        {
            'mean_iou': jaccard_score(*pair, average='macro'),
            'accuracy': accuracy_score(*pair),
            'kappa': cohen_kappa_score(*pair),
            'mean_dice': f1_score(*pair, average='macro'),
            'mean_iou_all': jaccard_score(*pair, average='macro'),
        }
    )
    columns = {
        'iou': jaccard_score(*pair, average=None),
        'precision': precision_score(*pair, average=None),
        'recall': recall_score(*pair, average=None),
        'dice': f1_score(*pair, average=None),
        'pixels': np.bincount(pair[0]),
    }
    table = metric.table()
    assert [row['class'] for row in table] == list(NAMES)
    for column, expected in columns.items():
        assert [row[column] for row in table] == pytest.approx(expected.tolist())


def test_updates_add_up() -> None:
    predictions, labels = maps()
    at_once, one_by_one = Confusion(NAMES), Confusion(NAMES)
    at_once.update(predictions, SimpleNamespace(truths=labels))
    for prediction, label in zip(predictions, labels, strict=True):
        one_by_one.update([prediction], SimpleNamespace(truths=[label]))
    at_once.gather()  # alone, a rank has everything
    assert at_once.compute() == one_by_one.compute()


def test_void_pixels_do_not_count() -> None:
    metric = Confusion(NAMES)
    metric.update([torch.tensor([[0, 1, 2]])], SimpleNamespace(truths=[torch.tensor([[0, 1, VOID]])]))
    assert metric.compute()['accuracy'] == 1
    assert [row['pixels'] for row in metric.table()] == [1, 1, 0, 0]


def test_the_figure_counts_pixels_by_true_and_predicted_class() -> None:
    metric = Confusion(NAMES[:2])
    metric.update([torch.tensor([[0, 1, 1]])], SimpleNamespace(truths=[torch.tensor([[0, 0, 1]])]))
    matrix, _ = metric.figures()
    assert isinstance(matrix, Matrix)
    assert matrix.names == tuple(NAMES[:2])
    assert matrix.counts == [[1, 1], [0, 1]]


def test_the_legend_has_the_colours_of_the_classes_present() -> None:
    """One class only in the truth, one only predicted; in the colours of drawn class maps."""
    metric = Confusion(NAMES)
    metric.update([torch.tensor([[1, 1]])], SimpleNamespace(truths=[torch.tensor([[2, 1]])]))
    _, legend = metric.figures()
    drawn = draw_class_map(np.array([[1, 2]], np.uint8))[0]
    assert legend == Legend({NAMES[number]: f'#{bytes(drawn[place]).hex()}' for place, number in enumerate((1, 2))})


def test_metrics_are_nan_where_all_pixels_are_void() -> None:
    metric = Confusion(NAMES)
    metric.update([torch.zeros(1, 2, dtype=torch.int64)], SimpleNamespace(truths=[torch.tensor([[VOID, VOID]])]))
    assert list(metric.compute()) == ['mean_iou', 'accuracy', 'kappa', 'mean_dice', 'mean_iou_all']
    assert all(map(math.isnan, metric.compute().values()))


def test_an_absent_class_is_left_out_of_the_mean() -> None:
    """By hand, for 20 named classes: 3 pixels of class 0, all found, and one pixel of class 1, predicted as 0."""
    metric = Confusion([f'class {number}' for number in range(20)])
    metric.update([torch.tensor([[0, 0, 0, 0]])], SimpleNamespace(truths=[torch.tensor([[0, 0, 0, 1]])]))
    assert metric.compute()['mean_iou'] == pytest.approx((3 / 4 + 0) / 2)
    assert metric.compute()['mean_iou_all'] == pytest.approx((3 / 4 + 0 + 18) / 20)  # as PaddleSeg has it


def test_a_label_outside_the_classes_is_reported() -> None:
    with pytest.raises(ValueError, match=r'^a pixel has label 33; the 4 classes are 0 to 3, void is 255$'):
        Confusion(NAMES).update([torch.zeros(1, 2)], SimpleNamespace(truths=[torch.tensor([[0, 33]])]))


def test_an_image_is_graded_by_its_own_mean_iou() -> None:
    """One of 5 valid pixels, of class 1, is predicted as 0: IoU 2/3 and 2/3, class 2 is correct; void is ignored."""
    metric = Confusion(NAMES)
    wrong = torch.tensor([[0, 0, 0, 1, 1, 2, 2]])
    truth = torch.tensor([[0, 0, 1, 1, 1, 2, VOID]])
    (grade, right) = metric.update([wrong, wrong], SimpleNamespace(truths=[truth, wrong]))
    assert grade is not None and grade.value == pytest.approx((2 / 3 + 2 / 3 + 1) / 3)
    assert grade.reason == f'mean IoU 0.78; {NAMES[1]} taken for {NAMES[0]} on 17% of the image'
    assert right is None


def test_background_has_no_colour_in_pictures_and_no_place_in_the_legend() -> None:
    image = np.full((1, 3, 3), 100, np.uint8)
    names = ['_background_', 'leaf']
    drawn = draw_overlay(image, np.array([[0, 1, VOID]], np.uint8), names)
    assert (drawn[0, [0, 2]] == 100).all() and (drawn[0, 1] != 100).any()
    metric = Confusion(names)
    metric.update([torch.tensor([[0, 1]])], SimpleNamespace(truths=[torch.tensor([[0, 1]])]))
    _, legend = metric.figures()
    assert isinstance(legend, Legend) and list(legend.colours) == ['leaf']


def test_a_class_without_any_pixel_has_recall_and_precision_0() -> None:
    metric = Confusion(('road', 'car'))
    metric.update([torch.zeros(2, 2, dtype=torch.uint8)], SimpleNamespace(truths=[torch.zeros(2, 2, dtype=torch.uint8)]))
    assert [(row['recall'], row['precision']) for row in metric.table()] == [(1, 1), (0, 0)]
