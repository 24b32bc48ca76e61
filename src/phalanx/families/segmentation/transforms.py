"""Transforms of an image and its label map; sizes and arithmetic as in PaddleSeg.

Each is built from keyword options and called with an image [H, W, C] uint8 or uint16 (RGB uint8 without `data.bands`), its
label map [H, W] and the random generator of its sample. Normalisation is not among them: the Task normalises on the device, so
that images are transferred as stored.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import cv2
import numpy as np

from phalanx.config.options import check_size
from phalanx.data.colour import ColourDistortion
from phalanx.data.image import LabelMap, flip_horizontally
from phalanx.data.samples import Image, Rng
from phalanx.families.segmentation.labels import VOID
from phalanx.families.sizing import MAX_WARP_SIDE, RandomTransform, Sizing
from phalanx.runtime.prepare import MOST_PIXELS, as_bands, check_image_size, grey, limit_factor, rounded_size, scaled_size
from phalanx.runtime.segmentation import PADDING

Pair = tuple[Image, LabelMap]
Transform = Callable[[Image, LabelMap, Rng], Pair]


def resize(image: Image, labels: LabelMap, height: int, width: int) -> Pair:
    """Resize both, the image bilinearly, the labels by nearest neighbour. Raises TooLargeError."""
    if (height, width) == labels.shape:
        return image, labels
    check_image_size(height, width)
    image = as_bands(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), image)
    return image, cv2.resize(labels, (width, height), interpolation=cv2.INTER_NEAREST).astype(np.uint8, copy=False)


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Resize to `target_size` (height, width)."""

    sizing: ClassVar[Sizing] = 'one'

    target_size: tuple[int, int]

    def __post_init__(self) -> None:
        check_size('target_size', self.target_size)

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        return resize(image, labels, *self.target_size)


@dataclass(frozen=True, kw_only=True)
class Rescale:
    """Multiply width and height by `factor`."""

    factor: float

    def __post_init__(self) -> None:
        if not self.factor > 0:
            raise ValueError(f'factor must be above 0, got {self.factor}')

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        return resize(image, labels, *scaled_size(labels.shape, self.factor))


@dataclass(frozen=True, kw_only=True)
class ResizeByLong:
    """Resize so that the longer side has `side` pixels, keeping the aspect ratio."""

    side: int

    def __post_init__(self) -> None:
        if self.side < 1:
            raise ValueError(f'side must be at least 1, got {self.side}')

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        return resize(image, labels, *rounded_size(labels.shape, self.side / max(labels.shape)))


@dataclass(frozen=True, kw_only=True)
class ResizeStepScaling:
    """Multiply width and height by one of the factors `min`, `min + step`, ..., `max`; step 0: any factor between min and max.

    The factor is reduced where the result would have more than MOST_PIXELS.
    """

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
        return resize(image, labels, *rounded_size(labels.shape, limit_factor(labels.shape, factor)))


def pad(image: Image, labels: LabelMap, height: int, width: int) -> Pair:
    """Pad both on the right and at the bottom to at least this size, the image with grey, the labels with void."""
    # At the end only, so that a crop from the upper left undoes it.
    bottom, right = max(0, height - labels.shape[0]), max(0, width - labels.shape[1])
    if bottom or right:
        image = np.pad(image, ((0, bottom), (0, right), (0, 0)), constant_values=grey(PADDING, image))
        labels = np.pad(labels, ((0, bottom), (0, right)), constant_values=VOID)
    return image, labels


@dataclass(frozen=True, kw_only=True)
class Padding:
    """Pad to `target_size` (height, width) at the bottom and on the right; a longer side stays as it is."""

    target_size: tuple[int, int]

    def __post_init__(self) -> None:
        check_size('target_size', self.target_size)

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        return pad(image, labels, *self.target_size)


def adds_padding(transform: Transform) -> bool:
    """True if `transform` pads at the bottom and on the right, so that a crop undoes it."""
    return isinstance(transform, Padding)


@dataclass(frozen=True, kw_only=True)
class RandomPaddingCrop:
    """Crop a random part of `crop_size` (height, width); a smaller image is padded at the bottom and on the right."""

    sizing: ClassVar[Sizing] = 'one'

    crop_size: tuple[int, int]

    def __post_init__(self) -> None:
        check_size('crop_size', self.crop_size)

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        H, W = self.crop_size
        y = int(rng.integers(0, max(0, labels.shape[0] - H), endpoint=True))
        x = int(rng.integers(0, max(0, labels.shape[1] - W), endpoint=True))
        return pad(image[y : y + H, x : x + W], labels[y : y + H, x : x + W], H, W)


