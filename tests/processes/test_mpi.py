"""Two ranks that Open MPI or MPICH starts: the run that two ranks of our own give."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from running import TINY, Command, clean_environment, losses

SHORT = ('train.steps=2', 'evaluate.enabled=false', 'report.pictures=0')
COMMANDS = {  # Debian's names, where both may be installed
    'Open MPI': ('mpiexec.openmpi', '--allow-run-as-root', '--oversubscribe'),
    'MPICH or Intel MPI': ('mpiexec.mpich',),
}


@pytest.mark.long
def test_processes_of_mpi_are_the_ranks_of_one_run(phalanx: Command, tmp_path: Path) -> None:
    found = {name: words for name, words in COMMANDS.items() if shutil.which(words[0])}
    if not found:
        pytest.skip('needs mpiexec of Open MPI or MPICH (apt-get install openmpi-bin mpich)')
    assert phalanx('train', *TINY, *SHORT, '--nproc_per_node', '2', '--save_dir', 'own').returncode == 0
    for name, words in found.items():
        command = [*words, '-n', '2', sys.executable, '-m', 'phalanx', 'train', *TINY, *SHORT, '--save_dir', words[0]]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env=clean_environment(),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        output = done.stdout + done.stderr
        assert done.returncode == 0, output
        assert f'started by {name}: 2 processes on 1 node, one per rank' in output
        assert output.count('run folder') == 1  # rank 1 has a log
        assert losses(tmp_path / words[0]) == losses(tmp_path / 'own')
