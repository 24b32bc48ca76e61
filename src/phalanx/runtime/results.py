"""Results for an image. The result of a segmentation is a class map [H, W] uint8."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Outline = tuple[tuple[float, float], ...]  # x, y in pixels of the image; four corners go clockwise from the upper left


@dataclass(frozen=True)
class Found:
    """Detected object."""

    name: str
    label: int  # number of its class
    score: float  # 0 to 1
    box: tuple[float, float, float, float]  # xyxy in pixels of the image


@dataclass(frozen=True)
class Reading:
    """Text of an image."""

    text: str
    confidence: float  # mean probability of the characters, 0 for an empty text


@dataclass(frozen=True)
class TextRegion:
    """Detected text."""

    score: float  # mean probability within it
    points: Outline


@dataclass(frozen=True)
class Line:
    """Line of text on a page."""

    text: str
    confidence: float  # mean probability of the characters
    score: float  # of the detector
    points: Outline


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted table structure."""

    structure: tuple[str, ...]  # tokens of its vocabulary; they need not be HTML
    # [cells, 4] xyxy in pixels of the image, one per token that stands for a cell; None if training had no boxes to learn from
    boxes: npt.NDArray[np.float32] | None
    score: float  # mean probability of the tokens
    texts: tuple[str, ...] = ()  # of the cells, if a recogniser has read them
