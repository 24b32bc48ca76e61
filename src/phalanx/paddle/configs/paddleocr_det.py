"""PaddleOCR's text detection -> the family `text_detection`: DB."""

from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import Counterpart, Section, as_number, convert, turn_round, with_value
from phalanx.paddle.configs.paddleocr_parts import label_files, note_pretrained, read_normalisation, take_common_step

ALGORITHMS = ('DB',)
BACKBONES = ('MobileNetV3', 'ResNet_vd', 'PPLCNetV3', 'PPLCNetV4')
NECKS = {'DBFPN': 'fpn', 'RSEFPN': 'rse_fpn', 'LKPAN': 'lk_pan', 'UniRepLKFPN': 'wide_rse_fpn'}
HEADS = ('DBHead', 'PFHeadLocal')
MAIN_LOSSES = {'DiceLoss': 'dice', 'BCELoss': 'bce', 'DiceFocalLoss': 'dice_focal'}
RESNETS = {18: 'resnet18_vd', 50: 'resnet50_vd'}
AUGMENTERS = ('Fliplr', 'HorizontalFlip', 'Affine', 'Resize', 'RandomScale')
USUAL = (
    {'type': 'Fliplr', 'args': {'p': 0.5}},
    {'type': 'Affine', 'args': {'rotate': [-10, 10]}},
    {'type': 'Resize', 'args': {'size': [0.5, 3]}},
)
TRANSFORMS = {
    'CopyPaste': Counterpart('copy_paste', {'ratio': ('objects_paste_ratio', 0.2), 'apart': ('limit_paste', True)}),
    'ColorJitter': Counterpart(
        'random_distort',
        {
            **{name: (name, 0.0) for name in ('brightness', 'contrast', 'saturation')},
            'hue': ('hue', 0.0, lambda node: convert(node, lambda share: 256 * share)),  # of the whole circle
        },
        always={f'{name}_probability': 1.0 for name in ('brightness', 'contrast', 'saturation', 'hue')},
    ),
    'EastRandomCropData': Counterpart(
        'random_crop',
        {
            'crop_size': ('size', [640, 640], turn_round),
            'attempts': ('max_tries', 10),
            'least_share': ('min_crop_side_ratio', 0.1),
        },
        fixed={'keep_ratio': True},
    ),
}
RATIO = {'shrink_ratio': ('shrink_ratio', 0.4)}
TARGETS = {  # the maps that training compares
    'MakeBorderMap': Counterpart(
        'targets', {'threshold_min': ('thresh_min', 0.3), 'threshold_max': ('thresh_max', 0.7), **RATIO}
    ),
    'MakeShrinkMap': Counterpart('targets', {**RATIO, 'min_text_size': ('min_text_size', 8)}),
}
TRAIN_STEPS = (
    *('DecodeImage', 'DetLabelEncode', 'CopyPaste', 'ColorJitter', 'IaaAugment', 'EastRandomCropData', 'MakeBorderMap'),
    *('MakeShrinkMap', 'NormalizeImage', 'ToCHWImage', 'KeepKeys'),
)


def translate(
    top: Section, architecture: Section, settings: Section, train: Section, evaluation: Section, decay: Node
) -> dict[str, Any]:
    """Translate the part of the recipe that belongs to the family, and its parameter rules."""
    metric = top.section('Metric')
    metric.expect({'name': 'DetMetric'})
    main = metric.take('main_indicator', 'hmean')
    # the pipeline holds augmentation, target maps and normalisation, which are three keys here
    transforms, targets, normalise = _train_transforms(train)
    eval_transforms, eval_normalise = _eval_transforms(evaluation)
    evaluation.expect_options('transforms', normalise, eval_normalise, 'NormalizeImage differs from that of Train.dataset')
    model, rules = _network(architecture, decay)
    return {
        'task': 'text_detection',
        'model': model,
        'data': _data(train, evaluation),
        'loss': _loss(top.section('Loss')),
        'transforms': transforms,
        'eval_transforms': eval_transforms,
        'targets': targets,
        'post_processing': _post_processing(top.section('PostProcess')),
        **normalise,
        'main_metric': main,
        'parameters': {'rules': rules} if rules else None,
    }


def _data(train: Section, evaluation: Section) -> Node:
    kind = train.string('name')
    evaluation.expect_same('name', kind, 'Train.dataset')
    if kind.value != 'SimpleDataSet':
        train.report_value(kind, 'name', ('SimpleDataSet',))
    shares = train.take('ratio_list', 1.0)
    for node in shares.value if isinstance(shares.value, list) else [shares]:
        if as_number(node) != 1:
            train.report(node, 'ratio_list', f'{to_plain(node)!r}: Phalanx takes all pages of a list')
    return train.to_node(label_files(train, evaluation))


