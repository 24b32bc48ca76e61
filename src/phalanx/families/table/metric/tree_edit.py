"""Exact edit distance of ordered trees, in array operations.

The algorithm is that of Zhang & Shasha, Simple Fast Algorithms for the Editing Distance between Trees and Related Problems
(SIAM Journal on Computing, 1989). It iterates over pairs of keyroots (nodes that are not first children, and the root), each
with its subtree. A table has hundreds of keyroots, nearly all of them leaves (cells), then rows, then sections: all pairs of
two such levels are computed at once.

Deleting or inserting a node costs 1, renaming one at most 1. Shapes: N, M nodes of the two trees; A, B keyroots of two groups;
a, b maximum subtree sizes in these groups.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TreeShape:
    """Index of a tree for the algorithm; nodes are numbered in postorder."""

    first: Ints  # [N] leftmost leaf of each subtree
    keyroots: tuple[Ints, ...]  # inner ones, in groups; keyroots in a subtree are in earlier groups

    @property
    def size(self) -> Ints:
        """Subtree sizes [N], the node itself included."""
        return np.arange(len(self.first)) - self.first + 1


def index_tree(children: Sequence[Sequence[int]]) -> TreeShape:
    """Return the TreeShape for the `children` of each node, in postorder.

    Keyroots of a group have the same level and similar sizes, so that little padding is needed.
    """
    first: list[int] = []
    level: list[int] = []
    groups: dict[tuple[int, int], list[int]] = {}
    # Postorder: children come before their parents. A first child shares the keyroot of its parent, so only others raise the
    # level.
    for node, below in enumerate(children):
        first.append(first[below[0]] if below else node)
        level.append(max(level[child] + (place > 0) for place, child in enumerate(below)) if below else 0)
    # Keyroots: all children but first ones, and the root. Leaves are handled by `_fill_leaves`.
    keyroots = [child for below in children for child in below[1:]] + [len(children) - 1]
    for node in keyroots:
        size = node - first[node] + 1
        if size > 1:
            groups.setdefault((level[node], size.bit_length()), []).append(node)
    return TreeShape(np.array(first), tuple(np.array(groups[key]) for key in sorted(groups)))


def edit_distance(tree: TreeShape, other: TreeShape, rename: Floats) -> float:
    """Return the minimum cost of editing `tree` into `other`; `rename` [N, M]: cost of renaming a node, at most 1."""
    trees = np.full(rename.shape, np.nan)  # distance of the subtrees of each pair of nodes
    _fill_leaves(trees, other, rename, np.flatnonzero(tree.size == 1))
    _fill_leaves(trees.T, tree, rename.T, np.flatnonzero(other.size == 1))
    for group in tree.keyroots:
        for with_group in other.keyroots:
            if tree.size[group].max() <= other.size[with_group].max():  # the loop goes over the smaller
                _fill_group(trees, tree, other, rename, group, with_group)
            else:
                _fill_group(trees.T, other, tree, rename.T, with_group, group)
    return float(trees[-1, -1])


def _fill_leaves(trees: Floats, other: TreeShape, rename: Floats, leaves: Ints) -> None:
    """Fill in distances of leaves to subtrees: the leaf is renamed to the cheapest node, the others are inserted."""
    sentinel = np.ones((len(leaves), 1))
    # Minimum over the nodes of each subtree, which are consecutive in postorder.
    spans = np.stack([other.first, np.arange(len(other.first)) + 1], axis=1).ravel()
    nearest = np.minimum.reduceat(np.concatenate([rename[leaves], sentinel], axis=1), spans, axis=1)[:, ::2]
    trees[leaves] = other.size - 1 + nearest


def _fill_group(trees: Floats, tree: TreeShape, other: TreeShape, rename: Floats, group: Ints, with_group: Ints) -> None:
    """Fill in distances between the keyroots of two groups, and between the nodes that share their leftmost leaves.

    `forests[x]`: distances of the first x nodes of each subtree of `group` to the first 0, 1, ... of each of the others.
    """
    rows, from_rows, is_row = _descendants(tree, group)  # [A, a] each
    columns, from_columns, is_column = _descendants(other, with_group)  # [B, b] each
    # One table of forest distances per pair of keyroots, all pairs at once: [a + 1, A, B, b + 1].
    (A, a), (B, b) = rows.shape, columns.shape
    each_row, each_column = np.arange(A)[:, None, None], np.arange(B)[:, None]
    forests = np.empty((a + 1, A, B, b + 1))
    forests[0] = inserted = np.arange(b + 1.0)
    for x in range(a):
        node, before, after = rows[:, x, None, None], forests[x], forests[x + 1]
        without = forests[from_rows[:, x, None, None], each_row, each_column, from_columns]  # before the subtree of the node
        matched = without + trees[node, columns]  # [A, B, b]
        # Where both forests are whole subtrees, the roots are renamed instead.
        are_trees = (from_rows[:, x, None, None] == 0) & (from_columns == 0) if (from_rows[:, x] == 0).any() else None
        if are_trees is not None:
            matched = np.where(are_trees, before[..., :-1] + rename[node, columns], matched)
        # Deletion, match, then insertion: a running minimum along the columns.
        after[..., 0] = x + 1
        np.minimum(before[..., 1:] + 1, matched, out=after[..., 1:])
        after -= inserted
        np.minimum.accumulate(after, axis=-1, out=after)  # relative to the cost of insertion
        after += inserted
        if are_trees is not None:
            at = np.nonzero(are_trees & is_row[:, x, None, None] & is_column)
            trees[rows[at[0], x], columns[at[1], at[2]]] = after[..., 1:][at]


def _descendants(tree: TreeShape, group: Ints) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return per keyroot: nodes of its subtree, number of these before the subtree of each, and mask of valid ones."""
    # Subtrees are padded to the largest of the group by repeating the root.
    sizes = tree.size[group]
    places = np.arange(sizes.max())
    nodes = np.minimum(tree.first[group, None] + places, group[:, None])
    return nodes, tree.first[nodes] - tree.first[group, None], places < sizes[:, None]
