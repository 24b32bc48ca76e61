"""Configurations of PaddleSeg 0.x (`pdseg/train.py --cfg`), whose keys are in upper case -> recipes: UNet, DeepLabv3+, OCRNet,
and LR-ASPP, which is a DeepLabv3+ there.

Rules and defaults are those of its release 0.8 (pdseg/utils/config.py, solver.py, reader.py and the networks). A value is text
that Python reads as a literal, if it can: `(512, 512)`, `u"stepscaling"`. Files have no bases.
"""

import ast
import os
from pathlib import Path
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import (
    Dialect,
    Reading,
    Section,
    as_number,
    convert,
    decay_by,
    norm_sync,
    number_classes,
    turn_round,
    with_value,
)

MODELS = {'unet': ('UNET',), 'deeplabv3p': ('DEEPLAB',), 'ocrnet': ('HRNET', 'OCR')}  # and the sections within MODEL of each
BACKBONES = {  # of deeplabv3p
    'xception_65': 'xception65',
    'mobilenet': 'mobilenet_v2',
    'mobilenetv2': 'mobilenet_v2',
    'resnet_vd_50': 'resnet50_vd',
    'resnet_vd_101': 'resnet101_vd',
}
LITE = 'mobilenetv3_large'  # the backbone that makes it LR-ASPP
# What the numbers of BACKBONE_LR_MULT_LIST are for, in its order.
RESNET_PARTS = tuple((f'backbone.{part}.*',) for part in ('stem', 'stages.0', 'stages.1', 'stages.2', 'stages.3'))
LITE_PARTS = (  # their convolutions; norms learn at the whole rate there
    ('backbone.stem.conv.*', 'backbone.stages.0.*.conv.*'),
    ('backbone.stages.1.*.conv.*', 'backbone.stages.1.*.squeeze.*.*'),
    ('backbone.stages.2.[0-2].*.conv.*',),
    ('backbone.stages.2.[3-5].*.conv.*', 'backbone.stages.2.[45].squeeze.*.*'),
    ('backbone.stages.3.*.conv.*', 'backbone.stages.3.*.squeeze.*.*', 'backbone.last.conv.*'),
)
HRNETS = {18: 'hrnet_w18', 48: 'hrnet_w48'}  # by the channels of their finest map
LOSSES = {
    'softmax_loss': 'cross_entropy',
    'bce_loss': 'cross_entropy',
    'lovasz_softmax_loss': 'lovasz',
    'lovasz_hinge_loss': 'lovasz_hinge',
}
OF_ONE_SCORE = ('bce_loss', 'lovasz_hinge_loss')  # a network has one output for both classes there
SCHEDULES = ('poly', 'piecewise')
OPTIMIZERS = ('sgd', 'adam')
SIZES = (  # in AUG, each for one AUG_METHOD
    *('FIX_RESIZE_SIZE', 'MIN_SCALE_FACTOR', 'MAX_SCALE_FACTOR', 'SCALE_STEP_SIZE'),
    *('MIN_RESIZE_VALUE', 'MAX_RESIZE_VALUE', 'INF_RESIZE_VALUE'),
)
OTHER_PROGRAMS = 'it belongs to other programs than training'
IGNORED_SECTIONS = {'FREEZE': '`phalanx export` takes its own options', 'TEST': OTHER_PROGRAMS, 'SLIM': OTHER_PROGRAMS}


def literal(node: Node) -> Node:
    """`node` with every text that is a Python literal as its value, as PaddleSeg 0.x reads files and overrides alike."""
    if isinstance(node.value, dict):
        return Node({key: literal(child) for key, child in node.value.items()}, node.origin)
    if isinstance(node.value, list):
        return Node([literal(child) for child in node.value], node.origin)
    if not isinstance(node.value, str):
        return node
    try:
        value = ast.literal_eval(node.value)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return node
    if isinstance(value, tuple | list):
        return Node([with_value(node, item) for item in value], node.origin)
    return with_value(node, value) if isinstance(value, str | int | float | bool | None) else node


