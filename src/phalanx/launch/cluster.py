"""From the flags people know to what is started on this machine: how many ranks, on which devices."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """The processes to start on this machine."""

    ranks_per_node: int
    devices: tuple[str, ...] = ()  # what each rank sees as its own, by local rank; empty: all see all

    @classmethod
    def from_flags(cls, gpus: str | None, nproc_per_node: int | None, available: int) -> tuple[Cluster | None, list[str]]:
        """The cluster that the flags ask for (None: one process, no launcher) and warnings. `available`: CUDA devices here.

        The numbers of `--gpus` count within CUDA_VISIBLE_DEVICES. Raises ValueError with the flag and the cure.
        """
        if gpus is None:
            if nproc_per_node is None:
                return None, []
            if nproc_per_node < 1:
                raise ValueError(f'--nproc_per_node {nproc_per_node}: at least 1 process')
            if available and nproc_per_node > available:
                raise ValueError(f'--nproc_per_node {nproc_per_node}: this machine has {available} CUDA devices')
            return cls(nproc_per_node), []
        wanted = [part.strip() for part in gpus.split(',') if part.strip()]
        if not wanted or not all(part.isdecimal() for part in wanted):
            raise ValueError(f'--gpus {gpus!r}: expected numbers separated by commas, such as 0,1')
        if len(set(wanted)) < len(wanted):
            raise ValueError(f'--gpus {gpus}: a device is named twice')
        if nproc_per_node not in (None, len(wanted)):
            raise ValueError(f'--gpus {gpus} names {len(wanted)} devices, --nproc_per_node asks for {nproc_per_node} processes')
        if not available:
            return cls(len(wanted)), [f'--gpus {gpus}: torch sees no CUDA device here; starting {len(wanted)} ranks on the CPU']
        visible = _visible(available)
        outside = [part for part in wanted if int(part) >= len(visible)]
        if outside:
            there = f'this process sees {len(visible)}: 0 to {len(visible) - 1}'
            raise ValueError(f'--gpus {gpus}: there is no device {", ".join(outside)}; {there}')
        return cls(len(wanted), tuple(visible[int(part)] for part in wanted)), []

    def environment(self) -> dict[str, str]:
        """What all ranks of this machine get besides what the elastic agent sets."""
        threads = max(1, len(os.sched_getaffinity(0)) // self.ranks_per_node)
        environment = {'OMP_NUM_THREADS': os.environ.get('OMP_NUM_THREADS', str(threads))}
        if self.devices:
            environment['CUDA_VISIBLE_DEVICES'] = ','.join(self.devices)
        return environment


def _visible(available: int) -> Sequence[str]:
    named = os.environ.get('CUDA_VISIBLE_DEVICES')
    return [part.strip() for part in named.split(',')] if named else [str(number) for number in range(available)]
