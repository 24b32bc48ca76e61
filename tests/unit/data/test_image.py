"""Reading images and label maps; colours. Files are written with Pillow, or by hand where they are broken."""

import io
import re
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image, ImageOps, features

from phalanx.data import pdf
from phalanx.data.batch import channels_first, normalise_images, stack_images
from phalanx.data.checks import AnnotationError, size_of
from phalanx.data.image import Pages, file_bit_depth, file_orientation, load_pixels, overlay, palette, read_image, read_labels
from phalanx.data.samples import SampleError

PICTURE = np.random.default_rng(0).integers(0, 256, (12, 20, 3), dtype=np.uint8)


def encoded(array: np.ndarray, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()


def test_a_picture_is_decoded_as_rgb(tmp_path: Path) -> None:
    Image.fromarray(PICTURE).save(tmp_path / 'a.png')
    assert_array_equal(read_image(tmp_path / 'a.png'), PICTURE)


def test_a_grey_picture_gets_three_equal_channels_and_transparency_is_dropped(tmp_path: Path) -> None:
    Image.fromarray(PICTURE[..., 0]).save(tmp_path / 'grey.png')
    assert_array_equal(read_image(tmp_path / 'grey.png'), np.repeat(PICTURE[..., :1], 3, axis=2))
    Image.fromarray(np.dstack([PICTURE, PICTURE[..., 0]])).save(tmp_path / 'clear.png')
    assert_array_equal(read_image(tmp_path / 'clear.png'), PICTURE)


@pytest.mark.parametrize('orientation', range(10))
@pytest.mark.parametrize('order', ['MM', 'II'])
def test_an_image_is_turned_as_opencv_and_pillow_turn_it(tmp_path: Path, orientation: int, order: str) -> None:
    """0 and 9 mean nothing. Also in a file whose EXIF data have another entry before."""
    exif = Image.Exif()
    exif.endian = '>' if order == 'MM' else '<'
    exif[0x010E], exif[0x0112] = 'a description', orientation
    path = tmp_path / 'a.jpg'
    path.write_bytes(encoded(PICTURE, 'JPEG', exif=exif.tobytes()))
    read = read_image(path)
    assert_array_equal(read, cv2.imdecode(np.fromfile(path, np.uint8), cv2.IMREAD_COLOR_RGB))
    assert_array_equal(read, np.array(ImageOps.exif_transpose(Image.open(path))))
    assert file_orientation(path) == (orientation if orientation in range(1, 9) else 1)
    assert size_of(path) == read.shape[1::-1]


@pytest.mark.parametrize('kind', ['PNG', 'TIFF', 'WEBP'])
def test_a_label_map_is_turned_like_an_image(tmp_path: Path, kind: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    labels = np.arange(12, dtype=np.uint8).reshape(3, 4)
    path = tmp_path / f'a.{kind.lower()}'
    if kind == 'WEBP':  # which has no grey images
        path.write_bytes(encoded(np.repeat(labels[..., None], 3, 2), kind, exif=exif, lossless=True))
        assert read_image(path).shape == (4, 3, 3)
    else:
        path.write_bytes(encoded(labels, kind, exif=exif))
        assert_array_equal(read_labels(path), np.rot90(labels, -1))
    assert size_of(path) == (3, 4)


def test_a_tiff_file_of_fractions_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / 'a.tif').write_bytes(encoded(np.zeros((3, 4), np.float32), 'TIFF'))
    with pytest.raises(SampleError, match='holds numbers of 32 bits; convert it to 8 or 16 bits'):
        read_image(tmp_path / 'a.tif')


@pytest.mark.parametrize('options', [{}, {'progressive': True}, {'subsampling': 0}, {'subsampling': 1, 'quality': 30}])
@pytest.mark.parametrize('shape', [(40, 61, 3), (40, 61), (1, 1, 3), (17, 3, 3)])
def test_jpeg_files_have_the_pixels_of_opencv(tmp_path: Path, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    data = encoded(np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8), 'JPEG', **options)
    (tmp_path / 'a.jpg').write_bytes(data)
    assert_array_equal(read_image(tmp_path / 'a.jpg'), cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB))


