"""PaddleOCR's configurations run as they are. The texts restate what its published files say; what must come out was taken from
the objects that PaddleOCR 2.7 builds from those files, and from its tables of learning rates.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from mutations import mutated, translated
from phalanx.config.read import ConfigError, to_plain
from phalanx.engine.job import open_job
from phalanx.engine.optim.schedule import Schedule
from phalanx.families.recognition.characters import SHORT_DICTIONARIES, BuiltIn
from phalanx.families.table.tokens import CHINESE, PUBLISHED
from phalanx.paddle.configs import paddleocr
from phalanx.paddle.configs.dialect import Reading
from phalanx.paddle.configs.paddleocr_text import DICTIONARIES

GLOBAL = """
Global:
  use_gpu: true
  epoch_num: {epochs}
  log_smooth_window: 20
  print_batch_step: 10
  save_model_dir: ./output
  save_epoch_step: 3
  eval_batch_step: [0, 2000]
  cal_metric_during_train: true
  pretrained_model:
  checkpoints:
  use_visualdl: false
  character_dict_path: {dictionary}
  max_text_length: &max_text_length 25
  use_space_char: {space}
"""
SVTR = """
algorithm: SVTR_LCNet
Transform:
Backbone: {name: MobileNetV1Enhance, scale: 0.5, last_conv_stride: [1, 2], last_pool_type: avg, last_pool_kernel_size: [2, 2]}
Head:
  name: MultiHead
  head_list:
  - CTCHead:
      Neck: {name: svtr, dims: 64, depth: 2, hidden_dims: 120, use_guide: True}
      Head: {fc_decay: 0.00001}
  - SARHead: {enc_dim: 512, max_text_length: *max_text_length}
"""
SVTR_DATA = """
Train:
  dataset:
    name: SimpleDataSet
    data_dir: ./train_data/
    ext_op_transform_idx: 1
    label_file_list: [./train_data/train_list.txt]
    transforms:
    - DecodeImage: {img_mode: BGR, channel_first: false}
    - RecConAug: {prob: 0.5, ext_data_num: 2, image_shape: [48, 320, 3]}
    - RecAug:
    - MultiLabelEncode:
    - RecResizeImg: {image_shape: [3, 48, 320]}
    - KeepKeys: {keep_keys: [image, label_ctc, label_sar, length, valid_ratio]}
  loader: {shuffle: true, batch_size_per_card: 128, drop_last: true, num_workers: 4}
Eval:
  dataset:
    name: SimpleDataSet
    data_dir: ./train_data
    label_file_list: [./train_data/val_list.txt]
    transforms:
    - DecodeImage: {img_mode: BGR, channel_first: false}
    - MultiLabelEncode:
    - RecResizeImg: {image_shape: [3, 48, 320]}
    - KeepKeys: {keep_keys: [image, label_ctc, label_sar, length, valid_ratio]}
  loader: {shuffle: false, drop_last: false, batch_size_per_card: 128, num_workers: 4}
"""


def indented(text: str, columns: int) -> str:
    return text.strip().replace('\n', '\n' + ' ' * columns)


def settings(epochs: int, dictionary: str = '', space: bool = True) -> str:
    return GLOBAL.lstrip().format(epochs=epochs, dictionary=dictionary, space=space)


CRNN = (
    settings(72, space=False)
    + """
Optimizer: {name: Adam, beta1: 0.9, beta2: 0.999, lr: {learning_rate: 0.0005}, regularizer: {name: L2, factor: 0}}
Architecture:
  model_type: rec
  algorithm: CRNN
  Transform:
  Backbone: {name: MobileNetV3, scale: 0.5, model_name: large}
  Neck: {name: SequenceEncoder, encoder_type: rnn, hidden_size: 96}
  Head: {name: CTCHead, fc_decay: 0}
Loss: {name: CTCLoss}
PostProcess: {name: CTCLabelDecode}
Metric: {name: RecMetric, main_indicator: acc}
Train:
  dataset:
    name: LMDBDataSet
    data_dir: ./data_lmdb_release/training/
    transforms: &transforms
    - DecodeImage: {img_mode: BGR, channel_first: False}
    - CTCLabelEncode:
    - RecResizeImg: {image_shape: [3, 32, 100]}
    - KeepKeys: {keep_keys: [image, label, length]}
  loader: {shuffle: False, batch_size_per_card: 256, drop_last: True, num_workers: 8}
Eval:
  dataset: {name: LMDBDataSet, data_dir: ./data_lmdb_release/validation/, transforms: *transforms}
  loader: {shuffle: False, drop_last: False, batch_size_per_card: 256, num_workers: 4}
"""
)
SVTR_REC = f"""{settings(500, 'ppocr/utils/en_dict.txt')}
Optimizer:
  name: Adam
  beta1: 0.9
  beta2: 0.999
  lr: {{name: Cosine, learning_rate: 0.001, warmup_epoch: 5}}
  regularizer: {{name: L2, factor: 3.0e-05}}
Architecture:
  model_type: rec
  {indented(SVTR, 2)}
Loss: {{name: MultiLoss, loss_config_list: [{{CTCLoss: }}, {{SARLoss: }}]}}
PostProcess: {{name: CTCLabelDecode}}
Metric: {{name: RecMetric, main_indicator: acc, ignore_space: False}}
{SVTR_DATA}"""
DISTILLED = f"""{settings(800, 'ppocr/utils/ppocr_keys_v1.txt')}
Optimizer:
  name: Adam
  lr: {{name: Piecewise, decay_epochs: [700, 800], values: [0.0005, 0.00005], warmup_epoch: 5}}
  regularizer: {{name: L2, factor: 3.0e-05}}
Architecture:
  model_type: &model_type rec
  name: DistillationModel
  algorithm: Distillation
  Models:
    Teacher:
      pretrained:
      freeze_params: false
      return_all_feats: true
      model_type: *model_type
      {indented(SVTR, 6)}
    Student:
      pretrained:
      freeze_params: false
      return_all_feats: true
      model_type: *model_type
      {indented(SVTR, 6)}
Loss:
  name: CombinedLoss
  loss_config_list:
  - DistillationDMLLoss: &dml
      weight: 1.0
      act: softmax
      use_log: true
      model_name_pairs: [[Student, Teacher]]
      key: head_out
      multi_head: True
      dis_head: ctc
      name: dml_ctc
  - DistillationDMLLoss: {{<<: *dml, weight: 0.5, dis_head: sar, name: dml_sar}}
  - DistillationDistanceLoss: {{weight: 1.0, mode: l2, model_name_pairs: [[Student, Teacher]], key: backbone_out}}
  - DistillationCTCLoss: {{weight: 1.0, model_name_list: [Student, Teacher], key: head_out, multi_head: True}}
  - DistillationSARLoss: {{weight: 1.0, model_name_list: [Student, Teacher], key: head_out, multi_head: True}}
