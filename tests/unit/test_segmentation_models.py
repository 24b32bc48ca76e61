"""What every segmentation network promises, over the whole catalog and its options."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from phalanx.norms import BatchNorm2d
from phalanx.segmentation.models import MODELS

VARIANTS: dict[str, Callable[[int], nn.Module]] = {
    'pp_liteseg': MODELS['pp_liteseg'],
    'pp_liteseg on stdc2': lambda num_classes: MODELS['pp_liteseg'](num_classes, backbone='stdc2'),
    'pp_liteseg, other channels': lambda num_classes: MODELS['pp_liteseg'](
        num_classes, arm_channels=(16, 24, 32), head_channels=(8, 12, 16)
    ),
    'unet': MODELS['unet'],
    'unet, transposed': lambda num_classes: MODELS['unet'](num_classes, upsampling='transposed'),
}


@pytest.fixture(scope='module', params=VARIANTS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return VARIANTS[request.param](4)


@pytest.mark.parametrize('size', [(32, 32), (37, 50), (45, 33)])
def test_logits_have_the_size_of_the_images(model: nn.Module, size: tuple[int, int]) -> None:
    images = torch.rand(2, 3, *size)
    with torch.no_grad():
        assert [logits.shape for logits in model.train()(images)] == [(2, 4, *size)] * model.num_outputs
        assert [logits.shape for logits in model.eval()(images)] == [(2, 4, *size)]


def test_every_parameter_takes_part_in_training(model: nn.Module) -> None:
    model.train()
    sum(logits.square().mean() for logits in model(torch.rand(2, 3, 32, 32))).backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []


def test_every_norm_can_be_synchronised(model: nn.Module) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert all(type(norm) is BatchNorm2d for norm in norms)


def test_a_fresh_network_finds_no_class_much_likelier_than_another(model: nn.Module) -> None:
    """Logits of a standard deviation of order 1 cost about log(4) a pixel; a bad initialisation costs several times that."""
    with torch.no_grad():
        outputs = model.train()(torch.randn(2, 3, 64, 64))
    labels = torch.zeros(2, 64, 64, dtype=torch.int64)
    assert all(nn.functional.cross_entropy(logits, labels) < 3 for logits in outputs)
