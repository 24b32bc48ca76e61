"""Colour augmentation shared by families. Images are [H, W, 3] uint8 RGB, or [H, W, C] uint8 or uint16 of other bands."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.config.options import check_probability
from phalanx.data.samples import Image, Rng


@dataclass(frozen=True, kw_only=True)
class ColourDistortion:
    """Changes brightness, contrast, saturation and hue, each with its probability, in random order.

    The first three are multiplied by a factor between 1 - range and 1 + range; the hue, 256 for the whole circle, is turned by
    up to `hue` in either direction. The first three are Pillow's operations, which the originals use, to one level of 255;
    `rotate_hue` states the precision of the fourth. Images of other bands (`data.bands`) have no saturation and hue; their
    contrast is that of each band.
    """

    sizing: ClassVar[str] = 'kept'  # see `families.sizing`

    brightness: float = 0.5
    contrast: float = 0.5
    saturation: float = 0.5
    hue: float = 18.0
    brightness_probability: float = 0.5
    contrast_probability: float = 0.5
    saturation_probability: float = 0.5
    hue_probability: float = 0.5

    def __post_init__(self) -> None:
        for name in ('brightness', 'contrast', 'saturation', 'hue'):
            if getattr(self, name) < 0:
                raise ValueError(f'{name} cannot be negative, got {getattr(self, name)}')
            check_probability(f'{name}_probability', getattr(self, f'{name}_probability'))

    @property
    def only_rgb(self) -> str:
        is_rgb = self.saturation_probability or self.hue_probability
        return 'has no saturation and hue of other bands; set saturation_probability: 0, hue_probability: 0' if is_rgb else ''

    def distort(self, image: Image, rng: Rng) -> Image:
        changes: list[tuple[Callable[[Image, float], Image], float, float, float]] = [
            (scale_brightness, 1, self.brightness, self.brightness_probability),
            (scale_contrast, 1, self.contrast, self.contrast_probability),
            (scale_saturation, 1, self.saturation, self.saturation_probability),
            (rotate_hue, 0, self.hue, self.hue_probability),
        ]
        for number in rng.permutation(len(changes)):
            change, middle, width, probability = changes[number]
            if rng.random() < probability:
                image = change(image, rng.uniform(middle - width, middle + width))
        return image


def scale_brightness(image: Image, factor: float) -> Image:
    """Multiply each value by `factor`."""
    return (
        _per_value(image, factor * _VALUES) if image.dtype == np.uint8 else _cut_off(factor * image.astype(np.float32), image)
    )


def scale_contrast(image: Image, factor: float) -> Image:
    """Multiply the distance of each value from the mean grey, or that of its band, by `factor`."""
    if image.dtype != np.uint8 or image.shape[2] != 3:
        means = image.mean((0, 1), dtype=np.float32)
        return _cut_off(means + factor * (image.astype(np.float32) - means), image)
    # Rounded to an integer, as in Pillow.
    grey = int(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).mean() + 0.5)
    return _per_value(image, grey + factor * (_VALUES - grey))


def scale_saturation(image: Image, factor: float) -> Image:
    """Multiply the distance of each pixel from its own grey by `factor`."""
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    down = -0.499  # Pillow cuts off decimals where OpenCV rounds
    return cv2.addWeighted(image, factor, grey, 1 - factor, down).astype(np.uint8, copy=False)


def rotate_hue(image: Image, turn: float) -> Image:
    """Rotate the hue of each pixel by `turn`; 256 is the whole circle.

    Pillow, which the originals use, needs eight times as long and rounds hue and saturation to bytes in between, which moves
    colours by up to 9 levels of 255, half a one on average. (OpenCV's own bytes have 180 hues and move them by up to 13.)
    """
    # In float32: bytes would round hue and saturation.
    hsv = np.asarray(cv2.cvtColor(image.astype(np.float32), cv2.COLOR_RGB2HSV), np.float32)  # hue in degrees
    hsv[..., 0] += turn % 256 * 360 / 256  # OpenCV accepts angles above 360
    return np.asarray(cv2.convertScaleAbs(cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)), np.uint8)


def _cut_off(values: npt.NDArray[np.float32], image: Image) -> Image:
    """Return `values` in the type of `image`, cut off at its limits."""
    return values.clip(0, np.iinfo(image.dtype).max).astype(image.dtype)


_VALUES = np.arange(256, dtype=np.float32)


def _per_value(image: Image, becomes: npt.NDArray[np.float32]) -> Image:
    """Replace each value v of `image` by `becomes[v]`, truncated as in Pillow."""
    return cv2.LUT(image, np.clip(becomes, 0, 255).astype(np.uint8)).reshape(image.shape).astype(np.uint8, copy=False)
