"""PaddleSeg's configurations run as they are. The texts restate what its published files say, in our own words; what must come
out was taken from the objects that PaddleSeg 2.10 builds from those files (shapes of heads, losses, schedules, transforms).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mutations import mutated, translated
from phalanx.cli.main import main
from phalanx.config.read import ConfigError, to_plain
from phalanx.engine.job import Job, open_job
from phalanx.engine.optim.schedule import Schedule
from phalanx.paddle.configs import dialect_of, paddleseg, translate
from phalanx.paddle.configs.dialect import Reading

CITYSCAPES = """
batch_size: 2
iters: 80000
train_dataset:
  type: Cityscapes
  dataset_root: data/cityscapes
  mode: train
  transforms:
  - {type: ResizeStepScaling, min_scale_factor: 0.5, max_scale_factor: 2.0, scale_step_size: 0.25}
  - {type: RandomPaddingCrop, crop_size: [1024, 512]}
  - type: RandomHorizontalFlip
  - {type: RandomDistort, brightness_range: 0.4, contrast_range: 0.4, saturation_range: 0.4}
  - type: Normalize
val_dataset: {type: Cityscapes, dataset_root: data/cityscapes, mode: val, transforms: [type: Normalize]}
optimizer: {type: SGD, momentum: 0.9, weight_decay: 4.0e-5}
lr_scheduler: {type: PolynomialDecay, learning_rate: 0.01, end_lr: 0, power: 0.9}
loss: {types: [type: CrossEntropyLoss], coef: [1]}
"""
LITESEG = """
_base_: cityscapes.yml
batch_size: 4
iters: 160000
optimizer: {weight_decay: 5.0e-4}
lr_scheduler: {warmup_iters: 1000, warmup_start_lr: 1.0e-5, learning_rate: 0.005}
loss:
  types:
  - {type: OhemCrossEntropyLoss, min_kept: 130000}
  - {type: OhemCrossEntropyLoss, min_kept: 130000}
  - {type: OhemCrossEntropyLoss, min_kept: 130000}
  coef: [1, 1, 1]
train_dataset:
  transforms:
  - {type: ResizeStepScaling, min_scale_factor: 0.125, max_scale_factor: 1.5, scale_step_size: 0.125}
  - {type: RandomPaddingCrop, crop_size: [1024, 512]}
  - type: RandomHorizontalFlip
  - {type: RandomDistort, brightness_range: 0.5, contrast_range: 0.5, saturation_range: 0.5}
  - type: Normalize
test_config: {aug_eval: True, scales: 0.5}
model:
  type: PPLiteSeg
  backbone: {type: STDC1, pretrained: 'https://example.org/PP_STDCNet1.tar.gz'}
  arm_out_chs: [32, 64, 128]
  seg_head_inter_chs: [32, 64, 64]
"""
LITESEG_STDC2 = """
_base_: liteseg.yml
test_config: {aug_eval: True, scales: 0.75}
model:
  _inherited_: False
  type: PPLiteSeg
  backbone: {type: STDC2}
"""
OCRNET = """
_base_: cityscapes.yml
iters: 160000
model: {type: OCRNet, backbone: {type: HRNet_W18}, num_classes: 19, backbone_indices: [0]}
optimizer: {type: SGD}
loss: {types: [{type: CrossEntropyLoss}, {type: CrossEntropyLoss}], coef: [1, 0.4]}
"""
SEGFORMER = """
_base_: cityscapes.yml
iters: 160000
model: {type: SegFormer, backbone: {type: MixVisionTransformer_B0}, embedding_dim: 256, num_classes: 19}
optimizer: {_inherited_: False, type: AdamW, beta1: 0.9, beta2: 0.999, weight_decay: 0.01}
lr_scheduler: {type: PolynomialDecay, learning_rate: 0.00006, power: 1}
test_config: {is_slide: True, crop_size: [1024, 1024], stride: [768, 768]}
"""
DEEPLAB = """
_base_: cityscapes.yml
model:
  type: DeepLabV3P
  backbone: {type: ResNet50_vd, output_stride: 8, multi_grid: [1, 2, 4]}
  num_classes: 19
  backbone_indices: [0, 3]
  aspp_ratios: [1, 12, 24, 36]
  aspp_out_channels: 256
  align_corners: False
  pretrained: null
