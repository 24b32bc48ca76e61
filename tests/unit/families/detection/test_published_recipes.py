"""Recipes of detectors with queries have the numbers of their authors' configurations, which are written down here by hand.

Peterande/D-FINE 4a1f73a (configs/dfine), Intellindust-AI-Lab/DEIMv2 0fff8d4 (configs/deimv2), lyuwenyu/RT-DETR 068dfde
(rtdetrv2_pytorch/configs/rtdetrv2) and PaddlePaddle/PaddleDetection (configs/rtdetr).
"""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.engine.job import open_job
from phalanx.engine.optim.groups import ParameterRule
from phalanx.engine.schema import Recipe
from phalanx.families.detection.transforms import BatchRandomResize, runs_in

# Recipe: epochs, the first without strong augmentation (None: never), samples per step, rate, its factor for the backbone,
# weight decay, how often 640 stands among the sizes (0: one size).
DFINE = {
    'n_coco': (160, 148, 128, 8e-4, 0.5, 1e-4, 0),
    's_coco': (132, 120, 32, 2e-4, 0.5, 1e-4, 20),
    'm_coco': (132, 120, 32, 2e-4, 0.1, 1e-4, 6),
    'l_coco': (80, 72, 32, 2.5e-4, 0.05, 1.25e-4, 4),
    'x_coco': (80, 72, 32, 2.5e-4, 0.01, 1.25e-4, 3),
    'n_obj365': (48, None, 128, 8e-4, 0.5, 1e-4, 0),
    's_obj365': (36, None, 32, 2.5e-4, 0.5, 1.25e-4, 20),
    'm_obj365': (36, None, 32, 2.5e-4, 0.1, 1.25e-4, 6),
    'l_obj365': (24, None, 32, 2.5e-4, 0.05, 1.25e-4, 4),
    'x_obj365': (24, None, 32, 2.5e-4, 0.01, 1.25e-4, 3),
    'n_obj2coco': (64, 56, 128, 8e-4, 0.5, 1e-4, 0),
    's_obj2coco': (64, 56, 32, 2.5e-4, 0.5, 1.25e-4, 10),
    'm_obj2coco': (56, 48, 32, 2.5e-4, 0.1, 1.25e-4, 6),
    'l_obj2coco': (36, 30, 32, 2.5e-4, 0.05, 1.25e-4, 4),
    'x_obj2coco': (36, 30, 32, 2.5e-4, 0.01, 1.25e-4, 3),
}
RTDETR = {
    'rtdetr_r18vd_6x_coco': (72, None, 16, 1e-4, 0.1, 1e-4, 3),
    'rtdetr_r34vd_6x_coco': (72, None, 16, 1e-4, 0.1, 1e-4, 3),
    'rtdetr_r50vd_m_6x_coco': (72, None, 16, 1e-4, 0.1, 1e-4, 3),
    'rtdetr_r50vd_6x_coco': (72, None, 16, 1e-4, 0.1, 1e-4, 3),
    'rtdetr_r101vd_6x_coco': (72, None, 16, 1e-4, 0.01, 1e-4, 3),
    'rtdetr_hgnetv2_l_6x_coco': (72, None, 16, 1e-4, 0.05, 1e-4, 3),
    'rtdetr_hgnetv2_x_6x_coco': (72, None, 16, 1e-4, 0.01, 1e-4, 3),
    'rtdetrv2_r18vd_120e_coco': (120, 117, 16, 1e-4, 1.0, 1e-4, 0),
    'rtdetrv2_r34vd_120e_coco': (120, 117, 16, 1e-4, 0.5, 1e-4, 3),
    'rtdetrv2_r50vd_m_7x_coco': (84, 81, 16, 1e-4, 0.1, 1e-4, 3),
    'rtdetrv2_r50vd_6x_coco': (72, 71, 16, 1e-4, 0.1, 1e-4, 3),
    'rtdetrv2_r101vd_6x_coco': (72, 71, 16, 1e-4, 0.01, 1e-4, 3),
    'rtdetrv2_hgnetv2_l_6x_coco': (72, 71, 16, 1e-4, 0.05, 1e-4, 3),
    'rtdetrv2_hgnetv2_x_6x_coco': (72, 71, 16, 1e-4, 0.01, 1e-4, 3),
    'rtdetrv2_r18vd_dsp_3x_coco': (36, 33, 16, 1e-4, 1.0, 1e-4, 0),
    'rtdetrv2_r34vd_dsp_1x_coco': (12, 10, 16, 1e-4, 0.5, 1e-4, 3),
    'rtdetrv2_r50vd_m_dsp_3x_coco': (36, 33, 16, 1e-4, 0.1, 1e-4, 3),
    'rtdetrv2_r50vd_dsp_1x_coco': (12, 10, 16, 1e-4, 0.1, 1e-4, 3),
}
TABLE = {**{f'dfine_hgnetv2_{name}': row for name, row in DFINE.items()}, **RTDETR}
# Recipe: size, mosaics and their last epoch, smallest side of an object, last epoch of the other strong augmentation,
# samples per step, rate, rate at the end, epochs of the flat and of the whole curve, epoch of the other matcher.
DEIMV2 = {
    'atto': (320, 0.3, 250, 12, 400, 128, 2e-3, 1e-3, 4000, 250, 468, 450),
    'femto': (416, 0.5, 250, 10, 400, 128, 1.6e-3, 8e-4, 4000, 250, 468, 450),
    'pico': (640, 0.5, 250, 8, 400, 128, 1.6e-3, 8e-4, 4000, 250, 468, 450),
    'n': (640, 0.5, 78, 1, 148, 128, 8e-4, 8e-4, 2000, 160, None, 136),
}


