"""Hmean of ICDAR 2015, by hand."""

from __future__ import annotations

import cProfile
import pstats
from dataclasses import dataclass

import numpy as np
import pytest

from phalanx.families.figures import Grade
from phalanx.families.text_detection.data.source import Texts, make_texts
from phalanx.families.text_detection.metric import Hmean
from phalanx.families.text_detection.metric.polygons import intersection_area, is_simple
from phalanx.runtime.results import TextRegion


def rectangle(x0: float, y0: float, x1: float, y1: float) -> np.ndarray:
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float32)


def found(points: np.ndarray, score: float = 0.9) -> TextRegion:
    return TextRegion(score, tuple((float(x), float(y)) for x, y in points))


@dataclass
class Seen:
    indices: list[int]
    truths: list[Texts]


def metrics(*images: tuple[list[TextRegion], Texts]) -> dict[str, float]:
    metric = Hmean()
    metric.update([one for one, _ in images], Seen(list(range(len(images))), [truth for _, truth in images]))
    metric.gather()
    return metric.compute()


def test_hits_misses_and_false_positives_are_counted_over_all_images() -> None:
    """Two of three texts found, one of three detections wrong: precision and recall are 2/3."""
    first = make_texts([(rectangle(0, 0, 10, 10), 'a'), (rectangle(20, 0, 30, 10), 'b')])
    second = make_texts([(rectangle(0, 0, 40, 10), 'c')])
    got = metrics(
        ([found(rectangle(0, 1, 10, 10)), found(rectangle(50, 50, 60, 60))], first), ([found(rectangle(1, 0, 40, 10))], second)
    )
    assert got == pytest.approx({'hmean': 2 / 3, 'precision': 2 / 3, 'recall': 2 / 3})


def test_an_iou_of_exactly_half_is_no_match() -> None:
    """10 x 5 of 10 x 10 has an IoU of 0.5; with another row it is 0.6."""
    truth = make_texts([(rectangle(0, 0, 10, 10), 'a')])
    assert metrics(([found(rectangle(0, 0, 10, 5))], truth))['recall'] == 0
    assert metrics(([found(rectangle(0, 0, 10, 6))], truth))['recall'] == 1


def test_a_text_matches_one_detection_only() -> None:
    truth = make_texts([(rectangle(0, 0, 10, 10), 'a')])
    twice = [found(rectangle(0, 0, 10, 10)), found(rectangle(0, 0, 10, 9))]
    assert metrics((twice, truth)) == pytest.approx({'hmean': 2 / 3, 'precision': 0.5, 'recall': 1.0})


def test_a_detection_mostly_on_an_ignored_text_does_not_count() -> None:
    truth = make_texts([(rectangle(0, 0, 10, 10), 'a'), (rectangle(20, 0, 60, 10), '###')])
    right, on_ignored, beside = found(rectangle(0, 0, 10, 10)), found(rectangle(20, 0, 30, 10)), found(rectangle(55, 0, 65, 10))
    assert metrics(([right, on_ignored], truth)) == pytest.approx({'hmean': 1.0, 'precision': 1.0, 'recall': 1.0})
    assert metrics(([right, beside], truth))['precision'] == 0.5  # half of its area is not more than half


def test_without_texts_precision_is_zero_and_recall_undefined() -> None:
    none = float('nan')
    for regions, precision in (([], none), ([found(rectangle(0, 0, 10, 10))], 0.0)):
        expected = {'hmean': none, 'precision': precision, 'recall': none}
        assert metrics((regions, Texts())) == pytest.approx(expected, nan_ok=True)


def test_a_sample_of_two_ranks_counts_once() -> None:
    truth = make_texts([(rectangle(0, 0, 10, 10), 'a')])
    metric = Hmean()
    for _ in range(2):
        metric.update([[found(rectangle(0, 0, 10, 10))]], Seen([4], [truth]))
    assert metric.table()[0] == {'outcome': 'texts', 'count': 1}


def test_the_curves_are_functions_of_the_minimum_score() -> None:
    """Above the score of the wrong detection only the right one remains."""
    truth = make_texts([(rectangle(0, 0, 10, 10), 'a')])
    metric = Hmean()
    metric.update([[found(rectangle(0, 0, 10, 10), 0.9), found(rectangle(30, 0, 40, 10), 0.7)]], Seen([0], [truth]))
    (curves,) = metric.figures()
    assert (curves.lines['precision'][0][1], curves.lines['precision'][-1][1]) == (0.5, 1.0)
    assert {value for _, value in curves.lines['recall']} == {1.0}


def test_areas_of_rotated_and_concave_outlines() -> None:
    """A square on its tip with diagonal 8 has area 32; its intersection with the left half has area 16."""
    tip = np.array([[4, 0], [8, 4], [4, 8], [0, 4]], np.float32)
    assert intersection_area(tip, rectangle(0, 0, 8, 8)) == pytest.approx(32)
    assert intersection_area(tip, rectangle(0, 0, 4, 8)) == pytest.approx(16)
    corner = np.array([[0, 0], [10, 0], [10, 2], [2, 2], [2, 10], [0, 10]], np.float32)
    assert intersection_area(corner, rectangle(3, 3, 9, 9)) == 0
    assert is_simple(corner) and not is_simple(np.array([[0, 0], [10, 10], [10, 0], [0, 10]], np.float32))


def test_an_image_is_graded_by_its_own_hmean() -> None:
    truth = make_texts([(rectangle(0, 0, 10, 10), 'a'), (rectangle(20, 0, 30, 10), 'b')])
    right, wrong = found(rectangle(0, 0, 10, 10)), found(rectangle(50, 50, 60, 60))
    other = make_texts([(rectangle(0, 0, 10, 10), 'a')])
    grades = Hmean().update([[right, wrong], [right], []], Seen([0, 1, 2], [truth, other, Texts()]))
    assert grades == [Grade(0.5, 'hmean 0.50: 1 of 2 missed, false positives: 1'), None, None]


def test_a_detection_is_intersected_only_with_texts_near_it() -> None:
    """A million intersections of a page of 1,000 texts would take seconds."""
    rectangles = [
        rectangle(20 * (place % 20), 20 * (place // 20), 20 * (place % 20) + 10, 20 * (place // 20) + 10)
        for place in range(400)
    ]
    truth = make_texts([(points, 'a') for points in rectangles])
    with cProfile.Profile() as profiler:
        scores = metrics(([found(points) for points in reversed(rectangles)], truth))
    assert scores['hmean'] == 1
    calls = {name: calls for (_, _, name), (calls, *_) in pstats.Stats(profiler).stats.items()}  # type: ignore[attr-defined]
    assert calls['intersection_area'] == 400
