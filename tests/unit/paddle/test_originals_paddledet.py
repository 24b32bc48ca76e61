"""PaddleDetection's configurations run as they are. The texts restate what its published files of PP-YOLOE say; what must come
out was taken from the objects that PaddleDetection 2.6 builds from those files, and from its code where the files are silent.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mutations import mutated, translated
from phalanx.config.read import ConfigError, to_plain
from phalanx.engine.job import open_job
from phalanx.engine.optim.schedule import Schedule
from phalanx.paddle.configs import paddledet
from phalanx.paddle.configs.dialect import Reading

COCO = """
metric: COCO
num_classes: 80
TrainDataset:
  name: COCODataSet
  image_dir: train2017
  anno_path: annotations/instances_train2017.json
  dataset_dir: dataset/coco
  data_fields: [image, gt_bbox, gt_class, is_crowd]
EvalDataset:
  name: COCODataSet
  image_dir: val2017
  anno_path: annotations/instances_val2017.json
  dataset_dir: dataset/coco
  allow_empty: true
TestDataset: {name: ImageFolder, anno_path: annotations/instances_val2017.json, dataset_dir: dataset/coco}
"""
VOC = """
metric: VOC
map_type: 11point
num_classes: 20
TrainDataset: !VOCDataSet
  dataset_dir: dataset/voc
  anno_path: trainval.txt
  label_list: label_list.txt
  data_fields: ['image', 'gt_bbox', 'gt_class', 'difficult']
EvalDataset: !VOCDataSet {dataset_dir: dataset/voc, anno_path: test.txt, label_list: label_list.txt}
"""
RUNTIME = """
use_gpu: true
log_iter: 20
save_dir: output
snapshot_epoch: 1
print_flops: false
"""
OPTIMIZER = """
epoch: 300
LearningRate:
  base_lr: 0.01
  schedulers:
  - !CosineDecay
    max_epochs: 360
  - !LinearWarmup
    start_factor: 0.
    epochs: 5
OptimizerBuilder:
  optimizer: {momentum: 0.9, type: Momentum}
  regularizer: {factor: 0.0005, type: L2}
"""
NETWORK = """
architecture: YOLOv3
norm_type: sync_bn
use_ema: true
ema_decay: 0.9998
YOLOv3: {backbone: CSPResNet, neck: CustomCSPPAN, yolo_head: PPYOLOEHead, post_process: ~}
CSPResNet: {layers: [3, 6, 6, 3], channels: [64, 128, 256, 512, 1024], return_idx: [1, 2, 3], use_large_stem: True}
CustomCSPPAN: {out_channels: [768, 384, 192], stage_num: 1, block_num: 3, act: 'swish', spp: true}
PPYOLOEHead:
  fpn_strides: [32, 16, 8]
  grid_cell_scale: 5.0
  grid_cell_offset: 0.5
  static_assigner_epoch: 100
  use_varifocal_loss: True
  loss_weight: {class: 1.0, iou: 2.5, dfl: 0.5}
  static_assigner: {name: ATSSAssigner, topk: 9}
  assigner: {name: TaskAlignedAssigner, topk: 13, alpha: 1.0, beta: 6.0}
  nms: {name: MultiClassNMS, nms_top_k: 1000, keep_top_k: 300, score_threshold: 0.01, nms_threshold: 0.7}
"""
READER = """
worker_num: 4
eval_height: &eval_height 640
eval_width: &eval_width 640
eval_size: &eval_size [*eval_height, *eval_width]
TrainReader:
  sample_transforms:
  - Decode: {}
  - RandomDistort: {}
  - RandomExpand: {fill_value: [123.675, 116.28, 103.53]}
  - RandomCrop: {}
  - RandomFlip: {}
  batch_transforms:
  - BatchRandomResize: {target_size: [320, 352, 384], random_size: True, random_interp: True, keep_ratio: False}
  - NormalizeImage: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], is_scale: True}
  - Permute: {}
  - PadGT: {}
  batch_size: 8
  shuffle: true
  drop_last: true
  use_shared_memory: true
  collate_batch: true
EvalReader:
  sample_transforms:
  - Decode: {}
  - Resize: {target_size: *eval_size, keep_ratio: False, interp: 2}
  - NormalizeImage: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], is_scale: True}
  - Permute: {}
  batch_size: 2
TestReader:
  inputs_def: {image_shape: [3, *eval_height, *eval_width]}
