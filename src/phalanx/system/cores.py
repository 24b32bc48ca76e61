"""How much of the processor is ours."""

import math
import os
from pathlib import Path

QUOTA = Path('/sys/fs/cgroup/cpu.max')  # in a container: `quota period` in microseconds, or `max period` without a limit


def count_cores(quota: Path = QUOTA) -> int:
    """How many processes can work side by side here: the cores that this one may use, or fewer where a container has a share.

    torch and Python count all cores of the node; threads for all of them, in a container that may use a few, are stopped for
    most of each tenth of a second.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, 'sched_getaffinity') else os.cpu_count() or 1
    try:
        share, period = quota.read_text().split()
        return min(count, math.ceil(int(share) / int(period)))
    except (OSError, ValueError):  # no such file outside of containers; no number where there is no limit
        return count


def threads_per_rank(ranks: int) -> int:
    """For each of so many ranks of this node."""
    return max(1, count_cores() // ranks)
