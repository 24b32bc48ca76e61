"""Changes of colour against Pillow, whose operations the originals use."""

from collections.abc import Callable

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from phalanx.colour import ColourDistortion, with_brightness, with_contrast, with_hue_turned, with_saturation

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


@pytest.mark.parametrize('factor', [0.0, 0.5, 0.9, 1.0, 1.3, 1.5])
@pytest.mark.parametrize(
    ('change', 'pillow'),
    [
        (with_brightness, ImageEnhance.Brightness),
        (with_contrast, ImageEnhance.Contrast),
        (with_saturation, ImageEnhance.Color),
    ],
)
def test_a_change_is_that_of_pillow(change: Callable[..., np.ndarray], pillow: type, factor: float) -> None:
    """To one level: OpenCV and Pillow round greys differently."""
    expected = np.array(pillow(Image.fromarray(PICTURE)).enhance(factor))
    assert np.abs(change(PICTURE, factor).astype(int) - expected).max() <= 1


def test_turning_the_hue_by_the_whole_circle_is_turning_it_by_nothing() -> None:
    np.testing.assert_array_equal(with_hue_turned(PICTURE, 256), with_hue_turned(PICTURE, 0))
    np.testing.assert_array_equal(with_hue_turned(PICTURE, -18), with_hue_turned(PICTURE, 238))


def test_each_change_comes_with_its_probability() -> None:
    never = {f'{name}_probability': 0 for name in ('brightness', 'contrast', 'saturation', 'hue')}
    kept = ColourDistortion(**never)
    assert kept.distorted(PICTURE, np.random.default_rng(0)) is PICTURE
    half = ColourDistortion(**{**never, 'brightness_probability': 0.5})
    changed = sum(half.distorted(PICTURE, np.random.default_rng(seed)) is not PICTURE for seed in range(200))
    assert 75 < changed < 125
