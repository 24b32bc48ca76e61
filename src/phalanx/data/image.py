"""Images and label maps in files, and pictures made of them. Shapes: K colours or classes.

`phalanx serve` decodes images where torch need not be installed.
"""

import colorsys
import io
import os
import stat
import struct
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image

from phalanx.data import jpeg, pdf, png
from phalanx.data.cache import kept
from phalanx.data.samples import Image, SampleError
from phalanx.runtime.prepare import MOST_PIXELS

LabelMap = npt.NDArray[np.uint8]  # [H, W] class ids
AS_STORED = cv2.IMREAD_COLOR_RGB | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
SUBFILE_TYPE = 254  # of a page of a TIFF file: its lowest bit marks a reduced copy of another one
# What is opened, by the names that Pillow gives the formats, and how files of each begin. Others never reach a decoder: some,
# EPS for one, are programs that Pillow would have run.
BEGINNINGS = {
    'PNG': (b'\x89PNG',),
    'JPEG': (jpeg.BEGINNING,),
    'BMP': (b'BM',),
    'TIFF': (b'II*\0', b'MM\0*'),
    'WEBP': (b'RIFF',),
    'GIF': (b'GIF8',),
    'PPM': tuple(b'P%d' % kind for kind in range(1, 7)),
}
FORMATS = tuple(BEGINNINGS)
# What Pillow raises of files that are damaged or none; its readers take what a file says at its word.
PILLOW_ERRORS = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError, struct.error),
    PIL.Image.DecompressionBombError,
)
HEADER = 2**20  # bytes in which the EXIF data of a JPEG file end


def read_image(path: Path | str) -> Image:
    """The picture in a file, [H, W, 3] uint8 RGB; grey ones get three equal channels, transparency is dropped.

    It is upright, turned as its EXIF data say, in every format: so does OpenCV, with which the originals read. Values of more
    than 8 bits become 8 as `eight_bits` does. Of several pages it is the first: `Pages` has all. Raises SampleError, also for a
    file that is damaged.
    """
    return kept(f'image {path}', lambda: decoded(_bytes(path), str(path)))


def decoded(data: bytes, name: str) -> Image:
    """The picture in `data`, the bytes of a file, as `read_image` gives it. Raises SampleError, which calls it `name`."""
    _check_bytes(data, name, 'an image')
    if data.startswith(jpeg.BEGINNING):
        return _decoded_jpeg(data, name)
    size = png.size(data) if data.startswith(png.SIGNATURE) else _size_by_pillow(data, name)
    if size is not None:
        _check_pixels(*size, name)
    by_spng = png.decoded(data, 'RGB')
    pixels = by_spng if by_spng is not None else eight_bits(_by_opencv(data, name))
    return jpeg.upright(pixels, _orientation(data))


def _by_opencv(data: bytes, name: str, frame: int = 0) -> npt.NDArray[Any]:
    """The picture of a frame [H, W, 3], as it is stored (of a TIFF file upright), of 8 or 16 bits. Raises SampleError."""
    try:
        values = np.frombuffer(data, np.uint8)
        if frame:
            _, frames = cv2.imdecodemulti(values, AS_STORED, range=(frame, frame + 1))
            pixels = next(iter(frames), None)
        else:
            pixels = cv2.imdecode(values, AS_STORED)
    except cv2.error as error:
        raise SampleError(f'{name}: cannot be decoded: {error.err}') from None
    if pixels is None:
        raise SampleError(f'{name}: is not an image that can be decoded ({_beginning(data)})')
    return pixels


