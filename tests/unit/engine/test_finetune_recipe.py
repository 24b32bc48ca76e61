"""`phalanx train RECIPE --finetune`: what it chooses for a recipe, and what it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from phalanx.engine.finetune import choose_settings, open_finetune_job
from phalanx.engine.job import Job, open_job
from phalanx.families.segmentation.data import cityscapes
from phalanx.system.errors import RequestError
from phalanx.weights.published import PUBLISHED, class_names, recipe_of
from running import TINY, records, run_here

BOXES = ('data.name=digit_scenes', 'data.train_scenes=400', 'data.eval_scenes=40', 'device=cpu')


def job(recipe: str, *words: str) -> Job:
    return open_finetune_job(recipe, [(word, '--set') for word in words])[0]


def choices(recipe: str, *words: str) -> dict[str, Any]:
    return {choice.key: choice.value for choice in choose_settings(open_job(recipe, [(word, '--set') for word in words]))}


def test_the_weights_are_the_first_that_are_published_for_the_network() -> None:
    weights = {
        name: choices(recipe, *words)['train.init_from']
        for name, recipe, words in (
            ('plus', 'ppyoloe_plus_s', BOXES),
            ('plus m', 'ppyoloe_plus_s', (*BOXES, 'model.size=m')),
            ('not plus', 'ppyoloe_digits', BOXES[-1:]),
            ('stdc1', 'pp_liteseg_digits', BOXES[-1:]),
            ('stdc2', 'pp_liteseg_digits', ('model.backbone=stdc2', BOXES[-1])),
        )
    }
    assert weights == {
        'plus': 'ppyoloe_plus_crn_s_80e_coco',
        'plus m': 'ppyoloe_plus_crn_m_80e_coco',
        'not plus': 'ppyoloe_crn_s_obj365_pretrained',
        'stdc1': 'pp_liteseg_stdc1_cityscapes_scale1.0',
        'stdc2': 'pp_liteseg_stdc2_cityscapes_scale1.0',
    }


def test_a_bare_base_recipe_can_be_finetuned() -> None:
    recipe = job('ppyoloe', *BOXES).recipe
    assert recipe.train.init_from == 'ppyoloe_crn_s_obj365_pretrained'
    assert recipe.train.steps == 1600 // 8 and recipe.scaling.rule == 'none'
    assert recipe.optimizer.keywords['lr'] == 1.5e-4 and recipe.schedule.keywords['warmup_steps'] == 20
    assert recipe.ema is not None and 7 / (1 - recipe.ema.decay) == pytest.approx(100)  # settled in the middle of the run


def test_what_a_person_says_goes_over_what_is_chosen_and_the_rest_follows_it() -> None:
    words = ('train.init_from=mine.pdparams', 'train.epochs=2', 'train.batch_size_per_rank=4', 'optimizer.lr=0.5')
    recipe = job('ppyoloe_plus_s', *BOXES, *words).recipe
    assert (recipe.train.init_from, recipe.train.steps, recipe.train.epochs) == ('mine.pdparams', None, 2)
    assert recipe.train.batch_size_per_rank == 4 and recipe.optimizer.keywords['lr'] == 0.5
    assert recipe.schedule.keywords['steps'] == 200  # two epochs of 400 images, four at once


def test_a_batch_that_depends_on_the_number_of_ranks_is_refused_with_the_global_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Length, schedule and rate would be those of one rank."""
    words = ('--finetune', '--save_dir', str(tmp_path / 'run'), '--nproc_per_node', '2', '--batch_size', '4', '--set')
    assert run_here('train', 'ppyoloe_plus_s', *words, *BOXES, 'train.init_from=mine.pdparams') == 2
    assert 'for 2 ranks give --set train.global_batch_size=8 in its place' in capsys.readouterr().err


@pytest.mark.parametrize(('recipe', 'network'), [('unet_digits', 'unet'), ('crnn_digits', 'crnn')])
def test_a_network_without_published_weights_is_refused_with_a_cure(recipe: str, network: str) -> None:
    """There are some of a CRNN that is twice as wide."""
    with pytest.raises(RequestError, match=rf'lists no weights of this network \({network}\); .* --set train\.init_from='):
        open_finetune_job(recipe, [('device=cpu', '--set')])


def test_it_says_what_it_takes_and_offline_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv('PHALANX_CACHE', str(tmp_path))
    monkeypatch.setenv('PHALANX_OFFLINE', '1')
    words = ('--finetune', '--save_dir', str(tmp_path / 'run'), '--set', 'data.train_scenes=48', 'data.eval_scenes=8')
    assert run_here('train', 'pp_liteseg_digits', *words) == 2
    out, err = capsys.readouterr()
    assert 'train.init_from=pp_liteseg_stdc1_cityscapes_scale1.0' in out
    assert 'published weights of this network: Cityscapes, mIoU 77.04; Apache-2.0' in out
    assert '1,200 samples, 25 times the 48 of the data set' in out
    assert 'nothing is fetched offline' in err and '`phalanx weights get pp_liteseg_stdc1_cityscapes_scale1.0`' in err


def test_it_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    safetensors.torch.save_file(
        open_job(TINY[0], [(word, word) for word in TINY[2:]]).task.model().state_dict(), tmp_path / 'w.safetensors'
    )
    given = (f'train.init_from={tmp_path}/w.safetensors', 'train.steps=3', 'evaluate.patience=null')
    assert run_here('train', *TINY, *given, '--finetune', '--save_dir', str(tmp_path / 'run')) == 0
    assert '--finetune uses' in capsys.readouterr().out
    assert records(tmp_path / 'run', 'eval')[-1]['step'] == 3


def test_the_classes_of_published_weights_are_known() -> None:
    assert class_names('pp_liteseg_stdc1_cityscapes_scale1.0') == tuple(cityscapes.CLASSES)
    assert class_names('PP_STDCNet1') == ()
    assert recipe_of('en_PP-OCRv3_rec') == 'en_PP-OCRv3_rec' and recipe_of(PUBLISHED['en_PP-OCRv3_rec'].address) is not None
    assert recipe_of('ppyoloe_plus_crn_s_80e_coco') is None
