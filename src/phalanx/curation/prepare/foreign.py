"""Annotation files of tools without a reader, recognised so that the message names what to export instead."""

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from phalanx.curation.prepare.masks import CITYSCAPES
from phalanx.curation.prepare.samples import LeftOut
from phalanx.curation.prepare.text_json import IMAGE_KEYS
from phalanx.curation.prepare.tree import Tree, read_lines, read_text
from phalanx.data.checks import AnnotationError, parse_json, shorten
from phalanx.data.texts import LINE


class Foreign(NamedTuple):
    keys: frozenset[str]  # of the object in a file, or of the first one in its list or on its first line
    about: str
    instead: str


POLYGONS = 'imgHeight imgWidth objects'  # beside the masks that are painted from them
COCO = 'export COCO'
TO_COCO = 'convert it to COCO'
LABELBOX = 'an export of Labelbox', 'convert it to COCO (Roboflow imports it)'
DARWIN = 'an export of V7 Darwin', COCO
ENCORD = 'an export of Encord', COCO
BDD = 'a list of BDD100K', 'convert it to COCO (python -m bdd100k.label.to_coco)'
FIFTYONE = 'a data set of FiftyOne', 'export COCODetectionDataset or ImageSegmentationDirectory'
DETECTIONS = 'a list of detections', 'annotations in COCO have images and categories, too'
TOOLS: tuple[Foreign, ...] = tuple(
    Foreign(frozenset(keys.split()), about, instead)
    for keys, (about, instead) in (
        ('data_row projects', LABELBOX),
        ('Labeled_Data Label', LABELBOX),
        ('filename width height ann', ('a list of MMDetection', 'take the COCO or VOC files that it was made from')),
        ('file_name height width annotations', ('a list of MMOCR 0.x', 'take its COCO file instances_*.json')),
        ('filename height width detection', ('a list of ODVG', 'take the COCO files that it was made from')),
        ('filename height width grounding', ('a list of ODVG', 'take the COCO files that it was made from')),
        (
            'type task class_names',
            ('NDJSON of Ultralytics', 'convert it by convert_ndjson_to_yolo of ultralytics.data.converter'),
        ),
        ('file_name predictions', ('a file of Lightly', 'convert it to COCO (labelformat convert)')),
        ('metadata instances', ('an export of SuperAnnotate', 'convert it to COCO with its SDK')),
        ('item annotations version', DARWIN),
        ('dataset image annotations', DARWIN),
        ('project_name label_classes images', ('an export of Hasty', COCO)),
        ('data_hash data_units', ENCORD),
        ('label_hash data_units', ENCORD),
        ('asset regions', ('a file of VoTT', 'export Pascal VOC or CSV')),
        ('assets tags', ('an export of VoTT', 'export Pascal VOC or CSV')),
        ('name labels timestamp', BDD),
        ('name labels attributes', BDD),
        ('ID gtboxes', ('annotations of CrowdHuman', TO_COCO)),
        (POLYGONS, ('polygons of Cityscapes', 'paint their masks (csCreateTrainIdLabelImgs)')),
        ('source-ref', ('a manifest of SageMaker Ground Truth', TO_COCO)),
        ('imageGcsUri', ('a list of Vertex AI', TO_COCO)),
        ('image_url label', ('a list of Azure Machine Learning', COCO)),
        (
            'otsl cells',
            (
                'a table in OTSL',
                'write a line of PubTabNet: {"filename": .., "html": {"structure": {"tokens": html}, "cells": cells[0]}}',
            ),
        ),
        (
            'schema_name texts tables',
            ('a document of docling', 'write the HTML of each table (export_to_html) beside its image'),
        ),
        ('form', ('a form of FUNSD', f'write its words as PaddleOCR does, {LINE}')),
        ('imgs anns', ('words of COCO-Text or TextOCR', 'the data set coco_text of text detection reads it (docs/data.md)')),
        ('image prefix suffix', ('a list of prompts for PaliGemma or Florence', COCO)),
        (
            'file_name objects',
            ('metadata of a Hugging Face ImageFolder', 'write its boxes as COCO, or as CSV with a line each'),
        ),
        ('image objects', ('a file of a Hugging Face data set', 'write its boxes as COCO, or as CSV with a line each')),
        ('messages', ('a list of prompts for a language model', COCO)),
        ('image spans', ('a data set of Prodigy', TO_COCO)),
        ('externalId labels', ('an export of Kili', 'export COCO, VOC or YOLO')),
        ('classes labels', FIFTYONE),
        ('name media_type sample_fields', FIFTYONE),
        ('type description index', FIFTYONE),
        ('type features', ('GeoJSON', 'convert it to COCO, or paint its shapes into masks')),
        ('task_id params response', ('tasks of Scale AI', TO_COCO)),
        ('dataset created_at description', ('a release of Segments.ai', 'convert it to COCO (segments.utils.export_dataset)')),
        ('image_id category_id bbox score', DETECTIONS),
        ('image_id category_id segmentation score', DETECTIONS),
    )
)
KNOWN = {  # what the first lines of a file of text have in them
    r'<segs>(\d+,){27}\d+</segs>|^(\d+,){28}####': (  # of training, of the test
        f'outlines and texts of CTW1500, which are not read; write them as PaddleOCR does, {LINE}'
    ),
    r'\Alevel\tpage_num\t': 'TSV of Tesseract, which is not read; write hOCR or ALTO (tesseract IMAGE NAME alto)',
    r'<document[^>]*\babbyy': 'XML of ABBYY FineReader, which is not read; export ALTO',
    r'<cell[^>]*\bstart-row=': 'tables of pages as ICDAR has them, which are not read; cut them out and write their HTML',
}
SUFFIXES = {
    '.parquet': 'a table of Parquet, as of Hugging Face data sets: save its images as files, beside COCO or folders',
    '.arrow': 'a table of Arrow, as of Hugging Face data sets: save its images as files, beside COCO or folders',
    **dict.fromkeys(('.tfrecord', '.tfrecords', '.record', '.records'), 'records of TensorFlow: export COCO, VOC or YOLO'),
    '.h5': 'HDF5: save its images and masks as files',
    '.npz': 'arrays of NumPy: save its images and masks as files',
    '.mat': 'arrays of MATLAB: save its masks as PNG, or its boxes as CSV; of TotalText, poly_gt_NAME.mat is read',
    '.pkl': 'a pickle, which could run any program and is not opened: export COCO',
    '.mdb': 'a database of LMDB, which the data set `lmdb_sets` of recognition reads: phalanx train rec_mv3_none_bilstm_ctc '
    "--set data.root=FOLDER 'data.train=[...]' 'data.eval=[...]'",
    '.tar': 'an archive: unpack it; WebDataset is read by the data set `shards`, but not by `phalanx new`',
}