JPEG, PNG = encoded(PICTURE, 'JPEG'), encoded(PICTURE, 'PNG')
THUMBNAIL = b'\xff\xe1' + (2 + len(JPEG)).to_bytes(2, 'big') + JPEG  # a segment with a whole JPEG in it, end mark and all


@pytest.mark.parametrize(
    ('content', 'why'),
    [
        (None, 'cannot be read: No such file or directory'),
        (b'', 'is empty'),
        (JPEG[:-20], f'the image is cut off ({len(JPEG) - 20} bytes are there)'),
        (PNG[:-20], f'the image is cut off ({len(PNG) - 20} bytes are there)'),
        ((JPEG[:2] + THUMBNAIL + JPEG[2:])[:-20], 'the image is cut off'),
        (JPEG[:20], 'the image is cut off (20 bytes are there)'),
        (b'{"error": 404}', 'is not an image that can be decoded (14 bytes, beginning with b\'{"error"\'); PNG, JPEG, BMP'),
        (
            b'<html>404</html>',
            'is not an image that can be decoded (it is a web page: a login or an error answered the download)',
        ),
        (b'version https://git-lfs.github.com/spec/v1\n', 'is not an image that can be decoded (it is a Git LFS pointer: `git'),
        (b'\0\0\0\x18ftypheic\0\0\0\0mif1', 'is not an image that can be decoded (it is HEIC: convert it, for example with'),
    ],
)
def test_an_image_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / 'a.jpg'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SampleError, match=re.escape(f'{path}: {why}')):
        read_image(path)


@pytest.mark.skipif(not features.check('avif'), reason='this Pillow writes no AVIF')
def test_an_avif_file_is_named_as_such(tmp_path: Path) -> None:
    Image.fromarray(PICTURE).save(tmp_path / 'a.avif')
    for read in (read_image, size_of):
        with pytest.raises((SampleError, AnnotationError), match='it is AVIF: convert it, for example with ImageMagick'):
            read(tmp_path / 'a.avif')


def test_a_folder_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(SampleError, match='Is a directory'):
        read_image(tmp_path)


def test_a_jpeg_with_a_thumbnail_or_something_after_its_end_is_whole(tmp_path: Path) -> None:
    path = tmp_path / 'a.jpg'
    path.write_bytes(JPEG[:2] + THUMBNAIL + JPEG[2:] + b'and more\xff\xda')
    assert read_image(path).shape == (12, 20, 3)


@pytest.mark.parametrize('progressive', [False, True])
@pytest.mark.parametrize('filled_up', [False, True])
def test_a_jpeg_that_promises_too_much_is_refused_before_it_is_decoded(
    tmp_path: Path, progressive: bool, filled_up: bool
) -> None:
    """The size in its frame header changed; a thumbnail and, if asked for, fill bytes before the marks stay in the way."""
    exif = Image.Exif()
    exif[270] = 'a comment'
    Image.fromarray(PICTURE).save(tmp_path / 'a.jpg', exif=exif, progressive=progressive)
    data = (tmp_path / 'a.jpg').read_bytes()
    frame = data.index(b'\xff\xc2' if progressive else b'\xff\xc0')
    if filled_up:
        data, frame = data[:frame] + b'\xff\xff' + data[frame:], frame + 2
    (tmp_path / 'a.jpg').write_bytes(data)
    assert read_image(tmp_path / 'a.jpg').shape == PICTURE.shape
    (tmp_path / 'a.jpg').write_bytes(data[: frame + 5] + b'\x7f\xff\x7f\xff' + data[frame + 9 :])
    with pytest.raises(SampleError, match='32767 x 32767 pixels'):
        read_image(tmp_path / 'a.jpg')


