"""Objects given pixel by pixel: PNG bitmaps, run lengths along rows, and Label Studio's brush strokes."""

from collections.abc import Sequence

import numpy as np
import PIL.Image

from phalanx.curation.prepare.samples import Instance
from phalanx.data.checks import AnnotationError
from phalanx.data.image import open_with_pillow
from phalanx.data.shapes import Mask, Runs, encode_runs


def bitmap_instance(
    label: str, part: Mask, left: int, top: int, size: tuple[int, int], where: str, text: str | None = None
) -> Instance:
    """Object made of the True pixels of `part`, whose upper left corner lies at (left, top) of an image of `size`.

    Raises AnnotationError for a bitmap that starts outside the image or has no pixel in it.
    """
    if not (0 <= left < size[0] and 0 <= top < size[1]):
        raise AnnotationError(f'{where}: its bitmap lies outside the image')
    mask = np.zeros((size[1], size[0]), np.bool_)
    seen = mask[top : top + part.shape[0], left : left + part.shape[1]]
    seen |= part[: seen.shape[0], : seen.shape[1]]
    rows, columns = np.nonzero(mask)
    if not len(rows):
        raise AnnotationError(f'{where}: its bitmap is empty')
    box = (float(columns.min()), float(rows.min()), float(columns.max() + 1), float(rows.max() + 1))
    return Instance(label, box, (encode_runs(mask),), text=text)


def runs_instance(label: str, lengths: Runs, size: tuple[int, int], where: str) -> Instance:
    """Object of run lengths over the whole image. Raises AnnotationError for one without a pixel."""
    canvas = np.zeros((size[1], size[0]), np.uint8)
    lengths.paint(canvas, 1)
    return bitmap_instance(label, canvas > 0, 0, 0, size, where)


def decode_png(data: bytes, size: tuple[int, int], where: str, *, stretch: bool = False) -> Mask:
    """Pixels of an image file that are opaque or, without an alpha channel, above 0; `stretch`: in the size of the image.

    Raises AnnotationError.
    """
    try:
        with open_with_pillow(data) as picture:
            if stretch and picture.size != size:
                picture = picture.resize(size, PIL.Image.Resampling.NEAREST)
            has_alpha = picture.mode in ('RGBA', 'LA') or (picture.mode == 'P' and 'transparency' in picture.info)
            grey = picture.convert('RGBA').getchannel('A') if has_alpha else picture.convert('L')
            mask = np.array(grey) > 0
    except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError) as error:
        raise AnnotationError(f'{where}: its bitmap cannot be decoded: {error}') from None
    if mask.shape[1] > size[0] or mask.shape[0] > size[1]:
        raise AnnotationError(f'{where}: its bitmap is larger than the image')
    return mask


def decode_rows(counts: Sequence[float], width: int, height: int, where: str) -> Mask:
    """Run lengths along the rows of a rectangle, alternately outside and inside. Raises AnnotationError."""
    lengths = [int(count) for count in counts]
    if min(lengths, default=-1) < 0 or width < 1 or height < 1 or sum(lengths) != width * height:
        raise AnnotationError(f'{where}: its run lengths do not add up to {width} x {height} pixels')
    return np.repeat(np.arange(len(lengths)) % 2 == 1, lengths).reshape(height, width)


def decode_brush(packed: object, size: tuple[int, int], where: str) -> Mask:
    """Opaque pixels of Label Studio's brush: an RGBA image as a stream of bits, with runs of equal bytes.

    The stream (@thi.ng/rle-pack): 32 bits with the count of values, 5 with the bits of a value less 1, 4 x 4 with the bits
    of run lengths less 1; then, until all values are there, 1 bit for a run (else literals), 2 bits to select the length's
    width, the length less 1, and one value (else as many values as the length). Raises AnnotationError.
    """
    if not isinstance(packed, list) or not all(type(byte) is int and 0 <= byte < 256 for byte in packed):
        raise AnnotationError(f'{where}: expected the bytes of a brush stroke')
    stream, place = bytes(packed), 0

    def take(count: int) -> int:
        """The next `count` bits as a number."""
        nonlocal place
        place += count
        if place > 8 * len(stream):
            raise AnnotationError(f'{where}: its brush stroke is cut off')
        last = -(-place // 8)
        return int.from_bytes(stream[(place - count) // 8 : last], 'big') >> 8 * last - place & (1 << count) - 1

    total, value_bits = take(32), take(5) + 1
    if total != 4 * size[0] * size[1]:
        raise AnnotationError(f'{where}: its brush stroke was made for another size than {size[0]} x {size[1]}')
    length_bits = [take(4) + 1 for _ in range(4)]
    values = np.zeros(total, np.uint8)
    done = 0
    while done < total:
        is_run = take(1)
        end = min(done + take(length_bits[take(2)]) + 1, total)
        values[done:end] = take(value_bits) if is_run else [take(value_bits) for _ in range(done, end)]
        done = end
    return values.reshape(size[1], size[0], 4)[..., 3] > 0
