"""Augmentations of an image and the outlines of its texts; sizes and arithmetic as in PaddleOCR.

A transform is built from keyword options and called with an image [H, W, 3] uint8, its texts and a TransformContext.
Normalisation is not among them: the Task normalises on the device, so that images are transferred as bytes. Rotations and
resizing before a crop draw a View, of which the crop renders only its part (`join_crops`).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.config.options import check_probability, check_size
from phalanx.data.colour import ColourDistortion
from phalanx.data.image import flip_horizontally
from phalanx.data.samples import Image, Rng
from phalanx.families.sizing import MAX_WARP_SIDE, RandomTransform, Sizing
from phalanx.families.text_detection.data.source import Points, Texts
from phalanx.runtime.prepare import MAX_SIDE, limit_factor, limited_size, resize, rounded_size
from phalanx.runtime.reading import cut_out

ImageAndTexts = tuple[Image, Texts]  # an image and its texts


@dataclass(frozen=True)
class TransformContext:
    """Generator of a sample, and access to other samples of the data set."""

    rng: Rng  # of this sample
    another: Callable[[], ImageAndTexts]  # reads a random sample, not augmented


Transform = Callable[[Image, Texts, TransformContext], ImageAndTexts]
MULTIPLE = 32  # divisor of the sides of network inputs
MAX_PASTED = 30  # texts per page


def check_network_size(name: str, size: tuple[int, int]) -> None:
    """Raise ValueError for sides below 1 and for sides that are not multiples of 32."""
    check_size(name, size)
    if any(side % MULTIPLE for side in size):
        raise ValueError(f'{name} must be multiples of {MULTIPLE}, as networks need; got {size[0]}, {size[1]}')


@dataclass(frozen=True, kw_only=True)
class RandomDistort(ColourDistortion):
    """Colour distortion, which leaves texts in place."""

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> ImageAndTexts:
        return self.distort(image, context.rng), texts


@dataclass(frozen=True, kw_only=True)
class CopyPaste:
    """Paste texts of another page on the image, each rotated by a random angle: a share `ratio` of its texts, at least one.

    `apart`: paste only where no text is, giving up after 50 random positions; otherwise pasted texts may overlap others. It
    belongs first in the list, because the other page is not augmented.
    """

    sizing: ClassVar[Sizing] = 'kept'

    ratio: float = 0.2
    apart: bool = True

    def __post_init__(self) -> None:
        check_probability('ratio', self.ratio)

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> ImageAndTexts:
        (page, others), rng = context.another(), context.rng
        # Ignored texts are not pasted: they teach nothing.
        readable = [index for index, ignored in enumerate(others.ignored) if not ignored]
        picked = rng.permutation(readable).astype(int)[: max(1, min(int(self.ratio * len(others)), MAX_PASTED))].tolist()
        image = image.copy()
        for index in picked:
            corners = self._paste(image, page, others.outlines[index], texts, rng)
            if corners is not None:
                texts = texts.append(corners, others.strings[index])
        return image, texts

    def _paste(self, image: Image, page: Image, points: Points, texts: Texts, rng: Rng) -> Points | None:
        """Paste a text of `page` on `image` in place and return its corners; None if there is no room for it."""
        # Crop the text upright.
        H, W = image.shape[:2]
        inside = points.clip(0, np.array([page.shape[1], page.shape[0]], np.float32))
        cut = cut_out(page, tuple((float(x), float(y)) for x, y in inside))
        h, w = cut.shape[:2]
        # Rotate it by a random angle, and shift the result to its bounding box.
        turn = cv2.getRotationMatrix2D((0, 0), float(rng.integers(360)), 1)  # [2, 3]
        corners = np.array([[0, 0], [w, 0], [w, h], [0, h]]) @ turn[:, :2].T
        turn[:, 2] = -corners.min(0)
        width, height = np.ceil(np.ptp(corners, axis=0)).astype(int).tolist()
        if width > W or height > H:
            return None
        bounds = bounding_boxes(texts.outlines)
        # Try random positions. Only pixels of the rotated text are pasted, not those of its bounding box.
        for _ in range(50 if self.apart else 1):
            x, y = int(rng.integers(W - width, endpoint=True)), int(rng.integers(H - height, endpoint=True))
            if not self.apart or not touching(bounds, x, y, x + width, y + height).any():
                part, ones = image[y : y + height, x : x + width], np.ones((h, w), np.uint8)
                turned = cv2.warpAffine(cut, turn, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
                is_text = cv2.warpAffine(ones, turn, (width, height), flags=cv2.INTER_NEAREST) > 0
                part[is_text] = turned[is_text]
                return np.asarray(corners + turn[:, 2] + np.array([x, y]), np.float32)
        return None


@dataclass(frozen=True, kw_only=True)
class RandomFlip(RandomTransform):
    """Flip horizontally, with a probability."""

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> ImageAndTexts:
        if not self.happens(context.rng):
            return image, texts
        # x -> width - x
        sign, shift = np.array([-1, 1], np.float32), np.array([image.shape[1], 0], np.float32)
        return flip_horizontally(image), texts.with_outlines([points * sign + shift for points in texts.outlines])


@dataclass(frozen=True)
class View:
    """Pixels of `image` at other places, not rendered yet: under an affine map [2, 3], or only resized to `size` if None."""

    image: Image
    size: tuple[int, int]  # height, width
    affine: npt.NDArray[np.float64] | None = None  # from columns and rows of `image` to those of the view

    def move(self, affine: npt.NDArray[np.float64], size: tuple[int, int]) -> Self:
        """Return the view under a further map [2, 3]."""
        return replace(self, affine=affine @ np.vstack([self._map(), [0, 0, 1]]), size=size)

    def resize(self, height: int, width: int) -> Self:
        size = height, width
        return replace(self, size=size) if self.affine is None else self.move(_enlargement(self.size, size), size)

    def crop(self, x0: int, y0: int, x1: int, y1: int) -> Self:
        size = y1 - y0, x1 - x0
        # What is only cropped is not interpolated, and OpenCV cannot warp an image of any size.
        if self.affine is None and (self.size == self.image.shape[:2] or max(self.image.shape) > MAX_WARP_SIDE):
            return replace(self, image=self.render()[y0:y1, x0:x1], size=size)
        return self.move(np.array([[1.0, 0, -x0], [0, 1, -y0]]), size)

    @property
    def is_reduced(self) -> bool:
        """True if the view has fewer pixels than the part of the image that it shows."""
        return bool(np.linalg.det(self._map()[:, :2]) < 1)

    def render(self) -> Image:
        """Return the pixels, interpolated once; black where the image has none."""
        if self.affine is None:
            return resize(self.image, *self.size)
        return cv2.warpAffine(self.image, self.affine, self.size[::-1], flags=cv2.INTER_LINEAR).astype(np.uint8, copy=False)

    def _map(self) -> npt.NDArray[np.float64]:
        return _enlargement(self.image.shape[:2], self.size) if self.affine is None else self.affine


def _enlargement(size: tuple[int, ...], other: tuple[int, ...]) -> npt.NDArray[np.float64]:
    """Map [2, 3] of columns and rows from one size (height, width) to another; as in cv2.resize, 0 is the centre of a pixel."""
    y, x = np.array(other) / size
    return np.array([[x, 0, (x - 1) / 2], [0, y, (y - 1) / 2]])


def resize_view(view: View, texts: Texts, height: int, width: int) -> tuple[View, Texts]:
    """Resize a view and the outlines of its texts."""
    # Exact factors in x and y: rounding of the size changes the aspect ratio a little.
    factors = np.array([width / view.size[1], height / view.size[0]], np.float32)
    return view.resize(height, width), texts.with_outlines([points * factors for points in texts.outlines])


class Moving:
    """Base class of transforms that only move pixels."""

    def move(self, view: View, texts: Texts, rng: Rng) -> tuple[View, Texts]:
        raise NotImplementedError

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> ImageAndTexts:
        view, texts = self.move(View(image, image.shape[:2]), texts, context.rng)
        return view.render(), texts


@dataclass(frozen=True, kw_only=True)
class RandomRotate(Moving):
    """Rotate the image with a `probability` by an angle from the range `degrees` about its centre; uncovered pixels are black.

    An image with a side above MAX_WARP_SIDE is left unchanged.
    """

    sizing: ClassVar[Sizing] = 'kept'

    degrees: tuple[float, float] = (-10.0, 10.0)
    probability: float = 1.0

    def __post_init__(self) -> None:
        check_probability('probability', self.probability)
        if not -180 <= self.degrees[0] <= self.degrees[1] <= 180:
            raise ValueError(
                f'degrees is the minimum and the maximum angle, within -180 to 180; got {self.degrees[0]}, {self.degrees[1]}'
            )

    def move(self, view: View, texts: Texts, rng: Rng) -> tuple[View, Texts]:
        if self.probability < 1 and rng.random() >= self.probability:
            return view, texts
        H, W = view.size
        # About the centre of the pixels, with the size unchanged.
        affine = cv2.getRotationMatrix2D(((W - 1) / 2, (H - 1) / 2), rng.uniform(*self.degrees), 1).astype(np.float64)  # [2, 3]
        if max(*view.image.shape, H, W) > MAX_WARP_SIDE:
            return view, texts
        outlines = [(points @ affine[:, :2].T + affine[:, 2]).astype(np.float32) for points in texts.outlines]
        return view.move(affine, (H, W)), texts.with_outlines(outlines)


@dataclass(frozen=True, kw_only=True)
class RandomResize(Moving):
    """Scale both sides by a factor from the range `scale`, or by less if the result had more than MOST_PIXELS."""

    scale: tuple[float, float] = (0.5, 3.0)

    def __post_init__(self) -> None:
        if not 0 < self.scale[0] <= self.scale[1]:
            raise ValueError(f'scale is the minimum and the maximum factor, above 0; got {self.scale[0]}, {self.scale[1]}')

    def move(self, view: View, texts: Texts, rng: Rng) -> tuple[View, Texts]:
        return resize_view(view, texts, *rounded_size(view.size, limit_factor(view.size, rng.uniform(*self.scale))))


@dataclass(frozen=True, kw_only=True)
class RandomCrop:
    """Crop a random part whose edges cross no text, and resize it into `crop_size` (height, width), padded with black.

    The edges are two columns and two rows without text, drawn from random gaps between texts. The part contains text, and its
    sides are at least `least_share` of those of the image; after `attempts` failures the whole image is taken. Method of Zhou
    et al., EAST, https://arxiv.org/abs/1704.03155.
    """

    sizing: ClassVar[Sizing] = 'one'

    crop_size: tuple[int, int] = (640, 640)
    attempts: int = 50
    least_share: float = 0.1

    def __post_init__(self) -> None:
        check_network_size('crop_size', self.crop_size)
        check_probability('least_share', self.least_share)

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> ImageAndTexts:
        return self.crop(View(image, image.shape[:2]), texts, context.rng)

    def crop(self, view: View, texts: Texts, rng: Rng) -> ImageAndTexts:
        """Crop a part of a view, and render only that part."""
        x0, y0, x1, y1 = self._choose_part(view.size, texts, rng)
        part = view.crop(x0, y0, x1, y1)
        if part.is_reduced:
            # An image that was made smaller has lost detail, which enlarging the part must not bring back.
            part = View(part.render(), part.size)
        # Resize the part in proportion, to the upper left of a black canvas.
        H, W = self.crop_size
        factor = min(W / (x1 - x0), H / (y1 - y0))
        width, height = max(1, int((x1 - x0) * factor)), max(1, int((y1 - y0) * factor))
        canvas = np.zeros((H, W, 3), np.uint8)
        canvas[:height, :width] = part.resize(height, width).render()
        # Move the outlines along, and keep the texts that the part contains.
        corner = np.array([x0, y0], np.float32)
        # Texts that touch the part are kept whole, also ignored ones at its edges.
        moved = texts.with_outlines([(points - corner) * np.float32(factor) for points in texts.outlines])
        kept = touching(bounding_boxes(moved.outlines), 0, 0, width, height)
        return canvas, moved.select(np.flatnonzero(kept).tolist())

    def _choose_part(self, size: tuple[int, int], texts: Texts, rng: Rng) -> tuple[int, int, int, int]:
        """Return the part x0, y0, x1, y1 to crop from an image of `size` (height, width)."""
        H, W = size
        readable = [points for points, ignored in zip(texts.outlines, texts.ignored, strict=True) if not ignored]
        # Edges of the crop lie in gaps, so that no text is cut.
        bounds = bounding_boxes(readable)
        columns, rows = find_gaps(bounds[:, 0], bounds[:, 2], W), find_gaps(bounds[:, 1], bounds[:, 3], H)
        for _ in range(self.attempts if columns and rows else 0):
            (x0, x1), (y0, y1) = pick_two(columns, rng), pick_two(rows, rng)
            is_large = x1 - x0 >= max(1, self.least_share * W) and y1 - y0 >= max(1, self.least_share * H)
            if is_large and touching(bounds, x0, y0, x1, y1).any():
                return x0, y0, x1, y1
        return 0, 0, W, H


@dataclass(frozen=True)
class CropOfView:
    """Transforms that move pixels, and the crop after them: only the pixels of the crop are interpolated, and only once."""

    moves: tuple[Moving, ...]
    crop: RandomCrop

    def __call__(self, image: Image, texts: Texts, context: TransformContext) -> ImageAndTexts:
        view = View(image, image.shape[:2])
        for transform in self.moves:
            view, texts = transform.move(view, texts, context.rng)
        return self.crop.crop(view, texts, context.rng)


def join_crops(transforms: Sequence[Transform]) -> tuple[Transform, ...]:
    """Join each random crop with the rotations and resizing directly before it."""
    joined: list[Transform] = []
    moves: list[Moving] = []
    for transform in transforms:
        if isinstance(transform, Moving):
            moves.append(transform)
            continue
        joined += [CropOfView(tuple(moves), transform)] if isinstance(transform, RandomCrop) else [*moves, transform]
        moves = []
    return (*joined, *moves)


def find_gaps(least: npt.NDArray[np.float32], most: npt.NDArray[np.float32], length: int) -> list[npt.NDArray[np.int64]]:
    """Return the runs of columns or rows without text, from the ends [N] of texts along that side of `length` pixels."""
    # Columns or rows that no text covers, as runs of consecutive numbers.
    is_free = np.ones(length, np.bool_)
    for low, high in zip(least.round().astype(int).clip(0), most.round().astype(int).clip(0), strict=True):
        is_free[low:high] = False
    free = np.flatnonzero(is_free)
    return [run for run in np.split(free, np.flatnonzero(np.diff(free) > 1) + 1) if len(run)]


def pick_two(runs: list[npt.NDArray[np.int64]], rng: Rng) -> tuple[int, int]:
    """Pick two positions in ascending order: for each draw a run, then a position in it."""
    first, second = sorted(int(rng.choice(runs[rng.integers(len(runs))])) for _ in range(2))
    return first, second


def bounding_boxes(outlines: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the bounding boxes [N, 4] of outlines: x0, y0, x1, y1."""
    if not outlines:
        return np.zeros((0, 4), np.float32)
    points, starts = np.concatenate(outlines), np.cumsum([0, *map(len, outlines)])[:-1]
    bounds = np.concatenate([np.minimum.reduceat(points, starts), np.maximum.reduceat(points, starts)], 1)
    return bounds.astype(np.float32, copy=False)