def eight_bits(pixels: npt.NDArray[Any]) -> Image:
    """The 8 upper bits of values of 16 bits, as in OpenCV, or of the fewer bits that `depth` finds in them."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    return (pixels >> (depth(int(pixels.max())) - 8)).astype(np.uint8)


def depth(most: int) -> int:
    """How many bits the values of an image have whose largest one is `most`: 8, 10, 12, 14 or 16.

    Cameras and scanners store 12 bits, say, in files of 16 and do not write down how many there are.
    """
    return max(8, most.bit_length() + most.bit_length() % 2)


def depth_of(path: Path) -> int:
    """How many bits the values of an image have; 8 also for what cannot be decoded."""
    try:
        data = _bytes(path)
        if data[:2] == jpeg.BEGINNING or (data[:8] == png.SIGNATURE and png.depth(data) != 16):
            return 8
        pixels = _by_opencv(data, str(path))
    except SampleError:
        return 8
    return depth(int(pixels.max())) if pixels.dtype == np.uint16 else 8


class Pages:
    """The pictures in a file: the pages of a TIFF or PDF file, the frames of a GIF; of most files one.

    Reduced copies in a TIFF file are none. Raises SampleError.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._data = path, _bytes(path)
        self._pdf = pdf.Document(self._data, str(path)) if self._data.startswith(pdf.BEGINNING) else None
        self._frames = [0] if self._pdf else _frames(self._data)

    def __len__(self) -> int:
        return len(self._pdf) if self._pdf else len(self._frames)

    def read(self, number: int) -> Image:
        """The picture `number`, from 0 on, as `read_image` gives it. Raises SampleError."""
        if self._pdf:
            return self._pdf.page(number)
        if len(self) == 1:
            return decoded(self._data, str(self.path))
        name = f'{self.path}, page {number + 1}'
        try:
            with opened(self._data) as image:
                image.seek(self._frames[number])
                _check_pixels(*image.size, name)
                if image.format == 'GIF':  # whose later frames OpenCV lays on the wrong colour
                    return np.array(image.convert('RGB'))
        except PILLOW_ERRORS as error:
            raise SampleError(f'{name}: cannot be decoded: {error}') from None
        return eight_bits(_by_opencv(self._data, name, self._frames[number]))


def _frames(data: bytes) -> list[int]:
    """The numbers of the frames that are pictures of their own. What cannot be decoded has one: reading it says why."""
    try:
        with opened(data) as image:
            if image.format not in ('TIFF', 'GIF'):
                return [0]
            found = []
            for number in range(getattr(image, 'n_frames', 1)):
                image.seek(number)
                if number == 0 or not (image.format == 'TIFF' and image.tag_v2.get(SUBFILE_TYPE, 0) & 1):  # type: ignore[attr-defined]
                    found.append(number)
            return found
    except PILLOW_ERRORS:
        return [0]


def _decoded_jpeg(data: bytes, name: str) -> Image:
    found = jpeg.header(data)
    if not found.is_whole:
        raise SampleError(f'{name}: the image is cut off ({len(data)} bytes are there)')
    if found.size is not None:
        _check_pixels(*found.size, name)
    try:
        return jpeg.decoded(data, found)
    except ValueError as error:
        raise SampleError(f'{name}: {error}') from None


def read_labels(path: Path) -> LabelMap:
    """The label map in a file, [H, W] uint8: the indices of a palette image, or the values of a grey one.

    Raises SampleError. (OpenCV would give the colours of a palette image, not its indices; hence Pillow.)
    """
    return kept(f'labels {path}', lambda: _decoded_labels(path))


def _decoded_labels(path: Path) -> LabelMap:
    data = _bytes(path)
    _check_bytes(data, str(path), 'a label map')
    if data.startswith(jpeg.BEGINNING):  # of which Pillow, too, fills what is missing with grey
        _decoded_jpeg(data, str(path))
    if (size := png.size(data)) is not None:
        _check_pixels(*size, str(path))
    if (by_spng := png.decoded(data, 'L')) is not None:
        return by_spng
    try:
        with opened(data) as image:
            _check_pixels(*image.size, str(path))
            if image.mode not in ('P', 'L'):
                cure = '; `phalanx data prepare colours` makes one of colours' if image.mode in ('RGB', 'RGBA') else ''
                said = f'has colour mode {image.mode}; a label map is a palette (P) or 8-bit grey (L) image'
                raise SampleError(f'{path}: {said}{cure}')
            return np.array(image)
    except PILLOW_ERRORS as error:
        raise SampleError(f'{path}: is not a label map that can be decoded ({error}; {_beginning(data)})') from None


def if_turned(size: tuple[int, ...], annotated: tuple[int, ...]) -> str:
    """The rest of a message about a picture of another size than its annotation, when its sides are exchanged."""
    cure = '; images are turned as their EXIF data say, so annotate them upright'
    return cure if size == annotated[::-1] != annotated else ''


def orientation_of(path: Path) -> int:
    """How an image file is turned when it is read, in the numbers of EXIF; 1, not at all, also for what is no image."""
    try:
        if not path.is_file():
            return 1
        with path.open('rb') as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            if data[:2] == jpeg.BEGINNING:
                return jpeg.header(data[:HEADER]).orientation
            if data[:4] in BEGINNINGS['TIFF']:
                with opened(path) as image:
                    return tiff_orientation(image)
            return _orientation(data)
    except (OSError, ValueError, *PILLOW_ERRORS):
        return 1


