"""PaddleOCR's text recognition -> the family `recognition`: CRNN and SVTR-LCNet of PP-OCRv3 (distilled too), v4 to v6."""

import os
from pathlib import Path
from typing import Any

from phalanx.config.read import Node, to_plain
from phalanx.paddle.configs.dialect import Section, as_number, convert, with_value
from phalanx.paddle.configs.paddleocr_parts import dictionary_of, label_files, take_common_step
from phalanx.paddle.configs.paddleocr_scales import is_multi_scale

# Where PaddleOCR has the dictionaries that come along, and their names here. Several of its files are called en_dict.txt.
LANGUAGES = (
    'chinese_cht japan korean latin cyrillic arabic devanagari ka ta te spin french german it ru uk be bg hi mr ne fa ug ur ar '
    'rs rsc oc pu xi'
)
DICTIONARIES = {
    'ppocr/utils/en_dict.txt': 'en',
    'ppocr/utils/ic15_dict.txt': 'alphanumeric',
    **{f'ppocr/utils/{name}.txt': name for name in ('ppocr_keys_v1', 'EN_symbol_dict', 'dict90')},
    **{
        f'ppocr/utils/dict/{name}.txt': name
        for name in ('ppocrv4_doc_dict', 'ppocrv5_dict', 'ppocrv6_dict', 'ppocrv6_tiny_dict')
    },
    **{f'ppocr/utils/dict/{language}_dict.txt': f'{language}_dict' for language in LANGUAGES.split()},
}
NAMES = ('digits', 'letters', *DICTIONARIES.values())  # which a configuration may give instead of a path
ALGORITHMS = ('CRNN', 'SVTR_LCNet', 'SVTR', 'Distillation')
BACKBONES = ('MobileNetV3', 'ResNet', 'MobileNetV1Enhance', 'PPLCNetV3', 'PPLCNetV4')
HEADS = ('CTCHead', 'MultiHead')
LOSSES = ('CTCLoss', 'MultiLoss')
DATA_SETS = ('SimpleDataSet', 'MultiScaleDataSet', 'LMDBDataSet')
TRANSFORMS = ('DecodeImage', 'RecConAug', 'RecAug', 'CTCLabelEncode', 'MultiLabelEncode', 'RecResizeImg', 'KeepKeys')
AUGMENTATION = {  # ours -> theirs
    'warp_probability': 'tia_prob',
    'crop_probability': 'crop_prob',
    'invert_probability': 'reverse_prob',
    'noise_probability': 'noise_prob',
    'shake_probability': 'jitter_prob',
    'blur_probability': 'blur_prob',
    'tint_probability': 'hsv_aug_prob',
}
INDICATORS = {'acc': 'accuracy', 'norm_edit_dis': 'edit_similarity'}


def translate(
    top: Section, architecture: Section, settings: Section, train: Section, evaluation: Section, decay: Node
) -> dict[str, Any]:
    """The part of the recipe that belongs to the family, and its parameter rules."""
    max_length = settings.take('max_text_length', 25)
    main_metric, metric = _metric(top.section('Metric'))
    # both splits have one input size here, unless training is multi-scale
    augmented, size, keep_ratio = _transforms(train)
    _, eval_size, eval_keep_ratio = _transforms(evaluation)
    if size.value is None and is_multi_scale(train):  # its sampler says the sizes
        size, keep_ratio = eval_size, eval_keep_ratio
    if to_plain(size) != to_plain(eval_size) or keep_ratio != eval_keep_ratio:
        message = 'differs from that of Train.dataset; Phalanx has one for both'
        evaluation.report(evaluation.node, 'transforms', f'RecResizeImg {message}')
    return {
        'task': 'recognition',
        **_networks(architecture, top, max_length, decay),
        'data': _data(train, evaluation),
        'characters': _characters(settings, max_length),
        'image_size': size,
        'keep_ratio': keep_ratio,
        **augmented,
        'metric': metric,
        'main_metric': main_metric,
    }


