"""Changes to the image of a line: augmentations, lines put one behind another, and the fit to the network's input.

Arithmetic and probabilities are those of PaddleOCR (RecAug, RecConAug, RecResizeImg). Images are [H, W, 3] uint8. Augmentations
are built from keyword options and called with an image, its text and the random numbers of its sample. Normalisation is none of
them: the Task does it where the network runs, so that images travel as bytes.
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
from phalanx.runtime.prepare import resized, rounded_size

Transform = Callable[[Image, str, Rng], TextImage]
Change = Callable[[Image, Rng], Image]
Accepts = Callable[[str], bool]  # whether a text can be a target of every head
Points = npt.NDArray[np.complex128]  # x + iy in pixels

MOST_PIXELS, MOST_COLUMNS = 2**22, 2**13  # of a line that is augmented: a warp takes about 100 bytes a pixel
WARP_GRID = 100  # pixels between the points where a warp is worked out; in between it is interpolated
SMALLEST = 20  # pixels of height and width below which a line is neither distorted nor cropped


@dataclass(frozen=True, kw_only=True)
class RecAug:
    """Distorts, crops, blurs, tints, shakes, adds noise and inverts, each with its probability and in this order.

    Tint, shake and noise are as faint as published: at most 0.1 % of brightness, 1 % of the height, and about half a level.
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
        changes: tuple[tuple[Change, float], ...] = (
            (warped, self.warp_probability),
            (cropped, self.crop_probability),
            (blurred, self.blur_probability),
            (tinted, self.tint_probability),
            (shaken, self.shake_probability),
            (noisy, self.noise_probability),
            (inverted, self.invert_probability),
        )
        for change, probability in changes:
            if rng.random() <= probability:
                image = change(image, rng)
        return image, text


def limit_size(image: Image) -> Image:
    """The image of a line, reduced in proportion when it has more than MOST_PIXELS or a side above MOST_COLUMNS."""
    H, W = image.shape[:2]
    factor = min(1.0, math.sqrt(MOST_PIXELS / (H * W)), MOST_COLUMNS / max(H, W))
    return image if factor == 1 else resized(image, *rounded_size((H, W), factor))


def warped(image: Image, rng: Rng) -> Image:
    """Distorted, stretched and seen in perspective, one after the other; a tiny line only the last."""
    if min(image.shape[:2]) >= SMALLEST:
        image = distorted(image, int(rng.integers(3, 6, endpoint=True)), rng)
        image = stretched(image, int(rng.integers(3, 6, endpoint=True)), rng)
    return in_perspective(image, rng)


