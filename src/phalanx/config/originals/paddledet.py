"""PaddleDetection's configurations -> recipes: PP-YOLOE and PP-YOLOE+ on COCO or VOC.

Rules and defaults are those of its release 2.6 (ppdet/core/workspace.py, ppdet/optimizer and the classes that a configuration
names). A configuration is a set of sections called like these classes, and of values that several of them share.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from phalanx.config.originals.dialect import Dialect, Reading, Section, as_number, laid_over, renamed
from phalanx.config.read import Node, document, over_bases, plain

BASE = '_BASE_'
SIZES = {  # of depth_mult and width_mult
    (0.33, 0.25): 'n',
    (0.33, 0.375): 't',
    (0.33, 0.5): 's',
    (0.67, 0.75): 'm',
    (1.0, 1.0): 'l',
    (1.33, 1.25): 'x',
}
ARCHITECTURES = ('YOLOv3', 'PPYOLOE')
PARTS = {'backbone': 'CSPResNet', 'neck': 'CustomCSPPAN', 'yolo_head': 'PPYOLOEHead'}
METHODS = {
    'ssod_method': 'semi-supervised training',
    'aux_head': 'an auxiliary head',
    'slim_method': 'a distillation by itself (it is a file for --slim_config, beside that of the student)',
}
ASSIGNERS = ('TaskAlignedAssigner', 'TaskAlignedAssigner_CR')
METRICS = {'COCO': 'coco', 'VOC': 'voc'}
INTERPOLATIONS = {0: 'nearest', 1: 'linear', 2: 'cubic', 3: 'area', 4: 'lanczos4'}  # as OpenCV numbers them
DISTILLED = 0.125  # what PPYOLOEDistill multiplies all losses by
ENCODER = {  # of CustomCSPPAN: its transformer, where it has one
    'dim_feedforward': 2048,
    'dropout': 0.1,
    'activation': 'gelu',
    'nhead': 4,
    'attn_dropout': None,
    'act_dropout': None,
    'normalize_before': False,
}
SCHEDULES = ('CosineDecay', 'PiecewiseDecay')
OPTIMIZERS = ('Momentum', 'SGD', 'Adam', 'AdamW')
STEPS = ('Decode', 'RandomDistort', 'RandomExpand', 'RandomCrop', 'RandomFlip', 'Resize', 'BatchRandomResize', 'NormalizeImage')

IGNORED = {
    'save_dir': '--save_dir names the run folder',
    'weights': 'name the weights to evaluate with --weights',
    'print_flops': 'there is no such count',
    'print_params': 'the number of parameters is always told',
    'for_distill': 'a distillation is what --slim_config says; without, the network trains alone',
    'find_unused_parameters': 'every parameter takes part in every step',
    'export': '`phalanx export` takes its own options',
    'TestReader': '`phalanx predict` prepares images as the evaluation does',
    'TestDataset': '`phalanx predict` is given the images',
    'num_classes': 'the annotations, or their list of classes, say it',
    'EvalMOTDataset': 'there is no tracking; EvalDataset is evaluated',
    'TestMOTDataset': 'there is no tracking; EvalDataset is evaluated',
    'custom_black_list': "torch's autocast knows which operations are safe",
    'custom_white_list': "torch's autocast knows which operations are safe",
    'use_vdl': 'metrics.jsonl and TensorBoard records are always written; --use_vdl adds VisualDL',
    **dict.fromkeys(('eval_height', 'eval_width', 'eval_size'), 'it only names a value that others refer to'),
    **{f'use_{device}': 'Phalanx knows CUDA devices and CPUs' for device in ('xpu', 'npu', 'mlu')},
}


def is_dialect(keys: set[str]) -> bool:
    """Whether a configuration with these keys is one of PaddleDetection."""
    return 'architecture' in keys and bool(keys & {'LearningRate', 'OptimizerBuilder', 'TrainReader', 'TrainDataset'})


def read(path: Path, reading: Reading) -> Node:
    """The configuration at `path` over the files of its `_BASE_`, of which a later one wins. Raises ConfigError."""

    def joined(own: Node, bases: Iterable[Node]) -> Node:
        under = Node({}, own.origin)
        for base in bases:
            under = laid_over(under, base)
        return laid_over(under, own)

    return over_bases(path, BASE, lambda file: document(file, reading.notes), joined)


def translate(root: Node, reading: Reading) -> Node:
    """The recipe that says the same. What cannot be said is in `reading.problems`, what need not be in `reading.notes`."""
    top = Section(root, '', reading)
    architecture = top.word('architecture')
    if not _is_known(top, architecture):
        return root
    model, loss, nms = _network(top, architecture)
    lr, schedule = _schedule(top.section('LearningRate'))
    optimizer, clip = _optimizer(top.section('OptimizerBuilder'), lr)
    train, evaluation = top.section('TrainReader'), top.section('EvalReader')
    transforms, normalise = _transforms(train)
    eval_transforms, eval_normalise = _transforms(evaluation)
    if {key: plain(value) for key, value in normalise.items()} != {key: plain(value) for key, value in eval_normalise.items()}:
        said = 'NormalizeImage differs from that of TrainReader; Phalanx has one for both'
        evaluation.problem(evaluation.node, evaluation.path, said)
    snapshots, initial = top.take('snapshot_epoch', 1), _initial(top)
    distillation, initial = _distillation(top, model, initial)
    recipe = {
        'task': 'detection',
        'model': model,
        'loss': loss,
        **distillation,
        'nms': nms,
        'metric': _metric(top),
        'data': _data(top),
        'transforms': transforms,
        'eval_transforms': eval_transforms,
        **normalise,
        'train': {
            'epochs': top.required('epoch'),
            'batch_size_per_rank': train.required('batch_size'),
            'workers': top.take('worker_num', 2),
            **initial,
        },
        'optimizer': optimizer,
        'parameters': _parameters(model, optimizer),
        'clip': clip,
        'schedule': schedule,
        'ema': _ema(top),
        'norm_sync': _norm_sync(top),
        'evaluate': {'every_epochs': snapshots, 'batch_size': evaluation.take('batch_size', 1)},
        'checkpoint': {'every_epochs': snapshots},
        'report': {'every': top.take('log_iter', 20)},
        'device': None if top.take('use_gpu', True).value else 'cpu',
    }
    for reader in (train, evaluation):
        reader.always('shuffle', reader is train, 'training samples are always shuffled, those of an evaluation never')
        reader.always('drop_last', False, 'no sample is dropped: the next epoch goes on where this one ends')
        reader.always('drop_empty', False, 'TrainDataset.allow_empty says whether to train on images without objects')
        reader.always('use_shared_memory', True, 'loader workers always hand batches over in shared memory')
        reader.always('collate_batch', True, 'images always become one batch, and boxes stay in lists')
        reader.end()
    for key, reason in IGNORED.items():
        top.ignore(key, reason)
    top.end()
    return top.becomes(recipe)


def _is_known(top: Section, architecture: Node) -> bool:
    """Whether it is a model of ours, trained as one; else that is the one problem: the rest of the file is of no interest."""
    if architecture.value not in ARCHITECTURES:
        top.not_one_of(architecture, 'architecture', ARCHITECTURES)
        return False
    whole = top.left.get(str(architecture.value), architecture)
    for part, known in PARTS.items():
        named = whole.value.get(part) if isinstance(whole.value, dict) else None
        if named is not None and named.value != known:
            said = f'the {part} {plain(named)!r} has no counterpart in Phalanx'
            top.problem(named, str(architecture.value), f'{said}, whose detector PP-YOLOE is {", ".join(PARTS.values())}')
            return False
    for key, what in METHODS.items():
        if top.has(key):
            node = top.take(key)
            top.problem(node, key, f'{plain(node)!r}: {what} of a detector has no counterpart in Phalanx')
            return False
    return True


def _network(top: Section, architecture: Node) -> tuple[Node, Node, dict[str, Any]]:
    """The network, its loss, and how boxes are picked from what it says."""
    whole, backbone = top.section(str(architecture.value)), top.section('CSPResNet')
    neck, head = top.section('CustomCSPPAN'), top.section('PPYOLOEHead')
    for other in set(ARCHITECTURES) - {architecture.value}:
        top.ignore(other, f'the architecture is {architecture.value}')
    for part, known in PARTS.items():
        whole.must(part, known)
    whole.only('post_process', None)
    depth, width = top.take('depth_mult', 1.0), top.take('width_mult', 1.0)
    size = SIZES.get((as_number(depth) or 0.0, as_number(width) or 0.0))
    if size is None:
        known = ', '.join(f'{depth} and {width}' for depth, width in SIZES)
        top.problem(
            depth, 'depth_mult', f'{depth.value} with a width_mult of {width.value} is not a size that Phalanx has ({known})'
        )
    backbone.fixed({'layers': [3, 6, 6, 3], 'channels': [64, 128, 256, 512, 1024], 'act': 'swish'})
    levels = backbone.take('return_idx', [0, 1, 2, 3, 4])
    count = len(levels.value) if isinstance(levels.value, list) else 0
    if plain(levels) not in ([1, 2, 3], [0, 1, 2, 3]):
        backbone.problem(levels, backbone.named('return_idx'), f'{plain(levels)} is neither [1, 2, 3] nor [0, 1, 2, 3]')
    backbone.must('use_large_stem', True)
    plus = backbone.take('use_alpha', False)
    neck.must('out_channels', [768, 384, 192, 64][:count])
    neck.fixed({'stage_num': 1, 'block_num': 3})
    neck.must('act', 'swish')
    neck.must('spp', True)
    keys: dict[str, Any] = {'name': renamed(architecture, 'ppyoloe'), 'size': renamed(depth, size), 'plus': plus}
    keys |= {'levels': renamed(levels, count), 'neck_alpha': neck.take('use_alpha', False)}
    keys |= {'encoder': _encoder(neck), 'reach': _reach(head)}
    model = whole.becomes(keys)
    loss, nms = _head(head, count)
    for section in (whole, backbone, neck):
        section.end()
    return model, loss, nms


def _distillation(top: Section, student: Node, initial: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a file for --slim_config says of the teacher and of what is learned from it, and what both networks start from."""
    node = top.take('slim_config')
    if not node.value:
        return {}, initial
    path = Path(str(node.value))
    if not path.is_file():
        top.problem(node, 'slim_config', f'there is no file {path}')
        return {}, initial
    slim = Section(read(path, top.reading), '', top.reading)
    slim.must('slim_method', 'PPYOLOEDistill')
    slim.must('distill_loss', 'DistillPPYOLOELoss')
    architecture = slim.word('architecture')
    if not _is_known(slim, architecture):
        return {}, initial
    teacher = _network(slim, architecture)[0]
    from_teacher = _from_teacher(slim.section('DistillPPYOLOELoss'), student, teacher)
    weights = {'student': initial.get('init_from'), 'teacher': _initial(slim).get('init_from')}
    slim.give_up()
    said = 'the network, its weights and DistillPPYOLOELoss count; the training is that of the other configuration'
    top.reading.notes.append(f'{node.origin}: slim_config: of {path} {said}')
    keys = {'networks': {'teacher': teacher}, 'from_teacher': from_teacher, 'loss_coefficients': [DISTILLED]}
    return keys, {'init_networks': {name: each for name, each in weights.items() if each is not None}}


