"""Checkpoints of a run in progress: their beginning and end, full disks, folders that are gone, restores that are refused."""

from __future__ import annotations

import contextlib
import re
import resource
import shutil
import threading
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from one_layer import Doubling, of_kind, report, trainer
from phalanx.engine.progress import Progress
from phalanx.engine.saving import Saver
from phalanx.engine.trainer import Trainer
from phalanx.system.errors import RunError
from phalanx.weights.checkpoint import Checkpoints, load

EMA = 'ema={kind: exponential, decay: 0.5}'


@contextlib.contextmanager
def slow_disk(saver: Saver) -> Iterator[None]:
    """Within this context nothing is written: the thread of the checkpoints waits."""
    free = threading.Event()
    saver.checkpoints._writer.submit(free.wait)
    try:
        yield
    finally:
        free.set()


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Within this context no file of more than a kilobyte can be written."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def steps_on_disk(folder: Path) -> list[int]:
    return [int(path.name.removeprefix('step_')) for path in Checkpoints(folder, keep=1).all()]


def trained(folder: Path, steps: int, *settings: str) -> Trainer:
    """A run after some steps, with momentum, and with an EMA where the settings have one."""
    run = trainer(folder, Doubling(), *settings)
    for batch in run.batches():
        run.train_step(batch)
        run.progress.step += 1
        if run.progress.step == steps:
            return run
    raise AssertionError('the run is shorter than that')


def test_a_checkpoint_holds_the_weights_of_its_beginning(tmp_path: Path) -> None:
    task = Doubling(weight=1.0)
    saver, (writer, events) = trainer(tmp_path, task).saver, report(tmp_path)
    progress = Progress(step=4)
    with slow_disk(saver):
        saver.begin(progress, False, writer)
        task.set_weight(7.0)
        progress.step = 5
        saver.poll(progress, writer)  # not written yet, so there is nothing to report
        assert (steps_on_disk(tmp_path), events) == ([], [])
    saver.finish(progress, writer)
    loaded = load(tmp_path / 'latest')
    assert (loaded.step, loaded.model['weight'].item(), loaded.state['step']) == (4, 1.0, 4)
    assert [event['path'] for event in of_kind(events, 'saved')] == [str(tmp_path / 'checkpoints' / 'step_0000004')]
    assert not (tmp_path / 'best').exists()


def test_a_look_reports_a_written_checkpoint_once(tmp_path: Path) -> None:
    saver, (writer, events) = trainer(tmp_path, Doubling()).saver, report(tmp_path)
    saver.begin(Progress(step=4), True, writer)
    assert saver.saving is not None
    saver.saving.settle()
    for _ in range(2):
        saver.poll(Progress(step=5), writer)
    saver.finish(Progress(step=5), writer)
    assert len(of_kind(events, 'saved')) == 1
    assert load(tmp_path / 'best').step == 4


def test_a_checkpoint_begins_once_the_one_before_is_written(tmp_path: Path) -> None:
    saver, (writer, events) = trainer(tmp_path, Doubling()).saver, report(tmp_path)
    for step in (4, 8):
        saver.begin(Progress(step=step), False, writer)
    assert steps_on_disk(tmp_path)[:1] == [4]
    assert [Path(event['path']).name for event in of_kind(events, 'saved')] == ['step_0000004']
    saver.finish(Progress(step=8), writer)
    assert steps_on_disk(tmp_path) == [4, 8]


def test_a_synchronous_checkpoint_is_on_disk_before_training_continues(tmp_path: Path) -> None:
    saver = trainer(tmp_path, Doubling(), 'checkpoint.asynchronous=false').saver
    saver.begin(Progress(step=4), False, report(tmp_path)[0])
    assert steps_on_disk(tmp_path) == [4]


def test_averaged_weights_are_saved_once_they_have_settled(tmp_path: Path) -> None:
    run = trainer(tmp_path, Doubling(weight=2.0), EMA)
    writer, _ = report(tmp_path)
    run.saver.begin(Progress(step=1), False, writer)
    run.saver.finish(Progress(step=1), writer)
    assert load(tmp_path / 'latest').averaged is None
    assert run.ema is not None
    run.ema.update()
    run.saver.begin(Progress(step=2), False, writer)
    run.saver.finish(Progress(step=2), writer)
    averaged = load(tmp_path / 'latest').averaged
    assert averaged is not None
    assert averaged['weight'].item() == pytest.approx(2, abs=0.01)


def test_a_full_disk_costs_a_checkpoint_but_not_the_run(tmp_path: Path) -> None:
    saver, (writer, events) = trainer(tmp_path, Doubling()).saver, report(tmp_path)
    saver.begin(Progress(step=4), False, writer)
    saver.finish(Progress(step=4), writer)
    with full_disk():
        saver.begin(Progress(step=8), False, writer)
        assert saver.saving is not None
        saver.saving.settle()
    saver.poll(Progress(step=9), writer)
    (warning,) = of_kind(events, 'warning')
    assert re.fullmatch(
        r'the checkpoint of step 8 was not written \(File too large; the checkpoint takes 0\.0 MiB, the disk has .* MiB free: '
        rf'{tmp_path}/checkpoints\); the newest on disk is {tmp_path}/checkpoints/step_0000004',
        warning['text'],
    )
    assert (steps_on_disk(tmp_path), load(tmp_path / 'latest').step) == ([4], 4)
    saver.begin(Progress(step=12), False, writer)  # there is room again
    saver.finish(Progress(step=12), writer, is_last=True)
    assert steps_on_disk(tmp_path) == [4, 12]


