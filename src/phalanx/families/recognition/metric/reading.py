"""How well texts are read: how many are right, how near the others are, and which characters are mistaken for which."""

import math
import string
from collections import Counter
from collections.abc import Sequence
from typing import Protocol

from rapidfuzz.distance import Levenshtein

from phalanx.families.figures import Figure
from phalanx.families.task import Grade
from phalanx.parallel import dist
from phalanx.runtime.results import Reading

ALPHANUMERIC = frozenset(string.ascii_letters + string.digits)
ROWS = 20  # of the table
NOTHING, BLANK = '(nothing)', '(blank)'


class Labelled(Protocol):
    """A batch of which the metric needs the truth."""

    @property
    def labels(self) -> Sequence[str]: ...
    @property
    def unknown(self) -> Sequence[int]:
        """How many characters of each label the dictionary has not; they were left out of `labels`."""


class ReadingAccuracy:
    """accuracy, edit_similarity: counts texts, those read exactly, and edits; whole numbers, whose sums have no order.

    The options say in what two texts may differ and still be equal; the defaults are PaddleOCR's. `alphanumeric_only` compares
    nothing but Latin letters, whatever their case, and digits, as English benchmarks do.
    """

    names = ('accuracy', 'edit_similarity')
    tie_breakers = ('edit_similarity',)

    def __init__(self, *, ignore_space: bool = True, ignore_case: bool = False, alphanumeric_only: bool = False) -> None:
        self.ignore_space, self.ignore_case, self.alphanumeric_only = ignore_space, ignore_case, alphanumeric_only
        self._texts = self._right = self._unknown = 0
        self._edits: Counter[int] = Counter()  # length of the longer text -> edits between such texts, added up
        self._mistaken: Counter[tuple[str, str]] = Counter()  # (true, read) characters, '' for one too many or too few

    worst = 'Read wrongly, the surest first'

    def update(self, prediction: Sequence[Reading], batch: Labelled) -> list[Grade | None]:
        grades: list[Grade | None] = []
        for reading, label in zip(prediction, batch.labels, strict=True):
            read, truth = self._compared(reading.text), self._compared(label)
            edits = Levenshtein.editops(truth, read)
            self._texts += 1
            self._right += read == truth
            said = f'true {label!r}, read {reading.text!r}, {reading.confidence:.0%} sure'
            grades.append(None if read == truth else Grade(-reading.confidence, said))
            self._edits[max(len(read), len(truth))] += len(edits)
            self._mistaken.update(
                ('' if edit.tag == 'insert' else truth[edit.src_pos], '' if edit.tag == 'delete' else read[edit.dest_pos])
                for edit in edits
            )
        self._unknown += sum(batch.unknown)
        return grades

    def _compared(self, text: str) -> str:
        """What of a text counts."""
        if self.ignore_space:
            text = text.replace(' ', '')
        if self.alphanumeric_only:
            text = ''.join(character for character in text if character in ALPHANUMERIC)
        return text.lower() if self.ignore_case or self.alphanumeric_only else text

    def gather(self) -> None:
        """Adds up the counts of all ranks on the main one."""
        parts = dist.gather_objects_to_main((self._texts, self._right, self._unknown, self._edits, self._mistaken))
        texts, right, unknown, edits, mistaken = zip(*parts, strict=True)
        self._texts, self._right, self._unknown = sum(texts), sum(right), sum(unknown)
        self._edits, self._mistaken = sum(edits, Counter()), sum(mistaken, Counter())

    def compute(self) -> dict[str, float]:
        """accuracy, the share of texts read exactly (PaddleOCR's acc); edit_similarity, one minus the mean of edits / length of
        the longer text (its norm_edit_dis); unknown_characters, how many the dictionary has not: they were not compared.
        """
        texts = self._texts or math.nan  # of nothing there is no share
        distance = sum(edits / length for length, edits in sorted(self._edits.items()) if length)
        return {'accuracy': self._right / texts, 'edit_similarity': 1 - distance / texts, 'unknown_characters': self._unknown}

    def table(self) -> list[dict[str, str | float]]:
        """The characters most often mistaken, and for what."""
        worst = sorted(self._mistaken.items(), key=lambda item: (-item[1], item[0]))[:ROWS]
        return [{'true': _shown(true), 'read': _shown(read), 'times': times} for (true, read), times in worst]

    def figures(self) -> list[Figure]:
        return []


def _shown(character: str) -> str:
    return {'': NOTHING, ' ': BLANK}.get(character, character)
