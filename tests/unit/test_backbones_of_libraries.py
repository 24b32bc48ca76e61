"""Backbones filled from a file of timm give what timm's network gives, with random weights and statistics."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from phalanx.families.segmentation.models.deeplabv3p import deeplabv3p
from phalanx.families.segmentation.models.ocrnet import ocrnet
from phalanx.weights.reading import load_weights

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
    model = deeplabv3p(2, backbone='resnet50_vd')
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
    model = deeplabv3p(2, backbone='xception65')
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
