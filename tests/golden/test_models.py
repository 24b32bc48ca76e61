"""Segmentation networks against PaddleSeg.

Expected numbers were produced by running the original on CPU with the weights and inputs of weights.py; trim.py copied them
to data/. Forward passes are compared in float32. Gradients and training are compared in float64, because the original's own
float32 backward pass differs from its float64 one by up to 9e-2 with these weights.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from filling import load_original
from golden.weights import draw, images, segmentation_labels, segmentation_state
from phalanx.families.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.families.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.families.segmentation.models.deeplabv3p import DeepLabV3Plus, deeplabv3p
from phalanx.families.segmentation.models.ocrnet import OCRNet, ocrnet
from phalanx.families.segmentation.models.pp_liteseg import PPLiteSeg, pp_liteseg
from phalanx.families.segmentation.models.segformer import SegFormer, segformer
from phalanx.families.segmentation.models.unet import UNet, unet
from phalanx.families.task import Term
from phalanx.nn.backbones.mix_vit import mit_b0
from phalanx.nn.backbones.stdc import stdc1, stdc2
from phalanx.paddle.weights import original_of
from phalanx.parallel.step import WholeStep

DATA = Path(__file__).parent / 'data'
FACTS = json.loads((DATA / 'segmentation.json').read_text())
NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    'seg_pp_liteseg_stdc1': lambda num_classes: pp_liteseg(num_classes, backbone=partial(stdc1)),
    'seg_pp_liteseg_stdc2': lambda num_classes: pp_liteseg(num_classes, backbone=partial(stdc2)),
    'seg_unet': unet,
    'seg_ocrnet_hrnetw18': lambda num_classes: ocrnet(num_classes, dropout=0),  # as the numbers were made
    'seg_segformer_b0': lambda num_classes: segformer(num_classes, backbone=partial(mit_b0, drop_path=0), dropout=0),
    'seg_deeplabv3p_xception65': lambda num_classes: deeplabv3p(num_classes, dropout=0),
}
# How many optimizer steps are compared, and how closely a weight after the fifth. Even in float64 the original has some
# coefficients in float32 (divisors, interpolation), and training with these weights is chaotic: a change of the loss by 3e-8
# changes the weight after five steps by 1e-4 of its length in PP-LiteSeg on STDC1, and by 4e-2 on STDC2.
TRAJECTORIES = {
    'seg_pp_liteseg_stdc1': (5, 1e-3),
    'seg_pp_liteseg_stdc2': (2, None),
    'seg_unet': (2, None),
    'seg_ocrnet_hrnetw18': (2, None),
    'seg_segformer_b0': (5, 1e-6),
    'seg_deeplabv3p_xception65': (2, None),
}
# Those whose training `make test` compares; the others are large, in float64.
TRAINED = pytest.mark.parametrize(
    'golden',
    [
        pytest.param(name, marks=() if name in ('seg_pp_liteseg_stdc1', 'seg_segformer_b0') else pytest.mark.long)
        for name in TRAJECTORIES
    ],
    indirect=True,
)
FEATURES = {  # the golden array of a map inside the network -> the module whose output (or input) it is
    PPLiteSeg: {'eval_cm_out': 'context', **{f'eval_feat{level}': f'backbone.stages.{level}' for level in range(5)}},
    UNet: {f'eval_feat{(level + 1) % 5}': f'encoder.{level}' for level in range(5)},  # the coarsest comes first there
    OCRNet: {'eval_feat0': 'guess:input', 'eval_aux_head_lowres': 'guess', 'eval_cls_head_lowres': 'classify'},
    SegFormer: {
        'eval_linear_pred_lowres': 'classify',
        **{f'eval_feat{level}': f'backbone.stages.{level}' for level in range(4)},
    },
    DeepLabV3Plus: {
        'eval_feat0': 'backbone.entry.0',
        'eval_feat1': 'backbone.exit',
        'eval_aspp_out': 'pyramid',
        'eval_decoder_lowres': 'classify',
    },
}
NOISE = 1e-9  # a gradient of this length is zero but for rounding: a norm takes away what the parameter adds
BOTH_PP_LITESEG = [name for name in NETWORKS if 'liteseg' in name]

Criterion = Callable[[Tensor, Tensor, WholeStep], Term]


@dataclass
class Golden:
    """Golden outputs of the original for one network."""

    name: str

    def __post_init__(self) -> None:
        self.facts: dict[str, Any] = FACTS['models'][self.name]
        self.arrays = dict(np.load(DATA / f'{self.name}.npz'))
        self.images = torch.from_numpy(images(self.facts['input_shape']))
        self.labels = torch.from_numpy(segmentation_labels(self.facts['input_shape'], self.facts['num_classes']))
        # min_kept is 130000 in the recipe of PP-LiteSeg, more than these labels have: no pixel is left out
        self.loss: Criterion = OhemCrossEntropy(min_kept_per_sample=65000) if 'liteseg' in self.name else CrossEntropy()

    def network(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        model = NETWORKS[self.name](self.facts['num_classes']).to(dtype)
        load_original(model, segmentation_state(self.facts['state'], self.facts['gain']))
        return model

    def losses(self, outputs: list[Tensor], loss: Criterion) -> list[Tensor]:
        """The loss of each output, with its coefficient."""
        terms = [loss(logits, self.labels, WholeStep()) for logits in outputs]
        return [c * term.total / term.weight for c, term in zip(self.facts['loss']['coef'], terms, strict=True)]

    def sampled(self, key: str, ours: Tensor) -> npt.NDArray[Any]:
        """Our values at the places that the array `key` holds."""
        stride = self.facts['strides'][key]
        return ours.detach().reshape(-1)[::stride].numpy()

    def assert_close(self, key: str, ours: Tensor) -> None:
        """Within 1e-4, or 5 times the distance between the original's own float32 and float64 runs."""
        tolerance = max(1e-4, 5 * self.facts['noise'][key])
        np.testing.assert_allclose(self.sampled(key, ours), self.arrays[key], rtol=0, atol=tolerance, err_msg=key)

    def assert_aligned(self, key: str, ours: Tensor, tolerance: float = 1e-5) -> None:
        """Within a part of the length of the array, taken as one vector."""
        expected = self.arrays[key].astype(np.float64)
        distance = float(np.linalg.norm(self.sampled(key, ours) - expected) / np.linalg.norm(expected))
        assert distance < tolerance, f'{key} is off by {distance:.1e}'


