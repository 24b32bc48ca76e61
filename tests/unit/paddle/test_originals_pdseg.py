"""Configurations of PaddleSeg 0.x, with keys in upper case, run as they are. The texts restate what its published files say;
what must come out follows from its release 0.8 (config.py, solver.py, reader.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mutations import mutated, translated
from phalanx.config.read import ConfigError, to_plain
from phalanx.engine.job import Job, open_job
from phalanx.engine.optim.groups import parameter_groups
from phalanx.engine.optim.schedule import Schedule
from phalanx.families.segmentation.models import MODELS
from phalanx.paddle.configs import dialect_of, pdseg
from phalanx.paddle.configs.dialect import Reading

UNET_PET = """
TRAIN_CROP_SIZE: (512, 512) # (width, height)
EVAL_CROP_SIZE: (512, 512)
AUG:
    AUG_METHOD: "unpadding"
    FIX_RESIZE_SIZE: (512, 512)
    INF_RESIZE_VALUE: 500
    MAX_RESIZE_VALUE: 600
    MIN_RESIZE_VALUE: 400
    MAX_SCALE_FACTOR: 1.25
    MIN_SCALE_FACTOR: 0.75
    SCALE_STEP_SIZE: 0.25
    MIRROR: True
BATCH_SIZE: 4
DATASET:
    DATA_DIR: "./dataset/mini_pet/"
    IMAGE_TYPE: "rgb"
    NUM_CLASSES: 3
    TEST_FILE_LIST: "./dataset/mini_pet/file_list/test_list.txt"
    TRAIN_FILE_LIST: "./dataset/mini_pet/file_list/train_list.txt"
    VAL_FILE_LIST: "./dataset/mini_pet/file_list/val_list.txt"
    VIS_FILE_LIST: "./dataset/mini_pet/file_list/test_list.txt"
    IGNORE_INDEX: 255
    SEPARATOR: " "
FREEZE: {MODEL_FILENAME: "__model__", PARAMS_FILENAME: "__params__"}
MODEL: {MODEL_NAME: "unet", DEFAULT_NORM_TYPE: "bn"}
TEST: {TEST_MODEL: "./saved_model/unet_pet/final/"}
TRAIN: {MODEL_SAVE_DIR: "./saved_model/unet_pet/", PRETRAINED_MODEL_DIR: "./pretrained_model/unet_bn_coco/", SNAPSHOT_EPOCH: 10}
SOLVER: {NUM_EPOCHS: 100, LR: 0.005, LR_POLICY: "poly", OPTIMIZER: "adam"}
"""
XCEPTION = """
EVAL_CROP_SIZE: (2049, 1025)
TRAIN_CROP_SIZE: (769, 769)
AUG: {AUG_METHOD: u"stepscaling", FIX_RESIZE_SIZE: "(2048, 1024)", MAX_SCALE_FACTOR: 2.0, MIN_SCALE_FACTOR: 0.5, TO_RGB: True}
BATCH_SIZE: 16
MEAN: [0.1, 0.2, 0.3]
DATASET: {DATA_DIR: d, NUM_CLASSES: 19, TRAIN_FILE_LIST: lists/train.list, VAL_FILE_LIST: lists/val.list, SEPARATOR: "|"}
MODEL: {MODEL_NAME: deeplabv3p, DEEPLAB: {BACKBONE: xception_65, ASPP_WITH_SEP_CONV: True}}
TRAIN: {SNAPSHOT_EPOCH: 10, SYNC_BATCH_NORM: True}
SOLVER: {LR: 0.01, LR_POLICY: poly, OPTIMIZER: sgd, NUM_EPOCHS: 100}
"""
LITE = """
EVAL_CROP_SIZE: (2049, 1025)
TRAIN_CROP_SIZE: (769, 769)
AUG: {AUG_METHOD: "stepscaling"}
BATCH_SIZE: 32
DATASET: {DATA_DIR: d, NUM_CLASSES: 19, TRAIN_FILE_LIST: d/train.list, VAL_FILE_LIST: d/val.list}
MODEL:
    MODEL_NAME: deeplabv3p
    DEEPLAB:
        BACKBONE: "mobilenetv3_large"
        OUTPUT_STRIDE: 32
        BACKBONE_LR_MULT_LIST: [0.15, 0.35, 0.65, 0.85, 1]
        ENCODER:
            POOLING_STRIDE: (4, 5)
            POOLING_CROP_SIZE: (769, 769)
            ASPP_WITH_SE: True
            SE_USE_QSIGMOID: True
            ASPP_CONVS_FILTERS: 128
            ASPP_WITH_CONCAT_PROJECTION: False
            ADD_IMAGE_LEVEL_FEATURE: False
        DECODER: {USE_SUM_MERGE: True, CONV_FILTERS: 19, OUTPUT_IS_LOGITS: True}
