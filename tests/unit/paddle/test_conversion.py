"""`phalanx convert weights`: files of the originals become files of ours."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from test_originals_paddledet import FILES as DETECTION

from phalanx.cli.main import main
from phalanx.families.detection.models.ppyoloe import ppyoloe
from phalanx.families.segmentation.models.pp_liteseg import pp_liteseg
from phalanx.paddle.weights import original_of, paddle_layout

HEAD = 'seg_heads.0.conv_out.weight'


@pytest.fixture(scope='module')
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A weight file of PaddleSeg's PP-LiteSeg for three classes; its classifier is 0, 1, 2, ..."""
    model = pp_liteseg(3)
    name = original_of(model).name
    arrays = {name(ours): np.zeros(tensor.shape, np.float32) for ours, tensor in paddle_layout(model).items()}
    arrays[HEAD] = np.arange(96, dtype=np.float32).reshape(3, 32, 1, 1)
    path = tmp_path_factory.mktemp('weights') / 'model.pdparams'
    path.write_bytes(pickle.dumps({**arrays, 'StructuredToParameterName@@': {}}, 4))
    return path


def test_weights_of_a_named_network_are_written(original: Path, tmp_path: Path) -> None:
    out = tmp_path / 'model.safetensors'
    words = ['convert', 'weights', str(original), '--model', 'pp_liteseg', '--num_classes', '3', '--set', 'backbone=stdc1']
    assert main([*words, '--out', str(out)]) == 0
    weights = safetensors.torch.load_file(out)
    assert weights['heads.0.classify.weight'].flatten().tolist() == list(range(96))
    pp_liteseg(3).load_state_dict(weights)


def test_a_configuration_with_its_classes_needs_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PaddleDetection's `num_classes`, of a data set that is not here."""
    monkeypatch.chdir(tmp_path)
    for name, text in DETECTION.items():
        (tmp_path / f'{name}.yml').write_text(text.lstrip())
    model = ppyoloe(80, size='s')
    name = original_of(model).name
    arrays = {name(ours): tensor.numpy() for ours, tensor in paddle_layout(model).items()}
    (tmp_path / 'model.pdparams').write_bytes(pickle.dumps(arrays, 4))
    assert main(['convert', 'weights', 'model.pdparams', '--recipe', 'ppyoloe.yml', '--out', 'out.safetensors']) == 0
    assert safetensors.torch.load_file('out.safetensors')['heads.0.classify.bias'].shape == (80,)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (['--model', 'pp_liteseg', '--num_classes', '4'], f'misshapen: {HEAD} is [3, 32, 1, 1], the model has [4, 32, 1, 1]'),
        (['--model', 'pp_liteseg'], '--model needs --num_classes'),
        (['--model', 'pp_lightseg', '--num_classes', '3'], "did you mean 'pp_liteseg'?"),
        (['--model', 'pp_liteseg', '--num_classes', '3', '--set', 'backbon=stdc1'], "'backbon'"),
        (['--recipe', 'no_such'], 'no_such: no such file'),
        (['--recipe', 'unet_pet'], 'these are weights of another network'),
    ],
)
def test_what_does_not_fit_is_reported_and_nothing_written(
    original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    out = tmp_path / 'model.safetensors'
    assert main(['convert', 'weights', str(original), *words, '--out', str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()
