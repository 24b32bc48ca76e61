"""Digit scenes: what a scene says of itself agrees with its pixels."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from phalanx.synthetic.scenes import DIGITS, EDGE, Scene, _digits, _pick, render_scene

SCENES = [render_scene(number, 'train') for number in range(12)]


def ink_of(drawn: Scene) -> np.ndarray:
    return (drawn.labels != 0) & (drawn.labels != EDGE)


def test_the_stored_digits_are_those_of_scikit_learn() -> None:
    datasets = pytest.importorskip('sklearn.datasets')
    original = datasets.load_digits()
    images, labels = _digits()
    assert_array_equal(images * 16, original.images)
    assert_array_equal(labels, original.target)


def test_a_scene_is_a_function_of_seed_split_and_number() -> None:
    first, again = render_scene(3, 'train', seed=1), render_scene(3, 'train', seed=1)
    assert_array_equal(first.image, again.image)
    assert_array_equal(first.labels, again.labels)
    others = [render_scene(4, 'train', seed=1), render_scene(3, 'eval', seed=1), render_scene(3, 'train', seed=2)]
    assert not any(np.array_equal(first.image, other.image) for other in others)


def test_the_splits_share_no_handwritten_digit() -> None:
    rng = np.random.default_rng(0)
    train, held_out = ({_pick(split, rng)[0].tobytes() for _ in range(8000)} for split in ('train', 'eval'))
    assert (len(train) > 1400, len(held_out)) == (True, 297)  # all but a few of them were seen
    assert not train & held_out


@pytest.mark.parametrize('size', [(128, 192), (64, 96), (32, 128), (200, 90)])
def test_a_scene_has_the_asked_size(size: tuple[int, int]) -> None:
    drawn = render_scene(0, 'eval', size=size)
    assert (drawn.image.shape, drawn.image.dtype) == ((*size, 3), np.uint8)
    assert (drawn.labels.shape, drawn.labels.dtype) == (size, np.uint8)


@pytest.mark.parametrize('drawn', SCENES)
def test_boxes_are_tight_around_the_ink_of_their_digit(drawn: Scene) -> None:
    ink = ink_of(drawn)
    inside = 0
    for (x0, y0, x1, y1), digit in zip(drawn.boxes.astype(int), drawn.classes, strict=True):
        part = drawn.labels[y0:y1, x0:x1] == digit + 1
        assert part[0].any() and part[-1].any() and part[:, 0].any() and part[:, -1].any()
        around = ink[max(0, y0 - 1) : y1 + 1, max(0, x0 - 1) : x1 + 1]
        assert around.sum() == part.sum()  # nothing else in the box, and nothing just outside it
        inside += part.sum()
    assert inside == ink.sum()


@pytest.mark.parametrize('drawn', SCENES)
def test_void_pixels_separate_ink_from_background(drawn: Scene) -> None:
    ink, background = ink_of(drawn), drawn.labels == 0
    assert not (ink[:, 1:] & background[:, :-1]).any() and not (ink[:, :-1] & background[:, 1:]).any()
    assert not (ink[1:] & background[:-1]).any() and not (ink[:-1] & background[1:]).any()


@pytest.mark.parametrize('drawn', [render_scene(number, 'train', lines=(1, 2)) for number in range(6)])
def test_a_text_is_what_stands_in_its_box_from_left_to_right(drawn: Scene) -> None:
    assert drawn.texts
    for text, (x0, y0, x1, y1) in zip(drawn.texts, drawn.text_boxes, strict=True):
        inside = [
            (box, digit)
            for box, digit in zip(drawn.boxes, drawn.classes, strict=True)
            if box[0] >= x0 and box[1] >= y0 and box[2] <= x1 and box[3] <= y1
        ]
        inside.sort(key=lambda pair: pair[0][0])
        assert ''.join(DIGITS[digit] for _, digit in inside) == text
        boxes = np.stack([box for box, _ in inside])
        assert (*boxes[:, :2].min(0), *boxes[:, 2:].max(0)) == (x0, y0, x1, y1)


def test_the_numbers_of_lines_and_digits_can_be_asked_for() -> None:
    for number in range(20):
        word = render_scene(
            number, 'train', size=(32, 128), lines=(1, 1), singles=(0, 0), digits_a_line=(2, 6), digit_height=(20, 26)
        )
        (text,) = word.texts
        assert 2 <= len(text) <= 6


def test_digits_without_a_free_place_are_left_out() -> None:
    empty = render_scene(0, 'train', size=(9, 9), lines=(1, 1), singles=(1, 1))
    assert (empty.boxes.shape, empty.classes.shape, empty.texts, empty.text_boxes.shape) == ((0, 4), (0,), (), (0, 4))
    assert not empty.labels.any()
