"""PaddleSeg's configurations -> recipes.

Rules and defaults are those of its release 2.10 (paddleseg/cvlibs/config.py and builder.py, and the constructors that a
configuration names). What its files leave out stands in that code, so defaults are written out even where ours are the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phalanx.config.originals.dialect import Dialect, Reading, Section, as_number, renamed, turned_round
from phalanx.config.read import Node, document, over_bases, plain

BASE, INHERITED = '_base_', '_inherited_'

VESSELS = {'train': 'train_list.txt', 'eval': 'val_list.txt', 'classes': ['background', 'vessel']}
ROADS = {'train': 'train.txt', 'eval': 'val.txt', 'classes': ['background', 'road'], 'separator': '|'}
FILE_LISTS: dict[str, dict[str, Any]] = {  # data sets that are two lists of files below their root: the keys of `data`
    'CHASEDB1': VESSELS,
    'DRIVE': VESSELS,
    'HRF': VESSELS,
    'STARE': VESSELS,
    'MiniDeepGlobeRoadExtraction': ROADS,
    'OpticDiscSeg': {**VESSELS, 'classes': ['background', 'optic disc']},
}
NUM_CLASSES = {'Cityscapes': 19, 'ADE20K': 150, 'PascalVOC': 21, **dict.fromkeys(FILE_LISTS, 2)}
MODELS = ('PPLiteSeg', 'UNet', 'OCRNet', 'SegFormer', 'DeepLabV3P')
SEGFORMERS = {f'SegFormer_B{size}': f'mit_b{size}' for size in range(6)}  # as they were called up to release 2.6
BACKBONES = {  # of each model: theirs -> ours
    'PPLiteSeg': {'STDC1': 'stdc1', 'STDC2': 'stdc2'},
    'OCRNet': {'HRNet_W18': 'hrnet_w18', 'HRNet_W48': 'hrnet_w48'},
    'SegFormer': {f'MixVisionTransformer_B{size}': f'mit_b{size}' for size in range(6)},
    'DeepLabV3P': {'ResNet50_vd': 'resnet50_vd', 'ResNet101_vd': 'resnet101_vd', 'Xception65_deeplab': 'xception65'},
}
LOSSES = (
    *('CrossEntropyLoss', 'OhemCrossEntropyLoss', 'DiceLoss'),
    *('LovaszSoftmaxLoss', 'LovaszHingeLoss', 'RMILoss', 'SemanticConnectivityLoss', 'MixedLoss'),
)
SCHEDULES = ('PolynomialDecay', 'CosineAnnealingDecay', 'StepDecay', 'MultiStepDecay', 'PiecewiseDecay')
OPTIMIZERS = ('SGD', 'Momentum', 'Adam', 'AdamW')

TRANSFORMS: dict[
    str, tuple[str, dict[str, tuple[str, Any]]]
] = {  # theirs -> ours, and of each option theirs and its default, if any
    'Resize': ('resize', {'target_size': ('target_size', [512, 512])}),
    'ResizeByLong': ('resize_by_long', {'side': ('long_size', None)}),
    'ResizeStepScaling': (
        'resize_step_scaling',
        {'min': ('min_scale_factor', 0.75), 'max': ('max_scale_factor', 1.25), 'step': ('scale_step_size', 0.25)},
    ),
    'Padding': ('padding', {'target_size': ('target_size', None)}),
    'RandomPaddingCrop': ('random_padding_crop', {'crop_size': ('crop_size', [512, 512])}),
    'RandomHorizontalFlip': ('random_flip', {'probability': ('prob', 0.5)}),
    'RandomVerticalFlip': ('random_vertical_flip', {'probability': ('prob', 0.1)}),
    'RandomRotation': ('random_rotation', {'max_degrees': ('max_rotation', 15)}),
    'RandomBlur': ('random_blur', {'probability': ('prob', 0.1), 'kind': ('blur_type', 'gaussian')}),
    'RandomDistort': (
        'random_distort',
        {
            **{change: (f'{change}_range', 0.5) for change in ('brightness', 'contrast', 'saturation')},
            'hue': ('hue_range', 18),
            **{f'{change}_probability': (f'{change}_prob', 0.5) for change in ('brightness', 'contrast', 'saturation', 'hue')},
        },
    ),
}
WITHOUT_COUNTERPART: dict[str, dict[str, Any]] = {  # options that can only be as they are by default
    'Resize': {'keep_ratio': False, 'size_divisor': None, 'interp': 'LINEAR'},
    'ResizeByLong': {},
    'ResizeStepScaling': {},
    'Padding': {'im_padding_value': 127.5, 'label_padding_value': 255},
    'RandomPaddingCrop': {
        'im_padding_value': 127.5,
        'label_padding_value': 255,
        'category_max_ratio': 1.0,
        'ignore_index': 255,
        'loop_times': 10,
    },
    'RandomHorizontalFlip': {},
    'RandomVerticalFlip': {},
    'RandomRotation': {'im_padding_value': 127.5, 'label_padding_value': 255},
    'RandomBlur': {},
    'RandomDistort': {'sharpness_prob': 0, 'sharpness_range': 0.5},
}
IGNORED = {
    'to_static_training': 'set train.compile for what it is meant for, speed',
    'export': '`phalanx export` takes its own options',
    'print_mem_info': 'peak memory is always reported',
    'log_ranks': 'every rank writes its own log',
    'uniform_output_enabled': 'the run folder always has the same form',
}


def is_dialect(keys: set[str]) -> bool:
    """Whether a configuration with these keys is one of PaddleSeg."""
    return {'model', 'train_dataset'} <= keys or bool(keys & {'iters', 'lr_scheduler', 'test_config'})


def read(path: Path, reading: Reading) -> Node:
    """The configuration at `path` over the files of its `_base_`, of which an earlier one wins. Raises ConfigError."""

    def joined(own: Node, bases: Iterable[Node]) -> Node:
        for base in bases:
            own = _over(own, base)
        return own

    return _without_marks(over_bases(path, BASE, lambda file: document(file, reading.notes), joined))


def _over(own: Node, base: Node) -> Node:
    """`own` laid over `base` key by key; a mapping with `_inherited_: False` starts again."""
    if not (isinstance(own.value, dict) and isinstance(base.value, dict)):
        return own
    children = dict(own.value)
    inherited = children.pop(INHERITED, None)
    if inherited is not None and not inherited.value:
        return Node(children, own.origin)
    joined = dict(base.value)
    for key, node in children.items():
        joined[key] = _over(node, joined[key]) if key in joined else node
    return Node(joined, own.origin)


def _without_marks(node: Node) -> Node:
    """`node` without the marks that had nothing to start again from."""
    if not isinstance(node.value, dict):
        return node
    return Node({key: _without_marks(child) for key, child in node.value.items() if key != INHERITED}, node.origin)


def translate(root: Node, reading: Reading) -> Node:
    """The recipe that says the same. What cannot be said is in `reading.problems`, what need not be in `reading.notes`."""
    top = Section(root, '', reading)
    network = top.section('model')
    if not _is_known(network):
        return root
    batch_size, steps = top.count('batch_size'), top.count('iters')
    data, data_keys, num_classes = _data(top)
    model, initial = _model(network, num_classes)
    losses, coefficients = _losses(top.section('loss'), as_number(batch_size) or 1)
    lr, schedule = _schedule(top.section('lr_scheduler'), int(as_number(steps) or 1))
    optimizer, parameters, clip = _optimizer(top.section('optimizer'), lr)
    recipe = {
        'task': 'segmentation',
        'model': model,
        'data': data,
        'loss': losses,
        'loss_coefficients': coefficients,
        **data_keys,
        'inference': _inference(top.section('test_config')),
        'train': {'steps': steps, 'batch_size_per_rank': batch_size, **initial},
        'optimizer': optimizer,
        'parameters': parameters,
        'clip': clip,
        'schedule': schedule,
        'evaluate': {'every': 1000},  # as train.py with --do_eval
        'checkpoint': {'every': 1000, 'keep': 5},
    }
    for key, reason in IGNORED.items():
        top.ignore(key, reason)
    top.only('distill_loss', None)
    top.end()
    return top.becomes(recipe)


def _is_known(model: Section) -> bool:
    """Whether it is a model of ours; else that is the one problem: the rest of the file is of no interest."""
    kind = model.left.get('type')
    if kind is None or not isinstance(kind.value, str):
        return True  # which is a problem among others
    if kind.value not in (*MODELS, *SEGFORMERS):
        model.not_one_of(kind, 'type', MODELS)
        return False
    backbone = model.left.get('backbone')
    named = backbone.value.get('type') if backbone is not None and isinstance(backbone.value, dict) else None
    known = BACKBONES.get(kind.value, {})
    if named is not None and known and str(named.value) not in known:
        said = f'{kind.value} with the backbone {plain(named)!r} has no counterpart in Phalanx (it has {", ".join(known)})'
        model.problem(named, model.named('backbone.type'), said)
        return False
    return True


def _data(top: Section) -> tuple[Node, dict[str, Any], int]:
    """The data set, the keys that say what is done to its images, and the number of its classes."""
    train, val = top.section('train_dataset'), top.section('val_dataset')
    kind = train.word('type')
    root = train.required('dataset_root')
    val.same('type', kind, 'train_dataset')
    val.same('dataset_root', root, 'train_dataset')
    val.only('mode', 'val')
    keys: dict[str, Any] = {'root': root}
    num_classes = NUM_CLASSES.get(str(kind.value), 0)
    match kind.value:
        case 'Cityscapes' | 'ADE20K':
            train.only('mode', 'train')
            name = {'Cityscapes': 'cityscapes', 'ADE20K': 'ade20k'}[kind.value]
        case 'PascalVOC':
            name, keys['train'] = 'pascal_voc', train.take('mode', 'train')
        case listed if listed in FILE_LISTS:
            train.only('mode', 'train')
            name = 'file_list'
            keys |= FILE_LISTS[listed]
        case 'Dataset' | 'SegDataset':
            train.only('mode', 'train')
            name, classes = 'file_list', train.count('num_classes')
            num_classes = int(as_number(classes) or 0)
            keys |= _lists(train, val, str(root.value), classes, num_classes)
        case _:
            name = ''
            train.not_one_of(kind, 'type', [*NUM_CLASSES, 'Dataset'])
            return top.reading.default(None), {}, 0
    for section in (train, val):
        section.only('edge', False)
        section.only('img_channels', 3)
        section.only('ignore_index', 255)
    train.always('shuffle', True, 'training samples are always shuffled')
    data = train.becomes({'name': renamed(kind, name), **keys})
    transforms, normalise = _transforms(train)
    eval_transforms, eval_normalise = _transforms(val)
    if {k: plain(v) for k, v in eval_normalise.items()} not in ({}, {k: plain(v) for k, v in normalise.items()}):
        val.problem(val.node, val.named('transforms'), 'Normalize differs from that of train_dataset; Phalanx has one for both')
    train.end()
    val.end()
    return data, {'transforms': transforms, 'eval_transforms': eval_transforms, **normalise}, num_classes


def _lists(train: Section, val: Section, root: str, classes: Node, num_classes: int) -> dict[str, Any]:
    """The keys of a data set that lists its files. PaddleSeg looks for the lists from here, we do from the data set."""
    lists = {}
    for section, key, path in ((train, 'train', 'train_path'), (val, 'eval', 'val_path')):
        node = section.word(path)
        lists[key] = renamed(node, os.path.relpath(str(node.value), root))
    for section in (train, val):
        for path in ('train_path', 'val_path', 'test_path'):
            section.ignore(path, 'it belongs to another split')
    separator = train.take('separator', ' ')
    val.same('separator', separator, 'train_dataset')
    val.same('num_classes', classes, 'train_dataset')
    return {**lists, 'separator': separator, 'classes': [f'class {number}' for number in range(num_classes)]}


def _transforms(section: Section) -> tuple[list[Node], dict[str, Any]]:
    """The transforms of a data set, and the mean and std of the normalisation that ends them."""
    transforms, normalise = [], {}
    for number, node in enumerate(section.items('transforms')):
        options = Section(node, section.named(f'transforms[{number}]'), section.reading)
        kind = options.word('type')
        if kind.value == 'Normalize':
            normalise = {key: _three(options.take(key, [0.5])) for key in ('mean', 'std')}
        elif kind.value in TRANSFORMS:
            name, translated = TRANSFORMS[kind.value]
            keys = {
                ours: options.required(theirs) if default is None else options.take(theirs, default)
                for ours, (theirs, default) in translated.items()
            }
            keys |= {key: turned_round(size) for key, size in keys.items() if key in ('target_size', 'crop_size')}
            for key, value in WITHOUT_COUNTERPART[kind.value].items():
                options.only(key, value)
            transforms.append(options.becomes({'name': renamed(kind, name), **keys}))
        else:
            options.not_one_of(kind, 'type', [*TRANSFORMS, 'Normalize'])
            options.give_up()
        options.end()
    if not normalise and section.node.value:
        section.problem(section.node, section.named('transforms'), 'do not end with Normalize, but Phalanx always normalises')
    return transforms, normalise


def _three(values: Node) -> Node:
    """A value for each colour, of which one may stand for all."""
    return Node(values.value * 3, values.origin) if isinstance(values.value, list) and len(values.value) == 1 else values


def _model(section: Section, num_classes: int) -> tuple[Node, dict[str, Any]]:
    """The network, and the keys of `train` that say what it starts from."""
    kind = section.word('type')
    backbone = section.section('backbone')
    if section.has('num_classes') and num_classes:
        section.same('num_classes', Node(num_classes, ''), 'the data set')
    else:
        section.take('num_classes')
    section.only('in_channels', 3)
    backbone.only('in_channels', 3)
    if kind.value != 'DeepLabV3P':
        section.only('align_corners', False)
    name, keys = '', dict[str, Any]()
    match kind.value:
        case 'PPLiteSeg':
            name = 'pp_liteseg'
            keys['backbone'] = _backbone(backbone, BACKBONES['PPLiteSeg'], {'relative_lr': 1.0})
            keys['arm_channels'] = section.take('arm_out_chs', [64, 96, 128])
            keys['head_channels'] = section.take('seg_head_inter_chs', [64, 64, 64])
            fixed = {'backbone_indices': [2, 3, 4], 'arm_type': 'UAFM_SpAtten', 'cm_bin_sizes': [1, 2, 4], 'cm_out_ch': 128}
            section.fixed({**fixed, 'resize_mode': 'bilinear'})
        case 'UNet':
            name, deconv = 'unet', section.take('use_deconv', False)
            keys['upsampling'] = renamed(deconv, 'transposed' if deconv.value else 'bilinear')
        case 'OCRNet':
            name = 'ocrnet'
            hrnet = {'has_se': False, 'align_corners': False, 'padding_same': True, 'use_psa': False}
            keys['backbone'] = _backbone(backbone, BACKBONES['OCRNet'], hrnet)
            section.fixed({'backbone_indices': [0], 'ocr_mid_channels': 512, 'ocr_key_channels': 256})
        case 'SegFormer':
            name = 'segformer'
            keys['backbone'] = _backbone(backbone, BACKBONES['SegFormer'], {})
            keys['head_channels'] = section.required('embedding_dim')
        case older if older in SEGFORMERS:
            name, keys = 'segformer', {'backbone': renamed(kind, SEGFORMERS[older])}
        case 'DeepLabV3P':
            name, keys = 'deeplabv3p', _deeplabv3p(section, backbone)
        case _:
            section.not_one_of(kind, 'type', MODELS)
            section.give_up()
            backbone.give_up()
    initial = _initial(section, backbone)
    backbone.end()
    section.end()
    return section.becomes({'name': renamed(kind, name), **keys}), initial


def _deeplabv3p(section: Section, backbone: Section) -> dict[str, Any]:
    is_resnet = backbone.has('type') and str(backbone.left['type'].value).startswith('ResNet')
    keys = {
        'backbone': _backbone(
            backbone, BACKBONES['DeepLabV3P'], {'data_format': 'NCHW', 'output_stride': 8 if is_resnet else 16}
        ),
        'align_corners': section.take('align_corners', False),
    }
    if is_resnet:
        backbone.must('multi_grid', [1, 2, 4])
    section.fixed({'backbone_indices': [0, 3] if is_resnet else [0, 1], 'aspp_out_channels': 256, 'data_format': 'NCHW'})
    ratios = section.take('aspp_ratios', [1, 6, 12, 18])
    if not isinstance(ratios.value, list) or not ratios.value or ratios.value[0].value != 1:
        section.problem(ratios, section.named('aspp_ratios'), 'must begin with 1, a window of a single place')
        return keys
    return {**keys, 'dilations': Node(ratios.value[1:], ratios.origin)}


def _backbone(section: Section, known: dict[str, str], fixed: dict[str, Any]) -> Node:
    kind = section.word('type')
    if kind.value is not None and kind.value not in known:
        section.not_one_of(kind, 'type', known)
    section.fixed(fixed)
    return renamed(kind, known.get(str(kind.value), ''))


def _initial(model: Section, backbone: Section) -> dict[str, Any]:
    """What the network starts from; the weights of the whole network are laid over those of the backbone."""
    initial: dict[str, Any] = {}
    for section, part in ((backbone, 'backbone'), (model, 'all')):
        node = section.weights('pretrained')
        if node is not None:
            initial = {'init_from': node, 'init_part': renamed(node, part)}
    return initial


def _losses(section: Section, batch_size: float) -> tuple[list[Node], Node]:
    """A loss for each output of the network, and their coefficients."""
    coefficients, types = section.required('coef'), section.items('types')
    count = len(coefficients.value) if isinstance(coefficients.value, list) else 0
    losses = [_loss(Section(node, f'loss.types[{place}]', section.reading), batch_size) for place, node in enumerate(types)]
    if len(losses) == 1:  # stands for all outputs
        losses = losses * count
    if len(losses) != count:
        section.problem(section.node, section.named('types'), f'there are {len(losses)} losses and {count} coefficients')
    section.end()
    return losses, coefficients


def _loss(section: Section, batch_size: float) -> Node:
    kind = section.word('type')
    keys: dict[str, Any] = {}
    match kind.value:
        case 'CrossEntropyLoss':
            keys = {
                'name': renamed(kind, 'cross_entropy'),
                'class_weights': section.take('weight'),
                'avg_non_ignore': section.take('avg_non_ignore', True),
                'top_k': section.take('top_k_percent_pixels', 1.0),
            }
            section.only('data_format', 'NCHW')
        case 'DiceLoss':
            keys = {
                'name': renamed(kind, 'dice'),
                'class_weights': section.take('weight'),
                'smooth': section.take('smooth', 1.0),
            }
        case 'LovaszSoftmaxLoss':
            keys = {'name': renamed(kind, 'lovasz')}
            section.only('classes', 'present')
        case 'LovaszHingeLoss':
            keys = {'name': renamed(kind, 'lovasz_hinge')}
        case 'RMILoss':
            keys = {'name': renamed(kind, 'rmi')}
            section.fixed({'rmi_radius': 3, 'rmi_pool_way': 0, 'rmi_pool_size': 3, 'rmi_pool_stride': 3})
            section.ignore('num_classes', 'the data set has them')
            section.ignore('loss_weight_lambda', 'it has no effect in PaddleSeg either')
        case 'SemanticConnectivityLoss':
            keys = {'name': renamed(kind, 'semantic_connectivity'), 'most': section.take('max_pred_num_conn', 10)}
            section.only('use_argmax', True)
        case 'MixedLoss':
            parts = [
                _loss(Section(node, section.named(f'losses[{place}]'), section.reading), batch_size)
                for place, node in enumerate(section.items('losses'))
            ]
            keys = {'name': renamed(kind, 'mixed'), 'losses': parts, 'coefficients': section.required('coef')}
        case 'OhemCrossEntropyLoss':
            min_kept = section.take('min_kept', 10000)  # of the batch of one rank
            per_sample = (as_number(min_kept) or 0) / batch_size
            keys = {
                'name': renamed(kind, 'ohem'),
                'threshold': section.take('thresh', 0.7),
                'min_kept_per_sample': renamed(min_kept, per_sample),
                'class_weights': section.take('weight'),
            }
        case _:
            section.not_one_of(kind, 'type', LOSSES)
            section.give_up()
    section.only('ignore_index', 255)
    section.end()
    return section.becomes(keys)


def _schedule(section: Section, steps: int) -> tuple[Node, Node]:
    """The base rate and its schedule. PaddleSeg counts from the end of the warm-up, we do from the start of training."""
    kind = section.word('type')
    warmup, keys = 0, dict[str, Any]()
    if section.has('warmup_iters'):
        warmup = int(section.number('warmup_iters'))
        keys = {'warmup_steps': section.node.value['warmup_iters'], 'warmup_start_lr': section.required('warmup_start_lr')}
    if kind.value == 'PiecewiseDecay':
        lr, own = _piecewise(section, warmup)
    else:
        lr, own = section.required('learning_rate'), dict[str, Any]()
    match kind.value:
        case 'PolynomialDecay':
            own = {'name': 'polynomial', 'power': section.take('power', 1.0), 'end_lr': section.take('end_lr', 0.0001)}
            if section.has('decay_steps'):
                own['steps'] = _plus(section.take('decay_steps'), warmup)
            section.only('cycle', False)
        case 'CosineAnnealingDecay':
            period = section.required('T_max')
            own = {'name': 'cosine', 'steps': _plus(period, warmup), 'end_lr': section.take('eta_min', 0)}
            if (as_number(period) or 0) + warmup < steps:
                said = f'the rate would rise again after step {plain(own["steps"])}, before the end of training'
                section.problem(period, section.named('T_max'), f'{said}; Phalanx has no such schedule')
        case 'StepDecay' if not warmup:
            own = {'name': 'step', 'every': section.required('step_size'), 'gamma': section.take('gamma', 0.1)}
        case 'StepDecay':  # ours counts intervals from the start of training
            size, gamma = int(section.number('step_size')), section.number('gamma', 0.1)
            boundaries = list(range(warmup + size, steps, max(size, 1)))
            own = {'name': 'piecewise', **_falling(boundaries, gamma)}
        case 'MultiStepDecay':
            milestones = [_plus(node, warmup) for node in section.items('milestones')]
            own = {'name': 'piecewise', **_falling(milestones, section.number('gamma', 0.1))}
        case 'PiecewiseDecay':
            pass
        case _:
            section.not_one_of(kind, 'type', SCHEDULES)
            section.give_up()
    section.only('last_epoch', -1)
    section.ignore('verbose', 'the rate is in every log line')
    section.end()
    return lr, section.becomes({**own, 'name': renamed(kind, own.get('name', '')), **keys})


def _piecewise(section: Section, warmup: int) -> tuple[Node, dict[str, Any]]:
    """The first rate, and the rates as factors of it."""
    rates = section.items('values')
    numbers = [as_number(node) or 0.0 for node in rates]
    lr = rates[0] if rates else section.required('values')
    factors = [renamed(node, number / (numbers[0] or 1.0)) for node, number in zip(rates[1:], numbers[1:], strict=True)]
    boundaries = [_plus(node, warmup) for node in section.items('boundaries')]
    return lr, {'name': 'piecewise', 'boundaries': boundaries, 'factors': factors}


def _falling(boundaries: list[Any], gamma: float) -> dict[str, Any]:
    return {'boundaries': boundaries, 'factors': [gamma**number for number in range(1, len(boundaries) + 1)]}


def _plus(node: Node, steps: int) -> Node:
    number = as_number(node)
    return node if number is None else renamed(node, int(number) + steps)


def _optimizer(section: Section, lr: Node) -> tuple[Node, Any, Any]:
    """The optimizer, the rules of its parameter groups, and the clipping of gradients."""
    kind = section.word('type')
    word = {'sgd': 'SGD', 'adam': 'Adam'}.get(str(kind.value), str(kind.value))
    decay = section.take('weight_decay', 0.01 if word == 'AdamW' else 0.0)
    decay = section.reading.default(0.0) if decay.value is None else decay
    keys: dict[str, Any] = {'lr': lr, 'weight_decay': decay}
    match word:
        case 'SGD' | 'Momentum':
            keys['name'] = 'sgd'
            keys['momentum'] = section.take('momentum', 0.9 if word == 'Momentum' else 0.0)
            keys['nesterov'] = section.take('use_nesterov', False)
        case 'Adam' | 'AdamW':
            keys['name'] = word.lower()
            keys['betas'] = [section.take('beta1', 0.9), section.take('beta2', 0.999)]
            keys['eps'] = section.take('epsilon', 1e-8)
            section.only('lazy_mode', False)
        case _:
            section.not_one_of(kind, 'type', OPTIMIZERS)
            section.give_up()
    rules = [_rule(section, number, node, as_number(decay) or 0.0) for number, node in enumerate(section.items('custom_cfg'))]
    clip = _clip(section.section('grad_clip_cfg')) if section.has('grad_clip_cfg') else None
    section.end()
    optimizer = section.becomes({**keys, 'name': renamed(kind, keys.get('name', ''))})
    return optimizer, {'rules': rules} if rules else None, clip


def _rule(section: Section, number: int, node: Node, weight_decay: float) -> Node:
    """A group of parameters whose names contain a word; ours have other names, except that both say `backbone`."""
    rule = Section(node, section.named(f'custom_cfg[{number}]'), section.reading)
    rule.only('name', 'backbone')
    keys: dict[str, Any] = {'match': 'backbone.*', 'lr_factor': rule.take('lr_mult', 1.0)}
    if rule.has('weight_decay_mult'):
        keys['weight_decay'] = renamed(rule.node.value['weight_decay_mult'], weight_decay * rule.number('weight_decay_mult'))
    rule.end()
    return rule.becomes(keys)


def _clip(section: Section) -> Node:
    kind = section.word('name')
    per_tensor = kind.value == 'ClipGradByNorm'
    section.left['name'] = kind
    section.only('name', 'ClipGradByGlobalNorm', 'ClipGradByNorm')
    norm = section.required('clip_norm')
    section.end()
    return section.becomes({'norm': norm, 'per_tensor': per_tensor})


def _inference(section: Section) -> Node | None:
    """How images are seen in evaluation."""
    keys: dict[str, Any] = {}
    if section.take('aug_eval', False).value:
        scales = section.take('scales', 1.0)
        keys['scales'] = scales if isinstance(scales.value, list) else Node([scales], scales.origin)
        keys |= {key: section.take(key, False) for key in ('flip_horizontal', 'flip_vertical')}
    if section.take('is_slide', False).value:
        sizes = {'window': section.required('crop_size'), 'window_stride': section.required('stride')}
        keys |= {key: turned_round(size) for key, size in sizes.items()}
    for key in ('scales', 'flip_horizontal', 'flip_vertical'):
        section.ignore(key, 'it counts only with aug_eval: True')
    for key in ('crop_size', 'stride'):
        section.ignore(key, 'it counts only with is_slide: True')
    section.ignore('auc_roc', 'there is no such metric')
    section.only('use_multilabel', False)
    section.end()
    return section.becomes(keys) if keys else None


DIALECT = Dialect(
    project='PaddleSeg',
    keys=frozenset(
        ('batch_size', 'iters', 'train_dataset', 'val_dataset', 'optimizer', 'lr_scheduler', 'loss', 'model', 'test_config')
    ),
    bases=BASE,
    is_dialect=is_dialect,
    read=read,
    translate=translate,
    options={
        'iters': ('iters={}',),
        'batch_size': ('batch_size={}',),
        'learning_rate': ('lr_scheduler.learning_rate={}',),
        'save_interval': ('checkpoint.every={}', 'evaluate.every={}'),
    },
    evaluates_on_request=True,
    differs=(
        'a loss is the mean over what all ranks and micro-batches see in a step; there every rank takes the mean of its own',
        'batch norms take the statistics of all ranks (norm_sync: global), on CPUs too',
    ),
)
