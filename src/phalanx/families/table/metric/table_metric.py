"""Table metrics: TEDS, accuracy, precision and recall of cells. Shapes: N predicted cells, M true cells with a box."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import torch

from phalanx.data.boxes import pairwise_iou
from phalanx.families.figures import Figure, Grade
from phalanx.families.table.annotation import Table
from phalanx.families.table.metric.teds import teds
from phalanx.families.table.tokens import Vocabulary
from phalanx.families.table.tree import build_tree
from phalanx.families.task import Labelled
from phalanx.parallel import dist
from phalanx.runtime.results import Prediction

Floats = npt.NDArray[np.float32]

SECTIONS = ('<thead>', '</thead>', '<tbody>', '</tbody>')


@dataclass(frozen=True, slots=True)
class Score:
    """Counts and scores of one table."""

    is_exact: bool  # every token of the structure is correct
    teds: float | None  # None if no cell has a box: texts cannot be assigned to cells
    teds_structure: float
    predicted_cells: int
    true_cells: int  # cells with a box
    matched_cells: int
    has_spans: bool
    is_too_long: bool

    def grade(self) -> Grade | None:
        """Grade the table by TEDS, of the structure alone where no cell has a box; None for a perfect one."""
        value = self.teds_structure if self.teds is None else self.teds
        if self.is_exact and value == 1:
            return None
        # The caption of the picture in the report.
        cells = '' if self.teds is None else f', {self.matched_cells} of {self.true_cells} cells found'
        return Grade(value, f'TEDS {value:.2f}{cells}')


class TableMetric:
    """accuracy, teds, teds_structure, cell_precision, cell_recall.

    The network predicts structure and boxes, no text. For `teds` each true text is assigned to the cell whose box contains it,
    as if read by a perfect recogniser; so it measures structure and boxes, and `teds_structure` the structure alone.
    Precision and recall of cells are at an IoU of 0.5; empty cells, which have no true box, count against precision.
    """

    names = ('accuracy', 'teds', 'teds_structure', 'cell_precision', 'cell_recall')
    tie_breakers = ('teds', 'teds_structure', 'cell_recall')

    def __init__(self, vocabulary: Vocabulary, max_length: int, *, ignore_sections: bool = False) -> None:
        """`max_length`: maximum number of predicted tokens; longer tables are evaluated too, and counted as `too_long`.

        `ignore_sections`: accuracy ignores the sections, head and body.
        """
        self.left_out = SECTIONS if ignore_sections else ()
        self.vocabulary, self.max_length = vocabulary, max_length
        self._scores: list[Score] = []

    worst = 'Tables of the lowest TEDS'

    def update(self, prediction: Sequence[Prediction], batch: Labelled[Table]) -> list[Grade | None]:
        """Count one prediction per table; return a grade per table."""
        scores = [self._score(predicted, truth) for predicted, truth in zip(prediction, batch.truths, strict=True)]
        self._scores += scores
        return [score.grade() for score in scores]

    def _score(self, predicted: Prediction, truth: Table) -> Score:
        # A network that has not learned where cells are is measured by their structure alone.
        boxes = np.zeros((0, 4), np.float32) if predicted.boxes is None else predicted.boxes
        is_located = predicted.boxes is not None and bool(truth.boxes)
        iou = compute_iou(boxes, truth)  # [N, M]
        # TEDS compares the trees as if a perfect recogniser had read the texts.
        true_tree = build_tree(truth.structure, [cell.text for cell in truth.cells])
        predicted_tree = build_tree(predicted.structure, assign_texts(boxes, iou, truth))
        return Score(
            is_exact=self._join(predicted.structure) == self._join(token for token, _ in self.vocabulary.spell(truth)),
            teds=teds(predicted_tree, true_tree) if is_located else None,
            teds_structure=teds(predicted_tree, true_tree, structure_only=True),
            predicted_cells=len(boxes) if is_located else 0,
            true_cells=len(truth.boxes) if is_located else 0,
            matched_cells=count_matches(iou),
            has_spans=truth.has_spans,
            is_too_long=self.vocabulary.length(truth.structure) > self.max_length,
        )

    def _join(self, tokens: Iterable[str]) -> str:
        return ''.join(token for token in tokens if token not in self.left_out)

    def join(self, others: Sequence[Self]) -> None:
        """Add the scores of other metrics."""
        self._scores = [score for one in (self, *others) for score in one._scores]

    def gather(self) -> None:
        """Collect the scores of all tables on the main rank."""
        self._scores = [score for of_rank in dist.gather_objects_to_main(self._scores) for score in of_rank]

    def compute(self) -> dict[str, float]:
        """Return accuracy (share of exact structures), teds, teds_structure, cell_precision, cell_recall, too_long."""
        return {**_means(self._scores), 'too_long': sum(score.is_too_long for score in self._scores)}

    def table(self) -> list[dict[str, str | float]]:
        """Return one row per kind of table: simple, with spans (complex in PubTabNet), and too long."""
        kinds = {
            'simple': [score for score in self._scores if not score.has_spans],
            'with spans': [score for score in self._scores if score.has_spans],
            f'longer than {self.max_length}': [score for score in self._scores if score.is_too_long],
        }
        return [{'tables': kind, 'number': len(scores), **_means(scores)} for kind, scores in kinds.items() if scores]

    def figures(self) -> list[Figure]:
        return []


def compute_iou(boxes: Floats, truth: Table) -> Floats:
    """Return the IoU [N, M] of predicted and true boxes."""
    true = torch.tensor(truth.boxes, dtype=torch.float32).view(-1, 4)
    return pairwise_iou(torch.from_numpy(boxes), true).numpy()


def count_matches(iou: Floats) -> int:
    """Count the pairs of a greedy one-to-one matching of cells, the pair of largest IoU first, down to 0.5."""
    remaining, matches = iou.copy(), 0
    while remaining.size and remaining.max() >= 0.5:
        # Both cells of a pair leave the matching.
        predicted, true = np.unravel_index(remaining.argmax(), remaining.shape)
        remaining[predicted], remaining[:, true] = -1, -1
        matches += 1
    return matches


def assign_texts(boxes: Floats, iou: Floats, truth: Table) -> list[tuple[str, ...]]:
    """Return the text of each predicted cell, as if every text of the image were detected and recognised perfectly.

    A text goes to the cell of largest IoU or, without overlap, to the nearest, as PaddleOCR matches detected text lines.
    """
    contents: list[tuple[str, ...]] = [()] * len(boxes)
    texts = [cell.text for cell in truth.cells if cell.box is not None]
    for true, text in enumerate(texts if contents else ()):
        # Texts that go to one cell are joined in the order of the true cells.
        predicted = int(iou[:, true].argmax())
        if iou[predicted, true] <= 0:
            predicted = int(np.abs(boxes - np.array(truth.boxes[true], np.float32)).sum(1).argmin())
        contents[predicted] += text
    return contents


def _means(scores: Sequence[Score]) -> dict[str, float]:
    """Return the means of all scores: exact sums, independent of the order of tables over ranks; NaN without any."""
    matched, predicted = sum(table.matched_cells for table in scores), sum(table.predicted_cells for table in scores)
    true = sum(table.true_cells for table in scores)
    return {
        'accuracy': _mean(table.is_exact for table in scores),
        'teds': _mean(table.teds for table in scores if table.teds is not None),
        'teds_structure': _mean(table.teds_structure for table in scores),
        'cell_precision': 0.0 if true and not predicted else _ratio(matched, predicted),
        'cell_recall': _ratio(matched, true),
    }


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return _ratio(math.fsum(known), len(known))


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else math.nan
