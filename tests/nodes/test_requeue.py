"""Batch script of --write-slurm on a real SLURM: stopped jobs queue again and continue, suspended ones go on."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from nodes.conftest import BOUND
from nodes.slurm import Slurm, slurm, slurm_packages  # noqa: F401 - fixtures
from phalanx.weights.checkpoint import weights_at
from running import TINY, losses

STEPS = 12
SHORT = (f'train.steps={STEPS}', 'evaluate.enabled=false', 'report.every=1', 'report.pictures=0')
WORDS = ('train', *TINY, *SHORT, '--nproc_per_node', '1', '--save_dir')


class Job:
    """A job of `--write-slurm` on two nodes, submitted with `options`; its command has the run folder `folder` and `more`."""

    def __init__(self, cluster: Slurm, folder: str, *options: str, more: Sequence[str] = ()) -> None:
        self.slurm, self.folder = cluster, folder
        script = cluster.folder / 'job.sh'
        self.ask(sys.executable, '-m', 'phalanx', 'launch', '--write-slurm', 'job.sh', '--nnodes', '2', *WORDS, folder, *more)
        edited = script.read_text().replace('--cpus-per-task=16', '--cpus-per-task=1')
        script.write_text(edited.replace('# source /path/to/venv', f'source {Path(sys.executable).parent.parent}'))
        self.number = re.findall(r'\d+', self.ask('sbatch', *options, 'job.sh'))[0]

    def ask(self, *command: str) -> str:
        asked = self.slurm.start(*command)
        assert asked.end() == 0, asked.output
        return asked.output

    def stop(self) -> None:
        """Signal the steps of the job, as SLURM does before the time limit."""
        self.ask('scancel', '--signal=TERM', self.number)

    def log(self) -> str:
        return ''.join(file.read_text() for file in self.slurm.folder.glob(f'*-{self.number}.log'))

    def wait_for(self, state: str, restarts: int) -> None:
        end = time.monotonic() + BOUND
        while (now := self._state()) != (state, restarts):
            assert time.monotonic() < end, f'{now}, not {state}, {restarts}\n{self.slurm.state()}\n{self.log()}'
            time.sleep(0.5)

    def await_step(self, step: int) -> None:
        """Wait until the run has logged `step` steps."""
        folder, end = self.slurm.folder / self.folder, time.monotonic() + BOUND
        while not (folder / 'metrics.jsonl').is_file() or len(losses(folder)) < step:
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def _state(self) -> tuple[str, int]:
        text = self.ask('scontrol', 'show', 'job', self.number)
        return re.findall(r'JobState=(\w+)', text)[0], int(re.findall(r'Restarts=(\d+)', text)[0])


@pytest.mark.long
def test_a_job_that_is_suspended_for_longer_than_a_hang_goes_on(slurm: Slurm) -> None:  # noqa: F811
    job = Job(slurm, 'suspended', more=('--hang_timeout', '30', '--set', 'train.steps=4000'))
    job.wait_for('RUNNING', 0)
    job.await_step(2)
    job.ask('scontrol', 'suspend', job.number)
    job.wait_for('SUSPENDED', 0)
    reached = len(losses(slurm.folder / 'suspended'))
    time.sleep(45)
    assert len(losses(slurm.folder / 'suspended')) == reached
    job.ask('scontrol', 'resume', job.number)
    job.await_step(reached + 3)
    job.ask('scancel', job.number)


@pytest.mark.long
def test_a_time_limit_before_the_first_step_ends_the_job_instead_of_queueing_it_for_ever(slurm: Slurm) -> None:  # noqa: F811
    job = Job(slurm, 'short', '--time=2')
    job.wait_for('RUNNING', 0)
    end = time.monotonic() + BOUND
    while 'started by SLURM' not in job.log():
        assert time.monotonic() < end, job.log()
        time.sleep(0.02)
    job.stop()
    job.wait_for('FAILED', 0)
    assert 'not queued again: the time limit came before the first step' in job.log()


@pytest.mark.long
def test_a_job_that_is_stopped_twice_completes_with_the_weights_of_an_uninterrupted_run(slurm: Slurm) -> None:  # noqa: F811
    job = Job(slurm, 'stopped')
    for restarts, step in enumerate((2, 6)):
        job.wait_for('RUNNING', restarts)
        job.await_step(step)
        job.stop()
        job.wait_for('PENDING', restarts + 1)  # for two minutes, until the credential of its last start has expired
    job.wait_for('COMPLETED', 2)
    assert job.log().count('resumed at step') == 2, job.log()
    job.ask('srun', '-N2', '-n2', sys.executable, '-m', 'phalanx', *WORDS, 'whole')
    assert losses(slurm.folder / 'stopped') == losses(slurm.folder / 'whole')
    stopped, whole = (weights_at(slurm.folder / name) for name in ('stopped', 'whole'))
    assert stopped.keys() == whole.keys()
    assert all(torch.equal(stopped[name], whole[name]) for name in whole)