"""
PPYOLOE = """
_BASE_: [coco.yml, runtime.yml, optimizer.yml, network.yml, reader.yml]
log_iter: 100
snapshot_epoch: 10
weights: output/ppyoloe_crn_s_300e_coco/model_final
pretrain_weights: https://example.org/CSPResNetb_s_pretrained.pdparams
depth_mult: 0.33
width_mult: 0.50
"""
PPYOLOE_PLUS = """
_BASE_: [ppyoloe.yml]
ema_black_list: ['proj_conv.weight']
epoch: 80
depth_mult: 1.0
width_mult: 1.0
LearningRate:
  base_lr: 0.001
  schedulers: [{name: CosineDecay, max_epochs: 96}, {name: LinearWarmup, start_factor: 0., epochs: 5}]
CSPResNet: {use_alpha: True}
PPYOLOEHead: {static_assigner_epoch: 30}
"""
SOD = """
_BASE_: [ppyoloe_plus.yml]
CustomCSPPAN: {num_layers: 4, use_trans: True}
PPYOLOEHead:
  reg_range: [-2, 8]
  static_assigner_epoch: -1
  static_assigner: {name: ATSSAssigner, topk: 9}
  assigner: {name: TaskAlignedAssigner_CR, center_radius: 1, topk: 13, alpha: 1.0, beta: 6.0}
  nms: {name: MultiClassNMS, nms_top_k: 10000, keep_top_k: 500, score_threshold: 0.01, nms_threshold: 0.6}
"""
DISTILLING = """
_BASE_: [ppyoloe_plus.yml]
depth_mult: 1.33
width_mult: 1.25
for_distill: True
pretrain_weights: https://paddledet.bj.bcebos.com/models/ppyoloe_plus_crn_x_80e_coco.pdparams
find_unused_parameters: True
worker_num: 9
slim: Distill
slim_method: PPYOLOEDistill
distill_loss: DistillPPYOLOELoss
DistillPPYOLOELoss:
  loss_weight: {'logits': 4.0, 'feat': 1.0}
  logits_distill: True
  logits_loss_weight: {'class': 1.0, 'iou': 2.5, 'dfl': 0.5}
  logits_ld_distill: True
  logits_ld_params: {'weight': 20000, 'T': 10}
  feat_distill: True
  feat_distiller: 'fgd'
  feat_distill_place: 'neck_feats'
  teacher_width_mult: 1.25
  student_width_mult: 1.0
  feat_out_channels: [768, 384, 192]
"""
DETR = """
epoch: 72
LearningRate:
  base_lr: 0.0001
  schedulers:
  - !PiecewiseDecay {gamma: 1.0, milestones: [100], use_warmup: true}
  - !LinearWarmup {start_factor: 0.001, steps: 2000}
OptimizerBuilder: {clip_grad_by_norm: 0.1, regularizer: false, optimizer: {type: AdamW, weight_decay: 0.0001}}
architecture: DETR
norm_type: sync_bn
use_ema: True
ema_decay: 0.9999
ema_decay_type: "exponential"
ema_filter_no_grad: True
hidden_dim: 256
use_focal_loss: True
eval_size: [640, 640]
DETR:
  {backbone: ResNet, neck: HybridEncoder, transformer: RTDETRTransformer, detr_head: DINOHead, post_process: DETRPostProcess}
ResNet:
  depth: 50
  variant: d
  norm_type: bn
  freeze_at: 0
  return_idx: [1, 2, 3]
  lr_mult_list: [0.1, 0.1, 0.1, 0.1]
  num_stages: 4
  freeze_stem_only: True
HybridEncoder:
  hidden_dim: 256
  use_encoder_idx: [2]
  num_encoder_layers: 1
  encoder_layer:
    {name: TransformerLayer, d_model: 256, nhead: 8, dim_feedforward: 1024, dropout: 0., activation: 'gelu'}
  expansion: 1.0
RTDETRTransformer:
  num_queries: 300
  position_embed_type: sine
  feat_strides: [8, 16, 32]
  num_levels: 3
  nhead: 8
  num_decoder_layers: 6
  dim_feedforward: 1024
  dropout: 0.0
  activation: relu
  num_denoising: 100
  label_noise_ratio: 0.5
  box_noise_scale: 1.0
  learnt_init_query: False
DINOHead:
  loss:
    name: DINOLoss
    loss_coeff: {class: 1, bbox: 5, giou: 2}
    aux_loss: True
    use_vfl: True
    matcher: {name: HungarianMatcher, matcher_coeff: {class: 2, bbox: 5, giou: 2}}
DETRPostProcess: {num_top_queries: 300}
worker_num: 4
TrainReader:
  sample_transforms:
  - Decode: {}
  - RandomDistort: {prob: 0.8}
  - RandomExpand: {fill_value: [123.675, 116.28, 103.53]}
  - RandomCrop: {prob: 0.8}
  - RandomFlip: {}
  batch_transforms:
  - BatchRandomResize: {target_size: [480, 640, 800], random_size: True, random_interp: True, keep_ratio: False}
  - NormalizeImage: {mean: [0., 0., 0.], std: [1., 1., 1.], norm_type: none}
  - NormalizeBox: {}
  - BboxXYXY2XYWH: {}
  - Permute: {}
  batch_size: 4
  shuffle: true
  drop_last: true
  collate_batch: false
