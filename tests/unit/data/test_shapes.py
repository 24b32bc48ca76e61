"""Outlines and run lengths of objects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pycocotools import mask as oracle

from phalanx.data.checks import AnnotationError
from phalanx.data.coco import parse_object
from phalanx.data.shapes import encode_runs


@pytest.mark.parametrize('share', [0.05, 0.2, 0.6, 1.0])
def test_the_box_of_run_lengths_is_that_of_pycocotools(share: float) -> None:
    rng = np.random.default_rng(0)
    for height, width in ((1, 7), (6, 1), (5, 8), (8, 5)):
        for _ in range(20):
            mask = rng.random((height, width)) < share
            x, y, w, h = oracle.toBbox(oracle.encode(np.asfortranarray(mask.astype(np.uint8)))).tolist()
            assert encode_runs(mask).box(height) == ((x, y, x + w, y + h) if mask.any() else None)


@pytest.mark.parametrize(
    ('size', 'counts', 'reason'),
    [
        ([-1, 6], [0, 6], 'expected a height and width above 0'),
        ([0, 0], [], 'expected a height and width above 0'),
        ([2**31, 2**31], [2**62], 'mark no pixel'),
        ([4, 4], [1, 2], 'add up to 3'),
    ],
)
def test_run_lengths_for_an_impossible_image_are_refused(size: list[int], counts: list[int], reason: str) -> None:
    """Also for one that does not fit into memory."""
    entry = {'image_id': 1, 'category_id': 1, 'segmentation': {'size': size, 'counts': counts}}
    with pytest.raises(AnnotationError, match=reason):
        parse_object(entry, (1,), {1: 'cat'}, str(Path('a.json')))