def opened(name: str) -> tuple[Recipe, dict[str, Any], tuple[Any, ...]]:
    """The recipe, the options of its optimizer and schedule, and its transforms by their names."""
    job = open_job(name)
    options = {**job.recipe.optimizer.keywords, **job.recipe.schedule.keywords}  # type: ignore[attr-defined]
    return job.recipe, options, job.task.transforms['train']


def backbone_factor(rules: tuple[ParameterRule, ...]) -> float:
    return next((rule.lr_factor for rule in rules if rule.match == 'backbone.*'), 1.0)


@pytest.mark.parametrize('name', TABLE)
def test_a_recipe_has_the_numbers_of_its_original(name: str) -> None:
    epochs, stop, batch, lr, factor, decay, repeats = TABLE[name]
    recipe, options, transforms = opened(name)
    assert (recipe.train.epochs, recipe.train.global_batch_size) == (epochs, batch)
    assert (options['lr'], options['weight_decay']) == (lr, decay)
    assert backbone_factor(recipe.parameters.rules) == factor
    assert recipe.clip is not None and recipe.clip.norm == 0.1
    fine_tunes = name.endswith('obj2coco')
    assert options['warmup_steps'] == (0 if fine_tunes else 500 if 'dfine' in name else 2000)
    assert recipe.ema is not None
    assert (recipe.ema.kind, recipe.ema.decay) == ('exponential', 0.9999)
    assert recipe.ema.warmup == (0 if fine_tunes else 1000 if 'dfine' in name else 2000)
    strong = {'RandomDistort', 'RandomExpand', 'RandomCrop', *(['BatchRandomResize'] if repeats else [])}
    for epoch in {0, (stop or epochs) - 1, stop or 0, epochs - 1}:
        active = {type(each).__name__ for each in transforms if runs_in(each, epoch)}
        assert active & {*strong, 'BatchRandomResize'} == (strong if stop is None or epoch < stop else set()), epoch
        assert active - strong <= {'RandomFlip', 'Resize'}
    sizes = next((each.sizes for each in transforms if isinstance(each, BatchRandomResize)), ())
    expected = (480, 512, 544, 576, 608, *(640,) * repeats, 672, 704, 736, 768, 800)
    assert tuple(sorted(sizes)) == (expected if repeats else ())


@pytest.mark.parametrize('size', DEIMV2)
def test_deimv2_augments_in_four_phases(size: str) -> None:
    """Nothing for four epochs, then mosaics or zooming out and cropping, then the latter alone, then nothing again."""
    side, share, mosaics, small, strong, batch, lr, end_lr, warmup, flat, curve, matcher = DEIMV2[size]
    recipe, options, transforms = opened(f'deimv2_hgnetv2_{size}_coco')
    assert (recipe.train.epochs, recipe.train.global_batch_size) == (160 if size == 'n' else 500, batch)
    assert (options['lr'], options['end_lr'], options['weight_decay']) == (lr, end_lr, 1e-4)
    assert (options['warmup_steps'], options['warmup_power']) == (warmup, 2)
    assert (options['flat_epochs'], options.get('epochs')) == (flat, curve)
    assert backbone_factor(recipe.parameters.rules) == 0.5
    assert recipe.ema is not None and (recipe.ema.decay, recipe.ema.warmup) == (0.9999, 1000)
    by_name = {type(each).__name__: each for each in transforms}
    assert (by_name['Mosaic'].probability, by_name['Mosaic'].target_size) == (share, (side, side))
    assert by_name['RandomExpand'].skips_mosaics and by_name['RandomCrop'].skips_mosaics
    assert {by_name['Resize'].target_size, by_name['Mosaic'].target_size} == {(side, side)}
    assert {each.side for each in transforms if type(each).__name__ == 'DropSmall'} == {small}
    always, usual = {'RandomFlip', 'Resize', 'DropSmall'}, {'RandomDistort', 'RandomExpand', 'RandomCrop'}
    of_mosaics = {'Mosaic', *(('CopyPaste', 'MixUp') if size == 'n' else ())}
    first = usual | of_mosaics
    for epoch, expected in {
        0: set[str](), 3: set[str](), 4: first, mosaics - 1: first, mosaics: usual, strong - 1: usual, strong: set[str]()
    }.items():  # fmt: skip
        assert {type(each).__name__ for each in transforms if runs_in(each, epoch)} == always | expected, epoch
    loss = open_job(f'deimv2_hgnetv2_{size}_coco').task.losses[0][0]
    assert (loss.classes, loss.gamma, loss.matcher_change_epoch) == ('matchability', 1.5, matcher)