EvalReader:
  sample_transforms:
  - Decode: {}
  - Resize: {target_size: [640, 640], keep_ratio: False, interp: 2}
  - NormalizeImage: {mean: [0., 0., 0.], std: [1., 1., 1.], norm_type: none}
  - Permute: {}
  batch_size: 4
"""
RTDETR = """
_BASE_: [coco.yml, runtime.yml, detr.yml]
pretrain_weights: https://example.org/ResNet18_vd_pretrained.pdparams
ResNet: {depth: 18, variant: d, return_idx: [1, 2, 3], freeze_at: -1, freeze_norm: false, norm_decay: 0.}
HybridEncoder: {expansion: 0.5, depth_mult: 1.0}
RTDETRTransformer: {eval_idx: -1, num_decoder_layers: 3}
"""
RTDETRV2 = """
_BASE_: [coco.yml, runtime.yml, detr.yml]
pretrain_weights: https://example.org/ResNet50_vd_ssld_v2_pretrained.pdparams
reset_norm_param_attr: True
DETR: {transformer: RTDETRTransformerv2}
ResNet: {freeze_stem_only: False, freeze_norm: True, lr_mult_list: []}
HybridEncoder: {expansion: 0.5}
RTDETRTransformerv2: {num_decoder_points: [4, 4, 4], eval_idx: 2, cross_attn_sampling_method: discrete}
epoch: 36
OptimizerBuilder:
  optimizer:
    param_groups:
    - params: ['^(?=.*backbone)(?!.*norm).*$']
      learning_rate: 0.00001
    - params: ['^(?=.*(?:neck|transformer))(?=.*(?:norm|bn)).*$']
      weight_decay: 0.
TrainReader:
  sample_transforms:
  - Decode: {}
  - RandomCrop: {prob: 0.8}
  - Resize: {target_size: [640, 640], keep_ratio: False, interp: 1}
  transform_schedulers:
  - RandomCrop: {stop_epoch: 33}
  - Resize: {start_epoch: 33}
  - BatchRandomResize: {stop_epoch: 33}
