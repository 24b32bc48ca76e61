"""The decoding loop that an exported table network contains."""

from __future__ import annotations

import numpy as np
import torch

from phalanx.families.table.models.slanet import slanet
from phalanx.runtime.table import Table, decode_structure

STEPS = 6


def test_the_exported_loop_gives_the_tokens_and_boxes_of_the_decoder() -> None:
    """For tables that end at different steps; after the end of a table, values are meaningless."""
    torch.manual_seed(0)
    network = slanet(5, channels=16, hidden=8).eval()
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        network.head.structure[-1].bias[4] += 0.05  # of the end token, so that it comes at some step
        loop, outputs = network.exported(STEPS, post_processing=False)
        exported = torch.export.export(loop, (images,), strict=False).module()
        for found, expected in zip(exported(images), loop(images), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert list(outputs) == ['probabilities', 'boxes']


def test_a_table_is_decoded_up_to_its_end_in_pixels() -> None:
    tokens = ('sos', '<tr>', '<td></td>', '</tr>', 'eos')
    numbers, chances = np.array([1, 2, 4, 1]), np.array([0.5, 1.0, 0.9, 0.1], np.float32)
    boxes = np.array([[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0, 0, 0], [0, 0, 1, 1]], np.float32)
    found = decode_structure(numbers, chances, boxes, (48, 64), tokens, {'<td></td>'})
    assert (found.structure, found.boxes.tolist(), found.score) == (('<tr>', '<td></td>'), [[32, 0, 64, 24]], 0.75)


def test_a_graph_that_gives_probabilities_is_read_like_one_that_gives_numbers() -> None:
    tokens = ['sos', '<tr>', '<td></td>', 'eos']
    probabilities = np.array([[0, 0.5, 0.25, 0.25], [0, 0.25, 0.75, 0], [0, 0, 0.1, 0.9]], np.float32)
    boxes = np.array([[0, 0, 1, 1], [0.25, 0.5, 0.5, 1], [0, 0, 1, 1]], np.float32)
    family = Table({'preparation': {}, 'reading': {'tokens': tokens, 'cells': ['<td></td>']}})
    image = np.zeros((40, 80, 3), np.uint8)
    given = {'numbers': np.array([1, 2, 3]), 'chances': np.array([0.5, 0.75, 0.9], np.float32), 'boxes': boxes}
    for outputs in (given, {'probabilities': probabilities, 'boxes': boxes}):
        found = family.prediction(outputs, image)
        assert (found.structure, found.boxes.tolist(), found.score) == (('<tr>', '<td></td>'), [[20, 20, 40, 40]], 0.625)
