"""Augmentations of an image together with its label map; sizes and arithmetic are those of PaddleSeg's transforms.

Each is built from keyword options and called with an image [H, W, 3] uint8, its label map [H, W] and the random numbers of
its sample. Normalisation is none of them: the Task does it where the network runs, so that images travel as bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image

from phalanx.image import LabelMap
from phalanx.segmentation.labels import VOID
from phalanx.task import Image

Rng = np.random.Generator
Pair = tuple[Image, LabelMap]
Transform = Callable[[Image, LabelMap, Rng], Pair]

PADDING = 127  # the middle of the range, so about 0 after normalisation


def resized(image: Image, labels: LabelMap, width: int, height: int) -> Pair:
    """Both at another size: colours mixed in between, labels taken from the nearest pixel."""
    if (height, width) == labels.shape:
        return image, labels
    image = cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR).astype(np.uint8, copy=False)
    return image, cv2.resize(labels, (width, height), interpolation=cv2.INTER_NEAREST).astype(np.uint8, copy=False)


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Makes the size `size` (width, height)."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        _check_size(self.size)

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        return resized(image, labels, *self.size)


@dataclass(frozen=True, kw_only=True)
class Rescale:
    """Multiplies width and height by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f'factor must be above 0, got {self.factor}')

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        H, W = labels.shape
        return resized(image, labels, max(1, int(W * self.factor + 0.5)), max(1, int(H * self.factor + 0.5)))


@dataclass(frozen=True, kw_only=True)
class ResizeStepScaling:
    """Multiplies width and height by one of the factors `min`, `min + step`, ..., `max`; step 0: by any between min and max."""

    min: float = 0.75
    max: float = 1.25
    step: float = 0.25

    def __post_init__(self) -> None:
        if not 0 < self.min <= self.max:
            raise ValueError(f'min must be above 0 and not above max, got min {self.min} and max {self.max}')
        if self.step < 0:
            raise ValueError(f'step cannot be negative, got {self.step}')

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        factor = rng.uniform(self.min, self.max)
        if self.step:
            factor = float(rng.choice(np.linspace(self.min, self.max, int((self.max - self.min) / self.step + 1))))
        H, W = labels.shape
        return resized(image, labels, max(1, round(W * factor)), max(1, round(H * factor)))


@dataclass(frozen=True, kw_only=True)
class RandomPaddingCrop:
    """Cuts out a random part of `size` (width, height); what is smaller is first filled up on the right and at the bottom."""

    size: tuple[int, int]

    def __post_init__(self) -> None:
        _check_size(self.size)

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        W, H = self.size
        bottom, right = max(0, H - labels.shape[0]), max(0, W - labels.shape[1])
        y = int(rng.integers(0, max(0, labels.shape[0] - H), endpoint=True))
        x = int(rng.integers(0, max(0, labels.shape[1] - W), endpoint=True))
        image, labels = image[y : y + H, x : x + W], labels[y : y + H, x : x + W]
        if bottom or right:
            image = np.pad(image, ((0, bottom), (0, right), (0, 0)), constant_values=PADDING)
            labels = np.pad(labels, ((0, bottom), (0, right)), constant_values=VOID)
        return image, labels


@dataclass(frozen=True, kw_only=True)
class RandomFlip:
    """Mirrors left and right."""

    probability: float = 0.5

    def __post_init__(self) -> None:
        _check_probability('probability', self.probability)

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        if rng.random() < self.probability:
            return image[:, ::-1], labels[:, ::-1]
        return image, labels


@dataclass(frozen=True, kw_only=True)
class RandomDistort:
    """Changes brightness, contrast, saturation and hue, each with its probability, in random order.

    The first three are multiplied by a factor between 1 - range and 1 + range; the hue, 256 for the whole circle, is turned by
    up to `hue` in either direction. Equal to Pillow's operations, which the originals use; the first three to one level of 255.
    """

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
            _check_probability(f'{name}_probability', getattr(self, f'{name}_probability'))

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        changes: list[tuple[Callable[[Image, float], Image], float, float, float]] = [
            (with_brightness, 1, self.brightness, self.brightness_probability),
            (with_contrast, 1, self.contrast, self.contrast_probability),
            (with_saturation, 1, self.saturation, self.saturation_probability),
            (with_hue_turned, 0, self.hue, self.hue_probability),
        ]
        for number in rng.permutation(len(changes)):
            change, middle, width, probability = changes[number]
            if rng.random() < probability:
                image = change(image, rng.uniform(middle - width, middle + width))
        return image, labels


def with_brightness(image: Image, factor: float) -> Image:
    """Each value times `factor`."""
    return _per_value(image, factor * _VALUES)


def with_contrast(image: Image, factor: float) -> Image:
    """The distance of each value from the mean grey times `factor`."""
    grey = int(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY).mean() + 0.5)
    return _per_value(image, grey + factor * (_VALUES - grey))


def with_saturation(image: Image, factor: float) -> Image:
    """The distance of each pixel from its own grey times `factor`."""
    grey = cv2.cvtColor(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), cv2.COLOR_GRAY2RGB)
    down = -0.499  # Pillow cuts off decimals where OpenCV rounds
    return cv2.addWeighted(image, factor, grey, 1 - factor, down).astype(np.uint8, copy=False)


def with_hue_turned(image: Image, turn: float) -> Image:
    """The hue of each pixel turned by `turn`, of which 256 are the whole circle.

    Pillow itself, for all its 35 ms a megapixel: what OpenCV makes of its own hues differs by up to 13 levels.
    """
    hsv = np.array(PIL.Image.fromarray(image).convert('HSV'))
    hsv[..., 0] += np.uint8(int(turn) % 256)  # wraps
    return np.array(PIL.Image.fromarray(hsv, 'HSV').convert('RGB'))


_VALUES = np.arange(256, dtype=np.float32)


def _per_value(image: Image, becomes: npt.NDArray[np.float32]) -> Image:
    """`image` with each value v replaced by `becomes[v]`, decimals cut off as Pillow does."""
    return cv2.LUT(image, np.clip(becomes, 0, 255).astype(np.uint8)).astype(np.uint8, copy=False)


def _check_size(size: tuple[int, int]) -> None:
    if min(size) < 1:
        raise ValueError(f'size is (width, height) in pixels, each at least 1; got {size[0]}, {size[1]}')


def _check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f'{name} must lie between 0 and 1, got {value}')


TRANSFORMS = {
    'resize': Resize,
    'rescale': Rescale,
    'resize_step_scaling': ResizeStepScaling,
    'random_padding_crop': RandomPaddingCrop,
    'random_flip': RandomFlip,
    'random_distort': RandomDistort,
}