"""
FILES = {
    'coco': COCO,
    'detr': DETR,
    'rtdetr': RTDETR,
    'rtdetrv2': RTDETRV2,
    'voc': VOC,
    'runtime': RUNTIME,
    'optimizer': OPTIMIZER,
    'network': NETWORK,
    'reader': READER,
    'ppyoloe': PPYOLOE,
    'ppyoloe_plus': PPYOLOE_PLUS,
    'ppyoloe_sod': SOD,
    'ppyoloe_voc': PPYOLOE.replace('coco.yml', 'voc.yml'),
}

MODEL = {
    'name': 'ppyoloe',
    'size': 's',
    'backbone': {'name': 'csp_rep_resnet'},
    'plus': False,
    'levels': 3,
    'neck_alpha': False,
    'encoder': 0,
    'reach': [0, 16],
}
CASES = json.loads((Path(__file__).parents[2] / 'golden' / 'data' / 'lr_schedules.json').read_text())


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / f'{name}.yml').write_text(text.lstrip())
    return tmp_path


def recipe(name: str, *assignments: str) -> dict[str, Any]:
    resolved: dict[str, Any] = to_plain(open_job(f'{name}.yml', [(text, text) for text in assignments]).resolved)
    return resolved


def schedule(*assignments: str, steps_per_epoch: int = 10) -> Schedule:
    job = open_job('ppyoloe.yml', [(text, text) for text in assignments]).recipe
    steps = int(job.train.epochs or 0) * steps_per_epoch
    return job.schedule(job.optimizer.keywords['lr'], steps, float(steps_per_epoch))


def test_ppyoloe_comes_out_as_published() -> None:
    got = recipe('ppyoloe')
    assert (got['task'], got['model']) == ('detection', MODEL)
    assert got['loss'] == {
        'name': 'task_aligned',
        'static_assigner_epochs': 100,
        'cls_weight': 1.0,
        'iou_weight': 2.5,
        'dfl_weight': 0.5,
        'use_varifocal': True,
        'static_top_k': 9,
        'anchor_size': 5.0,
        'top_k': 13,
        'alpha': 1.0,
        'beta': 6.0,
        'center_radius': None,
    }
    assert got['nms'] == {'score_threshold': 0.01, 'nms_threshold': 0.7, 'pre_top_k': 1000, 'keep_top_k': 300}
    assert {
        'name': 'coco',
        'root': 'dataset/coco',
        'train': 'annotations/instances_train2017.json',
        'eval': 'annotations/instances_val2017.json',
        'train_images': 'train2017',
        'eval_images': 'val2017',
        'empty_images': False,
    }.items() <= got['data'].items()
    assert [step['name'] for step in got['transforms']] == [
        'random_distort',
        'random_expand',
        'random_crop',
        'random_flip',
        'batch_random_resize',
    ]
    expand = {'name': 'random_expand', 'probability': 0.5, 'ratio': 4.0, 'fill': [123.675, 116.28, 103.53]}
    assert expand.items() <= got['transforms'][1].items()
    batch = {'name': 'batch_random_resize', 'sizes': [320, 352, 384], 'keep_ratio': False, 'interpolation': 'random'}
    assert batch.items() <= got['transforms'][4].items()
    resize = {'name': 'resize', 'target_size': [640, 640], 'keep_ratio': False, 'interpolation': 'cubic'}
    (of_evaluation,) = got['eval_transforms']
    assert resize.items() <= of_evaluation.items()
    assert (got['mean'], got['std']) == ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert {'epochs': 300, 'batch_size_per_rank': 8, 'workers': 4}.items() <= got['train'].items()
    assert {'name': 'sgd', 'lr': 0.01, 'momentum': 0.9, 'weight_decay': 5e-4}.items() <= got['optimizer'].items()
    assert got['parameters']['decay_norms'] is False
    assert {'decay': 0.9998, 'kind': 'threshold', 'skip': []}.items() <= got['ema'].items()
    assert (got['norm_sync'], got['evaluate']['every_epochs'], got['evaluate']['batch_size']) == ('global', 10, 2)
    assert (got['checkpoint']['every_epochs'], got['report']['every'], got['clip']) == (10, 100, None)


def test_ppyoloe_plus_comes_out_as_published() -> None:
    got = recipe('ppyoloe_plus')
    assert got['model'] == {**MODEL, 'size': 'l', 'plus': True}
    assert (got['loss']['static_assigner_epochs'], got['train']['epochs'], got['optimizer']['lr']) == (30, 80, 0.001)
    assert (got['schedule']['epochs'], got['schedule']['warmup_epochs']) == (96, 5)


def test_images_of_plus_are_only_divided_by_255() -> None:
    step = '{mean: [0., 0., 0.], std: [1., 1., 1.], norm_type: none}'
    both = (f'TrainReader.batch_transforms.1.NormalizeImage={step}', f'EvalReader.sample_transforms.2.NormalizeImage={step}')
    got = recipe('ppyoloe', *both)
    assert (got['mean'], got['std']) == ([0, 0, 0], [1, 1, 1])


def test_rtdetr_comes_out_as_published() -> None:
    """rtdetr_r18vd_6x_coco.yml: the shape of the network, how its backbone trains, and AdamW, which decays norms, too."""
    got = recipe('rtdetr')
    shape = {'channels': 256, 'encoder_hidden': 1024, 'decoder_channels': 256, 'decoder_hidden': 1024}
    numbers = {'decoder_layers': 3, 'eval_layers': 3, 'queries': 300, 'denoising': 100, 'label_noise': 0.5, 'box_noise': 1.0}
    assert {'name': 'rtdetr', 'size': 'r18vd', 'points': None, **shape, **numbers}.items() <= got['model'].items()
    assert {'name': 'rtdetr', 'class_weight': 1.0, 'l1_weight': 5.0, 'giou_weight': 2.0}.items() <= got['loss'].items()
    rules = [(rule['match'], rule['lr_factor']) for rule in got['parameters']['rules']]
    assert rules == [(f'backbone.stages.{stage}.*', 0.1) for stage in range(4)]
    assert (got['parameters']['decay_norms'], got['parameters']['decay_biases']) == (True, True)
    assert (got['train']['freeze'], got['train']['init_part'], got['nms']) == ([], 'backbone', None)
    assert got['clip']['norm'] == 0.1
    assert {'name': 'adamw', 'lr': 1e-4, 'weight_decay': 1e-4}.items() <= got['optimizer'].items()
    assert {'decay': 0.9999, 'kind': 'exponential', 'warmup': 2000}.items() <= got['ema'].items()
    assert [step.get('probability') for step in got['transforms']] == [0.8, 0.5, 0.8, 0.5, None]
    assert (got['train']['epochs'], got['train']['batch_size_per_rank']) == (72, 4)
    assert recipe('rtdetr', 'ResNet.depth=50', 'ResNet.freeze_at=0', 'ResNet.freeze_norm=true')['train']['freeze'] == [
        'backbone.stem',
        'backbone.*.norm',
    ]


def test_rtdetrv2_comes_out_as_published() -> None:
    """rtdetrv2_r50vd_m_dsp_3x_coco.yml: discrete sampling, a transform schedule, and groups of parameters."""
    got = recipe('rtdetrv2')
    model = {'name': 'rtdetrv2', 'size': 'r50vd_m', 'points': [4, 4, 4], 'sampling': 'discrete', 'eval_layers': 3}
    assert model.items() <= got['model'].items()
    assert got['train']['freeze'] == ['backbone.stem', 'backbone.stages.0', 'backbone.*.norm']
    (rule,) = got['parameters']['rules']
    assert (rule['match'], rule['lr_factor']) == ('backbone.*', pytest.approx(0.1))
    assert (got['parameters']['decay_norms'], got['parameters']['decay_biases']) == (False, True)
    limits = {step['name']: (step['start_epoch'], step['stop_epoch']) for step in got['transforms']}
    assert limits == {'random_crop': (0, 33), 'resize': (33, None), 'batch_random_resize': (0, 33)}


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ('DETR.backbone=SwinTransformer', "DETR: the backbone 'SwinTransformer' has no counterpart"),
        ('DETR.transformer=DINOTransformer', "DETR: the transformer 'DINOTransformer' has no counterpart"),
        ('HybridEncoder.num_encoder_layers=2', 'HybridEncoder.num_encoder_layers: 2 has no counterpart'),
        ('ResNet.depth=152', 'a backbone 152 with an expansion of 0.5 has no size here'),
        ('OptimizerBuilder.optimizer.param_groups=[{params: [neck], weight_decay: 0}]', "'neck' is not a pattern"),
        (
            'TrainReader.transform_schedulers=[{Permute: {stop_epoch: 3}}]',
            'transform_schedulers[0].Permute: has no counterpart',
        ),
    ],
)
def test_another_detr_is_refused(wrong: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe('rtdetr', wrong)
    assert message in str(caught.value)


def test_voc_comes_out_as_published() -> None:
    """Its data sets are written as tagged objects."""
    got = recipe('ppyoloe_voc')
    voc = {
        'name': 'pascal_voc',
        'root': 'dataset/voc',
        'train': 'trainval.txt',
        'eval': 'test.txt',
        'classes': 'label_list.txt',
    }
    assert voc.items() <= got['data'].items()
    assert (got['metric']['name'], got['metric']['points']) == ('voc', '11')


def test_a_later_base_wins(folder: Path) -> None:
    """PaddleDetection merges its bases in the order of the list."""
    (folder / 'run.yml').write_text('_BASE_: [ppyoloe.yml, other.yml]\n')
    (folder / 'other.yml').write_text('epoch: 7\nTrainReader: {batch_size: 3}\n')
    got = recipe('run')
    assert (got['train']['epochs'], got['train']['batch_size_per_rank'], got['train']['workers']) == (7, 3, 4)


def test_an_object_replaces_what_lies_under_it(folder: Path) -> None:
    """PaddleDetection's rule: `!COCODataSet {...}` is an object, which takes nothing of the mapping underneath."""
    own = '!COCODataSet {dataset_dir: dataset/people, anno_path: train.json, image_dir: images, allow_empty: true}'
    (folder / 'run.yml').write_text(f'_BASE_: [ppyoloe.yml]\nTrainDataset:\n  {own}\nEvalDataset: {own}\n')
    data = recipe('run')['data']
    assert (data['root'], data['train'], data['train_images'], data['empty_images']) == (
        'dataset/people',
        'train.json',
        'images',
        True,
    )
    (folder / 'run.yml').write_text(
        '_BASE_: [ppyoloe.yml]\nTrainDataset: !COCODataSet {dataset_dir: dataset/coco, anno_path: train.json}\n'
    )
    assert recipe('run')['data']['train_images'] == ''  # not train2017, that of the base


