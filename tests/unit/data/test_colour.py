"""Changes of colour against Pillow, whose operations the originals use, and Python's colorsys."""

import colorsys
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from PIL import Image, ImageEnhance

from phalanx.data.colour import ColourDistortion, rotate_hue, scale_brightness, scale_contrast, scale_saturation

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
SMOOTH = cv2.GaussianBlur(PICTURE, (0, 0), 4)


@pytest.mark.parametrize('image', [PICTURE, SMOOTH, np.zeros_like(PICTURE), np.full_like(PICTURE, 255)])
@pytest.mark.parametrize('factor', [0.0, 0.5, 0.77, 1.0, 1.31, 1.5])
@pytest.mark.parametrize(
    ('change', 'pillow'),
    [
        (scale_brightness, ImageEnhance.Brightness),
        (scale_contrast, ImageEnhance.Contrast),
        (scale_saturation, ImageEnhance.Color),
    ],
)
def test_a_change_is_that_of_pillow(image: np.ndarray, factor: float, change: Callable[..., np.ndarray], pillow: type) -> None:
    """Within one level: the grey that OpenCV and Pillow compute differs by one in a few pixels."""
    expected = np.array(pillow(Image.fromarray(image)).enhance(factor)).astype(int)
    difference = np.abs(change(image, factor).astype(int) - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() < 0.01


@pytest.mark.parametrize('turn', [-18.0, -0.5, 0.0, 7.9, 200.0])
def test_a_hue_wraps_around(turn: float) -> None:
    expected = np.zeros(SMOOTH.shape)
    for place in np.ndindex(SMOOTH.shape[:2]):
        hue, saturation, value = colorsys.rgb_to_hsv(*(SMOOTH[place] / 255))
        expected[place] = colorsys.hsv_to_rgb((hue + turn / 256) % 1, saturation, value)
    np.testing.assert_allclose(rotate_hue(SMOOTH, turn), 255 * expected, rtol=0, atol=0.51)


@pytest.mark.parametrize('turn', [-18, 7, 200])
def test_a_hue_that_was_turned_is_that_of_pillow_but_for_the_bytes_in_between(turn: int) -> None:
    hsv = np.array(Image.fromarray(PICTURE).convert('HSV'))
    hsv[..., 0] += np.uint8(turn % 256)
    expected = np.array(Image.fromarray(hsv, 'HSV').convert('RGB')).astype(int)
    difference = np.abs(rotate_hue(PICTURE, turn).astype(int) - expected)
    assert difference.max() <= 9
    assert difference.mean() < 1


def test_turning_the_hue_by_the_whole_circle_is_turning_it_by_nothing() -> None:
    np.testing.assert_array_equal(rotate_hue(PICTURE, 256), PICTURE)
    np.testing.assert_array_equal(rotate_hue(PICTURE, -18), rotate_hue(PICTURE, 238))


def test_each_change_has_its_probability() -> None:
    never = {f'{name}_probability': 0 for name in ('brightness', 'contrast', 'saturation', 'hue')}
    kept = ColourDistortion(**never)
    assert kept.distort(PICTURE, np.random.default_rng(0)) is PICTURE
    half = ColourDistortion(**{**never, 'brightness_probability': 0.5})
    changed = sum(half.distort(PICTURE, np.random.default_rng(seed)) is not PICTURE for seed in range(200))
    assert 75 < changed < 125
