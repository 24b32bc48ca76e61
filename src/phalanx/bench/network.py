"""Cost model of exchanges between ranks: latency, bandwidth, ring and tree all-reduce."""

import math
import re
from dataclasses import dataclass

SIZES = {'': 1.0, 'k': 1e3, 'm': 1e6, 'g': 1e9, 't': 1e12, 'ki': 2.0**10, 'mi': 2.0**20, 'gi': 2.0**30}
TIMES = {'s': 1.0, 'ms': 1e-3, 'us': 1e-6, 'µs': 1e-6, 'ns': 1e-9}
PAYLOAD = 1448 / 1538  # of what a cable carries: TCP in packets of 1500 bytes, their headers and the gaps between them


@dataclass(frozen=True)
class Link:
    """Link between neighbours: bytes per second in each direction, and latency in seconds."""

    bandwidth: float
    latency: float

    def seconds(self, size: float) -> float:
        return self.latency + size / self.bandwidth


@dataclass(frozen=True)
class Network:
    """Nodes with one network card each, and the devices of a node among themselves.

    `host`: bytes per second that the processor of a rank gets through when it has to copy and add by itself (gloo); that time
    is missing from the computation. Devices with engines of their own for it have none (infinite).
    """

    between: Link
    within: Link
    host: float = math.inf

    def all_reduce(self, size: float, nodes: int, devices: int) -> float:
        """Seconds to add up `size` bytes over all ranks: within each node, between the nodes, and back."""
        return all_reduce(size, devices, self.within) + all_reduce(size, nodes, self.between)


FREE = Network(Link(math.inf, 0), Link(math.inf, 0))


def all_reduce(size: float, ranks: int, link: Link) -> float:
    """The faster of ring and tree, as the libraries choose it: a ring for much, a tree for little among many."""
    return min(ring(size, ranks, link), tree(size, ranks, link))


def ring(size: float, ranks: int, link: Link) -> float:
    """Each rank passes a share of 1/ranks on 2 (ranks - 1) times: once round to add up, once round to hand it out.

    Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms for clusters of workstations, 2009.
    """
    return 2 * (ranks - 1) * link.seconds(size / ranks) if ranks > 1 else 0.0


def tree(size: float, ranks: int, link: Link) -> float:
    """Up a binary tree to add up and down again to hand it out; in pieces, so that all links are busy."""
    if ranks == 1:
        return 0.0
    return 2 * (math.ceil(math.log2(ranks)) * link.latency + size / link.bandwidth)


def parse_bandwidth(text: str) -> float:
    """Parse bytes per second: `25Gbit`, `1 Gbit/s`, `200Mbit`, `3GB/s`, `inf`. Raises ValueError."""
    if text == 'inf':
        return math.inf
    found = re.fullmatch(r'(\d+(?:\.\d+)?)\s*([kKmMgGtT]?i?)(bit|bps|b|B)(/s|ps)?', text.strip())
    if found is None or found[2].lower() not in SIZES or float(found[1]) <= 0:
        raise ValueError(f'{text}: expected a bandwidth such as 25Gbit, 200Mbit or 3GB/s')
    return float(found[1]) * SIZES[found[2].lower()] / (1 if found[3] == 'B' else 8)


def parse_cable_bandwidth(text: str) -> float:
    """Parse the bandwidth of a cable; return the bytes per second of TCP payload. Raises ValueError."""
    return PAYLOAD * parse_bandwidth(text)


def parse_latency(text: str) -> float:
    """Parse seconds: `20us`, `0.1ms`, `0s`. Raises ValueError."""
    found = re.fullmatch(r'(\d+(?:\.\d+)?)\s*(s|ms|us|µs|ns)', text.strip())
    if found is None:
        raise ValueError(f'{text}: expected a time such as 20us or 0.1ms')
    return float(found[1]) * TIMES[found[2]]
