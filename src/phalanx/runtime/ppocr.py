"""Published ONNX files of PP-OCR, as RapidAI converts and names them: their guide, which the files lack.

Values are those of rapidocr 3.10 (config.yaml); dictionaries are in the metadata of the recognisers.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phalanx.runtime.prepare import STEP

NAME = re.compile(r'PP-OCRv[3-6]_(?:\w+_)?(det|rec)(?:_|$)')  # of the file: ch_PP-OCRv4_det_infer, PP-OCRv6_rec_small
PREPARATION = {'channels': 'BGR', 'mean': [0.5, 0.5, 0.5], 'std': [0.5, 0.5, 0.5]}
POST_PROCESSING = {
    'threshold': 0.3,
    'box_threshold': 0.5,
    'max_candidates': 1000,
    'unclip_ratio': 1.6,
    'shape': 'quad',
    'scoring': 'fast',
    'dilate': True,
}
CHARACTERS = 'character'  # key of the metadata


def characters_of(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Characters of a recogniser, one per line in its metadata without the space at their end; () without any."""
    return (*metadata[CHARACTERS].removesuffix('\n').split('\n'), ' ') if metadata.get(CHARACTERS) else ()


def published_guide(file: Path, metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """Guide of a published file of PP-OCR, known by its name; None for another file."""
    name = NAME.search(file.stem)
    if name is None:
        return None
    shared = {'model': file.stem, 'input': {'shape': ['batch', 3, 'height', 'width']}}
    if name[1] == 'det':
        transforms = [{'name': 'LimitSide', 'side': 736, 'limit': 'min'}]
        preparation = {**PREPARATION, 'transforms': transforms, 'multiple_of': STEP}
        return {**shared, 'task': 'text_detection', 'preparation': preparation, 'reading': {'post_processing': POST_PROCESSING}}
    characters = characters_of(metadata)
    if not characters:
        return None
    preparation = {**PREPARATION, 'image_size': [48, 320], 'keep_ratio': True}
    reading = {'characters': characters, 'right_to_left': file.stem.startswith('arabic')}
    return {**shared, 'task': 'recognition', 'preparation': preparation, 'reading': reading}


def named_outputs(guide: Mapping[str, Any], values: Any) -> dict[str, Any]:
    """Outputs by the names of our own files: a map [B, 1, h, w], or probabilities of characters [B, T, C] after the softmax.

    Raises ValueError for another shape.
    """
    if guide['task'] == 'text_detection':
        if values.ndim != 4 or values.shape[1] != 1:
            raise ValueError(f'its output is {list(values.shape)} instead of [batch, 1, height, width]')
        return {'probabilities': values[:, 0]}
    classes = len(guide['reading']['characters']) + 1
    if values.ndim != 3 or values.shape[2] != classes:
        raise ValueError(f'its output is {list(values.shape)} instead of [batch, steps, {classes}], characters and a blank')
    return {'numbers': values.argmax(2), 'probabilities': values.max(2)}