def test_the_evaluation_may_have_a_folder_of_its_own() -> None:
    """PaddleDetection looks for a split below the dataset_dir of that split."""
    data = recipe('ppyoloe', 'TrainDataset.dataset_dir=dataset/sliced', 'EvalDataset.dataset_dir=./dataset/whole')['data']
    assert data['root'] == 'dataset'
    assert (data['train'], data['train_images']) == ('sliced/annotations/instances_train2017.json', 'sliced/train2017')
    assert (data['eval'], data['eval_images']) == ('whole/annotations/instances_val2017.json', 'whole/val2017')
    with pytest.raises(ConfigError, match='give both as absolute paths, or both as relative ones'):
        recipe('ppyoloe', 'EvalDataset.dataset_dir=/data/whole')
    with pytest.raises(ConfigError, match=r'EvalDataset.dataset_dir: .* is not that of TrainDataset'):
        recipe('ppyoloe_voc', 'EvalDataset.dataset_dir=other')  # whose lists have paths below the folder


def test_an_image_is_expanded_unless_prob_says_not_to() -> None:
    """RandomExpand returns the image as it is with probability `prob` (operators.py, RandomExpand.apply)."""
    got = recipe('ppyoloe', 'TrainReader.sample_transforms.2.RandomExpand={prob: 0.2}')
    assert got['transforms'][1]['probability'] == 0.8