def distorted(image: Image, segments: int, rng: Rng) -> Image:
    """Each corner moved inwards, and the borders of `segments` parts anywhere, by up to a third of a part.

    This and the next two: Luo et al., Learn to Augment, CVPR 2020 (https://arxiv.org/abs/2003.06606).
    """
    H, W = image.shape[:2]
    part = W // segments
    reach = max(1, part // 3)
    borders = _borders(H, W, segments)
    moved = [border + complex(*(rng.integers(reach, size=2) - reach / 2)) for border in borders]
    inward = np.array([1 + 1j, -1 + 1j, -1 - 1j, 1 - 1j])
    dx, dy = rng.integers(reach, size=(2, 4))
    return warp(image, [*_corners(H, W), *borders], [*(_corners(H, W) + inward.real * dx + 1j * inward.imag * dy), *moved])


def stretched(image: Image, segments: int, rng: Rng) -> Image:
    """The borders of `segments` parts moved along the line, each by up to 0.4 of a part: some letters wider, some narrower."""
    H, W = image.shape[:2]
    reach = max(1, W // segments * 4 // 5)
    borders = _borders(H, W, segments)
    moves = rng.integers(reach, size=segments - 1) - reach / 2
    moved = np.array(borders) + np.repeat(moves, 2)  # top and bottom alike
    return warp(image, [*_corners(H, W), *borders], [*_corners(H, W), *moved])


def in_perspective(image: Image, rng: Rng) -> Image:
    """The corners moved up or down, inwards, by up to half of the height."""
    H, W = image.shape[:2]
    moves = rng.integers(max(1, H // 2), size=4)
    return warp(image, _corners(H, W), _corners(H, W) + 1j * np.array([1, 1, -1, -1]) * moves)


def warp(image: Image, sources: Iterable[complex], targets: Iterable[complex]) -> Image:
    """`image` with what is at `sources` moved to `targets` and everything around them moved along.

    Moving least squares with similarities (Schaefer et al., Image Deformation Using Moving Least Squares, SIGGRAPH 2006),
    written with points as complex numbers x + iy: there a similarity is a multiplication.
    """
    p, q = np.array([*targets]), np.array([*sources])  # [N] each: an output pixel asks where it comes from
    H, W = image.shape[:2]
    x, y = _knots(W), _knots(H)
    v = x[None, :] + 1j * y[:, None]  # [h, w] knots
    squares = np.abs(v[..., None] - p) ** 2  # [h, w, N]
    w = 1 / np.maximum(squares, 1e-9)  # at a target the rest does not count
    w /= w.sum(-1, keepdims=True)
    p_mean, q_mean = (w * p).sum(-1), (w * q).sum(-1)
    centred = p - p_mean[..., None]
    turn = (w * centred.conj() * q).sum(-1) / np.maximum((w * np.abs(centred) ** 2).sum(-1), 1e-9)
    moves = (v - p_mean) * turn + q_mean - v
    between = _hats(H, y) @ moves @ _hats(W, x).T + np.arange(W)[None, :] + 1j * np.arange(H)[:, None]  # [H, W]
    across, down = between.real.astype(np.float32), between.imag.astype(np.float32)
    remapped = cv2.remap(image, across, down, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return remapped.astype(np.uint8, copy=False)


def _knots(length: int) -> npt.NDArray[np.float64]:
    return np.unique([*range(0, length, WARP_GRID), length - 1]).astype(np.float64)


def _hats(length: int, knots: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[length, knots] how much each knot counts at each place, for linear interpolation."""
    return np.stack([np.interp(np.arange(length), knots, row) for row in np.eye(len(knots))], axis=1)


def _corners(H: int, W: int) -> Points:
    return np.array([0, W, W + 1j * H, 1j * H])


def _borders(H: int, W: int, segments: int) -> list[complex]:
    """Where `segments` parts meet, at the top and at the bottom."""
    return [W // segments * number + side for number in range(1, segments) for side in (0j, 1j * H)]


def cropped(image: Image, rng: Rng) -> Image:
    """Without 1 to 8 rows at the top or at the bottom; a tiny line stays."""
    H, W = image.shape[:2]
    rows, at_top = int(rng.integers(1, 8, endpoint=True)), rng.random() < 0.5
    if min(H, W) < SMALLEST:
        return image
    return image[rows:] if at_top else image[: H - rows]


def blurred(image: Image, rng: Rng) -> Image:
    if min(image.shape[:2]) <= 10:
        return image
    return cv2.GaussianBlur(image, (5, 5), 1).astype(np.uint8, copy=False)


def tinted(image: Image, rng: Rng) -> Image:
    """A little brighter or darker; what counts more is that colours pass through OpenCV's rounded hues."""
    hsv = cv2.cvtColor(image, cv2.COLOR_RGB2HSV)
    hsv[..., 2] = hsv[..., 2] * (1 + rng.uniform(-0.001, 0.001))
    return cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB).astype(np.uint8, copy=False)


def shaken(image: Image, rng: Rng) -> Image:
    """Smeared to the lower right by a pixel for each 100 of its smaller side, at most."""
    H, W = image.shape[:2]
    steps = int(rng.random() * min(H, W) * 0.01)
    smeared = image.copy()
    for step in range(1, steps):
        smeared[step:, step:] = image[: H - step, : W - step]
    return smeared


def noisy(image: Image, rng: Rng) -> Image:
    noise = 0.5 * math.sqrt(0.1) * rng.standard_normal(image.shape, dtype=np.float32)
    return (image + noise).clip(0, 255).astype(np.uint8)  # decimals are cut off


def inverted(image: Image, rng: Rng) -> Image:
    return 255 - image


@dataclass(frozen=True, kw_only=True)
class Concatenate:
    """Puts other lines behind the line, with a probability; texts are joined without a blank.

    It stops at the first one with which the text would be longer than `max_length` or no target of every head, or the line
    wider than `image_size` allows. A line whose own text is no target stays alone, so that it is refused in every epoch.
    """

    image_size: tuple[int, int] = (48, 320)
    """Height and width of the network's input."""
    lines: int = 2
    """How many others are tried."""
    probability: float = 0.5
    max_length: int = 25

    def __post_init__(self) -> None:
        check_size('image_size', self.image_size)
        check_probability('probability', self.probability)
        if self.lines < 1:
            raise ValueError(f'lines must be at least 1, got {self.lines}')

    def __call__(self, line: TextImage, others: Callable[[], TextImage | None], rng: Rng, accepts: Accepts) -> TextImage:
        """`others` gives another line each time it is called, or none when that cannot be read."""
        if rng.random() > self.probability or not accepts(line[1]):
            return line
        found = [other for _ in range(self.lines) if (other := others())]
        return self.joined(line, found, accepts)

    def joined(self, line: TextImage, others: Sequence[TextImage], accepts: Accepts) -> TextImage:
        """`line` with as many of `others` behind it as there is room for, as high as the network's input."""
        image, text = line
        H, W = self.image_size
        for other, more in others:
            if len(text) + len(more) > self.max_length or not accepts(text + more) or _ratio(image) + _ratio(other) > W / H:
                break
            image = np.concatenate([_of_height(image, H), _of_height(other, H)], axis=1)
            text += more
        return image, text


def _ratio(image: Image) -> float:
    return float(image.shape[1] / image.shape[0])


def _of_height(image: Image, height: int) -> Image:
    return cv2.resize(image, (max(1, round(_ratio(image) * height)), height)).astype(np.uint8, copy=False)


TRANSFORMS = {'rec_aug': RecAug}