def _from_teacher(section: Section, student: Node, teacher: Node) -> list[dict[str, Any]]:
    weights, parts = section.section('loss_weight'), section.section('logits_loss_weight')
    relations = section.section('logits_ld_params')
    of_logits, of_features = weights.take('logits', 4.0), weights.take('feat', 1.0)
    learned: list[dict[str, Any]] = []
    logits = {
        'weight': of_logits,
        'cls_weight': parts.take('class', 1.0),
        'iou_weight': parts.take('iou', 2.5),
        'dfl_weight': parts.take('dfl', 0.5),
        'classes_weight': relations.take('weight', 20000),
        'temperature': relations.take('T', 10),
    }
    if not section.take('logits_ld_distill', False).value:
        logits['classes_weight'] = section.reading.default(0.0)
    if section.take('logits_distill', True).value and as_number(of_logits) != 0:
        learned.append({'name': 'logits', **logits})
    if section.take('feat_distill', True).value and as_number(of_features) != 0:
        learned.append({'name': 'features', 'weight': of_features})
    section.fixed({'feat_distiller': 'fgd', 'feat_distill_place': 'neck_feats', 'feat_out_channels': [768, 384, 192]})
    widths = {size: width for (_, width), size in SIZES.items()}
    for key, default, network in (('teacher_width_mult', 1.0, teacher), ('student_width_mult', 0.75, student)):
        node, size = section.take(key, default), str(network.value['size'].value)
        if as_number(node) != widths.get(size):
            section.problem(node, section.named(key), f'{plain(node)} is not that of the network, which has the size {size!r}')
    for part in (weights, parts, relations, section):
        part.end()
    return learned


