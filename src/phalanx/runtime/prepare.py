"""Preparation of images for networks. Shapes: H, W of the image; h, w of the input."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

Image = npt.NDArray[np.uint8]  # [H, W, 3] RGB
Floats = npt.NDArray[np.float32]
Size = tuple[int, int]  # height, width

INTERPOLATIONS = {
    'nearest': cv2.INTER_NEAREST,
    'linear': cv2.INTER_LINEAR,
    'area': cv2.INTER_AREA,
    'cubic': cv2.INTER_CUBIC,
    'lanczos4': cv2.INTER_LANCZOS4,
}
# Limits per image, so that a file of any shape costs a known amount of memory (docs/security.md).
MOST_PIXELS = 2**27  # of an image, decoded or augmented: 400 MB
MOST_SEEN = 2**25  # input pixels of a network per image
MAX_SIDE = 4000  # of a page for text detection: PaddleOCR's max_side_limit
MAX_LINE = 3200  # columns of a line that is wider than the recipe says: PaddleX's MAX_IMG_W
ORIENTATION = 0x0112  # EXIF tag: how a picture is turned
STEP = 32  # sides of network inputs are padded to multiples of it
# Description of resizing in guides: other implementations must compute the same pixels.
RESIZING = (
    'cv2.resize of OpenCV on uint8 pixels, with cv2.INTER_LINEAR or what a transform names as `interpolation` '
    '(cubic: cv2.INTER_CUBIC, a = -0.75); pixel centres at 0.5, no anti-aliasing'
)


class TooLargeError(ValueError):
    """Image that would become too large for memory; the message gives its size and the fix."""


def check_image_size(height: int, width: int) -> None:
    """Raise TooLargeError if a transform would produce an image of more than MOST_PIXELS."""
    if height * width > MOST_PIXELS:
        raise TooLargeError(f'would be enlarged to {width} x {height} pixels, more than {MOST_PIXELS // 2**20} million')


def check_input_size(height: int, width: int) -> None:
    """Raise TooLargeError if the input of a network would have more than MOST_SEEN pixels per image."""
    height, width = (-(-side // STEP) * STEP for side in (height, width))
    if height * width > MOST_SEEN:
        raise TooLargeError(
            f'the input of the network would have {width} x {height} pixels, more than {MOST_SEEN // 2**20} million; '
            'reduce the image (eval_transforms, or transforms in training), or cut it into tiles'
        )


def check_batch(images: int, height: int, width: int) -> None:
    """Raise TooLargeError if `images`, padded to a common size, would have more than MOST_SEEN pixels each."""
    if height * width > MOST_SEEN:
        raise TooLargeError(
            f'{images} images of very different shapes would be padded to {width} x {height} pixels each; '
            'reduce them (eval_transforms, or transforms in training), or take one at a time (evaluate.batch_size=1)'
        )


def limit_factor(size: Size, factor: float) -> float:
    """Reduce `factor` so that an image of `size` scaled by it has at most MOST_PIXELS, but not below 1."""
    return min(factor, max(1.0, math.sqrt(MOST_PIXELS / (size[0] * size[1]))))


def size_of(options: Mapping[str, Any], name: str) -> Size:
    """The (height, width) in the guide entry `name`."""
    height, width = options[name]
    return height, width


def check_image(image: Any, count: int = 3, bits: int = 8) -> Image:
    """Return `image` as an array. Raises ValueError when it is not an image [H, W, count] of unsigned integers of `bits`."""
    is_rgb = (count, bits) == (3, 8)
    kind = f'[height, width, {count}] of uint{bits}' + (', in RGB order' if is_rgb else '')
    if is_rgb and hasattr(image, 'getexif') and (image.mode != 'RGB' or image.getexif().get(ORIENTATION, 1) != 1):
        raise ValueError(f"an image is an array {kind}; of PIL's: numpy.array(ImageOps.exif_transpose(image).convert('RGB'))")
    pixels = np.asarray(image)
    if pixels.dtype != f'uint{bits}' or pixels.ndim != 3 or pixels.shape[2] != count or 0 in pixels.shape:
        got = f'[{", ".join(map(str, pixels.shape))}] of {pixels.dtype}' if pixels.ndim else f'a {type(image).__name__}'
        cause = '; cv2.imread returns None for a file that it cannot read' if image is None else ''
        raise ValueError(f'an image is an array {kind}; got {got}{cause}')
    return pixels


def normalise(image: Image, preparation: Mapping[str, Any]) -> Floats:
    """Normalise an image to [C, h, w] float32: `(value / 255 - mean) / std` per channel, in the channel order of the guide.

    Values of 16 bits are divided by 65535. Raises TooLargeError.
    """
    check_input_size(*image.shape[:2])
    mean, std = np.array(preparation['mean'], np.float32), np.array(preparation['std'], np.float32)
    if image.dtype != np.uint8:
        scaled: Floats = (image.astype(np.float32) / np.float32(np.iinfo(image.dtype).max) - mean) / std
        return np.ascontiguousarray(scaled.transpose(2, 0, 1))
    levels: Floats = (np.arange(256, dtype=np.float32)[:, None] / np.float32(255) - mean) / std
    order = (2, 1, 0) if preparation['channels'] == 'BGR' else range(image.shape[2])
    # A table of the 256 values per channel gives the same floats as computing each, in less time and memory. OpenCV's look-up
    # takes 0.03 s for 4000 x 2816 pixels, numpy's `take`, which buffers its output, 0.1 to 0.6 s.
    floats = np.empty((image.shape[2], *image.shape[:2]), np.float32)
    for place, channel in enumerate(order):
        cv2.LUT(cv2.extractChannel(image, channel), levels[:, place].copy(), dst=floats[place])
    return floats


def pad_to_multiple(image: Image, step: int, colour: Sequence[int] = (0, 0, 0)) -> Image:
    """Pad an image at the right and bottom with `colour` to sides that are multiples of `step`."""
    H, W = image.shape[:2]
    if H % step == W % step == 0:
        return image
    padded = np.empty((-(-H // step) * step, -(-W // step) * step, image.shape[2]), image.dtype)
    padded[:] = colour
    padded[:H, :W] = image
    return padded


def pad_with_zeros(maps: Floats, height: int, width: int) -> Floats:
    """Pad `maps` [C, h, w] at the right and bottom with zeros to [C, height, width]."""
    padded = np.zeros((len(maps), height, width), np.float32)
    padded[:, : maps.shape[1], : maps.shape[2]] = maps
    return padded


def as_bands(pixels: Any, image: Image) -> Image:
    """Result of OpenCV for `image` in its type, and with its third dimension, which OpenCV drops for one band."""
    return pixels.reshape(*pixels.shape[:2], image.shape[2]).astype(image.dtype, copy=False)  # type: ignore[no-any-return]


def scale(image: Image, x: float, y: float, interpolation: str) -> Image:
    """Resize by the factors `x` and `y`: from a size, OpenCV would derive rounded factors."""
    if interpolation == 'area' and image.shape[2] > 4:  # the only one for which OpenCV is limited to four bands
        parts = [np.ascontiguousarray(image[..., first : first + 4]) for first in range(0, image.shape[2], 4)]
        return np.concatenate([scale(part, x, y, interpolation) for part in parts], 2)
    return as_bands(cv2.resize(image, None, fx=x, fy=y, interpolation=INTERPOLATIONS[interpolation]), image)


def grey(level: int, image: Image) -> int:
    """Value in the type of `image` of a grey `level` of 255."""
    return level * (int(np.iinfo(image.dtype).max) // 255)


def resize(image: Image, height: int, width: int) -> Image:
    if image.shape[:2] == (height, width):
        return image
    check_image_size(height, width)
    return as_bands(cv2.resize(image, (width, height), interpolation=cv2.INTER_LINEAR), image)


def resize_maps(maps: Floats, height: int, width: int) -> Floats:
    """Resize `maps` [C, h, w] to [C, height, width] bilinearly, as `torch.nn.functional.interpolate`."""
    if maps.shape[1:] == (height, width):
        return maps
    return np.stack([cv2.resize(plane, (width, height), interpolation=cv2.INTER_LINEAR) for plane in maps]).astype(np.float32)


def fit_line(image: Image, size: Size, *, keep_ratio: bool = True, grow: bool = False) -> tuple[Image, int]:
    """Fit the image of a line to `size` (height, width); return it and the number of columns filled, from the left.

    With `keep_ratio` the line gets the height of `size` and keeps its aspect ratio, up to the width of `size`; else it is
    stretched to `size`. The rest is black; the Task makes it zero. With `grow` the result may be wider than `size`, up to
    MAX_LINE columns; longer lines are squeezed into them, as in PaddleX.
    """
    H, W = size
    ratio = image.shape[1] / image.shape[0]
    if grow:
        W = min(int(H * max(W / H, ratio)), max(W, MAX_LINE))
    width = min(W, math.ceil(H * ratio)) if keep_ratio else W
    line = cv2.resize(image, (width, H), interpolation=cv2.INTER_LINEAR).astype(np.uint8, copy=False)
    if width == W:
        return line, width
    canvas = np.zeros((H, W, 3), np.uint8)
    canvas[:, :width] = line
    return canvas, width


def fit_square(image: Image, side: int) -> Image:
    """Resize an image so that its longer side is `side`; sizes are truncated to whole pixels."""
    H, W = image.shape[:2]
    ratio = side / max(H, W)
    size = max(1, int(W * ratio)), max(1, int(H * ratio))
    return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR).astype(np.uint8, copy=False)


def resize_factors(size: Size, target: Size, *, keep_ratio: bool) -> tuple[float, float]:
    """Factors for width and height that bring `size` to `target`.

    With `keep_ratio`, one factor for both: the largest one for which the shorter side is at most the smaller of `target`, and
    the longer side at most the larger.
    """
    if not keep_ratio:
        return target[1] / size[1], target[0] / size[0]
    factor = float(min(min(target) / min(size), max(target) / max(size)))
    return factor, factor


def scaled_size(size: Size, factor: float) -> Size:
    """Both sides times `factor`, halves rounded up, at least 1."""
    H, W = size
    return max(1, int(H * factor + 0.5)), max(1, int(W * factor + 0.5))


def rounded_size(size: Size, factor: float) -> Size:
    """Both sides times `factor`, halves rounded to even, at least 1."""
    H, W = size
    return max(1, round(H * factor)), max(1, round(W * factor))


def limited_size(size: Size, side: int, limit: Literal['min', 'max'], max_side: int = MAX_SIDE) -> Size:
    """Height and width of an image once its shorter side is at least `side` (`min`) or its longer at most (`max`).

    A longer side above `max_side` is then reduced to it. Both are rounded to multiples of 32, as in PaddleOCR, so the aspect
    ratio may change a little.
    """
    H, W = size
    # `min` only enlarges, `max` only reduces.
    factor = max(1.0, side / min(H, W)) if limit == 'min' else min(1.0, side / max(H, W))
    height, width = int(H * factor), int(W * factor)
    if (longer := max(height, width)) > max_side:
        height, width = int(height * max_side / longer), int(width * max_side / longer)
    return max(STEP, round(height / STEP) * STEP), max(STEP, round(width / STEP) * STEP)
