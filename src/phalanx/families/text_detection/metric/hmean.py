"""Hmean as ICDAR 2015 evaluates text detection, and PaddleOCR with it."""

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.families.figures import Curves, Figure
from phalanx.families.task import Grade, Labelled
from phalanx.families.text_detection.data.source import Texts
from phalanx.families.text_detection.metric.polygons import is_simple, overlap
from phalanx.parallel import dist
from phalanx.runtime.results import TextRegion
from phalanx.runtime.text_detection import area_and_length

LEAST_IOU = 0.5  # of what was found with a text, to have found it
LEAST_SHARE = 0.5  # of what was found that lies on a text to be ignored, to be ignored itself
STEPS = 51  # of the curves


class Counts(NamedTuple):
    """What counts of an image."""

    texts: int  # that ought to be found
    scores: npt.NDArray[np.float32]  # [n] of what was found
    hits: npt.NDArray[np.bool_]  # [n] whether it is one of the texts

    def grade(self) -> Grade | None:
        hits = int(self.hits.sum())
        missed, beyond = self.texts - hits, len(self.hits) - hits
        if not missed and not beyond:
            return None
        hmean = rates(self.hits, self.texts)['hmean']
        return Grade(hmean, f'hmean {hmean:.2f}: {missed} of {self.texts} missed, {beyond} found without a text')


class Hmean:
    """hmean, precision, recall: those of what was found, over all images at once; hmean is the harmonic mean.

    What was found is right when its IoU with a text is above 0.5; a text is found once, the first pair counts, as in ICDAR's
    own program. What lies with more than half of its area on a text to be ignored does not count. Outlines that cross
    themselves are left out.
    """

    names = ('hmean', 'precision', 'recall')
    tie_breakers = ('precision',)

    def __init__(self) -> None:
        self.images: dict[int, Counts] = {}  # by the number of the sample, so that none counts twice

    worst = 'Images of the lowest hmean'

    def update(self, prediction: Sequence[Sequence[TextRegion]], batch: Labelled[Texts]) -> list[Grade | None]:
        for index, found, truth in zip(batch.indices, prediction, batch.truths, strict=True):
            self.images[index] = counted(found, truth)
        return [self.images[index].grade() for index in batch.indices]

    def gather(self) -> None:
        """Brings the counts of all ranks to the main one."""
        of_ranks = dist.gather_objects_to_main(self.images)
        self.images = dict(sorted((image for images in of_ranks for image in images.items()), key=itemgetter(0)))

    def compute(self) -> dict[str, float]:
        texts, _, hits = self._all()
        return rates(hits, texts)

    def table(self) -> list[dict[str, str | float]]:
        texts, _, hits = self._all()
        right = int(hits.sum())
        rows = (('texts', texts), ('found', right), ('missed', texts - right), ('found without a text', len(hits) - right))
        return [{'what': name, 'count': count} for name, count in rows]

    def figures(self) -> list[Figure]:
        """What would be of precision and recall if only what has at least a score counted."""
        texts, scores, hits = self._all()
        if not texts or not len(scores):
            return []
        leasts = np.linspace(float(scores.min()), float(scores.max()), STEPS)
        rows = [(float(least), rates(hits[scores >= least], texts)) for least in leasts]
        lines = {name: [(least, shares[name]) for least, shares in rows] for name in ('precision', 'recall', 'hmean')}
        return [Curves('Found texts with at least a score', 'least score', 'share', lines)]

    def _all(self) -> tuple[int, npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """How many texts there are; score and hit of everything that was found."""
        images = self.images.values()
        scores = np.concatenate([np.zeros(0, np.float32), *(image.scores for image in images)])
        hits = np.concatenate([np.zeros(0, np.bool_), *(image.hits for image in images)])
        return sum(image.texts for image in images), scores, hits


def counted(found: Sequence[TextRegion], truth: Texts) -> Counts:
    """What was found on an image against what is there."""
    simple = [place for place, points in enumerate(truth.outlines) if is_simple(points)]
    texts = [truth.outlines[place] for place in simple if not truth.ignored[place]]
    ignored = [truth.outlines[place] for place in simple if truth.ignored[place]]
    outlines = [np.array(one.points, np.float32) for one in found]
    counts = [place for place, points in enumerate(outlines) if is_simple(points) and not lies_on(points, ignored)]
    matched: set[int] = set()
    for text in texts:
        free = (place for place in counts if place not in matched)
        hit = next((place for place in free if iou(outlines[place], text) > LEAST_IOU), None)
        matched |= set() if hit is None else {hit}
    scores = np.array([found[place].score for place in counts], np.float32)
    return Counts(len(texts), scores, np.array([place in matched for place in counts], np.bool_))


def lies_on(points: npt.NDArray[np.float32], ignored: Iterable[npt.NDArray[np.float32]]) -> bool:
    area = area_and_length(points)[0]
    return any(overlap(points, other) > LEAST_SHARE * area for other in ignored)


def iou(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    common = overlap(a, b)
    return common / (area_and_length(a)[0] + area_and_length(b)[0] - common)


def rates(hits: npt.NDArray[np.bool_], texts: int) -> dict[str, float]:
    """Hmean, precision and recall of what was found, [n] whether it is one of so many texts.

    Where there is no text, recall and hmean are NaN, and so is precision when nothing was found either.
    """
    if not texts:
        return {'hmean': math.nan, 'precision': 0.0 if len(hits) else math.nan, 'recall': math.nan}
    right = float(hits.sum())
    precision, recall = right / len(hits) if len(hits) else 0.0, right / texts
    hmean = 2 * precision * recall / (precision + recall) if right else 0.0
    return {'hmean': hmean, 'precision': precision, 'recall': recall}
