"""Post-processing: rectangles drawn on a map are detected where they were drawn."""

from __future__ import annotations

import math
from typing import Any

import cv2
import numpy as np
import pytest

from phalanx.families.text_detection.metric.hmean import iou
from phalanx.families.text_detection.targets import shrink_outline
from phalanx.runtime.prepare import limited_size
from phalanx.runtime.text_detection import text_regions, unclip

OPTIONS: dict[str, Any] = {
    'threshold': 0.3,
    'box_threshold': 0.6,
    'max_candidates': 1000,
    'unclip_ratio': 1.5,
    'shape': 'quad',
    'scoring': 'fast',
    'dilate': False,
}


def draw_polygon(points: np.ndarray, value: float = 0.9, size: int = 256) -> np.ndarray:
    canvas = np.zeros((size, size), np.float32)
    cv2.fillPoly(canvas, [points.round().astype(np.int32)], value)
    return canvas


def rotated_rectangle(width: float, height: float, degrees: float) -> np.ndarray:
    """Rotated rectangle around (128, 128), clockwise from its original upper left corner."""
    a = math.radians(degrees)
    corners = np.array([[-width, -height], [width, -height], [width, height], [-width, height]], np.float32) / 2
    return (corners @ np.array([[math.cos(a), math.sin(a)], [-math.sin(a), math.cos(a)]]) + 128).astype(np.float32)


def test_a_rectangle_is_unclipped_by_area_times_ratio_over_length() -> None:
    """80 x 20 pixels from (40, 100): 1600 * 1.5 / 200 = 12 to each side."""
    corners = np.array([[40, 100], [120, 100], [120, 120], [40, 120]], np.float32)
    (region,) = text_regions(draw_polygon(corners), (256, 256), **OPTIONS)
    assert region.points == ((28, 88), (132, 88), (132, 132), (28, 132))
    assert region.score == pytest.approx(0.9)


def test_outlines_are_in_pixels_of_the_image_for_any_size_of_the_map() -> None:
    corners = np.array([[40, 100], [120, 100], [120, 120], [40, 120]], np.float32)
    (region,) = text_regions(draw_polygon(corners), (512, 128), **OPTIONS)
    assert region.points == ((56, 44), (264, 44), (264, 66), (56, 66))


@pytest.mark.parametrize('degrees', [0, 10, -25, 40])
@pytest.mark.parametrize('shape', ['quad', 'polygon'])
def test_unclipping_undoes_shrinking(degrees: float, shape: str) -> None:
    """160 x 40, shrunk by 0.84 * 6400 / 400 = 13.4 pixels, is 133 x 13; dilated by 1.5 * 1729 / 292 = 8.9 it is 151 x 31."""
    text = rotated_rectangle(160, 40, degrees)
    (part,) = shrink_outline(text, 0.4)
    (region,) = text_regions(draw_polygon(part), (256, 256), **OPTIONS | {'shape': shape})
    assert iou(np.array(region.points, np.float32), text) == pytest.approx(0.73, abs=0.1)


def test_faint_and_tiny_regions_are_no_texts() -> None:
    corners = np.array([[40, 100], [120, 100], [120, 120], [40, 120]], np.float32)
    assert text_regions(draw_polygon(corners, 0.5), (256, 256), **OPTIONS) == []
    assert len(text_regions(draw_polygon(corners, 0.5), (256, 256), **OPTIONS | {'box_threshold': 0.4})) == 1
    assert text_regions(draw_polygon(corners, 0.2), (256, 256), **OPTIONS | {'box_threshold': 0.0}) == []
    assert text_regions(draw_polygon(np.array([[40, 100], [42, 100], [42, 102], [40, 102]])), (256, 256), **OPTIONS) == []


def test_max_candidates_limits_the_regions() -> None:
    canvas = np.zeros((256, 256), np.float32)
    for row in range(6):
        canvas[40 * row + 10 : 40 * row + 22, 30:200] = 0.9
    assert len(text_regions(canvas, (256, 256), **OPTIONS)) == 6
    assert len(text_regions(canvas, (256, 256), **OPTIONS | {'max_candidates': 4})) == 4


def test_dilation_joins_regions_one_pixel_apart() -> None:
    canvas = np.zeros((64, 128), np.float32)
    canvas[20:40, 10:60] = canvas[20:40, 61:110] = 0.9
    assert len(text_regions(canvas, (128, 64), **OPTIONS)) == 2
    assert len(text_regions(canvas, (128, 64), **OPTIONS | {'dilate': True})) == 1


def test_a_point_cannot_be_unclipped() -> None:
    assert all(len(part) == 0 or np.ptp(part, axis=0).max() <= 1 for part in unclip(np.full((4, 2), 5.0), 1.5))


@pytest.mark.parametrize(
    ('shape', 'side', 'limit', 'expected'),
    [
        ((720, 1280), 736, 'min', (736, 1312)),  # 1280 * 736 / 720 = 1308.4, and 32 * 41 = 1312
        ((1000, 2000), 736, 'min', (992, 1984)),  # 62.5 and 31.25 times 32; halves are rounded to even
        ((1000, 2000), 960, 'max', (480, 960)),
        ((300, 400), 960, 'max', (288, 384)),
        ((5, 8), 32, 'max', (32, 32)),
    ],
)
def test_sides_are_limited_and_rounded_to_multiples_of_32(shape: Any, side: int, limit: Any, expected: Any) -> None:
    assert limited_size(shape, side, limit) == expected
