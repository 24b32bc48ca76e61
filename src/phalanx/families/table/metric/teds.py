"""TEDS: how alike two tables are, as trees.

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

FIRST_TAG = 0xF0000  # the character that stands for the first tag in a cell, in a plane that texts do not use


def teds(one: Element, other: Element, *, structure_only: bool = False) -> float:
    """1 for equal tables, about 0 for those with little in common, at worst below. `structure_only`: whatever cells hold.

    That is 1 - distance / elements of the larger table. Elements are those below `table`, also tags within cells, although
    to the distance a tag in a cell is but one more character; so it is in the reference implementation.
    """
    # From the last to the first: so the body of a table, its largest part, shares the leaf of the whole and is not a keyroot.
    nodes, others = list(one.last_to_first()), list(other.last_to_first())
    elements = max(count_elements(nodes), count_elements(others))
    if elements == 0 or _are_equal(nodes, others, structure_only):
        return 1.0
    rename = _label_costs(nodes, others)
    if not structure_only:
        rename = np.maximum(rename, _content_costs(nodes, others))
    return 1 - edit_distance(index_tree(_child_numbers(nodes)), index_tree(_child_numbers(others)), rename) / elements


def count_elements(nodes: Sequence[Element]) -> int:
    """How many HTML elements are below the last of `nodes`, which is the table."""
    in_cells = (piece for node in nodes for piece in node.content if len(piece) > 1)
    return len(nodes) - 1 + sum(piece.startswith('<') and not piece.startswith('</') for piece in in_cells)


def _are_equal(nodes: list[Element], others: list[Element], structure_only: bool) -> bool:
    def content(node: Element) -> tuple[object, ...]:
        return node.tag, node.colspan, node.rowspan, len(node.children), () if structure_only else node.content

    return len(nodes) == len(others) and all(content(a) == content(b) for a, b in zip(nodes, others, strict=True))


def _child_numbers(nodes: list[Element]) -> list[list[int]]:
    number = {id(node): place for place, node in enumerate(nodes)}
    return [[number[id(child)] for child in reversed(node.children)] for node in nodes]


def _label_costs(nodes: list[Element], others: list[Element]) -> Floats:
    """[N, M] 1 where tag or spans are not the same, else 0."""
    numbers: dict[tuple[str, int, int], int] = {}
    labels = [
        np.array([numbers.setdefault((node.tag, node.colspan, node.rowspan), len(numbers)) for node in of])
        for of in (nodes, others)
    ]
    different: Floats = (labels[0][:, None] != labels[1]).astype(np.float64)
    return different


def _content_costs(nodes: list[Element], others: list[Element]) -> Floats:
    """[N, M] the Levenshtein distance of the contents, as a share of the longer one."""
    tags: dict[str, str] = {}
    (texts, places), (other_texts, other_places) = _number_texts(nodes, tags), _number_texts(others, tags)
    lengths, other_lengths = (np.array([len(text) for text in of]) for of in (texts, other_texts))
    edits: npt.NDArray[np.int32] = cdist(texts, other_texts, scorer=Levenshtein.distance, dtype=np.int32)
    shares: Floats = edits / np.maximum(lengths[:, None], other_lengths).clip(min=1)
    return shares[np.ix_(places, other_places)]  # each text once: many cells of a table are alike


def _number_texts(nodes: list[Element], tags: dict[str, str]) -> tuple[list[str], list[int]]:
    """The different contents, with one character for each character or tag, and which of them each node has."""
    numbers: dict[str, int] = {}
    places = []
    for node in nodes:
        pieces = (p if len(p) == 1 else tags.setdefault(p, chr(FIRST_TAG + len(tags))) for p in node.content)
        places.append(numbers.setdefault(''.join(pieces), len(numbers)))
    return list(numbers), places
