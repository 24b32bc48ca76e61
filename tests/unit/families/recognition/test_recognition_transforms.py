"""Augmentation and concatenation of lines, and resizing to the network's input."""

import re
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from phalanx.data.samples import Image
from phalanx.families.recognition import transforms
from phalanx.families.recognition.transforms import Concatenate, RecAug, warp_mls
from phalanx.runtime.prepare import fit_line

NEVER = {
    f'{change}_probability': 0.0 for change in ('warp', 'crop', 'blur', 'tint', 'shake', 'noise', 'invert')
}  # 'random() <= 0' is true once in 2**53 draws


def smooth(height: int, width: int) -> Image:
    """Image without edges, so that interpolation errors are small; red rises to the right, green downwards."""
    y, x = np.mgrid[0:height, 0:width]
    return np.stack([x * 200 / width, y * 200 / height, np.full_like(x, 50)], axis=-1).astype(np.uint8)


def noise(height: int, width: int) -> Image:
    return np.random.default_rng(5).integers(0, 256, (height, width, 3), dtype=np.uint8)


def any_text(text: str) -> bool:
    return True


def corners(height: int, width: int) -> list[complex]:
    return [0, width, width + 1j * height, 1j * height]


def test_a_warp_that_moves_nothing_changes_nothing() -> None:
    image = noise(30, 130)
    assert_array_equal(warp_mls(image, corners(30, 130), corners(30, 130)), image)


@pytest.mark.parametrize(
    ('turn', 'move'), [(1, 4 + 2j), (1.1, 0), (np.exp(0.1j), 3 - 2j)], ids=['shift', 'enlargement', 'rotation']
)
def test_a_warp_by_a_similarity_of_all_points_is_that_similarity(turn: complex, move: complex) -> None:
    """Moving least squares reproduce similarities exactly; OpenCV's warpAffine gives the expected picture."""
    image = smooth(40, 120)
    targets = [turn * point + move for point in corners(40, 120)]
    matrix = np.array([[np.real(turn), -np.imag(turn), np.real(move)], [np.imag(turn), np.real(turn), np.imag(move)]])
    expected = cv2.warpAffine(image, matrix, (120, 40), borderMode=cv2.BORDER_REPLICATE)
    assert_allclose(warp_mls(image, corners(40, 120), targets).astype(int), expected, atol=2)


def test_a_warp_moves_each_point_to_its_target() -> None:
    """The middle of a line of 201 pixels is a grid point, so it is mapped exactly."""
    image = smooth(101, 201)
    moved = warp_mls(image, [*corners(101, 201), 80 + 100j], [*corners(101, 201), 100 + 100j])
    assert_array_equal(moved[100, 100], image[100, 80])


@settings(max_examples=60)
@given(st.integers(1, 70), st.integers(1, 240), st.integers(0, 10_000))
def test_lines_of_every_size_can_be_augmented(height: int, width: int, seed: int) -> None:
    """Sizes down to one pixel; only cropping changes the size, and only the height."""
    image = noise(height, width)
    before = image.copy()
    augmented, _ = RecAug()(image, '', np.random.default_rng(seed))
    assert augmented.dtype == np.uint8
    assert augmented.shape[1:] == (width, 3)
    assert height - 8 <= augmented.shape[0] <= height and augmented.shape[0] >= min(height, 12)
    assert_array_equal(image, before)


def test_augmentation_is_a_function_of_its_generator() -> None:
    image, make = noise(32, 100), RecAug()
    one, again, other = (make(image, '', np.random.default_rng(seed))[0] for seed in (1, 1, 2))
    assert_array_equal(one, again)
    assert one.shape != other.shape or (one != other).any()


def test_augmentations_of_probability_zero_change_nothing() -> None:
    image = noise(32, 100)
    assert_array_equal(RecAug(**NEVER)(image, '', np.random.default_rng(0))[0], image)


