"""A configuration and weights of PaddleSeg, run as their owner would: nothing is rewritten first."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from phalanx.families.segmentation.models.unet import unet
from phalanx.paddle.weights import original_of, paddle_layout
from running import Command, losses, records

CONFIGURATION = """
batch_size: 2
iters: 100
train_dataset:
  type: Dataset
  dataset_root: data
  num_classes: 2
  mode: train
  train_path: data/train.txt
  transforms: [{type: RandomPaddingCrop, crop_size: [32, 32]}, {type: Normalize}]
val_dataset:
  type: Dataset
  dataset_root: data
  num_classes: 2
  mode: val
  val_path: data/val.txt
  transforms: [{type: Normalize}]
optimizer: {type: SGD, momentum: 0.9}
lr_scheduler: {type: PolynomialDecay, learning_rate: 0.01, end_lr: 0, power: 0.9}
loss: {types: [{type: CrossEntropyLoss}], coef: [1]}
model: {type: UNet, num_classes: 2, pretrained: unet.pdparams}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three images whose label maps are all 1, and a network that says 1 everywhere."""
    (tmp_path / 'data').mkdir()
    rng = np.random.default_rng(0)
    for number in range(3):
        cv2.imwrite(str(tmp_path / f'data/image{number}.png'), rng.integers(0, 255, (32, 48, 3), dtype=np.uint8))
        cv2.imwrite(str(tmp_path / f'data/label{number}.png'), np.ones((32, 48), np.uint8))
    pairs = ''.join(f'image{number}.png label{number}.png\n' for number in range(3))
    for split in ('train', 'val'):
        (tmp_path / f'data/{split}.txt').write_text(pairs)
    (tmp_path / 'unet.yml').write_text(CONFIGURATION)
    model = unet(2)
    with torch.no_grad():
        model.classify.weight.zero_()
        model.classify.bias.copy_(torch.tensor([0.0, 20.0]))
    name = original_of(model).name
    arrays = {name(ours): tensor.numpy() for ours, tensor in paddle_layout(model).items()}
    named = {name: (f'parameter_{number}', array) for number, (name, array) in enumerate(arrays.items())}
    (tmp_path / 'unet.pdparams').write_bytes(pickle.dumps(named, 4))
    return tmp_path


def test_a_configuration_trains_from_weights_with_the_options_of_its_project(folder: Path, phalanx_here: Command) -> None:
    """With weights that are right everywhere the loss is -log(1 / (1 + exp(-20))), about 2e-9, from the first step on."""
    flags = ('--iters', '2', '--log_iters', '1', '--num_workers', '0', '--do_eval', '--use_gpu', 'false')
    done = phalanx_here('train', '--config', 'unet.yml', *flags, '--save_dir', 'out')
    assert done.returncode == 0, done.stderr
    assert losses(folder / 'out') == pytest.approx([0, 0], abs=1e-6)
    evaluated = records(folder / 'out', 'eval')  # of the weights it starts from, too
    assert [(line['step'], line['accuracy']) for line in evaluated] == [(0, 1.0), (2, 1.0)]


def test_weights_can_be_evaluated_without_training(folder: Path, phalanx_here: Command) -> None:
    text = CONFIGURATION.replace(', pretrained: unet.pdparams', '')
    (folder / 'unet.yml').write_text(text)
    done = phalanx_here('eval', 'unet.yml', '--weights', 'unet.pdparams', '--json', '--set', 'train.workers=0', 'device=cpu')
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result['accuracy'], result['samples']) == (1.0, 3)