def _encoder(neck: Section) -> Node | None:
    """How many layers the transformer of the neck has."""
    if neck.take('use_trans', False).value:
        neck.fixed(ENCODER)
        return neck.take('num_layers', 4)
    for key in ('num_layers', *ENCODER):
        neck.ignore(key, 'it counts only with use_trans: True')
    return None


def _reach(head: Section) -> Node | None:
    """The least and the largest distance, of which `reg_range` names the one beyond the largest."""
    if not head.has('reg_range'):
        head.take('reg_range')
        return None
    node = head.take('reg_range')
    ends = [as_number(end) for end in node.value] if isinstance(node.value, list) else []
    if len(ends) != 2 or None in ends:
        head.problem(node, head.named('reg_range'), f'expected two numbers, got {plain(node)!r}')
        return None
    return Node([node.value[0], renamed(node.value[1], int((ends[1] or 0) - 1))], node.origin)


def _head(head: Section, levels: int) -> tuple[Node, dict[str, Any]]:
    head.only('fpn_strides', [32, 16, 8, 4][:levels])
    head.fixed({'grid_cell_offset': 0.5, 'reg_max': 16, 'act': 'swish'})
    head.ignore('eval_input_size', 'anchors follow the image')
    weights, static, dynamic = head.section('loss_weight'), head.section('static_assigner'), head.section('assigner')
    static.only('name', 'ATSSAssigner')
    kind = dynamic.take('name', 'TaskAlignedAssigner')
    if kind.value not in ASSIGNERS:
        dynamic.not_one_of(kind, 'name', ASSIGNERS)
    loss = {
        'name': 'task_aligned',
        'static_assigner_epochs': head.take('static_assigner_epoch', 4),
        'use_varifocal': head.take('use_varifocal_loss', True),
        'anchor_size': head.take('grid_cell_scale', 5.0),
        'cls_weight': weights.take('class', 1.0),
        'iou_weight': weights.take('iou', 2.5),
        'dfl_weight': weights.take('dfl', 0.5),
        'static_top_k': static.take('topk', 9),
        'top_k': dynamic.take('topk', 13),
        'alpha': dynamic.take('alpha', 1.0),
        'beta': dynamic.take('beta', 6.0),
        'center_radius': dynamic.required('center_radius') if kind.value == ASSIGNERS[1] else None,
    }
    nms = head.section('nms')
    nms.only('name', 'MultiClassNMS')
    picks = {
        'score_threshold': nms.take('score_threshold', 0.05),
        'nms_threshold': nms.take('nms_threshold', 0.5),
        'pre_top_k': nms.take('nms_top_k', -1),
        'keep_top_k': nms.take('keep_top_k', 100),
    }
    for section in (weights, static, dynamic, nms, head):
        section.end()
    return head.becomes(loss), picks