SOLVER: {LR: 0.2, LR_POLICY: "poly", OPTIMIZER: "sgd", NUM_EPOCHS: 850}
"""
OCRNET = """
EVAL_CROP_SIZE: (2048, 1024)
TRAIN_CROP_SIZE: (1024, 512)
AUG: {AUG_METHOD: stepscaling}
DATASET: {DATA_DIR: d, NUM_CLASSES: 19, TRAIN_FILE_LIST: d/train.list, VAL_FILE_LIST: d/val.list}
MODEL:
    MODEL_NAME: "ocrnet"
    HRNET: {STAGE2: {NUM_CHANNELS: [18, 36]}, STAGE3: {NUM_CHANNELS: [18, 36, 72]}, STAGE4: {NUM_CHANNELS: [18, 36, 72, 144]}}
    OCR: {OCR_MID_CHANNELS: 512, OCR_KEY_CHANNELS: 256}
    MULTI_LOSS_WEIGHT: [1.0, 0.5]
SOLVER: {LR: 0.01, OPTIMIZER: sgd, NUM_EPOCHS: 500}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in {'unet_pet': UNET_PET, 'xception': XCEPTION, 'ocrnet': OCRNET, 'lite': LITE}.items():
        (tmp_path / f'{name}.yaml').write_text(text.lstrip())
    return tmp_path


def job(name: str, *assignments: str) -> Job:
    return open_job(f'{name}.yaml', [(text, text) for text in assignments])


def recipe(name: str, *assignments: str) -> dict[str, Any]:
    resolved: dict[str, Any] = to_plain(job(name, *assignments).resolved)
    return resolved


def test_unet_comes_out_as_published() -> None:
    got = recipe('unet_pet')
    assert got['task'] == 'segmentation'
    assert got['model'] == {'name': 'unet', 'upsampling': 'bilinear', 'channels': 64}
    lists = {
        'root': 'dataset/mini_pet',
        'train': 'file_list/train_list.txt',
        'eval': 'file_list/val_list.txt',
        'separator': ' ',
    }
    assert lists.items() <= got['data'].items()
    assert len(got['data']['classes']) == 3
    assert [step['name'] for step in got['transforms']] == ['resize', 'random_flip', 'random_padding_crop']
    assert [step['name'] for step in got['eval_transforms']] == ['resize', 'padding']
    assert (got['train']['epochs'], got['train']['global_batch_size']) == (100, 4)  # the batch of all cards
    adam = {'name': 'adam', 'lr': 0.005, 'betas': [0.9, 0.999], 'weight_decay': 4e-5}
    assert adam.items() <= got['optimizer'].items()
    assert (got['schedule']['name'], got['schedule']['power'], got['schedule']['end_lr']) == ('polynomial', 0.9, 0)
    assert (got['evaluate']['every_epochs'], got['checkpoint']['every_epochs'], got['norm_sync']) == (10, 10, 'off')
    assert (got['precision']['dtype'], got['train']['init_from']) == ('fp32', None)
    assert got['loss'][0]['name'] == 'cross_entropy'


def test_xception_and_ocrnet_come_out_as_published() -> None:
    got = recipe('xception')
    assert got['model'] == {
        'name': 'deeplabv3p',
        'backbone': {'name': 'xception65'},
        'output_stride': 16,
        'dilations': None,  # those of the stride
        'pyramid': True,
        'decoder': True,
        'dropout': 0.9,
        'align_corners': True,
        'norm_groups': None,
    }
    assert got['transforms'][0] == {'name': 'resize_step_scaling', 'min': 0.5, 'max': 2.0, 'step': 0.25}
    assert got['transforms'][-1] == {'name': 'random_padding_crop', 'crop_size': [769, 769]}
    assert got['eval_transforms'] == [{'name': 'padding', 'target_size': [1025, 2049]}]
    assert (got['mean'], got['norm_sync'], got['data']['train']) == ([0.1, 0.2, 0.3], 'global', '../lists/train.list')
    assert {'name': 'sgd', 'momentum': 0.9, 'lr': 0.01}.items() <= got['optimizer'].items()
    assert recipe('xception', 'AUG.TO_RGB=False')['mean'] == [0.3, 0.2, 0.1]  # in the order of BGR
    got = recipe('ocrnet')
    assert (got['model']['name'], got['model']['backbone']['name'], got['loss_coefficients']) == (
        'ocrnet',
        'hrnet_w18',
        [1.0, 0.5],
    )


