"""Memory that a process can use, and memory that is freed and taken again."""

import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from phalanx.data import cache
from phalanx.data.cache import CacheOptions, check_room
from phalanx.engine import fit
from phalanx.engine.fit import memory_of_device
from phalanx.system.groups import memory_of_host

ROUNDS = """
import resource
from phalanx.system.memory import keep_freed_memory
keep_freed_memory()
for _ in range(9):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    images = [b'x' * 2**25 for _ in range(4)]
    del images
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != 'glibc', reason='there is no glibc')
def test_a_process_that_keeps_what_it_frees_gets_no_new_pages_for_the_same_work() -> None:
    """The first round takes 128 MiB, 32768 pages."""
    said = subprocess.run([sys.executable, '-c', ROUNDS], capture_output=True, text=True, check=True).stdout
    faults = [int(line) for line in said.splitlines()]
    assert faults[0] > 30000
    assert faults[-1] < 100


@pytest.mark.parametrize(
    ('own', 'limits', 'expected'),
    [
        ('0::/\n', {'memory.max': 2**20}, 2**20),  # a container of version 2
        ('0::/slurm/job_7/step_0\n', {'slurm/job_7/memory.max': 2**21, 'slurm/job_7/step_0/memory.max': 'max'}, 2**21),
        ('4:memory:/docker/1f\n1:cpu:/\n0::/\n', {'memory/memory.limit_in_bytes': 2**22}, 2**22),  # of version 1
        (
            '9:cpu,memory:/a b/c\n',
            {'memory/a b/memory.limit_in_bytes': 2**23, 'memory/memory.limit_in_bytes': 2**63 - 2**12},
            2**23,
        ),
        ('0::/\n', {}, None),
        ('0::/\n', {'memory.max': 2**62}, None),
        (None, {'memory.max': 2**20}, None),
    ],
)
def test_a_process_has_the_memory_of_its_control_groups(
    tmp_path: Path, own: str | None, limits: dict[str, int | str], expected: int | None
) -> None:
    """A container sees its own group as the root, by whatever name the machine knows it; limits hold for all groups below."""
    for name, limit in limits.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f'{limit}\n')
    if own is not None:
        (tmp_path / 'own').write_text(own)
    machine = psutil.virtual_memory().total
    assert memory_of_host(tmp_path, tmp_path / 'own') == (expected or machine)


def test_micro_batches_and_the_cache_keep_to_the_limit_of_a_container(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('LOCAL_WORLD_SIZE', '2')
    for user in (fit, cache):
        monkeypatch.setattr(user, 'memory_of_host', lambda: 2**24)
    assert memory_of_device(torch.device('cpu')) == 8
    with pytest.raises(ValueError, match=r'0\.02 GiB requested, but memory has only 0\.0 GiB free'):
        check_room(CacheOptions(gib=0.02))