def test_a_full_disk_at_the_last_checkpoint_fails_the_run(tmp_path: Path) -> None:
    saver, (writer, _) = trainer(tmp_path, Doubling()).saver, report(tmp_path)
    with full_disk():
        saver.begin(Progress(step=12), False, writer)
        assert saver.saving is not None
        saver.saving.settle()
    with pytest.raises(RunError, match=r'the last checkpoint, of step 12, could not be written: .*File too large'):
        saver.finish(Progress(step=12), writer, is_last=True)


@pytest.mark.parametrize('during', ['training', 'writing'])
def test_a_run_whose_folder_is_gone_saves_beside_it_and_fails(tmp_path: Path, during: str) -> None:
    folder = tmp_path / 'run'
    folder.mkdir()
    saver, (writer, _) = trainer(folder, Doubling(weight=1.5)).saver, report(folder)
    if during == 'writing':
        with slow_disk(saver):
            saver.begin(Progress(step=4), False, writer)
            shutil.rmtree(folder)
    else:
        shutil.rmtree(folder)
    with pytest.raises(RunError, match=rf'{folder} was removed .* at step 5; its last checkpoint is in {folder}\.rescued'):
        saver.poll(Progress(step=5), writer)
    rescued = load(tmp_path / 'run.rescued' / 'latest')
    assert (rescued.step, rescued.model['weight'].item()) == (5, 1.5)


def test_a_restored_run_makes_the_same_steps(tmp_path: Path) -> None:
    """Its momentum and its averages go on, too, so 6 steps and 6 more are 12, bit by bit."""
    through, first = trained(tmp_path, 12, EMA), trained(tmp_path, 6, EMA)
    first.saver.begin(first.progress, False, report(tmp_path)[0])
    first.saver.finish(first.progress, report(tmp_path)[0])
    loaded = load(tmp_path / 'latest')
    second = trainer(tmp_path, Doubling(weight=9.0), EMA, progress=Progress.of(loaded.state, loaded.step))
    second.restore(loaded)
    for batch in second.batches():
        second.train_step(batch)
        second.progress.step += 1
    torch.testing.assert_close(tensors_of(second), tensors_of(through), rtol=0, atol=0)


def tensors_of(run: Trainer) -> list[Any]:
    state = run.saver.state(run.progress)
    return [dict(run.model.state_dict()), state['optimizer']['state'], state['ema']]


class Wider(Doubling):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(1, 2, bias=False)


class Deeper(Doubling):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Sequential(*(torch.nn.Linear(1, 1, bias=False) for _ in range(99)))


class Biased(Doubling):
    def __init__(self) -> None:
        super().__init__()
        self.network = torch.nn.Linear(1, 1)


@pytest.mark.parametrize(
    ('task', 'settings', 'reason'),
    [
        (Wider, [], r'(?s)step_0000006 does not match this recipe: .*size mismatch for weight'),
        (Deeper, [], r'step_0000006 does not match this recipe: .*\n\tMissing key[^\n]{200,300} \.\.\.\n\tUnexpected'),
        (Biased, [], r'(?s)step_0000006 does not match this recipe: .*Missing key\(s\) in state_dict: "bias"'),
        (
            Doubling,
            ['optimizer={name: adamw, lr: 0.01}'],
            r'step_0000006 was saved by the optimizer SGD, this recipe has AdamW: set optimizer.name as it was',
        ),
        (Doubling, [EMA], r'step_0000006 has no averaged weights \(EMA\); set ema=null, or start a new run'),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path, task: type[Doubling], settings: list[str], reason: str) -> None:
    run = trained(tmp_path, 6)
    run.saver.begin(run.progress, False, report(tmp_path)[0])
    run.saver.finish(run.progress, report(tmp_path)[0])
    loaded = load(tmp_path / 'checkpoints' / 'step_0000006')
    with pytest.raises(RunError, match=reason):
        trainer(tmp_path, task(), *settings, progress=Progress.of(loaded.state, 6)).restore(loaded)


def test_the_progress_of_a_checkpoint_is_that_of_its_run(tmp_path: Path) -> None:
    saver, (writer, _) = trainer(tmp_path, Doubling()).saver, report(tmp_path)
    progress = Progress(step=4, batches=((0, 2),), ranks=1, seconds=3.5, best=-1.0, best_step=2, no_better=1)
    progress.start_metrics, progress.best_metrics = {'closeness': -2.0, 'hits': 0.0}, {'closeness': -1.0, 'hits': 0.25}
    saver.begin(progress, False, writer)
    saver.finish(progress, writer)
    loaded = load(tmp_path / 'latest')
    assert asdict(Progress.of(loaded.state, loaded.step)) == asdict(progress)


def test_a_disk_too_small_for_the_checkpoints_is_reported_with_both_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One weight of 4 bytes with two moments takes 12 bytes, and 28 with an EMA beside it; four of them are on disk at most."""
    for settings, needed in ((('checkpoint.keep=2',), 48), (('checkpoint.keep=2', EMA), 80)):
        saver = trainer(tmp_path, Doubling(), *settings).saver
        for free, is_reported in ((needed, True), (needed + 1, False)):
            monkeypatch.setattr(shutil, 'disk_usage', lambda folder, free=free: shutil._ntuple_diskusage(99, 0, free))  # type: ignore[attr-defined]
            assert (saver.disk_warning() is not None) == is_reported
    monkeypatch.setattr(shutil, 'disk_usage', lambda folder: shutil._ntuple_diskusage(99, 0, 0))  # type: ignore[attr-defined]
    assert f'the disk of {tmp_path} has 0 MiB free: free some space, or reduce checkpoint.keep' in str(saver.disk_warning())
