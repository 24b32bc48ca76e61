"""Augmentations of an image together with the outlines of its texts; sizes and arithmetic are those of PaddleOCR's.

Each is built from keyword options and called with an image [H, W, 3] uint8, its texts and the context of its sample.
Normalisation is none of them: the Task does it where the network runs, so that images travel as bytes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.config.options import check_probability, check_size
from phalanx.data.colour import ColourDistortion
from phalanx.data.image import left_right
from phalanx.data.samples import Image, Rng
from phalanx.families.sizing import MAX_WARP_SIDE, RandomTransform, Sizing
from phalanx.families.text_detection.data.source import Points, Texts
from phalanx.runtime.prepare import MAX_SIDE, affordable, limited_size, resized, rounded_size
from phalanx.runtime.reading import cut_out

Shown = tuple[Image, Texts]  # an image and what is written on it


@dataclass(frozen=True)
class TransformContext:
    """What a transform may draw from."""

    rng: Rng  # belongs to the sample
    another: Callable[[], Shown]  # some other sample of the data set, as it was read


Transform = Callable[[Image, Texts, TransformContext], Shown]
MULTIPLE = 32  # of the sides that networks take
MOST_PASTED = 30  # texts that are put on a page


def check_network_size(name: str, size: tuple[int, int]) -> None:
    check_size(name, size)
    if any(side % MULTIPLE for side in size):
        raise ValueError(f'{name} must be multiples of {MULTIPLE}, which networks need; got {size[0]}, {size[1]}')


def scaled(image: Image, texts: Texts, height: int, width: int) -> Shown:
    """Both at another size."""
    factors = np.array([width / image.shape[1], height / image.shape[0]], np.float32)
    return resized(image, height, width), texts.moved([points * factors for points in texts.outlines])


@dataclass(frozen=True, kw_only=True)
class RandomDistort(ColourDistortion):
    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> Shown:
        return self.distorted(image, context.rng), texts


@dataclass(frozen=True, kw_only=True)
class CopyPaste:
    """Puts texts of another page on the image, turned by any angle: `ratio` of the texts there, one at least.

    `apart`: where no text is, as far as 50 trials find such a place; else they may lie over others. To come first: the other
    page is taken as it was read.
    """

    sizing: ClassVar[Sizing] = 'kept'

    ratio: float = 0.2
    apart: bool = True

    def __post_init__(self) -> None:
        check_probability('ratio', self.ratio)

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> Shown:
        (page, others), rng = context.another(), context.rng
        readable = [place for place, ignored in enumerate(others.ignored) if not ignored]
        picked = rng.permutation(readable).astype(int)[: max(1, min(int(self.ratio * len(others)), MOST_PASTED))].tolist()
        image = image.copy()
        for place in picked:
            laid = self._laid(image, page, others.outlines[place], texts, rng)
            if laid is not None:
                texts = texts.with_one(laid, others.strings[place])
        return image, texts

    def _laid(self, image: Image, page: Image, points: Points, texts: Texts, rng: Rng) -> Points | None:
        """Draws a text of `page` on `image`, and gives its corners there; None when there is no room for it."""
        H, W = image.shape[:2]
        inside = points.clip(0, np.array([page.shape[1], page.shape[0]], np.float32))
        cut = cut_out(page, tuple((float(x), float(y)) for x, y in inside))
        h, w = cut.shape[:2]
        turn = cv2.getRotationMatrix2D((0, 0), float(rng.integers(360)), 1)  # [2, 3]
        corners = np.array([[0, 0], [w, 0], [w, h], [0, h]]) @ turn[:, :2].T
        turn[:, 2] = -corners.min(0)
        width, height = np.ceil(np.ptp(corners, axis=0)).astype(int).tolist()
        if width > W or height > H:
            return None
        for _ in range(50 if self.apart else 1):
            x, y = int(rng.integers(W - width, endpoint=True)), int(rng.integers(H - height, endpoint=True))
            if not self.apart or not any(shows(other, x, y, x + width, y + height) for other in texts.outlines):
                part, ones = image[y : y + height, x : x + width], np.ones((h, w), np.uint8)
                turned = cv2.warpAffine(cut, turn, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
                is_text = cv2.warpAffine(ones, turn, (width, height), flags=cv2.INTER_NEAREST) > 0
                part[is_text] = turned[is_text]
                return np.asarray(corners + turn[:, 2] + np.array([x, y]), np.float32)
        return None


@dataclass(frozen=True, kw_only=True)
class RandomFlip(RandomTransform):
    """Mirrors left and right."""

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> Shown:
        if not self.happens(context.rng):
            return image, texts
        sign, shift = np.array([-1, 1], np.float32), np.array([image.shape[1], 0], np.float32)
        return left_right(image), texts.moved([points * sign + shift for points in texts.outlines])


@dataclass(frozen=True, kw_only=True)
class RandomRotate:
    """Turns the image about its middle by an angle between those of `degrees`; what comes in at its edges is black.

    An image with a side above MAX_WARP_SIDE stays.
    """

    sizing: ClassVar[Sizing] = 'kept'

    degrees: tuple[float, float] = (-10.0, 10.0)

    def __post_init__(self) -> None:
        if not -180 <= self.degrees[0] <= self.degrees[1] <= 180:
            raise ValueError(f'degrees must rise within -180 and 180, got {self.degrees[0]}, {self.degrees[1]}')

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> Shown:
        H, W = image.shape[:2]
        affine = cv2.getRotationMatrix2D(((W - 1) / 2, (H - 1) / 2), context.rng.uniform(*self.degrees), 1)  # [2, 3]
        if max(H, W) > MAX_WARP_SIDE:
            return image, texts
        turned = cv2.warpAffine(image, affine, (W, H), flags=cv2.INTER_LINEAR).astype(np.uint8, copy=False)
        outlines = [(points @ affine[:, :2].T + affine[:, 2]).astype(np.float32) for points in texts.outlines]
        return turned, texts.moved(outlines)


@dataclass(frozen=True, kw_only=True)
class RandomResize:
    """Makes both sides a factor larger, drawn between those of `scale`; less where that gave more than MOST_PIXELS."""

    scale: tuple[float, float] = (0.5, 3.0)

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f'scale must rise from above 0, got {self.scale[0]}, {self.scale[1]}')

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> Shown:
        size = image.shape[:2]
        return scaled(image, texts, *rounded_size(size, affordable(size, context.rng.uniform(*self.scale))))


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """Cuts out a random part whose edges cross no text, and fits it into `crop_size` (height, width), filled up with black.

    Two free columns and two free rows are the edges, drawn from different gaps between texts where there are several. The part
    shows some text, and its sides are at least `least_share` of those of the image; after `attempts` in vain it is all of it.
    After Zhou et al., EAST, https://arxiv.org/abs/1704.03155.
    """

    sizing: ClassVar[Sizing] = 'one'

    crop_size: tuple[int, int] = (640, 640)
    attempts: int = 50
    least_share: float = 0.1

    def __post_init__(self) -> None:
        check_network_size('crop_size', self.crop_size)
        check_probability('least_share', self.least_share)

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> Shown:
        x0, y0, x1, y1 = self._part(image, texts, context.rng)
        H, W = self.crop_size
        factor = min(W / (x1 - x0), H / (y1 - y0))
        width, height = max(1, int((x1 - x0) * factor)), max(1, int((y1 - y0) * factor))
        canvas = np.zeros((H, W, 3), np.uint8)
        canvas[:height, :width] = resized(image[y0:y1, x0:x1], height, width)
        corner = np.array([x0, y0], np.float32)
        moved = texts.moved([(points - corner) * np.float32(factor) for points in texts.outlines])
        return canvas, moved.at([place for place, points in enumerate(moved.outlines) if shows(points, 0, 0, width, height)])

    def _part(self, image: Image, texts: Texts, rng: Rng) -> tuple[int, int, int, int]:
        """What is cut out: x0, y0, x1, y1."""
        H, W = image.shape[:2]
        readable = [points for points, ignored in zip(texts.outlines, texts.ignored, strict=True) if not ignored]
        columns, rows = gaps(readable, 0, W), gaps(readable, 1, H)
        for _ in range(self.attempts if columns and rows else 0):
            (x0, x1), (y0, y1) = two_of(columns, rng), two_of(rows, rng)
            is_large = x1 - x0 >= max(1, self.least_share * W) and y1 - y0 >= max(1, self.least_share * H)
            if is_large and any(shows(points, x0, y0, x1, y1) for points in readable):
                return x0, y0, x1, y1
        return 0, 0, W, H


def gaps(outlines: list[npt.NDArray[np.float32]], axis: int, length: int) -> list[npt.NDArray[np.int64]]:
    """The runs of columns (axis 0) or rows (1) that no text is in."""
    is_free = np.ones(length, np.bool_)
    for points in outlines:
        low, high = points[:, axis].min().round(), points[:, axis].max().round()
        is_free[max(0, int(low)) : max(0, int(high))] = False
    free = np.flatnonzero(is_free)
    return [run for run in np.split(free, np.flatnonzero(np.diff(free) > 1) + 1) if len(run)]


def two_of(runs: list[npt.NDArray[np.int64]], rng: Rng) -> tuple[int, int]:
    """Two places of runs, each drawn first; the smaller comes first."""
    first, second = sorted(int(rng.choice(runs[rng.integers(len(runs))])) for _ in range(2))
    return first, second


def shows(points: npt.NDArray[np.float32], x0: float, y0: float, x1: float, y1: float) -> bool:
    """Whether the bounding box of an outline touches a part of the image."""
    (left, top), (right, bottom) = points.min(0), points.max(0)
    return bool(right >= x0 and left <= x1 and bottom >= y0 and top <= y1)


@dataclass(frozen=True, kw_only=True)
class Resize:
    """Makes the size `target_size` (height, width), whatever that does to the shape."""

    sizing: ClassVar[Sizing] = 'one'

    target_size: tuple[int, int] = (736, 1280)

    def __post_init__(self) -> None:
        check_network_size('target_size', self.target_size)

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> Shown:
        return scaled(image, texts, *self.target_size)


@dataclass(frozen=True, kw_only=True)
class LimitSide:
    """Enlarges images whose shorter side is below `side` (`min`), or reduces those whose longer one is above it (`max`).

    The longer side of the result is at most `max_side` (PaddleOCR's max_side_limit). Sides are rounded to multiples of 32.
    """

    side: int = 736
    limit: Literal['min', 'max'] = 'min'
    max_side: int = MAX_SIDE

    def __post_init__(self) -> None:
        if self.side < MULTIPLE:
            raise ValueError(f'side must be at least {MULTIPLE}, got {self.side}')
        if self.max_side < self.side:
            raise ValueError(f'max_side must be at least side, {self.side}; got {self.max_side}')

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> Shown:
        return scaled(image, texts, *limited_size(image.shape[:2], self.side, self.limit, self.max_side))


TRANSFORMS = {
    'copy_paste': CopyPaste,
    'random_distort': RandomDistort,
    'random_flip': RandomFlip,
    'random_rotate': RandomRotate,
    'random_resize': RandomResize,
    'random_crop': RandomCrop,
    'resize': Resize,
    'limit_side': LimitSide,
}