"""
UNET = """
_base_: cityscapes.yml
batch_size: 4
iters: 160000
model: {type: UNet, num_classes: 19, use_deconv: False, pretrained: Null}
"""
FILES = {
    'cityscapes': CITYSCAPES,
    'liteseg': LITESEG,
    'liteseg_stdc2': LITESEG_STDC2,
    'ocrnet': OCRNET,
    'segformer': SEGFORMER,
    'deeplab': DEEPLAB,
    'unet': UNET,
}

CASES = json.loads((Path(__file__).parents[2] / 'golden' / 'data' / 'lr_schedules.json').read_text())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in FILES.items():
        (tmp_path / f'{name}.yml').write_text(text.lstrip())
    return tmp_path


def recipe(name: str, *assignments: str) -> dict[str, Any]:
    """The resolved recipe of a file, defaults of ours left in."""
    resolved: dict[str, Any] = to_plain(job(name, *assignments).resolved)
    return resolved


def job(name: str, *assignments: str) -> Job:
    return open_job(f'{name}.yml', [(text, text) for text in assignments])


def write(folder: Path, name: str, text: str) -> str:
    (folder / f'{name}.yml').write_text(text)
    return name


def schedule(name: str, *assignments: str) -> Schedule:
    opened = job(name, *assignments).recipe
    return opened.schedule(opened.optimizer.keywords['lr'], opened.train.steps or 0, 100.0)


def without_nulls(keys: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if value is not None}


def test_pp_liteseg_comes_out_as_published(folder: Path) -> None:
    got = recipe('liteseg')
    assert got['task'] == 'segmentation'
    assert got['model'] == {
        'name': 'pp_liteseg',
        'backbone': {'name': 'stdc1'},
        'arm_channels': [32, 64, 128],
        'head_channels': [32, 64, 64],
        'width': 1.0,
    }
    assert got['data'] == {'name': 'cityscapes', 'root': 'data/cityscapes'}
    assert (got['train']['steps'], got['train']['batch_size_per_rank']) == (160000, 4)
    # 130000 pixels of a batch of 4
    ohem = {'name': 'ohem', 'threshold': 0.7, 'min_kept_per_sample': 32500.0, 'class_weights': None}
    assert got['loss'] == [ohem] * 3 and got['loss_coefficients'] == [1, 1, 1]
    optimizer = {'name': 'sgd', 'lr': 0.005, 'momentum': 0.9, 'nesterov': False, 'weight_decay': 5e-4, 'fused': True}
    assert got['optimizer'] == optimizer
    polynomial = {'name': 'polynomial', 'power': 0.9, 'end_lr': 0.0, 'warmup_steps': 1000, 'warmup_start_lr': 1e-5}
    assert without_nulls(got['schedule']) == polynomial
    assert got['transforms'] == [
        {'name': 'resize_step_scaling', 'min': 0.125, 'max': 1.5, 'step': 0.125},
        {'name': 'random_padding_crop', 'crop_size': [512, 1024]},
        {'name': 'random_flip', 'probability': 0.5},
        {
            'name': 'random_distort',
            **dict.fromkeys(('brightness', 'contrast', 'saturation'), 0.5),
            'hue': 18.0,
            **{f'{change}_probability': 0.5 for change in ('brightness', 'contrast', 'saturation', 'hue')},
        },
    ]
    assert got['eval_transforms'] == [] and got['mean'] == got['std'] == [0.5, 0.5, 0.5]
    assert got['inference']['scales'] == [0.5] and got['inference']['window'] is None


def test_the_second_pp_liteseg_does_not_inherit_the_channels_of_the_first(folder: Path) -> None:
    """Its constructor has those of the larger network by default, whatever the backbone."""
    got = recipe('liteseg_stdc2')
    channels = {'arm_channels': [64, 96, 128], 'head_channels': [64, 64, 64]}
    assert got['model'] == {'name': 'pp_liteseg', 'backbone': {'name': 'stdc2'}, 'width': 1.0, **channels}
    assert got['inference']['scales'] == [0.75] and got['optimizer']['weight_decay'] == 5e-4


def test_ocrnet_comes_out_as_published(folder: Path) -> None:
    got = recipe('ocrnet')
    assert (got['model']['name'], got['model']['backbone']['name']) == ('ocrnet', 'hrnet_w18')
    entropy = {'name': 'cross_entropy', 'class_weights': None, 'avg_non_ignore': True, 'top_k': 1.0}
    assert got['loss'] == [entropy, entropy] and got['loss_coefficients'] == [1, 0.4]
    assert (got['optimizer']['momentum'], got['optimizer']['weight_decay']) == (0.9, 4e-5)


def test_segformer_comes_out_as_published(folder: Path) -> None:
    got = recipe('segformer')
    assert (got['model']['name'], got['model']['backbone']['name'], got['model']['head_channels']) == (
        'segformer',
        'mit_b0',
        256,
    )
    adamw = {'name': 'adamw', 'lr': 6e-5, 'betas': [0.9, 0.999], 'eps': 1e-8, 'weight_decay': 0.01, 'fused': True}
    assert got['optimizer'] == adamw
    assert (got['schedule']['power'], got['schedule']['end_lr']) == (1.0, 0.0)
    windows = {'window': [1024, 1024], 'window_stride': [768, 768], 'scales': [1.0]}
    assert windows.items() <= got['inference'].items()


def test_segformer_by_its_older_name_is_the_same(folder: Path) -> None:
    """The name in configurations of releases 2.5 and 2.6."""
    text = '_base_: segformer.yml\nmodel: {_inherited_: False, type: SegFormer_B2, num_classes: 19}\n'
    model = recipe(write(folder, 'run', text))['model']
    assert (model['name'], model['backbone']['name']) == ('segformer', 'mit_b2')


def test_deeplabv3p_comes_out_as_published(folder: Path) -> None:
    """The first of the ratios is the window of a single place, which is always there."""
    got = recipe('deeplab')
    assert (got['model']['name'], got['model']['backbone']['name']) == ('deeplabv3p', 'resnet50_vd')
    assert got['model']['dilations'] == [12, 24, 36]


def test_unet_comes_out_as_published(folder: Path) -> None:
    got = recipe('unet')
    assert got['model'] == {'name': 'unet', 'upsampling': 'bilinear', 'channels': 64}
    assert recipe('unet', 'model.use_deconv=True')['model']['upsampling'] == 'transposed'


def test_a_custom_data_set_is_a_list_of_files(folder: Path) -> None:
    """Its lists are named from the working folder, not from the data set; one loss stands for three outputs."""
    common = 'type: Dataset, dataset_root: data/camvid, num_classes: 11'
    write(
        folder,
        'camvid',
        f"""
