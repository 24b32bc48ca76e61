"""Transforms keep outlines on the texts: a bright block stands for a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import pytest

from phalanx.families.text_detection.data.source import Texts, make_texts
from phalanx.families.text_detection.transforms import (
    TRANSFORMS,
    CopyPaste,
    RandomCrop,
    TransformContext,
    find_gaps,
    join_crops,
)

WORDS = [(20, 20, 70, 36), (100, 30, 160, 50), (30, 80, 120, 100), (130, 120, 180, 140)]


def page() -> tuple[np.ndarray, Texts]:
    image = np.zeros((160, 200, 3), np.uint8)
    outlines = []
    for x0, y0, x1, y1 in WORDS:
        image[y0:y1, x0:x1] = 255
        outlines.append(np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float32))
    return image, make_texts([(points, f'word {number}') for number, points in enumerate(outlines)])


def context(seed: int) -> TransformContext:
    return TransformContext(np.random.default_rng(seed), page)


def share_of_white(image: np.ndarray, texts: Texts) -> tuple[float, float]:
    """Share of white pixels inside outlines, and share of white among the pixels inside outlines."""
    inside = np.zeros(image.shape[:2], np.uint8)
    for points in texts.outlines:
        cv2.fillPoly(inside, [points.round().astype(np.int32)], 1)
    white = image[..., 0] > 127
    both = (white & (inside > 0)).sum()
    return both / white.sum(), both / inside.sum()


@pytest.mark.parametrize(
    ('name', 'options'),
    [
        ('copy_paste', {'ratio': 1.0}),
        ('copy_paste', {'ratio': 0.5, 'apart': False}),
        ('random_flip', {'probability': 1.0}),
        ('random_rotate', {'degrees': [-10.0, 10.0]}),
        ('random_resize', {'scale': [0.5, 3.0]}),
        ('random_crop', {'crop_size': (96, 128)}),
        ('resize', {'target_size': (160, 320)}),
        ('limit_side', {'side': 320, 'limit': 'min'}),
    ],
)
def test_outlines_stay_on_the_words(name: str, options: dict[str, Any]) -> None:
    transform = TRANSFORMS[name](**options)
    for seed in range(8):
        image, texts = transform(*page(), context(seed))
        assert image.dtype == np.uint8 and image.flags['C_CONTIGUOUS']
        assert min(share_of_white(image, texts)) > 0.8, (name, seed)


def test_a_quarter_turn_of_a_square_is_that_of_numpy() -> None:
    """About its centre, counter-clockwise, at the same size; with a side of 64, (x, y) becomes (y, 63 - x)."""
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    texts = make_texts([(np.array([[10, 20], [30, 20], [30, 28], [10, 28]], np.float32), 'word')])
    turned, moved = TRANSFORMS['random_rotate'](degrees=(90.0, 90.0))(image, texts, context(0))
    np.testing.assert_array_equal(turned, np.rot90(image))
    np.testing.assert_allclose(moved.outlines[0], [[20, 53], [20, 33], [28, 33], [28, 53]], atol=1e-4)


def test_pasted_texts_lie_apart_from_others_and_have_the_pixels_of_their_page() -> None:
    """Words of the other page are brighter than all of this one, and each is found with its number inside its outline."""
    image, texts = page()
    image //= 2
    counts = set()
    for seed in range(12):
        before = image.copy()
        shown, found = CopyPaste(ratio=0.6)(image, texts, context(seed))
        assert np.array_equal(image, before)  # the page that was read may be cached
        pasted = found.select(range(4, len(found)))
        counts.add(len(pasted))
        assert set(pasted.strings) <= {f'word {number}' for number in range(4)} and not any(pasted.ignored)
        inside = np.zeros(shown.shape[:2], np.uint8)
        for number, points in enumerate(pasted.outlines):
            bounds = np.array([points.min(0), points.max(0)])
            others = [*texts.outlines, *pasted.outlines[:number]]
            apart = [(other.min(0) > bounds[1]).any() or (other.max(0) < bounds[0]).any() for other in others]
            assert all(apart)
            cv2.fillPoly(inside, [points.round().astype(np.int32)], 1)
            x0, _, x1, _ = WORDS[int(pasted.strings[number][-1])]
            assert np.hypot(*(points[1] - points[0])) == pytest.approx(x1 - x0, abs=1)
        bright = shown[..., 0] > 130
        assert not (bright & (inside == 0)).sum() > 0.05 * max(1, bright.sum())
        assert bright.sum() > 0.8 * inside.sum()
    assert counts <= {0, 1, 2} and 2 in counts


def test_ignored_texts_and_texts_larger_than_the_page_are_not_pasted() -> None:
    image, _ = page()
    points = np.array([[0, 0], [200, 0], [200, 160], [0, 160]], np.float32)
    for source in (make_texts([(points, '###')]), make_texts([(points * 100, 'large')]), Texts()):
        drawn = TransformContext(np.random.default_rng(0), lambda source=source: (image, source))
        shown, found = CopyPaste()(np.zeros((64, 64, 3), np.uint8), Texts(), drawn)
        assert len(found) == 0 and not shown.any()


def test_flipping_mirrors_each_point() -> None:
    image, texts = TRANSFORMS['random_flip'](probability=1.0)(*page(), context(0))
    assert texts.outlines[0].tolist() == [[180, 20], [130, 20], [130, 36], [180, 36]]
    assert image[25, 150, 0] == 255


def test_a_crop_cuts_no_word_and_contains_one() -> None:
    crop = RandomCrop(crop_size=(64, 64))
    sizes = set()
    for seed in range(40):
        x0, y0, x1, y1 = crop._choose_part((160, 200), page()[1], np.random.default_rng(seed))
        sizes.add((x1 - x0, y1 - y0))
        whole = [word for word in WORDS if x0 <= word[0] and word[2] <= x1 and y0 <= word[1] and word[3] <= y1]
        touched = [word for word in WORDS if word[2] > x0 and word[0] < x1 and word[3] > y0 and word[1] < y1]
        assert whole == touched and whole
    assert len(sizes) > 10


def test_a_crop_keeps_the_aspect_ratio_and_is_padded_with_black() -> None:
    image, texts = page()
    cut, kept = RandomCrop(crop_size=(64, 64), attempts=0)(image, texts, context(0))
    assert cut.shape == (64, 64, 3) and not cut[52:].any()  # 200 x 160 becomes 64 x 51
    assert kept.outlines[0] == pytest.approx(texts.outlines[0] * 0.32)
    assert len(kept) == 4


def steps(*scale: float) -> list[Any]:
    """Transforms of DB; `scale`: that of the image."""
    return [
        TRANSFORMS['random_rotate'](degrees=(-10.0, 10.0)),
        TRANSFORMS['random_resize'](scale=scale),
        RandomCrop(crop_size=(128, 128)),
    ]


def apply_all(transforms: Sequence[Any], image: np.ndarray, seed: int) -> tuple[np.ndarray, Texts]:
    texts, drawn = page()[1], context(seed)
    for transform in transforms:
        image, texts = transform(image, texts, drawn)
    return image, texts


@pytest.mark.parametrize('scale', [(0.5, 3.0), (1.0, 1.0)])
def test_a_joined_crop_shows_what_its_steps_show(scale: tuple[float, float]) -> None:
    """Same draws, same outlines, same places: a smooth image differs by what the second interpolation rounds."""
    waves = np.sin(np.linspace(0, 9, 160))[:, None] + np.cos(np.linspace(0, 12, 200))
    smooth = np.stack([127 + 60 * waves] * 3, 2).astype(np.uint8)
    for seed in range(20):
        (shown, texts), (wanted, stepped) = (
            apply_all(transforms, smooth, seed) for transforms in (join_crops(steps(*scale)), steps(*scale))
        )
        assert len(texts) == len(stepped) and all(map(np.array_equal, texts.outlines, stepped.outlines))
        difference = np.abs(shown.astype(int) - wanted)
        assert np.median(difference) <= 1 and difference.mean() < 2, seed  # large only at black edges of the turned page


def test_a_joined_crop_interpolates_its_own_pixels_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """One warp of at most the crop for enlarged pages; the whole page is never rendered."""
    warped = []
    monkeypatch.setattr(cv2, 'resize', lambda *_, **__: pytest.fail('resized'))
    warp = cv2.warpAffine
    monkeypatch.setattr(
        cv2, 'warpAffine', lambda image, affine, size, **keys: warped.append(size) or warp(image, affine, size, **keys)
    )
    for seed in range(10):
        apply_all(join_crops(steps(1.5, 3.0)), page()[0], seed)
    assert len(warped) == 10 and all(127 <= max(size) <= 128 for size in warped)


def test_a_page_that_was_made_smaller_stays_as_blurred() -> None:
    """Halved, a pattern of single pixels becomes grey, and enlarging a part of it must not bring the pattern back."""
    pattern = (np.indices((160, 200)).sum(0)[..., None] % 2 * np.full(3, 255)).astype(np.uint8)
    for seed in range(10):
        shown, _ = apply_all(join_crops(steps(0.5, 0.5)[1:]), pattern, seed)
        assert set(np.unique(shown)) <= {0, 127, 128}


def test_other_transforms_stay_apart() -> None:
    flip, (rotate, resize, crop) = TRANSFORMS['random_flip'](), steps(1.0, 2.0)
    joined = join_crops([rotate, flip, resize, crop, rotate])
    assert joined[:2] == (rotate, flip) and joined[3:] == (rotate,)
    assert joined[2].moves == (resize,) and joined[2].crop == crop


def test_an_image_without_words_is_taken_whole() -> None:
    cut, kept = RandomCrop(crop_size=(64, 64))(np.full((30, 60, 3), 9, np.uint8), Texts(), context(0))
    assert len(kept) == 0 and (cut[:32] == 9).all() and not cut[32:].any()


def test_gaps_are_the_columns_without_words() -> None:
    columns = find_gaps(np.array([2, -3], np.float32), np.array([5, -1], np.float32), 8)
    assert [run.tolist() for run in columns] == [[0, 1], [5, 6, 7]]


@pytest.mark.parametrize(
    ('name', 'options', 'message'),
    [
        ('copy_paste', {'ratio': 1.5}, 'ratio must lie between 0 and 1'),
        ('random_crop', {'crop_size': (100, 64)}, 'crop_size must be multiples of 32'),
        ('random_rotate', {'degrees': (10.0, -10.0)}, 'degrees is the minimum and the maximum'),
        ('random_resize', {'scale': (0.0, 1.0)}, 'scale is the minimum and the maximum factor, above 0'),
        ('limit_side', {'side': 8}, 'side must be at least 32'),
    ],
)
def test_invalid_options_are_rejected(name: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TRANSFORMS[name](**options)