def test_a_palette_image_gives_its_indices(tmp_path: Path) -> None:
    labels = np.array([[0, 1, 2], [10, 255, 3]], np.uint8)
    image = Image.fromarray(labels)
    image.putpalette(bytes(range(255, -1, -1)) * 3)
    image.save(tmp_path / 'a.png')
    assert Image.open(tmp_path / 'a.png').mode == 'P'
    assert_array_equal(read_labels(tmp_path / 'a.png'), labels)


def test_a_grey_image_gives_its_values(tmp_path: Path) -> None:
    Image.fromarray(PICTURE[..., 0]).save(tmp_path / 'a.png')
    assert_array_equal(read_labels(tmp_path / 'a.png'), PICTURE[..., 0])


@pytest.mark.parametrize(
    ('content', 'why'),
    [
        (None, 'cannot be read: No such file or directory'),
        (b'', 'is empty'),
        (
            PNG,
            'has colour mode RGB; a label map is a palette (P) or 8-bit grey (L) image; `phalanx data prepare colours` makes',
        ),
        (encoded(PICTURE[..., 0].astype(np.uint16), 'PNG'), 'has colour mode I;16'),
        (encoded(PICTURE[..., 0], 'PNG')[:-40], 'is not a label map that can be decoded'),
        (b'text', 'is not a label map that can be decoded'),
    ],
)
def test_a_label_map_that_cannot_be_read_is_named_with_the_reason(tmp_path: Path, content: bytes | None, why: str) -> None:
    path = tmp_path / 'a.png'
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SampleError, match=re.escape(f'{path}: {why}')):
        read_labels(path)


def test_colours_are_far_apart() -> None:
    colours = palette(20).astype(int)
    distances = np.abs(colours[:, None] - colours[None]).sum(-1) + 1000 * np.eye(20, dtype=int)
    assert distances.min() > 40
    assert_array_equal(palette(5), palette(20)[:5])  # a class keeps its colour when others are added
    assert palette(0).shape == (0, 3)


def test_an_overlay_lies_between_image_and_colours() -> None:
    colours = PICTURE[::-1].copy()
    assert_array_equal(overlay(PICTURE, colours, 0.0), PICTURE)
    assert_array_equal(overlay(PICTURE, colours, 1.0), colours)
    half = (PICTURE.astype(float) + colours) / 2
    assert np.abs(overlay(PICTURE, colours, 0.5) - half).max() <= 0.5


def test_normalisation_is_that_of_the_originals() -> None:
    """PaddleSeg's Normalize: (image / 255 - mean) / std for each channel, with numpy in float64."""
    mean, std = (0.4, 0.5, 0.6), (0.2, 0.25, 0.3)
    expected = (PICTURE / 255 - mean) / std
    images = torch.from_numpy(PICTURE).permute(2, 0, 1)[None]
    result = normalise_images(images, mean, std)
    assert (result.dtype, result.shape) == (torch.float32, (1, 3, 12, 20))
    np.testing.assert_allclose(result[0].permute(1, 2, 0), expected, rtol=1e-5, atol=1e-6)


def test_images_of_a_batch_wait_pixel_by_pixel_and_reach_the_network_colour_by_colour() -> None:
    batch = stack_images([channels_first(PICTURE), channels_first(PICTURE[:, ::-1])])
    assert (batch.shape, batch.dtype) == ((2, 3, 12, 20), torch.uint8)
    assert_array_equal(batch[1], PICTURE[:, ::-1].transpose(2, 0, 1))
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert normalise_images(batch, (0, 0, 0), (1, 1, 1)).is_contiguous()


def test_bytes_appended_to_an_image_are_ignored(tmp_path: Path) -> None:
    for name, data in (('a.png', PNG), ('a.jpg', JPEG)):
        (tmp_path / name).write_bytes(data)
        (tmp_path / f'longer_{name}').write_bytes(data + bytes(3000))
        assert (read_image(tmp_path / name) == read_image(tmp_path / f'longer_{name}')).all()


