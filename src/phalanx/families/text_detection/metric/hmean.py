"""Hmean, precision and recall of text detection by the protocol of ICDAR 2015, as in PaddleOCR."""

import math
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import NamedTuple, Self

import numpy as np
import numpy.typing as npt

from phalanx.families.figures import Curves, Figure, Grade
from phalanx.families.task import Labelled
from phalanx.families.text_detection.data.source import Texts
from phalanx.families.text_detection.metric.polygons import intersection_area, is_simple
from phalanx.parallel import dist
from phalanx.runtime.results import TextRegion
from phalanx.runtime.text_detection import area_and_length

MIN_IOU = 0.5  # of a match, exclusive
MIN_IGNORED_SHARE = 0.5  # of the area of a detection on an ignored text, exclusive, to ignore the detection
CURVE_POINTS = 51


class ImageCounts(NamedTuple):
    """Result of matching the detections of an image with its texts."""

    texts: int  # true texts, without ignored ones
    scores: npt.NDArray[np.float32]  # [n] of the detections, without ignored ones
    hits: npt.NDArray[np.bool_]  # [n] True for detections that match a text

    def grade(self) -> Grade | None:
        """Return the hmean of the image, or None if all is right."""
        hits = int(self.hits.sum())
        missed, false_positives = self.texts - hits, len(self.hits) - hits
        if not missed and not false_positives:
            return None
        hmean = rates(self.hits, self.texts)['hmean']
        return Grade(hmean, f'hmean {hmean:.2f}: {missed} of {self.texts} missed, false positives: {false_positives}')


class Hmean:
    """Precision, recall and their harmonic mean (hmean) over the detections of all images.

    A detection matches a text if their IoU is above 0.5. Each text matches at most one detection, the first in order, as in
    ICDAR's script. Detections with more than half of their area on an ignored text do not count. Self-intersecting outlines
    are left out.
    """

    names = ('hmean', 'precision', 'recall')
    tie_breakers = ('precision',)

    def __init__(self) -> None:
        self.images: dict[int, ImageCounts] = {}  # by index of the sample, so that each counts once

    worst = 'Images of the lowest hmean'

    def update(self, prediction: Sequence[Sequence[TextRegion]], batch: Labelled[Texts]) -> list[Grade | None]:
        """Count a batch; return the grade of each image."""
        for index, regions, truth in zip(batch.indices, prediction, batch.truths, strict=True):
            self.images[index] = match_texts(regions, truth)
        return [self.images[index].grade() for index in batch.indices]

    def join(self, others: Sequence[Self]) -> None:
        """Add the images of other metrics, under new numbers: an image may be added several times."""
        images = [self.images, *(other.images for other in others)]
        self.images = dict(enumerate(counts for of_one in images for counts in of_one.values()))

    def gather(self) -> None:
        """Collect the counts of all ranks on the main rank."""
        # Sorted by sample, so that the result does not depend on the number of ranks.
        of_ranks = dist.gather_objects_to_main(self.images)
        self.images = dict(sorted((image for images in of_ranks for image in images.items()), key=itemgetter(0)))

    def compute(self) -> dict[str, float]:
        """Return hmean, precision and recall."""
        texts, _, hits = self._concatenate()
        return rates(hits, texts)

    def table(self) -> list[dict[str, str | float]]:
        """Return the counts behind the rates."""
        texts, _, hits = self._concatenate()
        matched = int(hits.sum())
        rows = (('texts', texts), ('found', matched), ('missed', texts - matched), ('false positives', len(hits) - matched))
        return [{'outcome': name, 'count': count} for name, count in rows]

    def figures(self) -> list[Figure]:
        """Return precision, recall and hmean as functions of the minimum score."""
        texts, scores, hits = self._concatenate()
        if not texts or not len(scores):
            return []
        # The curve shows which minimum score balances precision and recall.
        thresholds = np.linspace(float(scores.min()), float(scores.max()), CURVE_POINTS)
        rows = [(float(threshold), rates(hits[scores >= threshold], texts)) for threshold in thresholds]
        lines = {name: [(threshold, shares[name]) for threshold, shares in rows] for name in ('precision', 'recall', 'hmean')}
        return [Curves('Precision and recall by minimum score', 'minimum score', 'share', lines)]

    def _concatenate(self) -> tuple[int, npt.NDArray[np.float32], npt.NDArray[np.bool_]]:
        """Return the number of texts, and score and hit of each detection, of all images."""
        images = self.images.values()
        scores = np.concatenate([np.zeros(0, np.float32), *(image.scores for image in images)])
        hits = np.concatenate([np.zeros(0, np.bool_), *(image.hits for image in images)])
        return sum(image.texts for image in images), scores, hits


