"""D-FINE and RT-DETRv2 beside transformers, with files that its `save_pretrained` writes.

transformers is not installed with the project: `pip install transformers` enables these tests. Its loss of D-FINE leaves out
the union of the matchings, and its RT-DETR passes no gradient from the boxes of a layer to the layer before, so losses and
gradients are compared with the code of the authors instead (`test_query_detectors.py`).
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any, cast

import pytest
import safetensors.torch
import torch
from torch import Tensor

from phalanx.families.detection.models import MODELS
from phalanx.families.detection.models.detr import DETR
from phalanx.weights.reading import compare_weights, load_weights

transformers: Any = pytest.importorskip('transformers', reason='transformers is not installed')
CLASSES = 7
FEW = {'num_queries': 40, 'num_labels': CLASSES, 'freeze_backbone_batch_norms': False}


def hgnetv2(stem: int, inner: list[int], out: list[int], blocks: int, layers: int, stages: range) -> Any:
    return transformers.HGNetV2Config(
        stem_channels=[3, stem, inner[0]],
        stage_in_channels=[inner[0], *out[:-1]],
        stage_mid_channels=inner,
        stage_out_channels=out,
        stage_num_blocks=[1, 1, blocks, 1],
        stage_numb_of_layers=[layers] * 4,
        hidden_sizes=out,
        use_learnable_affine_block=True,
        out_features=[f'stage{number}' for number in stages],
    )


def b0(stages: range) -> Any:
    return hgnetv2(16, [16, 32, 64, 128], [64, 256, 512, 1024], 2, 3, stages)


def dfine_n(**options: Any) -> Any:
    config = transformers.DFineConfig(
        backbone_config=b0(range(3, 5)),
        encoder_in_channels=[512, 1024],
        encoder_hidden_dim=128,
        encoder_ffn_dim=512,
        d_model=128,
        decoder_ffn_dim=512,
        decoder_layers=3,
        decoder_in_channels=[128, 128],
        decoder_n_points=[6, 6],
        hidden_expansion=0.34,
        depth_mult=0.5,
        feat_strides=[16, 32],
        num_feature_levels=2,
        encode_proj_layers=[1],
        **{**FEW, **options},
    )
    return transformers.DFineForObjectDetection(config)


def dfine_of_three_maps(backbone: Any, **options: Any) -> Any:
    channels = backbone.stage_out_channels[1:]
    config = transformers.DFineConfig(
        backbone_config=backbone, encoder_in_channels=channels, decoder_n_points=[3, 6, 3], **FEW, **options
    )
    return transformers.DFineForObjectDetection(config)


def dfine_s() -> Any:
    return dfine_of_three_maps(b0(range(2, 5)), decoder_layers=3, hidden_expansion=0.5, depth_mult=0.34)


def dfine_m() -> Any:
    backbone = hgnetv2(24, [32, 64, 128, 256], [96, 384, 768, 1536], 3, 4, range(2, 5))
    return dfine_of_three_maps(backbone, decoder_layers=4, hidden_expansion=1.0, depth_mult=0.67)


def rtdetrv2_r18vd(**options: Any) -> Any:
    backbone = transformers.RTDetrResNetConfig(
        depths=[2, 2, 2, 2], layer_type='basic', hidden_sizes=[64, 128, 256, 512], out_features=['stage2', 'stage3', 'stage4']
    )
    config = transformers.RTDetrV2Config(
        backbone_config=backbone,
        encoder_in_channels=[128, 256, 512],
        hidden_expansion=0.5,
        decoder_layers=3,
        **{**FEW, **options},
    )
    return transformers.RTDetrV2ForObjectDetection(config)


def both(name: str, folder: Path) -> tuple[DETR, Any]:
    """Our network and that of transformers, for evaluation, with the same random weights."""
    torch.manual_seed(0)
    network, size = name.split('_')
    model, theirs = cast(DETR, MODELS[network](CLASSES, queries=40, size=size)), globals()[name]()
    source = deepcopy(model)
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.add_(0.1 * (float(parameter.abs().mean()) or 0.2) * torch.randn_like(parameter))  # heads start at zero
    # Our weights under the names of its own file; what it computes stays.
    theirs.save_pretrained(folder)
    file = folder / 'model.safetensors'
    stored = safetensors.torch.load_file(file)
    safetensors.torch.save_file({**stored, **by_their_names(source, stored)}, file, metadata={'format': 'pt'})
    load_weights(model, file)
    return model.eval(), type(theirs).from_pretrained(folder).eval()


def by_their_names(model: DETR, stored: dict[str, Tensor]) -> dict[str, Tensor]:
    fit = compare_weights(model, {key.removeprefix('model.'): x for key, x in stored.items()}, 'all')
    assert not fit.problems()
    slots = {f'model.{key}': slot for key, slot in fit.naming.slots.items()}
    return {key: slots[key].tensor.contiguous() for key in stored if key in slots}


@torch.no_grad()
@pytest.mark.parametrize('name', ['dfine_n', 'rtdetrv2_r18vd'])
@pytest.mark.parametrize('size', [(128, 128), (96, 224)])
def test_outputs_are_those_of_transformers(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    model, theirs = both(name, tmp_path)
    expected = theirs.double()(images := torch.randn(2, 3, *size).double())
    logits, boxes = model.double()(images).decoded.layers[-1]
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(boxes, expected.pred_boxes, rtol=0, atol=1e-6)


@pytest.mark.parametrize('name', ['dfine_n', 'dfine_s', 'dfine_m', 'rtdetrv2_r18vd'])
def test_outputs_and_gradients_in_float32_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    """In float32, rounding that moves a point across the edge of a pixel changes the gradients of both sides, of size M by up
    to 2e-3 of them. So single parameters are compared in float64.
    """
    model, theirs = both(name, tmp_path)
    images = torch.randn(2, 3, 96, 160)
    for dtype, tolerance in ((torch.float32, 1e-2), (torch.float64, 1e-6)):
        logits, boxes = model.to(dtype)(images.to(dtype)).decoded.layers[-1]
        expected = theirs.to(dtype)(images.to(dtype))
        torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-4)
        torch.testing.assert_close(boxes, expected.pred_boxes, rtol=0, atol=1e-4)
        towards = torch.randn_like(logits), torch.randn_like(boxes)
        torch.autograd.backward((logits, boxes), towards)
        torch.autograd.backward((expected.logits, expected.pred_boxes), towards)
        of_gradients = [deepcopy(each) for each in (model, theirs)]
        for network, copied in zip((model, theirs), of_gradients, strict=True):
            for parameter, place in zip(network.parameters(), copied.parameters(), strict=True):
                place.data = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        of_gradients[1].save_pretrained(tmp_path)
        others = safetensors.torch.load_file(tmp_path / 'model.safetensors')
        ours = by_their_names(of_gradients[0], others)
        keys = [key for key in ours if not key.endswith(('running_mean', 'running_var', 'tracked'))]
        assert len(keys) >= len(list(model.parameters()))
        whole = torch.cat([others[key].flatten() for key in keys])
        assert (torch.cat([ours[key].flatten() for key in keys]) - whole).norm() <= tolerance * whole.norm()
        for key in keys if dtype == torch.float64 else ():
            assert (ours[key] - others[key]).norm() <= tolerance * (others[key].norm() + 1e-6 * whole.norm()), key
        for network in (model, theirs):
            network.zero_grad()
