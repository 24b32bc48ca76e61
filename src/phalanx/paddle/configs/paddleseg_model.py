"""PaddleSeg's `model`: the network, its backbone, and the weights that training starts from."""

from typing import Any

from phalanx.config.read import Node
from phalanx.paddle.configs.dialect import Section, with_value

MODELS = ('PPLiteSeg', 'UNet', 'OCRNet', 'SegFormer', 'DeepLabV3P')
SEGFORMERS = {f'SegFormer_B{size}': f'mit_b{size}' for size in range(6)}  # as they were called up to release 2.6
BACKBONES = {  # of each model: theirs -> ours
    'PPLiteSeg': {'STDC1': 'stdc1', 'STDC2': 'stdc2'},
    'OCRNet': {'HRNet_W18': 'hrnet_w18', 'HRNet_W48': 'hrnet_w48'},
    'SegFormer': {f'MixVisionTransformer_B{size}': f'mit_b{size}' for size in range(6)},
    'DeepLabV3P': {'ResNet50_vd': 'resnet50_vd', 'ResNet101_vd': 'resnet101_vd', 'Xception65_deeplab': 'xception65'},
}


def is_known(model: Section) -> bool:
    """True if Phalanx has the model. If not, this is the only problem reported of the file."""
    kind, backbone = model.peek('type'), model.peek('backbone', 'type')
    if kind is None or not isinstance(kind.value, str):
        return True  # a problem like any other, which `read_model` reports
    if kind.value not in (*MODELS, *SEGFORMERS):
        model.report_value(kind, 'type', MODELS)
        return False
    known = BACKBONES.get(kind.value, {})
    if backbone is not None and known and str(backbone.value) not in known:
        model.report_part(backbone, 'backbone.type', kind.value, 'backbone', known)
        return False
    return True


def read_model(section: Section, num_classes: int) -> tuple[Node, dict[str, Any]]:
    """The network, and the keys of `train` that name the weights it starts from."""
    kind = section.string('type')
    backbone = section.section('backbone')
    # the number of classes is that of the data set; the configuration may repeat it
    if section.has('num_classes') and num_classes:
        section.expect_same('num_classes', Node(num_classes, ''), 'the data set')
    else:
        section.take('num_classes')
    section.one_of('in_channels', 3)
    backbone.one_of('in_channels', 3)
    if kind.value != 'DeepLabV3P':
        section.one_of('align_corners', False)
    # the options of each network; all others must have their defaults
    name, keys = '', dict[str, Any]()
    match kind.value:
        case 'PPLiteSeg':
            name = 'pp_liteseg'
            keys['backbone'] = _backbone(backbone, BACKBONES['PPLiteSeg'], {'relative_lr': 1.0})
            keys['arm_channels'] = section.take('arm_out_chs', [64, 96, 128])
            keys['head_channels'] = section.take('seg_head_inter_chs', [64, 64, 64])
            fixed = {'backbone_indices': [2, 3, 4], 'arm_type': 'UAFM_SpAtten', 'cm_bin_sizes': [1, 2, 4], 'cm_out_ch': 128}
            section.expect_defaults({**fixed, 'resize_mode': 'bilinear'})
        case 'UNet':
            name, deconv = 'unet', section.take('use_deconv', False)
            keys['upsampling'] = with_value(deconv, 'transposed' if deconv.value else 'bilinear')
        case 'OCRNet':
            name = 'ocrnet'
            hrnet = {'has_se': False, 'align_corners': False, 'padding_same': True, 'use_psa': False}
            keys['backbone'] = _backbone(backbone, BACKBONES['OCRNet'], hrnet)
            section.expect_defaults({'backbone_indices': [0], 'ocr_mid_channels': 512, 'ocr_key_channels': 256})
        case 'SegFormer':
            name = 'segformer'
            keys['backbone'] = _backbone(backbone, BACKBONES['SegFormer'], {})
            keys['head_channels'] = section.require('embedding_dim')
        case older if older in SEGFORMERS:
            name, keys = 'segformer', {'backbone': with_value(kind, SEGFORMERS[older])}
        case 'DeepLabV3P':
            name, keys = 'deeplabv3p', _deeplabv3p(section, backbone)
        case _:
            section.reject_value(kind, 'type', MODELS)
            backbone.give_up()
    # weights of the whole network, or of the backbone alone
    initial = _initial(section, backbone)
    return section.to_node({'name': with_value(kind, name), **keys}), initial


def _deeplabv3p(section: Section, backbone: Section) -> dict[str, Any]:
    kind = backbone.peek('type')
    is_resnet = kind is not None and str(kind.value).startswith('ResNet')
    fixed = {'data_format': 'NCHW', 'output_stride': 8 if is_resnet else 16}
    keys = {
        'backbone': _backbone(backbone, BACKBONES['DeepLabV3P'], fixed),
        'align_corners': section.take('align_corners', False),
    }
    if is_resnet:
        backbone.expect({'multi_grid': [1, 2, 4]})
    section.expect_defaults(
        {'backbone_indices': [0, 3] if is_resnet else [0, 1], 'aspp_out_channels': 256, 'data_format': 'NCHW'}
    )
    ratios = section.take('aspp_ratios', [1, 6, 12, 18])
    if not isinstance(ratios.value, list) or not ratios.value or ratios.value[0].value != 1:
        section.report(ratios, 'aspp_ratios', 'must begin with 1, a window of a single place')
        return keys
    return {**keys, 'dilations': Node(ratios.value[1:], ratios.origin)}


def _backbone(section: Section, known: dict[str, str], fixed: dict[str, Any]) -> Node:
    backbone = section.counterpart(section.string('type'), 'type', known)
    section.expect_defaults(fixed)
    return backbone


def _initial(model: Section, backbone: Section) -> dict[str, Any]:
    """The keys of `train` for the initial weights; those of the whole network win over those of the backbone."""
    initial: dict[str, Any] = {}
    for section, part in ((backbone, 'backbone'), (model, 'all')):
        node = section.weights('pretrained')
        if node is not None:
            initial = {'init_from': node, 'init_part': with_value(node, part)}
    return initial