def _train_transforms(dataset: Section) -> tuple[list[Node], dict[str, Any], dict[str, Node]]:
    """Translate the augmentation, the making of targets from outlines, and the normalisation."""
    transforms: list[Node] = []
    targets: dict[str, Any] = {}
    normalise: dict[str, Node] = {}
    for name, step in dataset.named_items('transforms'):
        match name:
            case 'DetLabelEncode':
                pass
            case 'IaaAugment':
                transforms += _augmenters(step)
            case _ if name in TRANSFORMS:
                transforms.append(TRANSFORMS[name].translate(step))
            case _ if name in TARGETS:
                options = TARGETS[name].take_options(step)
                ratio, other = options['shrink_ratio'], targets.get('shrink_ratio', options['shrink_ratio'])
                if to_plain(other) != to_plain(ratio):  # the threshold (border) map and the shrink map share it
                    text = f'shrink_ratio {to_plain(ratio)} is not that of the other map, {to_plain(other)}'
                    dataset.report(ratio, 'transforms', f'{text}; Phalanx has one for both')
                targets |= options
                step.ignore('total_epoch', reason='the ratio does not grow in the course of the training')
            case 'NormalizeImage':
                normalise = read_normalisation(step)
            case 'RandomPerspective':
                step.report(step.node, None, 'shears and tilts pages, which has no counterpart in Phalanx; remove this step')
                step.give_up()
            case _ if not take_common_step(name, step):
                step.reject(TRAIN_STEPS)
    return transforms, targets, normalise


def _augmenters(step: Section) -> list[Node]:
    """Augmentations that PaddleOCR passes to imgaug, since 2.8 to albumentations, whose scales are relative to 1."""
    if not step.has('augmenter_args'):
        step.left['augmenter_args'] = step.reading.tree(USUAL)
    found = []
    for one in step.sections('augmenter_args'):
        kind, options = one.string('type'), one.section('args')
        keys: dict[str, Any] = {}
        match kind.value:
            case 'Fliplr' | 'HorizontalFlip':
                keys = {'name': 'random_flip', 'probability': options.take('p', 1.0)}
            case 'Affine':
                chance = {'probability': options.take('p')} if options.has('p') else {}
                keys = {'name': 'random_rotate', 'degrees': options.require('rotate'), **chance}
            case 'Resize':
                keys = {'name': 'random_resize', 'scale': options.require('size')}
            case 'RandomScale':
                limits = options.items('scale_limit')
                keys = {'name': 'random_resize', 'scale': [convert(each, lambda limit: 1 + limit) for each in limits]}
            case _:
                one.report_value(kind, 'type', AUGMENTERS)
                options.give_up()
        found.append(one.to_node(keys))
    return found


def _eval_transforms(dataset: Section) -> tuple[list[Node], dict[str, Node]]:
    transforms: list[Node] = []
    normalise: dict[str, Node] = {}
    for name, step in dataset.named_items('transforms'):
        match name:
            case 'DetLabelEncode':
                pass
            case 'DetResizeForTest':
                transforms.append(_resize(step))
            case 'NormalizeImage':
                normalise = read_normalisation(step)
            case _ if not take_common_step(name, step):
                step.reject(('DecodeImage', 'DetLabelEncode', 'DetResizeForTest', 'NormalizeImage', 'ToCHWImage', 'KeepKeys'))
    if not transforms:
        dataset.report(dataset.node, 'transforms', 'DetResizeForTest is missing; Phalanx needs a size')
    return transforms, normalise


def _resize(step: Section) -> Node:
    if step.has('image_shape'):
        shape = step.take('image_shape')
        step.one_of('keep_ratio', False)
        return step.to_node({'name': 'resize', 'target_size': shape})
    side, limit = step.take('limit_side_len', 736), step.take('limit_type', 'min')
    most = {'max_side': step.take('max_side_limit')} if step.has('max_side_limit') else {}
    return step.to_node({'name': 'limit_side', 'side': side, 'limit': limit, **most})


