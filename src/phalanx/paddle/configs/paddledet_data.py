"""PaddleDetection's `TrainDataset` and `EvalDataset`, its readers' transforms, and its metric."""

import os
from pathlib import Path
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import REQUIRED, Counterpart, Section, convert, with_value

METRICS = {'COCO': 'coco', 'VOC': 'voc'}
INTERPOLATIONS: dict[float, str] = {0: 'nearest', 1: 'linear', 2: 'cubic', 3: 'area', 4: 'lanczos4'}  # as OpenCV numbers them


def _interpolation(node: Node) -> Node:
    return convert(node, lambda number: INTERPOLATIONS.get(number, to_plain(node)))


def _square(size: Node) -> Node:
    """A number means a square."""
    return size if isinstance(size.value, list) else Node([size, size], size.origin)


def _complement(share: Node) -> Node:
    return convert(share, lambda number: 1 - number)


RANGES = {'hue': [-18, 18, 0.5], **{key: [0.5, 1.5, 0.5] for key in ('saturation', 'contrast', 'brightness')}}
SCALED = {'keep_ratio': ('keep_ratio', True)}
TRANSFORMS = {
    # ranges and number of the operations are fixed here
    'RandomDistort': Counterpart(
        'random_distort',
        {'probability': ('prob', 1.0)},
        fixed={**RANGES, 'random_apply': True, 'count': 4, 'random_channel': False},
    ),
    # PaddleDetection's `prob` is the probability of NOT expanding
    'RandomExpand': Counterpart(
        'random_expand',
        {'ratio': ('ratio', 4.0), 'probability': ('prob', 0.5, _complement), 'fill': ('fill_value', [127.5] * 3)},
    ),
    'RandomCrop': Counterpart(
        'random_crop',
        {
            'aspect_ratio': ('aspect_ratio', [0.5, 2.0]),
            'thresholds': ('thresholds', [0.0, 0.1, 0.3, 0.5, 0.7, 0.9]),
            'scaling': ('scaling', [0.3, 1.0]),
            'attempts': ('num_attempts', 50),
            'allow_no_crop': ('allow_no_crop', True),
            'probability': ('prob', 1.0),
        },
        fixed={'cover_all_box': False, 'ioumode': 'iou'},
    ),
    'RandomFlip': Counterpart('random_flip', {'probability': ('prob', 0.5)}),
    'Resize': Counterpart(
        'resize', {'target_size': ('target_size', REQUIRED, _square), **SCALED, 'interpolation': ('interp', 1, _interpolation)}
    ),
    'BatchRandomResize': Counterpart(
        'batch_random_resize',
        {'sizes': ('target_size', REQUIRED), **SCALED, 'interpolation': ('interp', 2, _interpolation)},
        fixed={'random_size': True},
    ),
}


def read_data(top: Section) -> Node:
    train, evaluation = top.section('TrainDataset'), top.section('EvalDataset')
    # both splits must be of one kind, which becomes `data.name`
    kinds = [section.string('type') if section.has('type') else section.string('name') for section in (train, evaluation)]
    if str(kinds[0].value) not in ('COCODataSet', 'VOCDataSet'):
        train.report_value(kinds[0], 'name', ('COCODataSet', 'VOCDataSet'))
    if kinds[1].value != kinds[0].value:
        evaluation.report_other(kinds[1], 'name', kinds[0], 'TrainDataset')
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
    limits: dict[str, Section] = {}
    for name, section in reader.named_items('transform_schedulers'):
        if name not in TRANSFORMS:
            section.reject(TRANSFORMS)
        limits[name] = section
    for name, step in [*reader.named_items('sample_transforms'), *reader.named_items('batch_transforms')]:
        match name:
            # Done in any case; the masks are for distillation.
            case 'Decode' | 'Permute' | 'PadGT' | 'FGDMask' | 'NormalizeBox' | 'BboxXYXY2XYWH':
                step.give_up()
            case 'NormalizeImage':
                step.one_of('is_scale', True)
                is_plain = step.take('norm_type', 'mean_std').value == 'none'
                if is_plain:
                    step.ignore('mean', 'std', reason='norm_type: none leaves the values as they are')
                mean, std = step.take('mean', [0.485, 0.456, 0.406]), step.take('std', [1, 1, 1])
                used = {'mean': [0, 0, 0], 'std': [1, 1, 1]} if is_plain else {'mean': mean, 'std': std}
                normalise = step.reading.tree(used).value
            case _ if name in TRANSFORMS:
                options = TRANSFORMS[name].take_options(step)
                if name == 'BatchRandomResize' and (is_random := step.take('random_interp', False)).value:  # overrides `interp`
                    options['interpolation'] = with_value(is_random, 'random')
                if name in limits:
                    options |= {key: limits[name].left[key] for key in ('start_epoch', 'stop_epoch') if limits[name].has(key)}
                transforms.append(step.to_node({'name': TRANSFORMS[name].name, **options}))
            case _:
                step.reject(('Decode', *TRANSFORMS, 'NormalizeImage'))
    for section in limits.values():
        for key in ('start_epoch', 'stop_epoch'):
            section.take(key)
    return transforms, normalise
