"""The time that a run took, over all of its starts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.engine.job import open_job
from phalanx.engine.progress import Progress
from phalanx.engine.trainer import Trainer
from running import TINY

EARLIER = {'seconds': 1000.0, 'training_seconds': 900.0, 'waiting_seconds': 90.0, 'timed_samples': 18, 'peak_memory_mb': 1e6}


def summary(folder: Path, steps: int, **earlier: Any) -> dict[str, Any]:
    """The summary of a run with a global batch of 6 that had made 3 steps before this start, which ends it at `steps`."""
    job = open_job(TINY[0], [(word, word) for word in (*TINY[2:], f'train.steps={steps}', 'evaluate.enabled=false')])
    progress = Progress(step=3, batches=((0, 6),), **earlier)
    trainer: Trainer = Trainer(job.recipe, job.task, folder=folder, device=torch.device('cpu'), progress=progress)
    return trainer.train(trainer.report)


def test_a_start_with_nothing_left_to_train_reports_the_time_of_those_before(tmp_path: Path) -> None:
    found = summary(tmp_path, 3, **EARLIER)
    assert found['seconds'] >= 1000
    assert found['samples_per_s'] == pytest.approx(18 / 900)
    assert found['data_wait'] == pytest.approx(0.1)
    assert found['peak_memory_mb'] == 1e6


def test_a_start_adds_its_time_and_its_samples(tmp_path: Path) -> None:
    found = summary(tmp_path, 4, **EARLIER)
    assert found['seconds'] > 1000
    assert 24 / found['samples_per_s'] > 900  # seconds of training
    assert found['data_wait'] * 24 / found['samples_per_s'] > 90


def test_a_run_without_a_step_has_no_speed(tmp_path: Path) -> None:
    """Such as one whose earlier starts did not keep their time, with nothing left to train."""
    found = summary(tmp_path, 3)
    assert (found['samples_per_s'], found['data_wait']) == (None, None)


def test_a_finished_run_started_again_keeps_its_summary(tmp_path: Path) -> None:
    """A start that trains on, and one that finds a damaged summary, write another one."""
    finished = {'steps': 3, 'best_step': 0, 'best': None, 'seconds': 1002.5, 'initial_weights': [{'source': 'w.pt'}]}
    (tmp_path / 'summary.json').write_text(json.dumps(finished))
    assert summary(tmp_path, 3, **EARLIER) == finished
    assert summary(tmp_path, 4, **EARLIER)['steps'] == 4
    for damaged in ('', '[]', '{"steps": 3}'):
        (tmp_path / 'summary.json').write_text(damaged)
        assert summary(tmp_path, 3, **EARLIER)['world_size'] == 1
