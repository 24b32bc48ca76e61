"""Transforms of images with boxes: what they do to a box is what they do to the pixels under it."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from phalanx.families.detection.data import Objects
from phalanx.families.detection.transforms import (
    GREY,
    TRANSFORMS,
    BatchRandomResize,
    CopyPaste,
    DropSmall,
    ImageWithObjects,
    MixUp,
    Mosaic,
    RandomCrop,
    RandomDistort,
    RandomExpand,
    RandomFlip,
    RandomWindow,
    Resize,
    TransformContext,
    crop_objects,
    iou_with,
    runs_in,
)

COLOURS = np.array([[250, 0, 0], [0, 250, 0], [0, 0, 250]], np.uint8)


def scene(height: int = 60, width: int = 80) -> ImageWithObjects:
    """Three boxes on black, each filled with the colour of its class."""
    image = np.zeros((height, width, 3), np.uint8)
    boxes = np.array([[4, 6, 24, 26], [40, 10, 70, 30], [20, 34, 50, 56]], np.float32)
    for (x0, y0, x1, y1), colour in zip(boxes.astype(int), COLOURS, strict=True):
        image[y0:y1, x0:x1] = colour
    return image, Objects.plain(boxes, np.arange(3))


def context(seed: int = 0, step: int = 0, another: Callable[[], ImageWithObjects] = scene) -> TransformContext:
    return TransformContext(np.random.default_rng(seed), lambda: np.random.default_rng((9, step)), another)


def check_boxes_fit(image: np.ndarray, objects: Objects, tolerance: float = 1.5) -> None:
    """Each box lies in the image, and around all that has the colour of its class."""
    H, W = image.shape[:2]
    assert (objects.boxes >= 0).all() and (objects.boxes[:, 2:] <= [W, H]).all()
    for box, label in zip(objects.boxes, objects.classes, strict=True):
        rows, columns = np.nonzero((np.abs(image.astype(int) - COLOURS[label]) < 100).all(2))
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert_allclose(box, seen, atol=tolerance)


@pytest.mark.parametrize('seed', range(6))
@pytest.mark.parametrize(
    'transform',
    [
        RandomExpand(probability=1, fill=(0, 0, 0)),
        RandomCrop(allow_no_crop=False),
        RandomFlip(probability=1),
        Resize(target_size=(97, 121)),
        Resize(target_size=(50, 100), keep_ratio=True),
        BatchRandomResize(sizes=(64, 96)),
        BatchRandomResize(sizes=(64, 96), keep_ratio=True),
    ],
    ids=lambda transform: type(transform).__name__,
)
def test_boxes_stay_around_what_they_are_around(transform: Callable[..., ImageWithObjects], seed: int) -> None:
    image, objects = transform(*scene(), context(seed, seed))
    assert image.dtype == np.uint8 and objects.boxes.dtype == np.float32
    assert len(objects) == 3 or isinstance(transform, RandomCrop)
    check_boxes_fit(image, objects)


@pytest.mark.parametrize('seed', range(6))
def test_a_mosaic_of_turned_images_keeps_boxes_around_objects(seed: int) -> None:
    """One of the four images has objects; without turning and shearing boxes stay tight."""

    def nothing() -> ImageWithObjects:
        return np.zeros((50, 50, 3), np.uint8), Objects.none()

    mosaic = Mosaic(target_size=(128, 160), degrees=(0, 0), shear=(0, 0), scale=(0.9, 1.1))
    image, objects = mosaic(*scene(), context(seed, another=nothing))
    assert image.shape == (128, 160, 3)
    check_boxes_fit(image, objects, tolerance=3)


def test_a_mosaic_shows_four_images_and_their_objects() -> None:
    mosaic = Mosaic(target_size=(120, 160), degrees=(0, 0), shear=(0, 0), scale=(0.5, 0.5), translate=(0, 0))
    image, objects = mosaic(*scene(), context(3))
    assert image.shape == (120, 160, 3)
    assert 6 <= len(objects) <= 12  # what hangs over the canvas is cut off
    assert (objects.areas[:3] == [400, 600, 660]).all()  # areas stay as annotated


def test_mixing_up_shows_both_halved() -> None:
    white = np.full((60, 80, 3), 255, np.uint8)
    other = (white, Objects.plain(np.array([[0, 0, 80, 60]], np.float32), np.array([7])))
    image, objects = MixUp(probability=1, scale=(1, 1))(*scene(), context(another=lambda: other))
    assert_array_equal(image[0, 0], [128, 128, 128])
    assert_array_equal(image[7, 5], [252, 128, 128])  # (250 + 255) / 2 = 252.5, to even
    assert objects.classes.tolist() == [0, 1, 2, 7]
    assert_array_equal(objects.boxes[3], [0, 0, 80, 60])


def test_a_mixed_in_image_is_cut_or_filled_up_to_size() -> None:
    for scale, seed in ((0.5, 0), (1.5, 1)):
        image, objects = MixUp(probability=1, scale=(scale, scale))(*scene(), context(seed, another=lambda: scene(120, 80)))
        assert image.shape == (60, 80, 3)
        assert (objects.boxes >= 0).all() and (objects.boxes[:, 2:] <= [80, 60]).all()


def test_an_object_stays_when_its_middle_does() -> None:
    """By hand: the middles are (14, 16), (55, 20), (35, 45); the part holds the second only."""
    kept = crop_objects(scene()[1], np.array([15, 10, 60, 40], np.float32))
    assert kept.classes.tolist() == [1]
    assert kept.boxes.tolist() == [[25, 0, 45, 20]]


def test_the_iou_with_a_part() -> None:
    """By hand: [4, 6, 24, 26] shares 10 x 10 with [14, 16, 24, 36]: 100 / (400 + 200 - 100)."""
    found = iou_with(scene()[1].boxes, np.array([14, 16, 24, 36], np.float32))
    assert_allclose(found, [0.2, 0, 8 / (660 + 200 - 8)], rtol=1e-6)


def test_a_crop_has_the_requested_size_and_overlap() -> None:
    crop = RandomCrop(thresholds=(0.3,), allow_no_crop=False)
    whole, objects = scene(240, 320)
    for seed in range(20):
        image, kept = crop(whole, objects, context(seed))
        share = image.shape[0] * image.shape[1] / (240 * 320)
        assert 0.08 < share <= 1 and len(kept) >= 1
        assert share < 0.1 or image.shape[:2] == (240, 320) or share <= 660 / 0.3 / (240 * 320)  # 0.3 of the union at most


def test_cutting_nothing_is_one_of_the_choices() -> None:
    """By default one in seven."""
    crop = RandomCrop(thresholds=(0.0,) * 6)
    uncut = sum(crop(*scene(), context(seed))[0].shape == (60, 80, 3) for seed in range(700))
    assert 70 < uncut < 130
    assert not any(RandomCrop(allow_no_crop=False)(*scene(), context(s))[0].shape == (60, 80, 3) for s in range(30))


def test_an_image_without_objects_is_not_cropped_and_survives_all_others() -> None:
    image, _ = scene()
    for name, transform in TRANSFORMS.items():
        sizes = {'target_size': (32, 32)}
        options = {'resize': sizes, 'random_window': sizes, 'batch_random_resize': {'sizes': (32,)}}.get(name, {})
        shown, objects = transform(**options)(image, Objects.none(), context(another=lambda: (image, Objects.none())))
        assert len(objects) == 0 and shown.dtype == np.uint8
        assert name != 'random_crop' or shown is image


def test_expansion_is_at_most_the_ratio_and_filled_with_the_mean_colour() -> None:
    sizes = set()
    for seed in range(30):
        image, objects = RandomExpand()(*scene(), context(seed))
        sizes.add(image.shape)
        assert image.shape[0] < 240 and image.shape[1] < 320
        if image.shape != (60, 80, 3):
            assert_array_equal(image[-1, -1], [124, 116, 104])
            x0, y0 = objects.boxes[0, :2].astype(int)
            assert_array_equal(image[y0, x0], COLOURS[0])
    assert 10 < len(sizes) < 25  # half of them, each of another size


def test_flipping_twice_changes_nothing() -> None:
    image, objects = scene()
    flip = RandomFlip(probability=1)
    again, boxes = flip(*flip(image, objects, context()), context())
    assert_array_equal(again, image)
    assert_array_equal(boxes.boxes, objects.boxes)


def test_all_samples_of_a_step_get_one_size_and_steps_differ() -> None:
    resize = BatchRandomResize(sizes=tuple(range(320, 800, 32)))
    sizes = [[resize(*scene(), context(seed, step))[0].shape for seed in range(3)] for step in range(8)]
    assert all(len(set(step)) == 1 for step in sizes)
    assert len({step[0] for step in sizes}) > 3


@pytest.mark.parametrize(
    ('size', 'expected'), [((160, 160), (160, 120)), ((160, 100), (133, 100)), ((100, 160), (133, 100)), ((1000, 30), (40, 30))]
)
def test_keeping_the_ratio_fits_shorter_and_longer_side(size: tuple[int, int], expected: tuple[int, int]) -> None:
    """Of 80 x 60, whatever the order of the two: the shorter side to the smaller number unless the longer one forbids."""
    image, _ = Resize(target_size=size, keep_ratio=True)(*scene(), context())
    assert (image.shape[1], image.shape[0]) == expected


def test_a_very_flat_image_keeps_a_pixel() -> None:
    flat = np.zeros((1, 500, 3), np.uint8)
    assert Resize(target_size=(32, 32), keep_ratio=True)(flat, Objects.none(), context())[0].shape == (1, 32, 3)


def test_distortion_changes_colours_only() -> None:
    image, objects = scene()
    distorted, same = RandomDistort(brightness_probability=1)(image, objects, context(1))
    assert same is objects and distorted.shape == image.shape and (distorted != image).any()
    unchanged = {f'{name}_probability': 0 for name in ('brightness', 'contrast', 'saturation', 'hue')}
    assert RandomDistort(**unchanged)(image, objects, context(1))[0] is image


@pytest.mark.parametrize('name', [name for name in TRANSFORMS if 'resize' not in name])
def test_transforms_are_functions_of_their_context(name: str) -> None:
    transform = TRANSFORMS[name]()
    first, again = (transform(*scene(), context(5)) for _ in range(2))
    assert_array_equal(first[0], again[0])
    assert_array_equal(first[1].boxes, again[1].boxes)


def test_no_transform_changes_what_it_was_given() -> None:
    image, objects = scene()
    for name, transform in TRANSFORMS.items():
        sizes = {'target_size': (32, 32)}
        options = {'resize': sizes, 'random_window': sizes, 'batch_random_resize': {'sizes': (32,)}}.get(name, {})
        transform(**options)(image, objects, context(2))
    assert_array_equal(image, scene()[0])
    assert_array_equal(objects.boxes, scene()[1].boxes)


def test_the_corner_of_a_mosaic_is_filled_with_grey() -> None:
    mosaic = Mosaic(target_size=(64, 64), degrees=(0, 0), shear=(0, 0), scale=(0.2, 0.2), translate=(0, 0))
    assert_array_equal(mosaic(*scene(), context())[0][-1, -1], [GREY] * 3)


@pytest.mark.parametrize(
    ('name', 'options', 'message'),
    [
        ('mix_up', {'start_epoch': 3, 'stop_epoch': 3}, 'start_epoch must be from 0 to below stop_epoch, got 3 and 3'),
        ('resize', {'target_size': (0, 5)}, 'target_size is (height, width) in pixels, each at least 1; got 0, 5'),
        ('batch_random_resize', {'sizes': ()}, 'sizes are in pixels, each at least 1; got none'),
        ('random_flip', {'probability': 1.5}, 'probability must lie between 0 and 1, got 1.5'),
        ('random_expand', {'ratio': 1.0}, 'ratio must be above 1, got 1.0'),
        ('random_crop', {'scaling': (0.0, 1.0)}, 'scaling must rise within 0 and 1, got 0.0, 1.0'),
        ('random_crop', {'aspect_ratio': (1.5, 2.0)}, 'aspect_ratio must reach from below 1 to above 1'),
        ('mosaic', {'scale': (0.0, 2.0)}, 'scale must rise from above 0, got 0.0, 2.0'),
        ('random_distort', {'hue': -1}, 'hue cannot be negative, got -1'),
        ('random_distort', {'hue_probability': 2}, 'hue_probability must lie between 0 and 1, got 2'),
    ],
)
def test_options_that_cannot_be_are_refused(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        TRANSFORMS[name](**options)


@pytest.mark.parametrize('seed', range(6))
def test_a_window_near_objects_contains_the_centre_of_one(seed: int) -> None:
    image, objects = RandomWindow(target_size=(16, 24), near_objects=1)(*scene(), context(seed))
    assert image.shape == (16, 24, 3) and len(objects)
    assert (objects.boxes >= 0).all() and (objects.boxes[:, 2:] <= [24, 16]).all()
    for box, label in zip(objects.boxes.astype(int), objects.classes, strict=True):
        assert (image[box[1] : box[3], box[0] : box[2]] == COLOURS[label]).all()


def test_windows_away_from_objects_reach_the_whole_image_and_small_images_are_padded() -> None:
    image = np.arange(3 * 4, dtype=np.uint8).reshape(3, 4, 1).repeat(3, 2)
    transform = RandomWindow(target_size=(2, 2), near_objects=0)
    corners = {int(transform(image, Objects.none(), context(seed))[0][0, 0, 0]) for seed in range(60)}
    assert corners == {0, 1, 2, 4, 5, 6}
    padded, objects = RandomWindow(target_size=(64, 96))(*scene(), context())
    assert padded.shape == (64, 96, 3) and len(objects) == 3
    assert (padded[60:] == GREY).all() and (padded[:, 80:] == GREY).all()


@pytest.mark.parametrize('seed', range(6))
def test_pasted_copies_lie_in_their_boxes_and_cover_little_of_other_objects(seed: int) -> None:
    before, objects = scene(60, 80)
    image, more = CopyPaste(probability=1, overlap=0.0)(before.copy(), objects, context(seed))
    assert_array_equal(more.boxes[:3], objects.boxes)
    check_boxes_fit(image, more.at(np.arange(3)), tolerance=80)  # those of before are all there
    for box, label in zip(more.boxes[3:].astype(int), more.classes[3:], strict=True):
        assert (np.abs(image[box[1] : box[3], box[0] : box[2]].astype(int) - COLOURS[label]) < 100).all()


def test_copies_are_pasted_until_their_number_is_reached_and_the_image_of_before_stays() -> None:
    empty = np.zeros((300, 300, 3), np.uint8), Objects.none()
    counts = {len(CopyPaste(probability=1, objects=2)(*empty, context(seed))[1]) for seed in range(20)}
    assert max(counts) == 2
    assert not empty[0].any()


def test_nothing_is_pasted_from_an_image_without_objects() -> None:
    image, objects = scene()
    other = np.full((10, 10, 3), 9, np.uint8), Objects.none()
    pasted, same = CopyPaste(probability=1)(image, objects, context(another=lambda: other))
    assert_array_equal(pasted, image)
    assert_array_equal(same.boxes, objects.boxes)


@pytest.mark.parametrize(
    ('limits', 'expected'),
    [
        ({}, [0, 1, 2, 3]),
        ({'stop_epoch': 2}, [0, 1]),
        ({'start_epoch': 1}, [1, 2, 3]),
        ({'start_epoch': 1, 'stop_epoch': 3}, [1, 2]),
    ],
)
def test_a_transform_runs_from_its_first_epoch_to_before_its_last(limits: dict[str, int], expected: list[int]) -> None:
    for name in ('mosaic', 'random_distort', 'random_flip'):
        transform = TRANSFORMS[name](**limits)
        assert [epoch for epoch in range(4) if runs_in(transform, epoch)] == expected


def test_a_transform_of_a_plugin_runs_in_every_epoch() -> None:
    assert runs_in(lambda *_: scene(), 7)


def test_objects_with_a_short_side_are_dropped() -> None:
    image, objects = scene()  # sides of 20 x 20, 30 x 20 and 30 x 22
    _, kept = DropSmall(side=21)(image, objects, context())
    assert kept.classes.tolist() == [2]


def test_channels_are_put_into_another_order() -> None:
    image, objects = scene()
    plain = dict.fromkeys(('brightness', 'contrast', 'saturation', 'hue'), 0.0)
    swap = RandomDistort(swap_probability=1.0, **plain)  # type: ignore[arg-type]
    orders = {tuple(map(tuple, swap(image, objects, context(seed))[0][[10, 20, 40], [10, 50, 30]])) for seed in range(40)}
    assert len(orders) == 6


@pytest.mark.parametrize('transform', [RandomDistort(probability=0), RandomCrop(probability=0)])
def test_nothing_changes_with_a_probability_of_zero(transform: Callable[..., ImageWithObjects]) -> None:
    image, objects = scene()
    for seed in range(5):
        assert transform(image, objects, context(seed))[0] is image
