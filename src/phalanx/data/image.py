"""Decoding of images and label maps; palettes and overlays. Shapes: K colours or classes.

Loads no torch: `phalanx serve` decodes images without it.
"""

import colorsys
import hashlib
import io
import os
import stat
import struct
from collections.abc import Sequence
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import PIL.Image
import PIL.ImageOps

from phalanx.data import jpeg, png
from phalanx.data.cache import read_cached
from phalanx.data.samples import Image, SampleError
from phalanx.runtime.prepare import MOST_PIXELS, check_image
from phalanx.system.buckets import StoreError, StorePath, is_url
from phalanx.system.errors import LFS, POINTER
from phalanx.system.paths import hint_slashes

AnImage = Image | str | Path | PIL.Image.Image
COLOURS = ('1', 'L', 'LA', 'P', 'PA', 'RGB', 'RGBA', 'CMYK', 'YCbCr')  # modes of Pillow for files of 8 bits
LabelMap = npt.NDArray[np.uint8]  # [H, W] class ids
# As BGR: OpenCV 5.0 mixes up the pixels of 16-bit TIFF files when it decodes them as RGB.
AS_STORED = cv2.IMREAD_COLOR | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
SUBFILE_TYPE = 254  # tag of a page of a TIFF file; its lowest bit marks a reduced copy of another page
# Allowed formats by their names in Pillow, with the first bytes of their files. Others never reach a decoder: some, as EPS,
# are programs that Pillow would execute.
BEGINNINGS = {
    'PNG': (b'\x89PNG',),
    'JPEG': (jpeg.BEGINNING,),
    'BMP': (b'BM',),
    'TIFF': (b'II*\0', b'MM\0*', b'II+\0', b'MM\0+'),  # the last two: BigTIFF
    'WEBP': (b'RIFF',),
    'GIF': (b'GIF8',),
    'PPM': tuple(b'P%d' % kind for kind in range(1, 7)),
}
FORMATS = tuple(BEGINNINGS)
OTHERS = {
    'HEIC': (b'ftypheic', b'ftypheix', b'ftyphevc', b'ftypmif1', b'ftypmsf1'),
    'AVIF': (b'ftypavif', b'ftypavis'),
    'JPEG 2000': (b'jP  ', b'\xff\x4f\xff\x51'),
    'JPEG XL': (b'JXL ', b'\xff\x0a'),
    'a Photoshop file': (b'8BPS',),
    'SVG': (b'<svg',),
}
# Exceptions of Pillow for damaged files, whose headers its readers trust.
PILLOW_ERRORS = (
    *(OSError, SyntaxError, ValueError, TypeError, LookupError, ArithmeticError, AttributeError, EOFError, struct.error),
    PIL.Image.DecompressionBombError,
)
BACKGROUNDS = ('background', 'bg')  # names of a class, apart from underscores around them
DESCRIBED = 512  # bytes in which a web page shows itself
HEADER = 2**20  # bytes in which the EXIF data of a JPEG file end


def read_image(path: Path | str) -> Image:
    """Read the picture in a file, [H, W, 3] uint8 RGB; grey ones get three equal channels, transparency is dropped.

    It is turned upright by its EXIF orientation in every format, as in OpenCV, which the originals use. Values of more than
    8 bits are reduced by `to_eight_bits`. A file with several pages gives the first; `Pages` reads all. Raises SampleError, for
    a damaged file too.
    """
    return read_cached(f'image {path}', lambda: decode_image(read_bytes(path), str(path)))


def decode_image(data: bytes, name: str) -> Image:
    """Decode the bytes of an image file, with the result of `read_image`. `name` is for messages. Raises SampleError."""
    # Format, completeness and size are checked first: decoders allocate what a header claims.
    check_bytes(data, name, 'an image')
    if data.startswith(jpeg.BEGINNING):
        return _decode_jpeg(data, name)
    size = png.read_size(data) if data.startswith(png.SIGNATURE) else size_by_pillow(data, name)
    if size is not None:
        check_pixels(*size, name)
    # libspng for common PNG files, OpenCV for the rest.
    by_spng = png.decode_png(data, 'RGB')
    pixels = by_spng if by_spng is not None else to_eight_bits(_by_opencv(data, name))
    return jpeg.turn_upright(pixels, find_orientation(data))


