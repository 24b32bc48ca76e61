"""Words of lines, with their places."""

import re

import numpy as np

from phalanx.runtime.reading import is_upright
from phalanx.runtime.results import Line, Outline
from phalanx.runtime.text_detection import quad


def words_of(line: Line) -> list[tuple[str, Outline]]:
    """Words of a line, each with its part of the outline, assuming characters of equal width.

    Four corners: upper and lower at the beginning of the word, upper and lower at its end, as seen by its reader. Of an outline
    with other than four points, the smallest rectangle around it counts.
    """
    outline = np.array(line.points, np.float32)
    corners = quad(outline, 0) if len(outline) != 4 else outline
    assert corners is not None  # no side is shorter than 0
    a, b, c, d = corners.astype(float)
    # A text that runs from top to bottom has its upper side on the right.
    starts, ends = ((b, a), (c, d)) if is_upright(np.hypot(*(b - a)), np.hypot(*(d - a))) else ((a, d), (b, c))
    words = []
    for match in re.finditer(r'\S+', line.text):
        # Where the word begins and ends, as fractions of the line.
        near, far = (place / len(line.text) for place in match.span())
        edges = [start + share * (end - start) for share in (near, far) for start, end in zip(starts, ends, strict=True)]
        words.append((match[0], tuple((float(x), float(y)) for x, y in edges)))
    return words