def _orientation(data: bytes | mmap) -> int:
    """What EXIF data of a PNG or WEBP file say; 1 for other formats: OpenCV itself turns TIFF files."""
    if data[:8] == png.SIGNATURE:
        return png.orientation(data)
    if data[:4] == b'RIFF' and data[8:12] == b'WEBP':
        place = 12
        while place + 8 <= len(data):
            end = place + 8 + int.from_bytes(data[place + 4 : place + 8], 'little')
            if data[place : place + 4] == b'EXIF':
                return jpeg.orientation_in(data[place + 8 : end])
            place = end + end % 2
    return 1


def tiff_orientation(image: PIL.Image.Image) -> int:
    value = image.tag_v2.get(jpeg.ORIENTATION, 1)  # type: ignore[attr-defined]
    return value if value in range(1, 9) else 1


def size_of(path: Path) -> tuple[int, int]:
    """(width, height) of the upright image; pixels are not read. Raises one of PILLOW_ERRORS."""
    with opened(path) as image:
        if image.format == 'TIFF':  # Pillow has turned its size or not, by version
            width, height = (int(image.tag_v2[tag]) for tag in (256, 257))  # type: ignore[attr-defined]
        else:
            width, height = image.size
    return (height, width) if orientation_of(path) >= 5 else (width, height)


def _bytes(path: Path | str) -> bytes:
    name = str(path)
    try:
        mode = os.stat(name).st_mode  # noqa: PTH116  # Path's own ways cost as much again as the system's
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe would be waited for, a device read without end
            raise SampleError(f'{path}: cannot be read: it is not a file')
        with open(name, 'rb', buffering=0) as file:  # noqa: PTH123
            data = file.readall()
    except OSError as error:
        raise SampleError(f'{path}: cannot be read: {error.strerror}') from None
    except ValueError as error:  # a zero byte in the name
        raise SampleError(f'{path}: cannot be read: {error}') from None
    if not data:
        raise SampleError(f'{path}: is empty')
    return data


def opened(source: bytes | Path) -> PIL.Image.Image:
    """An image as Pillow opens it, of the formats in FORMATS. Raises what `PIL.Image.open` raises."""
    return PIL.Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)


def _check_bytes(data: bytes, name: str, kind: str) -> None:
    """Raises SampleError, before a decoder sees them, for bytes that are not an image or a PNG file without its end."""
    if not any(data.startswith(beginning) for beginnings in BEGINNINGS.values() for beginning in beginnings):
        raise SampleError(f'{name}: is not {kind} that can be decoded ({_beginning(data)}); {", ".join(BEGINNINGS)} can')
    if data.startswith(BEGINNINGS['PNG']) and not png.has_its_chunks(data):
        cut = 'the image' if kind == 'an image' else f'is not {kind} that can be decoded: it'
        raise SampleError(f'{name}: {cut} is cut off ({len(data)} bytes are there)')


def _beginning(data: bytes) -> str:
    return f'{len(data)} bytes, beginning with {data[:8]!r}'


def _size_by_pillow(data: bytes, name: str) -> tuple[int, int] | None:
    """Width and height of other formats. What Pillow does not know is left to OpenCV, which refuses more than 2**30 pixels."""
    try:
        with opened(data) as image:
            return image.size
    except PIL.Image.DecompressionBombError as error:
        raise SampleError(f'{name}: {error}') from None
    except PILLOW_ERRORS:
        return None


def _check_pixels(width: int, height: int, name: str) -> None:
    if width * height > MOST_PIXELS:
        limit = f'{MOST_PIXELS / 2**20:.0f} million'
        raise SampleError(f'{name}: has {width} x {height} pixels, more than the {limit} that are decoded; cut it into tiles')


def palette(K: int) -> npt.NDArray[np.uint8]:
    """K colours [K, 3] that are easy to distinguish: neighbours differ most in hue, and similar hues in brightness."""
    golden = (5**0.5 - 1) / 2
    shades = ((0.8, 0.95), (0.9, 0.5), (0.4, 0.9), (0.5, 0.6), (1, 0.75))  # saturation, value
    colours = [colorsys.hsv_to_rgb(0.6 + number * golden % 1, *shades[number % len(shades)]) for number in range(K)]
    return (np.array(colours).reshape(K, 3) * 255).round().astype(np.uint8)


def overlay(image: Image, colours: Image, alpha: float) -> Image:
    """`image` [H, W, 3] with as much of `colours` [H, W, 3] mixed in as `alpha` (0 to 1) says."""
    return cv2.addWeighted(image, 1 - alpha, colours, alpha, 0).astype(np.uint8, copy=False)


def left_right(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The mirror image of [H, W, ...], in memory of its own: OpenCV would copy a view with backward steps, which takes long."""
    return cv2.flip(image, 1).astype(np.uint8, copy=False)