def translate(root: Node, reading: Reading) -> Node:
    """Translate the configuration. Keys without counterpart become `reading.problems`, keys without effect `reading.notes`."""
    # texts may be Python literals, such as (512, 512)
    top = Section(literal(root), '', reading)
    model = top.section('MODEL')
    name = model.string('MODEL_NAME')
    if name.value not in MODELS:
        model.report_value(name, 'MODEL_NAME', MODELS)
        return root
    dataset, solver = top.section('DATASET'), top.section('SOLVER')
    # the network first: without a counterpart, that is the only problem to report
    decay = solver.take('WEIGHT_DECAY', 0.00004)
    built = _network(model, name, dataset.left.get('NUM_CLASSES'), decay)
    if built is None:
        return root
    network, rules = built
    # each reader takes its keys from the sections and returns keys of a recipe
    train, augmentation = top.section('TRAIN'), top.section('AUG')
    data = _data(dataset)
    lr, schedule = _schedule(solver)
    losses, coefficients = _losses(solver, model, name)
    snapshots = train.take('SNAPSHOT_EPOCH', 10)
    loading = top.section('DATALOADER')
    recipe = {
        'task': 'segmentation',
        'model': network,
        'data': data,
        'loss': losses,
        'loss_coefficients': coefficients,
        **_transforms(top, augmentation),
        'train': {
            'epochs': solver.take('NUM_EPOCHS', 30),
            'global_batch_size': top.take('BATCH_SIZE', 1),  # of all cards, which share it
            'workers': loading.take('NUM_WORKERS', 8),
            **_initial(train),
        },
        'optimizer': _optimizer(solver, lr, decay),
        'parameters': {'decay_norms': False, 'rules': rules},
        'schedule': schedule,
        'precision': _precision(model),
        'norm_sync': norm_sync(train.take('SYNC_BATCH_NORM', False)),
        'evaluate': {'every_epochs': snapshots},
        'checkpoint': {'every_epochs': snapshots, 'keep': 5},
    }
    # sections without effect, then every key that nobody has taken
    loading.ignore('BUF_SIZE', reason='the loader prepares a few batches ahead')
    for key, reason in IGNORED_SECTIONS.items():
        top.ignore(key, reason=reason)
    top.end()
    return top.to_node(recipe)


def _network(model: Section, name: Node, classes: Node | None, decay: Node) -> tuple[Node, list[Node]] | None:
    """Network with `classes` outputs, and the rules for those of its parameters that are treated differently.

    None where the backbone has no counterpart: that is then the one problem.
    """
    keys: dict[str, Any] = {'name': name}
    # the file has a section for every network; all but that of `name` are ignored below
    parts = {part: model.section(part) for part in ('UNET', 'DEEPLAB', 'HRNET', 'OCR', 'ICNET', 'PSPNET')}
    norms: tuple[str, ...] = ('bn',)
    rules: list[Node] = []
    match name.value:
        case 'unet':
            mode = parts['UNET'].take('UPSAMPLE_MODE', 'bilinear')
            keys['upsampling'] = with_value(mode, 'bilinear' if mode.value == 'bilinear' else 'transposed')
        case 'deeplabv3p':
            deeplab = parts['DEEPLAB']
            backbone = deeplab.string('BACKBONE', 'xception_65')
            if backbone.value == LITE:
                keys = {'name': with_value(name, 'lraspp'), **_lite(deeplab, to_plain(classes) if classes else None)}
            elif backbone.value in BACKBONES:
                keys |= {'backbone': with_value(backbone, BACKBONES[str(backbone.value)]), **_deeplab(deeplab, backbone)}
                norms = ('bn', 'gn') if backbone.value == 'xception_65' else norms
            else:
                deeplab.report_part(backbone, 'BACKBONE', 'deeplabv3p', 'backbone', (*BACKBONES, LITE))
                return None
            keys['align_corners'] = True
            rules = _rules(deeplab, backbone, decay)
        case _:
            # HRNet widths: the channels of all stages must be those of W18 or W48
            hrnet, ocr = parts['HRNET'], parts['OCR']
            channels = [hrnet.section(f'STAGE{number}') for number in (2, 3, 4)]
            listed = [stage.take('NUM_CHANNELS', [40, 80, 160, 320][: place + 2]) for place, stage in enumerate(channels)]
            width = listed[0].value[0] if isinstance(listed[0].value, list) and listed[0].value else listed[0]
            known = HRNETS.get(int(as_number(width) or 0))
            expected = [[width.value * 2**power for power in range(count)] for count in (2, 3, 4)] if known else None
            if [to_plain(node) for node in listed] != expected:
                message = (
                    f'ocrnet with channels {[to_plain(node) for node in listed]} has no counterpart (Phalanx has 18 and 48)'
                )
                hrnet.report(width, None, message)
                return None
            for stage, modules in zip(channels, (1, 4, 3), strict=True):
                stage.one_of('NUM_MODULES', modules)
            ocr.expect_defaults({'OCR_MID_CHANNELS': 512, 'OCR_KEY_CHANNELS': 256})
            keys['backbone'] = with_value(width, known)
    # sections of other networks, and the kind of norm
    for part, section in parts.items():
        if part not in MODELS[str(name.value)]:
            section.ignore(*section.left, reason=f'MODEL_NAME is {name.value}, which has no {part}')
    if model.one_of('DEFAULT_NORM_TYPE', *norms).value == 'gn':
        keys['norm_groups'] = model.take('DEFAULT_GROUP_NUMBER', 32)
    model.ignore('DEFAULT_GROUP_NUMBER', reason='DEFAULT_NORM_TYPE is bn')
    model.one_of('DEFAULT_EPSILON', 1e-5)
    model.assume('BN_MOMENTUM', 0.9, 'running statistics always move by 0.1 a step')
    return model.to_node(keys), rules


