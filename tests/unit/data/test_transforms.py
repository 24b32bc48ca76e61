"""Augmentations of segmentation against Pillow, OpenCV and arrays made by hand. The laws are in tests/property."""

import re
from functools import partial

import cv2
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from phalanx.data.colour import scale_brightness, scale_contrast
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.transforms import (
    Padding,
    RandomBlur,
    RandomDistort,
    RandomFlip,
    RandomPaddingCrop,
    RandomRotation,
    RandomVerticalFlip,
    Rescale,
    Resize,
    ResizeByLong,
    ResizeStepScaling,
)

RNG = np.random.default_rng
NOISE = RNG(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
SMOOTH = cv2.GaussianBlur(NOISE, (0, 0), 4)
LABELS = RNG(1).integers(0, 5, (40, 60), dtype=np.uint8)


def test_a_sample_that_draws_no_change_stays_as_it_is() -> None:
    never = dict.fromkeys(('brightness_probability', 'contrast_probability', 'saturation_probability', 'hue_probability'), 0.0)
    image, labels = RandomDistort(**never)(NOISE, LABELS, RNG(0))
    assert_array_equal(image, NOISE)
    assert_array_equal(labels, LABELS)


class AtTheTop(np.random.Generator):
    """Random numbers that are always the largest of a range, so that only order is left to chance."""

    def uniform(self, low: float, high: float) -> float:  # type: ignore[override]
        return high


def test_changes_of_colour_are_made_in_random_order() -> None:
    """Brightness and contrast, both times 1.5, do not commute."""
    both = RandomDistort(brightness_probability=1, contrast_probability=1, saturation_probability=0, hue_probability=0)
    images = {both(SMOOTH, LABELS, AtTheTop(np.random.PCG64(seed)))[0].tobytes() for seed in range(20)}
    orders = [scale_contrast(scale_brightness(SMOOTH, 1.5), 1.5), scale_brightness(scale_contrast(SMOOTH, 1.5), 1.5)]
    assert images == {image.tobytes() for image in orders}


def test_resizing_takes_the_nearest_label_and_mixes_colours() -> None:
    image, labels = Resize(target_size=(80, 120))(NOISE, LABELS, RNG(0))
    assert_array_equal(image, cv2.resize(NOISE, (120, 80), interpolation=cv2.INTER_LINEAR))
    assert_array_equal(labels, LABELS.repeat(2, 0).repeat(2, 1))


def test_rescaling_multiplies_both_sides() -> None:
    image, labels = Rescale(factor=0.5)(NOISE[:39, :55], LABELS[:39, :55], RNG(0))
    assert (image.shape, labels.shape) == ((20, 28, 3), (20, 28))  # 19.5 and 27.5, rounded up


@pytest.mark.parametrize(('image', 'size'), [(NOISE, (20, 13)), (NOISE.transpose(1, 0, 2), (13, 20))])
def test_the_longer_side_is_given_and_the_other_one_follows(image: np.ndarray, size: tuple[int, int]) -> None:
    """60 becomes 20, so 40 becomes 13.3."""
    resized, labels = ResizeByLong(side=20)(image, image[..., 0], RNG(0))
    assert_array_equal(resized, cv2.resize(image, size, interpolation=cv2.INTER_LINEAR))
    assert_array_equal(labels, cv2.resize(image[..., 0], size, interpolation=cv2.INTER_NEAREST))


def test_scales_are_sampled_evenly_from_the_steps() -> None:
    scaling, rng = ResizeStepScaling(min=0.5, max=1.5, step=0.25), RNG(0)
    widths = [scaling(NOISE, LABELS, rng)[0].shape[1] for _ in range(500)]
    found, counts = np.unique(widths, return_counts=True)
    assert found.tolist() == [30, 45, 60, 75, 90]
    assert counts.min() > 70


def test_a_step_of_zero_draws_any_scale() -> None:
    scaling, rng = ResizeStepScaling(min=0.5, max=1.5, step=0), RNG(0)
    widths = {scaling(NOISE, LABELS, rng)[0].shape[1] for _ in range(200)}
    assert (min(widths) >= 30, max(widths) <= 90, len(widths) > 40) == (True, True, True)


def test_a_crop_of_a_small_image_is_filled_up_on_the_right_and_at_the_bottom() -> None:
    image, labels = RandomPaddingCrop(crop_size=(3, 4))(NOISE[:2, :3], LABELS[:2, :3], RNG(0))
    assert (image.shape, labels.shape) == ((3, 4, 3), (3, 4))
    assert_array_equal(image[:2, :3], NOISE[:2, :3])
    assert_array_equal(labels[:2, :3], LABELS[:2, :3])
    assert set(image[2].flat) == set(image[:, 3].flat) == {127}
    assert set(labels[2].flat) == set(labels[:, 3].flat) == {VOID}


def test_padding_keeps_the_image_and_fills_the_rest() -> None:
    image, labels = Padding(target_size=(50, 62))(NOISE, LABELS, RNG(0))
    assert (image.shape, labels.shape) == ((50, 62, 3), (50, 62))
    assert_array_equal(image[:40, :60], NOISE)
    assert_array_equal(labels[:40, :60], LABELS)
    assert set(image[40:].flat) == set(image[:, 60:].flat) == {127}
    assert set(labels[40:].flat) == set(labels[:, 60:].flat) == {VOID}


def test_padding_cuts_nothing_off() -> None:
    image, labels = Padding(target_size=(50, 30))(NOISE, LABELS, RNG(0))
    assert (image.shape, labels.shape) == ((50, 60, 3), (50, 60))


def test_a_crop_reaches_every_place() -> None:
    """A 6 x 4 image has 3 x 2 places for a crop of 4 x 3."""
    marks = np.arange(24, dtype=np.uint8).reshape(4, 6)
    image = np.repeat(marks[..., None], 3, 2)
    crop, rng = RandomPaddingCrop(crop_size=(3, 4)), RNG(0)
    corners = set()
    for _ in range(100):
        part, labels = crop(image, marks, rng)
        assert_array_equal(part[..., 0], labels)
        corners.add(int(labels[0, 0]))
    assert corners == {0, 1, 2, 6, 7, 8}


def test_a_flip_mirrors_image_and_labels() -> None:
    image, labels = RandomFlip(probability=1)(NOISE, LABELS, RNG(0))
    assert_array_equal(image, np.flip(NOISE, 1))
    assert_array_equal(labels, np.flip(LABELS, 1))
    assert RandomFlip(probability=0)(NOISE, LABELS, RNG(0))[0] is NOISE


def test_a_vertical_flip_turns_image_and_labels_upside_down() -> None:
    image, labels = RandomVerticalFlip(probability=1)(NOISE, LABELS, RNG(0))
    assert_array_equal(image, np.flipud(NOISE))
    assert_array_equal(labels, np.flipud(LABELS))
    assert RandomVerticalFlip(probability=0)(NOISE, LABELS, RNG(0))[0] is NOISE


def test_a_quarter_turn_swaps_the_sides_and_keeps_labels_on_their_pixels() -> None:
    """OpenCV turns about a pixel: one row or column of the result may be filled up."""
    image, labels = RandomRotation(max_degrees=90)(NOISE, LABELS, AtTheTop(np.random.PCG64(0)))
    assert (image.shape, labels.shape) == ((60, 40, 3), (60, 40))
    assert_array_equal(image[1:], np.rot90(NOISE)[:-1])
    assert_array_equal(labels[1:], np.rot90(LABELS)[:-1])


def test_corners_of_a_turned_image_are_grey_and_void() -> None:
    image, labels = RandomRotation(max_degrees=30)(NOISE, LABELS, AtTheTop(np.random.PCG64(0)))
    assert labels.shape == (int(60 * 0.5 + 40 * 3**0.5 / 2), int(40 * 0.5 + 60 * 3**0.5 / 2)) == image.shape[:2]
    for row, column in ((0, 0), (0, -1), (-1, 0), (-1, -1)):
        assert (labels[row, column], image[row, column].tolist()) == (VOID, [127, 127, 127])
    assert set(np.unique(labels)) == {*range(5), VOID}  # no label is mixed from two


def test_no_rotation_changes_nothing() -> None:
    image, labels = RandomRotation(max_degrees=0)(NOISE, LABELS, RNG(0))
    assert_array_equal(image, NOISE)
    assert_array_equal(labels, LABELS)


def test_a_blur_takes_each_of_four_sizes_and_leaves_labels_alone() -> None:
    every = {cv2.medianBlur(NOISE, side).tobytes() for side in (3, 5, 7, 9)}
    pairs = [RandomBlur(probability=1, kind='median')(NOISE, LABELS, RNG(seed)) for seed in range(100)]
    assert {image.tobytes() for image, _ in pairs} == every
    assert all(labels is LABELS for _, labels in pairs)
    kinds = {RandomBlur(probability=1, kind='random')(NOISE, LABELS, RNG(seed))[0].tobytes() for seed in range(200)}
    assert len(kinds) == 12  # of three kinds and four sizes
    assert RandomBlur(probability=0)(NOISE, LABELS, RNG(0))[0] is NOISE


def test_half_of_the_samples_are_flipped() -> None:
    flip, rng = RandomFlip(), RNG(0)
    flipped = sum(flip(NOISE, LABELS, rng)[0] is not NOISE for _ in range(400))
    assert 160 < flipped < 240


@pytest.mark.parametrize(
    ('build', 'message'),
    [
        (partial(Resize, target_size=(0, 3)), 'target_size is (height, width) in pixels, each at least 1; got 0, 3'),
        (partial(RandomPaddingCrop, crop_size=(3, -1)), 'crop_size is (height, width) in pixels, each at least 1; got 3, -1'),
        (partial(Padding, target_size=(0, 1)), 'target_size is (height, width) in pixels, each at least 1; got 0, 1'),
        (partial(ResizeByLong, side=0), 'side must be at least 1, got 0'),
        (partial(RandomVerticalFlip, probability=-1), 'probability must lie between 0 and 1, got -1'),
        (partial(RandomRotation, max_degrees=-1.0), 'max_degrees must lie between 0 and 180, got -1.0'),
        (partial(RandomBlur, probability=2.0), 'probability must lie between 0 and 1, got 2.0'),
        (partial(Rescale, factor=0.0), 'factor must be above 0, got 0.0'),
        (partial(ResizeStepScaling, min=2.0, max=1.0), 'min must be above 0 and not above max, got min 2.0 and max 1.0'),
        (partial(ResizeStepScaling, min=0.0), 'min must be above 0 and not above max, got min 0.0 and max 1.25'),
        (partial(ResizeStepScaling, step=-1.0), 'step cannot be negative, got -1.0'),
        (partial(RandomFlip, probability=1.5), 'probability must lie between 0 and 1, got 1.5'),
        (partial(RandomDistort, hue=-1.0), 'hue cannot be negative, got -1.0'),
        (partial(RandomDistort, hue_probability=2.0), 'hue_probability must lie between 0 and 1, got 2.0'),
    ],
)
def test_an_option_that_cannot_be_is_refused(build: partial, message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        build()
