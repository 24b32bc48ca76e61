"""PaddleOCR's table structure -> the family `table`: SLANet."""

import hashlib
import os
from pathlib import Path, PurePath
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import Section, as_number, with_value
from phalanx.paddle.configs.paddleocr_parts import dictionary_of, note_pretrained, read_normalisation, take_common_step

ALGORITHMS = ('SLANet',)
BACKBONES = ('PPLCNet',)
HEADS = ('SLAHead',)
PUBLISHED = {
    'ppocr/utils/dict/table_structure_dict.txt': 'pubtabnet',
    'ppocr/utils/dict/table_structure_dict_ch.txt': 'chinese',
}
TOKENS = {  # the files that the family knows by itself, by the SHA-256 of their lines
    '26fdd17cef66b20302a575c3b73dc7a9a67a82fae9cd9f97ac0509b548e2811d': 'pubtabnet',  # table_structure_dict.txt
    '76b509821f78c625c1a1e7729db13f1c877a1cc154ab3b72088c457805265918': 'chinese',  # table_structure_dict_ch.txt
}
BOXES = {'xyxy': 4, 'xyxyxyxy': 8}  # how cells are annotated, and how many numbers that are
TRANSFORMS = (
    'DecodeImage',
    'TableLabelEncode',
    'TableBoxEncode',
    'ResizeTableImage',
    'NormalizeImage',
    'PaddingTableImage',
    'ToCHWImage',
    'KeepKeys',
)


def translate(
    top: Section, architecture: Section, settings: Section, train: Section, evaluation: Section, decay: Node
) -> dict[str, Any]:
    """The part of the recipe that belongs to the family, and its parameter rules."""
    # vocabulary and box format hold for both splits
    tokens = _tokens(settings)
    box_format = settings.take('box_format', 'xyxy')
    if str(box_format.value) not in BOXES:
        settings.report_value(box_format, 'box_format', BOXES)
    numbers = with_value(box_format, BOXES.get(str(box_format.value), 4))
    options, eval_options = (_transforms(dataset, box_format, numbers) for dataset in (train, evaluation))
    evaluation.expect_options('transforms', options, eval_options, 'differ from those of Train.dataset', one='one set')
    max_length = options.get('max_length', settings.reading.default(None))
    settings.expect_same('max_text_length', max_length, 'TableLabelEncode')
    settings.ignore('use_space_char', reason='the tokens are fixed')
    # loss, decoding and metric must fit the label encoding
    loss, post, metric = top.section('Loss'), top.section('PostProcess'), top.section('Metric')
    loss.expect({'name': 'SLALoss'})
    kind = loss.take('loc_loss', 'mse')
    coefficients = [loss.take('structure_weight'), loss.take('loc_weight')]
    post.expect({'name': 'TableLabelDecode'})
    post.expect_same('merge_no_span_structure', options.get('merge_cells', settings.reading.default(None)), 'TableLabelEncode')
    metric.expect({'name': 'TableMetric'})
    metric.expect_defaults({'main_indicator': 'acc', 'compute_bbox_metric': False})
    metric.expect_same('loc_reg_num', numbers, 'Global.box_format')
    metric.expect_same('box_format', box_format, 'Global')
    ignores = metric.take('del_thead_tbody', False)
    return {
        'task': 'table',
        'model': _network(architecture, max_length, numbers),
        'data': _data(train, evaluation),
        'loss': [{'name': 'structure'}, {'name': kind}],
        'loss_coefficients': coefficients,
        **options,
        'tokens': tokens,
        'metric': {'name': 'teds', 'ignore_sections': ignores},
        'parameters': None if as_number(decay) == 0 else {'rules': [{'match': 'backbone.*.norm.*', 'weight_decay': 0.0}]},
    }


def _tokens(settings: Section) -> Node | None:
    """Structure tokens: those of a published file, or of one with the same lines."""
    node = settings.require('character_dict_path')
    if not isinstance(node.value, str):
        return None
    path = Path(node.value)
    if not path.is_file():
        return dictionary_of(settings, node, PUBLISHED)
    lines = path.read_text('utf-8', errors='replace').splitlines()
    tokens = TOKENS.get(hashlib.sha256('\n'.join(lines).encode()).hexdigest())
    if tokens is None:
        message = "has neither the tokens of PaddleOCR's table_structure_dict.txt nor those of table_structure_dict_ch.txt"
        settings.report(node, 'character_dict_path', f'{path} {message}')
        return None
    return with_value(node, tokens)


