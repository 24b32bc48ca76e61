"""`phalanx bench comm`: how long a sum over all ranks takes, by size."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from phalanx import dist
from phalanx.bench.show import as_text
from phalanx.readable import counted

SIZES = (8, 1024, 16 * 2**10, 256 * 2**10, 2**20, 4 * 2**20, 25 * 2**20, 64 * 2**20)  # bytes; DDP sends 25 MiB at a time
MOST_SECONDS = 5.0  # a size that takes longer is not repeated


@dataclass(frozen=True)
class Exchange:
    """The median time of a sum over all ranks."""

    size: int  # bytes
    seconds: float

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of the result a second."""
        return self.size / self.seconds

    def bus_bandwidth(self, ranks: int) -> float:
        """Bytes a second on the busiest link of a ring, the number that compares with the wire: 2 (ranks - 1) / ranks times."""
        return self.algorithm_bandwidth * 2 * (ranks - 1) / ranks


def measure_exchanges(device: torch.device, sizes: Sequence[int] = SIZES, repeats: int = 20) -> list[Exchange]:
    """One Exchange a size, over all ranks. The division by the number of ranks, which gradients need, is part of it."""
    found = []
    for size in sizes:
        numbers = [torch.ones(size // 4, device=device)]
        once = _seconds(numbers, device)  # also opens the connections
        count = max(3, min(repeats, int(MOST_SECONDS / max(once, 1e-6))))
        count = int(dist.from_main_rank(count))
        found.append(Exchange(size, statistics.median(_seconds(numbers, device) for _ in range(count))))
    return found


def _seconds(numbers: list[torch.Tensor], device: torch.device) -> float:
    """Of the slowest rank, since all begin together and end together."""
    dist.barrier()
    begin = time.perf_counter()
    dist.average_over_ranks(numbers)
    if device.type == 'cuda':
        torch.cuda.synchronize(device)
    return time.perf_counter() - begin


def record(exchanges: Sequence[Exchange], ranks: int) -> dict[str, Any]:
    largest = exchanges[-1]
    return {
        'world_size': ranks,
        'latency_s': exchanges[0].seconds,
        'bandwidth': largest.bus_bandwidth(ranks),
        'sizes': [
            {'bytes': each.size, 'seconds': each.seconds, 'bus_bandwidth': each.bus_bandwidth(ranks)} for each in exchanges
        ],
    }


def as_table(exchanges: Sequence[Exchange], ranks: int, device: str) -> str:
    rows = [
        {
            'size': f'{each.size:,} B' if each.size < 2**10 else f'{each.size / 2**10:,.0f} KiB',
            'time': f'{1e6 * each.seconds:,.0f} us',
            'result': f'{8 * each.algorithm_bandwidth / 1e9:.3f} Gbit/s',
            'wire': f'{8 * each.bus_bandwidth(ranks) / 1e9:.3f} Gbit/s',
        }
        for each in exchanges
    ]
    return f'sum over {counted(ranks, "rank")}, {device}\n{as_text(rows)}'
