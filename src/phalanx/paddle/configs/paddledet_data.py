"""PaddleDetection's `TrainDataset` and `EvalDataset`, its readers' transforms, and its metric."""

import os
from pathlib import Path
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import Section, as_number, with_value

METRICS = {'COCO': 'coco', 'VOC': 'voc'}
INTERPOLATIONS = {0: 'nearest', 1: 'linear', 2: 'cubic', 3: 'area', 4: 'lanczos4'}  # as OpenCV numbers them
STEPS = ('Decode', 'RandomDistort', 'RandomExpand', 'RandomCrop', 'RandomFlip', 'Resize', 'BatchRandomResize', 'NormalizeImage')


def read_data(top: Section) -> Node:
    train, evaluation = top.section('TrainDataset'), top.section('EvalDataset')
    # both splits must be of one kind, which becomes `data.name`
    kinds = [section.string('type') if section.has('type') else section.string('name') for section in (train, evaluation)]
    if str(kinds[0].value) not in ('COCODataSet', 'VOCDataSet'):
        train.report_value(kinds[0], 'name', ('COCODataSet', 'VOCDataSet'))
    if kinds[1].value != kinds[0].value:
        message = f'{kinds[1].value!r} is not that of TrainDataset, {kinds[0].value!r}; Phalanx has one for both'
        evaluation.report(kinds[1], 'name', message)
        train.give_up()
        evaluation.give_up()
        return train.to_node({})
    # annotation files, and images without objects, for both kinds
    keys: dict[str, Any] = {'train': train.require('anno_path'), 'eval': evaluation.require('anno_path')}
    keys['empty_images'] = train.take('allow_empty', False)
    evaluation.assume('allow_empty', True, 'images without objects are always evaluated')
    match kinds[0].value:
        case 'COCODataSet':
            keys |= {'train_images': train.take('image_dir', ''), 'eval_images': evaluation.take('image_dir', '')}
            keys = {'name': with_value(kinds[0], 'coco'), **_below_one_root(train, evaluation, keys)}
        case 'VOCDataSet':
            root = train.require('dataset_dir')
            evaluation.expect_same('dataset_dir', root, 'TrainDataset')  # the lists themselves have paths below it
            keys |= {'name': with_value(kinds[0], 'pascal_voc'), 'root': root, 'learn_difficult': True}
            labels = train.take('label_list')
            evaluation.expect_same('label_list', labels, 'TrainDataset')
            keys['classes'] = labels if labels.value else None
        case _:
            train.give_up()
            evaluation.give_up()
    # keys that change nothing here, or only have their default
    for section in (train, evaluation):
        section.take('name')  # beside `type`, which has been read
        section.ignore('data_fields', reason='the fields that training and metric need are always read')
        section.expect_defaults({'sample_num': -1, 'repeat': 1, 'load_crowd': False})
    return train.to_node(keys)


def _below_one_root(train: Section, evaluation: Section, keys: dict[str, Any]) -> dict[str, Any]:
    """The `keys` of both splits, whose paths begin at the folder of their own split, as paths below one `root`."""
    folders = {'train': train.require('dataset_dir'), 'eval': evaluation.require('dataset_dir')}
    paths = {split: os.path.normpath(str(node.value)) for split, node in folders.items()}
    if paths['train'] == paths['eval']:
        return {'root': folders['train'], **keys}
    if Path(paths['train']).is_absolute() != Path(paths['eval']).is_absolute():
        both = f'{paths["eval"]!r} and {paths["train"]!r} of TrainDataset'
        message = f'{both}: give both as absolute paths, or both as relative ones'
        evaluation.report(folders['eval'], 'dataset_dir', message)
        return {'root': folders['train'], **keys}
    root = os.path.commonpath(paths.values()) or '.'
    below = dict(keys)
    for key, split in (('train', 'train'), ('train_images', 'train'), ('eval', 'eval'), ('eval_images', 'eval')):
        below[key] = with_value(keys[key], os.path.relpath(Path(paths[split], str(keys[key].value)), root))
    return {'root': with_value(folders['train'], root), **below}