UPRIGHT = np.random.default_rng(1).integers(0, 256, (12, 20, 3), dtype=np.uint8)
TURNED = Image.Exif()
TURNED[0x0112] = 6  # a quarter clockwise to be upright


@pytest.mark.parametrize('mode', ['RGB', 'L', 'P', 'RGBA', 'LA', '1', 'I;16', 'CMYK'])
@pytest.mark.parametrize('kind', ['JPEG', 'PNG', 'WEBP', 'TIFF'])
def test_exif_turns_a_picture_in_every_format(tmp_path: Path, kind: str, mode: str) -> None:
    """Pillow writes what is read, and OpenCV is an independent reader; `size_of` says the size without reading pixels."""
    grey = Image.fromarray(UPRIGHT).convert('L')
    deep = Image.fromarray(np.asarray(grey).astype(np.uint16) * 257)
    picture = deep if mode == 'I;16' else Image.fromarray(UPRIGHT).convert(mode)
    file = tmp_path / f'a.{kind.lower()}'
    options: dict[str, Any] = {'tiffinfo': {0x0112: 6}} if kind == 'TIFF' else {'exif': TURNED}
    try:
        picture.save(file, kind, **options, **({'lossless': True} if kind == 'WEBP' else {}))
    except (OSError, ValueError, KeyError):
        pytest.skip('a format without this mode')
    image = read_image(file)
    assert image.shape == (20, 12, 3)
    assert size_of(file) == (12, 20)
    assert file_orientation(file) == 6
    assert_array_equal(image, cv2.imdecode(np.frombuffer(file.read_bytes(), np.uint8), cv2.IMREAD_COLOR_RGB))
    if mode in ('RGB', 'L') and kind != 'JPEG':
        assert_array_equal(image, np.rot90(np.asarray(picture.convert('RGB')), -1))


@pytest.mark.parametrize('kind', ['PNG', 'TIFF'])
@pytest.mark.parametrize('bits', [8, 10, 12, 14, 16])
def test_values_of_any_depth_fill_the_8_bits(tmp_path: Path, kind: str, bits: int) -> None:
    values = (np.arange(256, dtype=np.uint16) << (bits - 8)).reshape(16, 16)
    Image.fromarray(values).save(tmp_path / 'a', kind)
    assert_array_equal(read_image(tmp_path / 'a'), np.repeat(np.arange(256).reshape(16, 16, 1), 3, axis=2))
    assert file_bit_depth(tmp_path / 'a') == bits


@pytest.mark.parametrize('kind', ['.tif', '.png'])
@pytest.mark.parametrize('channels', [1, 3, 4])
def test_16_bit_pictures_keep_their_colours(tmp_path: Path, kind: str, channels: int) -> None:
    """OpenCV 5.0 mixes up pixels of 16-bit TIFF files in one of its modes."""
    rgba = np.dstack([PICTURE, PICTURE[..., 0]])
    stored = rgba[..., [[0], [2, 1, 0], [2, 1, 0, 3]][(1, 3, 4).index(channels)]].astype(np.uint16) * 257
    cv2.imwrite(str(tmp_path / f'a{kind}'), stored)
    expected = np.repeat(PICTURE[..., :1], 3, axis=2) if channels == 1 else PICTURE
    assert_array_equal(read_image(tmp_path / f'a{kind}'), expected)


@pytest.mark.parametrize('kind', ['.png', '.webp', '.tif', '.gif'])
def test_pages_with_transparency_lie_on_white_paper(tmp_path: Path, kind: str) -> None:
    """Black ink on a transparent ground, whose stored colour is black, too."""
    ink = np.zeros((4, 6, 4), np.uint8)
    ink[1, 2, 3] = 255
    Image.fromarray(ink).save(tmp_path / f'a{kind}', **({'lossless': True} if kind == '.webp' else {}))
    expected = np.full((4, 6, 3), 255, np.uint8)
    expected[1, 2] = 0
    assert_array_equal(Pages(tmp_path / f'a{kind}', on_white=True).read(0), expected)


