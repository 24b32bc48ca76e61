"""D-FINE and RT-DETRv2 beside transformers, with files that its `save_pretrained` writes.

transformers is not installed with the project: `pip install transformers` enables these tests. Its loss of D-FINE leaves out
the union of the matchings, and its RT-DETR passes no gradient from the boxes of a layer to the layer before, so losses and
gradients are compared with the code of the authors instead (`test_query_detectors.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from phalanx.families.detection.models import MODELS
from phalanx.weights.reading import compare_weights, load_weights

transformers: Any = pytest.importorskip('transformers', reason='transformers is not installed')
CLASSES = 7
FEW = {'num_queries': 40, 'num_labels': CLASSES}


def dfine_n(**options: Any) -> Any:
    backbone = transformers.HGNetV2Config(
        stem_channels=[3, 16, 16],
        stage_in_channels=[16, 64, 256, 512],
        stage_mid_channels=[16, 32, 64, 128],
        stage_out_channels=[64, 256, 512, 1024],
        stage_num_blocks=[1, 1, 2, 1],
        stage_numb_of_layers=[3, 3, 3, 3],
        hidden_sizes=[64, 256, 512, 1024],
        use_learnable_affine_block=True,
        out_features=['stage3', 'stage4'],
    )
    config = transformers.DFineConfig(
        backbone_config=backbone,
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


@torch.no_grad()
@pytest.mark.parametrize('name', ['dfine', 'rtdetrv2'])
@pytest.mark.parametrize('size', [(128, 128), (96, 224)])
def test_outputs_are_those_of_transformers(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    torch.manual_seed(0)
    source, model = MODELS[name](CLASSES, queries=40), MODELS[name](CLASSES, queries=40)
    for parameter in source.parameters():
        parameter.add_(0.02 * torch.randn_like(parameter))  # heads start at zero
    theirs = dfine_n() if name == 'dfine' else rtdetrv2_r18vd()
    # Our weights under the names of its own file; what it computes stays.
    theirs.save_pretrained(tmp_path)
    file = tmp_path / 'model.safetensors'
    stored = safetensors.torch.load_file(file)
    fit = compare_weights(source, {key.removeprefix('model.'): x for key, x in stored.items()}, 'all')
    assert not fit.problems()
    ours = {f'model.{key}': slot.tensor.contiguous() for key, slot in fit.naming.slots.items() if f'model.{key}' in stored}
    safetensors.torch.save_file({**stored, **ours}, file, metadata={'format': 'pt'})
    load_weights(model, file)
    expected = type(theirs).from_pretrained(tmp_path).eval().double()(images := torch.randn(2, 3, *size).double())
    logits, boxes = model.double().eval()(images).decoded.layers[-1]
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=1e-6)
    torch.testing.assert_close(boxes, expected.pred_boxes, rtol=0, atol=1e-6)
