"""Tables as trees: what a sequence of tokens means as HTML, whatever is wrong with it, and HTML that is always well-formed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from phalanx.families.table.tokens import CELLS

DEPTH = {'thead': 1, 'tbody': 1, 'tr': 2, 'td': 3}  # where an element stands; `table` is around them
SPAN = re.compile(r' ?(colspan|rowspan)="(\d+)"')
FORMATTING = re.compile(r'</?(b|i|u|sub|sup|strike|overline|underline)>')


@dataclass(slots=True)
class Element:
    """An element of a table; its content is characters and tags, which only cells have."""

    tag: str
    colspan: int = 1
    rowspan: int = 1
    content: tuple[str, ...] = ()
    children: list[Element] = field(default_factory=list)

    def last_to_first(self) -> Iterator[Element]:
        """All elements below this one and then itself: children before parents, the last child first."""
        for child in reversed(self.children):
            yield from child.last_to_first()
        yield self


def build_tree(tokens: Sequence[str], contents: Sequence[Sequence[str]] = ()) -> Element:
    """The table that `tokens` describe, its cells filled with `contents` in order as far as they go.

    What a network says may be no HTML: then an element ends where the next one cannot be inside it, and what opens or closes
    nothing is passed over, as browsers do.
    """
    root = Element('table')
    opened, cells = [root], iter(contents)
    for token in tokens:
        tag = 'td' if token in CELLS else token.strip('</>')
        span = SPAN.fullmatch(token)
        if span and opened[-1].tag == 'td':
            setattr(opened[-1], span[1], int(span[2]))
        elif token == '>' and opened[-1].tag == 'td':
            opened.pop()
        elif token.startswith('</'):
            if tag in [node.tag for node in opened[1:]]:
                while opened.pop().tag != tag:
                    pass
        elif tag in DEPTH:
            while DEPTH.get(opened[-1].tag, 0) >= DEPTH[tag]:
                opened.pop()
            node = Element(tag, content=tuple(next(cells, ())) if tag == 'td' else ())
            opened[-1].children.append(node)
            if tag != 'td' or token == '<td':  # a cell is open only while its spans are reported
                opened.append(node)
    return root


def to_html(node: Element) -> str:
    """The element as HTML. Nothing in it is trusted: text is escaped, and only tags that format text are let through."""
    spans = ''.join(f' {name}="{getattr(node, name)}"' for name in ('colspan', 'rowspan') if getattr(node, name) != 1)
    text = ''.join(piece if FORMATTING.fullmatch(piece) else escape(piece) for piece in node.content)
    return f'<{node.tag}{spans}>{text}{"".join(to_html(child) for child in node.children)}</{node.tag}>'
