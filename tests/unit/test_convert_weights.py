"""Weights from files into a network. Original names and shapes are those of PaddleSeg's PP-LiteSeg and its STDC backbone."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch
from torch import nn

from phalanx.families.distillation import Distilled
from phalanx.families.segmentation.models.pp_liteseg import pp_liteseg
from phalanx.families.segmentation.models.unet import unet
from phalanx.weights.checkpoint import CheckpointError
from phalanx.weights.originals import ORIGINALS, stored_as_in_paddle
from phalanx.weights.reading import load_weights

Arrays = dict[str, npt.NDArray[np.float32]]
FIRST = 'backbone.features.0.conv.weight'  # of the network's first convolution, [32, 3, 3, 3]
HEAD = 'seg_heads.0.conv_out.weight'  # of its classifier, [classes, 32, 1, 1]


@pytest.fixture(scope='module')
def network() -> nn.Module:
    return pp_liteseg(3)


@pytest.fixture
def model(network: nn.Module) -> Iterator[nn.Module]:
    """A network that every test finds as drawn."""
    drawn = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    yield network
    network.load_state_dict(drawn)


@pytest.fixture
def arrays(model: nn.Module) -> Arrays:
    """Random arrays for all of `model`, by original name."""
    rng = np.random.default_rng(0)
    name = ORIGINALS[type(model)](model).name
    return {name(ours): rng.random(tensor.shape, dtype=np.float32) for ours, tensor in stored_as_in_paddle(model).items()}


def saved(path: Path, arrays: Arrays) -> Path:
    path.write_bytes(pickle.dumps(arrays, 4))
    return path


def first(model: nn.Module) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = model.state_dict()['backbone.stages.0.conv.weight'].numpy().copy()
    return array


def head(model: nn.Module) -> npt.NDArray[np.float32]:
    array: npt.NDArray[np.float32] = model.state_dict()['heads.0.classify.weight'].numpy().copy()
    return array


def test_a_file_of_the_original_fills_the_whole_network(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    assert load_weights(model, saved(tmp_path / 'model.pdparams', arrays)) == []
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    np.testing.assert_array_equal(head(model), arrays[HEAD])


def test_a_file_of_ours_fills_the_whole_network(tmp_path: Path, model: nn.Module) -> None:
    state = {name: torch.full_like(tensor, 2) for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(state, tmp_path / 'model.safetensors')
    assert load_weights(model, tmp_path / 'model.safetensors') == []
    assert (first(model) == 2).all() and (head(model) == 2).all()


def test_a_file_of_a_backbone_alone_leaves_the_rest_as_drawn(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    """Published backbones are classifiers: their names have no `backbone.`, and they bring a head."""
    backbone = {name.removeprefix('backbone.'): array for name, array in arrays.items() if name.startswith('backbone.')}
    path = saved(tmp_path / 'stdc.pdparams', {**backbone, 'fc.weight': np.zeros((4, 2), np.float32)})
    drawn = head(model)
    assert load_weights(model, path, part='backbone') == [
        f'{path}: 1 arrays are no part of the backbone and were left out: fc.weight'
    ]
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    np.testing.assert_array_equal(head(model), drawn)


def test_the_backbone_of_a_whole_network_can_be_taken_alone(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    drawn = head(model)
    load_weights(model, saved(tmp_path / 'model.pdparams', arrays), part='backbone')
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    np.testing.assert_array_equal(head(model), drawn)


def test_a_backbone_that_is_not_whole_is_refused(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    del arrays[FIRST]
    drawn = first(model)
    with pytest.raises(CheckpointError, match=r'missing: backbone\.features\.0\.conv\.weight \[32, 3, 3, 3\]'):
        load_weights(model, saved(tmp_path / 'stdc.pdparams', arrays), part='backbone')
    np.testing.assert_array_equal(first(model), drawn)


def test_a_network_without_a_backbone_has_none_to_fill(tmp_path: Path) -> None:
    path = saved(tmp_path / 'stdc.pdparams', {'features.0.conv.weight': np.zeros((32, 3, 3, 3), np.float32)})
    with pytest.raises(CheckpointError, match='the network has no part of that name'):
        load_weights(unet(2), path, part='backbone')


def test_a_head_for_other_classes_is_refused_unless_it_may_be_skipped(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    arrays[HEAD] = np.zeros((19, 32, 1, 1), np.float32)
    path, drawn = saved(tmp_path / 'model.pdparams', arrays), head(model)
    with pytest.raises(CheckpointError, match=r'misshapen: seg_heads\.0\.conv_out\.weight is \[19, 32, 1, 1\]'):
        load_weights(model, path)
    assert load_weights(model, path, misshapen='skip') == [f'{path}: of another shape there, so as drawn: {HEAD}']
    np.testing.assert_array_equal(first(model), arrays[FIRST])
    np.testing.assert_array_equal(head(model), drawn)


def test_a_network_without_an_original_is_told(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match='there is no conversion for Linear'):
        load_weights(nn.Linear(1, 1), saved(tmp_path / 'model.pdparams', {'w': np.zeros(1, np.float32)}))


def test_names_that_do_not_fit_are_a_checkpoint_error(tmp_path: Path, model: nn.Module) -> None:
    safetensors.torch.save_file({'other': torch.zeros(1)}, tmp_path / 'model.safetensors')
    with pytest.raises(CheckpointError, match='Missing key'):
        load_weights(model, tmp_path / 'model.safetensors')


def distillation() -> Distilled:
    return Distilled({name: pp_liteseg(3) for name in ('student', 'teacher')})


def both(arrays: Arrays) -> Arrays:
    """As PaddleOCR publishes distillations: the networks one after the other, here a teacher that is twice the student."""
    teacher = {f'Teacher.{name}': 2 * array for name, array in arrays.items()}
    return {**teacher, **{f'Student.{name}': array for name, array in arrays.items()}}


def test_a_file_of_a_distillation_fills_all_its_networks(tmp_path: Path, arrays: Arrays) -> None:
    model = distillation()
    load_weights(model, saved(tmp_path / 'both.pdparams', both(arrays)))
    np.testing.assert_array_equal(first(model.networks['student']), arrays[FIRST])
    np.testing.assert_array_equal(first(model.networks['teacher']), 2 * arrays[FIRST])


def test_a_network_takes_the_student_from_the_file_of_a_distillation(tmp_path: Path, model: nn.Module, arrays: Arrays) -> None:
    load_weights(model, saved(tmp_path / 'both.pdparams', both(arrays)))
    np.testing.assert_array_equal(first(model), arrays[FIRST])


def test_one_network_of_a_distillation_starts_from_weights_of_its_own(tmp_path: Path, model: nn.Module) -> None:
    safetensors.torch.save_file(model.state_dict(), tmp_path / 'taught.safetensors')
    distilled = distillation()
    drawn = first(distilled.student)
    assert load_weights(distilled, tmp_path / 'taught.safetensors', network='teacher') == []
    np.testing.assert_array_equal(first(distilled.networks['teacher']), first(model))
    np.testing.assert_array_equal(first(distilled.student), drawn)
    with pytest.raises(CheckpointError, match=r"there is no network 'tutor'; the distillation has student, teacher$"):
        load_weights(distilled, tmp_path / 'taught.safetensors', network='tutor')
    with pytest.raises(CheckpointError, match=r"there is no network 'teacher'; the distillation has none: it is not one$"):
        load_weights(model, tmp_path / 'taught.safetensors', network='teacher')


def test_a_network_that_the_file_has_not_is_told(tmp_path: Path, arrays: Arrays) -> None:
    path = saved(tmp_path / 'student.pdparams', {f'Student.{name}': array for name, array in arrays.items()})
    with pytest.raises(CheckpointError, match="the weights hold no network 'Teacher'; their names start with Student"):
        load_weights(distillation(), path)
