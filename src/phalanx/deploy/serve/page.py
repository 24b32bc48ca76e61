"""Page of `phalanx serve`, on which images are dropped; its script is `report/templates/serve.js`."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.data.image import find_background, palette
from phalanx.report.page import render
from phalanx.report.readable import format_number, pluralize

CELL_COLOURS = 12  # of tables


def render_page(guide: Mapping[str, Any], file: Path) -> str:
    """Render the page of the exported `file`, described by `guide`."""
    task, reading, metric = guide['task'], guide['reading'], guide.get('metric')
    classes = [str(name) for name in reading.get('classes', ())]
    colours = ['#{:02x}{:02x}{:02x}'.format(*colour) for colour in palette(len(classes) or CELL_COLOURS).tolist()]
    background = find_background(classes)
    pills = [('', f'{task.replace("_", " ")}: {guide.get("model") or file.stem}')]
    if metric:
        pills.append(('good', f'{metric["name"]} {format_number(metric["value"])} at step {format_number(metric["step"])}'))
    if 'characters' in reading:
        pills.append(('', pluralize(len(reading['characters']), 'character')))
    pills.append(('', time.strftime('exported %Y-%m-%d', time.localtime(file.stat().st_mtime))))
    return render(
        'serve.html',
        {
            'title': guide.get('run') or file.resolve().parent.name,
            'pills': pills,
            'chips': [(name, 'transparent' if label == background else colours[label]) for label, name in enumerate(classes)],
            'slider': slider(task, reading),
            'script': {'task': task, 'classes': classes, 'colours': colours, 'background': background},
        },
    )


def slider(task: str, reading: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return label and initial value of the slider, None without one. Initially the page shows what `predict` draws."""
    match task:
        case 'segmentation':
            return {'label': 'opacity of the classes', 'value': 0.5}
        case 'detection':
            return {'label': 'objects with a score of at least', 'value': reading.get('shown_from', 0.3)}
        case 'text_detection':
            return {'label': 'texts with a score of at least', 'value': 0}
        case _:
            return None
