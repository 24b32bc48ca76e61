"""Augmentations of text lines, and concatenation of lines.

Arithmetic and probabilities are those of PaddleOCR (RecAug, RecConAug). Images are [H, W, 3] uint8. A transform is built from
keyword options and called with an image, its text and the generator of its sample. Normalisation is not among them: the Task
normalises on the device, so that images are transferred as bytes.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.config.options import check_probability, check_size
from phalanx.data.samples import Image, Rng
from phalanx.families.recognition.data.source import TextImage
from phalanx.runtime.prepare import resize, rounded_size

Transform = Callable[[Image, str, Rng], TextImage]
Augment = Callable[[Image, Rng], Image]
Accepts = Callable[[str], bool]  # True if a text can be a target of every head
Points = npt.NDArray[np.complex128]  # x + iy in pixels

MAX_PIXELS, MAX_COLUMNS = 2**22, 2**13  # of an augmented line: a warp takes about 100 bytes per pixel
WARP_GRID = 100  # pixels between the points where a warp is computed; in between it is interpolated
MIN_SIDE = 20  # pixels: lines with a smaller side are neither distorted nor cropped


@dataclass(frozen=True, kw_only=True)
class RecAug:
    """PaddleOCR's RecAug: warp (TIA), crop, blur, tint, shake, noise and inversion, each with its probability, in this order.

    Tint, shake and noise are as faint as in PaddleOCR: at most 0.1 % of brightness, 1 % of the height, and about half a level.
    """

    warp_probability: float = 0.4
    crop_probability: float = 0.4
    blur_probability: float = 0.4
    tint_probability: float = 0.4
    shake_probability: float = 0.4
    noise_probability: float = 0.4
    invert_probability: float = 0.4

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_probability(name, value)

    def __call__(self, image: Image, text: str, rng: Rng) -> TextImage:
        augmentations: tuple[tuple[Augment, float], ...] = (
            (apply_tia, self.warp_probability),
            (crop, self.crop_probability),
            (blur, self.blur_probability),
            (tint, self.tint_probability),
            (shake, self.shake_probability),
            (add_noise, self.noise_probability),
            (invert, self.invert_probability),
        )
        for augment, probability in augmentations:
            if rng.random() <= probability:
                image = augment(image, rng)
        return image, text


def limit_size(image: Image) -> Image:
    """Shrink an image with more than MAX_PIXELS or a side above MAX_COLUMNS, in proportion; return others unchanged."""
    H, W = image.shape[:2]
    factor = min(1.0, math.sqrt(MAX_PIXELS / (H * W)), MAX_COLUMNS / max(H, W))
    return image if factor == 1 else resize(image, *rounded_size((H, W), factor))


def apply_tia(image: Image, rng: Rng) -> Image:
    """Distort, stretch and change the perspective of a line: text image augmentation (TIA); of a tiny line only the last."""
    if min(image.shape[:2]) >= MIN_SIDE:
        image = distort(image, int(rng.integers(3, 6, endpoint=True)), rng)
        image = stretch(image, int(rng.integers(3, 6, endpoint=True)), rng)
    return change_perspective(image, rng)


def distort(image: Image, segments: int, rng: Rng) -> Image:
    """Move each corner inwards and the borders of `segments` parts in any direction, by up to a third of a part.

    This function and the next two: Luo et al., Learn to Augment, CVPR 2020 (https://arxiv.org/abs/2003.06606).
    """
    H, W = image.shape[:2]
    part = W // segments
    reach = max(1, part // 3)
    borders = _segment_borders(H, W, segments)
    moved = [border + complex(*(rng.integers(reach, size=2) - reach / 2)) for border in borders]
    inward = np.array([1 + 1j, -1 + 1j, -1 - 1j, 1 - 1j])
    dx, dy = rng.integers(reach, size=(2, 4))
    return warp_mls(image, [*_corners(H, W), *borders], [*(_corners(H, W) + inward.real * dx + 1j * inward.imag * dy), *moved])


def stretch(image: Image, segments: int, rng: Rng) -> Image:
    """Move the borders of `segments` parts along the line by up to 0.4 of a part: some letters get wider, some narrower."""
    H, W = image.shape[:2]
    reach = max(1, W // segments * 4 // 5)
    borders = _segment_borders(H, W, segments)
    moves = rng.integers(reach, size=segments - 1) - reach / 2
    moved = np.array(borders) + np.repeat(moves, 2)  # the same for top and bottom
    return warp_mls(image, [*_corners(H, W), *borders], [*_corners(H, W), *moved])


def change_perspective(image: Image, rng: Rng) -> Image:
    """Move the corners inwards, up or down, by up to half of the height."""
    H, W = image.shape[:2]
    moves = rng.integers(max(1, H // 2), size=4)
    return warp_mls(image, _corners(H, W), _corners(H, W) + 1j * np.array([1, 1, -1, -1]) * moves)


def warp_mls(image: Image, sources: Iterable[complex], targets: Iterable[complex]) -> Image:
    """Deform `image` so that the points `sources` move to `targets` and their surroundings follow.

    Moving least squares with similarities (Schaefer et al., Image Deformation Using Moving Least Squares, SIGGRAPH 2006).
    Points are complex numbers x + iy, so that a similarity is a multiplication.
    """
    p, q = np.array([*targets]), np.array([*sources])  # [N] each: the map from output to input pixels
    H, W = image.shape[:2]
    x, y = _grid_coordinates(W), _grid_coordinates(H)
    v = x[None, :] + 1j * y[:, None]  # [h, w] grid points; solving at every pixel would be too slow
    # Weights fall with the squared distance to the control points; at a control point the others do not count.
    squares = np.abs(v[..., None] - p) ** 2  # [h, w, N]
    w = 1 / np.maximum(squares, 1e-9)
    w /= w.sum(-1, keepdims=True)
    p_mean, q_mean = (w * p).sum(-1), (w * q).sum(-1)
    # The best similarity at each grid point, in closed form, and the displacement that it gives.
    centred = p - p_mean[..., None]
    turn = (w * centred.conj() * q).sum(-1) / np.maximum((w * np.abs(centred) ** 2).sum(-1), 1e-9)
    moves = (v - p_mean) * turn + q_mean - v
    # Interpolate the displacements for all pixels.
    pixels = np.arange(W)[None, :] + 1j * np.arange(H)[:, None]  # [H, W]
    origins = pixels + _interpolation_weights(H, y) @ moves @ _interpolation_weights(W, x).T
    across, down = origins.real.astype(np.float32), origins.imag.astype(np.float32)
    remapped = cv2.remap(image, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return remapped.astype(np.uint8, copy=False)


def _grid_coordinates(length: int) -> npt.NDArray[np.float64]:
    """Return coordinates every WARP_GRID pixels, the last pixel included."""
    return np.unique([*range(0, length, WARP_GRID), length - 1]).astype(np.float64)


def _interpolation_weights(length: int, knots: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the weights [length, knots] of linear interpolation between knots."""
    return np.stack([np.interp(np.arange(length), knots, row) for row in np.eye(len(knots))], axis=1)


def _corners(H: int, W: int) -> Points:
    """Return the corners [4] clockwise from the upper left."""
    return np.array([0, W, W + 1j * H, 1j * H])


def _segment_borders(H: int, W: int, segments: int) -> list[complex]:
    """Return the points where `segments` equal parts meet, at the top and at the bottom."""
    return [W // segments * number + side for number in range(1, segments) for side in (0j, 1j * H)]


def crop(image: Image, rng: Rng) -> Image:
    """Cut off 1 to 8 rows at the top or at the bottom; return a tiny line unchanged."""
    H, W = image.shape[:2]
    rows, at_top = int(rng.integers(1, 8, endpoint=True)), rng.random() < 0.5
    if min(H, W) < MIN_SIDE:
        return image
    return image[rows:] if at_top else image[: H - rows]


def blur(image: Image, rng: Rng) -> Image:
    """Blur with a Gaussian of 5 x 5 pixels; return a tiny line unchanged."""
    if min(image.shape[:2]) <= 10:
        return image
    return cv2.GaussianBlur(image, (5, 5), 1).astype(np.uint8, copy=False)


def tint(image: Image, rng: Rng) -> Image:
    """Change brightness by up to 0.1 %; rounding to OpenCV's 8-bit HSV changes colours more than that."""
    # Brightness is the value of HSV.
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[..., 2] = hsv[..., 2] * (1 + rng.uniform(-0.001, 0.001))
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB).astype(np.uint8, copy=False)


def shake(image: Image, rng: Rng) -> Image:
    """Smear the image to the lower right, by at most 1 % of its smaller side."""
    H, W = image.shape[:2]
    steps = int(rng.random() * min(H, W) * 0.01)
    smeared = image.copy()
    for step in range(1, steps):
        smeared[step:, step:] = image[: H - step, : W - step]
    return smeared


def add_noise(image: Image, rng: Rng) -> Image:
    """Add Gaussian noise of about half a grey level."""
    # Standard deviation 0.16 levels.
    noise = 0.5 * math.sqrt(0.1) * rng.standard_normal(image.shape, dtype=np.float32)
    return (image + noise).clip(0, 255).astype(np.uint8)  # truncated, as in PaddleOCR


def invert(image: Image, rng: Rng) -> Image:
    """Invert all values."""
    return 255 - image


@dataclass(frozen=True, kw_only=True)
class Concatenate:
    """PaddleOCR's RecConAug: append other lines to a line, with a probability; texts are joined without a space.

    Appending stops before a line that would make the text longer than `max_length` or invalid as a target of a head, or the
    image wider than `image_size`. A line whose own text is invalid stays alone, so that it is rejected in every epoch.
    """

    image_size: tuple[int, int] = (48, 320)
    """Height and width of the network's input."""
    lines: int = 2
    """Maximum number of appended lines."""
    probability: float = 0.5
    max_length: int = 25

    def __post_init__(self) -> None:
        check_size('image_size', self.image_size)
        check_probability('probability', self.probability)
        if self.lines < 1:
            raise ValueError(f'lines must be at least 1, got {self.lines}')

    def __call__(self, line: TextImage, others: Callable[[], TextImage | None], rng: Rng, accepts: Accepts) -> TextImage:
        """Append lines to `line`. `others` returns another line per call, or None for an unreadable one."""
        if rng.random() > self.probability or not accepts(line[1]):
            return line
        appended = [other for _ in range(self.lines) if (other := others())]
        return self.join_lines(line, appended, accepts)

    def join_lines(self, line: TextImage, others: Sequence[TextImage], accepts: Accepts) -> TextImage:
        """Return `line` followed by the first of `others` that fit, at the height of the network's input."""
        image, text = line
        # All lines at one height, side by side.
        H, W = self.image_size
        for other, more in others:
            if (
                len(text) + len(more) > self.max_length
                or not accepts(text + more)
                or _aspect_ratio(image) + _aspect_ratio(other) > W / H
            ):
                break
            image = np.concatenate([_resize_to_height(image, H), _resize_to_height(other, H)], axis=1)
            text += more
        return image, text


def _aspect_ratio(image: Image) -> float:
    """Return width / height."""
    return float(image.shape[1] / image.shape[0])


def _resize_to_height(image: Image, height: int) -> Image:
    """Resize to `height` in proportion."""
    return cv2.resize(image, (max(1, round(_aspect_ratio(image) * height)), height)).astype(np.uint8, copy=False)


TRANSFORMS = {'rec_aug': RecAug}
