"""TEDS, the tree-edit-distance-based similarity of tables.

Zhong et al., Image-based Table Recognition: Data, Model, and Evaluation, https://arxiv.org/abs/1911.10683; costs and counts are
those of the reference implementation. Shapes: N, M nodes of the two tables.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from phalanx.families.table.metric.tree_edit import Floats, edit_distance, index_tree
from phalanx.families.table.tree import Element

FIRST_TAG = 0xF0000  # code point for the first tag in a cell, in a private use plane


def teds(table: Element, other: Element, *, structure_only: bool = False) -> float:
    """Return 1 - edit distance / elements of the larger table: 1 for equal tables, about 0 (or less) for unrelated ones.

    `structure_only` ignores the content of cells. Elements are counted below `table` and include tags within cells, although
    the distance treats such a tag as one character: as in the reference implementation.
    """
    # Mirrored trees: the body of a table, its largest part, then shares the leftmost leaf of the root and is not a keyroot.
    nodes, others = list(table.last_to_first()), list(other.last_to_first())
    elements = max(count_elements(nodes), count_elements(others))
    if elements == 0 or _are_equal(nodes, others, structure_only):
        return 1.0
    rename = _label_costs(nodes, others)
    if not structure_only:
        rename = np.maximum(rename, _content_costs(nodes, others))
    return 1 - edit_distance(index_tree(_child_numbers(nodes)), index_tree(_child_numbers(others)), rename) / elements


def count_elements(nodes: Sequence[Element]) -> int:
    """Count the HTML elements below the last of `nodes`, which is the table."""
    # Longer pieces are tags, such as <b>; single characters are no elements.
    in_cells = (piece for node in nodes for piece in node.content if len(piece) > 1)
    return len(nodes) - 1 + sum(piece.startswith('<') and not piece.startswith('</') for piece in in_cells)


def _are_equal(nodes: list[Element], others: list[Element], structure_only: bool) -> bool:
    """True if both tables are equal, for which no edit distance is needed."""

    def content(node: Element) -> tuple[object, ...]:
        return node.tag, node.colspan, node.rowspan, len(node.children), () if structure_only else node.content

    return len(nodes) == len(others) and all(content(a) == content(b) for a, b in zip(nodes, others, strict=True))


def _child_numbers(nodes: list[Element]) -> list[list[int]]:
    """Return the indices of the children of each node, mirrored."""
    number = {id(node): place for place, node in enumerate(nodes)}
    return [[number[id(child)] for child in reversed(node.children)] for node in nodes]


def _label_costs(nodes: list[Element], others: list[Element]) -> Floats:
    """Return the costs [N, M]: 1 where tag or spans differ, else 0."""
    # Compare numbers of labels instead of labels: one array operation for all pairs.
    numbers: dict[tuple[str, int, int], int] = {}
    labels = [
        np.array([numbers.setdefault((node.tag, node.colspan, node.rowspan), len(numbers)) for node in tree])
        for tree in (nodes, others)
    ]
    different: Floats = (labels[0][:, None] != labels[1]).astype(np.float64)
    return different


def _content_costs(nodes: list[Element], others: list[Element]) -> Floats:
    """Return the Levenshtein distances [N, M] of the contents, divided by the longer length."""
    tags: dict[str, str] = {}
    (texts, places), (other_texts, other_places) = _number_texts(nodes, tags), _number_texts(others, tags)
    lengths, other_lengths = (np.array([len(text) for text in distinct]) for distinct in (texts, other_texts))
    edits: npt.NDArray[np.int32] = cdist(texts, other_texts, scorer=Levenshtein.distance, dtype=np.int32)
    shares: Floats = edits / np.maximum(lengths[:, None], other_lengths).clip(min=1)
    return shares[np.ix_(places, other_places)]  # each distinct text was computed once: many cells are equal


def _number_texts(nodes: list[Element], tags: dict[str, str]) -> tuple[list[str], list[int]]:
    """Return the distinct contents, one character per character or tag, and the index of that of each node."""
    numbers: dict[str, int] = {}
    places = []
    for node in nodes:
        # A tag counts as one character in the edit distance, as in the reference implementation.
        pieces = (p if len(p) == 1 else tags.setdefault(p, chr(FIRST_TAG + len(tags))) for p in node.content)
        places.append(numbers.setdefault(''.join(pieces), len(numbers)))
    return list(numbers), places