def test_networks_for_small_objects_have_a_fourth_level() -> None:
    """Of ppyoloe_crn_s_p2_alpha_80e_visdrone.yml and the configurations of SKU-110K."""
    strides = ('CustomCSPPAN.out_channels=[768,384,192,64]', 'PPYOLOEHead.fpn_strides=[32,16,8,4]')
    assert recipe('ppyoloe', 'CSPResNet.return_idx=[0,1,2,3]', *strides)['model'] == {**MODEL, 'levels': 4}
    assert recipe('ppyoloe', 'CustomCSPPAN.use_alpha=true')['model'] == {**MODEL, 'neck_alpha': True}
    with pytest.raises(ConfigError, match=r'PPYOLOEHead.fpn_strides: \[32, 16, 8\] has no counterpart'):
        recipe('ppyoloe', 'CSPResNet.return_idx=[0,1,2,3]', strides[0])


def test_an_evaluation_in_slices_is_refused_in_one_line(folder: Path) -> None:
    sliced = '!SlicedCOCODataSet {dataset_dir: d, anno_path: val.json, sliced_size: [640, 640]}'
    (folder / 'run.yml').write_text(f'_BASE_: [ppyoloe.yml]\nEvalDataset: {sliced}\n')
    with pytest.raises(ConfigError) as caught:
        recipe('run')
    (line,) = caught.value.problems
    assert "EvalDataset.name: 'SlicedCOCODataSet' is not that of TrainDataset, 'COCODataSet'" in line


def test_a_student_without_its_teacher_trains_alone(folder: Path) -> None:
    """PaddleDetection does the same with a file of configs/ppyoloe/distill without --slim_config."""
    student = (
        'architecture: PPYOLOE\nfor_distill: True\nPPYOLOE: {backbone: CSPResNet, neck: CustomCSPPAN, yolo_head: PPYOLOEHead}\n'
    )
    (folder / 'run.yml').write_text(f'_BASE_: [ppyoloe_plus.yml]\n{student}')
    job = open_job('run.yml')
    assert to_plain(job.resolved)['model'] == {**MODEL, 'size': 'l', 'plus': True}
    assert any('for_distill is ignored' in note and 'trains alone' in note for note in job.notes)
    with pytest.raises(ConfigError, match='a file for --slim_config'):
        recipe('ppyoloe', 'slim_method=PPYOLOEDistill')


def test_a_file_for_slim_config_sets_the_teacher_and_its_losses(folder: Path) -> None:
    """X teaches L, as in configs/slim/distill; the training itself stays that of the student."""
    (folder / 'teacher.yml').write_text(DISTILLING.lstrip())
    alone, got = recipe('ppyoloe_plus'), recipe('ppyoloe_plus', 'slim_config=teacher.yml')
    assert got['networks'] == {'teacher': {**got['model'], 'size': 'x'}} and got['model'] == alone['model']
    logits = {'weight': 4.0, 'cls_weight': 1.0, 'iou_weight': 2.5, 'dfl_weight': 0.5, 'classes_weight': 20000.0}
    assert got['from_teacher'][0] == {'name': 'logits', **logits, 'temperature': 10.0}
    assert {'name': 'features', 'weight': 1.0}.items() <= got['from_teacher'][1].items()
    assert got['loss_coefficients'] == [0.125]
    assert got['train']['init_networks'] == {
        'student': alone['train']['init_from'],
        'teacher': 'https://paddledet.bj.bcebos.com/models/ppyoloe_plus_crn_x_80e_coco.pdparams',
    }
    assert (got['train']['init_from'], got['train']['workers']) == (None, alone['train']['workers'])
    (note,) = [note for note in open_job('ppyoloe_plus.yml', [('slim_config=teacher.yml', '')]).notes if 'teacher.yml' in note]
    assert 'the network, its weights and DistillPPYOLOELoss count' in note


