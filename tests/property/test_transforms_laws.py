"""Laws of the augmentations of segmentation, over generated images."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from phalanx.families.segmentation.transforms import (
    Padding,
    RandomBlur,
    RandomDistort,
    RandomFlip,
    RandomPaddingCrop,
    RandomRotation,
    RandomVerticalFlip,
    ResizeByLong,
    ResizeStepScaling,
    Transform,
)

SIDES, SEEDS = st.integers(1, 40), st.integers(0, 2**32)
TRANSFORMS = st.sampled_from(
    (
        RandomDistort(),
        RandomFlip(),
        RandomRotation(max_degrees=180),
        RandomBlur(probability=0.5, kind='random'),
        RandomVerticalFlip(probability=0.5),
        RandomPaddingCrop(crop_size=(8, 16)),
        Padding(target_size=(8, 16)),
        ResizeByLong(side=20),
        ResizeStepScaling(min=0.5, max=2.0, step=0.25),
    )
)


def sample(height: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """An image whose first channel is its label map, so that the two can be compared after geometry."""
    rng = np.random.default_rng(seed)
    image = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    return image, image[..., 0].copy()


@given(SIDES, SIDES, SEEDS)
def test_flipped_twice_is_not_flipped(height: int, width: int, seed: int) -> None:
    image, labels = sample(height, width, seed)
    flip, rng = RandomFlip(probability=1), np.random.default_rng(seed)
    twice = flip(*flip(image, labels, rng), rng)
    assert_array_equal(twice[0], image)
    assert_array_equal(twice[1], labels)


@given(SIDES, SIDES, SIDES, SIDES, SEEDS)
def test_a_crop_has_the_asked_size_and_moves_image_and_labels_alike(
    height: int, width: int, crop_height: int, crop_width: int, seed: int
) -> None:
    image, labels = sample(height, width, seed)
    part, part_labels = RandomPaddingCrop(crop_size=(crop_height, crop_width))(image, labels, np.random.default_rng(seed))
    assert (part.shape, part_labels.shape) == ((crop_height, crop_width, 3), (crop_height, crop_width))
    taken = (slice(min(height, crop_height)), slice(min(width, crop_width)))
    assert_array_equal(part[taken][..., 0], part_labels[taken])


@settings(max_examples=50)
@given(TRANSFORMS, SIDES, SIDES, SEEDS)
def test_the_same_random_numbers_give_the_same_sample(transform: Transform, height: int, width: int, seed: int) -> None:
    image, labels = sample(height, width, seed)
    before = image.copy()
    once, again = (transform(image, labels, np.random.default_rng(seed)) for _ in range(2))
    assert_array_equal(once[0], again[0])
    assert_array_equal(once[1], again[1])
    assert_array_equal(image, before)  # what was read is not written to


@settings(max_examples=50)
@given(TRANSFORMS, SIDES, SIDES, SEEDS)
def test_image_and_labels_keep_one_size_and_no_label_is_invented(
    transform: Transform, height: int, width: int, seed: int
) -> None:
    image, labels = sample(height, width, seed)
    changed, changed_labels = transform(image, labels, np.random.default_rng(seed))
    assert changed.shape == (*changed_labels.shape, 3)
    assert changed.dtype == changed_labels.dtype == np.uint8
    assert set(changed_labels.flat) <= {*labels.flat, 255}