def _characters(settings: Section, max_length: Node) -> dict[str, Any]:
    """Without a dictionary there are the ten digits and the lower-case letters, and never a space."""
    path = settings.take('character_dict_path')
    if not path.value:
        settings.ignore('use_space_char', reason='without a dictionary there is no space')
        return {'dictionary': with_value(path, 'alphanumeric'), 'max_length': max_length}
    space = settings.take('use_space_char', False)
    named = path if path.value in NAMES else dictionary_of(settings, path, DICTIONARIES)
    keys = {'dictionary': named, 'space': with_value(space, bool(space.value)), 'lower_case': False, 'max_length': max_length}
    # PaddleOCR, too, decides by the path whether texts are reversed (BaseRecLabelDecode).
    return keys | ({'right_to_left': with_value(path, True)} if 'arabic' in str(path.value) else {})


def _metric(section: Section) -> tuple[Any, dict[str, Any]]:
    name = section.string('name')
    if name.value == 'DistillationMetric':
        section.expect({'base_metric_name': 'RecMetric', 'key': 'Student'})
    elif name.value != 'RecMetric':
        section.report_value(name, 'name', ('RecMetric', 'DistillationMetric'))
    main = section.counterpart(section.string('main_indicator', 'acc'), 'main_indicator', INDICATORS)
    compared = {'ignore_space': section.take('ignore_space', True), 'alphanumeric_only': section.take('is_filter', False)}
    return main, {'name': 'reading', **compared}


def _data(train: Section, evaluation: Section) -> Node:
    kind = train.string('name')
    if kind.value == 'MultiScaleDataSet':
        train.one_of('ds_width', False)
        kind = with_value(kind, 'SimpleDataSet')
    evaluation.expect_same('name', kind, 'Train.dataset')
    keys: dict[str, Any] = {}
    match kind.value:
        # label files, with the share of each that an epoch takes
        case 'SimpleDataSet':
            keys = label_files(train, evaluation)
            shares = train.take('ratio_list', 1.0)
            if isinstance(shares.value, list):
                keys['train_shares'] = shares
            elif shares.value != 1:
                keys['train_shares'] = [shares] * len(keys['train'])
            keys['separator'] = train.take('delimiter', '\t')
            evaluation.expect_same('delimiter', keys['separator'], 'Train.dataset')
        # LMDB folders, below the folder that both have in common
        case 'LMDBDataSet':
            roots = [section.require('data_dir') for section in (train, evaluation)]
            paths = [os.path.normpath(str(node.value)) for node in roots]
            if len({Path(path).is_absolute() for path in paths}) > 1:
                both = f'{paths[1]!r} and {paths[0]!r} of Train.dataset'
                evaluation.report(roots[1], 'data_dir', f'{both}: give both as absolute paths, or both as relative ones')
                return train.to_node({})
            root = os.path.commonpath(paths)
            folders = [with_value(node, os.path.relpath(str(node.value), root)) for node in roots]
            keys = {'name': with_value(kind, 'lmdb_sets'), 'root': with_value(roots[0], root)}
            keys |= {'train': [folders[0]], 'eval': [folders[1]]}
        case _:
            train.report_value(kind, 'name', DATA_SETS)
    return train.to_node(keys)


