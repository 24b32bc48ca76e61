"""A census as one HTML file without scripts that needs no network: numbers, tables, pictures."""

import base64

import cv2
import numpy as np

from phalanx.curation.census import Census, spread
from phalanx.curation.prepare.colours import code_of
from phalanx.curation.tables import class_rows, duplicate_rows, problem_rows, size_rows, verdict
from phalanx.data.image import palette
from phalanx.data.samples import Image
from phalanx.report.page import render
from phalanx.report.readable import format_number

PICTURES = 8  # of each split
WIDTH = 480  # of a picture, in pixels


def page(census: Census, name: str) -> str:
    """The HTML of the census of the data set of the recipe `name`; reads the samples that it shows once more."""
    classes, sizes = class_rows(census), size_rows(census)
    expected = {name for survey in census.surveys.values() for name in survey.class_names}
    return render(
        'census.html',
        {
            'title': f'Data of {name}',
            'verdict': verdict(census),
            'tiles': [
                *(
                    (split, format_number(part.samples), f'{format_number(len(part.indices))} read')
                    for split, part in census.splits.items()
                ),
                ('problems', format_number(len(census.problems)), 'samples that cannot be used'),
                ('duplicates', format_number(len(census.duplicates)), 'images that are there twice or more'),
            ],
            'problems': problem_rows(census),
            'remarks': census.remarks(),
            'classes': classes,
            'colours': [code_of(colour) for colour in palette(len(expected)).tolist()],  # of the classes in the pictures
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
        for index in (indices[place] for place in spread(len(indices), PICTURES)):
            data = f'data:image/jpeg;base64,{_jpeg(survey.picture(index))}'
            figures.append({'caption': f'{survey.name(index)} ({split})', 'data': data})
    return figures


def _jpeg(picture: Image) -> str:
    """The picture, not larger than WIDTH, as text for a page."""
    scale = min(1, WIDTH / max(picture.shape[:2]))
    small = cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else picture
    _, data = cv2.imencode('.jpg', np.ascontiguousarray(small[..., ::-1]), [cv2.IMWRITE_JPEG_QUALITY, 85])
    return base64.b64encode(data.tobytes()).decode()