@pytest.mark.parametrize(
    ('change', 'expected'), [('invert', lambda image: 255 - image), ('blur', lambda image: cv2.GaussianBlur(image, (5, 5), 1))]
)
def test_an_augmentation_of_probability_one_always_happens(change: str, expected: Callable[[Image], Image]) -> None:
    image = noise(32, 100)
    ours = RecAug(**{**NEVER, f'{change}_probability': 1.0})
    assert_array_equal(ours(image, '', np.random.default_rng(0))[0], expected(image))


def test_cropping_takes_rows_from_one_side() -> None:
    image = noise(32, 100)
    for seed in range(20):
        left = transforms.crop(image, np.random.default_rng(seed))
        rows = 32 - len(left)
        assert 1 <= rows <= 8
        assert (left == image[rows:]).all() or (left == image[: 32 - rows]).all()


def test_noise_lowers_values_by_at_most_one_level() -> None:
    """The standard deviation is 0.16 and values are truncated, so about half of them lose one level (published behaviour)."""
    image = np.full((50, 50, 3), 100, np.uint8)
    values, counts = np.unique(transforms.add_noise(image, np.random.default_rng(0)), return_counts=True)
    assert values.tolist() == [99, 100]
    assert counts[0] / counts.sum() == pytest.approx(0.5, abs=0.05)


def test_shaking_smears_by_at_most_one_percent_of_the_side() -> None:
    image = noise(300, 400)
    smeared = next(
        one for one in (transforms.shake(image, np.random.default_rng(n)) for n in range(50)) if (one != image).any()
    )
    assert_array_equal(smeared[0], image[0])
    assert_array_equal(smeared[1:, 1:], image[:-1, :-1])


def test_lines_are_joined_while_they_fit() -> None:
    """The texts may have 5 characters and the line be 6 times as wide as high: the third line would make it 7."""
    line, second, third = (noise(10, 20), 'ab'), (noise(20, 60), 'cd'), (noise(10, 20), 'e')
    image, text = Concatenate(image_size=(10, 60), max_length=5).join_lines(line, [second, third], any_text)
    assert (image.shape, text) == ((10, 50, 3), 'abcd')
    assert_array_equal(image[:, :20], line[0])


def test_no_line_is_skipped_for_a_shorter_one() -> None:
    ours, others = Concatenate(image_size=(10, 100), max_length=5), [(noise(10, 20), 'too long'), (noise(10, 20), 'c')]
    image, text = ours.join_lines((noise(10, 20), 'ab'), others, any_text)
    assert (image.shape, text) == ((10, 20, 3), 'ab')


def test_an_unreadable_line_is_not_joined() -> None:
    lines = iter([None, (noise(10, 20), 'cd')])
    ours = Concatenate(image_size=(10, 100), probability=1.0)
    image, text = ours((noise(10, 20), 'ab'), lambda: next(lines), np.random.default_rng(0), any_text)
    assert (image.shape[1], text) == (40, 'abcd')


def test_a_line_keeps_its_aspect_ratio_and_is_padded() -> None:
    shown, width = fit_line(noise(20, 30), (40, 100))
    assert (shown.shape, width) == ((40, 100, 3), 60)
    assert not shown[:, 60:].any()


def test_a_long_line_is_squeezed_or_widens_the_input() -> None:
    assert fit_line(noise(10, 100), (40, 100))[1] == 100
    shown, width = fit_line(noise(10, 100), (40, 100), grow=True)
    assert (shown.shape, width) == ((40, 400, 3), 400)


def test_a_line_can_be_stretched_to_the_whole_width() -> None:
    shown, width = fit_line(noise(20, 30), (40, 100), keep_ratio=False)
    assert width == 100
    assert shown[:, -1].any()


@pytest.mark.parametrize(
    ('make', 'options', 'message'),
    [
        (RecAug, {'crop_probability': 1.5}, 'crop_probability must lie between 0 and 1, got 1.5'),
        (Concatenate, {'image_size': (0, 32)}, 'image_size is (height, width) in pixels, each at least 1; got 0, 32'),
        (Concatenate, {'lines': 0}, 'lines must be at least 1, got 0'),
        (Concatenate, {'probability': -1.0}, 'probability must lie between 0 and 1, got -1.0'),
    ],
)
def test_invalid_options_are_rejected(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        make(**options)