def _parameters(model: Node, optimizer: Node) -> dict[str, Any]:
    """Batch norms do not decay, those of the transformer do."""
    if 'encoder' not in model.value:
        return {'decay_norms': False}
    return {
        'decay_norms': False,
        'rules': [{'match': '*neck.encoder.*.norm?.*', 'weight_decay': optimizer.value['weight_decay']}],
    }


def _metric(top: Section) -> Node:
    kind = top.word('metric')
    if kind.value not in METRICS:
        top.not_one_of(kind, 'metric', METRICS)
    points = top.take('map_type', '11point')
    keys: dict[str, Any] = {'name': renamed(kind, METRICS.get(str(kind.value), ''))}
    if kind.value == 'VOC':
        keys['points'] = renamed(points, {'11point': '11', 'integral': 'all'}.get(str(points.value), points.value))
    return top.becomes(keys)


def _data(top: Section) -> Node:
    train, evaluation = top.section('TrainDataset'), top.section('EvalDataset')
    kinds = [section.word('type') if section.has('type') else section.word('name') for section in (train, evaluation)]
    if str(kinds[0].value) not in ('COCODataSet', 'VOCDataSet'):
        train.not_one_of(kinds[0], 'name', ('COCODataSet', 'VOCDataSet'))
    if kinds[1].value != kinds[0].value:
        said = f'{kinds[1].value!r} is not that of TrainDataset, {kinds[0].value!r}; Phalanx has one for both'
        evaluation.problem(kinds[1], evaluation.named('name'), said)
        return train.becomes({})
    keys: dict[str, Any] = {'train': train.required('anno_path'), 'eval': evaluation.required('anno_path')}
    keys['empty_images'] = train.take('allow_empty', False)
    evaluation.always('allow_empty', True, 'images without objects are always evaluated')
    match kinds[0].value:
        case 'COCODataSet':
            keys |= {'train_images': train.take('image_dir', ''), 'eval_images': evaluation.take('image_dir', '')}
            keys = {'name': renamed(kinds[0], 'coco'), **_below_one_root(train, evaluation, keys)}
        case 'VOCDataSet':
            root = train.required('dataset_dir')
            evaluation.same('dataset_dir', root, 'TrainDataset')  # the lists themselves have paths below it
            keys |= {'name': renamed(kinds[0], 'pascal_voc'), 'root': root, 'learn_difficult': True}
            labels = train.take('label_list')
            evaluation.same('label_list', labels, 'TrainDataset')
            keys['classes'] = labels if labels.value else None
        case _:
            train.give_up()
            evaluation.give_up()
    for section in (train, evaluation):
        section.take('name')  # beside `type`, which has been read
        section.ignore('data_fields', 'what training and metric need is always read')
        section.fixed({'sample_num': -1, 'repeat': 1, 'load_crowd': False})
        section.end()
    return train.becomes(keys)


