"""Resolved recipe as YAML, each value followed by its origin in a comment; it can be read as a recipe again."""

from collections.abc import Iterator

import yaml

from phalanx.config.read import Node, to_plain


def to_yaml(root: Node) -> str:
    """Recipe as YAML, with the origin of each value as a comment."""
    lines = list(_mapping_lines(root, 0))
    # Comments in one column, unless some line is very long.
    width = min(60, max((len(line) for line, _ in lines), default=0))
    return ''.join(f'{line:<{width}}  # {origin}\n' if origin else f'{line}\n' for line, origin in lines)


def _mapping_lines(node: Node, depth: int) -> Iterator[tuple[str, str]]:
    for key, child in node.value.items():
        yield from _key_lines(f'{"  " * depth}{to_inline_yaml(key)}:', child, depth)


def _key_lines(head: str, child: Node, depth: int) -> Iterator[tuple[str, str]]:
    if isinstance(child.value, dict) and child.value:
        yield head, ''
        yield from _mapping_lines(child, depth + 1)
    # A list of mappings has one line per item, each with its origin; plain lists are written inline.
    elif isinstance(child.value, list) and any(isinstance(item.value, dict | list) for item in child.value):
        yield head, ''
        for item in child.value:
            yield f'{"  " * depth}- {to_inline_yaml(to_plain(item))}', item.origin
    else:
        yield f'{head} {to_inline_yaml(to_plain(child))}', child.origin


def to_inline_yaml(value: object) -> str:
    """YAML of a value on one line."""
    # A scalar document ends with `...`.
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000, sort_keys=False, allow_unicode=True)
    return text.removesuffix('\n').removesuffix('\n...')
