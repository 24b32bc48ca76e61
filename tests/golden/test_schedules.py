"""Learning rates against PaddleSeg, PaddleDetection and PaddleOCR.

Expected values are what the originals' schedulers gave for the configurations stored beside them (data/lr_schedules.json).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from phalanx.engine.optim.schedule import Schedule, constant, cosine, piecewise, polynomial

CASES = json.loads((Path(__file__).parent / 'data' / 'lr_schedules.json').read_text())

SCHEDULES: dict[str, Schedule] = {
    # PaddleSeg: the curve is squeezed between the end of the warm-up and the end of training.
    'pp_liteseg_stdc1': polynomial(0.005, 160000, 100, power=0.9, warmup_steps=1000, warmup_start_lr=1e-5),
    'ocrnet_hrnetw18': polynomial(0.01, 160000, 100, power=0.9),
    'segformer_b0': polynomial(6e-5, 160000, 100),
    'deeplabv3p_xception65': polynomial(0.01, 80000, 100, power=0.9),
    'tiny': polynomial(0.01, 100, 10, power=0.9, warmup_steps=20, warmup_start_lr=1e-5),
    # PaddleDetection: the curve is longer than training.
    'ppyoloe_crn_s': cosine(0.01, 30000, 100, epochs=360, warmup_epochs=5),
    'ppyoloe_crn_s_4_steps_an_epoch': cosine(0.01, 1200, 4, epochs=360, warmup_epochs=5),
    'ppyoloe_plus_crn_s': cosine(0.001, 8000, 100, epochs=96, warmup_epochs=5),
    'ppyoloe_plus_crn_s_4_steps_an_epoch': cosine(0.001, 320, 4, epochs=96, warmup_epochs=5),
    # PaddleOCR: the schedule begins after the warm-up, so everything in it comes 5 epochs later.
    'rec_mv3_none_bilstm_ctc': constant(0.0005, 720, 10),
    'rec_chinese_lite_train_v2.0': cosine(0.001, 5000, 10, epochs=505, warmup_epochs=5),
    'ch_PP-OCRv3_rec_distillation': piecewise(0.0005, 8000, 10, boundary_epochs=(705,), factors=(0.1,), warmup_epochs=5),
    'ch_PP-OCRv3_rec': cosine(0.001, 3500, 7, epochs=505, warmup_epochs=5),
    'en_PP-OCRv3_rec': cosine(0.001, 5000, 10, epochs=505, warmup_epochs=5),
    'SLANet': piecewise(0.001, 1000, 10, boundary_epochs=(40, 50), factors=(0.1, 0.05)),
}


def test_every_stored_schedule_is_compared() -> None:
    assert SCHEDULES.keys() == CASES.keys()


@pytest.mark.parametrize('name', SCHEDULES)
def test_the_rate_of_every_step_is_the_original_one(name: str) -> None:
    expected = {int(step): lr for step, lr in CASES[name]['lr'].items()}
    assert {step: SCHEDULES[name](step) for step in expected} == pytest.approx(expected, rel=1e-10, abs=1e-18)
