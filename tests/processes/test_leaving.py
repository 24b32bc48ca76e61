"""What is left of the group of all ranks in a process that has left it."""

from __future__ import annotations

from pathlib import Path

import pytest

from running import both_ranks

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
def test_no_thread_of_the_group_outlives_it_whatever_was_loaded_meanwhile(tmp_path: Path) -> None:
    """One that wakes up while the interpreter ends aborts the process, though all its work is done."""
    both_ranks(SCRIPT, tmp_path)