PostProcess: {{name: DistillationCTCLabelDecode, model_name: [Student, Teacher], key: head_out, multi_head: True}}
Metric: {{name: DistillationMetric, base_metric_name: RecMetric, main_indicator: acc, key: Student, ignore_space: False}}
{SVTR_DATA}"""
PPOCRV4_REC = f"""{settings(200, 'ppocr/utils/en_dict.txt')}
Optimizer:
  name: Adam
  beta1: 0.9
  beta2: 0.999
  lr: {{name: Cosine, learning_rate: 0.001, warmup_epoch: 5}}
  regularizer: {{name: L2, factor: 3.0e-05}}
Architecture:
  model_type: rec
  algorithm: SVTR_LCNet
  Transform:
  Backbone: {{name: PPLCNetV3, scale: 0.95}}
  Head:
    name: MultiHead
    head_list:
    - CTCHead:
        Neck: {{name: svtr, dims: 120, depth: 2, hidden_dims: 120, kernel_size: [1, 3], use_guide: True}}
        Head: {{fc_decay: 0.00001}}
    - NRTRHead: {{nrtr_dim: 384, max_text_length: *max_text_length}}
Loss: {{name: MultiLoss, loss_config_list: [{{CTCLoss: }}, {{NRTRLoss: }}]}}
PostProcess: {{name: CTCLabelDecode}}
Metric: {{name: RecMetric, main_indicator: acc}}
Train:
  dataset:
    name: MultiScaleDataSet
    ds_width: false
    data_dir: ./train_data/
    ext_op_transform_idx: 1
    label_file_list: [./train_data/train_list.txt]
    transforms:
    - DecodeImage: {{img_mode: BGR, channel_first: false}}
    - RecConAug: {{prob: 0.5, ext_data_num: 2, image_shape: [48, 320, 3], max_text_length: *max_text_length}}
    - RecAug:
    - MultiLabelEncode: {{gtc_encode: NRTRLabelEncode}}
    - KeepKeys: {{keep_keys: [image, label_ctc, label_gtc, length, valid_ratio]}}
  sampler:
    name: MultiScaleSampler
    scales: [[320, 32], [320, 48], [320, 64]]
    first_bs: &bs 128
    fix_bs: false
    divided_factor: [8, 16]
    is_training: True
  loader: {{shuffle: true, batch_size_per_card: *bs, drop_last: true, num_workers: 8}}
Eval:
  dataset:
    name: SimpleDataSet
    data_dir: ./train_data
    label_file_list: [./train_data/val_list.txt]
    transforms:
    - DecodeImage: {{img_mode: BGR, channel_first: false}}
    - MultiLabelEncode: {{gtc_encode: NRTRLabelEncode}}
    - RecResizeImg: {{image_shape: [3, 48, 320]}}
    - KeepKeys: {{keep_keys: [image, label_ctc, label_gtc, length, valid_ratio]}}
  loader: {{shuffle: false, drop_last: false, batch_size_per_card: 128, num_workers: 4}}
"""
LIGHT_SVTR = 'Neck: {name: lightsvtr, dims: 120, depth: 2, mlp_ratio: 2.0, local_kernel: 7}'
PPOCRV6_REC = (  # small, as published but for its dictionary
    PPOCRV4_REC.replace('{name: PPLCNetV3, scale: 0.95}', '{name: PPLCNetV4, use_rep: true, stem_type: branch}')
    .replace('Neck: {name: svtr, dims: 120, depth: 2, hidden_dims: 120, kernel_size: [1, 3], use_guide: True}', LIGHT_SVTR)
    .replace('learning_rate: 0.001', 'learning_rate: 0.0005')
)
PPOCRV6_MEDIUM_REC = PPOCRV6_REC.replace('use_rep: true, stem_type: branch', 'model_size: medium').replace(
    LIGHT_SVTR, 'Neck: {name: lightsvtr, dims: 192, depth: 2, mlp_ratio: 4.0, local_kernel: 7, use_guide: false}'
)
PPOCRV6_TINY_REC = (
    PPOCRV6_REC.replace('use_rep: true, stem_type: branch', 'model_size: tiny')
    .replace(LIGHT_SVTR, 'Neck: {name: reshape}')
    .replace('{fc_decay', '{mid_channels: 80, use_guide: true, fc_decay')
)
SLANET = """
Global:
  epoch_num: 100
  print_batch_step: 20
  save_epoch_step: 400
  eval_batch_step: [0, 1000]
  pretrained_model:
  character_dict_path: ppocr/utils/dict/table_structure_dict.txt
  max_text_length: &max_text_length 500
  box_format: &box_format xyxy
  use_sync_bn: True
Optimizer:
  name: Adam
  clip_norm: 5.0
  lr: {name: Piecewise, learning_rate: 0.001, decay_epochs: [40, 50], values: [0.001, 0.0001, 0.00005]}
  regularizer: {name: L2, factor: 0.00000}
Architecture:
  model_type: table
  algorithm: SLANet
  Backbone: {name: PPLCNet, scale: 1.0, pretrained: true, use_ssld: true}
  Neck: {name: CSPPAN, out_channels: 96}
  Head: {name: SLAHead, hidden_size: 256, max_text_length: *max_text_length, loc_reg_num: 4}
Loss: {name: SLALoss, structure_weight: 1.0, loc_weight: 2.0, loc_loss: smooth_l1}
PostProcess: {name: TableLabelDecode, merge_no_span_structure: True}
Metric: {name: TableMetric, main_indicator: acc, compute_bbox_metric: False, loc_reg_num: 4, box_format: *box_format}
Train:
  dataset:
    name: PubTabDataSet
    data_dir: train_data/pubtabnet/train/
    label_file_list: [train_data/pubtabnet/PubTabNet_train.jsonl]
    transforms: &transforms
    - DecodeImage: {img_mode: BGR, channel_first: False}
    - TableLabelEncode: {merge_no_span_structure: True, replace_empty_cell_token: False, loc_reg_num: 4, max_text_length: 500}
    - TableBoxEncode: {in_box_format: *box_format, out_box_format: *box_format}
    - ResizeTableImage: {max_len: 488}
    - NormalizeImage: {scale: 1./255., mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], order: hwc}
    - PaddingTableImage: {size: [488, 488]}
    - ToCHWImage:
    - KeepKeys: {keep_keys: [image, structure, bboxes, bbox_masks, length, shape]}
  loader: {shuffle: True, batch_size_per_card: 48, drop_last: True, num_workers: 1}
Eval:
  dataset:
    name: PubTabDataSet
    data_dir: train_data/pubtabnet/val/
    label_file_list: [train_data/pubtabnet/PubTabNet_val.jsonl]
    transforms: *transforms
  loader: {shuffle: False, drop_last: False, batch_size_per_card: 48, num_workers: 1}
