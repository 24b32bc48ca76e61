"""Detection metrics against pycocotools, and against small cases counted by hand."""

import contextlib
import io
import multiprocessing
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from phalanx.families.detection.data import Objects
from phalanx.families.detection.metric.base import pack
from phalanx.families.detection.metric.coco import CocoAp
from phalanx.families.detection.metric.matching import compare, confusion, match, precision_recall_curves
from phalanx.families.detection.metric.voc import Curve, VocAp, area_under_curve, eleven_points, inclusive_iou
from phalanx.families.figures import Grade
from phalanx.parallel import dist
from phalanx.runtime.detection import Detections

Pair = tuple[Detections, Objects]


@dataclass
class Batch:
    indices: list[int]
    truths: list[Objects]


def evaluate(metric: Any, pairs: list[Pair], indices: list[int] | None = None) -> Any:
    """`metric` after it has seen the pairs, one batch, and gathered."""
    numbers = list(range(len(pairs))) if indices is None else indices
    metric.update([found for found, _ in pairs], Batch(numbers, [truth for _, truth in pairs]))
    metric.gather()
    return metric


def found(*rows: tuple[float, int, tuple[float, ...]]) -> Detections:
    """Rows of (score, class, box)."""
    boxes = np.array([box for _, _, box in rows], np.float32).reshape(-1, 4)
    scores, classes = np.array([row[0] for row in rows], np.float32), np.array([row[1] for row in rows], np.int64)
    return Detections(boxes, scores, classes)


def there(*rows: tuple[int, tuple[float, ...]], ignored: tuple[int, ...] = ()) -> Objects:
    """Rows of (class, box); `ignored`: the numbers of crowds or difficult ones."""
    boxes = np.array([box for _, box in rows], np.float32).reshape(-1, 4)
    plain = Objects.plain(boxes, np.array([label for label, _ in rows], np.int64))
    return Objects(plain.boxes, plain.classes, np.isin(np.arange(len(rows)), ignored), plain.areas)


