"""Steps of every network on a GPU: the losses of the CPU, and only the waits that `tests/strict` allows."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from phalanx.engine.evaluation import Setup, evaluate
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer

sys.path.append(str(Path(__file__).parents[1] / 'strict'))
from steps import CASES, PARTS, PREDICTING, SMALL
from test_steps import QUERIES, TEXTS

FP32 = ('precision.tf32=false',)
# torch's CTC loss reads the lengths of its texts on the host; Hungarian matching needs the costs there.
WAITS = {
    **dict.fromkeys(TEXTS, ('torch/nn/functional.py', 'torch/autograd/graph.py')),
    **dict.fromkeys(QUERIES, ('families/detection/',)),
    'mixed': ('loss/connectivity.py',),
}


@contextmanager
def waits_of_host() -> Iterator[list[str]]:
    """Places at which the host waits for the device, inside this context."""
    places: list[str] = []
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter('always')
        try:
            torch.cuda.set_sync_debug_mode('warn')
            yield places
        finally:
            torch.cuda.set_sync_debug_mode('default')
    places += [f'{each.filename}:{each.lineno}' for each in seen if 'called a synchronizing' in str(each.message)]


def train(case: str, device: str, folder: Path) -> tuple[list[list[float]], list[str], list[str]]:
    """Losses of three steps, waits in the third, and waits in an evaluation."""
    recipe, *keys = CASES[case]
    if device == 'cpu':
        keys = [key for key in keys if not key.startswith('precision')]
    job = open_job(recipe, [(key, key) for key in (*keys, *SMALL, *FP32)])
    trainer = Trainer(job.recipe, job.task, folder=folder, device=torch.device(device))
    batches = trainer.batches()
    for _ in range(2):
        trainer.train_step(next(batches))
        trainer.progress.step += 1
    batch = next(batches)
    if device == 'cpu':
        trainer.train_step(batch)
        trainer.progress.step += 1
        trainer.read_numbers(keep=0)
        return trainer.numbers.logged, [], []
    with waits_of_host() as waits:
        trainer.train_step(batch)
        trainer.progress.step += 1
    trainer.read_numbers(keep=0)
    evaluated: list[str] = []
    if case in PREDICTING:
        setup = Setup(job.recipe, torch.device(device), trainer.precision)
        with waits_of_host() as evaluated:
            evaluate(job.task, trainer.model, setup, trainer.evalset)
    return trainer.numbers.logged, waits, evaluated


@pytest.mark.parametrize('case', [pytest.param(case, marks=[pytest.mark.long] if case in PARTS else []) for case in CASES])
def test_a_network_has_the_losses_of_the_cpu_and_waits_as_little_as_on_the_strict_device(case: str, tmp_path: Path) -> None:
    """The first step in detail; later ones start from weights that have been rounded differently."""
    losses, waits, evaluated = train(case, 'cuda', tmp_path / 'cuda')
    expected, _, _ = train(case, 'cpu', tmp_path / 'cpu')
    is_half = any(key.startswith('precision') for key in CASES[case])
    assert losses[0] == pytest.approx(expected[0], rel=0.02 if is_half else 1e-3, abs=1e-4)
    assert [place for place in waits if not any(name in place for name in WAITS.get(case, ()))] == []
    assert len(waits) <= 8, waits  # four in each pass of the CTC loss
    assert len(evaluated) <= 4, evaluated
