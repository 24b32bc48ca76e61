"""PP-YOLOE-SOD: the parts that PP-YOLOE has not, against numbers that PaddleDetection's own code gave with Paddle 3.3."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from phalanx.families.detection.decode import Raw
from phalanx.families.detection.loss.assign import assign_task_aligned, pad_truths
from phalanx.families.detection.loss.terms import distribution_focal
from phalanx.families.detection.models.ppyoloe import ppyoloe
from phalanx.families.detection.models.transformer import TransformerEncoder, position_embedding
from phalanx.paddle.weights import paddle_layout
from phalanx.paddle.weights.ppyoloe import original

GOLDEN = np.load(Path(__file__).parent / 'data' / 'ppyoloe_sod.npz')


def test_the_transformer_over_places_computes_what_paddledetections_does() -> None:
    """Weights are a wave over all numbers of a parameter, shifted by its place among the names in order."""
    encoder = TransformerEncoder(16, 2).eval()
    names = original(ppyoloe(1))
    stored = {names.name(f'neck.encoder.{name}'): tensor for name, tensor in paddle_layout(encoder).items()}
    for place, (name, tensor) in enumerate(sorted(stored.items())):
        wave = 0.3 * np.sin(0.7 * np.arange(tensor.numel()) + place) / (4 if tensor.ndim > 1 else 1)
        wave += 'norm' in name and name.endswith('weight')
        tensor.copy_(torch.from_numpy(wave.reshape(tensor.shape)))
    x = np.cos(0.37 * np.arange(2 * 16 * 15)).astype(np.float32).reshape(2, 16, 3, 5)
    with torch.no_grad():
        assert_allclose(encoder(torch.from_numpy(x)), GOLDEN['encoder_out'], atol=2e-5)
    assert_allclose(position_embedding(3, 5, 16, torch.device('cpu')), GOLDEN['waves'], atol=2e-5)


def test_anchors_near_the_centre_of_a_box_answer_for_it_as_in_paddledetection() -> None:
    """Among the boxes: one smaller than a cell, two that compete, one that is the whole image, and a place without a box."""
    exist = GOLDEN['mask'][..., 0] > 0
    truths = pad_truths(
        [torch.from_numpy(boxes[own]) for boxes, own in zip(GOLDEN['gt'], exist, strict=True)],
        [torch.from_numpy(labels[own, 0]) for labels, own in zip(GOLDEN['lab'], exist, strict=True)],
        torch.float32,
    )
    logits = torch.from_numpy(GOLDEN['scores']).logit()
    points, strides = torch.from_numpy(GOLDEN['points']), torch.from_numpy(GOLDEN['strides'])[:, 0]
    raw = Raw(logits, torch.zeros(2, len(points), 40), points, strides, (4, 16, 64), min_distance=-2)
    found = assign_task_aligned(truths, torch.from_numpy(GOLDEN['pred']), raw, top_k=5, alpha=1.0, beta=2.0, center_radius=1)
    assert_array_equal(found.fg_mask, GOLDEN['a_labels'] != 3)
    classes = truths.classes.gather(1, found.truth_index)
    assert_array_equal(classes[found.fg_mask], GOLDEN['a_labels'][found.fg_mask])
    boxes = truths.boxes.gather(1, found.truth_index[..., None].expand(-1, -1, 4))
    assert_array_equal(boxes[found.fg_mask], GOLDEN['a_boxes'][found.fg_mask])
    assert_allclose(found.score, GOLDEN['a_scores'].sum(-1), atol=1e-5)


def test_distances_may_be_negative() -> None:
    """Ten bins from -2 strides on."""
    logits, targets = (torch.from_numpy(GOLDEN[name]) for name in ('df_logits', 'df_targets'))
    assert_allclose(distribution_focal(logits.flatten(1), targets, -2), GOLDEN['df'], rtol=1e-4)


def test_a_network_that_reaches_below_0_decodes_boxes_beside_its_anchors() -> None:
    network = ppyoloe(2, encoder=1, reach=(-2, 7)).eval()
    with torch.no_grad():
        raw = network(torch.zeros(1, 3, 64, 64))
    assert (raw.min_distance, raw.bins) == (-2, 10)
    sure = torch.full((1, raw.points.shape[0], 4, 10), -100.0)
    sure[..., 1] = 100.0  # one stride to the other side
    left, _, right, _ = network.decode(raw._replace(distances=sure.flatten(2)))[0].unbind(-1)
    assert_allclose(left - raw.points[:, 0], raw.strides.expand_as(left), rtol=1e-6)
    assert_allclose(right - raw.points[:, 0], -raw.strides.expand_as(left), rtol=1e-6)
    with pytest.raises(ValueError, match='reach must rise from 0 or less'):
        ppyoloe(2, reach=(1, 7))
