"""The contract of every segmentation network, over the whole catalog and its options."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torchvision
from torch import nn
from torchvision.models.segmentation.lraspp import LRASPPHead

from phalanx.families.segmentation.models import MODELS
from phalanx.families.segmentation.models.lraspp import LRASPP
from phalanx.nn.backbones import BACKBONES
from phalanx.nn.backbones.mobilenet_v2 import MobileNetV2, mobilenet_v2
from phalanx.nn.backbones.resnet_vd import resnet50_vd
from phalanx.nn.layers import use_group_norms
from phalanx.paddle.weights import original_of
from phalanx.parallel.norms import BatchNorm2d

VARIANTS: dict[str, Callable[[int], nn.Module]] = {
    'pp_liteseg': MODELS['pp_liteseg'],
    'pp_liteseg on stdc2': lambda num_classes: MODELS['pp_liteseg'](num_classes, backbone=partial(BACKBONES['stdc2'])),
    'pp_liteseg, other channels': lambda num_classes: MODELS['pp_liteseg'](
        num_classes, arm_channels=(16, 24, 32), head_channels=(8, 12, 16)
    ),
    'unet': MODELS['unet'],
    'unet, transposed': lambda num_classes: MODELS['unet'](num_classes, upsampling='transposed'),
    'ocrnet': MODELS['ocrnet'],
    'segformer': MODELS['segformer'],
    'deeplabv3p': MODELS['deeplabv3p'],
    'deeplabv3p on resnet50_vd': lambda num_classes: MODELS['deeplabv3p'](num_classes, backbone=partial(resnet50_vd)),
    'deeplabv3p on mobilenet_v2': lambda num_classes: MODELS['deeplabv3p'](num_classes, backbone=partial(mobilenet_v2)),
    'deeplabv3p, its backbone alone': lambda num_classes: MODELS['deeplabv3p'](
        num_classes, backbone=partial(mobilenet_v2), pyramid=False, decoder=False
    ),
    'deeplabv3p, group norms': lambda num_classes: MODELS['deeplabv3p'](num_classes, norm_groups=32),
    'lraspp': MODELS['lraspp'],
    'lraspp, windows': lambda num_classes: MODELS['lraspp'](num_classes, window=33),
}
SEGFORMER_MILLIONS = {'mit_b0': 3.8, 'mit_b1': 13.7, 'mit_b2': 27.5, 'mit_b3': 47.3, 'mit_b4': 64.1, 'mit_b5': 84.7}


@pytest.fixture(scope='module', params=VARIANTS)
def model(request: pytest.FixtureRequest) -> nn.Module:
    torch.manual_seed(0)
    return VARIANTS[request.param](4)


def test_the_whole_catalog_is_tested() -> None:
    assert {variant.split(',')[0].split(' ')[0] for variant in VARIANTS} == MODELS.keys()


@pytest.mark.parametrize('size', [(32, 32), (45, 34)])  # at (65, 97) one more is evaluated below
def test_logits_have_the_size_of_the_images(model: nn.Module, size: tuple[int, int]) -> None:
    images = torch.rand(2, 3, *size)
    with torch.no_grad():
        assert [logits.shape for logits in model.train()(images)] == [(2, 4, *size)] * model.num_outputs
        assert [logits.shape for logits in model.eval()(images)] == [(2, 4, *size)]


def test_every_parameter_takes_part_in_a_training_step(model: nn.Module) -> None:
    trained = copy.deepcopy(model).train()
    outputs = trained(torch.randn(2, 3, 45, 34))
    labels = torch.randint(0, 4, (2, 45, 34))
    torch.stack([nn.functional.cross_entropy(logits, labels) for logits in outputs]).sum().backward()
    assert [name for name, parameter in trained.named_parameters() if parameter.grad is None] == []
    torch.optim.SGD(trained.parameters(), lr=0.01).step()
    with torch.no_grad():
        (logits,) = trained.eval()(torch.randn(1, 3, 65, 97))
    assert logits.isfinite().all()


def test_every_norm_can_be_synchronised(model: nn.Module) -> None:
    norms = [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    assert all(type(norm) is BatchNorm2d for norm in norms)


def test_dropout_is_a_function_of_step_and_sample(model: nn.Module) -> None:
    """By `phalanx.nn.stochastic`; torch's own dropout is not."""
    assert not [module for module in model.modules() if isinstance(module, nn.modules.dropout._DropoutNd)]


