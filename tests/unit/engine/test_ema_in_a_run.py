"""An EMA is used when it has forgotten the beginning of the run, and never hides what the weights as trained can do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from running import TINY, records, run_here

SETTINGS = (
    *TINY,
    'ema={kind: ramp, decay: 0.4}',  # 7 windows of 1.67 updates: used from step 12 on
    'data.train_scenes=8',
    'data.eval_scenes=2',
    'train.global_batch_size=2',
    'train.steps=12',
    'evaluate.every=4',
    'checkpoint.every=4',
    'checkpoint.keep=5',
)


def test_weights_as_trained_count_until_their_average_can_be_right_and_are_shown_beside_it_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / 'run'
    assert run_here('train', *SETTINGS, '--save_dir', str(run)) == 0
    first, second, last = records(run, 'eval')
    assert 'raw' not in first
    assert 'raw' not in second
    assert last['raw'].keys() == {key for key in last if key not in ('kind', 'step', 'samples', 'seconds', 'raw')}
    averaged = [folder.name for folder in sorted((run / 'checkpoints').iterdir()) if (folder / 'averaged.safetensors').exists()]
    assert averaged == ['step_0000012']
    assert 'mean_iou as trained' in (run / 'report.html').read_text()
    assert 'as trained, without the EMA  mean_iou' in capsys.readouterr().out

    newest = str(run / 'checkpoints' / 'step_0000012')
    found = {}
    for how in (('--set', 'device=cpu'), ('--raw',), ('--set', 'ema=null')):
        assert run_here('eval', str(run), '--weights', newest, '--json', *how) == 0
        output = capsys.readouterr()
        found[how[-1]] = json.loads(output.out)['mean_iou'], output.err.rpartition(', ')[2].strip()
    assert found['device=cpu'] == (pytest.approx(last['mean_iou']), 'EMA')
    assert found['--raw'] == found['ema=null'] == (pytest.approx(last['raw']['mean_iou']), 'as trained')


def test_a_file_of_weights_has_no_other_weights_beside_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here('eval', 'pp_liteseg_digits', '--weights', 'mine.pdparams', '--raw') == 2
    assert '--raw: mine.pdparams is no checkpoint' in capsys.readouterr().err