def _deeplab(deeplab: Section, backbone: Node) -> dict[str, Any]:
    """The options of DeepLabv3+."""
    encoder, decoder = deeplab.section('ENCODER'), deeplab.section('DECODER')
    pyramid = deeplab.take('ENCODER_WITH_ASPP', True)
    if not pyramid.value:
        encoder.ignore('ASPP_RATIOS', reason='ENCODER_WITH_ASPP is off')
    ratios = encoder.take('ASPP_RATIOS')
    stride = deeplab.one_of('OUTPUT_STRIDE', *((16,) if backbone.value == 'xception_65' else (16, 8)))
    encoder.expect_defaults(
        {'POOLING_STRIDE': [1, 1], 'POOLING_CROP_SIZE': None, 'ASPP_WITH_SE': False, 'SE_USE_QSIGMOID': False}
    )
    encoder.expect_defaults({'ASPP_CONVS_FILTERS': 256, 'ASPP_WITH_CONCAT_PROJECTION': True, 'ADD_IMAGE_LEVEL_FEATURE': True})
    decoder.expect_defaults({'USE_SUM_MERGE': False, 'CONV_FILTERS': 256, 'OUTPUT_IS_LOGITS': False})
    deeplab.expect_defaults({'ASPP_WITH_SEP_CONV': True, 'DECODER_USE_SEP_CONV': True, 'DEPTH_MULTIPLIER': 1.0})
    return {
        'output_stride': stride,
        'dilations': ratios if ratios.value else None,
        'pyramid': pyramid,
        'decoder': deeplab.take('ENABLE_DECODER', True),
        'dropout': 0.9,  # as it is written there, where it is the share that is hidden
    }


def _lite(deeplab: Section, classes: Any) -> dict[str, Any]:
    """The options of LR-ASPP, which the keys of DeepLabv3+ describe with these values and no others."""
    encoder, decoder = deeplab.section('ENCODER'), deeplab.section('DECODER')
    window = encoder.take('POOLING_CROP_SIZE')
    sides = to_plain(window) if isinstance(window.value, list) else []
    if window.value is not None and (len(sides) != 2 or sides[0] != sides[1]):
        message = f'expected the same width and height, got {to_plain(window)!r}'
        encoder.report(window, 'POOLING_CROP_SIZE', message)
    encoder.one_of('ASPP_RATIOS', None)
    deeplab.expect({'OUTPUT_STRIDE': 32})
    encoder.expect({'POOLING_STRIDE': [4, 5], 'ASPP_CONVS_FILTERS': 128, 'ASPP_WITH_SE': True, 'SE_USE_QSIGMOID': True})
    encoder.expect({'ASPP_WITH_CONCAT_PROJECTION': False, 'ADD_IMAGE_LEVEL_FEATURE': False})
    decoder.expect({'USE_SUM_MERGE': True, 'OUTPUT_IS_LOGITS': True, 'CONV_FILTERS': classes})
    deeplab.expect_defaults({'ENCODER_WITH_ASPP': True, 'ENABLE_DECODER': True, 'DEPTH_MULTIPLIER': 1.0})
    deeplab.expect_defaults({'ASPP_WITH_SEP_CONV': True, 'DECODER_USE_SEP_CONV': True})
    return {'window': window.value[0] if sides else None}


