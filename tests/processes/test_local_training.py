"""Machines that step alone and meet every few steps. The processes of a test are told that they run on two machines."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from phalanx.runs import open_job
from phalanx.trainer import Trainer
from running import TINY, clean_environment, losses, records

RECIPE = (*TINY, 'norm_sync=off', 'optimizer={name: sgd, lr: 0.01}', 'data.train_scenes=12', 'data.eval_scenes=3')
LOCAL = 'gradients={local_steps: 2, local_from: 1}'


def machines(folder: Path, *words: str, ranks_each: int = 1) -> None:
    """Runs `phalanx train RECIPE WORDS...` as two machines would."""
    meeting = folder / 'meeting'
    meeting.unlink(missing_ok=True)
    world = {'WORLD_SIZE': str(2 * ranks_each), 'LOCAL_WORLD_SIZE': str(ranks_each), 'PHALANX_INIT_METHOD': f'file://{meeting}'}
    line = [sys.executable, '-m', 'phalanx', 'train', *RECIPE, *words]
    ranks = []
    for rank in range(2 * ranks_each):
        own = {**clean_environment(), **world, 'RANK': str(rank), 'LOCAL_RANK': str(rank % ranks_each)}
        ranks.append(subprocess.Popen(line, cwd=folder, env=own, stderr=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=240)[1] for rank in ranks]
    assert not any(rank.returncode for rank in ranks), said


def changed(trainer: Trainer) -> list[Tensor]:  # type: ignore[type-arg]
    """What machines average: weights, running statistics, momentum."""
    momentum = [state['momentum_buffer'] for state in trainer.optimizer.state.values()]
    return [*trainer.model.parameters(), *(b for b in trainer.model.buffers() if b.is_floating_point()), *momentum]


def test_machines_that_step_alone_are_two_trainings_that_are_averaged(tmp_path: Path) -> None:
    """Local SGD written out: two trainers in one process, each with the share of one machine, averaged every two steps."""
    steps = ('train.steps=5', 'evaluate.enabled=false')
    machines(tmp_path, *steps, 'gradients.local_steps=2', '--save_dir', 'run')

    job = open_job(RECIPE[0], [(text, text) for text in (*RECIPE[2:], *steps)])
    trainers = [Trainer(job.recipe, job.task, folder=tmp_path, device=torch.device('cpu')) for _ in range(2)]
    for number, trainer in enumerate(trainers):
        trainer.stream = replace(trainer.stream, rank=number, world_size=2)
    shares = [trainer.batches() for trainer in trainers]
    for step in range(5):
        for trainer, share in zip(trainers, shares, strict=True):
            trainer.train_step(next(share))
            trainer.step += 1
        if step % 2 == 1 or step == 4:
            with torch.no_grad():
                for one, other in zip(changed(trainers[0]), changed(trainers[1]), strict=True):
                    one.copy_((one + other) / 2)
                    other.copy_(one)

    found = load_file(tmp_path / 'run' / 'latest' / 'model.safetensors')
    for name, value in trainers[0].model.state_dict().items():
        torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6, msg=lambda text, name=name: f'{name}: {text}')


def test_a_run_of_local_steps_that_was_resumed_ends_bit_for_bit_like_one_that_was_not(tmp_path: Path) -> None:
    """Evaluations and checkpoints of 3 and 6 wait for the next meeting (1, 2, 4, 6, 7); the moving average is included."""
    recipe = (LOCAL, 'train.steps=7', 'evaluate.every=3', 'checkpoint.every=3', 'ema={decay: 0.9}')
    machines(tmp_path, *recipe, '--save_dir', 'whole')
    machines(tmp_path, *recipe, 'train.until=4', '--save_dir', 'halves')
    machines(tmp_path, *recipe, '--save_dir', 'halves')
    for name in ('model.safetensors', 'averaged.safetensors'):
        whole, halves = (load_file(tmp_path / run / 'latest' / name) for run in ('whole', 'halves'))
        assert all(value.equal(halves[key]) for key, value in whole.items()), name
    assert losses(tmp_path / 'whole') == losses(tmp_path / 'halves')
    assert [line['step'] for line in records(tmp_path / 'whole')] == [1, 2, 4, 6, 7]
    assert [line['step'] for line in records(tmp_path / 'whole', 'eval')] == [4, 6, 7]
    saved = sorted(path.name for path in (tmp_path / 'whole' / 'checkpoints').iterdir())
    assert saved[-3:] == ['step_0000004', 'step_0000006', 'step_0000007']


@pytest.mark.slow
def test_within_a_machine_the_number_of_ranks_still_does_not_show(tmp_path: Path) -> None:
    """Eight samples a step, four on each machine, on one rank or on two that share gradients, losses and norms."""
    recipe = ('train.global_batch_size=8', 'norm_sync=node', 'gradients.local_steps=2', 'train.steps=4', 'optimizer.lr=1e-3')
    recipe = (*recipe, 'train.seed=3')  # with others the last bits may turn a ReLU, and then show a thousand times larger
    machines(tmp_path, *recipe, '--save_dir', 'ones')
    machines(tmp_path, *recipe, '--save_dir', 'twos', ranks_each=2)
    assert losses(tmp_path / 'twos') == pytest.approx(losses(tmp_path / 'ones'), rel=1e-4)


def test_one_machine_has_nobody_to_meet(tmp_path: Path) -> None:
    """There the recipe of several trains as if it did not ask for local steps."""
    job = open_job(RECIPE[0], [(text, text) for text in (*RECIPE[2:], LOCAL)])
    trainer = Trainer(job.recipe, job.task, folder=tmp_path, device=torch.device('cpu'))
    assert not any(trainer.gradients.is_local(step) for step in range(4))
