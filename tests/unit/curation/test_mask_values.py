"""Meaning of the values of masks: decided from all of them; a mask that cannot be read that way is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import drawn
from phalanx.curation.prepare.mask_values import Meaning, infer_meaning, read_label_map
from phalanx.data.checks import AnnotationError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def save(name: str, *values: int, mode: str = 'L', quality: int = 95) -> Path:
    """A mask of 64 x 48 pixels in columns of equal width, one for each value."""
    columns = np.repeat(np.array(values, np.uint8), 64 // len(values))
    picture = Image.fromarray(np.tile(columns, (48, 1)))
    picture.convert(mode).save(name, quality=quality)
    return Path(name)


def first_row(mask: Path, meaning: Meaning) -> list[int]:
    """The labels of the columns of a mask, each once."""
    return list(dict.fromkeys(read_label_map(mask, meaning, drawn.draw(Path('image.png'), 1))[0].tolist()))


def test_a_class_in_a_single_mask_of_many_is_a_class() -> None:
    masks = [save('usual.png', 0, 1, 2)] * 500
    masks[333] = save('rare.png', 0, 7)
    meaning = infer_meaning(masks, None)
    assert meaning.class_names == ('class_0', 'class_1', 'class_2', 'class_7')
    assert first_row(masks[333], meaning) == [0, 3]


def test_a_mask_in_colours_among_numbers_is_named_and_one_with_a_palette_has_its_colours() -> None:
    Image.new('RGB', (64, 48), (255, 0, 0)).save('red.png')
    with pytest.raises(AnnotationError, match=r'usual\.png holds numbers, but red\.png colours'):
        infer_meaning([*[save('usual.png', 0, 1, 2)] * 300, Path('red.png')], None)
    one = Image.open(save('numbers.png', 0, 1))
    one.putpalette([0, 0, 0, 255, 0, 0])
    one.save('palette.png')
    meaning = infer_meaning([Path('palette.png'), Path('red.png')], None)
    assert meaning.class_names == ('background', '#ff0000')
    assert first_row(Path('palette.png'), meaning) == [0, 1]


@pytest.mark.parametrize('values', [(0, 38), (0, 128), (0, 255), (0, 2)])
def test_two_values_are_background_and_object_on_whichever_side_of_the_middle(values: tuple[int, int]) -> None:
    mask = save('mask.png', *values)
    meaning = infer_meaning([mask], None)
    assert meaning.class_names == ('background', 'object')
    assert first_row(mask, meaning) == [0, 1]


def test_two_classes_without_a_background_are_two_classes() -> None:
    mask = save('mask.png', 1, 2)
    meaning = infer_meaning([mask], None)
    assert (meaning.class_names, first_row(mask, meaning)) == (('class_1', 'class_2'), [0, 1])


def test_white_is_an_object_or_ignored_as_the_masks_show() -> None:
    """0/1 beside 0/255 are two ways to write an object; 1 and 255 in one mask are an object and its doubtful edge."""
    plain, white, both = save('plain.png', 0, 1), save('white.png', 0, 255), save('both.png', 0, 1, 255)
    mixed = infer_meaning([plain, white], None)
    assert (first_row(plain, mixed), first_row(white, mixed)) == ([0, 1], [0, 1])
    edged = infer_meaning([plain, white, both], None)
    assert first_row(both, edged) == [0, 1, 255]
    assert any('255 in the masks is ignored' in note for note in edged.notes)


def test_levels_of_grey_are_classes_and_white_is_one_of_them() -> None:
    mask = save('mask.png', 0, 128, 255)
    meaning = infer_meaning([mask], None)
    assert (meaning.class_names, first_row(mask, meaning)) == (('class_0', 'class_128', 'class_255'), [0, 1, 2])


def test_a_jpeg_file_among_other_masks_does_not_decide_and_is_named() -> None:
    masks = [save('a.png', 0, 1, 2), save('b.png', 0, 2), save('c.jpg', 0, 9, 2, quality=30)]
    meaning = infer_meaning(masks, None)
    assert meaning.class_names == ('class_0', 'class_1', 'class_2')
    with pytest.raises(AnnotationError, match=r'c\.jpg: has the values .*JPEG changes values, save it as PNG'):
        first_row(masks[2], meaning)


@pytest.mark.parametrize('values', [(0, 1, 2, 3), (0, 128, 255)])
def test_jpeg_masks_of_more_than_black_and_white_are_refused(values: tuple[int, ...]) -> None:
    with pytest.raises(AnnotationError, match='JPEG has changed the values'):
        infer_meaning([save('mask.jpg', *values)], None)


def test_jpeg_masks_of_black_and_white_are_read_by_the_nearer_one() -> None:
    mask = save('mask.jpg', 0, 255, quality=40)
    assert first_row(mask, infer_meaning([mask], None)) == [0, 1]


def test_a_mask_that_cannot_be_opened_is_named_and_the_others_are_used() -> None:
    mask, empty = save('a.png', 0, 1, 2), Path('empty.png')
    empty.touch()
    meaning = infer_meaning([empty, mask], None)
    assert len(meaning.class_names) == 3
    with pytest.raises(AnnotationError, match=r'empty\.png: is not an image'):
        first_row(empty, meaning)
    with pytest.raises(AnnotationError, match=r'empty\.png: is not an image'):
        infer_meaning([empty], None)


def test_both_numberings_of_cityscapes_in_one_set_are_refused() -> None:
    masks = [save(f'aachen_00000{n}_000019_gtFine_label{kind}Ids.png', 0, 7) for n, kind in enumerate(('', 'Train'))]
    with pytest.raises(AnnotationError, match='labelIds and labelTrainIds differ'):
        infer_meaning(masks, None)