"""
SLANET_CH = (
    SLANET.replace('epoch_num: 100', 'epoch_num: 400')
    .replace('table_structure_dict.txt', 'table_structure_dict_ch.txt')
    .replace('&box_format xyxy', '&box_format xyxyxyxy')
    .replace('loc_reg_num: 4', 'loc_reg_num: 8')
    .replace('8, box_format: *box_format}', '8, box_format: *box_format, del_thead_tbody: True}')
    .replace(
        '{name: Piecewise, learning_rate: 0.001, decay_epochs: [40, 50], values: [0.001, 0.0001, 0.00005]}',
        '{learning_rate: 0.001}',
    )
    .replace('train_data/pubtabnet/PubTabNet_train.jsonl', 'train_data/table/train.txt')
    .replace('train_data/pubtabnet/PubTabNet_val.jsonl', 'train_data/table/val.txt')
    .replace('train_data/pubtabnet', 'train_data/table')
)
DET_STEPS = """    - NormalizeImage: {scale: 1./255., mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], order: hwc}
    - ToCHWImage:"""
DB = """Global:
  use_gpu: true
  epoch_num: {epochs}
  log_smooth_window: 20
  print_batch_step: 10
  save_epoch_step: 1200
  eval_batch_step: [0, 2000]
  cal_metric_during_train: false
  pretrained_model: {pretrained}
  use_visualdl: false
  save_res_path: ./output/det_db/predicts_db.txt
Architecture:
  model_type: det
  algorithm: DB
  Transform:
  Backbone: {backbone}
  Neck: {neck}
  Head: {{name: DBHead, k: 50}}
Loss: {{name: DBLoss, balance_loss: true, main_loss_type: DiceLoss, alpha: 5, beta: 10, ohem_ratio: 3}}
Optimizer:
  name: Adam
  beta1: 0.9
  beta2: 0.999
  lr: {lr}
  regularizer: {{name: L2, factor: {decay}}}
PostProcess: {{name: DBPostProcess, thresh: 0.3, box_thresh: 0.6, max_candidates: 1000, unclip_ratio: 1.5}}
Metric: {{name: DetMetric, main_indicator: hmean}}
Train:
  dataset:
    name: SimpleDataSet
    data_dir: ./train_data/icdar2015/text_localization/
    label_file_list: [./train_data/icdar2015/text_localization/train_icdar2015_label.txt]
    ratio_list: [1.0]
    transforms:
    - DecodeImage: {{img_mode: BGR, channel_first: False}}
    - DetLabelEncode:{more}
    - IaaAugment:
        augmenter_args:
        - {{type: Fliplr, args: {{p: 0.5}}}}
        - {{type: Affine, args: {{rotate: [-10, 10]}}}}
        - {{type: Resize, args: {{size: [0.5, 3]}}}}
    - EastRandomCropData: {{size: [{crop}, {crop}], max_tries: 50, keep_ratio: true}}
    - MakeBorderMap: {{shrink_ratio: 0.4, thresh_min: 0.3, thresh_max: 0.7{growing}}}
    - MakeShrinkMap: {{shrink_ratio: 0.4, min_text_size: 8{growing}}}
{steps}
    - KeepKeys: {{keep_keys: [image, threshold_map, threshold_mask, shrink_map, shrink_mask]}}
  loader: {{shuffle: True, drop_last: False, batch_size_per_card: 16, num_workers: 8, use_shared_memory: False}}
Eval:
  dataset:
    name: SimpleDataSet
    data_dir: ./train_data/icdar2015/text_localization/
    label_file_list: [./train_data/icdar2015/text_localization/test_icdar2015_label.txt]
    transforms:
    - DecodeImage: {{img_mode: BGR, channel_first: False}}
    - DetLabelEncode:
    - DetResizeForTest:{resized}
{steps}
    - KeepKeys: {{keep_keys: [image, shape, polys, ignore_tags]}}
  loader: {{shuffle: False, drop_last: False, batch_size_per_card: 1, num_workers: 8, use_shared_memory: False}}
