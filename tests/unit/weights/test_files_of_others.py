"""Weights as other projects leave them on a disk: read as they meant it, or refused with what the file is and the cure."""

from __future__ import annotations

import argparse
import collections
import os
import pickle
import re
import shutil
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from phalanx.system.errors import CheckpointError
from phalanx.weights.reading import load_weights

State = dict[str, Tensor]


def network() -> nn.Module:
    return nn.Sequential(collections.OrderedDict(stem=nn.Conv2d(3, 4, 3), norm=nn.BatchNorm2d(4), head=nn.Conv2d(4, 2, 1)))


@pytest.fixture
def state() -> State:
    return {name: torch.ones_like(tensor) for name, tensor in network().state_dict().items()}


def below(prefix: str, state: State) -> State:
    return {f'{prefix}.{name}': tensor for name, tensor in state.items()}


def a_class_of(module: str, name: str, monkeypatch: pytest.MonkeyPatch, base: type = object) -> Any:
    """A class that a pickle finds in `module` only while it is written: the library is not installed where it is read."""
    made = type(name, (base,), {'__module__': module})
    parts = module.split('.')
    for place in ('.'.join(parts[:length]) for length in range(1, len(parts) + 1)):
        monkeypatch.setitem(sys.modules, place, types.ModuleType(place))
    setattr(sys.modules[module], name, made)
    return made


def load(source: object) -> nn.Module:
    model = network()
    load_weights(model, str(source))
    return model


def assert_all_ones(model: nn.Module) -> None:
    assert all((tensor == 1).all() for tensor in model.state_dict().values())


@pytest.mark.parametrize('zipped', [True, False])
def test_settings_beside_the_weights_do_not_keep_them_from_being_read(tmp_path: Path, state: State, zipped: bool) -> None:
    """The arguments of a script, as DETR and timm save them; before torch 1.6 no file was a zip archive."""
    file = tmp_path / 'model.pth'
    torch.save({'model': state, 'args': argparse.Namespace(lr=0.1)}, file, _use_new_zipfile_serialization=zipped)
    assert_all_ones(load(file))