def _by_opencv(data: bytes, name: str, frame: int = 0) -> npt.NDArray[Any]:
    """Frame [H, W, 3] of 8 or 16 bits as it is stored; upright for a TIFF file. Raises SampleError."""
    return cv2.cvtColor(decode_by_opencv(data, name, AS_STORED, frame), cv2.COLOR_BGR2RGB)


def decode_by_opencv(data: bytes, name: str, flags: int, frame: int = 0) -> npt.NDArray[Any]:
    """Frame as OpenCV decodes it with `flags`, colours as BGR. Raises SampleError."""
    try:
        # As stored: 16 bits are kept, and only `turn_upright` turns images.
        values = np.frombuffer(data, np.uint8)
        if frame:
            _, frames = cv2.imdecodemulti(values, flags, range=(frame, frame + 1))
            pixels = next(iter(frames), None)
        else:
            pixels = cv2.imdecode(values, flags)
    except cv2.error as error:
        raise SampleError(f'{name}: cannot be decoded: {error.err}') from None
    if pixels is None:
        raise SampleError(f'{name}: is not an image that can be decoded ({_describe(data)})')
    return pixels


def to_eight_bits(pixels: npt.NDArray[Any]) -> Image:
    """Upper 8 bits of 16-bit values, as in OpenCV, or of values of fewer bits (`bit_depth`)."""
    if pixels.dtype == np.uint8:
        return pixels.astype(np.uint8, copy=False)
    return (pixels >> (bit_depth(int(pixels.max())) - 8)).astype(np.uint8)


def bit_depth(most: int) -> int:
    """Bits of the values of an image whose largest one is `most`: 8, 10, 12, 14 or 16.

    Cameras and scanners store 12 bits, for example, in files of 16 and do not record the number.
    """
    return max(8, most.bit_length() + most.bit_length() % 2)


def file_bit_depth(path: Path) -> int:
    """Bits of the values of an image file; 8 also for a file that cannot be decoded."""
    try:
        data = read_bytes(path)
        if data[:2] == jpeg.BEGINNING or (data[:8] == png.SIGNATURE and png.bit_depth(data) != 16):
            return 8
        pixels = _by_opencv(data, str(path))
    except SampleError:
        return 8
    return bit_depth(int(pixels.max())) if pixels.dtype == np.uint16 else 8


def load_pixels(image: AnImage) -> Image:
    """Load an image as [H, W, 3] uint8 RGB; one of PIL is read as its file would be. Raises ValueError and SampleError."""
    if isinstance(image, str | Path):
        return read_image(Path(image))
    if isinstance(image, PIL.Image.Image):
        if image.mode not in COLOURS:
            raise ValueError(
                f'a PIL image of mode {image.mode} is not read, for its values have another range; convert it to RGB'
            )
        return np.array(PIL.ImageOps.exif_transpose(image).convert('RGB'))
    # torch.from_numpy warns about read-only arrays.
    return np.require(check_image(image), requirements='W')