def test_other_backbones_of_deeplab_come_out_as_published() -> None:
    """Its parts that are switched off, its rates by depth, and the decay of the norms of a backbone."""
    parts = ('ENCODER_WITH_ASPP=False', 'ENABLE_DECODER=False', 'BACKBONE=mobilenetv2')
    got = recipe('xception', *(f'MODEL.DEEPLAB.{part}' for part in parts))
    assert {'backbone': {'name': 'mobilenet_v2'}, 'pyramid': False, 'decoder': False}.items() <= got['model'].items()
    assert got['parameters']['rules'] == [{'match': 'backbone.*', 'lr_factor': 1.0, 'weight_decay': 4e-5}]
    rates = 'MODEL.DEEPLAB.BACKBONE_LR_MULT_LIST=[0.1, 0.1, 0.2, 0.2, 1.0]'
    got = recipe('xception', 'MODEL.DEEPLAB.BACKBONE=resnet_vd_50', 'MODEL.DEEPLAB.OUTPUT_STRIDE=8', rates)
    assert {'backbone': {'name': 'resnet50_vd'}, 'output_stride': 8}.items() <= got['model'].items()
    assert [(rule['match'], rule['lr_factor']) for rule in got['parameters']['rules']] == [
        ('backbone.stem.*', 0.1),
        ('backbone.stages.0.*', 0.1),
        ('backbone.stages.1.*', 0.2),
        ('backbone.stages.2.*', 0.2),
        ('backbone.stages.3.*', 1.0),
    ]
    got = recipe('xception', 'MODEL.DEFAULT_NORM_TYPE=gn')
    assert got['model']['norm_groups'] == 32


