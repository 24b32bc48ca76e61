"""Augmentations of an image together with its boxes; sizes and arithmetic are those of PaddleDetection's transforms.

Each is built from keyword options and called with an image [H, W, C] uint8 or uint16 (RGB uint8 without
`data.bands`), its objects and a `TransformContext`.
Normalisation happens later on the device of the network, so that images travel as bytes.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.config.options import check_probability, check_size
from phalanx.data.colour import ColourDistortion
from phalanx.data.image import flip_horizontally
from phalanx.data.samples import Image, Rng
from phalanx.families.detection.data.source import Boxes, Objects
from phalanx.families.sizing import RandomTransform, Sizing
from phalanx.runtime.prepare import (
    INTERPOLATIONS,
    as_bands,
    check_image_size,
    grey,
    limit_factor,
    resize,
    resize_factors,
    scale,
)

ImageWithObjects = tuple[Image, Objects]  # an image and its objects


@dataclass(frozen=True)
class TransformContext:
    """Sources of randomness of a transform."""

    rng: Rng  # of the sample
    step_rng: Callable[[], Rng]  # the same numbers for all samples of a step
    another: Callable[[], ImageWithObjects]  # another, random sample of the data set, untransformed


Transform = Callable[[Image, Objects, TransformContext], ImageWithObjects]

GREY = 114  # padding colour of mosaics (YOLOX)


@dataclass(frozen=True, kw_only=True)
class InEpochs:
    """Base class of transforms that training can limit to the epochs from `start_epoch` to before `stop_epoch`.

    Epochs count from 0.
    """

    start_epoch: int = 0
    stop_epoch: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.start_epoch < (math.inf if self.stop_epoch is None else self.stop_epoch):
            raise ValueError(f'start_epoch must be from 0 to below stop_epoch, got {self.start_epoch} and {self.stop_epoch}')


def runs_in(transform: object, epoch: int) -> bool:
    """True if training applies a transform in an epoch; one of a plugin without `InEpochs` in all."""
    return not isinstance(transform, InEpochs) or transform.start_epoch <= epoch < (transform.stop_epoch or math.inf)


Interpolation = Literal['nearest', 'linear', 'area', 'cubic', 'lanczos4']


def resize_sample(image: Image, objects: Objects, x: float, y: float, interpolation: str = 'linear') -> ImageWithObjects:
    """Resize image and boxes by the factors `x` and `y`, round the size, clip boxes to it.

    Raises TooLargeError.
    """
    H, W = image.shape[:2]
    x, y = max(x, 1 / W), max(y, 1 / H)  # at least one pixel remains
    check_image_size(round(H * y), round(W * x))
    if (x, y) != (1, 1):
        image = scale(image, x, y, interpolation)
    boxes = objects.boxes * np.array([x, y, x, y], np.float32)
    return image, replace(objects, boxes=boxes).clipped(W * x, H * y)


@dataclass(frozen=True, kw_only=True)
class RandomDistort(InEpochs, ColourDistortion):
    """Distort colours with `probability`; with `swap_probability` also put the three channels into a random order."""

    probability: float = 1.0
    swap_probability: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        ColourDistortion.__post_init__(self)
        check_probability('probability', self.probability)
        check_probability('swap_probability', self.swap_probability)

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        rng = context.rng
        if self.probability < 1 and rng.random() >= self.probability:
            return image, objects
        image = self.distort(image, rng)
        if self.swap_probability and rng.random() < self.swap_probability:
            image = image[:, :, rng.permutation(3)]
        return image, objects


@dataclass(frozen=True, kw_only=True)
class RandomExpand(InEpochs):
    """Place the image at random on a canvas up to `ratio` times as wide and high, filled with the colour `fill`.

    `fill` is RGB, or one value per band. The canvas has at most MOST_PIXELS. `skips_mosaics`: leave images alone that `mosaic`
    has made.
    """

    probability: float = 0.5
    ratio: float = 4.0
    fill: tuple[float, ...] = (123.675, 116.28, 103.53)
    skips_mosaics: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability('probability', self.probability)
        if not self.ratio > 1:
            raise ValueError(f'ratio must be above 1, got {self.ratio}')

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        rng, (H, W) = context.rng, image.shape[:2]
        if rng.random() >= self.probability:
            return image, objects
        ratio = limit_factor((H, W), rng.uniform(1, self.ratio))
        height, width = int(H * ratio), int(W * ratio)
        if height <= H or width <= W:
            return image, objects
        top, left = int(rng.integers(0, height - H)), int(rng.integers(0, width - W))
        canvas = np.empty((height, width, image.shape[2]), image.dtype)
        canvas[0] = [round(value) for value in self.fill]
        canvas[1:] = canvas[0]  # whole rows: NumPy fills pixel by pixel 50 times slower
        canvas[top : top + H, left : left + W] = image
        return canvas, objects.moved(left, top)


@dataclass(frozen=True, kw_only=True)
class RandomCrop(InEpochs):
    """Crop a random region that has at least a random IoU of `thresholds` with some object.

    Objects with their centre in the region are kept. Its sides are `scaling` times those of the image (before its aspect ratio
    changes), its aspect ratio, relative to that of the image, is within `aspect_ratio`. With `allow_no_crop`, no crop is as
    likely as each threshold. `skips_mosaics`: leave images alone that `mosaic` has made. After Liu et al., SSD, ECCV 2016.
    """

    probability: float = 1.0
    aspect_ratio: tuple[float, float] = (0.5, 2.0)
    thresholds: tuple[float, ...] = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
    scaling: tuple[float, float] = (0.3, 1.0)
    attempts: int = 50
    allow_no_crop: bool = True
    skips_mosaics: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability('probability', self.probability)
        if not 0 < self.scaling[0] <= self.scaling[1] <= 1:
            raise ValueError(f'scaling must rise within 0 and 1, got {self.scaling[0]}, {self.scaling[1]}')
        if not 0 < self.aspect_ratio[0] <= 1 <= self.aspect_ratio[1]:
            raise ValueError(f'aspect_ratio must reach from below 1 to above 1, got {self.aspect_ratio}')

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        if not len(objects) or (self.probability < 1 and context.rng.random() >= self.probability):
            return image, objects
        choices: list[float | None] = [*self.thresholds, *([None] if self.allow_no_crop else [])]
        # Thresholds in random order, each with several attempts; the first region that satisfies one and keeps an object is
        # used.
        for number in context.rng.permutation(len(choices)):
            threshold = choices[number]
            if threshold is None:
                return image, objects
            for _ in range(self.attempts):
                part = self._part(image.shape[0], image.shape[1], context.rng)
                if iou_with(objects.boxes, part).max() < threshold:
                    continue
                remaining = crop_objects(objects, part)
                if len(remaining):
                    x0, y0, x1, y1 = part.astype(int)
                    return image[y0:y1, x0:x1], remaining
        return image, objects

    def _part(self, H: int, W: int, rng: Rng) -> Boxes:
        """Random region, [4] xyxy in whole pixels."""
        scale = rng.uniform(*self.scaling)
        # Limited so that no side exceeds the image: scale <= ratio <= 1 / scale.
        lowest, highest = self.aspect_ratio
        ratio = math.sqrt(rng.uniform(max(lowest, scale**2), min(highest, scale**-2)))
        height, width = max(1, int(H * scale / ratio)), max(1, int(W * scale * ratio))
        top, left = int(rng.integers(0, max(1, H - height))), int(rng.integers(0, max(1, W - width)))
        return np.array([left, top, left + width, top + height], np.float32)


def iou_with(boxes: Boxes, part: Boxes) -> npt.NDArray[np.float32]:  # [N, 4] and [4] -> [N]
    """IoU of each box with `part`."""
    sides = np.minimum(boxes[:, 2:], part[2:]) - np.maximum(boxes[:, :2], part[:2])
    overlap = sides.clip(0).prod(1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1) + (part[2:] - part[:2]).prod()
    result: npt.NDArray[np.float32] = overlap / (areas - overlap + 1e-10)
    return result


def crop_objects(objects: Objects, part: Boxes) -> Objects:
    """Objects whose centre lies in `part` [4], clipped to it, relative to its corner."""
    x0, y0, x1, y1 = part
    x, y = (objects.boxes[:, :2] + objects.boxes[:, 2:]).T / 2
    centred = (x0 <= x) & (x < x1) & (y0 <= y) & (y < y1)
    return objects.at(centred).moved(-x0, -y0).clipped(x1 - x0, y1 - y0)


@dataclass(frozen=True, kw_only=True)
class RandomWindow(InEpochs):
    """Cut a window of `target_size` (height, width) out of the image, as `inference.window` does in evaluation.

    With the probability `near_objects` it contains a random object, else its place is random. Objects with their centre in the
    window are kept. A smaller image is padded with grey on the right and at the bottom.
    """

    target_size: tuple[int, int] = (640, 640)
    near_objects: float = 0.7

    sizing: ClassVar[Sizing] = 'one'

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability('near_objects', self.near_objects)
        check_size('target_size', self.target_size)

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        rng, corner, (H, W) = context.rng, [0, 0], self.target_size
        boxes = objects.boxes
        near = boxes[rng.integers(len(boxes))] if len(boxes) and rng.random() < self.near_objects else None
        for axis, (side, window) in enumerate(zip(image.shape[1::-1], (W, H), strict=True)):
            last = max(0, side - window)
            # Windows that contain the centre of the object.
            centre = None if near is None else int(near[axis] + near[axis + 2]) // 2
            least, most = (0, last) if centre is None else (min(max(0, centre - window + 1), last), min(centre, last))
            corner[axis] = int(rng.integers(least, most, endpoint=True))
        x, y = corner
        inner = crop_objects(objects, np.array([x, y, x + W, y + H], np.float32))
        part = image[y : y + H, x : x + W]
        if part.shape[:2] != (H, W):
            canvas = np.full((H, W, image.shape[2]), grey(GREY, image), image.dtype)
            canvas[: part.shape[0], : part.shape[1]] = part
            part = canvas
        return part, inner


@dataclass(frozen=True, kw_only=True)
class CopyPaste(InEpochs):
    """Paste copies of objects of another image: the pixels within their boxes, mirrored at random, at random places.

    Up to `objects` boxes of one other image are pasted, with the probability `probability`, at `scale` times their size, where
    they cover no object by more than `overlap` of its area. Without masks the background of a box comes with it. After
    Ghiasi et al., Simple Copy-Paste, CVPR 2021. Must come before transforms that change the size of images.
    """

    probability: float = 0.5
    objects: int = 3
    scale: tuple[float, float] = (0.8, 1.25)
    overlap: float = 0.3

    sizing: ClassVar[Sizing] = 'kept'

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability('probability', self.probability)
        check_probability('overlap', self.overlap)
        _check_scale(self.scale)
        if self.objects < 1:
            raise ValueError(f'objects must be at least 1, got {self.objects}')

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        rng = context.rng
        if rng.random() >= self.probability:
            return image, objects
        other, others = context.another()
        image = image.copy()
        for number in rng.permutation(len(others))[: self.objects].tolist():
            x0, y0, x1, y1 = others.boxes[number].round().astype(int).tolist()
            factor = rng.uniform(*self.scale)
            height, width = round((y1 - y0) * factor), round((x1 - x0) * factor)
            if not (0 < height <= image.shape[0] and 0 < width <= image.shape[1]):
                continue
            patch = resize(other[y0:y1, x0:x1], height, width)
            left, top = (
                int(rng.integers(0, end - side, endpoint=True))
                for end, side in ((image.shape[1], width), (image.shape[0], height))
            )
            box = np.array([[left, top, left + width, top + height]], np.float32)
            if covered_share(objects.boxes, box[0]).max(initial=0) > self.overlap:
                continue
            image[top : top + height, left : left + width] = patch[:, ::-1] if rng.random() < 0.5 else patch
            objects = Objects.all_of([objects, Objects.plain(box, others.classes[[number]])])
        return image, objects


def covered_share(boxes: Boxes, part: Boxes) -> npt.NDArray[np.float32]:  # [N, 4] and [4] -> [N]
    """Share of each box that `part` covers."""
    sides = np.minimum(boxes[:, 2:], part[2:]) - np.maximum(boxes[:, :2], part[:2])
    result: npt.NDArray[np.float32] = sides.clip(0).prod(1) / (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return result


@dataclass(frozen=True, kw_only=True)
class RandomFlip(InEpochs, RandomTransform):
    """Mirror left and right."""

    def __post_init__(self) -> None:
        super().__post_init__()
        RandomTransform.__post_init__(self)

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        return mirror(image, objects) if self.happens(context.rng) else (image, objects)


def mirror(image: Image, objects: Objects) -> ImageWithObjects:
    x0, y0, x1, y1 = objects.boxes.T
    W = image.shape[1]
    return flip_horizontally(image), replace(objects, boxes=np.stack([W - x1, y0, W - x0, y1], 1))


@dataclass(frozen=True, kw_only=True)
class DropSmall(InEpochs):
    """Remove objects whose width or height is below `side` pixels of the image at this place among the transforms."""

    sizing: ClassVar[Sizing] = 'kept'

    side: float = 1.0

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        return image, objects.at((objects.boxes[:, 2:] - objects.boxes[:, :2]).min(1) >= self.side)


@dataclass(frozen=True, kw_only=True)
class Resize(InEpochs):
    """Resize to `target_size` (height, width).

    With `keep_ratio`: the largest size of the same aspect ratio whose shorter side is at most the smaller of the two and whose
    longer side is at most the larger.
    """

    target_size: tuple[int, int]
    keep_ratio: bool = False
    interpolation: Interpolation = 'linear'

    @property
    def sizing(self) -> Sizing:
        return 'any' if self.keep_ratio else 'one'

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size('target_size', self.target_size)

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        x, y = resize_factors(image.shape[:2], self.target_size, keep_ratio=self.keep_ratio)
        return resize_sample(image, objects, x, y, self.interpolation)


@dataclass(frozen=True, kw_only=True)
class BatchRandomResize(InEpochs):
    """Resize to a square of one of `sizes`, the same for all samples of a step; `interpolation`: fixed, or random per step.

    With `keep_ratio` images differ in shape; they are padded to the largest of their batch.
    """

    sizes: tuple[int, ...]
    keep_ratio: bool = False
    interpolation: Interpolation | Literal['random'] = 'random'

    @property
    def sizing(self) -> Sizing:
        return 'any' if self.keep_ratio else 'one a step'

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f'sizes are in pixels, each at least 1; got {", ".join(map(str, self.sizes)) or "none"}')

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        rng = context.step_rng()
        size = int(rng.choice(self.sizes))
        random_one: Any = str(rng.choice(list(INTERPOLATIONS)))
        interpolation = random_one if self.interpolation == 'random' else self.interpolation
        resize = Resize(target_size=(size, size), keep_ratio=self.keep_ratio, interpolation=interpolation)
        return resize(image, objects, context)


@dataclass(frozen=True, kw_only=True)
class Mosaic(InEpochs):
    """Combine four images around a random centre, then warp the mosaic to `target_size` (height, width).

    `degrees`, `translate` (fraction of the size), `scale` and `shear` (degrees) are the ranges of that affine map. After YOLOX
    (Ge et al., 2021). Must be the first transform: the other three images are untransformed.
    """

    target_size: tuple[int, int] = (640, 640)
    probability: float = 1.0
    degrees: tuple[float, float] = (-10.0, 10.0)
    translate: tuple[float, float] = (-0.1, 0.1)
    scale: tuple[float, float] = (0.1, 2.0)
    shear: tuple[float, float] = (-2.0, 2.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability('probability', self.probability)
        check_size('target_size', self.target_size)
        _check_scale(self.scale)

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        rng = context.rng
        if rng.random() >= self.probability:
            return image, objects
        parts = [(image, objects), *(context.another() for _ in range(3))]
        return self._warp(*self._assemble(parts, rng), rng)

    def _assemble(self, parts: list[ImageWithObjects], rng: Rng) -> ImageWithObjects:
        """Place four images around one point of a canvas of twice the size, and clip them to it."""
        H, W = self.target_size
        x, y = int(rng.uniform(0.5 * W, 1.5 * W)), int(rng.uniform(0.5 * H, 1.5 * H))
        first, placed = parts[0][0], []
        canvas = np.full((2 * H, 2 * W, first.shape[2]), grey(GREY, first), first.dtype)
        for place, (image, objects) in enumerate(parts):
            # Resize to fit a quarter of the canvas, with one corner at the common point: images 0 to 3 are left above, right
            # above, left below and right below.
            factor = min(W / image.shape[1], H / image.shape[0])
            image, objects = resize_sample(image, objects, factor, factor)
            h, w = image.shape[:2]
            left, top = x - (w if place % 2 == 0 else 0), y - (h if place < 2 else 0)
            # Part of the image that lies on the canvas.
            inner_left, inner_top = max(left, 0), max(top, 0)
            visible = image[inner_top - top : 2 * H - top, inner_left - left : 2 * W - left]
            canvas[inner_top : inner_top + visible.shape[0], inner_left : inner_left + visible.shape[1]] = visible
            placed.append(objects.moved(left, top))
        return canvas, Objects.all_of(placed).clipped(2 * W, 2 * H)

    def _warp(self, canvas: Image, objects: Objects, rng: Rng) -> ImageWithObjects:
        size = self.target_size[::-1]  # (width, height), OpenCV's order
        # Rotation and scale, then shear, then a shift by a fraction of the size.
        turn = cv2.getRotationMatrix2D((0, 0), rng.uniform(*self.degrees), rng.uniform(*self.scale))
        along_x, along_y = (math.tan(math.radians(rng.uniform(*self.shear))) for _ in range(2))
        affine = np.stack([turn[0] + along_y * turn[1], turn[1] + along_x * turn[0]])  # [2, 3]
        affine[:, 2] = rng.uniform(*self.translate) * np.array(size)
        border = (grey(GREY, canvas),) * 4  # OpenCV repeats them for further bands
        image = as_bands(cv2.warpAffine(canvas, affine, size, borderValue=border), canvas)
        # A box becomes the bounding box of its four transformed corners.
        corners = objects.boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
        moved = corners @ affine[:, :2].T + affine[:, 2]  # [N, 4, 2]
        boxes = np.concatenate([moved.min(1), moved.max(1)], 1).astype(np.float32)
        return image, replace(objects, boxes=boxes).clipped(*size)


@dataclass(frozen=True, kw_only=True)
class MixUp(InEpochs):
    """Blend two images 50:50 and keep both sets of boxes.

    The second image is resized to fit the first, scaled by a random `scale`, mirrored at random, and cropped or padded to
    its size. After YOLOX.
    """

    probability: float = 1.0
    scale: tuple[float, float] = (0.5, 1.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_probability('probability', self.probability)
        _check_scale(self.scale)

    def __call__(self, image: Image, objects: Objects, context: TransformContext) -> ImageWithObjects:
        rng, (H, W) = context.rng, image.shape[:2]
        if rng.random() >= self.probability:
            return image, objects
        # The second image: fitted, scaled, mirrored, and cropped at a random position.
        other, others = context.another()
        factor = min(W / other.shape[1], H / other.shape[0]) * rng.uniform(*self.scale)
        other, others = resize_sample(other, others, factor, factor)
        if rng.random() < 0.5:
            other, others = mirror(other, others)
        top = int(rng.integers(0, max(0, other.shape[0] - H), endpoint=True))
        left = int(rng.integers(0, max(0, other.shape[1] - W), endpoint=True))
        visible = other[top : top + H, left : left + W]
        padded = np.zeros_like(image)
        padded[: visible.shape[0], : visible.shape[1]] = visible
        mixed = as_bands(cv2.addWeighted(image, 0.5, padded, 0.5, 0), image)
        return mixed, Objects.all_of([objects, others.moved(-left, -top).clipped(W, H)])


def augment(
    image: Image, objects: Objects, transforms: Sequence[Transform], context: TransformContext, epoch: int
) -> ImageWithObjects:
    """Apply those of `transforms` that training has in an epoch."""
    is_mosaic = False
    for transform in transforms:
        if not runs_in(transform, epoch) or (is_mosaic and getattr(transform, 'skips_mosaics', False)):
            continue
        before = image
        image, objects = transform(image, objects, context)
        is_mosaic |= isinstance(transform, Mosaic) and image is not before
    return image, objects


def _check_scale(scale: tuple[float, float]) -> None:
    if not 0 < scale[0] <= scale[1]:
        raise ValueError(f'scale must rise from above 0, got {scale[0]}, {scale[1]}')


TRANSFORMS = {
    'mosaic': Mosaic,
    'mix_up': MixUp,
    'copy_paste': CopyPaste,
    'random_distort': RandomDistort,
    'random_expand': RandomExpand,
    'random_crop': RandomCrop,
    'random_window': RandomWindow,
    'random_flip': RandomFlip,
    'drop_small': DropSmall,
    'resize': Resize,
    'batch_random_resize': BatchRandomResize,
}
