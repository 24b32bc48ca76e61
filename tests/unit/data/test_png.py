"""PNG files by libspng. Files are written by Pillow, and what they hold is known from there."""

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_array_equal
from PIL import Image

from phalanx.data import png
from phalanx.data.image import read_image, read_labels

pytestmark = pytest.mark.skipif(png.SPNG is None, reason='there is no pyspng for this Python')

PICTURE = np.random.default_rng(0).integers(0, 256, (7, 9, 3), dtype=np.uint8)
OTHERS = {
    'palette': Image.fromarray(PICTURE).convert('P'),
    'transparent': Image.fromarray(np.dstack([PICTURE, PICTURE[..., 0]])),
    'one bit': Image.fromarray(PICTURE[..., 0] > 100),
    '16 bits': Image.fromarray(PICTURE[..., 0].astype(np.uint16) * 256),
}


def encoded(image: Image.Image, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, 'PNG', **options)
    return buffer.getvalue()


@given(arrays(np.uint8, st.tuples(st.integers(1, 20), st.integers(1, 20), st.just(3))), st.integers(0, 9))
def test_pixels_are_those_that_were_written(pixels: np.ndarray, level: int) -> None:
    colours, greys = (encoded(Image.fromarray(part), compress_level=level) for part in (pixels, pixels[..., 0]))
    assert_array_equal(png.decode_png(colours, 'RGB'), pixels)
    assert_array_equal(png.decode_png(greys, 'L'), pixels[..., 0])


@pytest.mark.parametrize('kind', OTHERS)
def test_other_kinds_are_left_to_other_decoders(kind: str) -> None:
    for mode in ('RGB', 'L'):
        assert png.decode_png(encoded(OTHERS[kind]), mode) is None


def test_a_picture_is_not_read_as_labels_nor_labels_as_a_picture() -> None:
    assert png.decode_png(encoded(Image.fromarray(PICTURE)), 'L') is None
    assert png.decode_png(encoded(Image.fromarray(PICTURE[..., 0])), 'RGB') is None


def test_a_transparent_colour_stays_as_it_is() -> None:
    written = encoded(Image.fromarray(PICTURE), transparency=tuple(PICTURE[0, 0].tolist()))
    assert_array_equal(png.decode_png(written, 'RGB'), PICTURE)


def test_a_byte_that_was_changed_anywhere_never_gives_other_pixels() -> None:
    """A disk or a copy that went wrong: libspng itself would give them, and say nothing."""
    whole = encoded(Image.fromarray(PICTURE), compress_level=0)
    for place in range(len(whole)):
        changed = bytes((*whole[:place], whole[place] ^ 0x55, *whole[place + 1 :]))
        assert png.decode_png(changed, 'RGB') is None, place


def test_a_file_that_ends_anywhere_too_early_is_refused() -> None:
    whole = encoded(Image.fromarray(PICTURE))
    assert [end for end in range(len(whole)) if png.decode_png(whole[:end], 'RGB') is not None] == []


def test_bytes_appended_by_other_programs_are_ignored() -> None:
    assert_array_equal(png.decode_png(encoded(Image.fromarray(PICTURE)) + b'more', 'RGB'), PICTURE)


def test_files_are_read_alike_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, labels = tmp_path / 'image.png', tmp_path / 'labels.png'
    image.write_bytes(encoded(Image.fromarray(PICTURE)))
    labels.write_bytes(encoded(Image.fromarray(PICTURE[..., 0])))
    before = read_image(image), read_labels(labels)
    monkeypatch.setattr(png, 'SPNG', None)
    assert_array_equal(before[0], read_image(image))
    assert_array_equal(before[1], read_labels(labels))
