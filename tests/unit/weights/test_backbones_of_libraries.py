"""Backbones filled from a file of another library give what its network gives, with random weights and statistics."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.recognition.models.crnn import CRNN
from phalanx.families.segmentation.models.deeplabv3p import deeplabv3p
from phalanx.families.segmentation.models.ocrnet import ocrnet
from phalanx.families.segmentation.models.pp_liteseg import pp_liteseg
from phalanx.families.segmentation.models.segformer import segformer
from phalanx.families.text_detection.models.db import db
from phalanx.nn.backbones import BACKBONES
from phalanx.weights.reading import compare_weights, load_weights

timm = pytest.importorskip('timm', reason='timm, whose networks are the measure here, is not installed')


def saved_random(name: str, folder: Path) -> tuple[nn.Module, Path]:
    """A classifier of timm with weights at random, statistics of norms too, and its file."""
    torch.manual_seed(0)
    theirs = timm.create_model(name, num_classes=2)
    for module in theirs.modules():
        if isinstance(module, nn.BatchNorm2d):
            for tensor in (module.weight, module.running_var):
                nn.init.uniform_(tensor, 0.5, 1.5)
            for tensor in (module.bias, module.running_mean):
                nn.init.normal_(tensor, std=0.1)
    path = folder / f'{name}.pth'
    torch.save(theirs.state_dict(), path)
    return theirs.eval(), path


def agree(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    scale = float(theirs.abs().max())
    assert scale > 0 and torch.allclose(ours / scale, theirs / scale, atol=1e-5)


@torch.no_grad()
def test_resnet_vd_is_resnet_d_of_timm(tmp_path: Path) -> None:
    """Ours keeps maps at 1/8 of the size: where timm halves, it spreads the windows instead. Theirs is made to do the same."""
    theirs, path = saved_random('resnet50d', tmp_path)
    model = deeplabv3p(2, backbone=partial(BACKBONES['resnet50_vd']))
    assert len(load_weights(model, path, part='backbone').fits[0].left_over) == 2  # the classifier
    images = torch.randn(1, 3, 64, 96)
    for stage, dilations in ((theirs.layer3, [2] * 6), (theirs.layer4, [4, 8, 16])):
        stage[0].downsample[0] = nn.Identity()
        for block, dilation in zip(stage, dilations, strict=True):
            block.conv2.stride, block.conv2.dilation, block.conv2.padding = (1, 1), (dilation,) * 2, (dilation,) * 2
    x = theirs.maxpool(theirs.act1(theirs.bn1(theirs.conv1(images))))
    for ours, stage in zip(
        model.eval().backbone(images), (theirs.layer1, theirs.layer2, theirs.layer3, theirs.layer4), strict=True
    ):
        x = stage(x)
        agree(ours, x)


@torch.no_grad()
def test_hrnet_is_that_of_timm(tmp_path: Path) -> None:
    """On 65 x 65, where all maps have odd sizes (33, 17, 9, 5, 3): on even ones PaddleSeg pads one side, timm both.

    The finest map holds all branches; timm enlarges the coarser ones by whole factors, so they are compared before that.
    """
    theirs, path = saved_random('hrnet_w18', tmp_path)
    model = ocrnet(2)
    taken = load_weights(model, path, part='backbone')
    assert not taken.fits[0].missing and not taken.fits[0].misshapen
    backbone = model.eval().backbone
    images = torch.randn(1, 3, 65, 65)
    x = theirs.act2(theirs.bn2(theirs.conv2(theirs.act1(theirs.bn1(theirs.conv1(images))))))
    x, ours = theirs.layer1(x), backbone.first(backbone.stem(images))
    agree(ours, x)
    finest, coarser = theirs.transition1[0](x), theirs.transition1[1](x)
    agree(backbone.finest(ours), finest)
    agree(backbone.joining[0](ours), coarser)
    for branch, mine, y in zip(theirs.stage2[0].branches, backbone.stages[0][0].branches, (finest, coarser), strict=True):
        agree(mine(y), branch(y))
    sums, fuse = backbone.stages[2][2].sums, theirs.stage4[2].fuse_layers
    maps = [torch.randn(1, 18 << n, size, size) for n, size in enumerate((17, 9, 5, 3))]
    for end in range(1, 4):
        for start in range(end):
            agree(sums[end].paths[start](maps[start]), fuse[end][start](maps[start]))
    agree(sums[0].paths[3](maps[3]), fuse[0][3][:2](maps[3]))


@torch.no_grad()
def test_xception_is_that_of_timm(tmp_path: Path) -> None:
    """Ours keeps maps at 1/16 of the size: its exit does not halve, and its last windows are spread."""
    theirs, path = saved_random('xception65', tmp_path)
    model = deeplabv3p(2, backbone=partial(BACKBONES['xception65']))
    load_weights(model, path, part='backbone')
    for conv in (theirs.blocks[19].shortcut.conv, theirs.blocks[19].stack.conv3.conv_dw):
        conv.stride = (1, 1)
    for part in theirs.blocks[20].stack:
        part.conv_dw.dilation = part.conv_dw.padding = (2, 2)
    images = torch.randn(1, 3, 64, 64)
    fine, coarse = model.eval().backbone(images)
    x = theirs.stem(images)
    agree(fine, theirs.blocks[0](x))
    agree(coarse, theirs.blocks(x))


def as_on_the_hub(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of SegFormer's authors under the names that transformers gave them, which has keys and values apart."""
    names = {
        r'patch_embed(\d)\.(proj|norm)': lambda m: f'patch_embeddings.{int(m[1]) - 1}.{m[2].replace("norm", "layer_norm")}',
        r'^block(\d)\.': lambda m: f'block.{int(m[1]) - 1}.',
        r'^norm(\d)\.': lambda m: f'layer_norm.{int(m[1]) - 1}.',
        r'\.norm([12])\.': r'.layer_norm_\1.',
        r'attn\.q\.': 'attention.self.query.',
        r'attn\.proj\.': 'attention.output.dense.',
        r'attn\.sr\.': 'attention.self.sr.',
        r'attn\.norm\.': 'attention.self.layer_norm.',
        r'mlp\.fc([12])\.': r'mlp.dense\1.',
    }
    found = {}
    for name, tensor in weights.items():
        for pattern, replacement in names.items():
            name = re.sub(pattern, replacement, name)
        if '.attn.kv.' in name:
            for part, half in zip(('key', 'value'), tensor.chunk(2), strict=True):
                found['segformer.encoder.' + name.replace('attn.kv.', f'attention.self.{part}.')] = half.clone()
        else:
            found[f'segformer.encoder.{name}'] = tensor
    return found | {'decode_head.classifier.weight': torch.zeros(150, 256, 1, 1)}


