"""CPU cores available to this process."""

import math
import os
from contextlib import suppress
from pathlib import Path

from phalanx.system.groups import GROUPS, GROUPS_OF_PROCESS, groups_of

QUOTAS = ('cpu.max',), ('cpu.cfs_quota_us', 'cpu.cfs_period_us')  # files with quota and period, of versions 2 and 1


def count_cores(groups: Path = GROUPS, own: Path = GROUPS_OF_PROCESS) -> int:
    """Number of processes that can run in parallel here: the cores of this process, or the CPU quota of its container.

    torch and Python count all cores of the node. In a container with a quota of a few cores, the kernel would pause so
    many threads for most of each 100 ms period.
    """
    # The affinity mask respects taskset and SLURM; macOS has none.
    count = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    for group in groups_of('cpu', groups, own):
        for files in QUOTAS:
            with suppress(OSError, ValueError):  # no such file, or `max`: no limit
                quota, period = map(int, ' '.join((group / file).read_text() for file in files).split())
                count = min(count, math.ceil(quota / period)) if quota > 0 else count  # -1: no limit
    return count


def threads_per_rank(ranks: int) -> int:
    """Threads per rank if this node runs `ranks` of them; at least 1."""
    return max(1, count_cores() // ranks)
