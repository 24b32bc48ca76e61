"""An evaluation is watched at every batch, and ranks agree on whether it goes on a bounded number of times."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.engine.evaluation import (
    AGREEMENTS,
    WORST,
    EvaluationStoppedError,
    SampleRenderer,
    Setup,
    add_worst_pictures,
    evaluate,
    numbers_of,
    worst_samples,
)
from phalanx.engine.job import open_job
from phalanx.engine.precision import Precision
from phalanx.families.figures import Grade
from phalanx.system.errors import RunError
from running import TINY, run_here

LINES = 41


def evaluated(
    beat: Callable[[], None] = lambda: None, may_continue: Callable[[], bool] = lambda: True, metric: Any = None
) -> Any:
    """41 lines in as many batches."""
    words = 'data.train_lines=1', f'data.eval_lines={LINES}', 'evaluate.batch_size=1', 'train.workers=0'
    job, cpu = open_job('crnn_digits', [(text, text) for text in words]), torch.device('cpu')
    setup = Setup(job.recipe, cpu, Precision(job.recipe.precision, cpu), beat=beat)
    if metric is not None:
        vars(job.task).update(metric=lambda: metric, main_metric='lines')
    return evaluate(job.task, job.task.model(), setup, job.task.dataset('eval'), may_continue=may_continue)


def test_ranks_agree_at_most_twenty_times_and_a_heartbeat_comes_before_every_batch() -> None:
    """Before the batches 0, 3, .. 39: 14 times."""
    beats, asked = [], []
    found = evaluated(beat=lambda: beats.append(1), may_continue=lambda: asked.append(len(beats)) or True)
    assert len(beats) == found.samples == LINES
    assert asked == [batch + 1 for batch in range(0, LINES, 3)]
    assert len(asked) <= AGREEMENTS


class CountOfLines:
    """A metric as users write it: `update` returns nothing."""

    names, tie_breakers, worst = ('lines',), (), ''

    def __init__(self, compute: Callable[[int], Any]) -> None:
        self.count, self.result = 0, compute

    def update(self, prediction: Any, batch: Any) -> None:
        self.count += len(prediction)

    def gather(self) -> None: ...

    def compute(self) -> Any:
        return self.result(self.count)

    def table(self) -> list[Any]:
        return []

    figures = table


def test_a_metric_of_a_user_needs_no_grades_and_its_numbers_become_those_of_python() -> None:
    found = evaluated(metric=CountOfLines(lambda count: {'lines': np.int64(count)}))
    assert (json.dumps(found.metrics), found.worst) == ('{"lines": 41.0}', [])


@pytest.mark.parametrize('wrong', [None, {'other': 1.0}, {'lines': 'many'}, 0.5])
def test_a_metric_of_a_user_without_its_number_is_reported(wrong: Any) -> None:
    message = f"metric: compute() of CountOfLines must return numbers by name, with 'lines'; it returned {wrong!r}"
    with pytest.raises(RunError, match=re.escape(message)):
        numbers_of(CountOfLines(lambda count: wrong), 'lines')


def test_a_stop_ends_an_evaluation_within_a_twentieth_of_it() -> None:
    """Asked for during batch 7, it is heeded before batch 9."""
    beats: list[int] = []
    with pytest.raises(EvaluationStoppedError):
        evaluated(beat=lambda: beats.append(1), may_continue=lambda: len(beats) < 8)
    assert len(beats) == 10


def test_an_evaluation_repeats_that_of_the_training(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In bf16 a network in another memory format has other kernels, which round differently."""
    words = ('model.width=1', 'train.steps=2', 'precision.dtype=bf16', 'train.channels_last=true', 'report.trackers=[]')
    assert run_here('train', *TINY, *words, '--save_dir', str(tmp_path)) == 0
    capsys.readouterr()
    assert run_here('eval', str(tmp_path), '--json') == 0
    found, trained = json.loads(capsys.readouterr().out), json.loads((tmp_path / 'summary.json').read_text())['metrics']
    assert {name: found[name] for name in trained} == trained


class Graded:
    """A metric for which sample n of 41 is worth n % 7, and every tenth is all right."""

    worst = 'Bad ones'

    def __init__(self) -> None:
        self.seen = 0

    def update(self, prediction: Any, batch: Any) -> list[Grade | None]:
        numbers = range(self.seen, self.seen + len(batch))
        self.seen += len(batch)
        return [None if number % 10 == 0 else Grade(number % 7, f'{number}') for number in numbers]

    def gather(self) -> None:
        pass

    def compute(self) -> dict[str, float]:
        return {'accuracy': 0.0}

    def table(self) -> list[Any]:
        return []

    def figures(self) -> list[Any]:
        return []


def test_the_worst_samples_are_named_and_pictured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 0 to 40 the grades 0 have 7, 14, 21, 28, 35 (0 is all right), the grades 1 have 1, 8, 15, .. ."""
    monkeypatch.setattr('phalanx.families.recognition.task.Recognition.metric', lambda self: Graded())
    found = evaluated()
    assert [one.index for one in found.worst[:7]] == [7, 14, 21, 28, 35, 1, 8]
    assert len(found.worst) == WORST
    assert found.worst[0].caption == f'{found.worst[0].name}: 7'
    task = open_job('crnn_digits', [(text, text) for text in ('data.train_lines=1', f'data.eval_lines={LINES}')]).task
    shown = SampleRenderer.from_model(task.model(), task, task.dataset('eval'), 0, torch.device('cpu'))
    figures = add_worst_pictures(found, shown, 3).figures
    assert [(figure.title, [caption for caption, _ in figure.rows]) for figure in figures] == [
        ('Bad ones', [one.caption for one in found.worst[:3]])
    ]


@pytest.mark.parametrize('shares', [1, 3])
def test_which_samples_are_the_worst_does_not_depend_on_how_they_are_shared(shares: int) -> None:
    graded = [(index, Grade(-(index % 5), '')) for index in range(100)]
    parts = [worst_samples(graded[rank::shares]) for rank in range(shares)]
    assert worst_samples(pair for part in parts for pair in part) == worst_samples(graded)
    assert [index for index, _ in worst_samples(graded)[:3]] == [4, 9, 14]