def test_a_checkpoint_of_lightning_is_read_with_its_hyper_parameters(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = a_class_of('lightning_fabric.utilities.data', 'AttributeDict', monkeypatch, dict)
    parameters = attributes(root=Path('data'), best=np.float64(0.5), counts=collections.defaultdict(list, a=[1]))
    torch.save({'state_dict': below('model', state), 'hyper_parameters': parameters}, tmp_path / 'last.ckpt')
    monkeypatch.undo()
    assert_all_ones(load(tmp_path / 'last.ckpt'))


def test_a_checkpoint_of_mmengine_is_read_with_its_log(tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    log = a_class_of('mmengine.logging.history_buffer', 'HistoryBuffer', monkeypatch)()
    log.history = np.arange(3.0)
    torch.save({'state_dict': state, 'message_hub': {'log_scalars': {'lr': log}}}, tmp_path / 'iter_100.pth')
    monkeypatch.undo()
    assert_all_ones(load(tmp_path / 'iter_100.pth'))


@pytest.mark.parametrize(
    ('trained', 'prefix', 'counter', 'others'),
    [
        ('ema_state_dict', 'module.', {'steps': torch.tensor(3)}, {'message_hub': {}, 'meta': {'mmengine_version': '0.10.7'}}),
        ('current_model_state', '', {}, {'averaging_state': {'n_averaged': torch.tensor(3)}, 'callbacks': {}}),
    ],
)
def test_weights_as_trained_are_not_taken_for_the_ema_that_the_library_saved_as_state_dict(
    tmp_path: Path, state: State, trained: str, prefix: str, counter: State, others: dict[str, object]
) -> None:
    """Files of MMEngine 0.10.7 with EMAHook, and of Lightning 2.6.6 with EMAWeightAveraging."""
    raw = {f'{prefix}{name}': torch.zeros_like(tensor) for name, tensor in state.items()} | counter
    file = tmp_path / 'epoch_2.pth'
    torch.save({'state_dict': state, trained: raw, **others}, file)
    model = network()
    loaded = load_weights(model, str(file))
    assert_all_ones(model)
    assert f'not the weights as trained, `{trained}`; #key={trained} selects those' in str(loaded.remarks)
    model = network()
    loaded = load_weights(model, f'{file}#key={trained}')
    assert all((tensor == 0).all() for tensor in model.state_dict().values())
    assert f'`{trained}` has the weights as trained' in str(loaded.remarks)


class Command:
    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, ('touch executed',)


def test_a_command_beside_the_weights_is_named_and_not_executed(
    tmp_path: Path, state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({'state_dict': state, 'args': argparse.Namespace(x=Command())}, 'model.pth')
    with pytest.raises(CheckpointError, match=rf'holds more than weights, .* \({os.system.__module__}\.system\); where you'):
        load('model.pth')
    assert not Path('executed').exists()


def test_a_network_of_ultralytics_is_named_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = a_class_of('ultralytics.nn.tasks', 'DetectionModel', monkeypatch)()
    torch.save({'model': model}, tmp_path / 'yolov8n.pt')
    with pytest.raises(CheckpointError, match=r'yolov8n\.pt: is a network of Ultralytics'):
        load(tmp_path / 'yolov8n.pt')


@pytest.mark.parametrize('key', ['segmentor', 'model.detector', 'self.net'])
def test_weights_below_an_unknown_attribute_are_refused_with_the_key_that_loads_them(
    tmp_path: Path, state: State, key: str
) -> None:
    torch.save({'state_dict': {**below(key, state), 'criterion.weight': torch.ones(2)}}, tmp_path / 'last.ckpt')
    with pytest.raises(CheckpointError, match='#key=') as refused:
        load(tmp_path / 'last.ckpt')
    cure = re.search(r'append (#key=[\w.]+)', str(refused.value))
    assert cure is not None
    assert_all_ones(load(f'{tmp_path}/last.ckpt{cure[1]}'))


def test_of_two_networks_in_a_file_both_keys_are_named(tmp_path: Path, state: State) -> None:
    torch.save({**below('student', state), **below('teacher', state)}, tmp_path / 'm.pth')
    with pytest.raises(CheckpointError, match=r'has the network in `student` and `teacher`: append #key=student$'):
        load(tmp_path / 'm.pth')


def test_tensors_of_the_loss_beside_the_network_are_refused_with_the_key_that_leaves_them_out(
    tmp_path: Path, state: State
) -> None:
    torch.save({'state_dict': {**below('model', state), 'criterion.weight': torch.ones(2)}}, tmp_path / 'last.ckpt')
    with pytest.raises(CheckpointError, match=r'left over: criterion.weight \[2\]\nappend #key=model: `model` alone fits$'):
        load(tmp_path / 'last.ckpt')
    assert_all_ones(load(f'{tmp_path}/last.ckpt#key=model'))


def test_an_entry_with_an_unusual_name_is_named_as_a_key(tmp_path: Path, state: State) -> None:
    torch.save({'generator': state, 'epoch': 3}, tmp_path / 'm.pth')
    with pytest.raises(CheckpointError, match=r'holds no weights: .*; #key=NAME selects an entry, of generator$'):
        load(tmp_path / 'm.pth')
    assert_all_ones(load(f'{tmp_path}/m.pth#key=generator'))


@pytest.mark.parametrize('entry', ['model', 'blobs'])
def test_a_pickle_of_detectron2_is_read(tmp_path: Path, state: State, entry: str) -> None:
    arrays = {name: tensor.numpy() for name, tensor in state.items()}
    (tmp_path / 'R-50.pkl').write_bytes(pickle.dumps({entry: arrays, '__author__': 'Caffe2', 'matching_heuristics': True}))
    assert_all_ones(load(tmp_path / 'R-50.pkl'))


def test_quantised_weights_are_refused(tmp_path: Path, state: State) -> None:
    """Their integers without the scales are other weights."""
    safetensors.torch.save_file({name: tensor.to(torch.int8) for name, tensor in state.items()}, tmp_path / 'm.safetensors')
    with pytest.raises(CheckpointError, match=r'is of torch\.int8, such as quantised weights: give weights in floating point'):
        load(tmp_path / 'm.safetensors')


def test_bits_of_bfloat16_in_numpy_are_refused(tmp_path: Path, state: State) -> None:
    np.savez(tmp_path / 'm.npz', **{name: np.full(tensor.shape, 0x3F80, np.uint16) for name, tensor in state.items()})
    with pytest.raises(CheckpointError, match='is of uint16'):
        load(tmp_path / 'm.npz')


def test_files_that_are_no_weights_are_refused_with_what_they_are(tmp_path: Path, state: State) -> None:
    torch.jit.script(network()).save(str(tmp_path / 'script.pt'))
    safetensors.torch.save_file(state, tmp_path / 'model-00001-of-00002.safetensors')
    (tmp_path / 'tensors.pkl').write_bytes(pickle.dumps(state))
    (tmp_path / 'model.h5').write_bytes(b'\x89HDF\r\n\x1a\n')
    (tmp_path / 'model.safetensors.index.json').write_text('{"weight_map": {}}')
    (tmp_path / '__0_0.distcp').write_bytes(b'PK\x03\x04')
    torch.export.save(torch.export.export(network().eval(), (torch.zeros(1, 3, 8, 8),)), tmp_path / 'model.pt2')
    shutil.copy(tmp_path / 'model.pt2', tmp_path / 'model.pt')
    reasons = {
        'script.pt': 'is a program of TorchScript, not weights; .*torch.jit.load',
        'model-00001-of-00002.safetensors': 'is one of several parts of the weights: join them',
        'tensors.pkl': 'is a pickle of tensors, .*: write it with torch.save',
        'model.h5': r'is none of the files of weights that are read: \.safetensors, ',
        'model.safetensors.index.json': 'is none of the files of weights that are read',
        '__0_0.distcp': 'is a part of a checkpoint of torch.distributed; .*dcp_to_torch',
        'model.pt2': 'is a program of torch.export, not weights; .*torch.export.load',
        'model.pt': 'is a program of torch.export, not weights; .*torch.export.load',
    }
    for name, reason in reasons.items():
        with pytest.raises(CheckpointError, match=f'{re.escape(name)}: {reason}'):
            load(tmp_path / name)


def test_a_folder_with_weights_is_refused_with_their_names(tmp_path: Path, state: State) -> None:
    safetensors.torch.save_file(state, tmp_path / 'model.safetensors')
    with pytest.raises(CheckpointError, match=r'holds no weights .*; give a file in it: model\.safetensors$'):
        load(tmp_path)
    (tmp_path / '.metadata').touch()  # of torch.distributed.checkpoint
    with pytest.raises(CheckpointError, match=r'format_utils dcp_to_torch FOLDER FILE` joins its parts in a file$'):
        load(tmp_path)
