"""Sampling of unbalanced data sets: images of rare classes occur several times per epoch.

Shapes: N images, K classes, P pairs of an image and a class that it contains.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from phalanx.data.samples import ResampledSource
from phalanx.families.detection.data.annotated import AnnotatedImages

Integers = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


class Presence(NamedTuple):
    """Classes of each image; crowds and difficult objects do not count."""

    images: Integers  # [P]
    classes: Integers  # [P]
    num_images: int
    num_classes: int

    @classmethod
    def of(cls, source: AnnotatedImages, num_classes: int) -> Presence:
        counted, owners = ~source.objects.ignored, np.repeat(np.arange(len(source)), np.diff(source.starts))
        # Sorted by image already, which makes sorting cheap; `np.unique` takes over ten times as long.
        pairs = np.sort(owners[counted] * num_classes + source.objects.classes[counted], kind='stable')
        pairs = pairs[np.diff(pairs, prepend=-1) > 0]
        return cls(*np.divmod(pairs, num_classes), len(source), num_classes)

    @property
    def counts(self) -> Integers:
        """[K] number of images with each class."""
        return np.bincount(self.classes, minlength=self.num_classes)


Sampling = Callable[[Presence], Floats]  # -> [N] mean number of occurrences per epoch


@dataclass(frozen=True, kw_only=True)
class RepeatFactor:
    """Repeat images of classes that fewer than a share `threshold` of the images contain (Gupta et al., LVIS, CVPR 2019).

    A class in a share f of the images has the factor max(1, sqrt(threshold / f)); an image occurs as often as the largest
    factor of its classes says.
    """

    threshold: float = 0.001

    def __post_init__(self) -> None:
        if not 0 < self.threshold <= 1:
            raise ValueError(f'threshold is a share of the images, above 0 and at most 1, got {self.threshold}')

    def __call__(self, presence: Presence) -> Floats:
        shares = np.maximum(presence.counts, 1) / presence.num_images
        factors, repeats = np.sqrt(self.threshold / shares), np.ones(presence.num_images)
        np.maximum.at(repeats, presence.images, factors[presence.classes])
        return repeats


@dataclass(frozen=True, kw_only=True)
class ClassBalanced:
    """Choose a class at random, then one of its images, as many times as there are images with objects (Shen et al., 2016).

    Images without objects occur once per epoch.
    """

    def __call__(self, presence: Presence) -> Floats:
        chances = np.bincount(presence.images, 1 / presence.counts[presence.classes], presence.num_images)
        has_objects = chances > 0
        return np.where(has_objects, chances * (has_objects.sum() / chances.sum()), 1.0)


SAMPLINGS = {'repeat_factor': RepeatFactor, 'class_balanced': ClassBalanced}


def resample(source: object, sampling: Sampling, class_names: tuple[str, ...]) -> ResampledSource:
    """Apply `sampling` to a source. Raises ValueError if the classes of its images are not known before they are read."""
    if not isinstance(source, AnnotatedImages):
        raise ValueError(
            'sampling: needs the classes of all images before they are read, which only coco, objects365, yolo and pascal_voc '
            'have; in a mixture, give the part with rare classes a larger train_shares instead'
        )
    presence = Presence.of(source, len(class_names))
    repeats = sampling(presence)
    samples = np.bincount(presence.classes, repeats[presence.images], presence.num_classes)
    rarest = int(np.where(presence.counts > 0, presence.counts, math.inf).argmin())
    note = (
        f'samples per epoch from {len(source):,} images by sampling: images with {class_names[rarest]}, the rarest '
        f'class: {presence.counts[rarest]:,}, samples with it: {samples[rarest]:,.0f}'
    )
    resampled = ResampledSource(source, repeats.cumsum())
    return ResampledSource(source, resampled.ends, {**source.notes, note: len(resampled)})