@pytest.mark.parametrize(
    ('line', 'wrong', 'reported'),
    [
        ('slim_method: PPYOLOEDistill', 'slim_method: FGD', "slim_method: 'FGD' has no counterpart"),
        ("feat_distiller: 'fgd'", 'feat_distiller: cwd', "feat_distiller: 'cwd' has no counterpart"),
        ('student_width_mult: 1.0', 'student_width_mult: 0.5', "0.5 is not that of the network, which has the size 'l'"),
        ('slim: Distill', 'architecture: GFL', "architecture: 'GFL' has no counterpart"),
    ],
)
def test_another_distillation_is_refused_at_its_line(folder: Path, line: str, wrong: str, reported: str) -> None:
    (folder / 'teacher.yml').write_text(DISTILLING.lstrip().replace(line, wrong))
    with pytest.raises(ConfigError, match=r'teacher\.yml:') as caught:
        recipe('ppyoloe_plus', 'slim_config=teacher.yml')
    assert reported in str(caught.value)
    with pytest.raises(ConfigError, match=r'slim_config: there is no file none\.yml'):
        recipe('ppyoloe_plus', 'slim_config=none.yml')


def test_ppyoloe_sod_comes_out_as_published() -> None:
    got = recipe('ppyoloe_sod')
    assert got['model'] == {**MODEL, 'size': 'l', 'plus': True, 'encoder': 4, 'reach': [-2, 7]}
    assert {'static_assigner_epochs': -1, 'top_k': 13, 'center_radius': 1.0}.items() <= got['loss'].items()
    assert got['parameters']['decay_norms'] is False
    assert [(rule['match'], rule['weight_decay']) for rule in got['parameters']['rules']] == [
        ('*neck.encoder.*.norm?.*', 0.0005)
    ]
    assert recipe('ppyoloe_sod', 'CustomCSPPAN.use_trans=false')['model']['encoder'] == 0
    with pytest.raises(ConfigError, match=re.escape('PPYOLOEHead.reg_range: expected two numbers, got 3')):
        recipe('ppyoloe_sod', 'PPYOLOEHead.reg_range=3')


