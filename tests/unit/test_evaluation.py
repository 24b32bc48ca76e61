"""An evaluation is watched at every batch, and ranks agree on whether it goes on a bounded number of times."""

from typing import Any

import pytest
import torch

from phalanx.engine.evaluation import AGREEMENTS, EvaluationStoppedError, evaluate
from phalanx.engine.runs import open_job

LINES = 41


def evaluated(**hooks: Any) -> Any:
    """41 lines in as many batches."""
    task = open_job('crnn_digits', [(text, text) for text in ('data.train_lines=1', f'data.eval_lines={LINES}')]).task
    cpu = torch.device('cpu')
    autocast = torch.autocast('cpu', enabled=False)
    return evaluate(task, task.model(), device=cpu, batch_size=1, workers=0, seed=0, bad_samples=0, autocast=autocast, **hooks)


def test_ranks_agree_at_most_twenty_times_and_a_heartbeat_comes_before_every_batch() -> None:
    """Before the batches 0, 3, .. 39: 14 times."""
    beats, asked = [], []
    found = evaluated(beat=lambda: beats.append(1), goes_on=lambda: asked.append(len(beats)) or True)
    assert len(beats) == found.samples == LINES
    assert asked == [batch + 1 for batch in range(0, LINES, 3)]
    assert len(asked) <= AGREEMENTS


def test_a_stop_ends_an_evaluation_within_a_twentieth_of_it() -> None:
    """Asked for during batch 7, it is heeded before batch 9."""
    beats: list[int] = []
    with pytest.raises(EvaluationStoppedError):
        evaluated(beat=lambda: beats.append(1), goes_on=lambda: len(beats) < 8)
    assert len(beats) == 10
