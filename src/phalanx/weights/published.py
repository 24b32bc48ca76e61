"""Weights that the original projects publish, by name, with the addresses, figures and licences that they state."""

from dataclasses import dataclass
from typing import Literal

from phalanx.config.shipped import shipped_recipes

APACHE = 'Apache-2.0'
PADDLEDET = 'https://paddledet.bj.bcebos.com/models'
OBJECTS365 = 'https://bj.bcebos.com/v1/paddledet/models/pretrained'
PADDLESEG = 'https://paddleseg.bj.bcebos.com/dygraph'
BACKBONES = 'https://bj.bcebos.com/paddleseg/dygraph'
PADDLEOCR = 'https://paddleocr.bj.bcebos.com'
# Trained from SegFormer's own backbones, whose licence (NVIDIA Source Code License) forbids commercial use.
SEGFORMER = "Apache-2.0 (PaddleSeg); its backbone began as SegFormer's own, which is not for commercial use"


@dataclass(frozen=True)
class Published:
    """Weight file published by its project."""

    network: str  # recipe or network of the weights
    trained_on: str
    figure: str  # result that the project reports
    address: str
    licence: str = APACHE
    part: Literal['all', 'backbone'] = 'all'  # part of the network in the file


PUBLISHED: dict[str, Published] = {  # for one network, the best choice first
    **{
        name: Published(network, trained_on, figure, f'{folder}/{name}.pdparams')
        for name, network, trained_on, figure, folder in (
            ('ppyoloe_plus_crn_s_80e_coco', 'ppyoloe, size: s, plus: true', 'COCO', 'mAP 43.7', PADDLEDET),
            ('ppyoloe_plus_crn_m_80e_coco', 'ppyoloe, size: m, plus: true', 'COCO', 'mAP 49.8', PADDLEDET),
            ('ppyoloe_plus_crn_l_80e_coco', 'ppyoloe, size: l, plus: true', 'COCO', 'mAP 52.9', PADDLEDET),
            ('ppyoloe_plus_crn_x_80e_coco', 'ppyoloe, size: x, plus: true', 'COCO', 'mAP 54.7', PADDLEDET),
            ('ppyoloe_plus_crn_s_30e_voc', 'ppyoloe, size: s, plus: true', 'VOC', 'mAP50 86.7', PADDLEDET),
            ('ppyoloe_plus_crn_l_30e_voc', 'ppyoloe, size: l, plus: true', 'VOC', 'mAP50 89.0', PADDLEDET),
            ('ppyoloe_crn_s_obj365_pretrained', 'ppyoloe, size: s', 'Objects365', 'mAP50 18.1', OBJECTS365),
            ('ppyoloe_crn_m_obj365_pretrained', 'ppyoloe, size: m', 'Objects365', 'mAP50 25.0', OBJECTS365),
            ('ppyoloe_crn_l_obj365_pretrained', 'ppyoloe, size: l', 'Objects365', 'mAP50 30.8', OBJECTS365),
            ('ppyoloe_crn_x_obj365_pretrained', 'ppyoloe, size: x', 'Objects365', 'mAP50 32.7', OBJECTS365),
        )
    },
    **{
        f'CSPResNetb_{size}_pretrained': Published(
            f'ppyoloe, size: {size}',
            'ImageNet',
            '',
            f'{PADDLEDET}/pretrained/CSPResNetb_{size}_pretrained.pdparams',
            part='backbone',
        )
        for size in ('s', 'm', 'l', 'x')
    },
    **{
        f'pp_liteseg_{backbone}_cityscapes_scale{scale}': Published(
            f'pp_liteseg, backbone: {backbone}',
            'Cityscapes',
            f'mIoU {figure}',
            f'{PADDLESEG}/cityscapes/pp_liteseg_{backbone}_cityscapes_1024x512_scale{scale}_160k/model.pdparams',
        )
        for backbone, scale, figure in (
            *(('stdc1', '1.0', '77.04'), ('stdc1', '0.75', '76.03'), ('stdc1', '0.5', '73.10')),
            *(('stdc2', '1.0', '79.04'), ('stdc2', '0.75', '78.75'), ('stdc2', '0.5', '75.25')),
        )
    },
    **{
        f'pp_liteseg_{backbone}_camvid': Published(
            f'pp_liteseg, backbone: {backbone}',
            'CamVid',
            f'mIoU {figure}',
            f'{PADDLESEG}/camvid/pp_liteseg_{backbone}_camvid_960x720_10k/model.pdparams',
        )
        for backbone, figure in (('stdc1', '73.30'), ('stdc2', '75.10'))
    },
    **{
        name: Published(network, 'ImageNet', '', f'{BACKBONES}/{name}.tar.gz', part='backbone')
        for name, network in (
            ('hrnet_w18_ssld', 'ocrnet, backbone: hrnet_w18'),
            ('hrnet_w48_ssld', 'ocrnet, backbone: hrnet_w48'),
            ('PP_STDCNet1', 'pp_liteseg, backbone: stdc1'),
            ('PP_STDCNet2', 'pp_liteseg, backbone: stdc2'),
        )
    },
    **{
        f'segformer_{size}_cityscapes': Published(
            f'segformer, backbone: mit_{size}',
            'Cityscapes',
            f'mIoU {figure}',
            f'{BACKBONES}/cityscapes/segformer_{size}_cityscapes_1024x1024_160k/model.pdparams',
            licence=SEGFORMER,
        )
        for size, figure in (('b0', '76.73'), ('b1', '78.35'), ('b2', '81.60'), ('b3', '82.47'), ('b4', '82.38'))
    },
    'en_PP-OCRv3_rec': Published('en_PP-OCRv3_rec', 'PaddleOCR', '', f'{PADDLEOCR}/PP-OCRv3/english/en_PP-OCRv3_rec_train.tar'),
    'ch_PP-OCRv3_rec': Published(
        'ch_PP-OCRv3_rec_distillation', 'PaddleOCR', '', f'{PADDLEOCR}/PP-OCRv3/chinese/ch_PP-OCRv3_rec_train.tar'
    ),
    'rec_mv3_none_bilstm_ctc': Published(
        'rec_mv3_none_bilstm_ctc',
        'MJSynth, SynthText',
        'accuracy 77.95',
        f'{PADDLEOCR}/dygraph_v2.0/en/rec_mv3_none_bilstm_ctc_v2.0_train.tar',
    ),
    **{
        f'{name}_v2.0': Published(name, 'ICDAR 2015', f'Hmean {figure}', f'{PADDLEOCR}/dygraph_v2.0/en/{name}_v2.0_train.tar')
        for name, figure in (('det_mv3_db', '75.12'), ('det_r50_vd_db', '82.38'))
    },
    'en_SLANet': Published(
        'SLANet',
        'PubTabNet',
        'accuracy 76.31, TEDS 95.89',
        f'{PADDLEOCR}/ppstructure/models/slanet/en_ppstructure_mobile_v2.0_SLANet_train.tar',
    ),
}