_base_: liteseg.yml
loss: {{types: [type: CrossEntropyLoss], coef: [1, 1, 1]}}
train_dataset:
  _inherited_: False
  {common.replace(', ', chr(10) + '  ')}
  mode: train
  train_path: data/camvid/train.txt
  transforms: [type: Normalize]
val_dataset: {{_inherited_: False, {common}, mode: val, val_path: lists/val.txt, transforms: [type: Normalize]}}
""",
    )
    got = recipe('camvid')
    assert without_nulls(got['data']) == {
        'name': 'file_list',
        'root': 'data/camvid',
        'train': 'train.txt',
        'eval': '../../lists/val.txt',
        'classes': [f'class {number}' for number in range(11)],
        'separator': ' ',
    }
    assert [loss['name'] for loss in got['loss']] == ['cross_entropy'] * 3


def test_a_custom_data_set_without_its_lists_is_reported(folder: Path) -> None:
    write(folder, 'run', '_base_: liteseg.yml\ntrain_dataset: {type: Dataset}\nval_dataset: {type: Dataset}\n')
    with pytest.raises(ConfigError) as caught:
        recipe('run')
    message = str(caught.value)
    assert 'train_dataset.train_path: missing; PaddleSeg needs it' in message
    assert 'val_dataset.val_path: missing; PaddleSeg needs it' in message


def test_losses_are_mixed_for_each_output(folder: Path) -> None:
    """The losses of OCRNet's configuration with Lovász-Softmax; a batch of 2 has `min_kept` 100000 pixels."""
    mixed = '{type: MixedLoss, losses: [{type: CrossEntropyLoss}, {type: LovaszSoftmaxLoss}], coef: [0.8, 0.2]}'
    other = (
        '{type: MixedLoss, losses: [{type: OhemCrossEntropyLoss, min_kept: 100000}, {type: DiceLoss, smooth: 2}], coef: [1, 3]}'
    )
    write(folder, 'run', f'_base_: ocrnet.yml\nloss: {{types: [{mixed}, {other}], coef: [1, 0.4]}}\n')
    first, second = recipe('run')['loss']
    entropy = {'name': 'cross_entropy', 'class_weights': None, 'avg_non_ignore': True, 'top_k': 1.0}
    assert first == {'name': 'mixed', 'losses': [entropy, {'name': 'lovasz'}], 'coefficients': [0.8, 0.2]}
    assert second['losses'] == [
        {'name': 'ohem', 'threshold': 0.7, 'min_kept_per_sample': 50000.0, 'class_weights': None},
        {'name': 'dice', 'class_weights': None, 'smooth': 2.0},
    ]
    assert second['coefficients'] == [1, 3]


