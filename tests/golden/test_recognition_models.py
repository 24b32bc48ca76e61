"""Recognition networks, their losses and their distillation against PaddleOCR.

Expected numbers were produced by running the original on CPU with the weights and inputs of weights.py, dropout off;
trim_recognition.py copied them to data/. Forward passes are compared in float32. Losses, gradients and training are compared
in float64; gradients were stored from the original's float32 run, so they agree to its distance from its own float64 run.

ppocrv4_rec is a smaller network of PP-OCRv4_mobile_rec.yml (scale 0.5, an NRTR head of two blocks of 96), run in the same way
with PaddleOCR of 2025-08 on paddlepaddle 3.3.1. Its gradients are those of the float64 run, for which its table of places and
the slope of its hard sigmoids (0.1666667 there) were made exact.
"""

from __future__ import annotations

import json
from collections.abc import Callable
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
from golden.weights import FloatArray, draw, images
from phalanx.families.distillation import DML, DistillationModel, FeatureDistance
from phalanx.families.recognition.loss import CTC, NRTR, Multi
from phalanx.families.recognition.models.crnn import CRNN
from phalanx.families.recognition.models.outputs import Outputs
from phalanx.families.recognition.models.svtr_lcnet import SVTRLCNet
from phalanx.families.recognition.models.svtr_lcnetv3 import SVTRLCNetV3, svtr_lcnetv3
from phalanx.families.recognition.texts import Texts
from phalanx.families.task import Loss
from phalanx.nn.backbones.lcnetv3 import pp_lcnet_v3
from phalanx.nn.backbones.line_mobilenet_v3 import mobilenet_v3
from phalanx.paddle.weights import original_of
from phalanx.weights.reading import select_network

DATA = Path(__file__).parent / 'data'
FACTS = json.loads((DATA / 'recognition_models.json').read_text())
FACTS['ppocrv4_rec'] = json.loads((DATA / 'ppocrv4_rec.json').read_text())
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    'crnn_mv3': lambda: CRNN(36),
    'crnn_ch_lite': lambda: CRNN(96, backbone=partial(mobilenet_v3, size='small'), hidden_size=48),
    'ppocrv3_rec': lambda: SVTRLCNet(96, dropout=0.0),
    'ppocrv4_rec': lambda: svtr_lcnetv3(96, backbone=partial(pp_lcnet_v3, scale=0.5), dropout=0.0, nrtr_size=96, nrtr_depth=2),
    'ppocrv3_distill': lambda: DistillationModel({name: SVTRLCNet(96, dropout=0.0) for name in ('student', 'teacher')}),
}
STEPS = {
    'crnn_mv3': 6,
    'crnn_ch_lite': 6,
    'ppocrv3_rec': 4,
    'ppocrv4_rec': 3,
    'ppocrv3_distill': 3,
}  # compared; the first rate is mostly 0
# Those whose training `make test` compares: the distillation is of two networks that are there.
TRAINED = pytest.mark.parametrize(
    'golden',
    [pytest.param(name, marks=pytest.mark.long if name == 'ppocrv3_distill' else ()) for name in NETWORKS],
    indirect=True,
)
TERMS = {  # ours -> the original's
    'ctc': 'CTCLoss',
    'sar': 'SARLoss',
    'nrtr': 'NRTRLoss',
    'ctc_student': 'loss_ctc_Student_0',
    'ctc_teacher': 'loss_ctc_Teacher_1',
    'sar_student': 'loss_sar_Student_0',
    'sar_teacher': 'loss_sar_Teacher_1',
    'dml_ctc_student_teacher': 'dml_ctc_0',
    'dml_sar_student_teacher': 'dml_sar_0',
    'distance_features_student_teacher': 'loss_distance_l2_Student_Teacher_0',
}