@dataclass(frozen=True, kw_only=True)
class RandomFlip(RandomTransform):
    """Flip left and right."""

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        if self.happens(rng):
            return flip_horizontally(image), flip_horizontally(labels)
        return image, labels


@dataclass(frozen=True, kw_only=True)
class RandomVerticalFlip(RandomTransform):
    """Flip top and bottom."""

    probability: float = 0.1

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        if self.happens(rng):
            return image[::-1], labels[::-1]
        return image, labels


@dataclass(frozen=True, kw_only=True)
class RandomRotation:
    """Rotate both about their centre by up to `max_degrees` either way.

    The result is enlarged to hold the whole rotated image; its corners are grey, and void in the labels. An image stays
    unchanged if the result would have more than MOST_PIXELS, or a side above MAX_WARP_SIDE.
    """

    max_degrees: float = 15.0

    def __post_init__(self) -> None:
        if not 0 <= self.max_degrees <= 180:
            raise ValueError(f'max_degrees must lie between 0 and 180, got {self.max_degrees}')

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        H, W = labels.shape
        turn = cv2.getRotationMatrix2D((W // 2, H // 2), rng.uniform(-self.max_degrees, self.max_degrees), 1.0)  # [2, 3]
        cos, sin = abs(turn[0, 0]), abs(turn[0, 1])
        # Bounding box of the rotated image.
        size = width, height = int(H * sin + W * cos), int(H * cos + W * sin)
        if max(H, W, height, width) > MAX_WARP_SIDE or height * width > MOST_PIXELS:
            return image, labels
        # Shift the rotation centre to the centre of the enlarged canvas.
        turn[:, 2] += width / 2 - W // 2, height / 2 - H // 2
        corners = (grey(PADDING, image),) * 4  # OpenCV repeats them for further bands
        image = as_bands(cv2.warpAffine(image, turn, size, flags=cv2.INTER_LINEAR, borderValue=corners), image)
        labels = cv2.warpAffine(labels, turn, size, flags=cv2.INTER_NEAREST, borderValue=(VOID,)).astype(np.uint8, copy=False)
        return image, labels


@dataclass(frozen=True, kw_only=True)
class RandomBlur(RandomTransform):
    """Blur the image over 3, 5, 7 or 9 pixels; labels stay unchanged.

    `kind`: a Gaussian, median or mean filter; `random` picks one of these with probability 30, 30 and 40 %.
    """

    probability: float = 0.1
    kind: Literal['gaussian', 'median', 'blur', 'random'] = 'gaussian'

    @property
    def only_rgb(self) -> str:
        return 'has no median of other bands; set kind: gaussian, or blur' if self.kind in ('median', 'random') else ''

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        if not self.happens(rng):
            return image, labels
        side = int(rng.choice([3, 5, 5, 7, 7, 9, 9]))  # with the frequencies of PaddleSeg
        kind = rng.choice(['gaussian', 'median', 'blur'], p=[0.3, 0.3, 0.4]) if self.kind == 'random' else self.kind
        if kind == 'gaussian':
            blurred = cv2.GaussianBlur(image, (side, side), 0)
        elif kind == 'median':
            blurred = cv2.medianBlur(image, side)
        else:
            blurred = cv2.blur(image, (side, side))
        return as_bands(blurred, image), labels


@dataclass(frozen=True, kw_only=True)
class RandomDistort(ColourDistortion):
    """Distort the colours of the image; labels stay unchanged."""

    def __call__(self, image: Image, labels: LabelMap, rng: Rng) -> Pair:
        return self.distort(image, rng), labels


TRANSFORMS = {
    'resize': Resize,
    'rescale': Rescale,
    'resize_by_long': ResizeByLong,
    'resize_step_scaling': ResizeStepScaling,
    'padding': Padding,
    'random_padding_crop': RandomPaddingCrop,
    'random_flip': RandomFlip,
    'random_vertical_flip': RandomVerticalFlip,
    'random_rotation': RandomRotation,
    'random_blur': RandomBlur,
    'random_distort': RandomDistort,
}