def _below_one_root(train: Section, evaluation: Section, keys: dict[str, Any]) -> dict[str, Any]:
    """The `keys` of both splits, whose paths begin at the folder of their own split, as paths below one `root`."""
    folders = {'train': train.required('dataset_dir'), 'eval': evaluation.required('dataset_dir')}
    paths = {split: os.path.normpath(str(node.value)) for split, node in folders.items()}
    if paths['train'] == paths['eval']:
        return {'root': folders['train'], **keys}
    if Path(paths['train']).is_absolute() != Path(paths['eval']).is_absolute():
        said = (
            f'{paths["eval"]!r} and {paths["train"]!r} of TrainDataset: give both as absolute paths, or both as relative ones'
        )
        evaluation.problem(folders['eval'], evaluation.named('dataset_dir'), said)
        return {'root': folders['train'], **keys}
    root = os.path.commonpath(paths.values()) or '.'
    below = dict(keys)
    for key, split in (('train', 'train'), ('train_images', 'train'), ('eval', 'eval'), ('eval_images', 'eval')):
        below[key] = renamed(keys[key], os.path.relpath(Path(paths[split], str(keys[key].value)), root))
    return {'root': renamed(folders['train'], root), **below}


def _transforms(reader: Section) -> tuple[list[Node], dict[str, Any]]:
    """The transforms of samples and batches, one after the other, and the mean and std of the normalisation that ends them."""
    transforms: list[Node] = []
    normalise: dict[str, Any] = {}
    for name, step in [*reader.named_items('sample_transforms'), *reader.named_items('batch_transforms')]:
        match name:
            case 'Decode' | 'Permute' | 'PadGT' | 'FGDMask':  # done in any case; the masks are for distillation
                step.give_up()
            case 'NormalizeImage':
                step.only('is_scale', True)
                is_plain = step.take('norm_type', 'mean_std').value == 'none'
                mean, std = step.take('mean', [0.485, 0.456, 0.406]), step.take('std', [1, 1, 1])
                normalise = {'mean': [0, 0, 0], 'std': [1, 1, 1]} if is_plain else {'mean': mean, 'std': std}
                normalise = {key: step.reading.tree(value) for key, value in normalise.items()}
            case _:
                transforms.append(_transform(name, step))
        step.end()
    return transforms, normalise