def test_pages_of_a_tiff_and_frames_of_a_gif_are_read_one_by_one(tmp_path: Path) -> None:
    first, second = (Image.fromarray(np.full(shape, value, np.uint8)) for shape, value in (((6, 8), 50), ((9, 4), 200)))
    first.save(tmp_path / 'a.tif', save_all=True, append_images=[second])
    pages = Pages(tmp_path / 'a.tif')
    assert len(pages) == 2
    assert [(page.shape, int(page.max())) for page in (pages.read(0), pages.read(1))] == [((6, 8, 3), 50), ((9, 4, 3), 200)]
    first.save(tmp_path / 'a.gif', save_all=True, append_images=[second.resize((8, 6))], disposal=1)
    pages = Pages(tmp_path / 'a.gif')
    assert [int(pages.read(number).max()) for number in range(len(pages))] == [50, 200]
    first.save(tmp_path / 'a.png')
    assert len(Pages(tmp_path / 'a.png')) == 1


def test_a_reduced_copy_in_a_tiff_file_is_no_page(tmp_path: Path) -> None:
    first = Image.fromarray(np.full((6, 8), 50, np.uint8))
    small = first.resize((4, 3))
    small.encoderinfo = {'tiffinfo': {254: 1}}
    first.save(tmp_path / 'a.tif', save_all=True, append_images=[small])
    assert len(Pages(tmp_path / 'a.tif')) == 1


def test_pages_of_a_pdf_are_rendered_or_the_package_is_named(tmp_path: Path) -> None:
    inch = [Image.new('RGB', (72, 144), colour) for colour in ('red', 'blue')]
    inch[0].save(tmp_path / 'a.pdf', save_all=True, append_images=inch[1:])  # at 72 dots per inch
    if not pdf.is_installed():
        with pytest.raises(SampleError, match=r'a\.pdf: PDF files are read with pypdfium2: pip install'):
            Pages(tmp_path / 'a.pdf')
        return
    pages = Pages(tmp_path / 'a.pdf')
    assert [pages.read(number).shape for number in range(len(pages))] == [(400, 200, 3)] * 2
    assert pages.read(1)[200, 100].tolist() == pytest.approx([0, 0, 255], abs=3)
    (tmp_path / 'b.pdf').write_bytes(b'%PDF-1.7 and nothing more')
    with pytest.raises(SampleError, match=r'b\.pdf: PDFium cannot read it'):
        Pages(tmp_path / 'b.pdf')


@pytest.mark.parametrize('orientation', [1, 6])
@pytest.mark.parametrize('mode', ['RGB', 'L', 'P', 'CMYK'])
def test_an_image_of_pillow_is_read_as_its_file_is(mode: str, orientation: int, tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(256, size=(4, 6, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    ending = 'jpg' if mode == 'CMYK' else 'png'
    Image.fromarray(pixels).convert(mode).save(tmp_path / f'a.{ending}', exif=exif)
    with Image.open(tmp_path / f'a.{ending}') as image:
        loaded = load_pixels(image)
    assert loaded.shape == ((4, 6, 3) if orientation == 1 else (6, 4, 3))
    if mode != 'CMYK':  # which has more than one way to RGB
        np.testing.assert_array_equal(loaded, read_image(tmp_path / f'a.{ending}'))


@pytest.mark.parametrize(
    ('image', 'problem'),
    [
        (Image.new('I;16', (4, 4)), 'mode I;16 is not read, for its values have another range; convert it to RGB'),
        (None, 'got a NoneType; cv2.imread returns None for a file that it cannot read'),
        (b'x', 'got a bytes'),
        (np.zeros((4, 4, 3)), r'got [4, 4, 3] of float64'),
    ],
)
def test_what_is_not_an_image_is_named(image: Any, problem: str) -> None:
    with pytest.raises(ValueError, match=re.escape(problem)):
        load_pixels(image)
