"""Images of lines to texts: CTC decoding. Shapes: T time steps along the line, C characters."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from phalanx.runtime.family import Family
from phalanx.runtime.prepare import Floats, Image, fit_line, normalise, pad_with_zeros, size_of
from phalanx.runtime.results import Reading

BLANK = 0
LEFT_TO_RIGHT = re.compile(r'[a-zA-Z0-9 :*./%+-]+|.', re.DOTALL)


class Recognition(Family):
    """Pre- and post-processing of a recognition network."""

    def prepare(self, image: Image) -> Floats:
        size, keep_ratio = size_of(self.preparation, 'image_size'), self.preparation['keep_ratio']
        fitted, width = fit_line(image, size, keep_ratio=keep_ratio, grow=keep_ratio)
        # Zeros after normalisation, as in training: black pixels would become -1.
        return pad_with_zeros(normalise(fitted[:, :width], self.preparation), *fitted.shape[:2])

    def prediction(self, outputs: Mapping[str, Any], image: Image) -> Reading:
        if 'numbers' in outputs:  # argmax in the graph
            numbers, probabilities = outputs['numbers'], outputs['probabilities']
        else:
            shares = softmax(outputs['logits'])
            numbers, probabilities = shares.argmax(1), shares.max(1)
        found = collapse_ctc(numbers.tolist(), probabilities.tolist(), self.reading['characters'])
        return replace(found, text=reverse_runs(found.text)) if self.reading.get('right_to_left') else found


def collapse_ctc(numbers: Sequence[int], probabilities: Sequence[float], characters: Sequence[str]) -> Reading:
    """Greedy CTC decoding of the best numbers [T]: repetitions and blanks are dropped; character i is number i + 1."""
    before = [BLANK, *numbers[:-1]]
    steps = [step for step, number in enumerate(numbers) if number not in (BLANK, before[step])]
    text = ''.join(characters[numbers[step] - 1] for step in steps)
    confidence = sum(probabilities[step] for step in steps) / len(steps) if steps else 0.0
    return Reading(text, confidence)


def reverse_runs(text: str) -> str:
    """Text of a right-to-left script in the order of its letters, from the order of an image, left to right.

    Latin letters, digits and signs stay in runs, as with PaddleOCR (`pred_reverse` of ppocr/postprocess/rec_postprocess.py).
    """
    return ''.join(reversed(LEFT_TO_RIGHT.findall(text)))


def softmax(logits: Floats) -> Floats:  # over the last axis
    # Shifted by the maximum, so that exp cannot overflow.
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    shares: Floats = powers / powers.sum(-1, keepdims=True)
    return shares