def name_foreign(tree: Tree) -> LeftOut:
    """A message for each tool with files that no reader takes."""
    files = defaultdict[Foreign, list[Path]](list)
    for path, first in _contents(tree):
        keys = {str(key).replace(' ', '_') for key in first}
        if tool := next((tool for tool in TOOLS if tool.keys <= keys), None):
            files[tool].append(path)
    if any(CITYSCAPES.search(image.stem.lower()) for image in tree.images):
        files.pop(next(tool for tool in TOOLS if tool.keys == frozenset(POLYGONS.split())), None)
    more = {tool: f' (and {len(paths) - 1} more like it)' if len(paths) > 1 else '' for tool, paths in files.items()}
    return LeftOut(
        f'{paths[0]}{more[tool]}: is {tool.about}, which is not read; {tool.instead}' for tool, paths in files.items()
    )


def describe_unknown(tree: Tree) -> list[str]:
    """Files of a folder in which nothing was found, one of each kind: what is in them, for their author to recognise."""
    kinds = {path.suffix.lower(): path for path in reversed(tree.files) if path.suffix.lower() in SUFFIXES}
    found = [f'{path}: is {SUFFIXES[suffix]}' for suffix, path in kinds.items()]
    found += [f'{path}: {_about(first)}' for path, first in _contents(tree)][:1]
    for suffix in ('.xml', '.csv', '.tsv', '.txt'):
        for path in [path for path in tree.having(suffix) if not path.stem.lower().startswith('readme')][:1]:
            with suppress(AnnotationError):
                lines = read_text(path).split('\n')
                head = '\n'.join(lines[:50])
                root = re.search(r'<(\w[\w:.-]*)', head) if suffix == '.xml' else None
                about = f'XML of no known format, <{root[1]}>' if root else f'no known format, such as {shorten(lines[0])}'
                known = (f'is {what}' for pattern, what in KNOWN.items() if re.search(pattern, head, re.MULTILINE))
                found.append(f'{path}: {next(known, about)}')
    return found


def _about(first: Mapping[str, Any]) -> str:
    if isinstance(first.get('label'), str | int) and any(isinstance(first.get(key), str) for key in IMAGE_KEYS):
        return (
            'images with a label each, of classification, which is not a family of Phalanx; of the text of a line, call it text'
        )
    return f'JSON of no known format, with {", ".join(list(first)[:6])}'


def _contents(tree: Tree) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """The object in each JSON file: the first of a list, or that of the first line."""
    for path, content in tree.jsons.items():
        first = content[0] if isinstance(content, list) and content else content
        if isinstance(first, dict):
            yield path, first
    for path in tree.having('.jsonl', '.ndjson', '.manifest', '.odgt'):
        try:
            first = parse_json(next(read_lines(path), b''), path)
        except AnnotationError:
            continue  # said by the readers of lines
        if isinstance(first, dict):
            yield path, first