def _network(section: Section, max_length: Node, numbers: Node) -> Node:
    kind = section.string('algorithm')
    if kind.value != 'SLANet':
        section.report_value(kind, 'algorithm', ALGORITHMS)
    section.one_of('Transform', None)
    backbone, neck, head = section.section('Backbone'), section.section('Neck'), section.section('Head')
    backbone.expect({'name': 'PPLCNet'})
    note_pretrained(backbone, default=True)
    neck.expect({'name': 'CSPPAN'})
    head.expect({'name': 'SLAHead'})
    head.expect_same('loc_reg_num', numbers, 'Global.box_format')
    head.expect_defaults({'fc_decay': 0.0, 'use_attn': False})
    head.expect_same('max_text_length', max_length, 'TableLabelEncode')
    keys = {
        'name': with_value(kind, 'slanet'),
        'backbone': backbone.to_node({'name': 'pp_lcnet', 'scale': backbone.take('scale', 1.0)}),
        'channels': neck.take('out_channels', 96),
        'hidden': head.take('hidden_size', 256),
        'corners': with_value(numbers, numbers.value == 8),
    }
    return section.to_node(keys)


def _data(train: Section, evaluation: Section) -> Node:
    """The images and annotations of both splits, below the folder that all of them have in common."""
    # one annotation file and one image folder per split
    kind = train.string('name')
    evaluation.expect_same('name', kind, 'Train.dataset')
    if kind.value != 'PubTabDataSet':
        train.report_value(kind, 'name', ('PubTabDataSet',))
    places: dict[str, Node] = {}
    for section, split in ((train, 'train'), (evaluation, 'eval')):
        files = section.require('label_file_list')
        listed = files.value if isinstance(files.value, list) else [files]
        if len(listed) != 1:
            section.report(files, 'label_file_list', f'Phalanx takes one file, got {len(listed)}')
        places[split] = listed[0] if listed else files
        places[f'{split}_images'] = section.require('data_dir')
        section.one_of('ratio_list', 1.0, [1.0])
    # all of them below one root
    paths = {name: PurePath(os.path.normpath(str(node.value))) for name, node in places.items()}
    if len({path.is_absolute() for path in paths.values()}) > 1:
        train.report(train.node, 'data_dir', 'absolute and relative paths cannot be mixed')
        return train.to_node({})
    root = os.path.commonpath([paths['train'].parent, paths['eval'].parent, paths['train_images'], paths['eval_images']])
    below = {name: with_value(node, os.path.relpath(paths[name], root)) for name, node in places.items()}
    if paths['train'] != paths['eval']:  # PaddleOCR takes every line, whatever split it names
        below |= {f'{split}_split': Node(None, places[split].origin) for split in ('train', 'eval')}
    return train.to_node(
        {'name': with_value(kind, 'pubtabnet'), 'root': with_value(places['train_images'], root or '.'), **below}
    )


def _transforms(dataset: Section, box_format: Node, numbers: Node) -> dict[str, Any]:
    """Transforms of images and labels, as options of the family."""
    options: dict[str, Any] = {}
    size = longer = None
    for name, step in dataset.named_items('transforms'):
        match name:
            # labels: tokens, and boxes of cells
            case 'TableLabelEncode':
                options['max_length'] = step.require('max_text_length')
                options['merge_cells'] = step.take('merge_no_span_structure', False)
                options['name_empty_cells'] = step.take('replace_empty_cell_token', False)
                step.expect_same('loc_reg_num', numbers, 'Global.box_format')
                step.expect_defaults({'learn_empty_box': False, 'point_num': 4})
            case 'TableBoxEncode':
                for key in ('in_box_format', 'out_box_format'):
                    step.expect_same(key, box_format, 'Global')
            # images: the longer side is resized to `max_len`, then padded to a square
            case 'ResizeTableImage':
                longer = step.require('max_len')
                step.expect_defaults({'resize_bboxes': False, 'infer_mode': False})
            case 'NormalizeImage':
                options |= read_normalisation(step)
            case 'PaddingTableImage':
                size = step.require('size')
            case _ if not take_common_step(name, step):
                step.reject(TRANSFORMS)
    if longer is None or size is None or to_plain(size) != [to_plain(longer)] * 2:
        message = 'must have ResizeTableImage, and PaddingTableImage to the square of that size'
        dataset.report(dataset.node, 'transforms', message)
    return {**options, 'image_size': longer}