class Pages:
    """Pictures in a file: pages of a TIFF or PDF file, frames of a GIF; one in other formats.

    Reduced copies in a TIFF file do not count. `on_white`: transparent pixels are white, as on paper; otherwise they have the
    colours stored below the transparency, as in training. Raises SampleError.
    """

    def __init__(self, path: Path, *, on_white: bool = False) -> None:
        from phalanx.data import pdf  # here: a training reads no pages

        self.path, self.on_white, self._data = path, on_white, read_bytes(path)
        self._pdf = pdf.Document(self._data, str(path)) if self._data.startswith(pdf.BEGINNING) else None
        self._frames = [0] if self._pdf else find_frames(self._data)

    def __len__(self) -> int:
        return len(self._pdf) if self._pdf else len(self._frames)

    def content_hash(self) -> str:
        """SHA-256 of the file as hexadecimal digits."""
        return hashlib.sha256(self._data).hexdigest()

    def read(self, number: int) -> Image:
        """Picture `number`, from 0, with the result of `read_image`. Raises SampleError."""
        if self._pdf:
            return self._pdf.page(number)
        name = f'{self.path}, page {number + 1}' if len(self) > 1 else str(self.path)
        if len(self) == 1:
            pixels = decode_image(self._data, name)
            if not self.on_white:
                return pixels
        # Pillow seeks and checks the size; OpenCV decodes, so that all formats give the same pixels.
        try:
            with open_with_pillow(self._data) as image:
                image.seek(self._frames[number])
                check_pixels(*image.size, name)
                if self.on_white and (image.mode in ('RGBA', 'LA', 'PA') or 'transparency' in image.info):
                    white = PIL.Image.new('RGBA', image.size, 'white')
                    flat = np.array(PIL.Image.alpha_composite(white, image.convert('RGBA')).convert('RGB'))
                    return jpeg.turn_upright(flat, find_orientation(self._data))
                if len(self) == 1:
                    return pixels
                if image.format == 'GIF':  # OpenCV composes later frames on a wrong background
                    return np.array(image.convert('RGB'))
        except PILLOW_ERRORS as error:
            raise SampleError(f'{name}: cannot be decoded: {error}') from None
        return to_eight_bits(_by_opencv(self._data, name, self._frames[number]))


def find_frames(data: bytes) -> list[int]:
    """Numbers of the frames that are not reduced copies. An unreadable file has one: reading it reports why."""
    try:
        with open_with_pillow(data) as image:
            if image.format not in ('TIFF', 'GIF'):
                return [0]
            frames = []
            for number in range(getattr(image, 'n_frames', 1)):
                image.seek(number)
                if number == 0 or not (image.format == 'TIFF' and image.tag_v2.get(SUBFILE_TYPE, 0) & 1):  # type: ignore[attr-defined]
                    frames.append(number)
            return frames
    except PILLOW_ERRORS:
        return [0]


def _decode_jpeg(data: bytes, name: str) -> Image:
    header = jpeg.read_header(data)
    if not header.is_whole:
        raise SampleError(f'{name}: the image is cut off ({len(data)} bytes are there)')
    if header.size is not None:
        check_pixels(*header.size, name)
    try:
        return jpeg.decode_jpeg(data, header)
    except ValueError as error:
        raise SampleError(f'{name}: {error}') from None


def read_labels(path: Path) -> LabelMap:
    """Read the label map in a file, [H, W] uint8: the indices of a palette image, or the values of a grey one.

    Raises SampleError. (OpenCV would give the colours of a palette image, not its indices; hence Pillow.)
    """
    return read_cached(f'labels {path}', lambda: decode_labels(read_bytes(path), str(path)))


def decode_labels(data: bytes, name: str) -> LabelMap:
    """Decode the bytes of a label map, with the result of `read_labels`. `name` is for messages. Raises SampleError."""
    check_bytes(data, name, 'a label map')
    if data.startswith(jpeg.BEGINNING):  # decoded only to find damage: Pillow, too, fills missing parts with grey
        _decode_jpeg(data, name)
    if (size := png.read_size(data)) is not None:
        check_pixels(*size, name)
    if (by_spng := png.decode_png(data, 'L')) is not None:
        return jpeg.turn_upright(by_spng, find_orientation(data))
    try:
        with open_with_pillow(data) as image:
            check_pixels(*image.size, name)
            if image.mode not in ('P', 'L'):
                cure = '; `phalanx data prepare colours` makes one of colours' if image.mode in ('RGB', 'RGBA') else ''
                fault = f'has colour mode {image.mode}; a label map is a palette (P) or 8-bit grey (L) image'
                raise SampleError(f'{name}: {fault}{cure}')
            return np.array(PIL.ImageOps.exif_transpose(image))
    except PILLOW_ERRORS as error:
        raise SampleError(f'{name}: is not a label map that can be decoded ({error}; {_describe(data)})') from None