def test_losses_that_published_configurations_mix_in_are_known(folder: Path) -> None:
    """OCRNet's for roads mixes in the Lovász hinge, another of OCRNet connectivity, DeepLabv3+'s region mutual information."""
    parts = '{type: CrossEntropyLoss}, {type: LovaszHingeLoss}, {type: RMILoss}, {type: SemanticConnectivityLoss}'
    mixed = f'{{type: MixedLoss, losses: [{parts}], coef: [1, 0.01, 0.5, 0.01]}}'
    write(folder, 'run', f'_base_: unet.yml\nloss: {{types: [{mixed}], coef: [1]}}\n')
    (loss,) = recipe('run')['loss']
    connectivity = {'name': 'semantic_connectivity', 'most': 10}
    assert loss['losses'][1:] == [{'name': 'lovasz_hinge', 'score': 'log_probability'}, {'name': 'rmi'}, connectivity]


@pytest.mark.parametrize('kind', ['CHASEDB1', 'DRIVE', 'HRF', 'STARE'])
def test_the_retina_data_sets_are_lists_of_files(folder: Path, kind: str) -> None:
    """With what UNet's configurations for them use: images of any size, DiceLoss, vertical flips."""
    text = f"""
_base_: unet.yml
model: {{num_classes: 2}}
train_dataset:
  _inherited_: False
  type: {kind}
  dataset_root: data/retina
  mode: train
  transforms: [type: RandomVerticalFlip, type: Normalize]
val_dataset:
  _inherited_: False
  type: {kind}
  dataset_root: data/retina
  mode: val
  transforms: [{{type: ResizeByLong, long_size: 1280}}, type: Normalize]
loss: {{types: [type: DiceLoss], coef: [1]}}
test_config: {{auc_roc: True}}
"""
    got = recipe(write(folder, 'run', text))
    lists = {'train': 'train_list.txt', 'eval': 'val_list.txt', 'separator': ' ', 'classes': ['background', 'vessel']}
    assert without_nulls(got['data']) == {'name': 'file_list', 'root': 'data/retina', **lists}
    assert got['loss'] == [{'name': 'dice', 'class_weights': None, 'smooth': 1.0}]
    assert got['transforms'] == [{'name': 'random_vertical_flip', 'probability': 0.1}]
    assert got['eval_transforms'] == [{'name': 'resize_by_long', 'side': 1280}]


