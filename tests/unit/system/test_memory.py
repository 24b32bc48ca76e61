"""Memory that is freed and taken again."""

import platform
import subprocess
import sys

import pytest

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
