"""Trackers get each number once, from the main rank; whatever they do, the run goes on."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from phalanx.engine.schema import ReportOptions
from phalanx.families.figures import Curves, Legend, Matrix
from phalanx.report.evaluation import Evaluation
from phalanx.report.plots import CELL, MARGIN, draw_matrix
from phalanx.report.report import Report
from phalanx.report.trackers import Picture, Run, Tracker, check_trackers
from phalanx.report.trackers.local import VisualDL
from phalanx.report.trackers.trackio import Trackio
from phalanx.system.errors import RequestError


class Listing:
    """Tracker that appends all calls to a list."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def start(self, run: Run) -> None:
        self.run = run
        self.events.append(('start', run.name, run.step))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.events.append((step, dict(values)))

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self.events.append(('finish', summary))


class Unlogged(Listing):
    """One that cannot take back what it has."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.events += [(step, name) for name in self.run.unlogged(step, values)]


def a_report(folder: Path, *, main: bool = True, **trackers: Callable[[], Tracker]) -> tuple[Report, io.StringIO]:
    text = io.StringIO()
    console = Console(file=text, width=100)
    config = {'train': {'steps': 9}}
    return Report(folder, main=main, name='x', total_steps=9, config=config, trackers=trackers, console=console), text


def train(report: Report, *steps: int) -> None:
    for step in steps:
        report.train({'step': step, 'epoch': 0.5, 'loss': 0.25})


def evaluate(report: Report, step: int) -> None:
    report.evaluation(step, Evaluation(metrics={'iou': 0.75}, seconds=1.0, samples=2), best=True, raw={'iou': 0.5})


def test_a_tracker_gets_log_lines_evaluations_and_the_summary(tmp_path: Path) -> None:
    tracker = Listing([])
    report, _ = a_report(tmp_path, listing=lambda: tracker)
    with report:
        report.world({}, [])
        train(report, 1)
        evaluate(report, 2)
        report.finish({'steps': 2})
    assert tracker.events == [
        ('start', 'x', 0),
        (1, {'train/epoch': 0.5, 'train/loss': 0.25}),
        (2, {'eval/iou': 0.75}),
        (2, {'eval as trained/iou': 0.5}),
        ('finish', {'steps': 2}),
    ]
    assert (tracker.run.folder, tracker.run.config) == (tmp_path, {'train': {'steps': 9}})


def test_a_run_that_fails_finishes_its_trackers_without_a_summary(tmp_path: Path) -> None:
    tracker = Listing([])
    report, _ = a_report(tmp_path, listing=lambda: tracker)
    with pytest.raises(ZeroDivisionError), report:
        train(report, 1)
        raise ZeroDivisionError
    assert tracker.events[-1] == ('finish', None)


def test_only_the_main_rank_builds_trackers(tmp_path: Path) -> None:
    report, _ = a_report(tmp_path, main=False, listing=lambda: pytest.fail('built'))
    with report:
        report.world({}, [])
        train(report, 1)
        report.finish({})


def test_values_logged_by_an_earlier_start_are_known_by_group(tmp_path: Path) -> None:
    """Killed after log line 4, while step 4 was evaluated; the only checkpoint is that of step 2."""
    events: list[Any] = []
    for start in (0, 2):
        report, _ = a_report(tmp_path, unlogged=lambda: Unlogged(events))
        with report:
            if start:
                report.resume(start)
            report.world({}, [])
            train(report, 1, 2) if not start else None
            evaluate(report, 2) if not start else None
            train(report, 3, 4)
            if start:
                evaluate(report, 4)
                train(report, 5)
    logged = [(step, name) for step, name in (event[:2] for event in events) if isinstance(step, int) and name != 'train/epoch']
    assert logged == [
        (1, 'train/loss'),
        (2, 'train/loss'),
        (2, 'eval/iou'),
        (2, 'eval as trained/iou'),
        (3, 'train/loss'),
        (4, 'train/loss'),
        (4, 'eval/iou'),
        (4, 'eval as trained/iou'),
        (5, 'train/loss'),
    ]


def test_a_run_that_starts_again_before_its_first_checkpoint_knows_what_it_logged(tmp_path: Path) -> None:
    events: list[Any] = []
    for _ in range(2):
        report, _ = a_report(tmp_path, unlogged=lambda: Unlogged(events))
        with report:
            report.world({}, [])
            train(report, 1)
    assert events.count((1, 'train/loss')) == 1


class Broken(Listing):
    def __init__(self, fails: str) -> None:
        super().__init__([])
        self.fails = fails

    def start(self, run: Run) -> None:
        self.fail('start')

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.fail('log')

    def finish(self, summary: Mapping[str, Any] | None) -> None:
        self.fail('finish')

    def fail(self, method: str) -> None:
        self.events.append(method)
        if method == self.fails:
            raise RuntimeError('no route to host')


@pytest.mark.parametrize(
    ('method', 'called'),
    [('start', ['start']), ('log', ['start', 'log', 'log', 'finish']), ('finish', ['start', 'log', 'log', 'finish'])],
)
def test_a_tracker_that_raises_is_reported_once_and_costs_only_itself(tmp_path: Path, method: str, called: list[str]) -> None:
    broken, sound = Broken(method), Listing([])
    report, text = a_report(tmp_path, broken=lambda: broken, sound=lambda: sound)
    with report:
        train(report, 1, 2)
        report.finish({'steps': 2})
    assert broken.events == called
    assert len(sound.events) == 4
    assert text.getvalue().count('tracker broken could not be written (RuntimeError: no route to host)') == 1


def test_a_missing_package_is_named_before_the_start_with_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'visualdl', None)  # importing it now fails as if it were absent
    message = (
        'report.trackers: visualdl needs the package visualdl, which is not installed: pip install visualdl, or leave it out'
    )
    with pytest.raises(RequestError, match=message):
        check_trackers({'visualdl': VisualDL})


def test_a_package_that_goes_missing_later_is_reported_and_the_run_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, 'visualdl', None)
    report, text = a_report(tmp_path, visualdl=VisualDL)
    with report:
        train(report, 1, 2)
    assert text.getvalue().count('tracker visualdl could not be written') == 1


def test_a_tracker_without_a_method_or_that_cannot_be_built_is_refused() -> None:
    with pytest.raises(RequestError, match=r'report\.trackers: mine: list needs the methods start\(run\), log\(step, values\)'):
        check_trackers({'mine': list})
    with pytest.raises(RequestError, match=r'report\.trackers: mine cannot be built: RuntimeError: no key'):
        check_trackers({'mine': lambda: (_ for _ in ()).throw(RuntimeError('no key'))})


def test_visualdl_true_adds_visualdl_to_the_trackers() -> None:
    assert list(ReportOptions().tracker_builders()) == ['tensorboard']
    assert set(ReportOptions(visualdl=True).tracker_builders()) == {'tensorboard', 'visualdl'}
    assert list(ReportOptions(trackers=(), visualdl=True).tracker_builders()) == ['visualdl']


class Showing(Listing):
    """One that takes pictures, too."""

    def show(self, step: int, pictures: Mapping[str, Picture]) -> None:
        self.events.append((step, {name: picture.image.shape for name, picture in pictures.items()}))


def test_pictures_come_before_the_values_of_their_evaluation(tmp_path: Path) -> None:
    """Samples side by side, the confusion matrix, and curves; a tracker without `show` gets the values alone."""
    showing, listing = Showing([]), Listing([])
    report, text = a_report(tmp_path, showing=lambda: showing, listing=lambda: listing)
    matrix = Matrix('confusion, by pixels', ['road', 'kerb'], [[3, 1], [0, 0]])
    curves = Curves('precision', 'recall', 'precision', {'road': [(0.0, 1.0), (1.0, 0.5)]})
    found = Evaluation(metrics={'iou': 0.75}, seconds=1.0, samples=2, figures=[matrix, curves, Legend({'road': '#ff0000'})])
    with report:
        image = np.zeros((20, 30, 3), np.uint8)
        report.pictures([[('image', image), ('truth', image[:10])]])
        report.evaluation(2, found, best=True)
        report.evaluation(3, Evaluation(metrics={'iou': 0.5}, seconds=1.0, samples=2), best=False)
    shown = [event for event in showing.events if event not in listing.events]
    ((step, shapes),) = shown
    assert (step, list(shapes), shapes['samples/0']) == (2, ['samples/0', 'confusion by pixels', 'precision'], (20, 60, 3))
    assert showing.events.index(shown[0]) == showing.events.index((2, {'eval/iou': 0.75})) - 1
    assert 'could not be written' not in text.getvalue()


def test_a_confusion_matrix_is_the_darker_the_larger_the_share_of_its_row() -> None:
    picture = draw_matrix(Matrix('', ['road', 'kerb'], [[4, 0], [1, 3]]))
    corners = [picture[MARGIN + 2 + CELL * row, MARGIN + 2 + CELL * column, 0] for row in (0, 1) for column in (0, 1)]
    assert corners == [80, 255, 211, 123]  # 255 - 1.75 times 100, 0, 25 and 75 per cent


def test_a_service_that_needs_a_login_says_so_before_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, 'trackio', ModuleType('trackio'))
    monkeypatch.setenv('TRACKIO_SPACE_ID', 'me/mine')
    with pytest.raises(RequestError, match=r'report\.trackers: trackio cannot be built: .*TRACKIO_SPACE_ID is set'):
        check_trackers({'trackio': Trackio})