def _transforms(dataset: Section) -> tuple[dict[str, Any], Node, bool]:
    """The augmentation, the size (height, width) of the network's input, and whether lines keep their ratio of sides."""
    augmented: dict[str, Any] = {}
    size, keep_ratio = dataset.reading.default(None), True
    for name, step in dataset.named_items('transforms'):
        match name:
            # several lines in a row become one training line
            case 'RecConAug':
                shape = step.take('image_shape', [32, 320, 3])
                augmented['concatenate'] = {
                    'image_size': _size(step, shape, height=0, width=1),
                    'lines': step.take('ext_data_num', 1),
                    'probability': step.take('prob', 0.5),
                    'max_length': step.take('max_text_length', 25),
                }
            case 'RecAug':
                probabilities = {ours: step.take(theirs, 0.4) for ours, theirs in AUGMENTATION.items()}
                augmented['transforms'] = [{'name': 'rec_aug', **probabilities}]
            # the input size, with or without padding to keep the aspect ratio
            case 'RecResizeImg':
                size = _size(step, step.require('image_shape'), height=1, width=2)
                keep_ratio = bool(step.take('padding', True).value)
                step.expect_defaults({'infer_mode': False, 'character_dict_path': None})
                step.assume('eval_mode', False, 'in an evaluation longer lines are squeezed, as in training')
            case 'CTCLabelEncode' | 'MultiLabelEncode':
                step.one_of('gtc_encode', None, 'NRTRLabelEncode')
                step.ignore(
                    'max_text_length', 'character_dict_path', 'use_space_char', reason='Global sets it, as in PaddleOCR'
                )
            case _ if not take_common_step(name, step):
                step.reject(TRANSFORMS)
    dataset.assume('ext_op_transform_idx', 1, 'lines to concatenate are read, and not transformed before')
    if size.value is None and not is_multi_scale(dataset):
        dataset.report(dataset.node, 'transforms', 'RecResizeImg is missing; Phalanx needs a size')
    return augmented, size, keep_ratio


def _size(step: Section, shape: Node, *, height: int, width: int) -> Node:
    """(height, width) of a shape, given their places in it; the third number is the channels."""
    channels = shape.value[3 - width - height] if isinstance(shape.value, list) and len(shape.value) == 3 else shape
    if channels is not shape and channels.value != 3:
        step.report(channels, 'image_shape', f'{to_plain(channels)!r} channels; Phalanx reads images of 3')
    if not isinstance(shape.value, list) or len(shape.value) <= max(width, height):
        return shape  # reported when the recipe is bound
    return Node([shape.value[height], shape.value[width]], shape.origin)


def _networks(architecture: Section, top: Section, max_length: Node, decay: Node) -> dict[str, Any]:
    """Translate the network or networks, their loss, and the rules for some parameters."""
    loss, post = top.section('Loss'), top.section('PostProcess')
    if architecture.has('Models'):
        return _distillation(architecture, loss, post, max_length, decay)
    post.expect({'name': 'CTCLabelDecode'})
    model, rules = _network(architecture, max_length, decay)
    return {'model': model, **_loss(loss), 'parameters': {'rules': rules} if rules else None}


def _network(section: Section, max_length: Node, decay: Node) -> tuple[Node, list[dict[str, Any]]]:
    algorithm = section.string('algorithm')
    section.one_of('Transform', None)
    backbone, neck, head = section.section('Backbone'), section.section('Neck'), section.section('Head')
    match algorithm.value:
        case 'CRNN':
            keys, fc_decay = _crnn(backbone, neck, head)
        case 'SVTR_LCNet' | 'SVTR':
            keys, fc_decay = _svtr_lcnet(backbone, head, max_length)
        case _:
            section.report_value(algorithm, 'algorithm', ALGORITHMS)
            for part in (backbone, neck, head, section):
                part.give_up()
            return section.to_node({}), []
    rules: list[dict[str, Any]] = []
    if keys['name'] != 'crnn' and as_number(decay) != 0:
        rules.append({'match': 'backbone.*.norm.*', 'weight_decay': 0.0})
    if as_number(fc_decay) != as_number(decay):
        rules.append({'match': 'head.*', 'weight_decay': fc_decay})
    if keys['name'] == 'svtr_lcnetv3':
        rules += [{'match': f'backbone.*.{part}.*', 'lr_factor': 0.1} for part in ('before', 'after')]
    return section.to_node({**keys, 'name': with_value(algorithm, keys['name'])}), rules


