"""Rendered lines of text: a text and a font give an image as a camera could have taken it.

All random choices come from the generator passed in, so a picture is a function of (seed, epoch, index). Sizes are relative to
the height of the line. Shapes: H, W of the picture.
"""

import math
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageDraw
import PIL.ImageFont

from phalanx.data.image import decode_image, read_image
from phalanx.data.samples import Image, Rng

Array = npt.NDArray[np.float32]

SYSTEM_FONTS = (Path('/usr/share/fonts'), Path('/usr/local/share/fonts'), Path('/Library/Fonts'), Path('C:/Windows/Fonts'))
PILLOWS_OWN = Path(
    'the font of Pillow'
)  # placeholder for Pillow's own font, used where the system has none; it has Latin letters
SUFFIXES = ('.ttf', '.otf', '.ttc')
SIZES = (24, 32, 40, 48)  # of letters, in pixels; few, because an opened font is kept for each
UNASSIGNED = '\U0010ffff'  # a character that no font has: gives the glyph for missing characters
CONTRAST = 50  # least difference between the brightness of ink and of the background's mean, of 255


class Fonts:
    """Font files and the characters that each covers."""

    def __init__(self, folder: Path | None, characters: Sequence[str]) -> None:
        """Collect the fonts of `folder` (None: of the system) that have at least one of `characters` besides blanks.

        Raises FileNotFoundError when there is no such folder or font.
        """
        covered = {path: covered_characters(path, characters) for path in font_files(folder)}
        self.covered = {path: found for path, found in covered.items() if any(not character.isspace() for character in found)}
        if not self.covered:
            place = folder or ', '.join(map(str, SYSTEM_FONTS))
            raise FileNotFoundError(f'{place}: holds no font that has the characters to be written; data.fonts names a folder')

    def writing(self, text: str) -> list[Path]:
        """Fonts that have every character of `text`."""
        return [path for path, characters in self.covered.items() if characters.issuperset(text)]


def font_files(folder: Path | None) -> list[Path]:
    """Font files below `folder`; for None those of the system or, where it has none, Pillow's own.

    Raises FileNotFoundError when there is no such folder.
    """
    if folder is not None and not folder.is_dir():
        raise FileNotFoundError(f'{folder}: there is no such folder of fonts')
    places = (folder,) if folder is not None else SYSTEM_FONTS
    found = (Path(top) / name for place in places for top, _, names in os.walk(place) for name in names)
    files = sorted(path for path in found if path.suffix.lower() in SUFFIXES)
    return files if files or folder is not None else [PILLOWS_OWN]


def covered_characters(path: Path, characters: Sequence[str]) -> frozenset[str]:
    """Subset of `characters` that a font file covers; empty when it cannot be opened, or is a symbol font."""
    try:
        font = _font(path, SIZES[0])
        if path != PILLOWS_OWN and has_symbols(path):
            return frozenset()
    except OSError:
        return frozenset()
    lacking = {_glyph(font, UNASSIGNED), _glyph(font, ' ')}
    return frozenset(character for character in characters if character == ' ' or _glyph(font, character) not in lacking)


def has_symbols(path: Path) -> bool:
    """True if a font declares symbols: class 12 of sFamilyClass in OpenType's table OS/2.

    Reads the list of tables and that byte, not the font: a Chinese one has 20 MB.
    """
    with path.open('rb') as file:
        tables = int.from_bytes(file.read(12)[4:6])
        records = (file.read(16) for _ in range(tables))
        start = next((int.from_bytes(record[8:12]) for record in records if record[:4] == b'OS/2'), None)
        if start is None:
            return False
        file.seek(start + 30)
        return file.read(1) == b'\x0c'


def render_line(text: str, font: Path, rng: Rng, pictures: Sequence[Path] = ()) -> Image:
    """Render a picture [H, W, 3] of `text`: written, warped, blended over a background, and degraded as by a camera.

    Backgrounds are cut out of `pictures` half of the time, if there are any. Raises SampleError for one that cannot be read.
    """
    ink = _crop(_warp(_draw_ink(text, font, rng), rng), rng)  # [H, W]
    background = _background(ink.shape[0], ink.shape[1], rng, pictures)
    picture = _blend_text(background, ink, rng)
    return _degrade(picture, rng)


