"""Control groups of Linux: they limit containers, and jobs of SLURM and systemd."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS, GROUPS_OF_PROCESS = Path('/sys/fs/cgroup'), Path('/proc/self/cgroup')


def groups_of(controller: str, groups: Path = GROUPS, own: Path = GROUPS_OF_PROCESS) -> Iterator[Path]:
    """Yield the folders of the groups that limit `controller` for this process, in either version: the limits of all hold."""
    for line in own.read_text().splitlines() if own.is_file() else ():
        _, controllers, place = line.split(':', 2)
        if not controllers or controller in controllers.split(','):  # without a controller: version 2
            group = (groups / controller if controllers else groups) / place.lstrip('/')
            # In a container the place may be that on the machine, which is not there; the root is the container's group then.
            yield from (group, *group.parents)


def memory_of_host(groups: Path = GROUPS, own: Path = GROUPS_OF_PROCESS) -> int:
    """Bytes of memory that this process can use: those of the machine, or fewer in a container or a SLURM job."""
    limits = [os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES')]
    for group in groups_of('memory', groups, own):
        for file in ('memory.max', 'memory.limit_in_bytes'):  # of version 2, of version 1
            with suppress(OSError, ValueError):  # no such file, or `max`: no limit
                limits.append(int((group / file).read_text()))
    return min(limits)
