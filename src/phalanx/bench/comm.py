"""`phalanx bench comm`: time of an all-reduce by size, and of a small one between computations."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from phalanx.bench.flops import read_clock
from phalanx.bench.show import format_text
from phalanx.parallel import dist
from phalanx.report.readable import pluralize

SIZES = (8, 1024, 16 * 2**10, 256 * 2**10, 2**20, 4 * 2**20, 25 * 2**20, 64 * 2**20)  # bytes; DDP sends 25 MiB at a time
MOST_SECONDS = 5.0  # a size that takes longer is not repeated
WORK = 0.003  # seconds of computing between two small sums: PP-LiteSeg's norms on a CPU are about as far apart
ROUNDS, SUMS = 15, 30  # how often computing with sums and without takes turns, and how many sums that are each time
NORM = 257  # numbers: what a norm of 128 channels exchanges


@dataclass(frozen=True)
class Exchange:
    """Median time of an all-reduce of `size` bytes."""

    size: int  # bytes
    seconds: float

    @property
    def algorithm_bandwidth(self) -> float:
        """Bytes of the result per second."""
        return self.size / self.seconds

    def bus_bandwidth(self, ranks: int) -> float:
        """Bytes per second on the busiest link of a ring, comparable with the wire: 2 (ranks - 1) / ranks times the result."""
        return self.algorithm_bandwidth * 2 * (ranks - 1) / ranks


def measure_exchanges(device: torch.device, repeats: int) -> list[Exchange]:
    """Measure one Exchange per size over all ranks, with the division by the number of ranks that gradients need."""
    found = []
    for size in SIZES:
        numbers = [torch.ones(size // 4, device=device)]
        once = _seconds(numbers, device)  # also opens the connections
        count = max(3, min(repeats, int(MOST_SECONDS / max(once, 1e-6))))
        count = int(dist.broadcast_object(count))
        found.append(Exchange(size, statistics.median(_seconds(numbers, device) for _ in range(count))))
    return found


def measure_in_work(device: torch.device) -> float:
    """Measure the seconds that the all-reduce of a norm costs ranks that compute before and after it.

    That is more than the same sum among ranks that do nothing else: each waits for the one that is late by chance, and the
    threads that send and receive have to be woken. One in ten waits for the scheduler's next tick, ten times as long as the
    others, and a step sees its share of those: hence the mean.
    """
    numbers, factor = torch.ones(NORM, device=device), torch.ones((512, 512), device=device)

    def seconds(products: int, *, summed: bool) -> float:
        dist.barrier()
        begin = time.perf_counter()
        for _ in range(SUMS):
            for _ in range(products):
                torch.mm(factor, factor)
            if summed:
                dist.sum_over_ranks(numbers)
        return read_clock(device) - begin

    seconds(1, summed=True)  # opens the connections, and makes the device ready
    products = int(dist.broadcast_object(max(1, round(WORK * SUMS / seconds(1, summed=False)))))
    rounds = [seconds(products, summed=True) - seconds(products, summed=False) for _ in range(ROUNDS)]
    return statistics.fmean(rounds) / SUMS


def _seconds(numbers: list[torch.Tensor], device: torch.device) -> float:
    """Seconds of the slowest rank: all start and finish together."""
    dist.barrier()
    begin = time.perf_counter()
    dist.average_over_ranks(numbers)
    return read_clock(device) - begin


def record(exchanges: Sequence[Exchange], in_work: float, ranks: int) -> dict[str, Any]:
    return {
        'world_size': ranks,
        'latency_s': exchanges[0].seconds,
        'in_work_s': in_work,
        'bandwidth': exchanges[-1].bus_bandwidth(ranks),
        'sizes': [
            {'bytes': each.size, 'seconds': each.seconds, 'bus_bandwidth': each.bus_bandwidth(ranks)} for each in exchanges
        ],
    }


def format_table(exchanges: Sequence[Exchange], in_work: float, ranks: int, device: str) -> str:
    rows = [
        {
            'size': f'{each.size:,} B' if each.size < 2**10 else f'{each.size / 2**10:,.0f} KiB',
            'time': f'{1e6 * each.seconds:,.0f} us',
            'result': f'{8 * each.algorithm_bandwidth / 1e9:.3f} Gbit/s',
            'wire': f'{8 * each.bus_bandwidth(ranks) / 1e9:.3f} Gbit/s',
        }
        for each in exchanges
    ]
    in_training = f'in the midst of work a sum of {4 * NORM:,} B costs {1e6 * in_work:,.0f} us: as for synchronised norms'
    return f'sum over {pluralize(ranks, "rank")}, {device}\n{format_text(rows)}\n{in_training}'