@pytest.mark.parametrize('named', [lambda weights: weights, as_on_the_hub], ids=['of its authors', 'of transformers'])
@torch.no_grad()
def test_mit_is_that_of_segformers_authors(tmp_path: Path, named: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Theirs as segmentation_models_pytorch has it."""
    smp = pytest.importorskip(
        'segmentation_models_pytorch.encoders', reason='segmentation_models_pytorch, whose MiT is the measure, is not installed'
    )
    torch.manual_seed(0)
    theirs = smp.get_encoder('mit_b0', weights=None).eval()
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.1)
    torch.save(named(theirs.state_dict()), tmp_path / 'mit_b0.pth')
    model = segformer(2, backbone=partial(BACKBONES['mit_b0']))
    fit = load_weights(model, tmp_path / 'mit_b0.pth', part='backbone').fits[0]
    assert not fit.missing and not fit.misshapen
    images = torch.randn(1, 3, 64, 96)
    for ours, other in zip(model.eval().backbone(images), theirs(images)[-4:], strict=True):
        agree(ours, other)


class PublishedSTDC:
    """STDC813 by the names and shapes of its authors' files, with random weights, as they compute it."""

    stages = ((64, 256), (256, 256), (256, 512), (512, 512), (512, 1024), (1024, 1024))  # from the third part on

    def __init__(self) -> None:
        self.weights: dict[str, Tensor] = {}
        self.conv('features.0', 3, 32, 3)
        self.conv('features.1', 32, 64, 3)
        for place, (before, after) in enumerate(self.stages, 2):
            half = after // 2
            if before != after:
                self.weights[f'features.{place}.avd_layer.0.weight'] = torch.randn(half, 1, 3, 3) / 3
                self.norm(f'features.{place}.avd_layer.1', half)
            sizes = ((before, half, 1), (half, half // 2, 3), (half // 2, half // 4, 3), (half // 4, half // 4, 3))
            for number, size in enumerate(sizes):
                self.conv(f'features.{place}.conv_list.{number}', *size)
        self.conv('conv_last', 1024, 1024, 1)
        self.weights['linear.weight'] = torch.randn(1000, 1024)

    def conv(self, name: str, before: int, after: int, size: int) -> None:
        self.weights[f'{name}.conv.weight'] = torch.randn(after, before, size, size) / (before * size * size) ** 0.5
        self.norm(f'{name}.bn', after)

    def norm(self, name: str, channels: int) -> None:
        for part in ('weight', 'running_var'):
            self.weights[f'{name}.{part}'] = torch.empty(channels).uniform_(0.5, 1.5)
        for part in ('bias', 'running_mean'):
            self.weights[f'{name}.{part}'] = torch.randn(channels) / 10

    def normed(self, x: Tensor, name: str) -> Tensor:
        mean, var, weight, bias = (self.weights[f'{name}.{p}'] for p in ('running_mean', 'running_var', 'weight', 'bias'))
        return F.batch_norm(x, mean, var, weight, bias)

    def convolved(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
        kernel = self.weights[f'{name}.conv.weight']
        return F.relu(self.normed(F.conv2d(x, kernel, stride=stride, padding=kernel.shape[2] // 2), f'{name}.bn'))

    def __call__(self, images: Tensor) -> list[Tensor]:
        x = self.convolved(images, 'features.0', 2)
        maps = [x, self.convolved(x, 'features.1', 2)]
        x = maps[-1]
        for place, (before, after) in enumerate(self.stages, 2):
            first = x = self.convolved(x, f'features.{place}.conv_list.0')
            if before != after:
                kernel = self.weights[f'features.{place}.avd_layer.0.weight']
                x = self.normed(F.conv2d(x, kernel, stride=2, padding=1, groups=len(kernel)), f'features.{place}.avd_layer.1')
                first = F.avg_pool2d(first, 3, 2, 1)
            parts = [first]
            for number in range(1, 4):
                x = self.convolved(x, f'features.{place}.conv_list.{number}')
                parts.append(x)
            x = torch.cat(parts, 1)
            if before == after:
                maps.append(x)
        return maps


@torch.no_grad()
def test_stdc_is_that_of_its_authors(tmp_path: Path) -> None:
    """PaddleSeg's averages leave out the zeros around a map, theirs count them: at the border the maps differ. Ours counts them
    here."""
    torch.manual_seed(0)
    theirs = PublishedSTDC()
    torch.save({'state_dict': theirs.weights}, tmp_path / 'STDCNet813M_73.91.tar')
    model = pp_liteseg(2, backbone=partial(BACKBONES['stdc1']))
    fit = load_weights(model, tmp_path / 'STDCNet813M_73.91.tar', part='backbone').fits[0]
    assert not fit.missing and not fit.misshapen
    for module in model.modules():
        if isinstance(module, nn.AvgPool2d):
            module.count_include_pad = True
    images = torch.randn(1, 3, 64, 96)
    for ours, other in zip(model.eval().backbone(images), theirs(images), strict=True):
        agree(ours, other)


@pytest.mark.parametrize(
    ('ours', 'theirs', 'reason'),
    [
        (
            lambda: deeplabv3p(2, backbone=partial(BACKBONES['resnet50_vd'])),
            lambda: torchvision.models.resnet50(),
            "is a plain ResNet.* timm's resnet50d",
        ),
        (
            lambda: deeplabv3p(2, backbone=partial(BACKBONES['resnet50_vd'])),
            lambda: timm.create_model('resnet50'),
            'is a plain ResNet',
        ),
        (lambda: db(), lambda: torchvision.models.mobilenet_v3_large(), 'no expansion convolution, .* slope 1/6, not 0.2'),
        (lambda: CRNN(10), lambda: timm.create_model('mobilenetv3_large_100'), 'is a MobileNetV3 of timm or torchvision'),
    ],
    ids=['resnet50 of torchvision', 'resnet50 of timm', 'MobileNetV3 of torchvision', 'MobileNetV3 of timm'],
)
def test_networks_of_the_same_name_that_are_others_are_refused_with_the_reason(
    ours: Callable[[], nn.Module], theirs: Callable[[], nn.Module], reason: str
) -> None:
    with torch.device('meta'):
        model, weights = ours(), theirs().state_dict()
    with pytest.raises(ValueError, match=reason):
        compare_weights(model, weights, 'backbone')