def _rules(deeplab: Section, backbone: Node, decay: Node) -> list[Node]:
    """Rules for the parameters of the backbone: learning rates by depth, and weight decay of its norms."""
    is_resnet = str(backbone.value).startswith('resnet')
    if not is_resnet and backbone.value != LITE:
        deeplab.ignore('BACKBONE_LR_MULT_LIST', reason=f'PaddleSeg 0.x has no such rates with {backbone.value} either')
    listed = deeplab.take('BACKBONE_LR_MULT_LIST')
    decays = {} if backbone.value in ('xception_65', LITE) else {'weight_decay': decay}
    if listed.value is None:
        return [deeplab.to_node({'match': 'backbone.*', **decays})] if decays else []
    if not isinstance(listed.value, list) or len(listed.value) != len(RESNET_PARTS):
        deeplab.report(listed, 'BACKBONE_LR_MULT_LIST', f'expected 5 numbers, got {to_plain(listed)!r}')
        return []
    return [
        deeplab.to_node({'match': pattern, 'lr_factor': factor, **decays})
        for factor, patterns in zip(listed.value, RESNET_PARTS if is_resnet else LITE_PARTS, strict=True)
        for pattern in patterns
    ]


def _losses(solver: Section, model: Section, name: Node) -> tuple[list[Node], Any]:
    """A loss for each output of the network, all of one kind, and their coefficients."""
    loss, weights = _loss(solver), model.take('MULTI_LOSS_WEIGHT', [1.0])
    if name.value != 'ocrnet':  # PaddleSeg 0.x uses the weights for several outputs only
        return [loss], [1.0]
    if not isinstance(weights.value, list) or len(weights.value) != 2:
        model.report(weights, 'MULTI_LOSS_WEIGHT', f'expected 2 numbers, got {to_plain(weights)!r}')
    return [loss, loss], weights


def _data(section: Section) -> Node:
    """Translate a data set with file lists, which PaddleSeg resolves from the working folder, Phalanx from `data.root`."""
    root = section.require('DATA_DIR')
    _, class_names = number_classes(section, 'NUM_CLASSES')
    keys: dict[str, Any] = {'name': 'file_list', 'root': with_value(root, os.path.normpath(str(root.value)))}
    for split, key in (('train', 'TRAIN_FILE_LIST'), ('eval', 'VAL_FILE_LIST')):
        listed = section.string(key)
        keys[split] = with_value(listed, os.path.relpath(str(listed.value) or '.', str(root.value) or '.'))
    keys['separator'] = section.take('SEPARATOR', ' ')
    keys['classes'] = class_names
    section.one_of('IMAGE_TYPE', 'rgb', 'gray')
    section.expect_defaults({'IGNORE_INDEX': 255, 'DATA_DIM': 3})
    section.ignore('PADDING_VALUE', reason='PaddleSeg 0.x itself replaces it by the mean')
    section.ignore('TEST_FILE_LIST', 'VIS_FILE_LIST', reason=OTHER_PROGRAMS)
    section.ignore('TRAIN_TOTAL_IMAGES', 'VAL_TOTAL_IMAGES', 'TEST_TOTAL_IMAGES', reason='the lists have that many')
    return section.to_node(keys)