def test_rotation_and_blur_are_read_with_their_defaults(folder: Path) -> None:
    steps = '[{type: RandomRotation}, {type: RandomBlur}, {type: RandomRotation, max_rotation: 5}, {type: RandomBlur, prob: 0.5'
    got = recipe('liteseg', f'train_dataset.transforms={steps}, blur_type: random}}, {{type: Normalize}}]')
    assert got['transforms'] == [
        {'name': 'random_rotation', 'max_degrees': 15.0},
        {'name': 'random_blur', 'probability': 0.1, 'kind': 'gaussian'},
        {'name': 'random_rotation', 'max_degrees': 5.0},
        {'name': 'random_blur', 'probability': 0.5, 'kind': 'random'},
    ]


def test_deeplab_for_odd_sizes_keeps_corners_and_pads_in_evaluation(folder: Path) -> None:
    text = """
_base_: deeplab.yml
model: {align_corners: True}
val_dataset: {transforms: [{type: Padding, target_size: [2049, 1025]}, {type: Normalize}]}
"""
    got = recipe(write(folder, 'run', text))
    assert got['model']['align_corners'] is True
    assert got['eval_transforms'] == [{'name': 'padding', 'target_size': [1025, 2049]}]
    assert recipe('deeplab')['model']['align_corners'] is False


def test_an_earlier_base_wins(folder: Path) -> None:
    """PaddleSeg lays its own keys over one base after the other."""
    for name, steps in (('first', 1), ('second', 2)):
        write(folder, name, f'iters: {steps}\ntest_config: {{{name}_only: {steps}}}\n')
    path = folder / f'{write(folder, "both", "_base_: [first.yml, second.yml]" + chr(10))}.yml'
    dialect = dialect_of(path)
    assert dialect is not None
    with pytest.raises(ConfigError) as caught:
        translate(path, dialect)
    message = str(caught.value)
    assert 'first.yml:2: test_config.first_only: not known here' in message
    assert 'second.yml:2: test_config.second_only: not known here' in message


@pytest.mark.parametrize(
    ('scheduler', 'rates'),
    [
        # Paddle's own default of end_lr is 0.0001, not 0
        ('{type: PolynomialDecay, learning_rate: 0.01}', {0: 0.01, 500: 0.00505, 999: 0.0001 + 0.0099 / 1000}),
        ('{type: PolynomialDecay, learning_rate: 0.01, end_lr: 0, decay_steps: 100}', {50: 0.005, 100: 0.0, 999: 0.0}),
        ('{type: CosineAnnealingDecay, learning_rate: 0.01, T_max: 1000}', {0: 0.01, 500: 0.005}),
        ('{type: StepDecay, learning_rate: 0.01, step_size: 300}', {299: 0.01, 300: 0.001, 900: 1e-5}),
        # LinearWarmup starts the schedule under it when it ends
        (
            '{type: StepDecay, learning_rate: 0.01, step_size: 300, warmup_iters: 100, warmup_start_lr: 0}',
            {50: 0.005, 100: 0.01, 399: 0.01, 400: 0.001, 700: 1e-4},
        ),
        (
            '{type: MultiStepDecay, learning_rate: 0.01, milestones: [300, 500], warmup_iters: 100, warmup_start_lr: 0}',
            {100: 0.01, 399: 0.01, 400: 0.001, 600: 1e-4},
        ),
        ('{type: PiecewiseDecay, boundaries: [300, 500], values: [0.01, 0.002, 0.0005]}', {299: 0.01, 300: 0.002, 500: 0.0005}),
    ],
)
def test_schedules_give_the_rates_of_paddle(folder: Path, scheduler: str, rates: dict[int, float]) -> None:
    """By hand, from the formulas in Paddle's documentation."""
    text = UNET.replace('160000', '1000') + f'lr_scheduler: {{_inherited_: False, {scheduler[1:]}\n'
    rate = schedule(write(folder, 'run', text))
    assert {step: rate(step) for step in rates} == pytest.approx(rates, rel=1e-6)