def turned_hint(path: Path, size: tuple[int, ...], annotated: tuple[int, ...]) -> str:
    """End of a message about a picture whose size differs from its annotation, when its sides are exchanged; else empty."""
    turned = '; images are turned as their EXIF data say, so annotate them upright'
    cure = turned if file_orientation(path) >= 5 else '; are width and height exchanged in the annotation?'
    return cure if size == annotated[::-1] != annotated else ''


def file_orientation(path: Path) -> int:
    """EXIF orientation by which an image file is turned; 1 (none) also for other files."""
    try:
        if not path.is_file():
            return 1
        with path.open('rb') as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            if data[:2] == jpeg.BEGINNING:
                return jpeg.read_header(data[:HEADER]).orientation
            if data[:4] in BEGINNINGS['TIFF']:
                with open_with_pillow(path) as image:
                    return tiff_orientation(image)
            return find_orientation(data)
    except (OSError, ValueError, *PILLOW_ERRORS):
        return 1


def find_orientation(data: bytes | mmap) -> int:
    """EXIF orientation of a PNG or WEBP file; 1 for other formats: OpenCV itself turns TIFF files."""
    if data[:8] == png.SIGNATURE:
        return png.read_png_orientation(data)
    if data[:4] == b'RIFF' and data[8:12] == b'WEBP':
        # WEBP is RIFF: chunks of a name, a length and data, padded to an even length.
        place = 12
        while place + 8 <= len(data):
            end = place + 8 + int.from_bytes(data[place + 4 : place + 8], 'little')
            if data[place : place + 4] == b'EXIF':
                return jpeg.read_orientation(data[place + 8 : end])
            place = end + end % 2
    return 1


def tiff_orientation(image: PIL.Image.Image) -> int:
    value = image.tag_v2.get(jpeg.ORIENTATION, 1)  # type: ignore[attr-defined]
    return value if value in range(1, 9) else 1


def size_of(path: Path) -> tuple[int, int]:
    """(width, height) of the upright image; pixels are not read. Raises one of PILLOW_ERRORS."""
    with open_with_pillow(path) as image:
        orientation = jpeg.read_orientation(image.info.get('exif', b'')) if image.format == 'JPEG' else file_orientation(path)
        if image.format == 'TIFF':  # Pillow has turned its size or not, by version
            width, height = (int(image.tag_v2[tag]) for tag in (256, 257))  # type: ignore[attr-defined]
        else:
            width, height = image.size
    return (height, width) if orientation >= 5 else (width, height)


def read_bytes(path: Path | str) -> bytes:
    name = str(path)
    try:
        if is_url(name):
            with StorePath(name).open('rb') as remote:
                return _check_bytes_present(remote.read(), name)
        mode = os.stat(name).st_mode  # noqa: PTH116  # Path's own ways cost as much again as the system's
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a pipe would block, a device never end
            raise SampleError(f'{path}: cannot be read: it is not a file')
        with open(name, 'rb', buffering=0) as file:  # noqa: PTH123
            return _check_bytes_present(file.readall(), name)
    except StoreError:  # of the store, not of the sample: the run must not go on without it
        raise
    except FileNotFoundError as error:
        raise SampleError(f'{path}: cannot be read: {error.strerror}{hint_slashes(name)}') from None
    except OSError as error:
        raise SampleError(f'{path}: cannot be read: {error.strerror}') from None
    except ValueError as error:  # a zero byte in the name
        raise SampleError(f'{path}: cannot be read: {error}') from None


def _check_bytes_present(data: bytes, name: str) -> bytes:
    if not data:
        raise SampleError(f'{name}: is empty')
    return data


def open_with_pillow(source: bytes | Path) -> PIL.Image.Image:
    """Open an image with Pillow, restricted to FORMATS. Raises PILLOW_ERRORS."""
    source = source.local() if isinstance(source, StorePath) else source
    try:
        return PIL.Image.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=FORMATS)
    except PIL.UnidentifiedImageError:  # whose message is the path
        if not isinstance(source, bytes):  # files of other bands have gigabytes
            with source.open('rb') as file:
                source = file.read(DESCRIBED)
        raise PIL.UnidentifiedImageError(f'{_describe(source)}; {", ".join(BEGINNINGS)} can be') from None


