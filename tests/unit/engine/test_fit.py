"""The predicted memory of a step: that of the same step on the CPU, as torch's profiler counts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from phalanx.cli.main import main
from phalanx.data.batch import ImageBatch
from phalanx.engine import fit
from phalanx.engine.fit import StepMemory, agree_on_micro_batches, parse_size, predict_fit
from phalanx.engine.job import Job, open_job
from phalanx.engine.parts import Parts
from phalanx.engine.shapes import workspace_of_lstm
from phalanx.engine.trainer import Trainer
from phalanx.system.errors import RequestError

FAMILIES = {
    'segmentation': ('pp_liteseg_digits', 'data.size=[128,256]'),
    'detection': ('ppyoloe_digits',),
    'recognition': ('crnn_digits', 'model={name: svtr_lcnetv3, nrtr_size: 32}', 'image_size=[48,96]', 'loss=[ctc, nrtr]'),
    'recurrent': ('crnn_digits', 'image_size=[32,64]', 'train.global_batch_size=16'),
    'text_detection': ('db_pages', 'data.page_size=[160,160]'),
    'table': ('slanet_rendered', 'image_size=64'),
}
SMALL = ('db_pages', 'data.page_size=[96,96]')
MIB = 2**20


def open_small(recipe: str, *keys: str) -> Job:
    return open_job(recipe, [(key, key) for key in ('train.workers=0', 'train.global_batch_size=4', 'device=cpu', *keys)])


def measured_peak(job: Job, folder: Path) -> tuple[float, ImageBatch]:
    """MiB at the peak of the second step: what stays between steps, and what the profiler counts in it. And its batch."""
    trainer = Trainer(job.recipe, job.task, folder=folder, device=torch.device('cpu'))
    batch = next(trainer.batches())
    trainer.train_step(batch)
    trainer.progress.step += 1
    averages = trainer.ema.state()['averages'].values() if trainer.ema else ()
    state = [value for each in trainer.optimizer.state.values() for value in each.values()]
    kept = sum(each.nbytes for each in (*trainer.model.state_dict().values(), *averages, *state))
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        trainer.train_step(batch)
    assert profiled.profiler is not None
    events = [event for event in profiled.profiler.kineto_results.events() if event.name() == '[memory]']
    now = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return (kept + peak) / MIB, batch


QUICK = ('segmentation', 'detection')


@pytest.mark.parametrize(
    'family', [family if family in QUICK else pytest.param(family, marks=pytest.mark.long) for family in FAMILIES]
)
def test_the_predicted_peak_is_that_of_a_step_on_the_cpu(family: str, tmp_path: Path) -> None:
    job = open_small(*FAMILIES[family])
    measured, batch = measured_peak(job, tmp_path)
    parts = StepMemory(job.recipe, Parts(job.recipe, job.task)).parts_of(batch, 1)
    assert sum(parts.values()) == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize(
    ('T', 'B', 'C', 'H'), [(17, 32, 288, 256), (13, 3, 100, 96), (5, 3, 30, 70), (1, 1, 1, 1), (40, 2, 512, 48)]
)
def test_the_workspace_of_an_lstm_has_the_bytes_that_onednn_asks_for(T: int, B: int, C: int, H: int) -> None:
    weights = [torch.zeros(4 * H, size) for size in (C, H)]
    states = [torch.zeros(1, B, H)] * 2
    asked = torch.ops.aten.mkldnn_rnn_layer(
        torch.zeros(T, B, C), *weights, *[torch.zeros(4 * H)] * 2, *states, False, [], 2, H, 1, True, False, False, True
    )
    assert workspace_of_lstm(T, B, C, H) == asked[3].numel()


@pytest.mark.long
def test_the_predicted_peak_of_micro_batches_is_that_of_a_step_on_the_cpu(tmp_path: Path) -> None:
    job = open_small(*SMALL, 'train.micro_batches=2')
    measured, batch = measured_peak(job, tmp_path)
    memory = StepMemory(job.recipe, Parts(job.recipe, job.task))
    assert sum(memory.parts_of(batch, 2).values()) == pytest.approx(measured, rel=0.05)
    assert memory.peak_mb(8, 4) == pytest.approx(sum(memory.parts(8, 4).values()), rel=0.01)  # from the first two of four


def test_parts_of_the_peak_are_those_of_the_network() -> None:
    job = open_small(*FAMILIES['segmentation'], 'optimizer={name: sgd, lr: 0.1}', 'ema=null')
    parts = StepMemory(job.recipe, Parts(job.recipe, job.task), ranks=2).parts(4, 1)
    model = job.task.model()
    weights = sum(parameter.nbytes for parameter in model.parameters()) / MIB
    assert parts['parameters'] == pytest.approx(weights + sum(buffer.nbytes for buffer in model.buffers()) / MIB)
    assert parts['gradients'] == parts['optimizer'] == pytest.approx(weights)  # buckets of DDP; momentum
    assert parts['ema'] == 0
    assert parts['batch'] == 4 * 128 * 256 * (3 + 1) / MIB  # an image of three bytes per pixel, and its labels


@pytest.mark.long
def test_half_precision_takes_less_memory() -> None:
    peaks = []
    for dtype in ('fp32', 'bf16'):
        job = open_small(*SMALL, f'precision.dtype={dtype}')
        peaks.append(StepMemory(job.recipe, Parts(job.recipe, job.task)).parts(16, 1)['activations'])
    assert 0.4 < peaks[1] / peaks[0] < 0.8


@pytest.mark.long
def test_auto_takes_the_fewest_micro_batches_that_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    job = open_small(*SMALL, 'train.micro_batches=auto')
    memory = StepMemory(job.recipe, Parts(job.recipe, job.task))
    needed = [memory.peak_mb(4, count) for count in (1, 2)]
    for usable, expected in ((needed[0] + 1, 1), (needed[1] + 1, 2)):
        monkeypatch.setattr(fit, 'memory_of_device', lambda _, mb=usable: (mb + fit.CONTEXT_MB) / fit.USABLE)
        assert agree_on_micro_batches(job, predict_fit(job)).recipe.train.micro_batches == expected
    monkeypatch.setattr(fit, 'memory_of_device', lambda _: fit.CONTEXT_MB)
    with pytest.raises(RequestError, match=r'a step of 4 samples per rank takes about .* not even one sample fits'):
        agree_on_micro_batches(job, predict_fit(job))


@pytest.mark.long
def test_a_step_that_cannot_fit_is_refused_with_the_number_that_would(monkeypatch: pytest.MonkeyPatch) -> None:
    job = open_small(*SMALL, 'train.global_batch_size=64', 'train.micro_batches=auto')
    memory = StepMemory(job.recipe, Parts(job.recipe, job.task))
    monkeypatch.setattr(fit, 'fewest_micro_batches', lambda *_: None)
    monkeypatch.setattr(fit, 'memory_of_device', lambda _: (memory.peak_mb(16) + fit.CONTEXT_MB) / fit.USABLE)
    answer = predict_fit(job)
    assert isinstance(answer, str) and 'train.batch_size_per_rank=16' in answer


def test_bench_memory_prints_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    words = ['bench', 'memory', 'db_pages', '--device', '8 GB', '--json', '--set', 'data.page_size=[96,96]']
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found['peak_mb'] == pytest.approx(sum(found['parts'].values()))
    assert set(found['parts']) >= {'parameters', 'gradients', 'optimizer', 'activations', 'batch'}
    assert found['parts']['workspaces'] == 64  # a named device is a GPU
    assert found['fits'] and found['largest_batch_size_per_rank'] > found['samples'] and found['fitting_micro_batches'] == 1


@pytest.mark.parametrize(
    ('text', 'mebibytes'),
    [('24 GB', 24 * 1024), ('80g', 80 * 1024), ('16GiB', 16 * 1024), ('512 MB', 512), ('24 XB', None), ('-1 GB', None)],
)
def test_sizes_of_devices_are_read_as_they_are_sold(text: str, mebibytes: float | None) -> None:
    if mebibytes is None:
        with pytest.raises(ValueError, match='is not a size of memory'):
            parse_size(text)
    else:
        assert parse_size(text) == mebibytes