@pytest.mark.parametrize(
    ('optimizer', 'expected'),
    [
        ('{type: SGD}', {'name': 'sgd', 'momentum': 0.0, 'weight_decay': 0.0}),
        ('{type: Momentum, use_nesterov: True}', {'name': 'sgd', 'momentum': 0.9, 'nesterov': True}),
        ('{type: sgd, momentum: 0.8}', {'name': 'sgd', 'momentum': 0.8}),
        ('{type: Adam, beta1: 0.5}', {'name': 'adam', 'betas': [0.5, 0.999], 'weight_decay': 0.0}),
        ('{type: AdamW}', {'name': 'adamw', 'weight_decay': 0.01}),
    ],
)
def test_optimizers_have_the_defaults_of_paddleseg(folder: Path, optimizer: str, expected: dict[str, Any]) -> None:
    text = f'{UNET}optimizer: {{_inherited_: False, {optimizer[1:]}\n'
    assert expected.items() <= recipe(write(folder, 'run', text))['optimizer'].items()


@pytest.mark.parametrize('name', ['pp_liteseg_stdc1', 'ocrnet_hrnetw18', 'segformer_b0', 'deeplabv3p_xception65'])
def test_the_rate_of_every_step_is_the_original_one(folder: Path, name: str) -> None:
    """Both the schedulers and the rates that they gave are those of PaddleSeg's own run."""
    case = CASES[name]
    rate = schedule('unet', f'iters={case["iters"]}', f'lr_scheduler={json.dumps(case["original"])}')
    expected = {int(step): lr for step, lr in CASES[name]['lr'].items()}
    assert {step: rate(step) for step in expected} == pytest.approx(expected, rel=1e-10, abs=1e-18)


@pytest.mark.parametrize(
    ('lr', 'message'),
    [
        ('step_size: 0', 'lr_scheduler.step_size: expected a number from 1 on, got 0'),
        ('step_size: 1', 'lr_scheduler.step_size: 1 gives 999,999,899 decays of the rate; 10,000 are the most'),
    ],
)
def test_a_rate_that_decays_too_often_is_refused_without_listing_all_decays(folder: Path, lr: str, message: str) -> None:
    warm = f'{{type: StepDecay, learning_rate: 0.01, {lr}, warmup_iters: 100, warmup_start_lr: 0}}'
    with pytest.raises(ConfigError, match=re.escape(message)):
        schedule('unet', 'iters=1000000000', f'lr_scheduler={warm}')


def test_more_classes_than_a_label_map_holds_are_refused_without_naming_them(folder: Path) -> None:
    data = 'type: Dataset, dataset_root: data/camvid, num_classes: 1000000000'
    with pytest.raises(ConfigError, match='num_classes: 1,000,000,000 classes do not fit a label map of 8 bits'):
        schedule('unet', f'train_dataset={{{data}, train_path: data/camvid/t.txt}}', f'val_dataset={{{data}, val_path: v.txt}}')


def test_groups_and_clipping_are_taken_over(folder: Path) -> None:
    text = """
_base_: ocrnet.yml
optimizer:
  custom_cfg: [{name: backbone, lr_mult: 0.1, weight_decay_mult: 0.5}]
  grad_clip_cfg: {name: ClipGradByGlobalNorm, clip_norm: 5.0}
"""
    got = recipe(write(folder, 'run', text))
    assert got['parameters']['rules'] == [{'match': 'backbone.*', 'lr_factor': 0.1, 'weight_decay': 2e-5}]
    assert got['clip'] == {'norm': 5.0, 'per_tensor': False}


def test_own_keys_and_recipe_keys_can_be_set(folder: Path) -> None:
    """Like PaddleSeg's --opts; what is not a key of its file is one of the recipe."""
    got = recipe('liteseg', 'iters=100', 'lr_scheduler.learning_rate=0.1', 'data.root=/d', 'train.seed=3')
    assert (got['train']['steps'], got['train']['seed'], got['optimizer']['lr'], got['data']['root']) == (100, 3, 0.1, '/d')
    theirs = recipe('liteseg', 'train_dataset.dataset_root=/e', 'val_dataset.dataset_root=/e')
    assert theirs['data']['root'] == '/e'
    assert recipe('liteseg', 'train.steps=7')['train']['steps'] == 7
    assert recipe('liteseg', 'optimizer.lr=0.2')['optimizer']['lr'] == 0.2
    half = recipe('liteseg', 'batch_size=2')  # min_kept stays the same for the smaller batch
    assert half['loss'][0]['min_kept_per_sample'] == 65000