def _transform(name: str, step: Section) -> Node:
    keys: dict[str, Any] = {}
    match name:
        case 'RandomDistort':
            keys = {'name': 'random_distort'}
            ranges = {'saturation': [0.5, 1.5, 0.5], 'contrast': [0.5, 1.5, 0.5], 'brightness': [0.5, 1.5, 0.5]}
            step.fixed(
                {'hue': [-18, 18, 0.5], **ranges, 'random_apply': True, 'count': 4, 'random_channel': False, 'prob': 1.0}
            )
        case 'RandomExpand':
            fill, not_expanding = step.take('fill_value', [127.5] * 3), step.take('prob', 0.5)  # which is what it says
            keys = {
                'name': 'random_expand',
                'ratio': step.take('ratio', 4.0),
                'probability': renamed(not_expanding, 1 - (as_number(not_expanding) or 0.0)),
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
            step.fixed({'cover_all_box': False, 'ioumode': 'iou', 'prob': 1.0})
        case 'RandomFlip':
            keys = {'name': 'random_flip', 'probability': step.take('prob', 0.5)}
        case 'Resize':
            size = step.required('target_size')
            both = size if isinstance(size.value, list) else Node([size, size], size.origin)
            keys = {'name': 'resize', 'target_size': both, 'keep_ratio': step.take('keep_ratio', True)}
            keys['interpolation'] = _interpolation(step, 1)
        case 'BatchRandomResize':
            step.only('random_size', True)
            keys = {
                'name': 'batch_random_resize',
                'sizes': step.required('target_size'),
                'keep_ratio': step.take('keep_ratio', True),
            }
            is_random, fixed = step.take('random_interp', False), _interpolation(step, 2)
            keys['interpolation'] = renamed(is_random, 'random') if is_random.value else fixed
        case _:
            step.problem(step.node, step.path, f'has no counterpart in Phalanx (it has {", ".join(STEPS)})')
            step.give_up()
    return step.becomes(keys)


def _interpolation(step: Section, default: int) -> Node:
    node = step.take('interp', default)
    return renamed(node, INTERPOLATIONS.get(int(as_number(node) or 0), plain(node)))


def _schedule(section: Section) -> tuple[Node, Node]:
    """The base rate and its schedule; both projects count from the start of training."""
    lr = section.take('base_lr', 0.01)
    base = as_number(lr) or 0.0
    keys: dict[str, Any] = {}
    for node in section.items('schedulers'):
        part = Section(node, section.named('schedulers'), section.reading)
        kind = part.word('type') if part.has('type') else part.word('name')
        part.path = section.named(str(kind.value))
        match kind.value:
            case 'CosineDecay':
                keys |= {'name': renamed(kind, 'cosine'), 'epochs': part.take('max_epochs', 1000)}
                keys['end_lr'] = base * part.number('min_lr_ratio', 0.0)
                part.fixed({'last_plateau_epochs': 0, 'use_warmup': True})
            case 'PiecewiseDecay':
                keys |= {'name': renamed(kind, 'piecewise'), 'boundary_epochs': part.take('milestones', [8, 11])}
                keys['factors'] = _factors(part, len(keys['boundary_epochs'].value or []), base)
                part.fixed({'use_warmup': True})
            case 'LinearWarmup':
                steps, epochs = part.take('steps', 500), part.take('epochs')
                keys |= {'warmup_epochs': epochs} if epochs.value is not None else {'warmup_steps': steps}
                keys['warmup_start_lr'] = base * part.number('start_factor', 1 / 3)
            case _:
                part.not_one_of(kind, 'name', (*SCHEDULES, 'LinearWarmup'))
                part.give_up()
        part.end()
    section.end()
    return lr, section.becomes(keys)


def _factors(part: Section, count: int, base: float) -> list[Any]:
    """What the base rate is multiplied by, from each milestone on."""
    if part.has('values'):
        part.take('gamma')
        return [(as_number(node) or 0.0) / (base or 1.0) for node in part.items('values')[1:]]
    gamma = part.take('gamma', [0.1, 0.01])
    if isinstance(gamma.value, list):
        return list(gamma.value)
    return [(as_number(gamma) or 0.0) / 10**place for place in range(count)]


def _optimizer(section: Section, lr: Node) -> tuple[Node, dict[str, Any] | None]:
    """The optimizer and the clipping."""
    inner = section.section('optimizer')
    kind = inner.word('type', 'Momentum')
    decay = section.reading.default(0.0001)  # of a configuration that has no regularizer
    if section.has('regularizer') and section.left['regularizer'].value is not False:
        regularizer = section.section('regularizer')
        regularizer.must('type', 'L2')
        decay = regularizer.required('factor')
        regularizer.end()
    elif 'regularizer' in section.left:  # there, and null or false
        section.take('regularizer')
        decay = section.reading.default(0.0)
    keys: dict[str, Any] = {'lr': lr, 'weight_decay': decay}
    match kind.value:
        case 'Momentum' | 'SGD':
            momentum = inner.take('momentum', 0.9 if kind.value == 'Momentum' else 0.0)
            keys |= {'name': renamed(kind, 'sgd'), 'momentum': momentum, 'nesterov': inner.take('use_nesterov', False)}
        case 'Adam' | 'AdamW':
            keys |= {'name': renamed(kind, kind.value.lower()), 'eps': inner.take('epsilon', 1e-8)}
            keys['betas'] = [inner.take('beta1', 0.9), inner.take('beta2', 0.999)]
            if kind.value == 'AdamW':
                keys['weight_decay'] = inner.take('weight_decay', 0.01)
        case _:
            inner.not_one_of(kind, 'type', OPTIMIZERS)
            inner.give_up()
    clip = {'norm': section.take('clip_grad_by_norm')} if section.has('clip_grad_by_norm') else None
    section.only('clip_grad_by_value', None)
    inner.end()
    section.end()
    return section.becomes(keys), clip


def _ema(top: Section) -> dict[str, Any] | None:
    used, decay, kind = top.take('use_ema', False), top.take('ema_decay', 0.9998), top.take('ema_decay_type', 'threshold')
    skipped = top.items('ema_black_list')
    top.only('ema_filter_no_grad', False)
    if not used.value:
        return None
    # The names are the original's, except that the one that PP-YOLOE+ lists is not a parameter here.
    skip = [renamed(node, f'*{node.value}*') for node in skipped if node.value != 'proj_conv.weight']
    return {'decay': decay, 'kind': kind, 'skip': skip}


def _norm_sync(top: Section) -> Node:
    kind = top.take('norm_type', 'bn')
    if kind.value not in ('bn', 'sync_bn'):
        top.not_one_of(kind, 'norm_type', ('bn', 'sync_bn'))
    return renamed(kind, 'global' if kind.value == 'sync_bn' else 'off')


def _initial(top: Section) -> dict[str, Any]:
    """What the network starts from: a classifier's file has its backbone only."""
    node = top.left.get('pretrain_weights')
    part = 'backbone' if node is not None and 'CSPResNet' in str(node.value) else 'all'
    weights = top.weights('pretrain_weights')
    if weights is None:
        return {}
    path = str(weights.value)
    if not Path(path).exists() and Path(f'{path}.pdparams').exists():
        weights = renamed(weights, f'{path}.pdparams')
    return {'init_from': weights, 'init_part': renamed(weights, part)}


DIALECT = Dialect(
    project='PaddleDetection',
    keys=frozenset(
        (
            *('architecture', 'epoch', 'depth_mult', 'width_mult', 'snapshot_epoch', 'log_iter', 'worker_num', 'norm_type'),
            *('use_ema', 'ema_decay', 'use_gpu', 'pretrain_weights', 'num_classes', 'map_type', 'LearningRate'),
            *('OptimizerBuilder', 'TrainReader', 'EvalReader', 'TestReader', 'TrainDataset', 'EvalDataset', 'TestDataset'),
            *('YOLOv3', 'PPYOLOE', 'slim_config', 'CSPResNet', 'CustomCSPPAN', 'PPYOLOEHead', *METHODS),
        )
    ),
    bases=BASE,
    is_dialect=is_dialect,
    read=read,
    translate=translate,
    evaluates_on_request=True,
    differs=(
        'a loss is the mean over what all ranks and micro-batches see in a step; there every rank takes the mean of its own',
        'each epoch sees every sample: none is dropped, and the next one goes on within the same batch',
    ),
)