def _crnn(backbone: Section, neck: Section, head: Section) -> tuple[dict[str, Any], Node]:
    kind = backbone.string('name')
    keys: dict[str, Any] = {'name': 'crnn'}
    match kind.value:
        case 'MobileNetV3':
            options = {'scale': backbone.take('scale', 0.5), 'size': backbone.take('model_name', 'small')}
            keys['backbone'] = backbone.to_node({'name': with_value(kind, 'mobilenet_v3'), **options})
            backbone.expect_defaults({'small_stride': [1, 2, 2, 2], 'large_stride': [1, 2, 2, 2], 'disable_se': False})
        case 'ResNet':
            keys['backbone'] = with_value(kind, 'resnet34_vd')
            backbone.expect({'layers': 34})
        case _:
            backbone.reject_value(kind, 'name', ('MobileNetV3', 'ResNet'))
    neck.expect({'name': 'SequenceEncoder', 'encoder_type': 'rnn'})
    keys['hidden_size'] = neck.take('hidden_size', 48)
    head.expect({'name': 'CTCHead'})
    head.expect_defaults({'mid_channels': None, 'return_feats': False})
    return keys, head.take('fc_decay', 0.0004)


def _svtr_lcnet(backbone: Section, head: Section, max_length: Node) -> tuple[dict[str, Any], Node]:
    # PP-OCRv4 and v5: PP-LCNetV3 with an NRTR guide; v6: PP-LCNetV4 with a light neck; PP-OCRv3: MobileNetV1Enhance with SAR
    kind = backbone.peek('name')
    name = kind.value if kind is not None else None
    is_v3, is_v4 = name == 'PPLCNetV3', name == 'PPLCNetV4'
    if is_v3:
        backbone.expect({'name': 'PPLCNetV3'})
        backbone.expect_defaults({'conv_kxk_num': 4, 'lr_mult_list': [1.0] * 6, 'lab_lr': 0.1, 'det': False})
        head.expect_defaults({'use_pool': False, 'use_pos': False})
    elif is_v4:
        backbone.expect({'name': 'PPLCNetV4'})
        backbone.expect_defaults({'use_rep': True, 'det': False})
        head.expect_defaults({'use_pool': False, 'use_pos': False})
    else:
        backbone.expect({'name': 'MobileNetV1Enhance', 'last_conv_stride': [1, 2], 'last_pool_type': 'avg'})
        backbone.one_of('last_pool_kernel_size', [2, 2])
    head.expect({'name': 'MultiHead'})
    # the CTC branch has the SVTR neck; the guide is used in training only
    ctc, guide = _pair(head, 'head_list', 'CTCHead', 'NRTRHead' if is_v3 or is_v4 else 'SARHead')
    neck, fc = ctc.section('Neck'), ctc.section('Head')
    guide.expect_same('max_text_length', max_length, 'Global')
    if is_v4:
        keys = _ppocrv6(backbone, neck, fc)
    else:
        neck.expect({'name': 'svtr'})
        ours = 'pp_lcnet_v3' if is_v3 else 'mobilenet_v1_enhance'
        keys = {
            'name': 'svtr_lcnetv3' if is_v3 else 'svtr_lcnet',
            'backbone': backbone.to_node({'name': ours, 'scale': backbone.take('scale', 1.0 if is_v3 else 0.5)}),
            'neck_channels': neck.take('dims', 64),
            'depth': neck.take('depth', 2),
            'hidden_size': neck.take('hidden_dims', 120),
            'use_guide': neck.take('use_guide', False),
        }
    if is_v3 or is_v4:
        keys |= {'nrtr_size': guide.take('nrtr_dim', 256), 'nrtr_depth': guide.take('num_decoder_layers', 4)}
    else:
        keys['sar_size'] = guide.take('enc_dim', 512)
    if not is_v4:
        neck.one_of('kernel_size', [1, 3] if is_v3 else [3, 3])
    return keys, fc.take('fc_decay', 0.0004)