@dataclass
class Golden:
    """Numbers of the original for one network."""

    name: str

    def __post_init__(self) -> None:
        self.facts: dict[str, Any] = FACTS[self.name]
        self.arrays = dict(np.load(DATA / f'{self.name}.npz'))
        self.images = torch.from_numpy(images(self.facts['input_shape']))
        batch = {key: torch.tensor(values) for key, values in self.facts['batch'].items() if key not in ('texts', 'order')}
        ctc = batch['label'] if 'label' in batch else batch['label_ctc']
        guide = batch.get('label_sar', batch.get('label_gtc', torch.zeros(0)))
        self.texts = Texts(ctc, batch['length'], guide, batch.get('valid_ratio', torch.ones(len(ctc))))

    def network(self, dtype: torch.dtype = torch.float32) -> nn.Module:
        model = NETWORKS[self.name]().to(dtype)
        for prefix, network in self.networks(model).items():
            load_original(network, select_network(self.state(), prefix) if prefix else self.state())
        return model

    def networks(self, model: nn.Module) -> dict[str, nn.Module]:
        """The networks inside `model`, by the first part of their parameters' original names."""
        if isinstance(model, DistillationModel):
            return {name.capitalize(): network for name, network in model.networks.items()}
        return {'': model}

    def state(self) -> dict[str, FloatArray]:
        if 'params' in self.facts:
            shapes = {name: tuple(shape) for name, shape in self.facts['params']}
        else:
            single = FACTS['ppocrv3_rec']['params']
            shapes = {f'{prefix}.{name}': tuple(shape) for prefix in ('Student', 'Teacher') for name, shape in single}
        state = {name: self.weight(name, shape) for name, shape in shapes.items()}
        return state | {second: state[first] for second, first in self.facts['alias_keys'].items()}

    def weight(self, name: str, shape: tuple[int, ...]) -> FloatArray:
        """A weight of weights.py: linear layers [in, out], recurrent ones [out, in]; padding is embedded as 0, factors are
        about 1.
        """
        gain = 1.5 if self.name.startswith('crnn') and name.startswith('backbone.') and len(shape) == 4 else 2.0
        if name.rpartition('.')[2].startswith(('weight_ih', 'weight_hh')):
            gain *= shape[0] / shape[1]
        values = draw(name, shape, gain)
        if name.endswith('.embedding.weight'):
            values[0 if self.name == 'ppocrv4_rec' else -1] = 0
        return 1 + values if name.endswith('.scale') else values

    def loss(self, outputs: Any) -> Loss:
        if isinstance(outputs, dict):
            of_each = {name: Multi()(outputs[name], self.texts) for name in ('student', 'teacher')}
            own = {f'{term}_{name}': value for name, loss in of_each.items() for term, value in loss.items()}
            return {**own, **DML(output='ctc')(outputs), **DML(output='sar', weight=0.5)(outputs), **FeatureDistance()(outputs)}
        if outputs.nrtr is not None:
            return {**CTC()(outputs, self.texts), **NRTR()(outputs, self.texts)}
        return (CTC() if outputs.sar is None else Multi())(outputs, self.texts)

    def by_original_name(self, model: nn.Module, tensors: Callable[[nn.Module], Any]) -> dict[str, Tensor]:
        """The named `tensors` of `model`, under their original names and in the original layout."""
        found = {}
        for prefix, network in self.networks(model).items():
            original = original_of(network)
            linear = {f'{name}.weight' for name, module in network.named_modules() if isinstance(module, nn.Linear)}
            for name, tensor in tensors(network):
                theirs = f'{prefix}.{original.name(name)}'.removeprefix('.')
                found[theirs] = tensor.T if name in linear else tensor
        return found

    def assert_close(self, key: str, ours: Tensor, atol: float = 1e-4) -> None:
        """Within 1e-4 of the largest value, or 5 times the distance between the original's own float32 and float64 runs."""
        entry = self.facts['arrays'][key]
        assert list(ours.shape) == entry['shape']
        expected = self.arrays[key]
        tolerance = max(atol, 5 * entry['noise']) * float(np.abs(expected).max())
        values: npt.NDArray[Any] = ours.detach().reshape(-1)[:: entry['stride']].numpy()
        np.testing.assert_allclose(values, expected, rtol=0, atol=tolerance, err_msg=key)


