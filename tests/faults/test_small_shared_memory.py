"""Containers have 64 MiB in /dev/shm, or less; a batch of large images is more."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from faults.started import BOUND
from running import clean_environment

# Three batches of 48 MiB, in /dev/shm of a size of its own. Prints what arrived, and what was left there.
LOAD = """
import os, torch
from phalanx.engine.loader import Loader
from phalanx.data.samples import Draw
class Large:
    def __len__(self): return 3
    def __getitem__(self, draw): return torch.full((48 * 2**20,), draw.index, dtype=torch.uint8)
loader = Loader(Large(), torch.stack, workers=2, bad_samples=0, device=torch.device('cpu'), replace=True)
print([int(batch.max()) for batch in loader.batches(iter([[Draw(n, 0, 0, 0)] for n in range(3)]))], os.listdir('/dev/shm'))
"""


@pytest.mark.parametrize('mebibytes', [*(pytest.param(size, marks=pytest.mark.long) for size in (64, 16)), 1])
def test_batches_larger_than_dev_shm_arrive_and_leave_nothing_there(tmp_path: Path, mebibytes: int) -> None:
    if os.geteuid() != 0 or shutil.which('unshare') is None:
        pytest.skip('needs root and unshare, for a /dev/shm of its own')
    (tmp_path / 'load.py').write_text(LOAD)
    inside = f'mount -t tmpfs -o size={mebibytes}m tmpfs /dev/shm && exec {sys.executable} load.py'
    done = subprocess.run(
        ['unshare', '-m', 'sh', '-c', inside],
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=BOUND,
        check=False,
    )
    if 'mount:' in done.stderr or 'unshare failed' in done.stderr:
        pytest.skip(f'cannot mount here: {done.stderr}')
    assert done.stdout == '[0, 1, 2] []\n', done.stderr
