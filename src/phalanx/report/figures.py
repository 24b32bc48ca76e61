"""Figures and pictures of evaluations: as files of a run folder, and within a page."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from phalanx.families.figures import Curves, Figure, Legend, Matrix, Pictures, Table
from phalanx.report.page import detail_values

PICTURE_SIDE = 800  # maximum in pixels: the page embeds all pictures
KINDS = {Curves: 'curves', Matrix: 'matrix', Table: 'table', Pictures: 'pictures', Legend: 'legend'}  # of figures in table.json


def embed(table: Sequence[Mapping[str, Any]], figures: Sequence[Figure]) -> dict[str, Any]:
    """Return the template values of a table and figures for a page without a run folder. Raises OSError."""
    with tempfile.TemporaryDirectory() as folder:
        return detail_values(Path(folder), table, save_figures(figures, Path(folder)))


def save_figures(figures: Sequence[Figure], folder: Path) -> list[dict[str, Any]]:
    """Return figures as for table.json, with their pictures saved in `folder`. Raises OSError."""
    entries = []
    for place, figure in enumerate(figures):
        entry = {'kind': KINDS[type(figure)], **vars(figure)}
        if isinstance(figure, Pictures):
            entry['rows'] = [
                {'caption': caption, 'cells': save_pictures(cells, folder, f'figure{place}_{row:02}_')}
                for row, (caption, cells) in enumerate(figure.rows)
            ]
        entries.append(entry)
    return entries


def save_pictures(cells: Sequence[tuple[str, npt.NDArray[np.uint8]]], folder: Path, prefix: str) -> list[dict[str, str]]:
    """Save pictures in `folder`/pictures, large ones shrunk and compressed; return captions and file names. Raises OSError."""
    (folder / 'pictures').mkdir(exist_ok=True)
    saved = []
    for place, (caption, picture) in enumerate(cells):
        image = Image.fromarray(picture)
        file = f'{prefix}{place}.{"png" if max(image.size) <= 256 else "jpg"}'
        image.thumbnail((PICTURE_SIDE, PICTURE_SIDE))
        image.save(folder / 'pictures' / file, quality=92, subsampling=0)
        saved.append({'caption': caption, 'file': file})
    return saved