def check_bytes(data: bytes, name: str, kind: str) -> None:
    """Raise SampleError for bytes of other formats and for a truncated PNG file, before they reach a decoder."""
    if not any(data.startswith(beginning) for beginnings in BEGINNINGS.values() for beginning in beginnings):
        raise SampleError(f'{name}: is not {kind} that can be decoded ({_describe(data)}); {", ".join(BEGINNINGS)} can')
    if data.startswith(BEGINNINGS['PNG']) and not png.is_complete(data):
        cut = 'the image' if kind == 'an image' else f'is not {kind} that can be decoded: it'
        raise SampleError(f'{name}: {cut} is cut off ({len(data)} bytes are there)')


def _describe(data: bytes) -> str:
    """Say what a file is instead of an image that can be decoded."""
    if data.startswith(LFS):
        return f'it {POINTER}'
    if data[:DESCRIBED].lstrip().lower().startswith((b'<!doctype', b'<html')):
        return 'it is a web page: a login or an error answered the download'
    for name, beginnings in OTHERS.items():
        if data.startswith(beginnings) or data[4:].startswith(beginnings):  # some after their length
            return f'it is {name}: convert it, for example with ImageMagick'
    size = f'{len(data)} bytes, ' if len(data) != DESCRIBED else ''  # so many may be the beginning of more
    return f'{size}beginning with {data[:8]!r}'


def size_by_pillow(data: bytes, name: str) -> tuple[int, int] | None:
    """Width and height; None when Pillow cannot tell: OpenCV then refuses more than 2**30 pixels itself."""
    try:
        with open_with_pillow(data) as image:
            if image.format == 'TIFF' and image.mode in ('I', 'F'):
                raise SampleError(f'{name}: holds numbers of 32 bits; convert it to 8 or 16 bits')
            return image.size
    except PIL.Image.DecompressionBombError as error:
        raise SampleError(f'{name}: {error}') from None
    except PILLOW_ERRORS:
        return None


def check_pixels(width: int, height: int, name: str) -> None:
    if width * height > MOST_PIXELS:
        limit = f'{MOST_PIXELS / 2**20:.0f} million'
        raise SampleError(f'{name}: has {width} x {height} pixels, more than the {limit} that are decoded; cut it into tiles')


def palette(K: int) -> npt.NDArray[np.uint8]:
    """K distinct colours [K, 3] uint8: neighbours differ most in hue, similar hues in brightness."""
    # Steps by the golden ratio spread hues evenly for any K; neighbours also differ in brightness.
    golden = (5**0.5 - 1) / 2
    shades = ((0.8, 0.95), (0.9, 0.5), (0.4, 0.9), (0.5, 0.6), (1, 0.75))  # saturation, value
    colours = [colorsys.hsv_to_rgb(0.6 + number * golden % 1, *shades[number % len(shades)]) for number in range(K)]
    return (np.array(colours).reshape(K, 3) * 255).round().astype(np.uint8)


def find_background(class_names: Sequence[str]) -> int | None:
    """Return the number of the class that pictures leave uncoloured: background is all that is none of the objects."""
    return next((number for number, name in enumerate(class_names) if name.lower().strip('_') in BACKGROUNDS), None)


def overlay(image: Image, colours: Image, alpha: float) -> Image:
    """Blend `image` [H, W, 3] with `colours` [H, W, 3] of opacity `alpha` (0 to 1)."""
    return cv2.addWeighted(image, 1 - alpha, colours, alpha, 0).astype(np.uint8, copy=False)


def flip_horizontally(image: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Mirror an image [H, W, ...] into contiguous memory: OpenCV copies views with negative strides slowly."""
    return cv2.flip(image, 1).reshape(image.shape).astype(image.dtype, copy=False)
