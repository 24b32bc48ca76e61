"""Images of other bands than 8-bit RGB: grey, infrared, multispectral, with 8 or 16 bits per value. Shape: C bands."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import cv2
import numpy as np
import numpy.typing as npt

from phalanx.data import jpeg
from phalanx.data.cache import read_cached
from phalanx.data.image import (
    BEGINNINGS,
    PILLOW_ERRORS,
    AnImage,
    check_bytes,
    check_pixels,
    decode_by_opencv,
    find_orientation,
    open_with_pillow,
    read_bytes,
    size_by_pillow,
)
from phalanx.data.samples import Image, SampleError
from phalanx.runtime.prepare import check_image

MOST_BANDS = 16
SHARES = (2, 98)  # percentiles of the values that a picture shows as black and as white
ORIENTATION, EXTRA_SAMPLES = 274, 338  # tags of TIFF
CURE = "pip install 'phalanx-vision[bands]'"
SAMPLE, PIXELS = 50, 20_000  # images, and pixels of each, that mean and standard deviation come from
LEAST = 1e-4  # mean or deviation in a recipe, a share of the largest value


@dataclass(frozen=True, kw_only=True)
class Bands:
    """Bands of the image files of a data set, all of which are used, as they are stored.

    `mean` and `std` of the recipe then have one value per band, relative to the largest value of `bits`: 255 or 65535. TIFF
    files need `phalanx-vision[bands]`; PNG, JPEG and others have up to four bands.
    """

    count: int
    bits: Literal[8, 16] = 8
    """Bits per value of the files; values of 10 or 12 bits in files of 16 stay as they are."""
    shown: tuple[int, ...] = ()
    """Numbers, from 1, of the bands that pictures show as red, green and blue, or of one, in grey (default: the first)."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= MOST_BANDS:
            raise ValueError(f'count must lie between 1 and {MOST_BANDS}, got {self.count}')
        if len(self.shown) not in (0, 1, 3) or any(not 1 <= number <= self.count for number in self.shown):
            raise ValueError(f'shown names 1 or 3 of the bands 1 to {self.count}, got {list(self.shown)}')

    @property
    def dtype(self) -> Any:
        return np.uint8 if self.bits == 8 else np.uint16

    @property
    def largest(self) -> int:
        """Largest value of a pixel, to which `mean` and `std` are relative."""
        return (1 << self.bits) - 1

    def read(self, path: Path | str) -> Image:
        """Read an image file as [H, W, C] uint8 or uint16, turned upright. Raises SampleError, also for other bands."""
        # The cache holds bytes.
        data = read_cached(f'bands {path}', lambda: self.decode(read_bytes(path), str(path)).view(np.uint8))
        return data.view(self.dtype)

    def load(self, image: AnImage) -> Image:
        """Load an image, from an array or a file. Raises ValueError and SampleError."""
        pixels = self.read(image) if isinstance(image, str | Path) else image
        return check_image(pixels, self.count, self.bits)

    def decode(self, data: bytes, name: str) -> Image:
        """Decode the bytes of an image file; `name` is for messages. Raises SampleError."""
        pixels = decode_bands(data, name)
        bits = 8 * pixels.itemsize
        if (pixels.shape[2], bits) != (self.count, self.bits):
            what = f'{pixels.shape[2]} band{"s" * (pixels.shape[2] != 1)} of {bits} bits'
            raise SampleError(f'{name}: has {what}, but data.bands is count: {self.count}, bits: {self.bits}')
        return np.ascontiguousarray(pixels)


def decode_bands(data: bytes, name: str) -> npt.NDArray[Any]:
    """Decode the bytes of an image file as stored, [H, W, C] uint8 or uint16, turned upright. Raises SampleError."""
    check_bytes(data, name, 'an image')
    pixels = _decode_tiff(data, name) if data[:4] in BEGINNINGS['TIFF'] else _decode(data, name)
    if pixels.dtype not in (np.uint8, np.uint16):
        raise SampleError(f'{name}: has values of type {pixels.dtype}; convert them to integers of 8 or 16 bits')
    return pixels


def _decode_tiff(data: bytes, name: str) -> npt.NDArray[Any]:
    """Bands of a TIFF file, whether pixels, planes or pages hold them, [H, W, C]."""
    # OpenCV and Pillow read at most four bands.
    try:
        import tifffile
    except ImportError:
        raise SampleError(f'{name}: bands of TIFF files need tifffile; {CURE}') from None
    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            series = file.series[0]
            page = file.pages.first
            check_pixels(page.imagewidth, page.imagelength, name)
            axes, shape = series.axes, series.shape
            others = [axis for axis, size in zip(axes, shape, strict=True) if axis not in 'YX' and size > 1]
            count = int(np.prod(shape)) // (page.imagewidth * page.imagelength)
            if len(others) > 1 or count > MOST_BANDS:
                raise SampleError(f'{name}: has the dimensions {axes} of sizes {list(shape)}, which are not bands of one image')
            pixels = series.asarray()
            orientation = int(getattr(page.tags.get(ORIENTATION), 'value', 1))
    except SampleError:
        raise
    except Exception as error:  # noqa: BLE001  # whatever a damaged file provokes in a decoder, or a missing codec
        cure = f'; {CURE}' if 'imagecodecs' in str(error) else ''
        raise SampleError(f'{name}: cannot be decoded: {error}{cure}') from None
    last = [axis for axis in range(len(axes)) if axes[axis] not in 'YX']
    pixels = pixels.transpose(axes.index('Y'), axes.index('X'), *last)
    return _turn_upright(pixels.reshape(*pixels.shape[:2], -1), orientation)