def as_there(model: nn.Module, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return `tensors` by their original names, in the layout of Paddle, whose linear layers are [in, out]."""
    name = original_of(model).name
    return {name(ours): tensor.T if tensor.ndim == 2 else tensor for ours, tensor in tensors.items()}


@pytest.fixture(scope='module', params=NETWORKS)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


@dataclass
class Trained:
    """Some float64 optimizer steps on one batch; gradients are those of the first."""

    losses: list[list[float]]
    gradients: dict[str, Tensor]
    parameters: dict[str, Tensor]


@pytest.fixture(scope='module')
def trained(golden: Golden) -> Trained:
    model = golden.network(torch.float64).train()
    optimizer = optimizer_of(model, golden.facts['traj']['optimizer'])
    history, gradients = [], {}
    for step in range(TRAJECTORIES[golden.name][0]):
        optimizer.zero_grad()
        of_heads = golden.losses(model(golden.images.double()), golden.loss)
        torch.stack(of_heads).sum().backward()
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        optimizer.step()
        history.append([loss.item() for loss in of_heads])
    return Trained(history, as_there(model, gradients), as_there(model, dict(model.named_parameters())))


def optimizer_of(model: nn.Module, settings: dict[str, Any]) -> torch.optim.Optimizer:
    if settings['type'] == 'AdamW':
        betas = settings['beta1'], settings['beta2']
        return torch.optim.AdamW(model.parameters(), settings['lr'], betas, settings['epsilon'], settings['weight_decay'])
    return torch.optim.SGD(model.parameters(), settings['lr'], settings['momentum'], weight_decay=settings['weight_decay'])


def test_the_weight_rule_and_the_inputs_are_those_of_the_original() -> None:
    for case in FACTS['weight_rule_check']:
        if not case['name'].startswith('yolo_head'):  # detection shifts these afterwards
            values = draw(case['name'], case['shape'], case['gain'])
            assert values.reshape(-1)[:4] == pytest.approx(case['first4'])
            assert values.sum(dtype=np.float64) == pytest.approx(case['sum'])
    check = FACTS['input_check']
    assert images(check['shape']).sum(dtype=np.float64) == pytest.approx(check['sum'])


def test_evaluation_logits_are_those_of_the_original(golden: Golden) -> None:
    """And the maps inside the network."""
    model = golden.network().eval()
    maps: dict[str, Tensor] = {}
    for key, path in FEATURES[type(model)].items():
        module, _, end = path.partition(':')
        model.get_submodule(module).register_forward_hook(partial(keep, maps, key, end == 'input'))
    with torch.no_grad():
        outputs = model(golden.images)
    assert len(outputs) == 1
    golden.assert_close('eval_logit0', outputs[0])
    for key in FEATURES[type(model)]:
        golden.assert_close(key, maps[key])


def keep(maps: dict[str, Tensor], key: str, of_input: bool, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
    maps[key] = inputs[0] if of_input else output


def test_training_logits_losses_and_running_statistics_are_those_of_the_original(golden: Golden) -> None:
    model = golden.network().train()
    outputs = model(golden.images)
    assert len(outputs) == model.num_outputs
    for number, logits in enumerate(outputs):
        golden.assert_close(f'train_logit{number}', logits)
    of_heads = torch.stack(golden.losses(outputs, golden.loss))
    np.testing.assert_allclose(of_heads.detach(), golden.arrays['train_loss_list'], rtol=1e-5)
    original = original_of(model).name
    running = {f'bn_after__{original(name)}': buffer for name, buffer in model.named_buffers()}
    expected = {key: values for key, values in golden.arrays.items() if key.startswith('bn_after__')}
    for key, values in expected.items():
        np.testing.assert_allclose(running[key], values, rtol=1e-5, atol=1e-6, err_msg=key)


@TRAINED
def test_gradients_are_those_of_the_original(golden: Golden, trained: Trained) -> None:
    assert trained.losses[0] == pytest.approx(golden.facts['f64']['train_loss_list'], rel=1e-6)
    for key in golden.arrays:
        if key.startswith('f64_grad__'):
            golden.assert_aligned(key, trained.gradients[key.removeprefix('f64_grad__')])


@TRAINED
def test_every_gradient_has_the_length_of_the_original(golden: Golden, trained: Trained) -> None:
    names = golden.facts['trainable_order']
    assert trained.gradients.keys() == set(names)
    expected = dict(zip(names, golden.arrays['f64_gradnorm_all'].tolist(), strict=True))
    for name in names:
        assert trained.gradients[name].norm().item() == pytest.approx(expected[name], rel=1e-5, abs=NOISE), name


@TRAINED
def test_optimizer_steps_are_those_of_the_original(golden: Golden, trained: Trained) -> None:
    steps, tolerance = TRAJECTORIES[golden.name]
    expected = golden.facts['f64']['traj_losses'][:steps]
    assert [sum(of_heads) for of_heads in trained.losses] == pytest.approx(expected, rel=1e-5)
    for key in golden.arrays:
        if key.startswith('f64_traj_param__') and tolerance is not None:
            golden.assert_aligned(key, trained.parameters[key.removeprefix('f64_traj_param__')], tolerance)


@pytest.mark.parametrize('name', BOTH_PP_LITESEG)
def test_ohem_in_a_network_is_that_of_the_original(name: str) -> None:
    golden = Golden(name)
    settings = golden.facts['ohem_small']
    loss = OhemCrossEntropy(threshold=settings['thresh'], min_kept_per_sample=settings['min_kept'] / len(golden.images))
    model = golden.network(torch.float64).train()
    of_heads = golden.losses(model(golden.images.double()), loss)
    expected = golden.arrays['f64_train_loss_list_ohem_small'].tolist()
    assert [loss.item() for loss in of_heads] == pytest.approx(expected, rel=1e-5)
    torch.stack(of_heads).sum().backward()
    gradients = as_there(model, {name: p.grad for name, p in model.named_parameters()})
    for key in golden.arrays:
        if key.startswith('f64_grad_ohem_small__'):
            golden.assert_aligned(key, gradients[key.removeprefix('f64_grad_ohem_small__')])