# The classes of a data set, in the order of the weights that were trained on it.
CLASSES: dict[str, tuple[str, ...]] = {
    'Cityscapes': (
        *('road', 'sidewalk', 'building', 'wall', 'fence', 'pole', 'traffic light', 'traffic sign', 'vegetation', 'terrain'),
        *('sky', 'person', 'rider', 'car', 'truck', 'bus', 'train', 'motorcycle', 'bicycle'),
    ),
    'COCO': (
        *('person', 'bicycle', 'car', 'motorcycle', 'airplane', 'bus', 'train', 'truck', 'boat', 'traffic light'),
        *('fire hydrant', 'stop sign', 'parking meter', 'bench', 'bird', 'cat', 'dog', 'horse', 'sheep', 'cow', 'elephant'),
        *('bear', 'zebra', 'giraffe', 'backpack', 'umbrella', 'handbag', 'tie', 'suitcase', 'frisbee', 'skis', 'snowboard'),
        *('sports ball', 'kite', 'baseball bat', 'baseball glove', 'skateboard', 'surfboard', 'tennis racket', 'bottle'),
        *('wine glass', 'cup', 'fork', 'knife', 'spoon', 'bowl', 'banana', 'apple', 'sandwich', 'orange', 'broccoli', 'carrot'),
        *('hot dog', 'pizza', 'donut', 'cake', 'chair', 'couch', 'potted plant', 'bed', 'dining table', 'toilet', 'tv'),
        *('laptop', 'mouse', 'remote', 'keyboard', 'cell phone', 'microwave', 'oven', 'toaster', 'sink', 'refrigerator'),
        *('book', 'clock', 'vase', 'scissors', 'teddy bear', 'hair drier', 'toothbrush'),
    ),
}


def class_names(source: str) -> tuple[str, ...]:
    """Class names of the published weights with the name or address `source`; () where unknown."""
    entry = entry_of(source)
    return CLASSES.get(entry.trained_on, ()) if entry is not None and entry.part == 'all' else ()


def recipe_of(source: str) -> str | None:
    """Shipped recipe that trained the published weights with the name or address `source`; None without one."""
    entry = entry_of(source)
    return entry.network if entry is not None and entry.part == 'all' and entry.network in shipped_recipes() else None


def entry_of(source: str) -> Published | None:
    """Entry of the list with the name or address `source`; None without one."""
    return PUBLISHED.get(source) or next((entry for entry in PUBLISHED.values() if entry.address == source), None)