def _ppocrv6(backbone: Section, neck: Section, fc: Section) -> dict[str, Any]:
    """Backbone and neck of PP-OCRv6; `config_name` is an earlier name of `model_size`."""
    key = 'config_name' if backbone.has('config_name') else 'model_size'
    size = backbone.take(key, 'small')
    if size.value not in ('tiny', 'small', 'medium'):
        backbone.report_value(size, key, ('tiny', 'small', 'medium'))
    if size.value == 'tiny':
        backbone.expect_defaults({'stem_type': 'simple', 'stem_channels': 48})
        neck.expect({'name': 'reshape'})
        fc.expect({'use_guide': True})
        sized = {'backbone': backbone.to_node({'name': 'pp_lcnet_v4', 'size': size}), 'hidden_size': fc.require('mid_channels')}
        return {'name': 'conv_lcnetv4', **sized}
    backbone.expect_defaults({'stem_type': 'branch'})
    neck.expect({'name': 'lightsvtr'})
    neck.one_of('local_kernel', 7)
    return {
        'name': 'svtr_lcnetv4',
        'backbone': backbone.to_node({'name': 'pp_lcnet_v4', 'size': size}),
        'hidden_size': neck.take('dims', 64),
        'depth': neck.take('depth', 1),
        'mlp_ratio': convert(neck.take('mlp_ratio', 4.0), lambda ratio: int(ratio) if ratio.is_integer() else ratio),
        'use_guide': neck.take('use_guide', False),
    }


def _loss(section: Section) -> dict[str, Any]:
    kind = section.string('name')
    keys: dict[str, Any] = {}
    match kind.value:
        case 'CTCLoss':
            keys = {'name': with_value(kind, 'ctc'), 'focal': section.take('use_focal_loss', False)}
        # CTC with NRTR or SAR as the guide
        case 'MultiLoss' if 'NRTRLoss' in _names(section, 'loss_config_list'):
            ctc, nrtr = _pair(section, 'loss_config_list', 'CTCLoss', 'NRTRLoss')
            losses = [
                ctc.to_node({'name': with_value(kind, 'ctc'), 'focal': ctc.take('use_focal_loss', False)}),
                nrtr.to_node(
                    {'name': with_value(kind, 'nrtr'), 'smoothing': 0.1 if nrtr.take('smoothing', True).value else 0.0}
                ),
            ]
            nrtr.one_of('ignore_index', 0)
            coefficients = [section.take('weight_1', 1.0), section.take('weight_2', 1.0)]
            return {'loss': losses, 'loss_coefficients': coefficients}
        case 'MultiLoss':
            ctc, _ = _pair(section, 'loss_config_list', 'CTCLoss', 'SARLoss')
            keys = {'name': with_value(kind, 'multi'), 'focal': ctc.take('use_focal_loss', False)}
            keys |= {'ctc_weight': section.take('weight_1', 1.0), 'sar_weight': section.take('weight_2', 1.0)}
        case _:
            section.reject_value(kind, 'name', LOSSES)
    return {'loss': section.to_node(keys)}


def _names(section: Section, key: str) -> set[str]:
    """Names of the items under `key`, without taking them."""
    listed = section.left[key].value if key in section.left else []
    items = listed if isinstance(listed, list) else []
    return {name for item in items if isinstance(item.value, dict) for name in item.value}


def _pair(section: Section, key: str, first: str, second: str) -> tuple[Section, Section]:
    """Take the two named items under `key`; other or missing ones are reported."""
    found: dict[str, Section] = {}
    for name, item in section.named_items(key):
        if name in found:  # the last one counts
            found[name].give_up()
        found[name] = item
    for name in sorted({first, second} ^ found.keys()):
        message = 'not one of them' if name in found else 'missing'
        section.report(section.node, key, f'Phalanx knows {first} with {second}; {name} is {message}')
        if name in found:
            found[name].give_up()
    empty = Section(Node({}, section.node.origin), section.key_path(key), section.reading)
    return found.get(first, empty), found.get(second, empty)