def match_texts(regions: Sequence[TextRegion], truth: Texts) -> ImageCounts:
    """Match the detections of an image with its texts."""
    # Self-intersecting outlines have no defined area.
    simple = [index for index, points in enumerate(truth.outlines) if is_simple(points)]
    texts = [truth.outlines[index] for index in simple if not truth.ignored[index]]
    ignored = [truth.outlines[index] for index in simple if truth.ignored[index]]
    outlines = [np.array(region.points, np.float32) for region in regions]
    candidates, frames = [], bounds(ignored)
    for index, points in enumerate(outlines):
        near = (ignored[place] for place in overlapping(points, frames))
        if is_simple(points) and not is_ignored(points, near):
            candidates.append(index)
    # Greedy in the order of texts and detections, not by IoU or score: ICDAR's script does the same.
    matched: set[int] = set()
    frames = bounds([outlines[index] for index in candidates])
    for text in texts:
        free = (candidates[place] for place in overlapping(text, frames) if candidates[place] not in matched)
        hit = next((index for index in free if iou(outlines[index], text) > MIN_IOU), None)
        matched |= set() if hit is None else {hit}
    scores = np.array([regions[index].score for index in candidates], np.float32)
    return ImageCounts(len(texts), scores, np.array([index in matched for index in candidates], np.bool_))


def bounds(outlines: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the bounding boxes [n, 4] (x0, y0, x1, y1) of outlines."""
    return np.array([[*points.min(0), *points.max(0)] for points in outlines], np.float32).reshape(-1, 4)


def overlapping(points: npt.NDArray[np.float32], frames: npt.NDArray[np.float32]) -> list[int]:
    """Return the indices of the bounding boxes `frames` [n, 4] that overlap the one of an outline.

    Only those are worth intersecting, which takes Python tens of microseconds per pair: a million pairs on a dense page.
    """
    low, high = points.min(0), points.max(0)
    places: list[int] = np.flatnonzero(((frames[:, :2] < high) & (frames[:, 2:] > low)).all(1)).tolist()
    return places


def is_ignored(points: npt.NDArray[np.float32], ignored: Iterable[npt.NDArray[np.float32]]) -> bool:
    """True if more than half of the area of a detection lies on an ignored text."""
    # Share of the detection, not IoU: detections are often much smaller than an ignored region.
    area = area_and_length(points)[0]
    return any(intersection_area(points, other) > MIN_IGNORED_SHARE * area for other in ignored)


def iou(a: npt.NDArray[np.float32], b: npt.NDArray[np.float32]) -> float:
    """Return the intersection over union of two simple outlines."""
    common = intersection_area(a, b)
    return common / (area_and_length(a)[0] + area_and_length(b)[0] - common)


def rates(hits: npt.NDArray[np.bool_], texts: int) -> dict[str, float]:
    """Return hmean, precision and recall, given `hits` [n] of the detections and the number of texts.

    Without texts, recall and hmean are NaN, and without detections precision is NaN too.
    """
    if not texts:
        return {'hmean': math.nan, 'precision': 0.0 if len(hits) else math.nan, 'recall': math.nan}
    right = float(hits.sum())
    precision, recall = right / len(hits) if len(hits) else 0.0, right / texts
    hmean = 2 * precision * recall / (precision + recall) if right else 0.0
    return {'hmean': hmean, 'precision': precision, 'recall': recall}