def test_values_keep_the_line_of_the_original(folder: Path) -> None:
    resolved = job('liteseg').resolved
    assert resolved.value['optimizer'].value['momentum'].origin == 'cityscapes.yml:14'
    assert resolved.value['optimizer'].value['lr'].origin == 'liteseg.yml:5'
    assert resolved.value['loss'].value[0].value['threshold'].origin == "PaddleSeg's default"


def test_weights_at_an_address_are_those_to_start_from(folder: Path) -> None:
    found = job('liteseg')
    assert (found.recipe.train.init_from, found.recipe.train.init_part) == (
        'https://example.org/PP_STDCNet1.tar.gz',
        'backbone',
    )
    assert found.resolved.value['train'].value['init_from'].origin == 'liteseg.yml:22' and not found.notes


def test_weights_in_a_file_are_taken(folder: Path) -> None:
    train = recipe('liteseg', 'model.backbone.pretrained=stdc.pdparams')['train']
    assert (train['init_from'], train['init_part'], train['init_misshapen']) == ('stdc.pdparams', 'backbone', 'skip')
    train = recipe('unet', 'model.pretrained=unet/model.pdparams')['train']
    assert (train['init_from'], train['init_part']) == ('unet/model.pdparams', 'all')


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ('model: {type: PSPNet}', "model.type: 'PSPNet' has no counterpart in Phalanx (it has PPLiteSeg, UNet, OCRNet,"),
        ('model: {typ: UNet}', "model.typ: not known here; did you mean 'type'?"),
        ('model: {use_decon: True}', "model.use_decon: not known here; did you mean 'use_deconv'?"),
        ('model: {num_classes: 20}', 'model.num_classes: 20 is not that of the data set, 19'),
        ('model: {align_corners: True}', 'model.align_corners: True has no counterpart in Phalanx, which knows only False'),
        ('model: {_inherited_: False}', 'model.type: missing; PaddleSeg needs it'),
        ('lr_schedular: {}', "lr_schedular: not known here; did you mean 'lr_scheduler'?"),
        ('optimizer: {type: RMSProp}', "optimizer.type: 'RMSProp' has no counterpart in Phalanx (it has SGD, Momentum,"),
        ('lr_scheduler: {warmup_iters: 5}', 'lr_scheduler.warmup_start_lr: missing; PaddleSeg needs it'),
        ('lr_scheduler: {type: CosineAnnealingDecay, T_max: 9}', 'lr_scheduler.T_max: the rate would rise again after step 9'),
        ('lr_scheduler: {learning_rate: fast}', "optimizer.lr: expected a number, got 'fast'"),  # message by our binder
        (
            'loss: {types: [{type: SemanticConnectivityLoss, use_argmax: False}]}',
            'loss.types[0].use_argmax: False has no counterpart in Phalanx',
        ),
        ('loss: {types: [{type: RMILoss, rmi_radius: 5}]}', 'loss.types[0].rmi_radius: 5 has no counterpart in Phalanx'),
        (
            'loss: {types: [{type: MixedLoss, losses: [{type: EdgeAttentionLoss}], coef: [1]}]}',
            "loss.types[0].losses[0].type: 'EdgeAttentionLoss' has no counterpart in Phalanx",
        ),
        ('loss: {types: [{type: MixedLoss, losses: [{type: DiceLoss}]}]}', 'loss.types[0].coef: missing; PaddleSeg needs it'),
        ('loss: {types: [{type: LovaszSoftmaxLoss, classes: all}]}', "loss.types[0].classes: 'all' has no counterpart"),
        ('loss: {types: [{type: CrossEntropyLoss, ignore_index: 0}]}', 'loss.types[0].ignore_index: 0 has no counterpart'),
        ('loss: {coef: [1, 2, 3], types: [{type: X}, {type: X}]}', 'loss.types: there are 2 losses and 3 coefficients'),
        ('test_config: {use_multilabel: True}', 'test_config.use_multilabel: True has no counterpart in Phalanx'),
        ('val_dataset: {dataset_root: other}', "val_dataset.dataset_root: 'other' is not that of train_dataset"),
        ('train_dataset: {transforms: [type: LimitLong]}', "train_dataset.transforms[0].type: 'LimitLong' has no counterpart"),
        (
            'train_dataset: {transforms: [type: Padding]}',
            'train_dataset.transforms[0].target_size: missing; PaddleSeg needs it',
        ),
        ('train_dataset: {transforms: [{type: Resize, interp: CUBIC}]}', "transforms[0].interp: 'CUBIC' has no counterpart"),
        ('batch_size: 0', 'batch_size: expected a number from 1 on, got 0'),
        ('iters:', 'iters: expected a number from 1 on, got None'),
        ('train_dataset: {transforms: []}', 'train_dataset.transforms: do not end with Normalize'),
    ],
)
def test_keys_without_a_counterpart_are_reported_with_their_line(folder: Path, wrong: str, message: str) -> None:
    write(folder, 'run', f'_base_: unet.yml\n{wrong}\n')
    with pytest.raises(ConfigError) as caught:
        open_job('run.yml')
    assert any(problem.startswith('run.yml:2: ') and message in problem for problem in caught.value.problems)