"""
DB_MV3 = DB.format(
    epochs=1200,
    pretrained='./pretrain_models/MobileNetV3_large_x0_5_pretrained',
    backbone='{name: MobileNetV3, scale: 0.5, model_name: large}',
    neck='{name: DBFPN, out_channels: 256}',
    lr='{learning_rate: 0.001}',
    decay=0,
    more='',
    crop=640,
    growing='',
    resized=' {image_shape: [736, 1280]}',
    steps=DET_STEPS,
)
DB_R50 = DB_MV3.replace('MobileNetV3_large_x0_5_pretrained', 'ResNet50_vd_ssld_pretrained').replace(
    '{name: MobileNetV3, scale: 0.5, model_name: large}', '{name: ResNet_vd, layers: 50}'
)
PP_OCR_DET = {  # of version 3 and of version 4
    'epochs': 500,
    'neck': '{name: RSEFPN, out_channels: 96, shortcut: True}',
    'lr': '{name: Cosine, learning_rate: 0.001, warmup_epoch: 2}',
    'decay': '5.0e-05',
    'resized': '',
    'steps': DET_STEPS,
}
PP_OCRV3_DET = DB.format(
    **PP_OCR_DET,
    pretrained='https://paddleocr.bj.bcebos.com/pretrained/MobileNetV3_large_x0_5_pretrained.pdparams',
    backbone='{name: MobileNetV3, scale: 0.5, model_name: large, disable_se: True}',
    more='',
    crop=960,
    growing='',
)
PP_OCRV4_DET = DB.format(
    **PP_OCR_DET,
    pretrained='https://paddleocr.bj.bcebos.com/pretrained/PPLCNetV3_x0_75_ocr_det.pdparams',
    backbone='{name: PPLCNetV3, scale: 0.75, det: True}',
    more='\n    - CopyPaste:',
    crop=640,
    growing=', total_epoch: 500',
)
JITTER = 'ColorJitter: {brightness: 0.4, contrast: 0.4, saturation: 0.7, hue: 0.1}'
PERSPECTIVE = (
    'RandomPerspective: {prob: 0.3, scale: 0.0, shear: 20.0, perspective: 0.001, fit_output: true, fill_value: [0, 0, 0]}'
)
FOCAL = 'DiceFocalLoss, focal_alpha: 0.25, focal_gamma: 2.5, aux_weight_p4: 0.2, aux_weight_p3: 0.3, aux_weight_p2: 0.4'
PP_OCRV6_DET = (
    DB.format(
        **PP_OCR_DET | {'neck': '{name: UniRepLKFPN, out_channels: 96, dilated_kernel_size: 7, shortcut: true}'},
        pretrained='null',
        backbone='{name: PPLCNetV4, det: true, model_size: small}',
        more=f'\n    - CopyPaste:\n    - {JITTER}',
        crop=640,
        growing=', total_epoch: 500',
    )
    .replace('  use_gpu: true', '  use_gpu: true\n  use_ema: true\n  ema_decay: 0.9997\n  ema_decay_type: threshold')
    .replace('{name: DBHead, k: 50}', '{name: DBHead, k: 50, fix_nan: true}')
    .replace('balance_loss: true, main_loss_type: DiceLoss', f'main_loss_type: {FOCAL}')
)
DETECTORS = {
    'db_mv3': DB_MV3,
    'db_r50': DB_R50,
    'ppocrv3_det': PP_OCRV3_DET,
    'ppocrv4_det': PP_OCRV4_DET,
    'ppocrv6_det': PP_OCRV6_DET,
}
FILES = {
    'crnn': CRNN,
    'svtr': SVTR_REC,
    'ppocrv4': PPOCRV4_REC,
    'ppocrv6': PPOCRV6_REC,
    'ppocrv6_medium': PPOCRV6_MEDIUM_REC,
    'ppocrv6_tiny': PPOCRV6_TINY_REC,
    'distilled': DISTILLED,
    'slanet': SLANET.lstrip(),
    'slanet_ch': SLANET_CH.lstrip(),
    **DETECTORS,
}

SLANET_MODEL = {
    'name': 'slanet',
    'backbone': {'name': 'pp_lcnet', 'scale': 1.0},
    'channels': 96,
    'hidden': 256,
    'corners': False,
}
CASES = json.loads((Path(__file__).parents[2] / 'golden' / 'data' / 'lr_schedules.json').read_text())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / f'{name}.yml').write_text(text)
    dictionaries = {
        'en_dict.txt': SHORT_DICTIONARIES['en'],
        'ppocr_keys_v1.txt': 'abc',
        'dict/table_structure_dict.txt': PUBLISHED,
    }
    dictionaries['dict/table_structure_dict_ch.txt'] = CHINESE
    (tmp_path / 'ppocr/utils/dict').mkdir(parents=True)
    for name, words in dictionaries.items():
        (tmp_path / 'ppocr/utils' / name).write_text(''.join(f'{word}\n' for word in words))
    return tmp_path


def recipe(name: str, *assignments: str) -> dict[str, Any]:
    resolved: dict[str, Any] = to_plain(open_job(f'{name}.yml', [(text, text) for text in assignments]).resolved)
    return resolved


def schedule(*assignments: str, steps_per_epoch: int = 10) -> Schedule:
    """Of an epoch of ten steps, as PaddleOCR's tables mostly have them."""
    job = open_job('svtr.yml', [(text, text) for text in assignments]).recipe
    steps = int(job.train.epochs or 0) * steps_per_epoch
    return job.schedule(job.optimizer.keywords['lr'], steps, float(steps_per_epoch))