def _distillation(architecture: Section, loss: Section, post: Section, max_length: Node, decay: Node) -> dict[str, Any]:
    """Translate a distillation: several networks that learn from one another, of which Student is the result."""
    # the result is the student, decoded by CTC
    architecture.expect({'name': 'DistillationModel', 'algorithm': 'Distillation'})
    post.expect({'name': 'DistillationCTCLabelDecode'})
    post.expect_defaults({'multi_head': True, 'key': 'head_out'})
    post.ignore('model_name', reason='the network that Metric.key names is evaluated')
    models = architecture.section('Models')
    names = {name: name.lower() for name in models.left}
    if 'Student' not in names:
        models.report(models.node, None, 'there is no network called Student')
    networks, rules, frozen = dict[str, Node](), list[dict[str, Any]](), list[str]()
    # each network is translated alone; its parameter rules get its name as a prefix
    for theirs, ours in names.items():
        model = models.section(theirs)
        model.expect({'model_type': 'rec'})
        model.assume('return_all_feats', True, 'the losses name the features that they compare')
        if model.take('freeze_params', False).value:
            frozen.append(ours)
        node = model.take('pretrained')
        if node.value is not None:
            cure = f'leave it out and set train.init_networks.{ours}={to_plain(node)}'
            model.report(node, 'pretrained', f'weights of one network are named elsewhere: {cure}')
        networks[ours], own = _network(model, max_length, decay)
        rules += [{**rule, 'match': f'networks.{ours}.{rule["match"]}'} for rule in own]
    student = networks.pop('student', None)
    return {
        'model': student,
        'networks': networks,
        'frozen': frozen,
        **_distillation_losses(loss, names, frozen),
        'parameters': {'rules': rules} if rules else None,
    }


def _distillation_losses(section: Section, names: dict[str, str], frozen: list[str]) -> dict[str, Any]:
    """Losses between the networks of a distillation, and against the labels."""
    section.expect({'name': 'CombinedLoss'})
    between: list[Node] = []
    weights: dict[str, Node] = {}
    learners = [theirs for theirs, ours in names.items() if ours not in frozen]
    # losses between pairs of networks (DML, features), and against the labels
    for name, part in section.named_items('loss_config_list'):
        weight = part.take('weight', 1.0)
        part.ignore('name', reason='log lines name the terms themselves')
        match name:
            case 'DistillationDMLLoss':
                part.expect({'act': 'softmax', 'use_log': True, 'multi_head': True})
                part.one_of('key', 'head_out')
                output = part.require('dis_head')
                between += [
                    _distillation_term(part, 'dml', pair, names, weight, output) for pair in part.items('model_name_pairs')
                ]
            case 'DistillationDistanceLoss':
                part.one_of('mode', 'l2')
                part.expect({'key': 'backbone_out'})
                pairs = part.items('model_name_pairs')
                between += [_distillation_term(part, 'feature_distance', pair, names, weight, None) for pair in pairs]
            case 'DistillationCTCLoss' | 'DistillationSARLoss':
                weights[name.removeprefix('Distillation')] = weight
                part.expect({'multi_head': True})
                part.one_of('key', 'head_out')
                if sorted(str(node.value) for node in part.items('model_name_list')) != sorted(learners):
                    part.report(part.node, 'model_name_list', f'must be all that learn: {", ".join(learners)}')
            case _:
                part.report(part.node, None, 'has no counterpart in Phalanx')
                part.give_up()
    # networks that learn must have both label losses
    for name in {'CTCLoss', 'SARLoss'} - weights.keys():
        section.report(section.node, 'loss_config_list', f'Distillation{name} is missing; Phalanx has both')
    loss = {'name': 'multi', 'ctc_weight': weights.get('CTCLoss'), 'sar_weight': weights.get('SARLoss')}
    return {'loss': section.to_node(loss), 'between': between}


def _distillation_term(part: Section, kind: str, pair: Node, names: dict[str, str], weight: Node, output: Node | None) -> Node:
    listed = [str(node.value) for node in pair.value] if isinstance(pair.value, list) else []
    if len(listed) != 2 or not all(name in names for name in listed):
        part.report(pair, 'model_name_pairs', f'expected two of {", ".join(names)}, got {to_plain(pair)!r}')
    ours = [names.get(name, '') for name in listed]
    return part.to_node({'name': kind, 'between': ours, 'output': output, 'weight': weight})
