"""Targets of text detection against hand calculation."""

from __future__ import annotations

import numpy as np
import pytest

from phalanx.families.text_detection.data.source import Texts, make_texts
from phalanx.families.text_detection.targets import edge_distances, make_shrink_maps, make_threshold_maps
from phalanx.families.text_detection.task import TargetOptions


def rectangle(x0: float, y0: float, x1: float, y1: float) -> np.ndarray:
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float32)


def one(points: np.ndarray, text: str = 'word') -> Texts:
    return make_texts([(points, text)])


def test_a_text_is_shrunk_by_area_times_one_minus_r_squared_over_length() -> None:
    """100 x 50 at (20, 30): 5000 * (1 - 0.16) / 300 = 14 pixels from each side."""
    inside, mask = make_shrink_maps(one(rectangle(20, 30, 120, 80)), 100, 160, ratio=0.4, min_size=8)
    expected = np.zeros((100, 160), np.uint8)
    expected[44:67, 34:107] = 1
    assert np.array_equal(inside, expected)
    assert mask.all()


@pytest.mark.parametrize(('points', 'text'), [(rectangle(20, 30, 60, 50), '###'), (rectangle(20, 30, 60, 36), 'small')])
def test_ignored_and_small_texts_are_masked_out(points: np.ndarray, text: str) -> None:
    inside, mask = make_shrink_maps(one(points, text), 64, 64, ratio=0.4, min_size=8)
    (x0, y0), (x1, y1) = points.min(0).astype(int), points.max(0).astype(int)
    assert not inside.any()
    assert not mask[y0 : y1 + 1, x0 : x1 + 1].any()
    assert mask.sum() == 64 * 64 - (y1 - y0 + 1) * (x1 - x0 + 1)


def test_the_threshold_map_is_highest_on_the_border_and_falls_to_both_sides() -> None:
    """Over the middle of the upper edge: 0.7 on it, 0.3 at 14 pixels from it, 0.5 halfway."""
    values, mask = make_threshold_maps(one(rectangle(20, 30, 120, 80)), 120, 160, ratio=0.4, low=0.3, high=0.7)
    column = values[:, 70]
    assert column[30] == pytest.approx(0.7)
    assert column[[23, 37]] == pytest.approx([0.5, 0.5])
    assert column[[15, 44, 55]] == pytest.approx([0.3, 0.3, 0.3])
    assert mask[16:95, 70].all() and not mask[:15, 70].any() and not mask[96:, 70].any()


def test_ignored_texts_have_no_threshold_target() -> None:
    values, mask = make_threshold_maps(one(rectangle(20, 30, 60, 50), '*'), 64, 64, ratio=0.4, low=0.3, high=0.7)
    assert not mask.any()
    assert values == pytest.approx(np.full((64, 64), 0.3, np.float32))


def test_the_distance_is_to_the_line_for_obtuse_angles_and_else_to_the_nearer_end() -> None:
    """Of the square (0, 0, 8, 8): its middle sees each edge under a right angle; (4, 6) sees the lowest under an obtuse one."""
    found = edge_distances(rectangle(0, 0, 8, 8), 0, 0, 12, 12, reach=20)
    assert found[4, 4] == pytest.approx(4)
    assert found[6, 4] == pytest.approx(2)
    assert found[0, 11] == pytest.approx(3)
    assert found[11, 11] == pytest.approx(np.hypot(3, 3))


@pytest.mark.parametrize('seed', range(5))
def test_distances_within_reach_do_not_depend_on_it(seed: int) -> None:
    """Bit by bit; the others are above it."""
    outline = np.random.default_rng(seed).uniform(-10, 70, (9, 2)).astype(np.float32)
    whole, near = (edge_distances(outline, 0, 0, 64, 48, reach) for reach in (1000, 3.5))
    assert (near[whole <= 3.5] == whole[whole <= 3.5]).all() and (near[whole > 3.5] > 3.5).all()


def test_a_text_beyond_the_image_is_clipped() -> None:
    maps = TargetOptions().maps(one(rectangle(-50, -20, 30, 30)), 64, 64)
    assert maps.shrink_map.any() and maps.shrink_map[30:].sum() == 0
    assert maps.threshold_map.min() >= np.float32(0.3) and maps.threshold_map.max() <= np.float32(0.7) + 1e-6


def test_an_image_without_texts_is_all_background() -> None:
    maps = TargetOptions().maps(Texts(), 32, 64)
    assert not maps.shrink_map.any() and maps.shrink_mask.all() and not maps.threshold_mask.any()