@pytest.fixture(scope='module', params=NETWORKS)
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.param)


@dataclass
class Trained:
    """Float64 optimizer steps on one batch; terms and gradients are those of the first step."""

    terms: dict[str, float]
    gradients: dict[str, Tensor]
    losses: list[float]


@pytest.fixture(scope='module')
def trained(golden: Golden) -> Trained:
    model = golden.network(torch.float64).train()
    decays = golden.facts['l2_regularizer']
    special = {name: float(factor) for factor, names in decays['param_level_override'].items() for name in names}
    parameters = golden.by_original_name(model, nn.Module.named_parameters)
    weight_decay = {name: special.get(name, decays['global_factor']) for name in parameters}
    ours = [p for network in golden.networks(model).values() for p in network.parameters()]
    slow = {name: float(factor) for factor, names in golden.facts.get('lr_factors', {}).items() for name in names}
    groups = [
        {'params': [p], 'weight_decay': decay, 'factor': slow.get(name, 1.0)}
        for p, (name, decay) in zip(ours, weight_decay.items(), strict=True)
    ]
    optimizer = torch.optim.Adam(groups)
    terms, gradients, losses = {}, {}, []
    for step in range(STEPS[golden.name]):
        loss = golden.loss(model(golden.images.double(), golden.texts))
        values = {name: term.total / term.weight for name, term in loss.items()}
        optimizer.zero_grad()
        total = torch.stack(list(values.values())).sum()
        total.backward()
        if step == 0:
            terms = {name: value.item() for name, value in values.items()}
            gradients = golden.by_original_name(model, lambda network: ((n, p.grad) for n, p in network.named_parameters()))
            gradients = {name: gradient.clone() for name, gradient in gradients.items()}
        for group in optimizer.param_groups:
            group['lr'] = golden.facts['lr'][step] * group['factor']
        optimizer.step()
        losses.append(total.item())
    return Trained(terms, gradients, losses)


def inner_maps(golden: Golden, model: nn.Module) -> dict[str, Tensor]:
    """Inner feature maps of a network in evaluation, by the names of the golden arrays."""
    features = model(golden.images, golden.texts).features
    if isinstance(model, CRNN):
        sequence, _ = model.neck(features.squeeze(2).transpose(1, 2))
        return {'eval/backbone_out': features, 'eval/neck_out': sequence}
    return {'eval/backbone_out': features, 'eval/ctc_neck': model.neck(features)}


def test_evaluation_outputs_match_the_original(golden: Golden) -> None:
    model = golden.network().eval()
    with torch.no_grad():
        outputs: Outputs = model(golden.images)
        assert outputs.sar is None and outputs.nrtr is None and outputs.features is None
        if isinstance(model, DistillationModel):  # the outputs are the student's
            golden.assert_close('eval/Student.head_out_ctc_softmax', outputs.ctc.softmax(2))
            teacher = model.networks['teacher'](golden.images)
            golden.assert_close('eval/Teacher.head_out_ctc_softmax', teacher.ctc.softmax(2))
            return
        golden.assert_close('eval/logits' if isinstance(model, CRNN) else 'eval/ctc_logits', outputs.ctc)
        for key, inner in inner_maps(golden, model).items():
            golden.assert_close(key, inner)


