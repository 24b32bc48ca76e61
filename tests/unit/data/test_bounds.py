"""Whatever shape an image has, each transform makes a bounded number of pixels of it: docs/security.md has the bounds."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.data.samples import Draw, Image
from phalanx.engine.loader import _Reader
from phalanx.families.detection import transforms as of_boxes
from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.task import pad_to_common_size as pad_boxes
from phalanx.families.recognition.transforms import MAX_COLUMNS, RecAug, limit_size
from phalanx.families.segmentation import task as segmentation
from phalanx.families.segmentation import transforms as of_labels
from phalanx.families.segmentation.inference import Inference
from phalanx.families.text_detection import transforms as of_texts
from phalanx.families.text_detection.data.source import Texts
from phalanx.families.text_detection.task import Samples as PageSamples
from phalanx.families.text_detection.task import TargetOptions, common_size
from phalanx.runtime import lines_of
from phalanx.runtime.prepare import (
    MAX_LINE,
    MAX_SIDE,
    MOST_PIXELS,
    MOST_SEEN,
    TooLargeError,
    fit_line,
    fit_square,
    limit_factor,
    limited_size,
    normalise,
    resize,
    resize_factors,
)
from phalanx.runtime.reading import find_within
from phalanx.runtime.results import Reading, TextRegion
from phalanx.runtime.segmentation import Segmentation

STRIPS = [(5000, 10), (10, 5000), (1, 30000), (30000, 1)]
PIXELS: dict[str, Any] = {'channels': 'RGB', 'mean': [0.5] * 3, 'std': [0.5] * 3}


def white(height: int, width: int) -> Image:
    return np.full((height, width, 3), 255, np.uint8)


@pytest.mark.parametrize(
    ('size', 'side', 'limit', 'expected'),
    [
        ((1754, 1240), 736, 'min', (1760, 1248)),  # pages stay as they are but for multiples of 32
        ((400, 500), 736, 'min', (736, 928)),  # 500 * 736 / 400 = 920, which is 28.75 * 32
        ((8770, 6200), 736, 'min', (4000, 2816)),  # 6200 * 4000 / 8770 = 2827, which is 88.3 * 32
        ((10, 5000), 736, 'min', (32, 4000)),  # 368000 x 736 was 800 MB of bytes, and 20 GB in the network
        ((5000, 10), 736, 'min', (4000, 32)),
        ((8770, 6200), 960, 'max', (960, 672)),
    ],
)
def test_a_page_is_enlarged_up_to_the_limit_of_paddleocr(
    size: tuple[int, int], side: int, limit: Any, expected: tuple[int, int]
) -> None:
    assert limited_size(size, side, limit) == expected


def test_a_recipe_may_set_another_limit() -> None:
    enlarged, _ = of_texts.LimitSide(side=64, max_side=320)(white(10, 1000), Texts(), context_of_texts())
    assert enlarged.shape == (32, 320, 3)
    with pytest.raises(ValueError, match='max_side must be at least side, 736; got 640'):
        of_texts.LimitSide(side=736, max_side=640)


def context_of_texts() -> of_texts.TransformContext:
    return of_texts.TransformContext(np.random.default_rng(0), lambda: (white(8, 8), Texts()))


def context_of_boxes() -> of_boxes.TransformContext:
    rng = np.random.default_rng(0)
    return of_boxes.TransformContext(rng, lambda: rng, lambda: (white(8, 8), Objects.none()))


@pytest.mark.parametrize('size', STRIPS)
def test_the_input_of_every_network_is_bounded_for_strips(size: tuple[int, int]) -> None:
    image = white(*size)
    assert max(of_texts.LimitSide()(image, Texts(), context_of_texts())[0].shape) <= MAX_SIDE
    line, _ = fit_line(image, (48, 320), grow=True)
    assert line.shape[1] <= MAX_LINE
    assert max(fit_square(image, 488).shape) <= 488
    x, y = resize_factors(size, (640, 640), keep_ratio=True)
    assert max(size[1] * x, size[0] * y) <= 640
    resize = of_boxes.Resize(target_size=(800, 1333), keep_ratio=True)
    assert max(resize(image, Objects.none(), context_of_boxes())[0].shape) <= 1333
    assert max(of_labels.ResizeByLong(side=1024)(image, labels_of(image), np.random.default_rng(0))[0].shape) <= 1024


def labels_of(image: Image) -> Any:
    return np.zeros(image.shape[:2], np.uint8)


def test_lines_up_to_the_limit_keep_their_shape_and_longer_ones_are_squeezed() -> None:
    assert fit_line(white(10, 600), (48, 320), grow=True)[0].shape == (48, 2880, 3)
    assert fit_line(white(10, 5000), (48, 320), grow=True)[0].shape == (48, MAX_LINE, 3)


def test_augmentations_enlarge_up_to_the_pixels_that_a_file_may_have() -> None:
    assert limit_factor((3000, 4000), 3.0) == 3.0  # 108 million pixels
    assert limit_factor((6000, 8000), 3.0) == pytest.approx((MOST_PIXELS / 48e6) ** 0.5)
    assert limit_factor((20000, 20000), 3.0) == 1.0
    assert limit_factor((20000, 20000), 0.5) == 0.5
    with pytest.raises(TooLargeError, match='would be enlarged to 20000 x 20000 pixels, more than 128 million'):
        resize(white(2, 2), 20000, 20000)
    with pytest.raises(TooLargeError, match='20000 x 20000'):
        of_labels.Rescale(factor=10000)(white(2, 2), labels_of(white(2, 2)), np.random.default_rng(0))


@pytest.mark.parametrize('size', [(1, 40000), (40000, 1)])
def test_an_image_too_large_for_opencv_is_not_rotated(size: tuple[int, int]) -> None:
    image = white(*size)
    turned, _ = of_labels.RandomRotation(max_degrees=90)(image, labels_of(image), np.random.default_rng(0))
    assert turned.shape == image.shape
    turned, _ = of_texts.RandomRotate()(image, Texts(), context_of_texts())
    assert turned.shape == image.shape


def test_a_line_is_reduced_before_it_is_augmented() -> None:
    short = white(48, 2000)
    assert limit_size(short) is short
    long = limit_size(white(100, 40000))
    assert long.shape == (20, MAX_COLUMNS, 3)
    warp = RecAug(**{name: float(name == 'warp_probability') for name in vars(RecAug())})
    assert warp(long, 'a', np.random.default_rng(0))[0].shape == long.shape


def test_the_input_of_a_network_has_at_most_the_documented_pixels() -> None:
    large = np.broadcast_to(np.uint8(0), (8192, 8192, 3))
    with pytest.raises(TooLargeError, match=f'8192 x 8192 pixels, more than {MOST_SEEN // 2**20} million; reduce the image'):
        normalise(large, PIXELS)
    with pytest.raises(TooLargeError, match='the input of the network would have 4000032 x 32'):  # one row is filled up to 32
        normalise(np.broadcast_to(np.uint8(0), (1, 4000001, 3)), PIXELS)
    shapes = [torch.zeros(3, 32, 8192, dtype=torch.uint8), torch.zeros(3, 8192, 32, dtype=torch.uint8)]
    for fill in (common_size, lambda images: pad_boxes(images, (0.5,) * 3)):
        with pytest.raises(TooLargeError, match='2 images of very different shapes would be padded to 8192 x 8192'):
            fill(shapes)


def test_scales_of_a_test_count() -> None:
    with pytest.raises(TooLargeError, match='would have 4096 x 16384'):
        Inference(scales=(4.0,)).view(torch.nn.Identity(), torch.zeros(1, 1, 4096, 1024), 4.0, ())


class Pages:
    """A data set of a page that no network is given and one that fits."""

    def __len__(self) -> int:
        return 2

    def name(self, index: int) -> str:
        return f'page {index}'

    def read(self, draw: Draw) -> tuple[Image, Texts]:
        return (np.broadcast_to(np.uint8(0), (8192, 8192, 3)) if draw.index == 0 else white(64, 64)), Texts()


def test_training_skips_and_names_a_sample_that_is_too_large() -> None:
    samples = PageSamples(Pages(), (), 'train', TargetOptions())
    sample, bad = _Reader(samples, 1, replace=True, cache=None, is_cancelled=lambda: False).read(Draw(0))
    assert sample is not None and sample.index == 1
    assert bad[0].startswith('page 0: the input of the network would have 8192 x 8192 pixels')


def test_logits_of_a_large_image_are_processed_a_few_classes_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    logits = np.random.default_rng(0).standard_normal((7, 9, 11)).astype(np.float32)
    guide = {'preparation': {'transforms': [{'name': 'Resize', 'target_size': [9, 11]}], **PIXELS}, 'reading': {}}
    image, family = white(18, 22), Segmentation(guide)
    way, resize = [(18, 22)], [of_labels.Resize(target_size=(9, 11))]

    def classify() -> tuple[Any, Any]:
        of_torch = segmentation.classify_pixels(torch.from_numpy(logits), resize, way, (18, 22)).numpy()
        return family.prediction({'logits': logits}, image), of_torch

    at_once = classify()
    for module in (segmentation, __import__('phalanx.runtime.segmentation', fromlist=['x'])):
        monkeypatch.setattr(module, 'MOST_LOGITS', 2 * 18 * 22)
    for whole, in_parts in zip(at_once, classify(), strict=True):
        np.testing.assert_array_equal(whole, in_parts)


def region(x0: float, y0: float, x1: float, y1: float) -> TextRegion:
    return TextRegion(0.9, ((x0, y0), (x1, y0), (x1, y1), (x0, y1)))


def read_whole(cuts: Sequence[Image]) -> list[Reading]:
    return [Reading(f'{cut.shape[1]} x {cut.shape[0]}', 1.0) for cut in cuts]


def test_texts_are_detected_on_a_reduced_page_and_read_at_full_resolution() -> None:
    seen = []

    def find(page: Image) -> list[TextRegion]:
        seen.append(page.shape)
        return [region(10, 20, 110, 40)]

    (line,) = lines_of(white(2000, 1000), find, read_whole, max_side=1000)
    assert seen == [(992, 512, 3)]  # multiples of 32
    assert line.points[0] == pytest.approx((10 * 1000 / 512, 20 * 2000 / 992))
    assert line.points[2] == pytest.approx((110 * 1000 / 512, 40 * 2000 / 992))
    assert line.text == '195 x 40'


def test_a_strip_gets_a_margin_without_detections() -> None:
    """1600 x 100 becomes 1600 x 400, as with rapidocr: 150 rows above and below."""
    seen = []

    def find(page: Image) -> list[TextRegion]:
        seen.append(page.shape)
        return [region(10, 160, 110, 200), region(10, 20, 110, 40), region(400, 140, 500, 260)]

    first, second = lines_of(white(100, 1600), find, read_whole)
    assert seen == [(400, 1600, 3)]
    assert (first.points[0], first.points[2]) == ((10, 10), (110, 50))
    assert (second.points[0], second.points[2]) == ((400, 0), (500, 100))


@pytest.mark.parametrize('is_high', [True, False])
def test_a_long_page_is_divided_between_its_texts(is_high: bool) -> None:
    """40 x 1000 with `max_side` 400: pieces of 160 at most, of which none ends within a text or loses one."""
    page = white(1000, 40)
    places = range(10, 990, 30)  # the texts are dark rows, 12 long
    for place in places:
        page[place : place + 12, 5:-5] = 0
    seen = []

    def find(piece: Image) -> list[TextRegion]:
        margin = piece.shape[1 if is_high else 0] // 2
        ink = (piece if is_high else piece.swapaxes(0, 1))[:, margin].max(1) == 0
        starts = np.flatnonzero(np.diff(ink.astype(int), prepend=0) == 1).tolist()
        seen.append(len(ink))
        boxes = [(margin - 5, start, margin + 5, start + 12) for start in starts]
        return [region(*(box if is_high else (box[1], box[0], box[3], box[2]))) for box in boxes]

    found = find_within(page if is_high else np.ascontiguousarray(page.swapaxes(0, 1)), find, 400)
    assert [line.points[0][1 if is_high else 0] for line in found] == list(places)
    assert sum(seen) == 1000 and max(seen) <= 160


def test_ordinary_pages_are_not_resized() -> None:
    page, seen = white(300, 2000), []
    lines_of(page, lambda image: seen.append(image) or [], read_whole)
    assert seen[0] is page
