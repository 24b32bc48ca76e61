"""Batch script of --write-slurm on a real SLURM: stopped jobs queue again and continue."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
import torch

from nodes.conftest import BOUND
from nodes.slurm import Slurm, slurm, slurm_packages  # noqa: F401 - fixtures
from phalanx.weights.checkpoint import weights_at
from running import TINY, losses

STEPS = 12
SHORT = (f'train.steps={STEPS}', 'evaluate.enabled=false', 'report.every=1', 'report.pictures=0')


@pytest.mark.long
def test_a_job_that_is_stopped_twice_completes_with_the_weights_of_an_uninterrupted_run(slurm: Slurm) -> None:  # noqa: F811
    def ask(*command: str) -> str:
        asked = slurm.start(*command)
        assert asked.end() == 0, asked.output
        return asked.output

    words = ('train', *TINY, *SHORT, '--nproc_per_node', '1', '--save_dir')
    script = slurm.folder / 'job.sh'
    ask(sys.executable, '-m', 'phalanx', 'launch', '--write-slurm', 'job.sh', '--nnodes', '2', *words, 'stopped')
    edited = script.read_text().replace('--cpus-per-task=16', '--cpus-per-task=1')
    script.write_text(edited.replace('# source /path/to/venv', f'source {Path(sys.executable).parent.parent}'))
    number = re.findall(r'\d+', ask('sbatch', 'job.sh'))[0]

    def state() -> tuple[str, int]:
        text = ask('scontrol', 'show', 'job', number)
        return re.findall(r'JobState=(\w+)', text)[0], int(re.findall(r'Restarts=(\d+)', text)[0])

    def log() -> str:
        return ''.join(file.read_text() for file in slurm.folder.glob(f'*-{number}.log'))

    def wait_for(expected: tuple[str, int]) -> None:
        end = time.monotonic() + BOUND
        while (now := state()) != expected:
            assert time.monotonic() < end, f'{now}, not {expected}\n{slurm.state()}\n{log()}'
            time.sleep(0.5)

    for restarts, step in enumerate((2, 6)):
        wait_for(('RUNNING', restarts))
        end = time.monotonic() + BOUND
        while not (slurm.folder / 'stopped/metrics.jsonl').is_file() or len(losses(slurm.folder / 'stopped')) < step:
            assert time.monotonic() < end, log()
            time.sleep(0.02)
        ask('scancel', '--signal=TERM', number)  # as SLURM signals the steps of a job before its time limit
        wait_for(('PENDING', restarts + 1))  # for two minutes, until the credential of its last start has expired
    wait_for(('COMPLETED', 2))
    assert log().count('resumed at step') == 2, log()
    ask('srun', '-N2', '-n2', sys.executable, '-m', 'phalanx', *words, 'whole')
    assert losses(slurm.folder / 'stopped') == losses(slurm.folder / 'whole')
    stopped, whole = (weights_at(slurm.folder / name) for name in ('stopped', 'whole'))
    assert stopped.keys() == whole.keys()
    assert all(torch.equal(stopped[name], whole[name]) for name in whole)
