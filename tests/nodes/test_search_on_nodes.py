"""One search on two nodes of a real SLURM: the tasks of `srun` and the jobs of an array share its trials."""

from __future__ import annotations

import json
import re
import sys

import pytest

from nodes.slurm import Slurm, slurm, slurm_packages  # noqa: F401 - fixtures
from running import TINY

TRIALS = 6
SEARCH = ('--search', 'optimizer.lr=log:1e-3..1', '--trials', str(TRIALS), '--no_prune')
SHORT = ('train.steps=2', 'evaluate.every=2', 'report.pictures=0')
WORDS = (sys.executable, '-m', 'phalanx', 'tune', *TINY[:1], *SEARCH, *TINY[1:], *SHORT, '--save_dir')


@pytest.mark.long
def test_the_tasks_of_a_step_and_the_jobs_of_an_array_share_the_trials_of_a_search(slurm: Slurm) -> None:  # noqa: F811
    step = slurm.start('srun', '-N2', '-n2', '--label', *WORDS, 'step')
    assert step.end() == 0, step.output
    quoted = ' '.join(f"'{word}'" for word in WORDS)
    (slurm.folder / 'array.sh').write_text(f'#!/bin/sh\n#SBATCH --array=0-1 --nodes=1 --output=array-%a.txt\n{quoted} array\n')
    array = slurm.start('sbatch', '--wait', 'array.sh')
    said = [slurm.folder / f'array-{number}.txt' for number in (0, 1)]
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
