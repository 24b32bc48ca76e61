"""A run that continues with another global batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import TINY, run_here

SETTINGS = (*TINY, 'data.train_scenes=8', 'data.eval_scenes=2')


def test_a_run_resumed_at_another_global_batch_says_what_changes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One step of 2 of the 8 samples is a quarter of an epoch."""
    run = '--save_dir', str(tmp_path / 'run'), '--resume', 'auto'
    assert run_here('train', *SETTINGS, 'train.steps=1', 'train.global_batch_size=2', *run) == 0
    capsys.readouterr()
    assert run_here('train', *SETTINGS, 'train.steps=2', 'train.global_batch_size=4', *run) == 0
    assert (
        'resumed at sample 2 (epoch 0.25): ranks 1 -> 1, global batch 2 -> 4, steps 1 of 2 -> 1 of 2 '
        '(train.steps counts updates of the weights)'
    ) in ' '.join(capsys.readouterr().out.split())