def _draw_ink(text: str, path: Path, rng: Rng) -> Array:
    """Ink coverage per pixel, 0 to 1, with a margin of one letter height on all sides."""
    size = int(rng.choice(SIZES))
    font, free = _font(path, size), size
    stroke = int(rng.random() < 0.15)
    spacing = rng.uniform(0, 0.15) * size if rng.random() < 0.25 else 0.0
    pieces = list(text) if spacing else [text]  # as a whole, letters stand as the font's kerning wants them
    width = sum(font.getlength(piece) + spacing for piece in pieces)
    sheet = PIL.Image.new('L', (math.ceil(width) + 2 * free, 3 * size + free))
    pen = PIL.ImageDraw.Draw(sheet)
    x: float = free
    for piece in pieces:
        pen.text((x, 2 * size), piece, fill=255, font=font, anchor='ls', stroke_width=stroke)
        x += font.getlength(piece) + spacing
    return np.asarray(sheet, np.float32) / np.float32(255)


def _warp(ink: Array, rng: Rng) -> Array:
    """Rotate, slant and tilt the line a little in perspective, sometimes with waves: [H, W] as before."""
    H, W = ink.shape
    x, y = (grid.astype(np.float32) for grid in np.meshgrid(np.arange(W) - W / 2, np.arange(H) - H / 2))
    angle = math.radians(rng.normal(0, 2))
    slant = rng.normal(0, 0.1)
    nearer = rng.normal(0, 0.08) * 2 / W  # one end is larger than the other
    if rng.random() < 0.3:
        waves = rng.uniform(0.3, 1.2)
        y = y + np.float32(rng.uniform(0, 0.15) * H / 3) * np.sin(x * np.float32(2 * math.pi * waves / W) + rng.uniform(0, 6.3))
    depth = 1 + np.float32(nearer) * x
    across = (math.cos(angle) * x + math.sin(angle) * y + slant * y) * depth + W / 2
    down = (-math.sin(angle) * x + math.cos(angle) * y) * depth + H / 2
    return np.asarray(cv2.remap(ink, across.astype(np.float32), down.astype(np.float32), cv2.INTER_LINEAR), np.float32)


def _crop(ink: Array, rng: Rng) -> Array:
    """Crop the line as a detector would: mostly with a margin, sometimes a little too tight."""
    left, top, width, height = cv2.boundingRect((ink > 0.2).view(np.uint8))
    if not width:  # a blank, say
        return ink
    margins = rng.uniform(-0.04, 0.25, size=4) * height
    H, W = ink.shape
    y0, y1 = (int(np.clip(value, 0, H)) for value in (top - margins[0], top + height + margins[1] + 1))
    x0, x1 = (int(np.clip(value, 0, W)) for value in (left - margins[2], left + width + margins[3] + 1))
    return ink[y0:y1, x0:x1]


def _background(H: int, W: int, rng: Rng, pictures: Sequence[Path]) -> Array:
    """Background [H, W, 3], 0 to 255: part of a picture, one colour, or a gradient of two."""
    if pictures and rng.random() < 0.5:
        return _crop_picture(read_image(pictures[int(rng.integers(len(pictures)))]), H, W, rng)
    first, second = rng.uniform(0, 255, 3), rng.uniform(0, 255, 3)
    if rng.random() < 0.4:
        return np.broadcast_to(first.astype(np.float32), (H, W, 3)).copy()
    second = first + rng.uniform(0.1, 0.6) * (second - first)
    grid = rng.random((int(rng.integers(2, 5)), int(rng.integers(2, 9))), dtype=np.float32)
    mixture = np.asarray(cv2.resize(grid, (W, H), interpolation=cv2.INTER_CUBIC), np.float32).clip(0, 1)
    mixed: Array = (first + mixture[..., None] * (second - first)).astype(np.float32)
    return mixed


