"""TEDS of `phalanx read --tables --layout page`: the texts and structure of images of tables.

    python benchmarks/tables.py DATA [--table MODEL ...] [--split val]

DATA: a PubTabNet 2.0 file (JSON lines) beside its folder `images`. Header rows count as rows of the body: many annotations do
not mark headers.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from phalanx.data.image import load_pixels
from phalanx.deploy.read import Reader
from phalanx.deploy.tables import WHOLE, TableReader
from phalanx.families.table.metric.teds import teds
from phalanx.families.table.tree import Element, build_tree

SECTIONS = {f'<{slash}{tag}>' for slash in ('', '/') for tag in ('thead', 'tbody')}


def tree_of(tokens: Sequence[str], texts: Sequence[Sequence[str]]) -> Element:
    """Table without sections."""
    return build_tree([token for token in tokens if token not in SECTIONS], texts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('data', type=Path)
    parser.add_argument('--table', nargs='+', default=[None])
    parser.add_argument('--split', default='val')
    given = parser.parse_args()
    reader, readers = Reader(threads=1), [TableReader(WHOLE, table, threads=1) for table in given.table]
    scores: list[list[tuple[float, float]]] = [[] for _ in readers]
    for row in map(json.loads, given.data.read_text(encoding='utf-8').splitlines()):
        if row['split'] != given.split:
            continue
        image = load_pixels(given.data.parent / 'images' / row['filename'])
        lines = reader(image)
        truth = tree_of(row['html']['structure']['tokens'], [cell['tokens'] for cell in row['html']['cells']])
        for own, tables in zip(scores, readers, strict=True):
            (table,) = tables(image, lines)
            found = tree_of(table.structure, [cell.text for cell in table.cells])
            own.append((teds(truth, found), teds(truth, found, structure_only=True)))
    for own, tables in zip(scores, readers, strict=True):
        full, structure = np.mean(own, 0)
        exact = np.mean([pair[1] == 1 for pair in own])
        print(f'{tables.names[-1]}: {len(own)} tables, TEDS {full:.3f}, structure {structure:.3f}, exact {exact:.3f}')


if __name__ == '__main__':
    main()
