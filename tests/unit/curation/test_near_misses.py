"""Names of images as trdg 1.8.0 writes them for `what is it?`, `19,99 a/b` and `A_b c` (--name_format 0 and 1)."""

from pathlib import Path

import pytest

import drawn
from phalanx.curation.new.near_misses import describe_near_misses
from phalanx.curation.prepare.samples import Family
from phalanx.curation.prepare.tree import Tree


@pytest.mark.parametrize(
    ('names', 'family', 'offers'),
    [
        (['what is it_0', '1999 ab_1', 'A_b c_2'], None, 'trdg --name_format 2'),
        (['0_what is it', '1_1999 ab', '2_A_b c'], 'recognition', 'trdg --name_format 2'),
        (['0_what is it', '1_1999 ab', '2_A_b c'], 'detection', ''),
        (['frame_0', 'frame_1', 'frame_2'], None, ''),
        (['bolt_3', 'nut_7', 'nail_9'], None, ''),
    ],
)
def test_names_that_hold_texts_are_named(tmp_path: Path, names: list[str], family: Family | None, offers: str) -> None:
    for number, name in enumerate(names):
        drawn.draw(tmp_path / f'{name}.jpg', number)
        drawn.draw(tmp_path / f'{name}_mask.png', number)
    lines = describe_near_misses(Tree(tmp_path), family)
    assert any(offers in line for line in lines) if offers else not lines


@pytest.mark.parametrize(('family', 'is_offered'), [(None, True), ('segmentation', True), ('recognition', False)])
def test_masks_are_offered_for_segmentation_only(tmp_path: Path, family: Family | None, is_offered: bool) -> None:
    drawn.masks_palette(tmp_path)
    assert any('--masks' in line for line in describe_near_misses(Tree(tmp_path), family)) == is_offered
