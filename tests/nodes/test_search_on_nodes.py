"""One search on two nodes of a real SLURM: the tasks of `srun` and the jobs of an array share its trials."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from nodes.conftest import Started
from nodes.slurm import Slurm, slurm, slurm_packages  # noqa: F401 - fixtures
from running import TINY

TRIALS = 6
SEARCH = ('--search', 'optimizer.lr=log:1e-3..1', '--trials', str(TRIALS), '--no_prune')
SHORT = ('train.steps=2', 'evaluate.every=2', 'report.pictures=0')
TUNE = (sys.executable, '-m', 'phalanx', 'tune', *TINY[:1], *SEARCH, *TINY[1:])
WORDS = (*TUNE, *SHORT, '--save_dir')


def start_array(slurm: Slurm, *words: str) -> tuple[Started, list[Path]]:  # noqa: F811
    """Two jobs of an array that run the same command, and the files with what they say."""
    quoted = ' '.join(f"'{word}'" for word in words)
    (slurm.folder / 'array.sh').write_text(f'#!/bin/sh\n#SBATCH --array=0-1 --nodes=1 --output=array-%a.txt\n{quoted}\n')
    return slurm.start('sbatch', '--wait', 'array.sh'), [slurm.folder / f'array-{number}.txt' for number in (0, 1)]


@pytest.mark.long
def test_the_trial_of_a_cancelled_job_goes_on_in_another(slurm: Slurm) -> None:  # noqa: F811
    """The search is then complete without the job."""
    search = slurm.folder / 'search'
    settings = ('train.steps=80', 'evaluate.every=80', 'checkpoint.every=2', 'report.pictures=0', '--save_dir', 'search')
    array, said = start_array(slurm, *TUNE, *settings)

    def begun() -> list[str]:
        return re.findall(r'^trial (\d+): optimizer', said[1].read_text() if said[1].exists() else '', re.MULTILINE)

    def saved() -> bool:
        return any(list(search.glob(f'trial_{int(number):03}/checkpoints/*/manifest.json')) for number in begun()[-1:])

    array.until(saved)
    cancelled = slurm.start('scancel', f'{array.output.split()[-1]}_1')
    assert cancelled.end() == 0, cancelled.output
    assert array.end() != 0  # one of its jobs was cancelled
    cut_off = int(begun()[-1])
    assert f'trial {cut_off}: optimizer' in said[0].read_text(), [file.read_text() for file in said]
    folders = sorted(search.glob('trial_*'))
    assert [json.loads((folder / 'summary.json').read_text())['steps'] for folder in folders] == [80] * TRIALS


@pytest.mark.long
def test_the_tasks_of_a_step_and_the_jobs_of_an_array_share_the_trials_of_a_search(slurm: Slurm) -> None:  # noqa: F811
    step = slurm.start('srun', '-N2', '-n2', '--label', *WORDS, 'step')
    assert step.end() == 0, step.output
    array, said = start_array(slurm, *WORDS, 'array')
    assert array.end() == 0, [file.read_text() for file in said if file.exists()]
    began = {'step': re.findall(r'^(\d): trial (\d+): optimizer', step.output, re.MULTILINE), 'array': []}
    for worker, file in enumerate(said):
        began['array'] += [
            (str(worker), found) for found in re.findall(r'^trial (\d+): optimizer', file.read_text(), re.MULTILINE)
        ]
    for name, pairs in began.items():
        assert sorted(number for _, number in pairs) == [str(number) for number in range(TRIALS)]
        assert {worker for worker, _ in pairs} == {'0', '1'}
        folders = sorted((slurm.folder / name).glob('trial_*'))
        assert [json.loads((folder / 'summary.json').read_text())['steps'] for folder in folders] == [2] * TRIALS
