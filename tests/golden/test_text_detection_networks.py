"""DB with each of its parts against PaddleOCR.

Expected numbers were produced by running the original in float64 on CPU (Paddle 3.3.1) with the weights and images of
weights.py and rectangles as texts; data/ holds some values of each result. The factors behind activations (`lab.scale`) are
drawn around 1.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from filling import load_original
from golden.weights import FloatArray, draw, images
from phalanx.families.text_detection.loss import DbLoss
from phalanx.families.text_detection.models.db import DB, db
from phalanx.families.text_detection.models.maps import Maps
from phalanx.families.text_detection.targets import Targets
from phalanx.nn.backbones.lcnetv3 import pp_lcnet_v3
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3
from phalanx.nn.backbones.resnet_vd import resnet18_vd, resnet50_vd
from phalanx.paddle.weights import paddle_layout
from phalanx.paddle.weights.db import original
from phalanx.parallel.step import WholeStep

DATA = Path(__file__).parent / 'data'
FACTS = json.loads((DATA / 'text_detection.json').read_text())
ARRAYS: dict[str, npt.NDArray[Any]] = dict(np.load(DATA / 'text_detection.npz'))
NETWORKS: dict[str, Callable[[], DB]] = {
    'det_mv3_db': db,
    'ch_PP-OCRv3_det_student': lambda: db(backbone=partial(mobilenet_v3, squeeze=False), neck='rse_fpn', neck_channels=96),
    'ch_PP-OCRv4_det_mobile': lambda: db(backbone=partial(pp_lcnet_v3), neck='rse_fpn', neck_channels=96),
    'det_r18_vd_lk_pan_local': lambda: db(
        backbone=partial(resnet18_vd), neck='lk_pan', neck_channels=64, head='local_small', head_kernel=7
    ),
    'det_r50_vd_db': lambda: db(backbone=partial(resnet50_vd)),
}
GAINS = {'.conv_kxk.': 0.3, '.conv_1x1.': 0.3, '.layer_list.': 1e-4}  # of these parts: so that maps are not saturated


def weights(name: str) -> dict[str, FloatArray]:
    """State of an original network."""
    facts = FACTS['networks'][name]
    state = {}
    for key, shape in facts['params']:
        gains = [gain for part, gain in GAINS.items() if part in key]
        state[key] = draw(key, shape, *gains) + np.float32(key.endswith('lab.scale'))
        if key in facts['unused']:
            state[key] = np.full(shape, key.endswith('scale'), np.float32)
    return state


def batch() -> torch.Tensor:
    return torch.from_numpy(images(FACTS['input_shape'])).double()


def targets() -> Targets:
    return Targets(*(torch.from_numpy(ARRAYS[f'targets/{part}']).float() for part in Targets._fields))


@pytest.mark.parametrize('name', NETWORKS)
def test_every_parameter_has_one_original_name(name: str) -> None:
    """All parameters of the original except the scales after activations that it does not have."""
    facts, network = FACTS['networks'][name], NETWORKS[name]()
    names = original(network)
    theirs = [names.name(ours) for ours in paddle_layout(network)]
    assert len(theirs) == len(set(theirs))
    assert set(theirs) == {key for key, _ in facts['params']} - set(facts['unused'])
    assert set(names.constants) == set(facts['unused'])


@pytest.mark.parametrize('name', NETWORKS)
def test_maps_losses_and_gradients_match_the_original(name: str) -> None:
    facts, network = FACTS['networks'][name], NETWORKS[name]().double()
    load_original(network, weights(name))
    with torch.no_grad():
        maps = network.eval()(batch())
    assert maps.threshold is None
    assert maps.binary is None
    ours = maps.shrink.flatten()[:: facts['eval_stride']]
    np.testing.assert_allclose(ours.numpy(), ARRAYS[f'{name}/eval'], rtol=0, atol=1e-6)

    has_gradients = 'grad_norms' in facts  # left out for the largest network, because they take long
    with torch.set_grad_enabled(has_gradients):
        maps = network.train()(batch())
    ours = torch.cat(list(maps), dim=1).detach().flatten()[:: facts['train_stride']]
    np.testing.assert_allclose(ours.numpy(), ARRAYS[f'{name}/train'], rtol=0, atol=1e-6)
    terms = DbLoss()(maps, targets(), WholeStep())
    assert list(terms) == facts['terms']
    values = [term.mean() for term in terms.values()]
    np.testing.assert_allclose([value.item() for value in values], ARRAYS[f'{name}/losses'], rtol=1e-6)

    names = original(network)
    buffers = {names.name(ours): value for ours, value in network.named_buffers()}
    for key in (key for key in ARRAYS if key.startswith(f'{name}/buffer/')):
        np.testing.assert_allclose(buffers[key.rpartition('/')[2]][:32].numpy(), ARRAYS[key], rtol=1e-5, atol=1e-6)
    if has_gradients:
        sum(values, torch.zeros(())).backward()
        gradients = {names.name(ours): value.grad for ours, value in network.named_parameters()}
        norms = {key: gradient.norm().item() for key, gradient in gradients.items() if gradient is not None}
        assert norms.keys() == gradients.keys()
        for key, expected in facts['grad_norms'].items():
            assert norms[key] == pytest.approx(expected, rel=1e-5), key
        assert sum(norm**2 for norm in norms.values()) ** 0.5 == pytest.approx(facts['grad_l2'], rel=1e-5)


@pytest.mark.parametrize('label', list(FACTS['losses']))
def test_losses_of_given_maps_match_the_original(label: str) -> None:
    loss = DbLoss(**FACTS['losses'][label]['options'])
    maps = torch.from_numpy(ARRAYS['loss/maps']).double().requires_grad_()
    truth = targets()
    if label == 'no_text':
        nothing = torch.zeros_like(truth.shrink_map)
        truth = Targets(nothing, torch.ones_like(nothing), nothing, nothing)
    shrink, threshold, binary = maps.split(1, dim=1)
    terms = loss(Maps(shrink, threshold, binary), truth, WholeStep())
    values = {name: term.mean() for name, term in terms.items()}
    assert {name: value.item() for name, value in values.items()} == pytest.approx(FACTS['losses'][label]['terms'], rel=1e-6)
    if f'loss/{label}/grad' in ARRAYS:
        sum(values.values(), torch.zeros(())).backward()
        assert maps.grad is not None
        expected = ARRAYS[f'loss/{label}/grad']
        np.testing.assert_allclose(maps.grad.flatten()[::97].numpy(), expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
