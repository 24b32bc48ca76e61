"""How long judging tables takes: all metrics of a table, TEDS among them, and the bare tree edit distance beside apted's.

    python benchmarks/teds.py PUBTABNET.jsonl ... [--repeats N]

Every table of the files is judged against a copy with faults (cells left out, texts in other cells, boxes moved), so none is
equal and none is quick. Then apted and ours measure the distance of the same trees, by structure. In time of the processor.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from apted import APTED, Config

from phalanx.bench.show import as_text
from phalanx.runtime.results import Prediction
from phalanx.table.annotation import Table
from phalanx.table.data.pubtabnet import table_of
from phalanx.table.metric import TableMetric, teds
from phalanx.table.tokens import Vocabulary
from phalanx.table.tree import Node, tree

VALIDATION = 9115  # tables of PubTabNet's validation
EVERY = 20  # of so many cells one is left out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or '').splitlines()[0])
    parser.add_argument('files', nargs='+', type=Path, metavar='PUBTABNET.jsonl')
    parser.add_argument('--repeats', type=int, default=3)
    given = parser.parse_args()
    tables = [table_of(json.loads(line)['html']) for file in given.files for line in file.read_text().splitlines()]
    pairs = [(table, with_faults(table, random.Random(number))) for number, table in enumerate(tables)]
    seconds = [median_of(lambda truth=truth, said=said: judge(said, truth), given.repeats) for truth, said in pairs]
    nodes = [sum(1 for _ in tree(table.structure).last_to_first()) for table in tables]
    mean = statistics.mean(seconds)
    print(f'{len(tables)} tables of {min(nodes)} to {max(nodes)} nodes, {statistics.mean(nodes):.0f} on average')
    print(f'all metrics of a table: {1e3 * mean:.1f} ms on average, {1e3 * max(seconds):.0f} ms at most')
    print(f'so {VALIDATION} tables like these: {VALIDATION * mean / 60:.1f} minutes on one core\n')
    by_size = sorted(range(len(tables)), key=nodes.__getitem__)
    print(as_text([beside_apted(*pairs[by_size[int(share * (len(tables) - 1))]]) for share in (0.5, 0.9, 1.0)]))


def with_faults(table: Table, rng: random.Random) -> Prediction:
    """What a network might say: cells are missing, so later texts lie in other cells; boxes are some pixels off."""
    cells = iter(enumerate(table.cells))
    structure: list[str] = []
    boxes: list[Sequence[float]] = []
    for token in table.structure:
        if token in ('<td>', '<td', '<td></td>'):
            number, cell = next(cells)
            if number % EVERY == 0:  # the first one in any case, so no table is right
                token = '</td>'  # ends no cell, and is passed over
            else:
                boxes.append([side + rng.uniform(-2, 2) for side in cell.box or (0.0, 0.0, 1.0, 1.0)])
        structure.append(token)
    return Prediction(tuple(structure), np.array(boxes, np.float32).reshape(-1, 4), 1.0)


@dataclass(frozen=True)
class One:
    """A batch of one table."""

    tables: Sequence[Table]


def judge(said: Prediction, truth: Table) -> None:
    TableMetric(Vocabulary(), 500).update([said], One([truth]))


class ByStructure(Config):  # type: ignore[misc]  # apted has no types
    def rename(self, one: Node, other: Node) -> float:
        return float((one.tag, one.colspan, one.rowspan) != (other.tag, other.colspan, other.rowspan))

    def children(self, node: Node) -> list[Node]:
        return node.children


def beside_apted(truth: Table, said: Prediction) -> dict[str, str]:
    one, other = tree(said.structure), tree(truth.structure)
    ours = median_of(lambda: teds(one, other, structure_only=True), 3)
    theirs = median_of(lambda: APTED(one, other, ByStructure()).compute_edit_distance(), 1)
    return {
        'nodes': str(sum(1 for _ in other.last_to_first())),
        'apted': f'{1e3 * theirs:.0f} ms',
        'ours': f'{1e3 * ours:.1f} ms',
        'ratio': f'{theirs / ours:.0f}',
    }


def median_of(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the processor."""
    seconds = []
    for _ in range(repeats):
        begun = time.process_time()
        work()
        seconds.append(time.process_time() - begun)
    return statistics.median(seconds)


if __name__ == '__main__':
    main()
