"""The lines within the cells of a table are cut out and read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from phalanx.data.samples import Image
from phalanx.deploy.cells import find_lines, read_cells
from phalanx.runtime import Reading

CELLS = [(2, 2, 22, 14), (22, 6, 42, 18), (42, 20, 56, 22)]


def name_by_ink(cuts: Sequence[Image]) -> list[Reading]:
    """Read an image as the number of its columns with ink."""
    return [Reading(str((cut.min((0, 2)) < 128).sum()), 1.0) for cut in cuts]


def paper(*inked: tuple[int, int, int, int]) -> Image:
    """White, [40, 60, 3], with black rectangles (xyxy)."""
    image = np.full((40, 60, 3), 255, np.uint8)
    for x0, y0, x1, y1 in inked:
        image[y0:y1, x0:x1] = 0
    return image


def test_the_lines_of_a_cell_are_read_apart_and_joined_by_a_blank() -> None:
    image = paper((4, 4, 9, 10), (4, 14, 12, 20), (30, 6, 37, 12))
    assert read_cells(image, [(2, 2, 20, 22), (28, 4, 40, 14), (42, 2, 58, 22)], name_by_ink) == ('5 8', '7', '')


def test_a_dot_belongs_to_the_letter_below_it_and_a_comma_to_that_above() -> None:
    image = paper((4, 2, 6, 4), (4, 5, 20, 13), (4, 22, 20, 30), (18, 31, 19, 33))
    assert find_lines(image) == [(2, 13), (22, 33)]


def test_light_text_on_dark_paper_is_ink() -> None:
    assert find_lines(255 - paper((4, 4, 30, 12))) == [(4, 12)]


def test_a_cell_outside_the_image_is_empty() -> None:
    assert read_cells(paper(), [(70, 2, 90, 10), (-9, -9, -2, -2), (5, 5, 5, 5)], name_by_ink) == ('', '', '')


def test_a_dash_is_as_high_as_the_lines_of_the_table() -> None:
    seen = []

    def look(cuts: Sequence[Image]) -> list[Reading]:
        seen.extend(sorted((cut.shape[:2] for cut in cuts), reverse=True))
        return name_by_ink(cuts)

    assert read_cells(paper((4, 4, 12, 12), (24, 8, 32, 16), (44, 20, 50, 22)), CELLS, look) == ('8', '8', '6')
    assert seen == [(12, 24), (12, 24), (12, 18)]  # 8 pixels of ink and 2 on each side, though the dash has 2