def _transforms(top: Section, section: Section) -> dict[str, Any]:
    """The transforms of both splits, and the mean and std of the normalisation that ends them."""
    # one of three ways to resize; sizes are (width, height) there
    method = section.take('AUG_METHOD', 'unpadding')
    sizes = {split: turn_round(top.require(f'{split}_CROP_SIZE')) for split in ('TRAIN', 'EVAL')}
    train: list[dict[str, Any]] = []
    evaluation: list[dict[str, Any]] = []
    match method.value:
        case 'unpadding':
            size = turn_round(section.take('FIX_RESIZE_SIZE', [512, 512]))
            train = evaluation = [{'name': with_value(method, 'resize'), 'target_size': size}]
        case 'stepscaling':
            low, high = section.take('MIN_SCALE_FACTOR', 0.5), section.take('MAX_SCALE_FACTOR', 2.0)
            scales = {'min': low, 'max': high, 'step': section.take('SCALE_STEP_SIZE', 0.25)}
            train = [{'name': with_value(method, 'resize_step_scaling'), **scales}]
        case 'rangescaling':
            low, high = section.take('MIN_RESIZE_VALUE', 400), section.take('MAX_RESIZE_VALUE', 600)
            if to_plain(low) != to_plain(high):
                message = 'a range of sizes has no counterpart in Phalanx; make MIN_RESIZE_VALUE and MAX_RESIZE_VALUE equal'
                section.report(method, 'AUG_METHOD', message)
            train = [{'name': with_value(method, 'resize_by_long'), 'side': low}]
            evaluation = [{'name': with_value(method, 'resize_by_long'), 'side': section.take('INF_RESIZE_VALUE', 500)}]
        case _:
            section.report_value(method, 'AUG_METHOD', ('unpadding', 'stepscaling', 'rangescaling'))
    section.ignore(*SIZES, reason=f'AUG_METHOD is {method.value}')
    # flips
    flips: list[dict[str, Any]] = []
    if section.take('FLIP', False).value:
        ratio = section.take('FLIP_RATIO', 0.5)
        # of every n-th image, n being whole
        share = convert(ratio, lambda every: 1 / int(1 / every) if 0 < every < 1 else every)
        flips.append({'name': 'random_vertical_flip', 'probability': share})
    if section.take('MIRROR', True).value:
        flips.append({'name': 'random_flip', 'probability': 0.5})
    section.ignore('FLIP_RATIO', reason='FLIP is off')
    # colour augmentation has no counterpart; normalisation is in the order of the channels
    rich = section.section('RICH_CROP')
    rich.one_of('ENABLE', False)
    rich.ignore(*rich.left, reason='ENABLE is off')
    colours = {key: top.take(key, [0.5, 0.5, 0.5]) for key in ('MEAN', 'STD')}
    if not section.take('TO_RGB', False).value:  # its images are BGR
        message = 'images are read as RGB, those of PaddleSeg 0.x without TO_RGB as BGR; MEAN and STD are reversed'
        section.note(section.node, 'TO_RGB', message)
        colours = {key: turn_round(node) for key, node in colours.items()}
    return {
        'transforms': [*train, *flips, {'name': 'random_padding_crop', 'crop_size': sizes['TRAIN']}],
        'eval_transforms': [*evaluation, {'name': 'padding', 'target_size': sizes['EVAL']}],
        'mean': colours['MEAN'],
        'std': colours['STD'],
    }


def _loss(solver: Section) -> Node:
    """The loss of an output; several are added with their weights."""
    # one loss, or a weighted sum of several on the same output
    names, weights = solver.take('LOSS', ['softmax_loss']), solver.section('LOSS_WEIGHT')
    class_weights = solver.take('CROSS_ENTROPY_WEIGHT')
    if class_weights.value is not None and not isinstance(class_weights.value, list):
        solver.report(class_weights, 'CROSS_ENTROPY_WEIGHT', f'{to_plain(class_weights)!r} has no counterpart')
    losses, coefficients = list[dict[str, Any]](), list[Node]()
    for node in names.value if isinstance(names.value, list) else [names]:
        if str(node.value) not in LOSSES:
            solver.report_value(node, 'LOSS', LOSSES)
            continue
        keys: dict[str, Any] = {'name': with_value(node, LOSSES[str(node.value)])}
        match node.value:
            case 'softmax_loss':
                keys |= {'avg_non_ignore': True, 'class_weights': class_weights}
            case 'bce_loss':
                keys['avg_non_ignore'] = True
            case 'lovasz_hinge_loss':
                keys['score'] = 'log_odds'
        if node.value in OF_ONE_SCORE:
            message = 'the network has a score for each of the two classes, that of PaddleSeg 0.x one for both'
            solver.note(node, 'LOSS', message)
        losses.append(keys)
        coefficients.append(weights.take(str(node.value).upper(), 1))
    weights.ignore(*weights.left, reason='SOLVER.LOSS does not name it')
    if len(losses) == 1 and as_number(coefficients[0]) == 1:
        return solver.to_node(losses[0])
    return solver.to_node({'name': 'mixed', 'losses': losses, 'coefficients': coefficients})