def test_the_rates_of_the_lite_backbone_are_those_of_its_convolutions_by_depth() -> None:
    """Its release 0.8 counts blocks in threes and gives no rate to norms: here, every parameter."""
    got = job('lite')
    assert to_plain(got.resolved)['model'] == {
        'name': 'lraspp',
        'backbone': {'name': 'mobilenet_v3_halved'},
        'window': 769,
        'align_corners': True,
    }
    model = MODELS['lraspp'](19)
    rates = {}
    for group in parameter_groups(model, got.recipe.parameters):
        for parameter in group['params']:
            rates[id(parameter)] = group['lr_factor']
    by_name = {name: rates[id(parameter)] for name, parameter in model.named_parameters()}
    depth = {'stem': 0, 'stages.0': 0, 'stages.1': 3, 'stages.2': 6, 'stages.3': 12, 'last': 15}
    for name, rate in by_name.items():
        if '.norm.' in name or not name.startswith('backbone.'):
            assert rate == 1, name
            continue
        part = next(part for part in depth if name.startswith(f'backbone.{part}.'))
        block = depth[part] + (int(name.split('.')[3]) if part.startswith('stages') else 0)
        assert rate == [0.15, 0.35, 0.65, 0.85, 1][min(block // 3, 4)], name


def test_losses_of_one_score_for_two_classes_are_taken_on_two() -> None:
    got = job(
        'unet_pet', 'SOLVER.LOSS=["lovasz_hinge_loss", "bce_loss"]', 'DATASET.NUM_CLASSES=2', 'SOLVER.LOSS_WEIGHT.BCE_LOSS=0.5'
    )
    (loss,) = to_plain(got.resolved)['loss']
    assert [each['name'] for each in loss['losses']] == ['lovasz_hinge', 'cross_entropy']
    assert (loss['losses'][0]['score'], loss['coefficients']) == ('log_odds', [1.0, 0.5])
    assert any('that of PaddleSeg 0.x one for both' in note for note in got.notes)


def test_the_document_of_mixed_precision_can_be_followed() -> None:
    """The overrides of its three commands, in the types that a shell hands over."""
    pairs = ('BATCH_SIZE=8', 'TRAIN.PRETRAINED_MODEL_DIR=pretrained_model/unet_bn_coco', 'SOLVER.LR=5e-5')
    got = recipe('unet_pet', *pairs)
    assert (got['train']['global_batch_size'], got['optimizer']['lr'], got['precision']['dtype']) == (8, 5e-5, 'fp32')
    dynamic = recipe('unet_pet', *pairs, 'MODEL.FP16=True')['precision']
    assert (dynamic['dtype'], dynamic['loss_scale']) == ('fp16', 'dynamic')
    assert recipe('unet_pet', *pairs, 'MODEL.FP16=True', 'MODEL.SCALE_LOSS=dynamic')['precision'] == dynamic
    static = recipe('unet_pet', *pairs, 'MODEL.FP16=True', 'MODEL.SCALE_LOSS=512.0')['precision']
    assert (static['dtype'], static['loss_scale']) == ('fp16', 512.0)


def test_weights_that_are_not_there_are_reported_and_training_starts_from_scratch(folder: Path) -> None:
    notes = '\n'.join(job('unet_pet').notes)
    assert 'there is no folder pretrained_model/unet_bn_coco, so training starts from scratch' in notes
    (folder / 'pretrained_model/unet_bn_coco').mkdir(parents=True)
    with pytest.raises(ConfigError, match=r'holds no model\.pdparams'):
        job('unet_pet')
    (folder / 'pretrained_model/unet_bn_coco/model.pdparams').touch()
    assert recipe('unet_pet')['train']['init_from'] == 'pretrained_model/unet_bn_coco/model.pdparams'


def test_the_rate_holds_still_for_the_warm_up() -> None:
    """By hand: solver.py decays over the steps after the warm-up, with the power of 0.9, to 0."""
    got = job('xception', 'SOLVER.LR_WARMUP=True', 'SOLVER.LR_WARMUP_STEPS=100', 'SOLVER.LR=0.1').recipe
    rate: Schedule = got.schedule(0.1, 1100, 11.0)
    expected = {0: 0.0, 50: 0.05, 100: 0.1, 600: 0.1 * 0.5**0.9}
    assert {step: rate(step) for step in expected} == pytest.approx(expected)
    got = job('xception', 'SOLVER.LR_POLICY=piecewise', 'SOLVER.DECAY_EPOCH=[2, 4]').recipe
    rate = got.schedule(0.1, 100, 10.0)
    assert [rate(step) for step in (19, 20, 40)] == pytest.approx([0.1, 0.01, 0.001])


@pytest.mark.parametrize(
    ('name', 'wrong', 'message'),
    [
        ('unet_pet', 'MODEL.MODEL_NAME=icnet', "MODEL.MODEL_NAME: 'icnet' has no counterpart in Phalanx"),
        ('xception', 'MODEL.DEEPLAB.BACKBONE=xception_41', "deeplabv3p with the backbone 'xception_41' has no counterpart"),
        ('ocrnet', 'MODEL.HRNET.STAGE2.NUM_CHANNELS=[40, 80]', 'ocrnet with channels'),
    ],
)
def test_another_model_is_the_only_problem_reported(name: str, wrong: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe(name, wrong, 'SOLVER.OPTIMIZER=nonsense', 'NONSENSE.KEY=1', 'SOLVER.LR_POLICY=nonsense')
    (line,) = caught.value.problems
    assert message in line


@pytest.mark.parametrize(
    ('wrong', 'message'),
    [
        ('MODEL.SCALE_LOSS=sometimes', 'expected a number or "dynamic", got \'sometimes\''),
        ('SOLVER.LR_POLICY=cosine', "SOLVER.LR_POLICY: 'cosine' has no counterpart"),
        ('SOLVER.LOSS=["dice_loss"]', "SOLVER.LOSS: 'dice_loss' has no counterpart"),
        ('SOLVER.LOSS={a: 1}', "SOLVER.LOSS: {'a': 1} has no counterpart"),
        ('AUG={FLIP: true, FLIP_RATIO: half}', "probability: expected a number, got 'half'"),
        ('MEAN=0.3', 'mean: expected a list'),
        ('AUG.RICH_CROP.ENABLE=True', 'AUG.RICH_CROP.ENABLE: True has no counterpart'),
        ('SOLVER.LEARNING=1', 'SOLVER.LEARNING: not known here'),
        ('MODEL.DEFAULT_NORM_TYPE=gn', "MODEL.DEFAULT_NORM_TYPE: 'gn' has no counterpart"),
    ],
)
def test_keys_without_a_counterpart_are_reported(wrong: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        recipe('unet_pet', wrong)
    assert message in str(caught.value)


def test_none_is_null_in_a_file_too() -> None:
    assert recipe('unet_pet', 'SOLVER.CROSS_ENTROPY_WEIGHT=None')['loss'] == recipe('unet_pet')['loss']


@pytest.mark.parametrize('name', ['unet_pet', 'xception', 'ocrnet', 'lite'])
def test_wrong_values_anywhere_are_reported_and_break_nothing(name: str) -> None:
    """The translation notes problems; whatever it lets through, the binder judges."""
    assert dialect_of(Path(f'{name}.yaml')) is pdseg.DIALECT
    root = pdseg.DIALECT.read(Path(f'{name}.yaml'), Reading(pdseg.DIALECT.project))
    assert not translated(pdseg.DIALECT, root)
    assert sum(bool(translated(pdseg.DIALECT, tree)) for _, tree in mutated(root)) > 100