@pytest.mark.parametrize('name', sorted(FILES.keys() - {'cityscapes'}))
def test_the_written_recipe_means_the_same(folder: Path, name: str) -> None:
    assert main(['convert', 'recipe', f'{name}.yml', '--out', 'made/recipe.yml', '--set', 'iters=7']) == 0
    assert recipe('made/recipe') == recipe(name, 'iters=7')


def test_ignored_keys_stand_in_the_recipe_that_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(['convert', 'recipe', 'liteseg.yml', '--set', 'train_dataset.shuffle=false']) == 0
    first, *head = (line for line in capsys.readouterr().out.splitlines() if line.startswith('#'))
    assert first.startswith('# Recipe converted from liteseg.yml of PaddleSeg')
    assert any(line.startswith('# --set train_dataset.shuffle=false: train_dataset.shuffle is ignored') for line in head)


def test_a_recipe_of_ours_needs_no_conversion(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / 'ours.yml').write_text('task: segmentation\n')
    assert main(['convert', 'recipe', 'ours.yml']) == 2
    assert 'ours.yml: is not a configuration of a known Paddle project' in capsys.readouterr().err


def test_a_recipe_of_ours_is_not_taken_for_one_of_theirs() -> None:
    shipped = sorted((Path(__file__).parents[3] / 'recipes').rglob('*.yml'))
    assert shipped and not [path for path in shipped if dialect_of(path)]


@pytest.mark.parametrize(
    ('name', 'wrong', 'message'),
    [
        ('unet', 'model.type=BiSeNetV2', "model.type: 'BiSeNetV2' has no counterpart in Phalanx"),
        ('deeplab', 'model.backbone.type=ResNet18_vd', "DeepLabV3P with the backbone 'ResNet18_vd' has no counterpart"),
    ],
)
def test_another_model_is_the_only_problem_reported(folder: Path, name: str, wrong: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(name, wrong, 'loss.types=[{type: Nonsense}]', 'optimizer.type=Nonsense', 'batch_size=x')
    (line,) = caught.value.problems
    assert message in line


@pytest.mark.parametrize('name', ['liteseg', 'deeplab', 'segformer'])
def test_wrong_values_anywhere_are_reported_and_break_nothing(folder: Path, name: str) -> None:
    """The translation notes problems; whatever it lets through, the binder judges."""
    reading = Reading(paddleseg.DIALECT.project)
    root = paddleseg.DIALECT.read(Path(f'{name}.yml'), reading)
    assert not translated(paddleseg.DIALECT, root)
    wrong = sum(bool(translated(paddleseg.DIALECT, tree)) for _, tree in mutated(root))
    assert wrong > 100