def without_nulls(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def test_crnn_comes_out_as_published() -> None:
    got = recipe('crnn')
    mobilenet = {'name': 'mobilenet_v3', 'size': 'large', 'scale': 0.5, 'squeeze': True}
    crnn = {'name': 'crnn', 'backbone': mobilenet, 'hidden_size': 96}
    assert (got['task'], got['model']) == ('recognition', crnn)
    assert got['loss'] == {'name': 'ctc', 'focal': False}
    # Without a dictionary there are 36 characters, and a space is no use.
    characters = {'dictionary': 'alphanumeric', 'space': False, 'lower_case': None, 'max_length': 25}
    assert without_nulls(got['characters']) == without_nulls(characters)
    lmdb = {'name': 'lmdb_sets', 'root': 'data_lmdb_release', 'train': ['training'], 'eval': ['validation']}
    assert lmdb.items() <= got['data'].items()
    assert (got['image_size'], got['keep_ratio'], got['concatenate'], got['transforms']) == ([32, 100], True, None, [])
    assert got['optimizer'] == {
        'name': 'adam',
        'lr': 5e-4,
        'betas': [0.9, 0.999],
        'eps': 1e-8,
        'weight_decay': 0.0,
        'fused': True,
    }
    assert (got['schedule']['name'], got['clip'], got['parameters']['rules']) == ('constant', None, [])
    train = {'epochs': 72, 'batch_size_per_rank': 256, 'workers': 8, 'seed': 1024}
    assert train.items() <= got['train'].items()
    assert (got['evaluate']['every'], got['evaluate']['batch_size'], got['checkpoint']['every_epochs']) == (2000, 256, 1)
    assert got['norm_sync'] == 'off'  # use_sync_bn is off by default
    assert got['metric'] == {'name': 'reading', 'ignore_space': True, 'ignore_case': False, 'alphanumeric_only': False}


def test_svtr_lcnet_comes_out_as_published() -> None:
    got = recipe('svtr')
    assert {
        'name': 'svtr_lcnet',
        'backbone': {'name': 'mobilenet_v1_enhance', 'scale': 0.5},
        'neck_channels': 64,
        'depth': 2,
        'hidden_size': 120,
        'use_guide': True,
        'sar_size': 512,
    }.items() <= got['model'].items()
    assert got['loss'] == {'name': 'multi', 'ctc_weight': 1.0, 'sar_weight': 1.0, 'focal': False}
    expected = {'dictionary': 'ppocr/utils/en_dict.txt', 'space': True, 'lower_case': False, 'max_length': 25}
    assert without_nulls(got['characters']) == expected
    files = {'name': 'label_files', 'root': 'train_data', 'train': ['train_list.txt'], 'eval': ['val_list.txt']}
    assert files.items() <= got['data'].items()
    assert got['image_size'] == [48, 320]
    assert got['concatenate'] == {'image_size': [48, 320], 'lines': 2, 'probability': 0.5, 'max_length': 25}
    assert set(got['transforms'][0].values()) == {'rec_aug', 0.4}
    # The norms of its backbone do not decay, its last layer has a decay of its own.
    assert [(rule['match'], rule['weight_decay']) for rule in got['parameters']['rules']] == [
        ('backbone.*.norm.*', 0.0),
        ('head.*', 1e-5),
    ]
    assert got['metric']['ignore_space'] is False


def test_ppocrv4_comes_out_as_published() -> None:
    got = recipe('ppocrv4')
    assert {
        'name': 'svtr_lcnetv3',
        'backbone': {'name': 'pp_lcnet_v3', 'scale': 0.95, 'merged': False},
        'neck_channels': 120,
        'depth': 2,
        'hidden_size': 120,
        'use_guide': True,
        'nrtr_size': 384,
        'nrtr_depth': 4,
    }.items() <= got['model'].items()
    assert got['loss'] == [{'name': 'ctc', 'focal': False}, {'name': 'nrtr', 'smoothing': 0.1}]
    assert got['loss_coefficients'] == [1.0, 1.0]
    assert (got['image_size'], got['train_image_sizes'], got['keep_ratio']) == (
        [48, 320],
        [[32, 320], [48, 320], [64, 320]],
        True,
    )
    assert got['concatenate'] == {'image_size': [48, 320], 'lines': 2, 'probability': 0.5, 'max_length': 25}
    files = {'name': 'label_files', 'root': 'train_data', 'train': ['train_list.txt'], 'eval': ['val_list.txt']}
    assert files.items() <= got['data'].items()
    # Norms of its backbone do not decay, but for those that stand for the map itself; its factors learn slowly.
    assert [(rule['match'], rule['weight_decay'], rule['lr_factor']) for rule in got['parameters']['rules']] == [
        ('backbone.*.norm.*', 0.0, 1.0),
        ('head.*', 1e-5, 1.0),
        ('backbone.*.before.*', None, 0.1),
        ('backbone.*.after.*', None, 0.1),
    ]


@pytest.mark.parametrize(
    ('name', 'size', 'channels', 'ratio'), [('ppocrv6', 'small', 120, 2), ('ppocrv6_medium', 'medium', 192, 4)]
)
def test_ppocrv6_comes_out_as_published(name: str, size: str, channels: int, ratio: int) -> None:
    """Without `use_guide`, which is off by default in PaddleOCR, CTC trains the backbone, too."""
    model = recipe(name)['model']
    assert model['name'] == 'svtr_lcnetv4'
    assert model['backbone'] == {'name': 'pp_lcnet_v4', 'size': size}
    assert (model['hidden_size'], model['depth'], model['mlp_ratio'], model['use_guide']) == (channels, 2, ratio, False)
    assert (model['nrtr_size'], model['nrtr_depth']) == (384, 4)


@pytest.mark.parametrize(
    'backbone', ['model_size: tiny', 'use_rep: true, stem_type: simple, config_name: tiny, stem_channels: 48']
)
def test_ppocrv6_tiny_comes_out_as_published(backbone: str) -> None:
    model = recipe('ppocrv6_tiny', f'Architecture.Backbone={{name: PPLCNetV4, {backbone}}}')['model']
    assert (model['name'], model['hidden_size'], model['nrtr_size']) == ('conv_lcnetv4', 80, 384)
    assert model['backbone'] == {'name': 'pp_lcnet_v4', 'size': 'tiny'}


@pytest.mark.parametrize(
    ('assignment', 'sizes', 'batch_size'),
    [
        ('is_training=true', [[32, 320], [48, 320], [64, 320]], 92),  # 128, 85 and 64 there
        ('fix_bs=true', [[32, 320], [48, 320], [64, 320]], 128),
        ('scales=[[325, 40], [160, 32]]', [[32, 320], [32, 160]], 244),  # of 325 x 40 pixels 128, so 162 and 325
        ('scales=[48, 64]', [[48, 48], [64, 64]], 100),  # 128 and 72
    ],
)
def test_a_step_has_the_mean_batch_of_the_multi_scale_sampler(assignment: str, sizes: list[list[int]], batch_size: int) -> None:
    """Sides are rounded down to multiples of 8 and 16, batches to whole samples of as many pixels as the first."""
    got = recipe('ppocrv4', f'Train.sampler.{assignment}')
    assert (got['train_image_sizes'], got['train']['batch_size_per_rank']) == (sizes, batch_size)
    notes = ' '.join(open_job('ppocrv4.yml', [(f'Train.sampler.{assignment}', 'test')]).notes)
    assert ('rounded down to multiples of 8 and 16' in notes) == ('325' in assignment)
    assert ('Train.sampler.first_bs: every step has' in notes) == ('fix_bs' not in assignment)


def test_settings_of_the_multi_language_recognisers_are_noted() -> None:
    """Of PP-OCRv5: what Global says anyway, and long lines in an evaluation."""
    steps = '[{DecodeImage: {img_mode: BGR}}, {MultiLabelEncode: {gtc_encode: NRTRLabelEncode, max_text_length: 1000}}, '
    steps += '{RecResizeImg: {image_shape: [3, 48, 320], eval_mode: true}}]'
    job = open_job('ppocrv4.yml', [(f'Eval.dataset.transforms={steps}', 'test'), ('Global.model_name=latin', 'test')])
    ignored = [note for note in job.notes if 'is ignored' in note]
    for key in ('MultiLabelEncode.max_text_length', 'RecResizeImg.eval_mode', 'Global.model_name'):
        assert any(f'{key} is ignored' in note for note in ignored), key
    with pytest.raises(ConfigError, match=r'ds_width: True has no counterpart'):
        open_job('ppocrv4.yml', [('Train.dataset.ds_width=true', 'test')])


def test_the_distillation_comes_out_as_published() -> None:
    got = recipe('distilled')
    assert list(got['networks']) == ['teacher'] and got['networks']['teacher'] == got['model']
    pair = ['student', 'teacher']
    assert got['between'] == [
        {'name': 'dml', 'between': pair, 'output': 'ctc', 'classes': -1, 'weight': 1.0},
        {'name': 'dml', 'between': pair, 'output': 'sar', 'classes': -1, 'weight': 0.5},
        {'name': 'feature_distance', 'between': pair, 'output': 'features', 'weight': 1.0},
    ]
    assert got['loss']['name'] == 'multi' and got['frozen'] == []
    assert [rule['match'] for rule in got['parameters']['rules']] == [
        'networks.teacher.backbone.*.norm.*',
        'networks.teacher.head.*',
        'networks.student.backbone.*.norm.*',
        'networks.student.head.*',
    ]
    piecewise = {'name': 'piecewise', 'boundary_epochs': [705], 'factors': [0.1], 'warmup_epochs': 5, 'warmup_start_lr': 0}
    assert without_nulls(got['schedule']) == piecewise


def test_slanet_comes_out_as_published() -> None:
    got = recipe('slanet')
    assert (got['task'], got['model']) == ('table', SLANET_MODEL)
    assert {
        'name': 'pubtabnet',
        'root': 'train_data/pubtabnet',
        'train': 'PubTabNet_train.jsonl',
        'eval': 'PubTabNet_val.jsonl',
        'train_images': 'train',
        'eval_images': 'val',
    }.items() <= got['data'].items()
    assert {
        'image_size': 488,
        'max_length': 500,
        'merge_cells': True,
        'name_empty_cells': False,
        'loss_coefficients': [1.0, 2.0],
        'mean': [0.485, 0.456, 0.406],
        'std': [0.229, 0.224, 0.225],
        'norm_sync': 'global',
        'clip': {'norm': 5.0, 'per_tensor': True},
    }.items() <= got.items()
    assert [loss['name'] for loss in got['loss']] == ['structure', 'smooth_l1']
    assert (got['schedule']['boundary_epochs'], got['schedule']['factors']) == ([40, 50], [0.1, 0.05])
    (note,) = [note for note in open_job('slanet.yml').notes if 'pretrained' in note]
    assert 'Architecture.Backbone.pretrained is ignored' in note and 'train.init_part=backbone' in note


def test_slanet_ch_comes_out_as_published_and_as_the_shipped_recipe() -> None:
    got, ours = recipe('slanet_ch'), to_plain(open_job('SLANet_ch').resolved)
    assert got['model'] == {**SLANET_MODEL, 'corners': True} == ours['model']
    for key in ('tokens', 'metric', 'image_size', 'max_length', 'merge_cells', 'loss', 'loss_coefficients', 'clip'):
        assert got[key] == ours[key], key
    assert (got['tokens'], got['metric']['ignore_sections'], got['train']['epochs']) == (
        'chinese',
        True,
        ours['train']['epochs'],
    )
    assert got['schedule']['name'] == ours['schedule']['name'] == 'constant'
    network = open_job('slanet_ch.yml').task.model()
    shapes = {name: tuple(value.shape) for name, value in network.state_dict().items() if name.startswith(('head.s', 'head.b'))}
    assert shapes['head.structure.1.weight'] == (50, 256) and shapes['head.box.1.weight'] == (8, 256)


@pytest.mark.parametrize(
    ('name', 'shipped', 'differs'),
    [
        ('db_mv3', 'det_mv3_db', {}),
        ('db_r50', 'det_r50_vd_db', {'box_threshold': 0.6}),  # its file has 0.7; the texts here share one number
        ('ppocrv3_det', 'ch_PP-OCRv3_det_student', {}),
        ('ppocrv4_det', 'ch_PP-OCRv4_det_mobile', {}),
    ],
)
def test_detectors_come_out_as_the_shipped_recipes_of_the_same_names(name: str, shipped: str, differs: dict[str, Any]) -> None:
    got, ours = recipe(name), to_plain(open_job(shipped).resolved)
    assert got['data'].pop('root') == 'train_data/icdar2015/text_localization'
    ours['data'].pop('root')
    ours['post_processing'] |= differs
    ours['loss'] = [ours['loss']]
    for key in ('task', 'model', 'loss', 'data', 'transforms', 'eval_transforms', 'targets', 'post_processing', 'mean', 'std'):
        assert got[key] == ours[key], key
    for key in ('optimizer', 'schedule', 'parameters'):
        assert got[key] == ours[key], key
    assert got['main_metric'] == open_job(shipped).task.main_metric == 'hmean'
    assert got['norm_sync'] == 'off'  # as there; ours does not depend on the number of ranks
    assert (got['train']['epochs'], got['train']['init_part']) == (ours['train']['epochs'], 'backbone')


def test_the_detector_of_ppocrv6_is_read_but_for_what_phalanx_lacks() -> None:
    Path('whole.yml').write_text(PP_OCRV6_DET.replace(f'- {JITTER}', f'- {JITTER}\n    - {PERSPECTIVE}'))
    with pytest.raises(ConfigError) as error:
        recipe('whole', 'Architecture.Head.aux_in_channels=96')
    problems = str(error.value)
    assert 'Architecture.Head.aux_in_channels: auxiliary heads of the training have no counterpart in Phalanx' in problems
    assert 'leave it out (-o Architecture.Head.aux_in_channels=0)' in problems
    assert 'RandomPerspective: shears and tilts pages, which has no counterpart in Phalanx; remove this step' in problems
    with pytest.raises(ConfigError, match='the neck of PP-OCRv6 medium has no counterpart in Phalanx'):
        recipe('ppocrv6_det', 'Architecture.Neck={name: UniRepLKPAN, out_channels: 256, intracl: true}')


def test_without_these_the_detector_of_ppocrv6_has_its_network_and_loss() -> None:
    got = recipe('ppocrv6_det')
    shipped = to_plain(open_job('PP-OCRv6_small_det').resolved)
    assert got['model'] == shipped['model'] | {
        'backbone': {'name': 'pp_lcnet_v4', 'size': 'small'},
        'neck_kernel': 7,
        'steepness': 50,
        'head': 'db',
        'head_kernel': 3,
    }
    assert got['loss'][0]['main'] == 'dice_focal'
    assert (got['loss'][0]['focal_alpha'], got['loss'][0]['focal_gamma']) == (0.25, 2.5)
    assert {'decay': 0.9997, 'kind': 'threshold', 'skip': []}.items() <= got['ema'].items()
    jitter = next(each for each in got['transforms'] if each['name'] == 'random_distort')
    assert jitter == {
        'name': 'random_distort',
        'brightness': 0.4,
        'contrast': 0.4,
        'saturation': 0.7,
        'hue': 25.6,
        **{f'{name}_probability': 1.0 for name in ('brightness', 'contrast', 'saturation', 'hue')},
    }
    got = recipe('db_mv3', 'Train.dataset.transforms.2.IaaAugment.augmenter_args.1.args.p=0.5')
    assert got['transforms'][1] == {'name': 'random_rotate', 'degrees': [-10, 10], 'probability': 0.5}


def test_detectors_of_release_3_draw_from_albumentations_whose_scales_begin_at_1() -> None:
    steps = 'Train.dataset.transforms.2.IaaAugment.augmenter_args'
    flip, scale = '{type: HorizontalFlip, args: {p: 0.5}}', '{type: RandomScale, args: {scale_limit: [0.5, 3]}}'
    got = recipe('db_mv3', f'{steps}=[{flip}, {scale}]')
    assert got['transforms'][:2] == [
        {'name': 'random_flip', 'probability': 0.5},
        {'name': 'random_resize', 'scale': [1.5, 4.0]},
    ]


def test_the_defaults_of_a_detector_are_those_of_paddleocrs_constructors() -> None:
    got = recipe('db_mv3', 'PostProcess={name: DBPostProcess}', 'Train.dataset.transforms.2={IaaAugment: }')
    assert (got['post_processing']['box_threshold'], got['post_processing']['unclip_ratio']) == (0.7, 2.0)
    assert got['transforms'] == recipe('db_mv3')['transforms']


@pytest.mark.parametrize(
    ('lr', 'rates'),
    [
        # From PaddleOCR's own table for this schedule, ten steps an epoch
        (
            '{name: Cosine, learning_rate: 0.001, warmup_epoch: 5}',
            {0: 0.0, 10: 0.0002, 49: 0.00098, 50: 0.001, 250: 0.000996057350657239, 4999: 2.566864448215189e-07},
        ),
        ('{name: Piecewise, decay_epochs: [100], values: [0.0005, 0.00005], warmup_epoch: 5}', {1049: 5e-4, 1050: 5e-5}),
        ('{learning_rate: 0.01}', {0: 0.01, 4999: 0.01}),
        ('{name: Const, learning_rate: 0.01, warmup_epoch: 1}', {0: 0.0, 5: 0.005, 10: 0.01}),
        ('{name: Linear, learning_rate: 0.01, warmup_epoch: 5}', {50: 0.01, 2550: 0.005}),
        ('{name: Step, learning_rate: 0.01, step_size: 100, gamma: 0.5, warmup_epoch: 5}', {1049: 0.01, 1050: 0.005}),
        (
            '{name: MultiStepDecay, learning_rate: 0.01, milestones: [100, 200], gamma: 0.1}',
            {999: 0.01, 1000: 1e-3, 2000: 1e-4},
        ),
    ],
)
def test_schedules_give_the_rates_of_paddleocr(lr: str, rates: dict[int, float]) -> None:
    rate = schedule(f'Optimizer.lr={lr}')
    assert {step: rate(step) for step in rates} == pytest.approx(rates, rel=1e-6)


@pytest.mark.parametrize(
    ('size', 'epochs', 'gamma', 'message'),
    [
        ('0', '9', '0.5', 'Optimizer.lr.step_size: expected a number from 1 on, got 0'),
        ('1', '1000000000', '0.5', 'Optimizer.lr.step_size: 1 gives 1,000,000,000 decays of the rate; 10,000 are the most'),
        ('1', '9', '1.0e+200', 'Optimizer.lr: 9 decays by 1e+200 end at a rate that no number can hold'),
    ],
)
def test_a_rate_that_decays_too_often_is_refused_without_listing_all_decays(
    size: str, epochs: str, gamma: str, message: str
) -> None:
    lr = f'Optimizer.lr={{name: Step, learning_rate: 0.01, step_size: {size}, gamma: {gamma}}}'
    with pytest.raises(ConfigError, match=re.escape(message)):
        recipe('svtr', lr, f'Global.epoch_num={epochs}')


@pytest.mark.parametrize(
    'name',
    [
        'rec_mv3_none_bilstm_ctc',
        'rec_chinese_lite_train_v2.0',
        'ch_PP-OCRv3_rec',
        'ch_PP-OCRv3_rec_distillation',
        'en_PP-OCRv3_rec',
        'SLANet',
    ],
)
def test_the_rate_of_every_step_is_the_original_one(name: str) -> None:
    """Both the schedulers and the rates that they gave are those of PaddleOCR's own run."""
    case = CASES[name]
    assignments = (f'Global.epoch_num={case["epochs"]}', f'Optimizer.lr={json.dumps(case["original"])}')
    rate = schedule(*assignments, steps_per_epoch=case['steps_per_epoch'])
    expected = {int(step): lr for step, lr in CASES[name]['lr'].items()}
    assert {step: rate(step) for step in expected} == pytest.approx(expected, rel=1e-10, abs=1e-18)


def test_own_keys_and_recipe_keys_can_be_set() -> None:
    """Like PaddleOCR's -o; what is not a key of its sections is one of the recipe."""
    got = recipe(
        'svtr', 'Global.epoch_num=3', 'Optimizer.lr.learning_rate=0.1', 'Train.loader.batch_size_per_card=2', 'train.seed=9'
    )
    assert (got['train']['epochs'], got['train']['batch_size_per_rank'], got['train']['seed']) == (3, 2, 9)
    assert (got['optimizer']['lr'], got['schedule']['epochs']) == (0.1, 8)
    assert recipe('svtr', 'Global.use_gpu=False')['device'] == 'cpu'
    amp = recipe('svtr', 'Global.use_amp=True', 'Global.scale_loss=1024.0')['precision']
    assert amp == {'dtype': 'fp16', 'loss_scale': 1024.0, 'tf32': True}


def test_weights_are_named_without_their_ending() -> None:
    train = recipe('svtr', 'Global.pretrained_model=pretrain/best_accuracy')['train']
    assert (train['init_from'], train['init_misshapen']) == ('pretrain/best_accuracy', 'skip')


def test_what_is_ignored_is_reported_with_its_line() -> None:
    notes = open_job('crnn.yml').notes
    assert 'crnn.yml:4: Global.log_smooth_window is ignored: log lines hold means since the last one' in notes
    assert not [note for note in notes if 'checkpoints' in note]  # empty keys are not worth a line


@pytest.mark.parametrize(
    ('name', 'wrong', 'message'),
    [
        (
            'crnn',
            'Architecture.model_type=cls',
            "Architecture.model_type: 'cls' has no counterpart in Phalanx (it has rec, det, table)",
        ),
        (
            'crnn',
            'Architecture.function=ppocr.modeling.architectures.rec_model,RecModel',
            'Architecture.function: is of PaddleOCR 1; configurations of 2.0 and later are read',
        ),
        ('crnn', 'Architecture.algorithm=SRN', "Architecture.algorithm: 'SRN' has no counterpart"),
        ('crnn', 'Architecture.Backbone.small_stride=[2, 2, 2, 2]', 'Architecture.Backbone.small_stride: [2, 2, 2, 2] has no'),
        ('crnn', 'Global.epoch_nun=2', "Global.epoch_nun: not known here; did you mean 'epoch_num'?"),
        ('crnn', 'Loss.name=ACELoss', "Loss.name: 'ACELoss' has no counterpart"),
        ('crnn', 'Optimizer.name=RMSProp', "Optimizer.name: 'RMSProp' has no counterpart"),
        ('crnn', 'Optimizer.lr={name: OneCycle, learning_rate: 1}', "Optimizer.lr.name: 'OneCycle' has no counterpart"),
        (
            'crnn',
            'Optimizer.lr={name: Piecewise, decay_epochs: [1], values: [0.0, 0.1]}',
            'Optimizer.lr.values: begins with a rate of 0',
        ),
        ('crnn', 'Train.dataset.name=PGDataSet', "Train.dataset.name: 'PGDataSet' has no counterpart"),
        ('crnn', 'Train.dataset.transforms=[RecAug: ]', 'Train.dataset.transforms: RecResizeImg is missing'),
        ('crnn', 'Train.sampler={name: MultiScaleSampler}', 'Train.sampler: not known here'),
        ('ppocrv4', 'Train.sampler=null', 'Train.sampler.name: missing; Phalanx knows nothing but MultiScaleSampler'),
        ('ppocrv4', 'Loss.loss_config_list=[NRTRLoss: ]', 'Phalanx knows CTCLoss with NRTRLoss; CTCLoss is missing'),
        ('svtr', 'Architecture.Backbone.last_pool_type=max', "last_pool_type: 'max' has no counterpart in Phalanx"),
        ('svtr', 'Eval.dataset.data_dir=other', "Eval.dataset.data_dir: 'other' is not that of Train.dataset"),
        (
            'svtr',
            'Loss.loss_config_list=[CTCLoss: ]',
            'Loss.loss_config_list: Phalanx knows CTCLoss with SARLoss; SARLoss is missing',
        ),
        ('distilled', 'Architecture.Models.Student.pretrained=x', 'leave it out and set train.init_networks.student=x'),
        ('distilled', 'Loss.loss_config_list.2.DistillationDistanceLoss.mode=l1', 'DistillationDistanceLoss.mode'),
        ('slanet', 'Loss.loc_loss=giou', "loss[1].name: 'giou' is not one of"),
        ('slanet', 'Metric.loc_reg_num=8', 'Metric.loc_reg_num: 8 is not that of Global.box_format, 4'),
        ('slanet', 'Global.character_dict_path=other.txt', 'Global.character_dict_path: there is no file other.txt'),
        (
            'slanet',
            'Global.character_dict_path=crnn.yml',
            "crnn.yml has neither the tokens of PaddleOCR's table_structure_dict.txt nor",
        ),
        ('db_mv3', 'Architecture.Neck.use_asf=True', 'Architecture.Neck.use_asf: True has no counterpart'),
        ('db_mv3', 'Architecture.Head.kernel_list=[3, 3, 3]', 'knows only a kernel size followed by 2 and 2'),
        ('db_mv3', 'Train.dataset.ratio_list=[0.5]', '0.5: Phalanx takes all pages of a list'),
        ('db_mv3', 'Train.dataset.transforms.5.MakeShrinkMap.shrink_ratio=0.5', 'is not that of the other map, 0.4'),
        ('db_mv3', 'Train.dataset.transforms.2.IaaAugment.augmenter_args.0.type=Flipud', "'Flipud' has no counterpart"),
        ('db_mv3', 'Eval.dataset.transforms=[DecodeImage: {img_mode: BGR}]', 'DetResizeForTest is missing'),
        ('db_mv3', 'PostProcess.name=EASTPostProcess', "'EASTPostProcess' has no counterpart"),
        (
            'db_mv3',
            'Train.dataset.transforms.2.IaaAugment.augmenter_args=[{type: RandomScale, args: {scale_limit: [half, 1]}}]',
            "expected a number, got 'half'",
        ),
        (
            'crnn',
            'Train.dataset={name: LMDBDataSet, data_dir: /lmdb, transforms: [RecResizeImg: {image_shape: [3, 32, 100]}]}',
            'give both as absolute paths, or both as relative ones',
        ),
        ('ppocrv6', 'Architecture.Head.head_list.0.CTCHead.Neck.mlp_ratio=2.5', "mlp_ratio: expected an integer, got '2.5'"),
        ('ppocrv6', 'Architecture.Head.head_list.0.CTCHead.Neck.mlp_ratio=two', "mlp_ratio: expected an integer, got 'two'"),
        ('db_r50', 'Architecture.Backbone.layers=34', '34 has no counterpart in Phalanx (it has 18, 50)'),
        (
            'svtr',
            'Global.character_dict_path=utils/dict/en_dict.txt',
            'there is no file utils/dict/en_dict.txt; start in the folder',
        ),
        ('svtr', 'Eval.dataset.transforms.2.RecResizeImg.image_shape=[1, 48, 320]', '1 channels; Phalanx reads images of 3'),
        ('svtr', 'Architecture.Head.head_list.1.SARHead.max_text_length=30', '30 is not that of Global, 25'),
        ('slanet', 'Global.max_text_length=400', '400 is not that of TableLabelEncode, 500'),
        ('slanet', 'Architecture.Head.max_text_length=400', '400 is not that of TableLabelEncode, 500'),
    ],
)
def test_keys_without_a_counterpart_are_reported(name: str, wrong: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(name, wrong)
    assert message in str(caught.value)


def test_the_dictionary_that_is_named_is_the_one_that_is_used(folder: Path) -> None:
    """Several files are called en_dict.txt; `ppocr/utils/dict/en_dict.txt` of PaddleOCR has 63 characters, not 95."""
    (folder / 'en_dict.txt').write_text('a\nb\nc\n')
    (folder / 'my_arabic.txt').write_text('\u0627\n\u0628\n', encoding='utf-8')
    task = open_job('svtr.yml', [('Global.character_dict_path=en_dict.txt', '')]).task
    assert task.characters.characters == ('a', 'b', 'c', ' ')  # type: ignore[attr-defined]
    assert recipe('svtr', 'Global.character_dict_path=en')['characters']['dictionary'] == 'en'
    assert recipe('svtr')['characters']['right_to_left'] is None
    own = recipe('svtr', 'Global.character_dict_path=my_arabic.txt')['characters']  # its path alone says so in PaddleOCR
    assert (own['dictionary'], own['right_to_left']) == ('my_arabic.txt', True)


@pytest.mark.parametrize('path', sorted(DICTIONARIES))
def test_a_dictionary_of_paddleocr_that_is_not_there_is_the_one_that_comes_along(path: str) -> None:
    here = DICTIONARIES[path]
    assert here in get_args(BuiltIn)
    for folder in ('elsewhere', '/paddle/PaddleOCR'):
        assert recipe('svtr', f'Global.character_dict_path={folder}/{path}')['characters']['dictionary'] == here


def test_so_are_the_tokens_of_tables() -> None:
    assert recipe('slanet', 'Global.character_dict_path=x/ppocr/utils/dict/table_structure_dict_ch.txt')['tokens'] == 'chinese'


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ('Architecture.model_type=kie', "Architecture.model_type: 'kie' has no counterpart"),
        ('Architecture.algorithm=RARE', "Architecture.algorithm: 'RARE' has no counterpart"),
        ('Architecture.model_type=det', "Architecture.algorithm: 'CRNN' has no counterpart in Phalanx (it has DB)"),
        ('Architecture.Backbone.name=SVTRNet', "CRNN with the Backbone 'SVTRNet' has no counterpart in Phalanx"),
    ],
)
def test_another_model_is_the_only_problem_reported(wrong: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe('crnn', wrong, 'Optimizer.name=nonsense', 'Loss.name=nonsense', 'Train.nonsense=1', 'Global.nonsense=1')
    (line,) = caught.value.problems
    assert message in line


@pytest.mark.parametrize('name', ['crnn', 'distilled', 'slanet', 'ppocrv4_det'])
def test_wrong_values_anywhere_are_reported_and_break_nothing(name: str) -> None:
    """The translation notes problems; whatever it lets through, the binder judges."""
    reading = Reading(paddleocr.DIALECT.project)
    root = paddleocr.DIALECT.read(Path(f'{name}.yml'), reading)
    assert not translated(paddleocr.DIALECT, root)
    wrong = sum(bool(translated(paddleocr.DIALECT, tree)) for _, tree in mutated(root))
    assert wrong > 100