def read_metric(top: Section) -> Node:
    kind, points = top.string('metric'), top.take('map_type', '11point')
    keys: dict[str, Any] = {'name': top.counterpart(kind, 'metric', METRICS)}
    if kind.value == 'VOC':
        keys['points'] = with_value(points, {'11point': '11', 'integral': 'all'}.get(str(points.value), points.value))
    return top.to_node(keys)


def read_transforms(reader: Section) -> tuple[list[Node], dict[str, Any]]:
    """The transforms of samples and batches, one after the other, and the mean and std of the normalisation that ends them."""
    transforms: list[Node] = []
    normalise: dict[str, Any] = {}
    for name, step in [*reader.named_items('sample_transforms'), *reader.named_items('batch_transforms')]:
        match name:
            case 'Decode' | 'Permute' | 'PadGT' | 'FGDMask':  # done in any case; the masks are for distillation
                step.give_up()
            case 'NormalizeImage':
                step.one_of('is_scale', True)
                is_plain = step.take('norm_type', 'mean_std').value == 'none'
                mean, std = step.take('mean', [0.485, 0.456, 0.406]), step.take('std', [1, 1, 1])
                used = {'mean': [0, 0, 0], 'std': [1, 1, 1]} if is_plain else {'mean': mean, 'std': std}
                normalise = step.reading.tree(used).value
            case _:
                transforms.append(_transform(name, step))
    return transforms, normalise


def _transform(name: str, step: Section) -> Node:
    keys: dict[str, Any] = {}
    match name:
        case 'RandomDistort':
            keys = {'name': 'random_distort'}
            # only the defaults: ranges and number of the operations are fixed here
            ranges = {'saturation': [0.5, 1.5, 0.5], 'contrast': [0.5, 1.5, 0.5], 'brightness': [0.5, 1.5, 0.5]}
            step.expect_defaults(
                {'hue': [-18, 18, 0.5], **ranges, 'random_apply': True, 'count': 4, 'random_channel': False, 'prob': 1.0}
            )
        case 'RandomExpand':
            # PaddleDetection's `prob` is the probability of NOT expanding
            fill, not_expanding = step.take('fill_value', [127.5] * 3), step.take('prob', 0.5)  # which is what it says
            keys = {
                'name': 'random_expand',
                'ratio': step.take('ratio', 4.0),
                'probability': with_value(not_expanding, 1 - (as_number(not_expanding) or 0.0)),
                'fill': fill,
            }
        case 'RandomCrop':
            keys = {
                'name': 'random_crop',
                'aspect_ratio': step.take('aspect_ratio', [0.5, 2.0]),
                'thresholds': step.take('thresholds', [0.0, 0.1, 0.3, 0.5, 0.7, 0.9]),
                'scaling': step.take('scaling', [0.3, 1.0]),
                'attempts': step.take('num_attempts', 50),
                'allow_no_crop': step.take('allow_no_crop', True),
            }
            step.expect_defaults({'cover_all_box': False, 'ioumode': 'iou', 'prob': 1.0})
        case 'RandomFlip':
            keys = {'name': 'random_flip', 'probability': step.take('prob', 0.5)}
        case 'Resize':
            # a number means a square
            size = step.require('target_size')
            both = size if isinstance(size.value, list) else Node([size, size], size.origin)
            keys = {'name': 'resize', 'target_size': both, 'keep_ratio': step.take('keep_ratio', True)}
            keys['interpolation'] = _interpolation(step, 1)
        case 'BatchRandomResize':
            step.one_of('random_size', True)
            keys = {
                'name': 'batch_random_resize',
                'sizes': step.require('target_size'),
                'keep_ratio': step.take('keep_ratio', True),
            }
            # `random_interp` overrides `interp`
            is_random, fixed = step.take('random_interp', False), _interpolation(step, 2)
            keys['interpolation'] = with_value(is_random, 'random') if is_random.value else fixed
        case _:
            step.reject(STEPS)
    return step.to_node(keys)


def _interpolation(step: Section, default: int) -> Node:
    node = step.take('interp', default)
    return with_value(node, INTERPOLATIONS.get(int(as_number(node) or 0), to_plain(node)))
