"""A resolved recipe as YAML, each value followed by where it was written; it reads back as a recipe."""

from collections.abc import Iterator

import yaml

from phalanx.config.read import Node, to_plain


def to_yaml(root: Node) -> str:
    """The recipe as text; the origin of a value stands behind it as a comment."""
    lines = list(_mapping(root, 0))
    width = min(60, max((len(line) for line, _ in lines), default=0))
    return ''.join(f'{line:<{width}}  # {origin}\n' if origin else f'{line}\n' for line, origin in lines)


def _mapping(node: Node, depth: int) -> Iterator[tuple[str, str]]:
    for key, child in node.value.items():
        yield from _entry(f'{"  " * depth}{to_inline_yaml(key)}:', child, depth)


def _entry(head: str, child: Node, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(child.value, dict) and child.value:
        yield head, ''
        yield from _mapping(child, depth + 1)
    elif isinstance(child.value, list) and any(isinstance(item.value, dict | list) for item in child.value):
        yield head, ''
        for item in child.value:
            yield f'{"  " * depth}- {to_inline_yaml(to_plain(item))}', item.origin
    else:
        yield f'{head} {to_inline_yaml(to_plain(child))}', child.origin


def to_inline_yaml(value: object) -> str:
    """A value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True)
    return text.removesuffix('\n').removesuffix('\n...')
