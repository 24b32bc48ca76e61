"""CPU cores available to this process."""

import math
import os
from pathlib import Path

QUOTA = Path('/sys/fs/cgroup/cpu.max')  # in a container: `quota period` in microseconds, or `max period` without a limit


def count_cores(quota: Path = QUOTA) -> int:
    """Number of processes that can run in parallel here: the cores of this process, or the CPU quota of its container.

    torch and Python count all cores of the node. In a container with a quota of a few cores, the kernel would pause so
    many threads for most of each 100 ms period.
    """
    # The affinity mask respects taskset and SLURM; macOS has none.
    count = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    try:
        share, period = quota.read_text().split()
        return min(count, math.ceil(int(share) / int(period)))
    except (OSError, ValueError):  # no such file outside of containers, `max` where there is no limit
        return count


def threads_per_rank(ranks: int) -> int:
    """Threads per rank if this node runs `ranks` of them; at least 1."""
    return max(1, count_cores() // ranks)
