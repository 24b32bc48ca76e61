"""Tables as trees: parsing of any token sequence, well-formed or not, and well-formed HTML from it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from phalanx.families.table.tokens import CELLS

DEPTH = {'thead': 1, 'tbody': 1, 'tr': 2, 'td': 3}  # nesting level of an element; `table` is level 0
SPAN = re.compile(r' ?(colspan|rowspan)="(\d+)"')
FORMATTING = re.compile(r'</?(b|i|u|sub|sup|strike|overline|underline)>')


@dataclass(slots=True)
class Element:
    """HTML element of a table; cells have content, characters and tags."""

    tag: str
    colspan: int = 1
    rowspan: int = 1
    content: tuple[str, ...] = ()
    children: list[Element] = field(default_factory=list)

    def last_to_first(self) -> Iterator[Element]:
        """Yield all elements below this one and then itself: children before parents, the last child first."""
        for child in reversed(self.children):
            yield from child.last_to_first()
        yield self


def build_tree(tokens: Sequence[str], contents: Sequence[Sequence[str]] = ()) -> Element:
    """Parse `tokens` into a table; `contents` fill its cells in order, as far as they go.

    Predicted tokens may be malformed: as in browsers, an element ends where the next one cannot be inside it, and unmatched
    tags are ignored.
    """
    root = Element('table')
    opened, cells = [root], iter(contents)
    for token in tokens:
        tag = 'td' if token in CELLS else token.strip('</>')
        # Attributes belong to the cell that is still open.
        span = SPAN.fullmatch(token)
        if span and opened[-1].tag == 'td':
            setattr(opened[-1], span[1], int(span[2]))
        elif token == '>' and opened[-1].tag == 'td':
            opened.pop()
        elif token.startswith('</'):
            # Close elements up to the matching one; without any, ignore the tag.
            if tag in [node.tag for node in opened[1:]]:
                while opened.pop().tag != tag:
                    pass
        elif tag in DEPTH:
            # An element ends where one of its own or an outer level begins.
            while DEPTH.get(opened[-1].tag, 0) >= DEPTH[tag]:
                opened.pop()
            node = Element(tag, content=tuple(next(cells, ())) if tag == 'td' else ())
            opened[-1].children.append(node)
            if tag != 'td' or token == '<td':  # a cell is open only while its spans are reported
                opened.append(node)
    return root


def to_html(node: Element) -> str:
    """Return the element as HTML. Content is not trusted: text is escaped, only text formatting tags are kept."""
    spans = ''.join(f' {name}="{getattr(node, name)}"' for name in ('colspan', 'rowspan') if getattr(node, name) != 1)
    # Predicted or annotated content may hold anything, scripts included.
    text = ''.join(piece if FORMATTING.fullmatch(piece) else escape(piece) for piece in node.content)
    return f'<{node.tag}{spans}>{text}{"".join(to_html(child) for child in node.children)}</{node.tag}>'
