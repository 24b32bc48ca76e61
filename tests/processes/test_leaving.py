"""Threads that talk to other ranks and nodes end with their process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from running import both_ranks, clean_environment, run_fork

SCRIPT = """
from pathlib import Path
import torch
from phalanx.parallel import dist

def threads():
    return [task.read_text().strip() for task in Path('/proc/self/task').glob('*/comm')]

dist.join(torch.device('cpu'))
dist.sum_over_ranks(torch.ones(1))
assert any('gloo' in name for name in threads()), threads()
import torch._dynamo  # as torchvision does: it loads parts of torch.distributed that take the group as a default
dist.leave()
assert not any('gloo' in name for name in threads()), threads()
"""


@pytest.mark.skipif(not Path('/proc/self/task').is_dir(), reason='the names of threads are read from /proc')
def test_no_thread_of_the_group_outlives_it_even_if_modules_are_loaded_meanwhile(tmp_path: Path) -> None:
    """One that wakes up while the interpreter ends aborts the process, though all its work is done."""
    common = {**clean_environment(), 'WORLD_SIZE': '2', 'PHALANX_INIT_METHOD': f'file://{tmp_path}/rendezvous'}
    command = [sys.executable, '-c', SCRIPT]  # a process that has loaded nothing yet
    first = subprocess.Popen(command, env={**common, 'RANK': '0', 'LOCAL_RANK': '0'})
    second = run_fork(SCRIPT, tmp_path, **common, RANK='1', LOCAL_RANK='1')
    assert (first.wait(), second.returncode) == (0, 0), second.stderr


HOOK = """
import threading, time, torch
import torch.distributed as torch_dist
from phalanx.parallel import dist

def hook(held):
    while torch_dist.is_initialized():
        time.sleep(0.001)
    time.sleep(0.05)
    held.clear()

dist.join(torch.device('cpu'))
held = [dist.new_group(use=dist.HOOKS)]
threading.Thread(target=hook, args=[held]).start()
dist.leave()
assert held == []
"""


def test_a_rank_leaves_after_its_threads_have_let_go_of_the_group_of_a_hook(tmp_path: Path) -> None:
    """A thread of the group that is the last to hold it waits for its own end, which aborts the process."""
    both_ranks(HOOK, tmp_path)


LAUNCHER = """
import sys, threading, time
from pathlib import Path
from phalanx.cli.main import main
from phalanx.launch import watchdog

def slow(folder):
    Path('looking').touch()
    time.sleep(2)
    return {}

watchdog.read_beats = slow
assert main(['launch', '--nproc_per_node', '1', 'rank.py']) == 0
assert 'watchdog' not in [thread.name for thread in threading.enumerate()]
"""


def test_the_watchdog_of_a_launch_ends_before_it(tmp_path: Path) -> None:
    """The rank ends while the watchdog is at work. One that waits for an answer of the store would abort the process."""
    (tmp_path / 'rank.py').write_text(
        'import time\nfrom pathlib import Path\nwhile not Path("looking").exists():\n    time.sleep(0.05)\n'
    )
    done = run_fork(LAUNCHER, tmp_path)
    assert done.returncode == 0, done.stderr