def _decode(data: bytes, name: str) -> npt.NDArray[Any]:
    """Bands of another file, [H, W, 1 to 4] in the order RGBA."""
    if data.startswith(jpeg.BEGINNING):
        header = jpeg.read_header(data)
        if not header.is_whole:
            raise SampleError(f'{name}: the image is cut off ({len(data)} bytes are there)')
    if (size := size_by_pillow(data, name)) is not None:
        check_pixels(*size, name)
    pixels = decode_by_opencv(data, name, cv2.IMREAD_UNCHANGED)
    pixels = pixels.reshape(*pixels.shape[:2], -1)
    if pixels.shape[2] >= 3:  # OpenCV's order is BGR
        pixels = pixels[:, :, [2, 1, 0, *range(3, pixels.shape[2])]]
    return _turn_upright(pixels, find_orientation(data))


def _turn_upright(pixels: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    if orientation == 1:
        return pixels
    planes = [jpeg.turn_upright(np.ascontiguousarray(plane), orientation) for plane in np.moveaxis(pixels, 2, 0)]
    return np.stack(planes, 2)


def to_rgb(image: npt.NDArray[Any], bands: Bands | None) -> Image:
    """Picture [H, W, 3] uint8 of an image: that of `bands.shown`, values of 16 bits stretched from black to white."""
    if bands is None:
        return image
    first = (1, 2, 3) if bands.count >= 3 else (1,)
    chosen = [number - 1 for number in bands.shown or first]
    picture = image[:, :, chosen if len(chosen) == 3 else chosen * 3]
    if bands.bits == 16:
        low, high = np.percentile(picture, SHARES)
        picture = ((picture - low) * (255 / max(high - low, 1))).clip(0, 255).round().astype(np.uint8)
    return np.ascontiguousarray(picture)


def find_bands(paths: Sequence[Path]) -> tuple[Bands, list[float], list[float]] | None:
    """Bands, mean and standard deviation per band of the images `paths`; None for those that are read as RGB.

    Up to SAMPLE of them are read. If one is RGB, all are read as RGB; otherwise the first decides. Raises SampleError if
    tifffile is missing.
    """
    found: Bands | None = None
    values: list[npt.NDArray[Any]] = []
    for path in paths[:: -(-len(paths) // SAMPLE) or 1]:
        data = read_bytes(path)
        has_others = _has_other_bands(data)
        if has_others is False:
            return None
        if has_others is None:
            continue
        try:
            image = decode_bands(data, str(path))
        except SampleError:
            if find_spec('tifffile') is None:
                raise
            continue  # reading the sample reports why
        bands = Bands(count=image.shape[2], bits=8 if image.dtype == np.uint8 else 16)
        found = found or bands
        if bands == found:
            pixels = image.reshape(-1, bands.count)
            values.append(pixels[:: max(1, len(pixels) // PIXELS)].copy())
    if found is None:
        return None
    shares = np.concatenate(values).astype(np.float64) / found.largest
    # A band may be constant, and is divided by its deviation.
    mean, std = ([float(f'{max(value, LEAST):.3g}') for value in row] for row in (shares.mean(0), shares.std(0)))
    return found, mean, std


def _has_other_bands(data: bytes) -> bool | None:
    """True for an image file with other bands than RGB, transparency or 8 bits of grey; None for a damaged one."""
    try:
        with open_with_pillow(data) as image:
            # Grey, of 16 bits; an RGB image of 16 bits is read as one of 8. A fourth band of a TIFF file that is no
            # transparency: infrared, for example.
            is_tiff = image.format == 'TIFF'
            return image.mode.startswith('I;16') or (is_tiff and image.tag_v2.get(EXTRA_SAMPLES, (None,))[0] == 0)  # type: ignore[attr-defined]
    except PILLOW_ERRORS:  # Pillow opens no other numbers of bands
        return data[:4] in BEGINNINGS['TIFF'] or None


def read_size(path: Path) -> tuple[int, int]:
    """(width, height) of an upright image of any bands. Raises SampleError."""
    height, width = decode_bands(read_bytes(path), str(path)).shape[:2]
    return width, height
