"""A whole run of one linear layer: when it evaluates and saves, and when it ends before its length is over."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

from one_layer import Doubling, of_kind, report, trainer
from phalanx.engine.progress import Progress
from phalanx.system.errors import RunError, StoppedError
from phalanx.weights.checkpoint import checkpoint_folder, load

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


def test_a_resumed_run_makes_up_for_the_evaluation_it_was_stopped_in_before_its_next_step(tmp_path: Path) -> None:
    trainer(tmp_path, Doubling(), STILL, 'train.steps=4').train(report(tmp_path)[0])
    loaded = load(tmp_path / 'latest')
    progress = replace(Progress.of(loaded.state, loaded.step), evaluated=0)
    again = trainer(tmp_path, Doubling(), STILL, 'train.steps=6', 'evaluate.every=4', progress=progress)
    again.restore(loaded)
    writer, events = report(tmp_path)
    again.train(writer)
    assert evaluated_steps(events) == [4, 6]
    assert next(event['kind'] for event in events if event['kind'] in ('eval', 'train')) == 'eval'


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
    with pytest.raises(StoppedError, match='stopped before the first step; the same command starts again'):
        run.train(writer)
    assert not (tmp_path / 'checkpoints').exists()


def initial_weight(folder: Path, weight: float) -> str:
    """Setting of a run that starts from `weight`; 2 is the best one."""
    safetensors.torch.save_file({'weight': torch.tensor([[weight]])}, folder / 'initial.safetensors')
    return f'train.init_from={folder}/initial.safetensors'


def test_a_run_that_only_got_worse_keeps_the_weights_it_began_with_as_its_best(tmp_path: Path) -> None:
    """Each step of this size overshoots: the distance from the best weight grows."""
    settings = initial_weight(tmp_path, 1.9), 'train.steps=4', 'optimizer={name: sgd, lr: 0.6}', 'evaluate.every=2'
    run, (writer, events) = trainer(tmp_path, Doubling(), *settings, 'checkpoint.keep=1'), report(tmp_path)
    summary = run.train(writer)
    assert (evaluated_steps(events), saved_steps(events)) == ([0, 2, 4], [0, 4])
    assert summary['best'] == summary['start'] == pytest.approx(-0.3)
    assert load(checkpoint_folder(tmp_path)).step == summary['best_step'] == 0
    assert load(tmp_path / 'best').model['weight'].item() == pytest.approx(1.9)
    (warning,) = [event['text'] for event in of_kind(events, 'warning')]
    assert warning.startswith('no evaluation was better than the initial weights: closeness -0.3000 at the start, ')


def test_a_run_that_got_better_has_its_best_after_the_start(tmp_path: Path) -> None:
    settings = initial_weight(tmp_path, 1.0), 'train.steps=2', 'evaluate.every=2'
    run, (writer, events) = trainer(tmp_path, Doubling(), *settings), report(tmp_path)
    summary = run.train(writer)
    assert summary['best_step'] == load(tmp_path / 'best').step == 2
    assert summary['start'] < summary['best']
    assert summary['since_start'] == {'closeness': summary['best'] - summary['start']}
    assert not of_kind(events, 'warning')


def test_a_run_continues_exactly_from_the_checkpoint_of_its_start(tmp_path: Path) -> None:
    settings = initial_weight(tmp_path, 1.0), 'evaluate.every=6'
    trainer(tmp_path, Doubling(), *settings, 'checkpoint.keep=9').train(report(tmp_path)[0])
    loaded = load(tmp_path / 'checkpoints' / 'step_0000000')
    (tmp_path / 'again').mkdir()
    again = trainer(tmp_path / 'again', Doubling(), *settings, progress=Progress.of(loaded.state, loaded.step))
    again.restore(loaded)
    writer, events = report(tmp_path / 'again')
    assert again.train(writer)['start'] == -3
    assert evaluated_steps(events) == [6, 12]
    assert load(tmp_path / 'again' / 'latest').model['weight'].equal(load(tmp_path / 'latest').model['weight'])


def test_a_run_without_any_step_is_no_reason_to_refuse_another_recipe(tmp_path: Path) -> None:
    run, (writer, _) = trainer(tmp_path, Doubling(), initial_weight(tmp_path, 1.0)), report(tmp_path)
    run.evaluator.start(run.progress, writer)
    run.save(best=True)
    run.saver.finish(run.progress, writer)
    assert run.checkpoints.all() and not run.checkpoints.has_steps()


def test_a_training_that_diverges_is_ended_with_advice(tmp_path: Path) -> None:
    """The first sample's loss is at most 8^2 * 4; after ten steps it is at least ten times that."""
    run = trainer(tmp_path, Doubling(), 'train.steps=100', 'optimizer={name: sgd, lr: 0.1}', 'evaluate.every=5')
    with pytest.raises(RunError) as caught:
        run.train(report(tmp_path)[0])
    assert run.progress.step < 70
    assert 'the training has diverged: the loss was ' in str(caught.value)
    assert 'start again with --fresh and a lower optimizer.lr (0.01)' in str(caught.value)
