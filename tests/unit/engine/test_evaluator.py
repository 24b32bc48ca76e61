"""Evaluations of a run in progress: the weights they use, what they record, and how a request to stop ends them.

The network multiplies by one weight w; its samples are 1 .. 5 and their targets 2 .. 10, so its closeness is -3 |2 - w|.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from one_layer import Doubling, Numbers, of_kind, report, trainer
from phalanx.engine.timeline import Length

NEVER = Length(0)


def test_the_best_evaluation_is_the_closest_one(tmp_path: Path) -> None:
    task = Doubling()
    run = trainer(tmp_path, task)
    writer, events = report(tmp_path)
    found = []
    for run.progress.step, weight in enumerate((1.0, 1.5, 0.0), 1):
        task.set_weight(weight)
        found.append(run.evaluator.step(run.progress, writer, every=NEVER, is_last=False))
    assert found == [True, True, False]
    assert (run.progress.best, run.progress.best_step, run.progress.no_better) == (-1.5, 2, 1)
    assert (run.progress.evaluated, run.progress.metrics) == (3, {'closeness': -6.0, 'hits': 0.0})
    assert [(event['step'], event['closeness']) for event in of_kind(events, 'eval')] == [(1, -3), (2, -1.5), (3, -6)]


def test_the_start_of_a_run_is_its_best_until_an_evaluation_is_better(tmp_path: Path) -> None:
    task = Doubling(weight=1.0)
    run, (writer, _) = trainer(tmp_path, task), report(tmp_path)
    assert run.evaluator.start(run.progress, writer)
    assert (run.progress.start_metrics, run.progress.best) == ({'closeness': -3, 'hits': 0}, -3)
    found = []
    for run.progress.step, weight in enumerate((0.0, 1.5), 1):
        task.set_weight(weight)
        found.append(run.evaluator.step(run.progress, writer, every=NEVER, is_last=False))
    assert (found, run.progress.start_metrics['closeness'], run.progress.best_step) == ([False, True], -3, 2)
    assert run.progress.best_metrics == {'closeness': -1.5, 'hits': 0}


def test_a_start_without_a_score_is_unknown_and_not_the_best(tmp_path: Path) -> None:
    run = trainer(tmp_path, Doubling(weight=math.nan))
    assert not run.evaluator.start(run.progress, report(tmp_path)[0])
    assert (run.progress.start_metrics, run.progress.best) == ({}, None)


def test_averaged_weights_are_evaluated_and_the_model_keeps_its_own(tmp_path: Path) -> None:
    """With decay 0.5 the EMA of kind `exponential` has after one update nearly the weight itself, 2; the model has then 5."""
    task = Doubling(weight=2.0)
    run = trainer(tmp_path, task, 'ema={kind: exponential, decay: 0.5}')
    assert run.ema is not None
    run.ema.update()
    task.set_weight(5.0)
    writer, events = report(tmp_path)
    run.progress.step = 12
    run.evaluator.step(run.progress, writer, every=NEVER, is_last=True)
    (event,) = of_kind(events, 'eval')
    assert event['closeness'] == pytest.approx(0, abs=0.01)
    assert event['raw']['closeness'] == -9
    assert (task.network.weight.item(), task.network.training) == (5, True)


def test_raw_weights_are_evaluated_beside_the_ema_as_rarely_as_a_tenth_of_the_training_allows(tmp_path: Path) -> None:
    """Between two evaluations 4 samples are trained on; of 5 to evaluate, every 13th time is the first within a tenth."""
    run = trainer(tmp_path, Doubling(weight=2.0), 'ema={kind: exponential, decay: 0.5}')
    assert run.ema is not None
    run.ema.update()
    writer, events = report(tmp_path)
    for run.progress.step in (2, 24, 26, 28, 50, 52):
        run.evaluator.step(run.progress, writer, every=Length(2), is_last=False)
    assert [event['step'] for event in of_kind(events, 'eval') if 'raw' in event] == [26, 52]


def test_an_unsettled_ema_is_not_evaluated(tmp_path: Path) -> None:
    run = trainer(tmp_path, Doubling(weight=1.0), 'ema={kind: ramp, decay: 0.999}')
    assert run.ema is not None
    run.ema.update()
    writer, events = report(tmp_path)
    run.evaluator.step(run.progress, writer, every=NEVER, is_last=True)
    assert of_kind(events, 'eval')[0]['closeness'] == -3
    assert 'raw' not in of_kind(events, 'eval')[0]


def test_nothing_is_recorded_of_an_evaluation_during_a_request_to_stop(tmp_path: Path) -> None:
    run = trainer(tmp_path, Doubling())
    writer, events = report(tmp_path)
    run.progress.step, run.flags.signalled = 4, True
    assert not run.evaluator.step(run.progress, writer, every=NEVER, is_last=False)
    assert run.flags.stop_agreed
    assert (run.progress.evaluated, run.progress.best, events) == (0, None, [])
    assert run.model.training


def test_a_request_to_stop_is_heeded_before_the_validation_loss(tmp_path: Path) -> None:
    class StopsInItsMetric(Doubling):
        def begin_prediction(self, model: torch.nn.Module, batch: Numbers) -> Callable[[], torch.Tensor]:
            run.flags.signalled = True
            return super().begin_prediction(model, batch)

    run = trainer(tmp_path, StopsInItsMetric(), 'evaluate.loss=true', 'evaluate.batch_size=5')
    assert run.evaluator.evaluate(4) is None


def test_a_batch_is_predicted_before_the_host_finishes_the_one_before(tmp_path: Path) -> None:
    events = []

    class Logs(Doubling):
        def begin_prediction(self, model: torch.nn.Module, batch: Numbers) -> Callable[[], torch.Tensor]:
            first = int(batch.images[0])
            events.append(f'begin {first}')
            finish = super().begin_prediction(model, batch)

            def logged() -> torch.Tensor:
                events.append(f'finish {first}')
                return finish()

            return logged

    found = trainer(tmp_path, Logs(weight=1.0), 'evaluate.batch_size=2').evaluator.evaluate(4)
    assert events == ['begin 1', 'begin 3', 'finish 1', 'begin 5', 'finish 3', 'finish 5']
    assert found is not None and found.metrics['closeness'] == -3


def test_the_validation_loss_is_the_mean_over_samples(tmp_path: Path) -> None:
    """Of the numbers 1 .. 8 with w = 1: the squares of 1 .. 8, in the mean 204 / 8."""
    run = trainer(tmp_path, Doubling(weight=1.0), 'evaluate.loss=true')
    found = run.evaluator.evaluate(4)
    assert found is not None
    assert found.metrics == {'closeness': -3.0, 'hits': 0.0, 'validation_loss': 25.5}


def test_an_unreadable_sample_is_left_out_of_the_metrics_and_reported(tmp_path: Path) -> None:
    """Without the number 5 the mean distance for w = 1 is 2.5."""
    run = trainer(tmp_path, Doubling(weight=1.0, unreadable=[4]), 'train.bad_samples=1')
    writer, events = report(tmp_path)
    run.evaluator.step(run.progress, writer, every=NEVER, is_last=False)
    assert [event['text'] for event in of_kind(events, 'warning')] == ['not evaluated: eval 4: cannot be read']
    assert (of_kind(events, 'eval')[0]['samples'], run.progress.best) == (4, -2.5)