def _crop_picture(picture: Image, H: int, W: int, rng: Rng) -> Array:
    scale = max(1.0, H / picture.shape[0], W / picture.shape[1])
    if scale > 1:
        picture = cv2.resize(picture, None, fx=scale, fy=scale).astype(np.uint8, copy=False)
    y = int(rng.integers(0, max(1, picture.shape[0] - H + 1)))
    x = int(rng.integers(0, max(1, picture.shape[1] - W + 1)))
    part = picture[y : y + H, x : x + W]
    return np.asarray(cv2.resize(part, (W, H)), np.float32)


def _blend_text(background: Array, ink: Array, rng: Rng) -> Array:
    """Blend the text over the background in a contrasting colour; sometimes with a shadow or an outline."""
    colour = _contrasting_colour(background, rng)
    extra = rng.random()
    if extra < 0.12:
        shifted = np.roll(ink, (int(rng.integers(1, 3)), int(rng.integers(1, 3))), (0, 1))
        background = _blend(background, np.asarray(cv2.blur(0.6 * shifted, (3, 3)), np.float32), background.mean((0, 1)) * 0.3)
    elif extra < 0.24:
        outline = np.asarray(cv2.dilate(ink, np.ones((3, 3), np.uint8)), np.float32)
        background = _blend(background, outline, 255 - colour)
    return _blend(background, ink * np.float32(rng.uniform(0.75, 1)), colour)


def _contrasting_colour(background: Array, rng: Rng) -> npt.NDArray[np.float64]:
    """Colour [3] whose brightness differs from that of the background by at least CONTRAST."""
    weights = np.array([0.299, 0.587, 0.114])
    around = float(background.mean((0, 1)) @ weights)
    for _ in range(10):
        colour = rng.uniform(0, 255, 3)
        if abs(colour @ weights - around) >= CONTRAST:
            return colour
    return np.full(3, 255.0 if around < 128 else 0.0)


def _blend(below: Array, ink: Array, colour: npt.NDArray[np.floating]) -> Array:
    mixed: Array = (below + ink[..., None] * (colour - below)).astype(np.float32)
    return mixed


def _degrade(picture: Array, rng: Rng) -> Image:
    """Degrade a picture as a camera does, each sometimes: blur, low resolution, noise, JPEG compression."""
    H, W = picture.shape[:2]
    if rng.random() < 0.3:
        picture = np.asarray(cv2.GaussianBlur(picture, (0, 0), rng.uniform(0.3, 0.04 * H + 0.4)), np.float32)
    if rng.random() < 0.3:
        share = rng.uniform(0.35, 0.9)
        small = cv2.resize(picture, (max(1, int(W * share)), max(1, int(H * share))), interpolation=cv2.INTER_AREA)
        picture = np.asarray(cv2.resize(small, (W, H)), np.float32)
    if rng.random() < 0.5:
        picture = picture + rng.standard_normal(picture.shape, dtype=np.float32) * np.float32(rng.uniform(1, 14))
    taken = picture.clip(0, 255).astype(np.uint8)
    if rng.random() < 0.3:
        _, data = cv2.imencode('.jpg', taken, [cv2.IMWRITE_JPEG_QUALITY, int(rng.integers(25, 90))])
        taken = decode_image(data.tobytes(), 'a drawn line')[:, :, ::-1].copy()
    return taken


@lru_cache(maxsize=256)
def _font(path: Path, size: int) -> PIL.ImageFont.FreeTypeFont:
    if path == PILLOWS_OWN:
        own = PIL.ImageFont.load_default(size)
        assert isinstance(own, PIL.ImageFont.FreeTypeFont)  # it is where Pillow has FreeType, which all other fonts need too
        return own
    return PIL.ImageFont.truetype(str(path), size)


def _glyph(font: PIL.ImageFont.FreeTypeFont, character: str) -> tuple[tuple[int, int], bytes]:
    mask = font.getmask(character)
    return mask.size, bytes(mask)
