"""Wrong values in every place of a configuration, for tests that nothing but a ConfigError comes of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from phalanx.config.read import Node
from phalanx.paddle.configs.dialect import Dialect, Reading, assign

JUNK: tuple[Any, ...] = (None, 0, -1, 2.5, 'x', True, [], {}, [1], float('nan'), float('inf'), {'a': 1}, [[]], [{'x': 1}])


def mutated(root: Node) -> Iterator[tuple[str, Node]]:
    """`root` with one value after the other replaced by each of JUNK, and what was done."""
    for place in places(root):
        for junk in JUNK:
            yield f'{".".join(place)}={junk!r}', assign(root, list(place), as_node(junk))


def places(node: Node, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Paths of the values below `node`."""
    keys: list[tuple[Any, Node]] = []
    if isinstance(node.value, dict):
        keys = list(node.value.items())
    elif isinstance(node.value, list):
        keys = list(enumerate(node.value))
    for key, child in keys:
        yield (*above, str(key))
        yield from places(child, (*above, str(key)))


def as_node(value: Any) -> Node:
    if isinstance(value, dict):
        return Node({key: as_node(child) for key, child in value.items()}, 'junk:1')
    if isinstance(value, list):
        return Node([as_node(child) for child in value], 'junk:1')
    return Node(value, 'junk:1', None if value is None else str(value))


def translated(dialect: Dialect, root: Node) -> list[str]:
    """The problems of a translation; that it raises nothing is what is tested."""
    reading = Reading(dialect.project)
    dialect.translate(root, reading)
    return reading.problems
