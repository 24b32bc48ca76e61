"""Comparison of two models on the same images."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.cli.compare import make_row
from phalanx.cli.main import main
from phalanx.config.show import to_yaml
from phalanx.engine.comparison import Difference, Joinable, Measured, check_comparable, compare, measure, picture_differences
from phalanx.engine.folder import resolve_names
from phalanx.engine.job import open_job
from phalanx.families.catalog import FAMILIES
from phalanx.families.detection.data.source import Objects
from phalanx.families.detection.metric import METRICS as DETECTION
from phalanx.families.figures import Grade
from phalanx.families.recognition.metric.reading import ReadingAccuracy
from phalanx.families.segmentation.metric.confusion import Confusion
from phalanx.families.table.metric import METRICS as TABLE
from phalanx.families.text_detection.metric import METRICS as TEXT_DETECTION
from phalanx.runtime.detection import Detections
from phalanx.system.errors import RequestError
from phalanx.weights.checkpoint import Checkpoints
from run_folder import write_lines
from running import run_here

NOT_USED: Any = None  # the data of models whose results are given


def lines_read(name: str, rights: Sequence[bool]) -> Measured:
    """A recogniser that reads these lines right or wrong."""
    metrics = {}
    for index, is_right in enumerate(rights):
        metrics[index] = ReadingAccuracy()
        metrics[index].update([SimpleNamespace(text='a' if is_right else 'b', confidence=0.5)], batch_of('a', index))
    total = ReadingAccuracy()
    total.join([*metrics.values()])
    job: Any = SimpleNamespace(
        task=SimpleNamespace(metric=ReadingAccuracy),
        resolved=SimpleNamespace(value={'task': SimpleNamespace(value='recognition')}),
    )
    names = [f'line {index}' for index in range(len(rights))]
    grades = {index: None if is_right else Grade(-0.5, 'misread') for index, is_right in enumerate(rights)}
    return Measured(name, job, torch.nn.Identity(), NOT_USED, NOT_USED, names, total, metrics, grades)


def batch_of(text: str, index: int) -> Any:
    return SimpleNamespace(truths=[(text, 0)], indices=[index])


def difference_of_accuracy(first: Measured, second: Measured, resamples: int = 400) -> Difference:
    metrics, classes = compare(first, second, resamples)
    assert not classes
    return next(one for one in metrics if one.name == 'accuracy')


def test_the_interval_of_a_difference_of_means_is_that_of_the_normal_distribution() -> None:
    """900 lines, of which only the second model reads 200 and only the first 100: the difference is 1/9, and its standard
    error sqrt((300/900 - 1/81) / 900) = 0.01889.
    """
    first = [True] * 100 + [False] * 200 + [True] * 600
    second = [False] * 100 + [True] * 200 + [True] * 600
    found = difference_of_accuracy(lines_read('a', first), lines_read('b', second))
    assert found.second - found.first == pytest.approx(1 / 9)
    half = 1.96 * 0.01889
    assert (found.low, found.high) == pytest.approx((1 / 9 - half, 1 / 9 + half), abs=half / 5)
    assert found.is_clear


def test_models_that_fail_on_the_same_images_do_not_differ() -> None:
    """Both are resampled alike: on different resamples the interval would reach 0.3."""
    rights = [index % 2 == 0 for index in range(40)]
    found = difference_of_accuracy(lines_read('a', rights), lines_read('b', rights))
    assert (found.low, found.high) == (0, 0)
    assert not found.is_clear


def test_without_resamples_there_is_no_interval() -> None:
    found = difference_of_accuracy(lines_read('a', [True]), lines_read('b', [False]), 0)
    assert (found.first, found.second) == (1, 0)
    assert math.isnan(found.low)


def test_a_class_that_most_resamples_lack_has_no_interval() -> None:
    """One of eight images has class 1: 34 % of all resamples lack it; with class 2, in no image, the value is always 1."""
    metrics = {}
    for index in range(8):
        metrics[index] = Confusion(['a', 'b', 'c'])
        labels = torch.tensor([[int(index == 0), 0]])
        metrics[index].update([labels], SimpleNamespace(truths=[labels], indices=[index]))
    job: Any = SimpleNamespace(task=SimpleNamespace(metric=lambda: Confusion(['a', 'b', 'c'])))
    total = Confusion(['a', 'b', 'c'])
    total.join([*metrics.values()])
    one = Measured('a', job, torch.nn.Identity(), NOT_USED, NOT_USED, [], total, metrics, {})
    _, classes = compare(one, one, 100)
    assert [part.name for part in classes] == ['iou of a', 'iou of b', 'iou of c']
    assert [part.low for part in classes] == [0, 0, 0]


def test_average_precision_of_an_image_counted_twice_is_that_of_two_images() -> None:
    """Found at 0.9 in one image and missed in the other: AP 0.5 up to the 101 recalls, and 2/3 with the first one twice."""
    found, missed = (DETECTION['coco'](('cat',)) for _ in range(2))
    box, truth = np.array([[0, 0, 10, 10]], np.float32), None
    truth = Objects(box, np.zeros(1, np.int64), np.zeros(1, bool), np.array([100], np.float32))
    nothing = Detections(np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.zeros(0, np.int64))
    hit = Detections(box, np.array([0.9], np.float32), np.zeros(1, np.int64))
    found.update([hit], SimpleNamespace(truths=[truth], indices=[5]))
    missed.update([nothing], SimpleNamespace(truths=[truth], indices=[5]))
    for times, expected in ((1, 51 / 101), (2, 67 / 101)):
        total = DETECTION['coco'](('cat',))
        total.join([found] * times + [missed])
        assert total.compute()['mean_ap'] == pytest.approx(expected)


def test_the_metrics_of_all_families_can_be_joined() -> None:
    """Otherwise their comparisons silently lack intervals."""
    from phalanx.families.recognition.metric import METRICS as RECOGNITION
    from phalanx.families.segmentation.metric import METRICS as SEGMENTATION

    catalogs = (SEGMENTATION, DETECTION, RECOGNITION, TABLE, TEXT_DETECTION)
    assert len(catalogs) == len(FAMILIES)
    assert all(issubclass(metric, Joinable) for catalog in catalogs for metric in catalog.values() if isinstance(metric, type))


def test_models_with_other_evaluation_samples_are_not_compared() -> None:
    first, second = lines_read('a', [True, True]), lines_read('b', [True])
    with pytest.raises(RequestError, match='b was trained with 1 evaluation samples, a with 2'):
        check_comparable(first, second)


def start_run(folder: Path, seed: int) -> Path:
    """A run folder of CRNN with random weights, 8 evaluation lines."""
    words = ('data.train_lines=1', 'data.eval_lines=8', 'train.workers=0', f'train.seed={seed}', 'ema=null')
    job = open_job('crnn_digits', [(word, word) for word in words])
    folder.mkdir()
    (folder / 'config.yml').write_text(to_yaml(resolve_names(job)), encoding='utf-8')
    start = {'kind': 'start', 'name': 'crnn_digits', 'total_steps': 1, 'facts': {}, 'ranks': [], 'step': 0, 'time': 1.0}
    write_lines(folder / 'journal.jsonl', [start])
    torch.manual_seed(seed)
    Checkpoints(folder, keep=1).save(1, job.task.model().state_dict(), None, {}, True)
    return folder


def test_two_runs_are_compared_on_their_evaluation_samples(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [start_run(tmp_path / name, seed) for name, seed in (('a', 1), ('b', 2))]
    page = tmp_path / 'page.html'
    assert main(['compare', *map(str, runs), '--page', str(page), '--resamples', '40', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['keys'] == [{'key': 'train.seed', 'a': '1', 'b': '2'}]
    similarity = next(row for row in found['differences']['b']['metrics'] if row['name'] == 'edit_similarity')
    assert similarity['low'] <= similarity['second'] - similarity['first'] <= similarity['high']
    text = page.read_text()
    assert 'b next to a' in text
    assert 'train.seed' in text


def test_the_total_of_single_images_is_the_metric_of_the_evaluation(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = start_run(tmp_path / 'a', 1)
    job = open_job(str(run))
    measured = measure('a', job, job.task.dataset('eval'))
    assert run_here('eval', str(run), '--json') == 0
    expected = json.loads(capsys.readouterr().out)
    assert {name: expected[name] for name in measured.total.names} == {
        name: measured.total.compute()[name] for name in measured.total.names
    }
    (pictures,) = picture_differences(measured, measured) or (None,)
    assert pictures is None  # a model does not differ from itself


def test_what_was_not_measured_has_no_difference() -> None:
    row = make_row(Difference('ap of king', math.nan, 0.5, math.nan, math.nan), 'a', 'b')
    assert row['difference'] == '–' and row['95 % interval'] == ''


def test_runs_without_weights_are_compared_by_their_curves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ('a', 'b'):
        start_run(tmp_path / name, 1)
        (tmp_path / name / 'best').unlink()
        write_lines(tmp_path / name / 'metrics.jsonl', [{'kind': 'train', 'step': 1, 'epoch': 1.0, 'loss': 0.5, 'terms': {}}])
    page = tmp_path / 'page.html'
    assert main(['compare', str(tmp_path / 'a'), str(tmp_path / 'b'), '--no_eval', '--page', str(page)]) == 0
    assert 'Loss' in page.read_text()


def test_something_else_than_a_run_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = start_run(tmp_path / 'a', 1)
    assert main(['compare', str(run), str(tmp_path)]) == 2
    assert 'not a run folder' in capsys.readouterr().err
    assert main(['compare', str(run), str(run / '.')]) == 2
    assert 'given twice' in capsys.readouterr().err
