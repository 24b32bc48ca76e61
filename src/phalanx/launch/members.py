"""Nodes of an attempt, in order of rank, and the keys under which they write to the store."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NEIGHBOURS = 8  # maximum number of nodes to which a node tests its connection
NAMED = 8  # of many nodes, those that a message names
NodeInfo = dict[str, Any]  # facts that a node publishes about itself


@dataclass(frozen=True)
class Members:
    """Nodes of an attempt, as this node knows them: number and info of each that it listens to, in order of rank.

    The first node listens to all, the others to the first, of which they know the address alone.
    """

    attempt: int
    nodes: tuple[tuple[int, NodeInfo], ...]
    port: int  # of the store for the ranks, on the first node; a new one per attempt, without keys of earlier ranks
    position: int  # of this node in the order of rank
    count: int  # number of all nodes
    neighbours: tuple[str, ...] = ()  # addresses of the nodes to which this one tests its connection

    @property
    def numbers(self) -> list[int]:
        """Numbers of the nodes that this one listens to, in order of rank."""
        return [number for number, _ in self.nodes]

    @property
    def verdict(self) -> str:
        """Key of the common verdict on the end of the attempt."""
        return self.common('verdict')

    def common(self, what: str) -> str:
        """Key of what all nodes have in common in this attempt."""
        return f'{self.attempt}/{what}'

    def key(self, what: str, number: int) -> str:
        """Key of one node in this attempt."""
        return f'{self.attempt}/{what}/{number}'

    def keys(self, what: str) -> list[str]:
        """Keys of the nodes that this one listens to, in order of rank."""
        return [self.key(what, number) for number in self.numbers]

    def name(self, number: int) -> str:
        return next((str(info['address']) for member, info in self.nodes if member == number), f'node {number}')


def choose_neighbours(position: int, count: int) -> list[int]:
    """Positions of the nodes to which a node tests its connection: all others, or NEIGHBOURS at distances 1, 2, 4, 8, ..."""
    distances = range(1, count) if count <= NEIGHBOURS + 1 else [2**power for power in range(NEIGHBOURS) if 2**power < count]
    return [(position + distance) % count for distance in distances]


def shorten(names: Sequence[str]) -> str:
    """List of names for a message; of many, the first ones and the number of the others."""
    return ', '.join(names[:NAMED]) + (f' and {len(names) - NAMED} more' if len(names) > NAMED else '')