def test_training_outputs_and_running_statistics_match_the_original(golden: Golden) -> None:
    model = golden.network().train()
    outputs = model(golden.images, golden.texts)
    if isinstance(model, CRNN):
        golden.assert_close('train/head_out_logits', outputs.ctc)
    else:
        for prefix, each in ({'': outputs} if isinstance(outputs, Outputs) else outputs).items():
            place = f'train/{prefix.capitalize()}.' if prefix else 'train/'
            golden.assert_close(f'{place}ctc_logits', each.ctc)
            if isinstance(model, SVTRLCNetV3):
                length = 1 + int(golden.texts.lengths.max())  # the original stops there
                golden.assert_close(f'{place}gtc_logits', each.nrtr[:, :length])
            else:
                golden.assert_close(f'{place}sar_logits', each.sar)
            if prefix:
                golden.assert_close(f'{place}backbone_out', each.features)
    running = golden.by_original_name(model, nn.Module.named_buffers)
    for key in golden.arrays:
        if key.startswith('bn_after_one_train_forward/'):
            golden.assert_close(key, running[key.removeprefix('bn_after_one_train_forward/')], atol=1e-6)


@TRAINED
def test_every_loss_term_matches_the_original(golden: Golden, trained: Trained) -> None:
    expected = golden.facts['train_losses_f64']
    if len(trained.terms) == 1:
        assert trained.terms == {'ctc': pytest.approx(expected['loss'], rel=1e-8)}
    else:
        assert {TERMS[name] for name in trained.terms} == expected.keys() - {'loss'}
        for name, value in trained.terms.items():
            assert value == pytest.approx(expected[TERMS[name]], rel=1e-7), name


@TRAINED
def test_gradients_match_the_original(golden: Golden, trained: Trained) -> None:
    for key in golden.arrays:
        if key.startswith('grad/'):
            golden.assert_close(key, trained.gradients[key.removeprefix('grad/')], atol=1e-5)


@TRAINED
def test_every_gradient_norm_matches_the_original(golden: Golden, trained: Trained) -> None:
    """Except biases before a norm or a softmax, whose gradient is rounding noise. Expected norms are of a float32 run."""
    noise = set(golden.facts['grad_mathematically_zero'])
    assert trained.gradients.keys() == golden.facts['grad_l2_all'].keys()
    for name, expected in golden.facts['grad_l2_all'].items():
        if name not in noise:
            assert trained.gradients[name].norm().item() == pytest.approx(expected, rel=2e-3), name


@TRAINED
def test_optimizer_steps_match_the_original(golden: Golden, trained: Trained) -> None:
    expected = golden.facts['optim_trace_f64_loss'][: STEPS[golden.name]]
    assert trained.losses == pytest.approx(expected, rel=1e-7)


def test_a_text_that_does_not_fit_the_line_has_loss_zero_as_in_the_original() -> None:
    """25 equal characters need 24 blanks between them, but the line has 25 time steps."""
    golden = Golden('crnn_mv3')
    case = golden.facts['ctc_infeasible_case']
    logits = golden.network().train()(golden.images).ctc.detach()
    for row, (loss, gradient) in enumerate(zip(case['loss'], case['grad_abs_sum_per_sample'], strict=True)):
        sample = logits[row : row + 1].clone().requires_grad_()
        label, length = (torch.tensor(case[key][row])[None] for key in ('labels', 'lengths'))
        texts = Texts(label, length, torch.zeros(0), torch.ones(1))
        total, *_ = CTC()(Outputs(sample), texts)['ctc']
        total.backward()
        assert sample.grad is not None
        assert total.item() == pytest.approx(loss, rel=1e-5)
        assert sample.grad.abs().sum().item() == pytest.approx(gradient, rel=1e-4)


@pytest.mark.parametrize('name', ['crnn_mv3', 'crnn_ch_lite'])
def test_ctc_of_each_text_matches_the_original(name: str) -> None:
    golden = Golden(name)
    logits = golden.network(torch.float64).train()(golden.images.double()).ctc
    for row, expected in enumerate(golden.facts['ctc_per_sample']):
        texts = golden.texts[row : row + 1]
        total, weight, _ = CTC()(Outputs(logits[row : row + 1]), texts)['ctc']
        assert (total / weight).item() == pytest.approx(expected, rel=1e-5)