def random_pairs(images: int, classes: int, seed: int) -> list[Pair]:
    """Images of 640 x 480 with objects of all sizes, crowds, none at all; detections near them, twice, elsewhere, none."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(images):
        count = int(rng.integers(0, 9)) * int(rng.random() > 0.1)
        corners, sides = rng.uniform(0, 400, (count, 2)), np.exp(rng.uniform(1.5, 5.5, (count, 2)))
        boxes = np.concatenate([corners, corners + sides], 1).astype(np.float32)
        areas = (sides.prod(1) * rng.uniform(0.4, 1, count)).astype(np.float32)  # outlines are smaller than boxes
        # Nobody has the last class.
        truth = Objects(boxes, rng.integers(0, classes - 1, count), rng.random(count) < 0.15, areas)
        seen = rng.integers(0, max(count, 1), int(rng.integers(0, 14)) * (count > 0))
        near = boxes[seen] + rng.normal(0, 1, (len(seen), 4)) * sides[seen].repeat(2, 1) * rng.choice([0.02, 0.1, 0.3])
        far = rng.uniform(0, 300, (int(rng.integers(0, 5)), 2))
        every = np.concatenate([near, np.concatenate([far, far + rng.uniform(1, 200, far.shape)], 1)]).astype(np.float32)
        every[:, 2:] = np.maximum(every[:, 2:], every[:, :2] + 0.5)
        labels = np.concatenate([truth.classes[seen], rng.integers(0, classes, len(far))])
        labels = np.where(rng.random(len(labels)) < 0.1, rng.integers(0, classes, len(labels)), labels)
        scores = rng.integers(1, 100, len(every)) / 100  # with ties
        order = np.argsort(-scores, kind='stable')
        pairs.append((Detections(every[order], scores[order].astype(np.float32), labels[order]), truth))
    return pairs


def oracle(pairs: list[Pair], classes: int) -> COCOeval:
    """pycocotools on the same numbers."""

    def rows(number_of: int, boxes: np.ndarray, labels: np.ndarray, image: int) -> list[dict[str, Any]]:
        return [
            {'id': number_of + k, 'image_id': image, 'category_id': int(label), 'bbox': [*box[:2], *(box[2:] - box[:2])]}
            for k, (box, label) in enumerate(zip(boxes.astype(float), labels, strict=True), 1)
        ]

    truth: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    for image, (seen, objects) in enumerate(pairs):
        more = [{'area': float(a), 'iscrowd': int(i)} for a, i in zip(objects.areas, objects.ignored, strict=True)]
        truth += [row | extra for row, extra in zip(rows(len(truth), objects.boxes, objects.classes, image), more, strict=True)]
        scores = [{'score': float(score)} for score in seen.scores]
        results += [row | s for row, s in zip(rows(len(results), seen.boxes, seen.classes, image), scores, strict=True)]
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {'images': [{'id': n} for n in range(len(pairs))], 'annotations': truth}
        coco.dataset['categories'] = [{'id': n} for n in range(classes)]
        coco.createIndex()
        judge = COCOeval(coco, coco.loadRes(results), 'bbox')
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return judge


def test_the_numbers_are_those_of_pycocotools() -> None:
    """300 random images with crowds, empty ones, a class nobody has, equal scores, all sizes."""
    pairs = random_pairs(300, 5, seed=1)
    expected = oracle(pairs, 5)
    metric = evaluate(CocoAp(tuple('abcde')), pairs)
    names = ('mean_ap', 'ap50', 'ap75', 'ar100', 'ap_small', 'ap_medium', 'ap_large')
    assert tuple(metric.compute()) == names
    assert_allclose([metric.compute()[name] for name in names], expected.stats[[0, 1, 2, 8, 3, 4, 5]], rtol=1e-12)
    precision = expected.eval['precision']  # [T, R, K, A, M]
    assert [row['class'] for row in metric.table()] == list('abcde')
    for label, row in enumerate(metric.table()[:4]):
        assert row['ap'] == pytest.approx(precision[:, :, label, 0, -1].mean(), rel=1e-12)
        assert row['ap50'] == pytest.approx(precision[0, :, label, 0, -1].mean(), rel=1e-12)
    assert metric.table()[4] == {'class': 'e', 'ap': '-', 'ap50': '-', 'ar100': '-', 'objects': 0}
    assert sum(row['objects'] for row in metric.table()) == sum(int((~truth.ignored).sum()) for _, truth in pairs)
    assert list(metric.curves()) == list('abcd')
    assert_allclose(metric.curves()['c'], precision[0, :, 2, 0, -1], rtol=1e-12)


def test_more_than_a_hundred_detections_of_an_image_are_cut_off_as_in_pycocotools() -> None:
    pairs = [
        (Detections(f.boxes.repeat(60, 0), f.scores.repeat(60), f.classes.repeat(60)), t) for f, t in random_pairs(8, 3, 2)
    ]
    metric = evaluate(CocoAp(('a', 'b', 'c')), pairs)
    assert metric.compute()['mean_ap'] == pytest.approx(oracle(pairs, 3).stats[0], rel=1e-12)


def test_the_order_and_the_cut_of_batches_do_not_matter() -> None:
    pairs = random_pairs(40, 4, seed=3)
    whole = evaluate(CocoAp(tuple('abcd')), pairs)
    cut = CocoAp(tuple('abcd'))
    for part in (range(30, 40), range(7), range(7, 30)):
        evaluate(cut, [pairs[n] for n in part], list(part))
    assert cut.compute() == whole.compute()
    assert cut.table() == whole.table()


@pytest.mark.parametrize('ranks', [2, 5])
def test_the_main_rank_has_what_all_have_seen_however_the_images_are_shared_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int
) -> None:
    """Four images, the last without anything; of five ranks one has none. In messages of at most 20 numbers, so in several."""
    monkeypatch.setattr(dist, 'MESSAGE', 20)
    pairs = [*random_pairs(3, 4, seed=5), (found(), there())]
    fork = multiprocessing.get_context('fork')
    processes = [fork.Process(target=gather_share, args=(rank, ranks, pairs, tmp_path)) for rank in range(ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * ranks
    with np.load(tmp_path / 'gathered.npz') as gathered:
        for name, expected in zip(('counts', 'detections', 'objects'), pack(dict(enumerate(pairs))), strict=True):
            assert_array_equal(gathered[name], expected, strict=True)
        assert_array_equal(gathered['confused'], evaluate(CocoAp(tuple('abcd')), pairs).confused)


def gather_share(rank: int, ranks: int, pairs: list[Pair], folder: Path) -> None:
    """Work of one rank; the main one writes its result. Nothing is computed: a forked process has no thread pool."""
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': str(ranks), 'PHALANX_INIT_METHOD': f'file://{folder}/store'}
    dist.join(torch.device('cpu'))
    share = list(range(len(pairs)))[rank::ranks]
    metric = evaluate(CocoAp(tuple('abcd')), [pairs[number] for number in share], share)
    if rank == 0:
        counts, detections, objects = pack(metric.images)
        np.savez(folder / 'gathered.npz', counts=counts, detections=detections, objects=objects, confused=metric.confused)
    dist.leave()


def test_a_sample_seen_twice_counts_once() -> None:
    pairs = random_pairs(10, 3, seed=4)
    metric = evaluate(CocoAp(tuple('abc')), pairs)
    once = metric.compute()
    assert evaluate(metric, pairs[:5]).compute() == once


@pytest.mark.parametrize('metric', [CocoAp(('a', 'b')), VocAp(('a', 'b'))], ids=['coco', 'voc'])
def test_the_value_is_undefined_without_objects_and_zero_where_none_is_found(metric: Any) -> None:
    assert np.isnan(evaluate(metric, [(found(), there())]).compute()['mean_ap'])
    assert np.isnan(evaluate(metric, [(found((0.9, 0, (0, 0, 9, 9))), there())]).compute()['mean_ap'])
    assert evaluate(metric, [(found(), there((1, (0, 0, 9, 9))))]).compute()['mean_ap'] == 0
    assert metric.table()[1]['ap'] == 0 and metric.table()[0]['ap'] == '-'


def test_a_perfect_detector_has_one() -> None:
    truth = there((0, (0, 0, 20, 20)), (1, (50, 50, 200, 200)))
    metric = evaluate(CocoAp(('a', 'b')), [(found((0.9, 0, (0, 0, 20, 20)), (0.8, 1, (50, 50, 200, 200))), truth)])
    expected = {'mean_ap': 1, 'ap50': 1, 'ap75': 1, 'ap_small': 1, 'ap_large': 1, 'ar100': 1}
    assert metric.compute() == pytest.approx(expected)  # no medium object, no number for them


def test_what_is_found_in_a_crowd_is_neither_right_nor_wrong() -> None:
    crowd = there((0, (0, 0, 100, 100)), (0, (200, 0, 220, 20)), ignored=(0,))
    many = found((0.9, 0, (0, 0, 20, 20)), (0.8, 0, (50, 50, 70, 70)), (0.7, 0, (200, 0, 220, 20)))
    assert evaluate(CocoAp(('a',)), [(many, crowd)]).compute()['mean_ap'] == pytest.approx(1)


A, B, FAR = (0, 0, 9, 9), (20, 0, 29, 9), (50, 50, 59, 59)


def test_voc_average_precision_counted_by_hand() -> None:
    """Three objects; right, wrong, right again of falling score: precision 1, 1/2, 2/3 at recall 1/3, 1/3, 2/3.

    Eleven points: 1 at 0, .1, .2, .3; 2/3 at .4, .5, .6; 0 at .7 to 1. Area: 1/3 x 1 + 1/3 x 2/3.
    """
    truth = there((0, A), (0, B), (0, (80, 80, 89, 89)))
    seen = found((0.9, 0, A), (0.8, 0, FAR), (0.7, 0, B))
    assert evaluate(VocAp(('a',)), [(seen, truth)]).compute()['mean_ap'] == pytest.approx((4 + 3 * 2 / 3) / 11)
    assert evaluate(VocAp(('a',), points='all'), [(seen, truth)]).compute()['mean_ap'] == pytest.approx(1 / 3 + 2 / 9)
    (row,) = evaluate(VocAp(('a',)), [(seen, truth)]).table()
    assert (row['recall'], row['objects']) == (pytest.approx(2 / 3), 3)


def test_voc_counts_a_second_detection_as_wrong_and_a_difficult_object_not_at_all() -> None:
    """One object and a difficult one: right, at the difficult one (twice), a repetition, over two images of which one is empty.

    Precision 1 at recall 1, then 1/2: both averages are 1. With the repetition first in score order nothing would change, but
    with the wrong one first it would be 1/2.
    """
    truth = there((0, A), (0, B), ignored=(1,))
    seen = found((0.9, 0, A), (0.8, 0, B), (0.7, 0, B), (0.6, 0, A))
    empty = (found(), there())
    for points in ('11', 'all'):
        assert evaluate(VocAp(('a',), points=points), [(seen, truth), empty]).compute()['mean_ap'] == pytest.approx(1)
        first_wrong = (found((0.95, 0, FAR)), there())
        assert evaluate(VocAp(('a',), points=points), [(seen, truth), first_wrong]).compute()['mean_ap'] == pytest.approx(0.5)


def test_voc_means_over_the_classes_that_have_objects() -> None:
    truth = there((0, A), (1, B))
    seen = found((0.9, 0, A), (0.9, 1, FAR), (0.8, 2, A))
    assert evaluate(VocAp(('a', 'b', 'c')), [(seen, truth)]).compute()['mean_ap'] == pytest.approx(0.5)


def test_voc_needs_more_than_the_threshold() -> None:
    """10 x 10 pixels each, last row and column included; shifted by n columns they share 10 x (10 - n)."""
    overlaps = inclusive_iou(np.array([A, (2, 0, 11, 9), (9, 0, 18, 9)], np.float32), np.array([A], np.float32))
    assert_allclose(overlaps[:, 0], [1, 80 / 120, 0])  # sharing one column is sharing nothing, as in PaddleDetection
    third = found((0.9, 0, (5, 0, 14, 9)))  # 50 / 150
    for iou, expected in ((0.333, 1), (1 / 3, 0)):
        assert evaluate(VocAp(('a',), iou=iou), [(third, there((0, A)))]).compute()['mean_ap'] == expected


def test_averages_of_a_curve() -> None:
    empty = Curve(np.zeros(0), np.zeros(0), 3)
    assert (eleven_points(empty), area_under_curve(empty)) == (0, 0)
    half = Curve(np.array([1.0]), np.array([0.5]), 2)  # recall 0, .1, .. .5 are reached
    assert (eleven_points(half), area_under_curve(half)) == (pytest.approx(6 / 11), 0.5)


def test_the_threshold_of_voc_is_a_share() -> None:
    with pytest.raises(ValueError, match='iou must lie between 0 and 1, got 50'):
        VocAp(('a',), iou=50)


def test_the_confusion_table_counted_by_hand() -> None:
    """An a found as a, an a found as b, a b not found, a detection without an object, a crowd that does not count."""
    truth = there((0, A), (0, B), (1, (100, 0, 120, 20)), (1, (200, 0, 260, 60)), ignored=(3,))
    seen = found((0.9, 0, A), (0.8, 1, B), (0.7, 1, FAR), (0.6, 0, (200, 0, 260, 60)), (0.1, 1, (100, 0, 120, 20)))
    assert_array_equal(confusion([compare(seen, truth, 2).cells], 2), [[1, 1, 0], [0, 0, 1], [0, 1, 0]])


def test_the_figures_are_the_curves_and_the_confusions() -> None:
    """Of two objects of class a one is found, before anything wrong: precision 1 up to recall 0.5, then 0, in both metrics.

    Class b has no object and no curve.
    """
    truth = there((0, A), (0, B))
    for metric in (CocoAp(('a', 'b')), VocAp(('a', 'b'))):
        curves, matrix, errors = evaluate(metric, [(found((0.9, 0, A), (0.8, 0, FAR)), truth)]).figures()
        assert (curves.x, curves.y) == ('recall', 'precision')
        assert list(curves.lines) == ['mean of the classes', 'a']
        assert [y for _, y in curves.lines['a']] == pytest.approx([1.0] * 51 + [0.0] * 50)
        assert [x for x, _ in curves.lines['a']] == pytest.approx([percent / 100 for percent in range(101)])
        assert matrix.names == ['a', 'b', 'nothing']
        assert matrix.counts == [[1, 0, 1], [0, 0, 0], [1, 0, 0]]
        assert [row['cause'] for row in errors.rows if row['errors']] == ['background', 'missed']


def test_of_many_classes_the_mean_and_the_worst_five_have_a_curve() -> None:
    """Eight classes, the precision of each a tenth higher than that of the one before."""
    precision = {f'class{n}': [n / 10] * 101 for n in range(8)}
    curves = precision_recall_curves(precision, 0.5)
    assert curves.title == 'Precision at an IoU of 0.5, all classes and the 5 worst'
    assert list(curves.lines) == ['mean of the classes', *(f'class{n}' for n in range(5))]
    assert curves.lines['mean of the classes'][0] == (0.0, pytest.approx(0.35))


def test_without_an_object_there_is_no_curve() -> None:
    (matrix,) = evaluate(CocoAp(('a',)), [(found((0.9, 0, A)), there())]).figures()
    assert matrix.counts == [[0, 0], [1, 0]]


def test_pairs_of_highest_overlap_are_matched_first() -> None:
    overlaps = np.array([[0.6, 0.9], [0.7, 0.8]], np.float32)
    assert match(overlaps, 0.5) == [(0, 1), (1, 0)]
    assert match(overlaps, 0.75) == [(0, 1)]
    assert match(np.zeros((0, 3), np.float32), 0.5) == []


def test_an_image_is_graded_by_its_mistakes() -> None:
    """One wrong, one missed and one spurious detection; crowds and scores below the minimum do not count."""
    truth = there((0, A), (0, B), (1, (100, 0, 120, 20)), (1, (200, 0, 260, 60)), ignored=(3,))
    seen = found((0.9, 0, A), (0.8, 1, B), (0.7, 1, FAR), (0.6, 0, (200, 0, 260, 60)), (0.1, 1, (100, 0, 120, 20)))
    assert compare(seen, truth, 2).grade == Grade(-3, '1 missed, 1 of a wrong class, 1 without an object')
    assert compare(found((0.9, 0, A)), there((0, A)), 2).grade is None
    assert compare(found(), there(), 2).grade is None
