"""Files of detectors with queries: of their authors, of transformers and of PaddleDetection.

`tests/golden/test_detector_names.py` compares the names themselves with those of the originals.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from phalanx.families.detection.models.dfine import dfine
from phalanx.families.detection.models.rtdetr import rtdetrv2
from phalanx.paddle.weights import paddle_layout
from phalanx.system.errors import CheckpointError
from phalanx.weights.detectors import namings_of_detectors
from phalanx.weights.matching import COUNTER, Naming
from phalanx.weights.published import PUBLISHED
from phalanx.weights.reading import load_weights

SMALL: dict[str, Any] = {'channels': 32, 'encoder_hidden': 16, 'decoder_hidden': 16, 'decoder_layers': 1}
AUTHORS, FIRST, TRANSFORMERS, HEADS_APART, PADDLE = range(5)  # kinds of names


def network(name: str = 'rtdetrv2') -> nn.Module:
    return (dfine if name == 'dfine' else rtdetrv2)(3, **SMALL)


def tensors(model: nn.Module, kind: int) -> dict[str, Tensor]:
    naming: Naming = namings_of_detectors(model.state_dict(), paddle_layout(model))[kind]
    return {name: slot.tensor.contiguous() for name, slot in naming.slots.items()}


def check_equal(one: nn.Module, other: nn.Module) -> None:
    for (name, x), y in zip(one.state_dict().items(), other.state_dict().values(), strict=True):
        assert name.endswith(COUNTER) or torch.equal(x, y), name


@pytest.mark.parametrize('name', ['dfine', 'rtdetrv2'])
@pytest.mark.parametrize('kind', [AUTHORS, FIRST])
def test_of_a_checkpoint_of_the_authors_the_average_is_loaded(name: str, kind: int, tmp_path: Path) -> None:
    averaged, model = network(name), network(name)
    buffers = {'decoder.anchors': torch.zeros(1, 8, 4), 'decoder.valid_mask': torch.ones(1, 8, 1)}
    saved = {
        'date': '2024-10-17',
        'last_epoch': 131,
        'model': {**tensors(network(name), kind), **buffers},
        'ema': {'module': {**tensors(averaged, kind), **buffers}, 'updates': 488_000, 'warmups': 1000},
        'optimizer': {'state': {}, 'param_groups': []},
    }
    torch.save(saved, tmp_path / 'last.pth')
    load_weights(model, tmp_path / 'last.pth')
    check_equal(model, averaged)


@pytest.mark.parametrize('name', ['dfine', 'rtdetrv2'])
def test_files_of_transformers_are_loaded(name: str, tmp_path: Path) -> None:
    source, model = network(name), network(name)
    stored = {f'model.{key}': x for key, x in tensors(source, TRANSFORMERS).items()}
    # A second copy of the heads, as in files of older releases, and numbers that follow from the configuration.
    stored |= {
        key: x.clone() for key, x in tensors(source, HEADS_APART).items() if key.startswith(('class_embed', 'bbox_embed'))
    }
    stored['model.decoder.layers.0.encoder_attn.n_points_scale'] = torch.ones(12)
    safetensors.torch.save_file(stored, tmp_path / 'model.safetensors')
    load_weights(model, tmp_path / 'model.safetensors')
    check_equal(model, source)


def test_files_of_transformers_may_have_their_heads_apart_from_the_decoder(tmp_path: Path) -> None:
    source, model = network(), network()
    stored = {
        key if key.startswith(('class_embed', 'bbox_embed')) else f'model.{key}': x
        for key, x in tensors(source, HEADS_APART).items()
    }
    safetensors.torch.save_file(stored, tmp_path / 'model.safetensors')
    load_weights(model, tmp_path / 'model.safetensors')
    check_equal(model, source)


def test_files_of_paddledetection_are_loaded(tmp_path: Path) -> None:
    """Linear layers and projections of attentions are stored the other way round, and padding has no embedding."""
    source, model = network(), network()
    stored = {key: x.numpy() for key, x in tensors(source, PADDLE).items()}
    assert stored['neck.encoder.0.layers.0.self_attn.in_proj_weight'].shape == (32, 96)
    assert stored['transformer.denoising_class_embed.weight'].shape == (3, 32)
    (tmp_path / 'rtdetr.pdparams').write_bytes(pickle.dumps(stored, protocol=2))
    load_weights(model, tmp_path / 'rtdetr.pdparams')
    check_equal(model, source)


def test_weights_of_another_size_are_refused_with_a_shape(tmp_path: Path) -> None:
    torch.save({'model': tensors(network(), AUTHORS)}, tmp_path / 'small.pth')
    with pytest.raises(CheckpointError, match='have another shape'):
        load_weights(rtdetrv2(3, **{**SMALL, 'channels': 48}), tmp_path / 'small.pth')


def test_weights_of_every_published_size_have_a_name() -> None:
    networks = {entry.network for entry in PUBLISHED.values()}
    assert {f'dfine, size: {size}' for size in 'nsmlx'} <= networks
    for size in ('r18vd', 'r34vd', 'r50vd_m', 'r50vd', 'r101vd', 'hgnetv2_l', 'hgnetv2_x'):
        assert {f'rtdetr, size: {size}', f'rtdetrv2, size: {size}'} <= networks