def test_initial_logits_are_small(model: nn.Module) -> None:
    """Logits of a standard deviation of order 1 cost about log(4) per pixel; a bad initialisation costs several times that."""
    with torch.no_grad():
        outputs = model.train()(torch.randn(2, 3, 64, 64))
    labels = torch.zeros(2, 64, 64, dtype=torch.int64)
    assert all(nn.functional.cross_entropy(logits, labels) < 3 for logits in outputs)


def test_every_tensor_maps_to_a_unique_original_name(model: nn.Module) -> None:
    if isinstance(model, LRASPP):
        pytest.skip('its weights were published for PaddleSeg 0.x alone, whose files are not read')
    original = original_of(model)
    names = [original.name(name) for name in model.state_dict()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize('backbone', SEGFORMER_MILLIONS)
def test_segformer_is_as_large_as_published(backbone: str) -> None:
    """Million parameters on ADE20K, which has 150 classes: table 1 of the paper."""
    with torch.device('meta'):
        model = MODELS['segformer'](150, backbone=partial(BACKBONES[backbone]))
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    assert millions == pytest.approx(SEGFORMER_MILLIONS[backbone], abs=0.05)


def test_drop_path_grows_linearly_to_the_last_block() -> None:
    """The probabilities of PaddleSeg for the eight blocks of B0."""
    with torch.device('meta'):
        model = MODELS['segformer'](2, backbone=partial(BACKBONES['mit_b0'], drop_path=0.1))
    drops = [block.drop_path.p for stage in model.backbone.stages for block in stage.blocks]
    assert drops == pytest.approx([0, 0.0142857, 0.0285714, 0.0428571, 0.0571429, 0.0714286, 0.0857143, 0.1], abs=1e-6)


def test_resnet_vd_at_output_stride_8_keeps_stride_8() -> None:
    with torch.no_grad():
        maps = resnet50_vd((4, 8)).eval()(torch.rand(1, 3, 65, 97))
    assert [tuple(x.shape[1:]) for x in maps] == [(256, 17, 25), (512, 9, 13), (1024, 9, 13), (2048, 9, 13)]


@pytest.mark.parametrize(('stride', 'sizes'), [(16, [(9, 13), (5, 7), (5, 7)]), (32, [(9, 13), (5, 7), (3, 4)])])
def test_other_output_strides_of_resnet_vd_have_coarser_maps(stride: int, sizes: list[tuple[int, int]]) -> None:
    with torch.no_grad():
        maps = resnet50_vd((4, stride)).eval()(torch.rand(1, 3, 65, 97))
    assert [tuple(x.shape[2:]) for x in maps[1:]] == sizes


def test_the_multi_grid_dilations_of_resnet_vd_are_those_of_paddleseg_0() -> None:
    """Dilations 2, 4 and 8 at an output stride of 16, where its release 0.8 multiplies the stage's 2 by 1, 2 and 4."""
    *_, last = resnet50_vd((4, 16)).stages
    assert [block.spatial.conv.dilation[0] for block in last] == [2, 4, 8]


@torch.no_grad()
def test_mobilenet_v2_is_that_of_torchvision() -> None:
    """Except for the expansion convolution of the first block: set to identity, it is the same network."""
    torch.manual_seed(0)
    theirs = torchvision.models.mobilenet_v2(num_classes=2).eval()
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
    ours = MobileNetV2(output_stride=32).eval()
    nn.init.dirac_(ours.groups[0][0].widen.conv.weight)
    norm = ours.groups[0][0].widen.norm
    norm.running_var.fill_(1 - norm.eps)
    mine = [tensor for name, tensor in ours.state_dict().items() if not name.startswith('groups.0.0.widen')]
    for tensor, other in zip(mine, theirs.features[:18].state_dict().values(), strict=True):
        tensor.copy_(other)
    images = torch.randn(1, 3, 65, 97)
    fine, coarse = ours(images)
    inner = theirs.features[3].conv[:2](theirs.features[:3](images))
    torch.testing.assert_close(fine, inner, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(coarse, theirs.features[:18](images), atol=1e-5, rtol=1e-4)


@torch.no_grad()
def test_the_head_of_lraspp_is_that_of_torchvision() -> None:
    """Given the same two maps; except for its sigmoid, a hard one here, and biases of the classifiers, zero there."""
    torch.manual_seed(0)
    ours = MODELS['lraspp'](4).eval()
    theirs = LRASPPHead(120, 480, 4, 128).eval()
    theirs.scale[2] = nn.Hardsigmoid()
    seen: dict[str, torch.Tensor] = {}
    ours.backbone.last.register_forward_hook(lambda module, inputs, output: seen.update(high=output))
    ours.classify_fine.register_forward_hook(lambda module, inputs, output: seen.update(low=inputs[0]))
    ours.mix.norm.running_var.uniform_(0.5, 1.5)
    images = torch.rand(1, 3, 64, 96)
    (logits,) = ours(images)
    theirs.cbr[0].weight.copy_(ours.mix.conv.weight)
    theirs.cbr[1].running_var.copy_(ours.mix.norm.running_var)
    theirs.scale[1].weight.copy_(ours.weigh.weight)
    theirs.high_classifier.weight.copy_(ours.classify_coarse.weight)
    theirs.low_classifier.weight.copy_(ours.classify_fine.weight)
    theirs.high_classifier.bias.zero_()
    theirs.low_classifier.bias.zero_()
    expected = nn.functional.interpolate(theirs(seen), (64, 96), mode='bilinear')
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-4)


def test_group_norms_use_the_nearest_divisor_of_their_channels() -> None:
    """PaddleSeg 0.x takes the larger number first: 28 groups instead of 32 for 728 channels."""
    layers = nn.Sequential(*(BatchNorm2d(channels) for channels in (64, 728, 48)))
    use_group_norms(layers, 32)
    assert [(norm.num_groups, norm.num_channels) for norm in layers] == [(32, 64), (28, 728), (24, 48)]


def test_deeplab_with_aligned_corners_keeps_values_at_their_positions() -> None:
    """Of 65 pixels a fine map has 17 and a coarse one 9: every fourth and every eighth pixel, both corners among them."""
    torch.manual_seed(0)
    model = MODELS['deeplabv3p'](4, backbone=partial(resnet50_vd), align_corners=True).eval()
    seen: dict[str, torch.Tensor] = {}
    model.pyramid.register_forward_hook(lambda module, inputs, output: seen.update(coarse=output))
    model.decoder.register_forward_hook(lambda module, inputs, output: seen.update(mixed=inputs[0]))
    model.classify.register_forward_hook(lambda module, inputs, output: seen.update(logits=output))
    with torch.no_grad():
        (logits,) = model(torch.rand(1, 3, 65, 65))
    assert (seen['coarse'].shape[2], seen['logits'].shape[2]) == (9, 17)
    torch.testing.assert_close(seen['mixed'][:, :256, ::2, ::2], seen['coarse'])
    torch.testing.assert_close(logits[:, :, ::4, ::4], seen['logits'])


def test_the_linear_layers_of_segformer_are_initialised_as_in_paddle() -> None:
    """Glorot and Bengio 2010: uniform within sqrt(6 / (inputs + outputs)); biases are zero."""
    linear: Any = MODELS['segformer'](3).linear
    for layer in linear:
        bound = math.sqrt(6 / (layer.in_features + layer.out_features))
        assert 0.95 * bound < layer.weight.abs().max() <= bound
        assert not layer.bias.any()


def test_a_transposed_convolution_of_unet_makes_half_as_many_channels_as_its_level() -> None:
    """Channels as in PaddleSeg's `UpSampling` with `use_deconv`; the levels have 512, 256, 128, 64 and again 64 channels."""
    network: Any = MODELS['unet'](2, upsampling='transposed')
    assert [(block.enlarge.in_channels, block.enlarge.out_channels) for block in network.decoder] == [
        (512, 128),
        (256, 64),
        (128, 32),
        (64, 32),
    ]