def touching(boxes: npt.NDArray[np.float32], x0: float, y0: float, x1: float, y1: float) -> npt.NDArray[np.bool_]:
    """Return for each of `boxes` [N, 4] whether it touches the box x0, y0, x1, y1."""
    left, top, right, bottom = boxes.T
    touched: npt.NDArray[np.bool_] = (right >= x0) & (left <= x1) & (bottom >= y0) & (top <= y1)
    return touched


@dataclass(frozen=True, kw_only=True)
class Resize(Moving):
    """Resize to `target_size` (height, width), without keeping the aspect ratio."""

    sizing: ClassVar[Sizing] = 'one'

    target_size: tuple[int, int] = (736, 1280)

    def __post_init__(self) -> None:
        check_network_size('target_size', self.target_size)

    def move(self, view: View, texts: Texts, rng: Rng) -> tuple[View, Texts]:
        return resize_view(view, texts, *self.target_size)


@dataclass(frozen=True, kw_only=True)
class LimitSide(Moving):
    """Enlarge images whose shorter side is below `side` (`limit: min`), or shrink those whose longer one is above it (`max`).

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

    def move(self, view: View, texts: Texts, rng: Rng) -> tuple[View, Texts]:
        return resize_view(view, texts, *limited_size(view.size, self.side, self.limit, self.max_side))


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
