"""Reading of a PaddleDetection configuration: its files, the bases of `_BASE_` first, merged into one."""

from functools import reduce
from pathlib import Path

from phalanx.config.read import Node, load_with_bases
from phalanx.paddle.configs.dialect import Reading

BASE = '_BASE_'


def read(path: Path, reading: Reading) -> Node:
    """The configuration at `path` merged with the files of its `_BASE_`, of which a later one wins. Raises ConfigError."""
    return load_with_bases(path, BASE, lambda own, bases: reduce(_merge, [*bases, own]), notes=reading.notes)


def _merge(under: Node, over: Node) -> Node:
    """`over` merged into `under` key by key; an object `!Tag {...}` replaces, and is replaced, as a whole."""
    if not (isinstance(under.value, dict) and isinstance(over.value, dict)) or _is_object(under) or _is_object(over):
        return over
    joined = dict(under.value)
    for key, node in over.value.items():
        joined[key] = _merge(joined[key], node) if key in joined else node
    return Node(joined, over.origin)


def _is_object(node: Node) -> bool:
    kind = node.value.get('type')
    return kind is not None and (kind.text or '').startswith('!')
