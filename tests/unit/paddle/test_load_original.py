"""Filling a network with arrays under their original names. Names and shapes are those of PaddleSeg's networks."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from phalanx.families.detection.models.ppyoloe import ppyoloe
from phalanx.families.segmentation.models.pp_liteseg import pp_liteseg
from phalanx.families.segmentation.models.segformer import segformer
from phalanx.families.segmentation.models.unet import unet
from phalanx.paddle.weights import original_of, paddle_layout
from phalanx.system.errors import CheckpointError
from phalanx.weights.reading import load_weights

Arrays = dict[str, npt.NDArray[np.float32]]


def arrays_of(model: nn.Module) -> Arrays:
    """Random arrays for all of `model`."""
    rng = np.random.default_rng(0)
    original = original_of(model)
    state = {name: tensor for name, tensor in model.state_dict().items() if not name.endswith('num_batches_tracked')}
    return {original.name(name): rng.random(tensor.shape, dtype=np.float32) for name, tensor in state.items()}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / 'model.pdparams'


def load(model: nn.Module, arrays: Arrays, path: Path) -> None:
    """Fill `model` from `arrays`, by way of a file at `path`."""
    path.write_bytes(pickle.dumps(arrays, 4))
    load_weights(model, path)


@pytest.fixture(scope='module')
def model() -> nn.Module:
    return pp_liteseg(3)


@pytest.fixture
def arrays(model: nn.Module) -> Arrays:
    return arrays_of(model)


def test_every_tensor_is_filled_and_keeps_its_dtype(path: Path) -> None:
    model = unet(2, upsampling='transposed').double()
    arrays = arrays_of(model)
    load(model, arrays, path)
    assert model.classify.weight.dtype == torch.float64
    np.testing.assert_array_equal(model.classify.weight.detach(), arrays['cls.weight'])
    np.testing.assert_array_equal(
        model.encoder[1][0].norm.running_var, arrays['encode.down_sample_list.0.1._batch_norm._variance']
    )
    np.testing.assert_array_equal(model.decoder[2].enlarge.bias.detach(), arrays['decode.up_sample_list.2.deconv.bias'])


def test_everything_left_over_missing_or_misshapen_is_listed_at_once(model: nn.Module, arrays: Arrays, path: Path) -> None:
    del arrays['backbone.features.0.conv.weight'], arrays['seg_heads.2.conv._batch_norm._mean']
    arrays['seg_heads.0.conv_out.weight'] = np.zeros((19, 32, 1, 1), np.float32)
    arrays['backbone.features.1.bn.bias'] = np.zeros(63, np.float32)
    arrays['backbone.conv_last.conv.weight'] = np.zeros((1024, 1024, 1, 1), np.float32)
    with pytest.raises(CheckpointError) as raised:
        load(model, arrays, path)
    assert str(raised.value).splitlines() == [
        f'{path}: the weights do not fit PPLiteSeg:',
        'missing: backbone.features.0.conv.weight [32, 3, 3, 3]',
        'missing: seg_heads.2.conv._batch_norm._mean [64]',
        'misshapen: backbone.features.1.bn.bias is [63], the model has [64]',
        'misshapen: seg_heads.0.conv_out.weight is [19, 32, 1, 1], the model has [3, 32, 1, 1]',
        'left over: backbone.conv_last.conv.weight [1024, 1024, 1, 1]',
    ]


def test_nothing_is_filled_when_something_is_wrong(model: nn.Module, arrays: Arrays, path: Path) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(CheckpointError, match='left over: stranger'):
        load(model, {**arrays, 'stranger': np.zeros(1, np.float32)}, path)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_an_attention_scale_of_one_is_dropped(model: nn.Module, arrays: Arrays, path: Path) -> None:
    load(model, {**arrays, 'ppseg_head.arm_list.1._scale': np.ones(1, np.float32)}, path)
    with pytest.raises(CheckpointError, match=r'left over: ppseg_head\.arm_list\.1\._scale \[1\]'):
        load(model, {**arrays, 'ppseg_head.arm_list.1._scale': np.full(1, 2, np.float32)}, path)


def test_an_alias_must_equal_its_first_name(path: Path) -> None:
    model = unet(2)
    arrays = arrays_of(model)
    load(model, {**arrays, 'conv.weight': arrays['cls.weight'], 'conv.bias': arrays['cls.bias']}, path)
    with pytest.raises(CheckpointError, match=r'left over: conv\.weight'):
        load(model, {**arrays, 'conv.weight': arrays['cls.weight'] + 1}, path)


def test_linear_layers_are_stored_transposed(path: Path) -> None:
    """A Paddle linear layer is [in, out]."""
    model = segformer(2)
    name = 'backbone.block1.0.mlp.fc1.weight'
    arrays = {key: array.T if array.ndim == 2 else array for key, array in arrays_of(model).items()}
    assert arrays[name].shape == (32, 128)
    load(model, arrays, path)
    np.testing.assert_array_equal(model.backbone.stages[0].blocks[0].mlp.widen.weight.detach(), arrays[name].T)
    with pytest.raises(
        CheckpointError, match=r'misshapen: backbone\.block1\.0\.mlp\.fc1\.weight is \[128, 32\], the model has \[32, 128\]'
    ):
        load(model, {**arrays, name: arrays[name].T}, path)


def test_weights_of_a_detector_with_another_reach_are_reported_by_their_shapes(tmp_path: Path) -> None:
    """The file also stores the distances themselves, of which there are more."""
    other = ppyoloe(2, size='n', reach=(-2, 17))
    original = original_of(other)
    assert original is not None
    arrays = {original.name(name): tensor.numpy() for name, tensor in paddle_layout(other).items()}
    arrays |= {name: np.asarray(value, np.float32) for name, value in original.constants.items()}
    (tmp_path / 'model.pdparams').write_bytes(pickle.dumps(arrays, 4))
    with pytest.raises(CheckpointError, match=r'pred_reg.0.weight is \[80, .*the model has \[68, '):
        load_weights(ppyoloe(2, size='n'), tmp_path / 'model.pdparams')
