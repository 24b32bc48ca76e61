"""HTML page of a census: numbers, tables and pictures in one file, without scripts or network."""

import base64

import cv2
import numpy as np

from phalanx.curation.census import Census, spread_evenly
from phalanx.curation.prepare.colours import format_colour
from phalanx.curation.tables import class_rows, duplicate_rows, problem_rows, size_rows, summarize
from phalanx.data.image import palette
from phalanx.data.samples import Image
from phalanx.report.page import render
from phalanx.report.readable import format_number

PICTURES = 8  # per split
WIDTH = 480  # of a picture, in pixels


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


def _pictures(census: Census) -> list[dict[str, str]]:
    figures = []
    for split, survey in census.surveys.items():
        indices = census.splits[split].indices
        for index in (indices[place] for place in spread_evenly(len(indices), PICTURES)):
            data = f'data:image/jpeg;base64,{_jpeg(survey.picture(index))}'
            figures.append({'caption': f'{survey.name(index)} ({split})', 'data': data})
    return figures


def _jpeg(picture: Image) -> str:
    """Encode the picture, reduced to WIDTH, as base64 JPEG."""
    scale = min(1, WIDTH / max(picture.shape[:2]))
    small = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else picture
    _, data = cv2.imencode('.jpg', np.ascontiguousarray(small[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 85])
    return base64.b64encode(data.tobytes()).decode()