def _network(section: Section, decay: Node) -> tuple[Node, list[dict[str, Any]]]:
    """Translate the network, and the rules for some of its parameters."""
    section.expect({'algorithm': 'DB'})
    section.one_of('Transform', None)
    backbone, neck, head = section.section('Backbone'), section.section('Neck'), section.section('Head')
    rules: list[dict[str, Any]] = []
    keys: dict[str, Any] = {'name': 'db'}
    kind = backbone.string('name')
    backbone.one_of('in_channels', 3)
    match kind.value:
        case 'MobileNetV3':
            # PP-OCR's MobileNetV3-large, with or without squeeze-and-excitation
            scale, plain_blocks = backbone.take('scale', 0.5), backbone.take('disable_se', False)
            backbone.one_of('model_name', 'large')
            options = {'scale': scale, 'squeeze': with_value(plain_blocks, not plain_blocks.value)}
            keys['backbone'] = backbone.to_node({'name': with_value(kind, 'mobilenet_v3'), **options})
        case 'ResNet_vd':
            # ResNet-vd by its number of layers
            layers = backbone.take('layers', 50)
            size = RESNETS.get(int(as_number(layers) or 0), '')
            if not size:
                backbone.report_value(layers, 'layers', [str(count) for count in RESNETS])
            keys['backbone'] = with_value(layers, size)
            backbone.expect_defaults({'dcn_stage': None, 'out_indices': None})
            backbone.ignore('disable_se', reason='a ResNet has no squeeze-and-excitation')
        case 'PPLCNetV3':
            keys['backbone'] = backbone.to_node({'name': with_value(kind, 'pp_lcnet_v3'), 'scale': backbone.take('scale', 1.0)})
            backbone.expect({'det': True})
            backbone.expect_defaults({'conv_kxk_num': 4, 'lr_mult_list': [1.0] * 6})
            # learnable affine blocks learn more slowly, and norms do not decay
            factor = backbone.take('lab_lr', 0.1)
            rules = [{'match': f'backbone.*.{part}.*', 'lr_factor': factor} for part in ('before', 'after')]
            if as_number(decay) != 0:
                rules.append({'match': 'backbone.*.norm.*', 'weight_decay': 0.0})
        case 'PPLCNetV4':
            options = {'name': with_value(kind, 'pp_lcnet_v4'), 'size': backbone.take('model_size', 'small')}
            keys['backbone'] = backbone.to_node(options)
            backbone.expect({'det': True})
    note_pretrained(backbone, default=False)
    keys |= _neck(neck) | _head(head)
    return section.to_node(keys), rules


def _neck(neck: Section) -> dict[str, Any]:
    name = neck.string('name')
    if name.value == 'UniRepLKPAN':
        text = 'the neck of PP-OCRv6 medium has no counterpart in Phalanx; take the configuration of PP-OCRv6 small or tiny'
        neck.report(name, 'name', text)
        neck.give_up()
        return {}
    kind = neck.counterpart(name, 'name', NECKS)
    if name.value == 'UniRepLKFPN':
        neck.one_of('shortcut', True)
        return {'neck': kind, 'neck_channels': neck.require('out_channels'), 'neck_kernel': neck.take('dilated_kernel_size', 7)}
    neck.expect_defaults({'use_asf': False, 'shortcut': True, 'mode': 'large', 'intracl': False})
    return {'neck': kind, 'neck_channels': neck.require('out_channels')}


def _head(head: Section) -> dict[str, Any]:
    kind = head.string('name')
    keys: dict[str, Any] = {'steepness': head.take('k', 50)}
    kernels = head.take('kernel_list', [3, 2, 2])
    if not isinstance(kernels.value, list) or [node.value for node in kernels.value[1:]] != [2, 2]:
        message = f'{to_plain(kernels)!r}: Phalanx knows only a kernel size followed by 2 and 2'
        head.report(kernels, 'kernel_list', message)
        return keys
    keys['head_kernel'] = kernels.value[0]
    head.ignore('fix_nan', reason='a step without a finite loss is reported')
    auxiliary = head.take('aux_in_channels')
    if auxiliary.value:
        cure = 'leave it out (-o Architecture.Head.aux_in_channels=0), or train the recipe PP-OCRv6_small_det'
        head.report(auxiliary, 'aux_in_channels', f'auxiliary heads of the training have no counterpart in Phalanx; {cure}')
    if kind.value == 'PFHeadLocal':
        mode = head.take('mode', 'small')
        keys['head'] = with_value(mode, f'local_{mode.value}')
    else:
        keys['head'] = with_value(kind, 'db')
    return keys


def _loss(section: Section) -> list[Node]:
    section.expect({'name': 'DBLoss'})
    main = section.counterpart(section.string('main_loss_type', 'DiceLoss'), 'main_loss_type', MAIN_LOSSES)
    keys = {
        'name': 'db',
        'main': main,
        'balanced': section.take('balance_loss', True),
        'alpha': section.take('alpha', 5),
        'beta': section.take('beta', 10),
        'ohem_ratio': section.take('ohem_ratio', 3),
    }
    section.one_of('eps', 1e-6)
    if main.value == 'dice_focal':
        keys |= {'focal_alpha': section.take('focal_alpha', 0.25), 'focal_gamma': section.take('focal_gamma', 2.0)}
        section.expect_defaults({'dice_weight': 1.0, 'focal_weight': 1.0})
    section.ignore(*(f'aux_weight_p{level}' for level in (2, 3, 4)), reason='there are no auxiliary heads')
    return [section.to_node(keys)]


def _post_processing(section: Section) -> Node:
    section.expect({'name': 'DBPostProcess'})
    keys = {
        'threshold': section.take('thresh', 0.3),
        'box_threshold': section.take('box_thresh', 0.7),
        'max_candidates': section.take('max_candidates', 1000),
        'unclip_ratio': section.take('unclip_ratio', 2.0),
        'dilate': section.take('use_dilation', False),
        'scoring': section.take('score_mode', 'fast'),
        'shape': section.take('box_type', 'quad'),
    }
    if keys['shape'].value == 'poly':
        keys['shape'] = with_value(keys['shape'], 'polygon')
    return section.to_node(keys)
