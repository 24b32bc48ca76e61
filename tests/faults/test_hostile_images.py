"""Files that call themselves images and are programs, or that claim more than they hold."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from phalanx.cli.data.prepare.checks import AnnotationError, size_of
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
