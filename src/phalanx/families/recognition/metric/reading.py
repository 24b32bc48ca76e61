"""Metric of recognition: accuracy, edit similarity, and confused characters."""

import math
import string
from collections import Counter
from collections.abc import Sequence
from typing import Self

from rapidfuzz.distance import Levenshtein

from phalanx.families.figures import Figure, Grade
from phalanx.families.recognition.characters import compose
from phalanx.families.recognition.texts import Label
from phalanx.families.task import Labelled
from phalanx.parallel import dist
from phalanx.runtime.results import Reading

ALPHANUMERIC = frozenset(string.ascii_letters + string.digits)
TABLE_ROWS = 20
NOTHING, BLANK = '(nothing)', '(blank)'

State = tuple[int, int, int, Counter[int], Counter[tuple[str, str]]]


class ReadingAccuracy:
    """Accuracy and edit similarity of texts.

    Options say which differences between texts are ignored; the defaults are PaddleOCR's. `alphanumeric_only` compares only
    Latin letters, regardless of case, and digits, as English benchmarks do. State consists of integer counts, so that sums over
    ranks do not depend on their order.
    """

    names = ('accuracy', 'edit_similarity')
    tie_breakers = ('edit_similarity',)

    def __init__(self, *, ignore_space: bool = True, ignore_case: bool = False, alphanumeric_only: bool = False) -> None:
        self.ignore_space, self.ignore_case, self.alphanumeric_only = ignore_space, ignore_case, alphanumeric_only
        self._texts = self._right = self._unknown = 0
        self._edits: Counter[int] = Counter()  # length of the longer text -> sum of edit distances
        self._mistaken: Counter[tuple[str, str]] = Counter()  # (true, read) characters, '' for an insertion or deletion

    worst = 'Misread lines, by confidence'

    def update(self, prediction: Sequence[Reading], batch: Labelled[Label]) -> list[Grade | None]:
        """Count a batch; return the grade of each misread text, lower for higher confidence, and None for the others."""
        grades: list[Grade | None] = []
        for reading, (label, unknown) in zip(prediction, batch.truths, strict=True):
            read, truth = self._normalise(reading.text), self._normalise(label)
            # The edit operations give both the distance and the confused characters.
            edits = Levenshtein.editops(truth, read)
            self._texts += 1
            self._unknown += unknown
            self._right += read == truth
            remark = f'true {label!r}, read {reading.text!r}, confidence {reading.confidence:.0%}'
            grades.append(None if read == truth else Grade(-reading.confidence, remark))
            self._edits[max(len(read), len(truth))] += len(edits)
            self._mistaken.update(
                ('' if edit.tag == 'insert' else truth[edit.src_pos], '' if edit.tag == 'delete' else read[edit.dest_pos])
                for edit in edits
            )
        return grades

    def _normalise(self, text: str) -> str:
        """Return `text` in Unicode's normal form, as the labels are, without ignored differences."""
        text = compose(text)
        if self.ignore_space:
            text = text.replace(' ', '')
        if self.alphanumeric_only:
            text = ''.join(character for character in text if character in ALPHANUMERIC)
        return text.lower() if self.ignore_case or self.alphanumeric_only else text

    def join(self, others: Sequence[Self]) -> None:
        """Add the counts of other metrics."""
        self._sum([one._state() for one in (self, *others)])

    def gather(self) -> None:
        """Add up the counts of all ranks on the main rank."""
        self._sum(dist.gather_objects_to_main(self._state()))

    def _state(self) -> State:
        return self._texts, self._right, self._unknown, self._edits, self._mistaken

    def _sum(self, states: Sequence[State]) -> None:
        texts, right, unknown, edits, mistaken = zip(*states, strict=True)
        self._texts, self._right, self._unknown = sum(texts), sum(right), sum(unknown)
        self._edits, self._mistaken = Counter(), Counter()
        for part, other in zip(edits, mistaken, strict=True):  # in place: `sum` would copy the counts so far each time
            self._edits.update(part)
            self._mistaken.update(other)

    def compute(self) -> dict[str, float]:
        """Return the results by name.

        `accuracy`: share of texts read exactly (PaddleOCR's acc). `edit_similarity`: 1 - mean of edit distance / length of the
        longer text (PaddleOCR's norm_edit_dis). `unknown_characters`: number of true characters that are not in the dictionary
        and were not compared.
        """
        texts = self._texts or math.nan  # NaN without texts
        # Texts of one length share a divisor, so counts are integers until here.
        distance = sum(edits / length for length, edits in sorted(self._edits.items()) if length)
        return {'accuracy': self._right / texts, 'edit_similarity': 1 - distance / texts, 'unknown_characters': self._unknown}

    def table(self) -> list[dict[str, str | float]]:
        """Return the most frequent confusions of characters."""
        worst = sorted(self._mistaken.items(), key=lambda item: (-item[1], item[0]))[:TABLE_ROWS]
        return [{'true': _visible(true), 'read': _visible(read), 'times': times} for (true, read), times in worst]

    def figures(self) -> list[Figure]:
        """Return no figures."""
        return []


def _visible(character: str) -> str:
    """Return a label for an absent character and for a space; others unchanged."""
    return {'': NOTHING, ' ': BLANK}.get(character, character)
