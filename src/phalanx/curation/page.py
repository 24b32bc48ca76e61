"""HTML page of a census: numbers, tables and pictures in one file, without scripts or network."""

import base64
import io
from typing import Any

from PIL import Image as Picture

from phalanx.curation.census import Census, spread_evenly
from phalanx.curation.prepare.colours import format_colour
from phalanx.curation.tables import class_rows, duplicate_rows, problem_rows, size_rows, summarize
from phalanx.data.image import palette
from phalanx.report.page import render
from phalanx.report.readable import format_number, shorten_paths

PICTURES = 8  # per split
WIDTH = 290  # of a picture, in pixels


def render_page(census: Census, name: str) -> str:
    """Render the census of the data set of recipe `name`; the pictures are read again."""
    classes, sizes = class_rows(census), size_rows(census)
    expected = {name for survey in census.surveys.values() for name in survey.class_names}
    return render(
        'census.html',
        {
            'title': f'Data of {name}',
            'verdict': summarize(census),
            'tiles': [
                *(
                    (split, format_number(part.samples), f'{format_number(len(part.indices))} read')
                    for split, part in census.splits.items()
                ),
                ('problems', format_number(len(census.problems)), 'samples that cannot be used'),
                ('duplicates', format_number(len(census.duplicates)), 'images that occur more than once'),
            ],
            'problems': problem_rows(census),
            'remarks': census.remarks(),
            'classes': classes,
            'colours': [format_colour(colour) for colour in palette(len(expected)).tolist()],  # of the classes in the pictures
            'sizes': sizes,
            'bars': {column for row in (*classes, *sizes) for column in row if column.endswith('share')},
            'duplicates': duplicate_rows(census),
            'pictures': _pictures(census),
        },
    )


def _pictures(census: Census) -> list[dict[str, Any]]:
    figures: list[dict[str, Any]] = []
    for split, survey in census.surveys.items():
        indices = census.splits[split].indices
        for index in (indices[place] for place in spread_evenly(len(indices), PICTURES)):
            picture = Picture.fromarray(survey.picture(index))
            picture.thumbnail((WIDTH, WIDTH))
            data = f'data:image/jpeg;base64,{_jpeg(picture)}'
            figures.append({'caption': f'{survey.name(index)} ({split})', 'data': data, 'width': picture.width})
    captions = shorten_paths([figure['caption'] for figure in figures])
    return [figure | {'caption': caption} for figure, caption in zip(figures, captions, strict=True)]


def _jpeg(picture: Picture.Image) -> str:
    """Encode a picture as base64 JPEG."""
    file = io.BytesIO()
    picture.save(file, 'JPEG', quality=85)
    return base64.b64encode(file.getvalue()).decode()
