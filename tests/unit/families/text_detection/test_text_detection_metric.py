"""Hmean of ICDAR 2015, by hand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from phalanx.families.task import Grade
from phalanx.families.text_detection.data.source import Texts, texts_of
from phalanx.families.text_detection.metric import Hmean
from phalanx.families.text_detection.metric.polygons import is_simple, overlap
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


def test_texts_that_are_found_missed_and_made_up_count_over_all_images() -> None:
    """Two of three texts found, one of three findings wrong: precision and recall 2/3."""
    first = texts_of([(rectangle(0, 0, 10, 10), 'a'), (rectangle(20, 0, 30, 10), 'b')])
    second = texts_of([(rectangle(0, 0, 40, 10), 'c')])
    got = metrics(
        ([found(rectangle(0, 1, 10, 10)), found(rectangle(50, 50, 60, 60))], first), ([found(rectangle(1, 0, 40, 10))], second)
    )
    assert got == pytest.approx({'hmean': 2 / 3, 'precision': 2 / 3, 'recall': 2 / 3})


def test_an_overlap_of_exactly_half_is_too_little() -> None:
    """10 x 5 of 10 x 10: an IoU of 0.5; with a row more it is 0.6."""
    truth = texts_of([(rectangle(0, 0, 10, 10), 'a')])
    assert metrics(([found(rectangle(0, 0, 10, 5))], truth))['recall'] == 0
    assert metrics(([found(rectangle(0, 0, 10, 6))], truth))['recall'] == 1


def test_a_text_is_found_once() -> None:
    truth = texts_of([(rectangle(0, 0, 10, 10), 'a')])
    twice = [found(rectangle(0, 0, 10, 10)), found(rectangle(0, 0, 10, 9))]
    assert metrics((twice, truth)) == pytest.approx({'hmean': 2 / 3, 'precision': 0.5, 'recall': 1.0})


def test_what_lies_mostly_on_a_text_to_be_ignored_does_not_count() -> None:
    truth = texts_of([(rectangle(0, 0, 10, 10), 'a'), (rectangle(20, 0, 60, 10), '###')])
    right, on_ignored, beside = found(rectangle(0, 0, 10, 10)), found(rectangle(20, 0, 30, 10)), found(rectangle(55, 0, 65, 10))
    assert metrics(([right, on_ignored], truth)) == pytest.approx({'hmean': 1.0, 'precision': 1.0, 'recall': 1.0})
    assert metrics(([right, beside], truth))['precision'] == 0.5  # half of it is no more than half


def test_where_there_is_no_text_what_was_found_is_wrong_and_the_rest_is_undefined() -> None:
    none = float('nan')
    for regions, precision in (([], none), ([found(rectangle(0, 0, 10, 10))], 0.0)):
        expected = {'hmean': none, 'precision': precision, 'recall': none}
        assert metrics((regions, Texts())) == pytest.approx(expected, nan_ok=True)


def test_a_sample_that_two_ranks_had_counts_once() -> None:
    truth = texts_of([(rectangle(0, 0, 10, 10), 'a')])
    metric = Hmean()
    for _ in range(2):
        metric.update([[found(rectangle(0, 0, 10, 10))]], Seen([4], [truth]))
    assert metric.table()[0] == {'what': 'texts', 'count': 1}


def test_the_curves_say_what_a_least_score_would_change() -> None:
    """From the score of the right one on, the wrong one is gone."""
    truth = texts_of([(rectangle(0, 0, 10, 10), 'a')])
    metric = Hmean()
    metric.update([[found(rectangle(0, 0, 10, 10), 0.9), found(rectangle(30, 0, 40, 10), 0.7)]], Seen([0], [truth]))
    (curves,) = metric.figures()
    assert (curves.lines['precision'][0][1], curves.lines['precision'][-1][1]) == (0.5, 1.0)
    assert {value for _, value in curves.lines['recall']} == {1.0}


def test_areas_of_turned_and_hollow_outlines() -> None:
    """A square on its tip with the diagonal 8 has the area 32; with its own left half 16 of them."""
    tip = np.array([[4, 0], [8, 4], [4, 8], [0, 4]], np.float32)
    assert overlap(tip, rectangle(0, 0, 8, 8)) == pytest.approx(32)
    assert overlap(tip, rectangle(0, 0, 4, 8)) == pytest.approx(16)
    corner = np.array([[0, 0], [10, 0], [10, 2], [2, 2], [2, 10], [0, 10]], np.float32)
    assert overlap(corner, rectangle(3, 3, 9, 9)) == 0
    assert is_simple(corner) and not is_simple(np.array([[0, 0], [10, 10], [10, 0], [0, 10]], np.float32))


def test_an_image_is_graded_by_its_own_hmean() -> None:
    truth = texts_of([(rectangle(0, 0, 10, 10), 'a'), (rectangle(20, 0, 30, 10), 'b')])
    right, wrong = found(rectangle(0, 0, 10, 10)), found(rectangle(50, 50, 60, 60))
    other = texts_of([(rectangle(0, 0, 10, 10), 'a')])
    grades = Hmean().update([[right, wrong], [right], []], Seen([0, 1, 2], [truth, other, Texts()]))
    assert grades == [Grade(0.5, 'hmean 0.50: 1 of 2 missed, 1 found without a text'), None, None]
