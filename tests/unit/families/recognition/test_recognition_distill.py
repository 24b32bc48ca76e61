"""Distillation and mutual learning. Expected numbers come from torch's own divergence and mean squared error."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.config.read import ConfigError
from phalanx.engine.job import open_job
from phalanx.engine.optim.groups import Parameters, parameter_groups
from phalanx.families.distillation import DML, DistillationModel, FeatureDistance
from phalanx.parallel.norms import BatchNorm2d
from phalanx.system.errors import RunError


class Outputs(NamedTuple):
    logits: Tensor
    features: Tensor
    sar: Tensor | None = None


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 4, 1), BatchNorm2d(4), nn.Linear(4, 5)

    def forward(self, images: Tensor) -> Outputs:
        features = self.norm(self.conv(images))
        return Outputs(self.head(features.mean(2).transpose(1, 2)), features)


def networks() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {'student': Network(), 'teacher': Network()}


IMAGES = torch.randn(6, 3, 4, 7, generator=torch.Generator().manual_seed(0))


def test_a_frozen_teacher_does_not_change() -> None:
    model = DistillationModel(networks(), frozen=('teacher',)).train()
    before = {name: tensor.clone() for name, tensor in model.networks['teacher'].state_dict().items()}
    student = model.student.head.weight.detach().clone()
    groups = parameter_groups(model, Parameters())
    optimizer = torch.optim.Adam(groups, lr=0.1, weight_decay=0.1)
    for _ in range(3):
        outputs = model(IMAGES)
        assert not outputs['teacher'].logits.requires_grad
        terms = {**DML(output='logits')(outputs), **FeatureDistance()(outputs)}
        torch.stack([term.total / term.weight for term in terms.values()]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not model.networks['teacher'].training and model.student.training
    torch.testing.assert_close(model.networks['teacher'].state_dict(), before, rtol=0, atol=0)
    assert not torch.equal(model.student.head.weight, student)


def test_networks_that_are_not_frozen_are_both_trained() -> None:
    model = DistillationModel(networks())
    DML(output='logits')(model(IMAGES))['dml_logits_student_teacher'].total.backward()
    for network in model.networks.values():
        assert network.head.weight.grad is not None and network.head.weight.grad.abs().max() > 0


def test_evaluation_returns_the_outputs_of_the_student_alone() -> None:
    model = DistillationModel(networks()).eval()
    torch.testing.assert_close(model(IMAGES), model.networks['student'](IMAGES))
    assert model.student is model.networks['student']


def test_mutual_learning_is_the_mean_of_both_divergences_per_sample() -> None:
    outputs = DistillationModel(networks())(IMAGES)
    first, second = (outputs[name].logits.log_softmax(2) for name in ('student', 'teacher'))
    both = [F.kl_div(a, b, reduction='sum', log_target=True) for a, b in ((first, second), (second, first))]
    total, weight, _ = DML(output='logits', weight=3.0)(outputs)['dml_logits_student_teacher']
    assert weight == 6
    assert (total / weight).item() == pytest.approx(3 * (both[0] + both[1]).item() / 2 / 6, rel=1e-5)


def test_mutual_learning_of_equal_networks_has_loss_zero() -> None:
    outputs = {'student': Outputs(torch.full((2, 3, 4), 50.0), IMAGES), 'teacher': Outputs(torch.full((2, 3, 4), 50.0), IMAGES)}
    assert DML(output='logits')(outputs)['dml_logits_student_teacher'].total.item() == pytest.approx(0, abs=1e-6)
    assert FeatureDistance()(outputs)['distance_features_student_teacher'].total == 0


def test_probabilities_of_zero_have_a_large_finite_loss() -> None:
    """By hand: the divergence of 1 from 1e-10 is log(1e10), in both directions."""
    sure = torch.tensor([[[1000.0, 0.0]]])
    outputs = {'student': Outputs(sure, IMAGES), 'teacher': Outputs(sure.flip(2), IMAGES)}
    total, *_ = DML(output='logits')(outputs)['dml_logits_student_teacher']
    assert total.item() == pytest.approx(23.03, rel=1e-3)


def test_the_distance_is_the_mean_squared_error() -> None:
    outputs = DistillationModel(networks())(IMAGES)
    total, weight, _ = FeatureDistance(weight=0.5)(outputs)['distance_features_student_teacher']
    expected = 0.5 * F.mse_loss(outputs['student'].features, outputs['teacher'].features)
    assert (total / weight).item() == pytest.approx(expected.item(), rel=1e-6)


def test_unknown_names_are_reported() -> None:
    with pytest.raises(ValueError, match=r"^the networks of the distillation are student, teacher; there is no 'techer'$"):
        DistillationModel(networks(), frozen=('techer',))
    with pytest.raises(ValueError, match=r"^'student' is the network that learns, so it cannot be frozen$"):
        DistillationModel(networks(), frozen=('student',))
    keys = ('networks={teacher: {name: crnn}}', 'between=[{name: dml, output: logits, between: [student, tutor]}]')
    with pytest.raises(ConfigError, match=r"between: there is no network 'tutor'; there are student, teacher$"):
        open_job('crnn_digits', [(key, key) for key in keys])
    outputs = DistillationModel(networks())(IMAGES)
    with pytest.raises(RunError, match=r"^between: the network 'student' has no output 'sar'; it has logits, features$"):
        DML(output='sar')(outputs)


def test_outputs_of_different_shapes_are_reported() -> None:
    """Otherwise they would be broadcast silently."""
    outputs = {'student': Outputs(torch.zeros(2, 1, 4), IMAGES), 'teacher': Outputs(torch.zeros(2, 3, 4), IMAGES)}
    message = r"^between: student and teacher give 'logits' of different shapes, \[2, 1, 4\] and \[2, 3, 4\]$"
    with pytest.raises(RunError, match=message):
        DML(output='logits')(outputs)
