"""Files that call themselves images and are programs, or that claim more than they hold."""

from __future__ import annotations

import io
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from phalanx.data.checks import AnnotationError, size_of
from phalanx.data.image import read_image, read_labels
from phalanx.data.samples import SampleError

READERS: tuple[Callable[[Path], object], ...] = (read_image, read_labels)
EPS = b'%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n(ran) print\n%%EOF\n'
OTHERS = {
    'eps': EPS,
    'pdf': b'%PDF-1.4\n',
    'wmf': b'\xd7\xcd\xc6\x9a' + bytes(60),
    'fits': b'SIMPLE  =                    T' + bytes(2880),
}


@pytest.mark.parametrize('reader', READERS)
@pytest.mark.parametrize('kind', OTHERS)
def test_a_file_of_a_format_that_nobody_asked_for_is_not_opened(
    kind: str, reader: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its name. Pillow would start Ghostscript for one of them, if it is there."""
    monkeypatch.setattr('subprocess.Popen', lambda *_, **__: pytest.fail('a program was started'))
    file = tmp_path / 'l.png'
    file.write_bytes(OTHERS[kind])
    with pytest.raises(SampleError, match=r'l\.png: is not (an image|a label map) that can be decoded'):
        reader(file)
    with pytest.raises(AnnotationError, match=r'l\.png: is not an image'):
        size_of(file)


@pytest.mark.parametrize('reader', READERS)
def test_a_chunk_that_claims_more_than_the_file_holds_costs_no_memory(reader: Callable[[Path], object], tmp_path: Path) -> None:
    """Of a PNG file of 64 x 64 pixels, whose pixels are said to be 4 GB long. The decoder of OpenCV takes as much."""
    file = tmp_path / 'bomb.png'
    PIL.Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64), np.uint8)).save(file)
    data = bytearray(file.read_bytes())
    place = data.index(b'IDAT') - 4
    data[place : place + 4] = b'\xff\xff\xff\xff'
    file.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SampleError, match=r'bomb\.png: .* is cut off'):
        reader(file)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 * 2**10  # KiB


@pytest.mark.parametrize('suffix', ['.png', '.jpg', '.bmp', '.tif', '.webp', '.gif', '.ppm'])
def test_the_formats_that_people_have_are_read(suffix: str, tmp_path: Path) -> None:
    file = tmp_path / f'image{suffix}'
    PIL.Image.fromarray(np.full((6, 9, 3), 90, np.uint8)).save(file)
    image = read_image(file)
    assert image.shape == (6, 9, 3)
    assert abs(image.astype(int) - 90).max() <= 2
    assert size_of(file) == (9, 6)


def jpeg(pixels: np.ndarray, **options: object) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, 'JPEG', **options)
    return file.getvalue()


NOISE = np.random.default_rng(0).integers(0, 256, (96, 128, 3), np.uint8)


@pytest.mark.parametrize('reader', READERS)
@pytest.mark.parametrize('progressive', [False, True])
@pytest.mark.parametrize('kept', [0.1, 0.5, 0.9])
def test_a_jpeg_that_lacks_a_part_before_its_end_mark_is_refused(
    reader: Callable[[Path], object], progressive: bool, kept: float, tmp_path: Path
) -> None:
    """OpenCV and Pillow fill it with grey and say nothing."""
    file = tmp_path / 'a.jpg'
    data = jpeg(NOISE if reader is read_image else NOISE[..., 0], progressive=progressive)
    start = data.index(b'\xff\xda') + 20
    file.write_bytes(data[: start + int(kept * (len(data) - start))] + b'\xff\xd9')
    with pytest.raises(SampleError, match=r'a\.jpg: is damaged: '):
        reader(file)


def test_bytes_that_fill_up_the_end_of_a_jpeg_do_no_harm(tmp_path: Path) -> None:
    """Cameras write them."""
    data = jpeg(NOISE)
    (tmp_path / 'a.jpg').write_bytes(data)
    (tmp_path / 'b.jpg').write_bytes(data[:-2] + bytes(100) + data[-2:])
    np.testing.assert_array_equal(read_image(tmp_path / 'a.jpg'), read_image(tmp_path / 'b.jpg'))


@pytest.mark.parametrize('progressive', [False, True])
def test_a_jpeg_that_claims_more_pixels_than_its_bytes_can_hold_is_refused(tmp_path: Path, progressive: bool) -> None:
    """Of 11,500 x 11,500 pixels, which would take 400 MB."""
    data = bytearray(jpeg(NOISE[:8, :8], progressive=progressive))
    frame = data.index(b'\xff\xc2' if progressive else b'\xff\xc0')
    data[frame + 5 : frame + 9] = (11_500).to_bytes(2, 'big') * 2
    (tmp_path / 'a.jpg').write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(SampleError, match=rf'a\.jpg: claims to be 11500 x 11500 pixels large, which {len(data)} bytes cannot'):
        read_image(tmp_path / 'a.jpg')
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50 * 2**10  # KiB


@pytest.mark.parametrize('quality', [1, 50, 95])
def test_a_flat_jpeg_is_not_taken_for_one_that_claims_too_much(tmp_path: Path, quality: int) -> None:
    flat = np.full((2048, 2048, 3), 255, np.uint8)
    (tmp_path / 'a.jpg').write_bytes(jpeg(flat, quality=quality, progressive=True, optimize=True))
    np.testing.assert_array_equal(read_image(tmp_path / 'a.jpg'), flat)


def test_a_jpeg_of_20_000_scans_is_refused_at_once(tmp_path: Path) -> None:
    """Each scan takes the time of a whole image. (libjpeg would be busy for more than a minute.)"""
    data = jpeg(np.zeros((2000, 2000, 3), np.uint8), progressive=True, optimize=True)
    scans = data.split(b'\xff\xda')
    last = b'\xff\xda' + scans[-1].removesuffix(b'\xff\xd9')
    (tmp_path / 'a.jpg').write_bytes(data[:-2] + last * 20_000 + b'\xff\xd9')
    begun = time.process_time()
    with pytest.raises(SampleError, match=r'a\.jpg: has 200\d\d scans'):
        read_image(tmp_path / 'a.jpg')
    assert time.process_time() - begun < 5


def test_bytes_after_a_jpeg_are_not_counted_as_scans(tmp_path: Path) -> None:
    """A phone appends a film."""
    (tmp_path / 'a.jpg').write_bytes(jpeg(NOISE) + b'\xff\xda' * 1000)
    assert read_image(tmp_path / 'a.jpg').shape == NOISE.shape
