"""Built-in data set: pages with lines of text, generated on demand.

A page is a function of (seed, split, index) alone. Shapes: H, W of the page, h, w of a line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data.samples import Draw, GeneratedSource, Image, Rng, Split
from phalanx.data.texts import ILLEGIBLE
from phalanx.families.text_detection.data.source import Points, Texts, make_texts

Array = npt.NDArray[np.float32]

FONT_FACES = (
    cv2.FONT_HERSHEY_SIMPLEX,
    cv2.FONT_HERSHEY_DUPLEX,
    cv2.FONT_HERSHEY_COMPLEX,
    cv2.FONT_HERSHEY_TRIPLEX,
    cv2.FONT_HERSHEY_COMPLEX_SMALL,
    cv2.FONT_HERSHEY_SCRIPT_SIMPLEX,
    cv2.FONT_HERSHEY_SCRIPT_COMPLEX,
)
SYLLABLES = (
    *('an', 'Be', 'cor', 'du', 'el', 'Fi', 'gro', 'ha', 'in', 'ku'),
    *('Lo', 'mi', 'nor', 'pe', 'Ra', 'si', 'tu', 'vel', 'zy'),
)
INK_HEIGHT = 48  # pixels: height of letters before they are scaled
TEXT_GAP = 4  # pixels: minimum distance between texts
ILLEGIBLE_HEIGHTS = (4.0, 6.0)  # pixels: range of heights of unreadable texts


@dataclass(frozen=True, kw_only=True)
class DrawnPages:
    """Pages of `page_size` (height, width) with lines of random text.

    `lines`: minimum and maximum number of texts. `heights`: range of their heights in pixels. `degrees`: maximum rotation of a
    text; half of the texts are rotated. `ignored_share`: share of texts that are too small to read and marked as ignored.
    """

    train_pages: int = 4000
    eval_pages: int = 100
    page_size: tuple[int, int] = (320, 320)
    lines: tuple[int, int] = (3, 9)
    heights: tuple[float, float] = (12.0, 32.0)
    degrees: float = 45.0
    ignored_share: float = 0.05
    seed: int = 0

    def __post_init__(self) -> None:
        page_size, lines, heights = self.page_size, self.lines, self.heights
        if min(page_size) < 64:
            size = f'{page_size[0]}, {page_size[1]}'
            raise ValueError(f'data.page_size is (height, width), each at least 64 pixels; got {size}')
        if not 0 <= lines[0] <= lines[1]:
            raise ValueError(f'data.lines is the minimum and the maximum number, at least 0; got {lines[0]}, {lines[1]}')
        if not 8 <= heights[0] <= heights[1]:
            raise ValueError(f'data.heights is the minimum and the maximum, at least 8 pixels; got {heights[0]}, {heights[1]}')

    def split(self, split: Split) -> DrawnPageSource:
        return DrawnPageSource(split, self.train_pages if split == 'train' else self.eval_pages, self)


@dataclass(frozen=True)
class DrawnPageSource(GeneratedSource):
    """Source of generated pages."""

    kind = 'drawn page'

    options: DrawnPages

    def read(self, draw: Draw) -> tuple[Image, Texts]:
        """Return a page [H, W, 3] and the rectangles around its texts."""
        options = self.options
        (H, W), rng = options.page_size, self.rng(options.seed, draw.index)
        canvas = draw_background(H, W, rng)
        occupied = np.zeros((H, W), np.uint8)  # 1 where no further text may be placed
        pairs: list[tuple[Points, str]] = []
        for _ in range(rng.integers(*options.lines, endpoint=True)):
            is_small = bool(rng.random() < options.ignored_share)
            text = random_text(rng)
            placed = place_text(text, ILLEGIBLE_HEIGHTS if is_small else options.heights, options.degrees, occupied, rng)
            if placed is not None:
                ink, corners = placed
                paint_ink(canvas, ink, rng)
                pairs.append((corners, ILLEGIBLE if is_small else text))
        # Noise comes last, so that it covers text and background alike.
        canvas += rng.standard_normal(canvas.shape, dtype=np.float32) * np.float32(rng.uniform(1, 8))
        return canvas.clip(0, 255).astype(np.uint8), make_texts(pairs)


def random_text(rng: Rng) -> str:
    """Return one to three words, or a number."""
    if rng.random() < 0.2:
        return str(rng.integers(10, 10**6))
    return ' '.join(''.join(rng.choice(SYLLABLES, rng.integers(1, 4))) for _ in range(rng.integers(1, 4)))


def render_ink(text: str, rng: Rng) -> Array:
    """Render a text with a random font: coverage of each pixel [h, w], 0 to 1, cropped to the ink."""
    face, thickness = FONT_FACES[rng.integers(len(FONT_FACES))], int(rng.integers(3, 7))
    # Large first, since OpenCV's strokes are at least one pixel wide; scaled down later.
    scale = INK_HEIGHT / cv2.getTextSize('A', face, 1, 1)[0][1]
    (w, h), below = cv2.getTextSize(text, face, scale, thickness)
    sheet = np.zeros((h + 2 * below + 20, w + 40), np.uint8)
    cv2.putText(sheet, text, (20, h + 10), face, scale, 255, thickness, cv2.LINE_AA)
    x, y, w, h = cv2.boundingRect((sheet > 50).view(np.uint8))
    return np.asarray(sheet[y : y + h, x : x + w] / np.float32(255), np.float32)


def place_text(
    text: str, heights: tuple[float, float], degrees: float, occupied: npt.NDArray[np.uint8], rng: Rng
) -> tuple[Array, Points] | None:
    """Place a text on the page: return its ink [H, W] and its corners [4, 2], and mark it in `occupied`; None without room."""
    ink = render_ink(text, rng)
    (h, w), (H, W) = ink.shape, occupied.shape
    # Half of the texts are horizontal, as on most pages.
    angle = math.radians(rng.uniform(-degrees, degrees)) if rng.random() < 0.5 else 0.0
    turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    sheet = np.array([[0, 0], [w, 0], [w, h], [0, h]], np.float64)
    for _ in range(12):
        # Draw size and position; give up a position that leaves the page or comes too near to another text.
        scale = math.exp(rng.uniform(*np.log(heights))) / h
        corners = sheet @ (turn * scale).T
        corners -= corners.min(0)
        room = np.array([W, H]) - corners.max(0) - 2
        if (room < 2).any():
            continue
        shift = rng.uniform(2, room)
        corners = corners + shift
        area = np.zeros_like(occupied)
        cv2.fillPoly(area, [corners.round().astype(np.int32)], 1)
        if not (area & occupied).any():
            occupied |= cv2.dilate(area, np.ones((2 * TEXT_GAP + 1,) * 2, np.uint8)).astype(np.uint8, copy=False)
            affine = np.column_stack([turn * scale, corners[0]])
            small = cv2.GaussianBlur(ink, (0, 0), 0.4 / scale) if scale < 0.8 else ink  # against aliasing of thin strokes
            placed = cv2.warpAffine(small, affine, (W, H), flags=cv2.INTER_LINEAR)
            return np.asarray(placed, np.float32), corners.astype(np.float32)
    return None


def paint_ink(canvas: Array, ink: Array, rng: Rng) -> None:
    """Paint ink [H, W] on the page [H, W, 3] in place, in a colour that contrasts with the background."""
    x, y, w, h = cv2.boundingRect((ink > 0).view(np.uint8))
    ink, under = ink[y : y + h, x : x + w], canvas[y : y + h, x : x + w]
    # At least 90 levels darker or brighter than the surrounding background.
    around = float(under[ink > 0.3].mean()) if (ink > 0.3).any() else 128.0
    bright = rng.uniform(min(around + 90, 230), 255) if around < 110 else rng.uniform(0, max(around - 90, 25))
    colour = np.clip(bright + rng.normal(0, 20, 3), 0, 255).astype(np.float32)
    under += np.clip(ink * np.float32(1.3), 0, 1)[..., None] * (colour - under)


def draw_background(H: int, W: int, rng: Rng) -> Array:
    """Draw a background [H, W, 3], 0 to 255: a gradient of two colours, with lines, frames and blots as distractors."""
    # Most pages are bright, some are dark.
    tone = rng.uniform(140, 255) if rng.random() < 0.7 else rng.uniform(0, 90)
    colours = np.clip(tone + rng.normal(0, 18, (2, 3)), 0, 255).astype(np.float32)
    grid = rng.random((3, 3), dtype=np.float32)
    mixture = np.asarray(cv2.resize(grid, (W, H), interpolation=cv2.INTER_CUBIC), np.float32).clip(0, 1)
    canvas = np.asarray(colours[0] + mixture[..., None] * (colours[1] - colours[0]), np.float32)
    # Distractors in colours near that of the background.
    for _ in range(rng.integers(0, 7)):
        start, end = (tuple(int(value) for value in rng.integers(0, (W, H))) for _ in range(2))
        colour = tuple(float(value) for value in np.clip(tone + rng.normal(0, 50, 3), 0, 255))
        kind, thickness = rng.integers(3), int(rng.integers(1, 4))
        if kind == 0:
            cv2.line(canvas, start, end, colour, thickness, cv2.LINE_AA)
        elif kind == 1:
            cv2.rectangle(canvas, start, end, colour, -1 if rng.random() < 0.5 else thickness)
        else:
            axes = (int(rng.integers(4, W // 5)), int(rng.integers(4, H // 5)))
            cv2.ellipse(canvas, start, axes, rng.uniform(0, 180), 0, 360, colour, -1 if rng.random() < 0.5 else thickness)
    return canvas