def _schedule(solver: Section) -> tuple[Node, Node]:
    """The base rate and its schedule, which both projects continue from the end of the warm-up."""
    lr, kind = solver.take('LR', 0.1), solver.take('LR_POLICY', 'poly')
    power, gamma, milestones = solver.take('POWER', 0.9), solver.number('GAMMA', 0.1), solver.items('DECAY_EPOCH')
    warmup, steps = solver.take('LR_WARMUP', False), solver.take('LR_WARMUP_STEPS', 2000)
    keys: dict[str, Any] = {}
    match kind.value:
        case 'poly':
            keys = {'name': with_value(kind, 'polynomial'), 'power': power, 'end_lr': 0.0}
        case 'piecewise' if warmup.value:
            solver.report(warmup, 'LR_WARMUP', 'a warm-up before piecewise has no counterpart in Phalanx')
        case 'piecewise':
            at = milestones or [solver.reading.default(epoch) for epoch in (10, 20)]
            keys = {**decay_by(solver, 'boundary_epochs', at, gamma), 'name': with_value(kind, 'piecewise')}
        case _:
            solver.report_value(kind, 'LR_POLICY', SCHEDULES)
    if warmup.value:
        keys |= {'warmup_steps': steps, 'warmup_start_lr': 0.0}
    solver.one_of('BEGIN_EPOCH', 1)
    return lr, solver.to_node(keys)


def _optimizer(solver: Section, lr: Node, decay: Node) -> Node:
    kind = solver.take('OPTIMIZER', 'sgd')
    first, second = solver.take('MOMENTUM', 0.9), solver.take('MOMENTUM2', 0.999)
    keys: dict[str, Any] = {'name': with_value(kind, str(kind.value).lower()), 'lr': lr, 'weight_decay': decay}
    match str(kind.value).lower():
        case 'sgd':
            keys['momentum'] = first
        case 'adam':
            keys['betas'] = [first, second]
        case _:
            solver.report_value(kind, 'OPTIMIZER', OPTIMIZERS)
    return solver.to_node(keys)


def _precision(model: Section) -> dict[str, Any] | None:
    """FP16, with a loss scale that is a number or, as without one, dynamic."""
    half, scale = model.take('FP16', False), model.take('SCALE_LOSS', 'DYNAMIC')
    word = str(scale.value).lower()
    if isinstance(scale.value, str) and word != 'dynamic':
        model.report(scale, 'SCALE_LOSS', f'expected a number or "dynamic", got {scale.value!r}')
    if not half.value:
        return None
    return {'dtype': with_value(half, 'fp16'), 'loss_scale': with_value(scale, 'dynamic') if word == 'dynamic' else scale}


def _initial(train: Section) -> dict[str, Any]:
    """Initial weights of the network. As in PaddleSeg 0.x, a missing folder means training from scratch, which is noted."""
    train.ignore('MODEL_SAVE_DIR', reason='--save_dir names the run folder')
    if resumed := train.weights('RESUME_MODEL_DIR'):
        train.report(resumed, 'RESUME_MODEL_DIR', 'name the run to resume with --resume')
    folder = train.take('PRETRAINED_MODEL_DIR', '')
    if not folder.value:
        return {}
    path = Path(str(folder.value))
    if not path.exists():
        message = f'there is no folder {path}, so training starts from scratch, as in PaddleSeg 0.x'
        train.note(folder, 'PRETRAINED_MODEL_DIR', message)
        return {}
    file = path / 'model.pdparams' if path.is_dir() else path
    if not file.is_file():
        message = (
            f'{path} holds no model.pdparams; weights in a file for each parameter, as Paddle 1.x wrote them, are not read'
        )
        train.report(folder, 'PRETRAINED_MODEL_DIR', message)
    return {'init_from': with_value(folder, str(file)), 'init_misshapen': with_value(folder, 'skip')}


DIALECT = Dialect(
    project='PaddleSeg 0.x',
    keys={
        *('DATASET', 'MODEL', 'TRAIN', 'SOLVER', 'AUG', 'DATALOADER', 'FREEZE', 'TEST', 'SLIM'),
        *('BATCH_SIZE', 'TRAIN_CROP_SIZE', 'EVAL_CROP_SIZE', 'MEAN', 'STD'),
    },
    recognised_by=({'MODEL', 'DATASET'}, {'SOLVER'}),
    translate=translate,
    differs=('label maps are evaluated in their own size, and running statistics of norms move by 0.1 a step, not 0.01',),
)
