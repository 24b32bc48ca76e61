"""RT-DETRv2, D-FINE and DEIMv2 against the code of their authors.

Expected numbers were produced by running the originals (lyuwenyu/RT-DETR, Peterande/D-FINE, Intellindust-AI-Lab/DEIMv2) in
float64 with the weights and images of weights.py: small networks with the random numbers of our denoising, DEIMv2 Atto and N
with 40 queries and without denoising, on square images. Their position embedding swaps rows and columns
on maps that are not square; it was corrected, as in transformers.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from golden.weights import draw, images
from phalanx.families.detection.loss.assign import Truths, pad_truths
from phalanx.families.detection.loss.queries import DFINELoss, RTDETRLoss
from phalanx.families.detection.models.deimv2 import deimv2
from phalanx.families.detection.models.detr import DETR
from phalanx.families.detection.models.dfine import dfine
from phalanx.families.detection.models.rtdetr import rtdetrv2
from phalanx.nn import stochastic
from phalanx.parallel.norms import BatchNorm2d
from phalanx.parallel.step import WholeStep
from phalanx.weights.reading import compare_weights

DATA = Path(__file__).parent / 'data'
CLASSES = 7
SMALL: dict[str, Any] = {'channels': 32, 'encoder_hidden': 48, 'decoder_hidden': 48, 'queries': 40, 'denoising': 20}
MAL: dict[str, Any] = {'classes': 'matchability', 'alpha': 1.0, 'gamma': 1.5, 'matcher_change_epoch': 10}
NETWORKS = {
    'rtdetrv2': partial(rtdetrv2, CLASSES, **SMALL),
    'dfine': partial(dfine, CLASSES, **SMALL),
    'deimv2_atto': partial(deimv2, CLASSES, size='atto', queries=40, denoising=0),
    'deimv2_n': partial(deimv2, CLASSES, size='n', queries=40, denoising=0),
}
LOSSES = {'rtdetrv2': RTDETRLoss(), 'dfine': DFINELoss(), 'deimv2_atto': RTDETRLoss(**MAL), 'deimv2_n': DFINELoss(**MAL)}
FACTS: dict[str, Any] = json.loads((DATA / 'query_detectors.json').read_text())


def official_state(name: str) -> dict[str, Tensor]:
    facts, state = FACTS[name], {}
    for entry, shape in facts['state']:
        rule = entry.replace('running_mean', '_mean').replace('running_var', '_variance')
        values = draw(rule, shape or [1], facts['gain'])
        if 'sampling_offsets.bias' in entry:
            values = 8 * values  # points beyond the border, too
        if entry.endswith('.scale'):
            values = 1 + values
        if 'score_head' in entry and entry.endswith('bias'):
            values = values - np.float32(2)
        state[entry] = torch.from_numpy(values).reshape(shape)
    return state


def network(name: str, **options: Any) -> DETR:
    """In float64, filled from the authors' names, all of which must fit."""
    model = NETWORKS[name](**options)
    fit = compare_weights(model, official_state(name), 'all')
    assert not fit.problems()
    fit.fill()
    return model.double().eval()


def size_of(name: str) -> tuple[int, int]:
    return (128, 128) if name.startswith('deimv2') else (96, 160)


def truths_of(boxes: list[list[list[float]]], classes: list[list[int]]) -> Truths:
    tensors = [torch.tensor(of_image, dtype=torch.float64).reshape(-1, 4) for of_image in boxes]
    return pad_truths(tensors, [torch.tensor(of_image, dtype=torch.int64) for of_image in classes], torch.float64)


@torch.no_grad()
@pytest.mark.parametrize('name', NETWORKS)
def test_outputs_are_those_of_the_authors(name: str) -> None:
    raw = network(name)(torch.from_numpy(images((3, 3, *size_of(name)))).double())
    expected = np.load(DATA / 'query_detectors.npz')
    logits, boxes = raw.decoded.layers[-1]
    np.testing.assert_allclose(logits, expected[f'{name}_eval_logits'], rtol=0, atol=1e-5)
    np.testing.assert_allclose(boxes, expected[f'{name}_eval_boxes'], rtol=0, atol=1e-5)


@torch.no_grad()
def test_discrete_sampling_is_that_of_the_authors() -> None:
    raw = network('rtdetrv2', sampling='discrete')(torch.from_numpy(images((1, 3, 128, 128))).double())
    expected = np.load(DATA / 'query_detectors.npz')
    logits, boxes = raw.decoded.layers[-1]
    np.testing.assert_allclose(logits, expected['rtdetrv2_discrete_logits'], rtol=0, atol=1e-5)
    np.testing.assert_allclose(boxes, expected['rtdetrv2_discrete_boxes'], rtol=0, atol=1e-5)


@pytest.mark.parametrize('name', NETWORKS)
def test_losses_and_gradients_are_those_of_the_authors(name: str) -> None:
    """One of the three images has no boxes; norms keep their statistics, as in the original run."""
    facts, model, loss = FACTS[name], network(name), LOSSES[name]
    model.train()
    for module in model.modules():
        if isinstance(module, BatchNorm2d):
            module.eval()
    keys = stochastic.SampleKeys()
    assert stochastic.tie(model, keys) or model.denoising is None
    keys.begin(torch.tensor([11, 22, 33]))
    truths = truths_of(facts['boxes'], facts['classes'])
    raw = model(torch.from_numpy(images((3, 3, *size_of(name)))).double(), truths)
    terms = loss(raw, truths, loss.assigner(raw, truths, WholeStep()))
    assert {term: float(each.mean()) for term, each in terms.items()} == pytest.approx(facts['losses'], rel=1e-5)
    torch.stack([each.mean() for each in terms.values()]).sum().backward()  # type: ignore[no-untyped-call]
    if 'late_losses' in facts:  # after the change of the matcher
        late = loss(raw, truths, loss.assigner(raw, truths, WholeStep(epoch=10)))
        assert {term: float(each.mean()) for term, each in late.items()} == pytest.approx(facts['late_losses'], rel=1e-5)
    compare_gradients(model, facts['gradients'], official_state(name))


def compare_gradients(model: nn.Module, expected: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Sums and norms of the gradients of all parameters, by the authors' names."""
    slots = compare_weights(model, state, 'all').naming.slots
    parameters = dict(model.named_parameters())
    checked = 0
    for name, slot in slots.items():
        if name in expected and slot.ours in parameters:
            gradient = parameters[slot.ours].grad
            assert gradient is not None, name
            total, norm = expected[name]
            assert float(gradient.norm()) == pytest.approx(norm, rel=1e-4, abs=1e-6), name
            assert float(gradient.sum()) == pytest.approx(total, rel=1e-4, abs=1e-4 * max(norm, 1e-2)), name
            checked += 1
    assert checked == len(parameters)
