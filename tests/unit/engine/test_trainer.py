"""A whole run of one linear layer: when it evaluates and saves, and when it ends before its length is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from one_layer import Doubling, of_kind, report, trainer
from phalanx.engine.progress import Progress
from phalanx.system.errors import StoppedError
from phalanx.weights.checkpoint import load

STILL = 'optimizer={name: sgd, lr: 0}'  # so that no evaluation is better than the first


def saved_steps(events: list) -> list[int]:
    return [int(Path(event['path']).name.removeprefix('step_')) for event in of_kind(events, 'saved')]


def evaluated_steps(events: list) -> list[int]:
    return [event['step'] for event in of_kind(events, 'eval')]


def test_a_run_evaluates_and_saves_at_its_intervals_at_its_best_and_at_its_end(tmp_path: Path) -> None:
    """Of the evaluations, each as good as the one before, the later one is the best, so each is saved."""
    run, (writer, events) = trainer(tmp_path, Doubling(), STILL, 'evaluate.every=5', 'checkpoint.every=4'), report(tmp_path)
    summary = run.train(writer)
    assert evaluated_steps(events) == [5, 10, 12]
    assert saved_steps(events) == [4, 5, 8, 10, 12]
    assert (summary['steps'], summary['best_step'], summary['epochs']) == (12, 12, 3.0)


def test_patience_ends_a_run_after_evaluations_without_progress(tmp_path: Path) -> None:
    run, (writer, events) = trainer(tmp_path, Doubling(), STILL, 'evaluate.every=2', 'evaluate.patience=2'), report(tmp_path)
    assert run.train(writer)['steps'] == 6
    assert evaluated_steps(events) == [2, 4, 6]
    assert [event['text'] for event in of_kind(events, 'note')] == [
        'stopped early at step 6 of 12: 2 evaluations in a row with no better closeness than -6.0000 at step 6'
    ]
    assert load(tmp_path / 'latest').step == 6


def test_a_run_out_of_patience_makes_no_step_when_it_is_started_again(tmp_path: Path) -> None:
    settings = STILL, 'evaluate.every=2', 'evaluate.patience=2'
    trainer(tmp_path, Doubling(), *settings).train(report(tmp_path)[0])
    loaded = load(tmp_path / 'latest')
    again = trainer(tmp_path, Doubling(), *settings, progress=Progress.of(loaded.state, loaded.step))
    again.restore(loaded)
    writer, events = report(tmp_path)
    assert again.train(writer)['steps'] == 6
    assert evaluated_steps(events) == saved_steps(events) == []


def test_a_request_to_stop_ends_a_run_with_a_checkpoint_of_the_step_reached(tmp_path: Path) -> None:
    run, (writer, _) = trainer(tmp_path, Doubling()), report(tmp_path)
    run.progress.step = run.started_at = 3
    run.flags.signalled = True
    with pytest.raises(StoppedError, match='stopped after step 3 of 12; the same command continues from there'):
        run.train(writer)
    assert load(tmp_path / 'latest').step == 3


def test_a_request_to_stop_before_the_first_step_saves_nothing(tmp_path: Path) -> None:
    run, (writer, _) = trainer(tmp_path, Doubling()), report(tmp_path)
    run.flags.signalled = True
    with pytest.raises(StoppedError, match='stopped before the first step: nothing is saved; the same command starts again'):
        run.train(writer)
    assert not (tmp_path / 'checkpoints').exists()
