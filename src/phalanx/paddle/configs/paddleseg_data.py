"""PaddleSeg's `train_dataset` and `val_dataset`: the data set, its transforms, and the normalisation of its images."""

import os
from typing import Any

from phalanx.config.read import Node
from phalanx.paddle.configs.dialect import REQUIRED, Counterpart, Section, number_classes, turn_round, with_value

VESSELS = {'name': 'file_list', 'train': 'train_list.txt', 'eval': 'val_list.txt', 'classes': ['background', 'vessel']}
ROADS = {'name': 'file_list', 'train': 'train.txt', 'eval': 'val.txt', 'classes': ['background', 'road'], 'separator': '|'}
DATA_SETS: dict[str, tuple[int, dict[str, Any]]] = {  # how many classes they have, and the keys of `data`
    'Cityscapes': (19, {'name': 'cityscapes'}),
    'ADE20K': (150, {'name': 'ade20k'}),
    'PascalVOC': (21, {'name': 'pascal_voc'}),
    **dict.fromkeys(('CHASEDB1', 'DRIVE', 'HRF', 'STARE'), (2, VESSELS)),
    'MiniDeepGlobeRoadExtraction': (2, ROADS),
    'OpticDiscSeg': (2, {**VESSELS, 'classes': ['background', 'optic disc']}),
}

COLOURS = ('brightness', 'contrast', 'saturation')
FILL = {'im_padding_value': 127.5, 'label_padding_value': 255}
TRANSFORMS = {
    'Resize': Counterpart(
        'resize',
        {'target_size': ('target_size', [512, 512])},
        fixed={'keep_ratio': False, 'size_divisor': None, 'interp': 'LINEAR'},
    ),
    'ResizeByLong': Counterpart('resize_by_long', {'side': ('long_size', REQUIRED)}),
    'ResizeStepScaling': Counterpart(
        'resize_step_scaling',
        {'min': ('min_scale_factor', 0.75), 'max': ('max_scale_factor', 1.25), 'step': ('scale_step_size', 0.25)},
    ),
    'Padding': Counterpart('padding', {'target_size': ('target_size', REQUIRED)}, fixed=FILL),
    'RandomPaddingCrop': Counterpart(
        'random_padding_crop',
        {'crop_size': ('crop_size', [512, 512])},
        fixed={**FILL, 'category_max_ratio': 1.0, 'ignore_index': 255, 'loop_times': 10},
    ),
    'RandomHorizontalFlip': Counterpart('random_flip', {'probability': ('prob', 0.5)}),
    'RandomVerticalFlip': Counterpart('random_vertical_flip', {'probability': ('prob', 0.1)}),
    'RandomRotation': Counterpart('random_rotation', {'max_degrees': ('max_rotation', 15)}, fixed=FILL),
    'RandomBlur': Counterpart('random_blur', {'probability': ('prob', 0.1), 'kind': ('blur_type', 'gaussian')}),
    'RandomDistort': Counterpart(
        'random_distort',
        {
            **{colour: (f'{colour}_range', 0.5) for colour in COLOURS},
            'hue': ('hue_range', 18),
            **{f'{colour}_probability': (f'{colour}_prob', 0.5) for colour in (*COLOURS, 'hue')},
        },
        fixed={'sharpness_prob': 0, 'sharpness_range': 0.5},
    ),
}
SIZES = ('target_size', 'crop_size')  # options that are (width, height) there and (height, width) here


def read_data(top: Section) -> tuple[Node, dict[str, Any], int]:
    """Translate the data set, the keys of its transforms and normalisation, and the number of its classes."""
    train, val = top.section('train_dataset'), top.section('val_dataset')
    # both splits must be of one kind, below one root
    kind = train.string('type')
    root = train.require('dataset_root')
    val.expect_same('type', kind, 'train_dataset')
    val.expect_same('dataset_root', root, 'train_dataset')
    val.one_of('mode', 'val')
    if kind.value not in (*DATA_SETS, 'Dataset', 'SegDataset'):
        train.reject_value(kind, 'type', [*DATA_SETS, 'Dataset'])
        val.give_up()
        return top.reading.default(None), {}, 0
    keys: dict[str, Any] = {'root': root}
    # VOC has several training lists, such as `trainaug`
    if kind.value == 'PascalVOC':
        keys['train'] = train.take('mode', 'train')
    else:
        train.one_of('mode', 'train')
    # known data sets have their classes; others have lists and a number of classes
    if kind.value in DATA_SETS:
        num_classes, known = DATA_SETS[kind.value]
        keys |= known
    else:
        classes, class_names = number_classes(train, 'num_classes')
        num_classes = len(class_names)
        keys |= {**_lists(train, val, str(root.value)), 'classes': class_names}
        val.expect_same('num_classes', classes, 'train_dataset')
    for section in (train, val):
        section.expect_defaults({'edge': False, 'img_channels': 3, 'ignore_index': 255})
    train.assume('shuffle', True, 'training samples are always shuffled')
    data = train.to_node({**keys, 'name': with_value(kind, keys['name'])})
    # normalisation is a transform there, and a key of the recipe here: both splits must agree
    transforms, normalise = _transforms(train)
    eval_transforms, eval_normalise = _transforms(val)
    if eval_normalise:
        val.expect_options('transforms', eval_normalise, normalise, 'Normalize differs from that of train_dataset')
    return data, {'transforms': transforms, 'eval_transforms': eval_transforms, **normalise}, num_classes


def _lists(train: Section, val: Section, root: str) -> dict[str, Any]:
    """Keys of a data set with file lists. PaddleSeg resolves the lists from the working folder, Phalanx from `root`."""
    lists: dict[str, Any] = {'name': 'file_list'}
    for section, key, path in ((train, 'train', 'train_path'), (val, 'eval', 'val_path')):
        node = section.string(path)
        lists[key] = with_value(node, os.path.relpath(node.value, root)) if node.value else node  # reported already
        section.ignore('train_path', 'val_path', 'test_path', reason='it belongs to another split')
    separator = train.take('separator', ' ')
    val.expect_same('separator', separator, 'train_dataset')
    return {**lists, 'separator': separator}


def _transforms(section: Section) -> tuple[list[Node], dict[str, Node]]:
    """Translate the transforms of a data set, and the mean and std of the normalisation at their end."""
    transforms, normalise = list[Node](), dict[str, Node]()
    for step in section.sections('transforms'):
        kind = step.string('type')
        if kind.value == 'Normalize':
            normalise = {key: _for_three_channels(step.take(key, [0.5])) for key in ('mean', 'std')}
        elif kind.value in TRANSFORMS:
            counterpart = TRANSFORMS[kind.value]
            options = counterpart.take_options(step)
            options |= {key: turn_round(size) for key, size in options.items() if key in SIZES}
            transforms.append(step.to_node({'name': with_value(kind, counterpart.name), **options}))
        else:
            step.reject_value(kind, 'type', [*TRANSFORMS, 'Normalize'])
    if not normalise and section.node.value:
        section.report(section.node, 'transforms', 'do not end with Normalize, but Phalanx always normalises')
    return transforms, normalise


def _for_three_channels(values: Node) -> Node:
    """Values for three channels, of which one may stand for all."""
    return Node(values.value * 3, values.origin) if isinstance(values.value, list) and len(values.value) == 1 else values