def test_no_regularizer_is_no_decay() -> None:
    assert recipe('ppyoloe', 'OptimizerBuilder.regularizer=false')['optimizer']['weight_decay'] == 0


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ('architecture=FasterRCNN', "architecture: 'FasterRCNN' has no counterpart in Phalanx (it has YOLOv3, PPYOLOE, DETR)"),
        ('YOLOv3.yolo_head=YOLOv3Head', "YOLOv3: the yolo_head 'YOLOv3Head' has no counterpart in Phalanx"),
        ('YOLOv3.backbone=ConvNeXt', "YOLOv3: the backbone 'ConvNeXt' has no counterpart in Phalanx"),
        ('ssod_method=DenseTeacher', "ssod_method: 'DenseTeacher': semi-supervised training of a detector has no counterpart"),
    ],
)
def test_another_model_is_the_only_problem_reported(wrong: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe('ppyoloe', wrong, 'CSPResNet.layers=[1]', 'PPYOLOEHead.act=relu', 'nonsense_key=1', 'metric=nonsense')
    (line,) = caught.value.problems
    assert message in line


def test_the_suffix_of_weights_may_be_left_out(folder: Path) -> None:
    (folder / 'ppyoloe_s.pdparams').touch()
    assert recipe('ppyoloe', 'pretrain_weights=ppyoloe_s')['train']['init_from'] == 'ppyoloe_s.pdparams'
    assert recipe('ppyoloe', 'pretrain_weights=ppyoloe_m')['train']['init_from'] == 'ppyoloe_m'


@pytest.mark.parametrize(
    ('schedulers', 'rates'),
    [
        (
            '[{name: CosineDecay, max_epochs: 360}, {name: LinearWarmup, start_factor: 0., epochs: 5}]',
            {0: 0.0, 25: 0.005, 50: 0.01, 1825: 0.005},  # half way between 50 and 3600
        ),
        (
            '[{name: CosineDecay, max_epochs: 360, min_lr_ratio: 0.5}, {name: LinearWarmup, start_factor: 0.1, steps: 100}]',
            {0: 0.001, 50: 0.0055, 100: 0.01, 1850: 0.0075},
        ),
        (
            '[{name: PiecewiseDecay, gamma: 0.1, milestones: [100, 200]}, {name: LinearWarmup, start_factor: 0., steps: 10}]',
            {5: 0.005, 999: 0.01, 1000: 0.001, 2000: 1e-4},
        ),
    ],
)
def test_schedules_give_the_rates_of_paddledetection(schedulers: str, rates: dict[int, float]) -> None:
    """By hand, from the formulas in its code; like ours they count from the start of training."""
    rate = schedule(f'LearningRate.schedulers={schedulers}')
    assert {step: rate(step) for step in rates} == pytest.approx(rates, rel=1e-6)


@pytest.mark.parametrize('name', [name for name in CASES if name.startswith('ppyoloe')])
def test_the_rate_of_every_step_is_the_original_one(name: str) -> None:
    """Both the schedulers and the rates that they gave are those of PaddleDetection's own run."""
    original = CASES[name]['original']
    schedulers = f'LearningRate.schedulers={json.dumps(original["schedulers"])}'
    rates = (f'epoch={original["epochs"]}', f'LearningRate.base_lr={original["base_lr"]}', schedulers)
    rate = schedule(*rates, steps_per_epoch=CASES[name]['steps_per_epoch'])
    expected = {int(step): lr for step, lr in CASES[name]['lr'].items()}
    assert {step: rate(step) for step in expected} == pytest.approx(expected, rel=1e-10, abs=1e-18)


def test_own_keys_and_recipe_keys_can_be_set() -> None:
    got = recipe('ppyoloe', 'epoch=3', 'LearningRate.base_lr=0.1', 'TrainReader.batch_size=2', 'use_gpu=false', 'train.seed=9')
    assert (got['train']['epochs'], got['optimizer']['lr'], got['train']['batch_size_per_rank']) == (3, 0.1, 2)
    assert (got['device'], got['train']['seed']) == ('cpu', 9)
    assert recipe('ppyoloe', 'data.root=/d')['data']['root'] == '/d'


def test_a_backbone_is_distinguished_from_a_whole_network() -> None:
    train = recipe('ppyoloe')['train']
    assert (train['init_from'], train['init_part']) == ('https://example.org/CSPResNetb_s_pretrained.pdparams', 'backbone')
    train = recipe('ppyoloe', 'pretrain_weights=CSPResNetb_s_pretrained.pdparams')['train']
    assert (train['init_from'], train['init_part']) == ('CSPResNetb_s_pretrained.pdparams', 'backbone')
    train = recipe('ppyoloe', 'pretrain_weights=ppyoloe_crn_s_obj365.pdparams')['train']
    assert (train['init_part'], train['init_misshapen']) == ('all', 'skip')


def test_what_is_ignored_is_reported_with_its_line() -> None:
    notes = open_job('ppyoloe.yml').notes
    assert 'runtime.yml:3: save_dir is ignored: --save_dir names the run folder' in notes


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ('depth_mult=0.4', 'depth_mult: 0.4 with a width_mult of 0.5 is not a size that Phalanx has'),
        ('CSPResNet.use_large_stem=false', 'CSPResNet.use_large_stem: False has no counterpart'),
        ('metric=WiderFace', "metric: 'WiderFace' has no counterpart"),
        ('norm_type=gn', "norm_type: 'gn' has no counterpart"),
        ('LearningRate.schedulers=[!OneCycle {}]', 'the tag !OneCycle means nothing'),
        ('LearningRate.schedulers=[{name: OneCycleDecay}]', "'OneCycleDecay' has no counterpart"),
        ('OptimizerBuilder.optimizer.type=RMSProp', "OptimizerBuilder.optimizer.type: 'RMSProp' has no counterpart"),
        ('OptimizerBuilder.regularizer.type=L1', "OptimizerBuilder.regularizer.type: 'L1' has no counterpart"),
        ('TrainReader.sample_transforms=[Mosaik: {}]', 'TrainReader.sample_transforms[0].Mosaik: has no counterpart'),
        ('TrainReader.sample_transforms.2.RandomExpand.ration=2', "RandomExpand.ration: not known here; did you mean 'ratio'?"),
        ('EvalReader.sample_transforms.1.Resize.interp=soft', "interpolation: 'soft' is not one of nearest"),
        ('LearningRate.schedulers=[{name: PiecewiseDecay, gamma: tenth, milestones: [8]}]', "expected a number, got 'tenth'"),
        ('LearningRate.schedulers=[{name: PiecewiseDecay, milestones: 8}]', 'boundary_epochs: expected a list'),
        ('snapshot_epoc=2', None),
    ],
)
def test_keys_without_a_counterpart_are_reported(wrong: str, message: str | None) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe('ppyoloe', wrong)
    assert (message or 'snapshot_epoc: unknown key') in str(caught.value)


@pytest.mark.parametrize('name', ['ppyoloe', 'ppyoloe_voc'])
def test_wrong_values_anywhere_are_reported_and_break_nothing(name: str) -> None:
    """The translation notes problems; whatever it lets through, the binder judges."""
    reading = Reading(paddledet.DIALECT.project)
    root = paddledet.DIALECT.read(Path(f'{name}.yml'), reading)
    assert not translated(paddledet.DIALECT, root)
    wrong = sum(bool(translated(paddledet.DIALECT, tree)) for _, tree in mutated(root))
    assert wrong > 100
