"""SLANet against PaddleOCR.

Expected numbers were produced by running the original on CPU with the weights and inputs of weights.py; trim_table.py copied
them to data/. The gradients are those of the original's float32 run, and so compared as coarsely as its noise asks for.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from filling import load_original
from golden.weights import draw, images
from phalanx.engine.optim.clip import Clip, clip
from phalanx.engine.optim.schedule import piecewise
from phalanx.families.table.loss import LOSSES, Targets
from phalanx.families.table.models.slanet import SLANet, slanet
from phalanx.families.table.output import TableOutput
from phalanx.paddle.weights.slanet import original

DATA = Path(__file__).parent / 'data'
FACTS = json.loads((DATA / 'table.json').read_text())
ARRAYS: dict[str, npt.NDArray[Any]] = dict(np.load(DATA / 'slanet.npz'))
LIMIT = 30  # tokens: the limit that the original ran with
BATCH = {key: torch.from_numpy(ARRAYS[f'batch/{key}']) for key in ('structure', 'bboxes', 'bbox_masks', 'length')}


def network(dtype: torch.dtype = torch.float32) -> SLANet:
    def weights(name: str, shape: list[int]) -> npt.NDArray[np.float32]:
        is_gru = '.rnn.weight' in name  # [out, in], where Paddle's other matrices are [in, out]
        return draw(name, shape, 2 * shape[0] / shape[1] if is_gru else 2)

    model = slanet(30).to(dtype)
    load_original(model, {name: weights(name, shape) for name, shape in FACTS['params']})
    return model


def random_images(seed: int, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(np.random.RandomState(seed).standard_normal(shape).astype(np.float32))


def assert_close(key: str, ours: Tensor) -> None:
    """Within 1e-4 of the largest value, or 5 times the distance between the original's own float32 and float64 runs."""
    expected, stride = ARRAYS[key], FACTS['strides'][key]
    values = ours.detach().reshape(-1)[::stride].double().numpy()
    tolerance = max(1e-4, 5 * FACTS['noise'][key]) * np.abs(expected).max()
    np.testing.assert_allclose(values, expected.reshape(-1), rtol=0, atol=tolerance, err_msg=key)


def follow(model: SLANet) -> tuple[TableOutput, list[Tensor]]:
    """Outputs for the batch, and the two losses."""
    steps = int(BATCH['length'].max()) + 1
    prediction = model(
        torch.from_numpy(images(FACTS['input_shape'])).to(model.head.cell.weight_hh.dtype), BATCH['structure'][:, :steps]
    )
    after = slice(1, steps + 1)
    targets = Targets(
        BATCH['structure'][:, after], BATCH['bboxes'][:, after].to(prediction.boxes), BATCH['bbox_masks'][:, after, 0]
    )
    terms = LOSSES['structure']()(prediction, targets) | LOSSES['smooth_l1']()(prediction, targets)
    return prediction, [term.total / term.weight * factor for term, factor in zip(terms.values(), (1, 2), strict=True)]


@torch.no_grad()
def test_maps_are_those_of_the_original() -> None:
    model = network().eval()
    maps = model.backbone(torch.from_numpy(images(FACTS['input_shape'])))
    for level, (before, after) in enumerate(zip(maps, model.neck(maps), strict=True)):
        assert_close(f'eval/backbone_out_{level}', before)
        assert_close(f'eval/neck_out_{level}', after)


@torch.no_grad()
def test_greedy_decoding_is_that_of_the_original() -> None:
    prediction = network().eval()(torch.from_numpy(images(FACTS['input_shape'])), max_steps=LIMIT + 1)
    assert prediction.logits.argmax(-1).tolist() == FACTS['eval_decode']['argmax']
    assert_close('eval/structure_probs', prediction.logits.softmax(-1))
    assert_close('eval/loc_preds', prediction.boxes)


@torch.no_grad()
def test_maps_of_odd_sizes_are_upsampled_as_in_the_original() -> None:
    """488 / 32 is 15.25: maps have 122, 61, 31 and 16 pixels per side."""
    prediction = network().eval()(random_images(1, (1, 3, 488, 488)), max_steps=11)
    assert_close('eval488/structure_probs', prediction.logits.softmax(-1))
    assert_close('eval488/loc_preds', prediction.boxes)


@torch.no_grad()
def test_decoding_stops_when_all_tables_have_ended() -> None:
    model = network().eval()
    model.head.structure[1].bias[29] += 1.16
    prediction = model(random_images(1, (2, 3, 128, 128)), max_steps=LIMIT + 1)
    assert prediction.logits.argmax(-1).tolist() == FACTS['eval_eos']['argmax']
    assert_close('eval_eos/structure_probs', prediction.logits.softmax(-1))


def test_training_outputs_losses_and_running_statistics_are_those_of_the_original() -> None:
    model = network().train()
    prediction, losses = follow(model)
    assert_close('train/structure_logits', prediction.logits)
    assert_close('train/loc_preds', prediction.boxes)
    expected = [FACTS['train_losses'][key] for key in ('structure_loss', 'loc_loss')]
    assert [loss.item() for loss in losses] == pytest.approx(expected, rel=5e-5)
    names = original(model).name
    running = {f'bn_after_one_train_forward/{names(name)}': buffer for name, buffer in model.named_buffers()}
    for key in (key for key in ARRAYS if key.startswith('bn_after')):
        np.testing.assert_allclose(running[key], ARRAYS[key], rtol=1e-5, atol=1e-6, err_msg=key)


def test_gradients_are_those_of_the_original() -> None:
    model = network(torch.float64).train()
    losses = follow(model)[1]
    expected = [FACTS['train_losses_f64'][key] for key in ('structure_loss', 'loc_loss')]
    assert [loss.item() for loss in losses] == pytest.approx(expected, rel=1e-6)
    torch.stack(losses).sum().backward()
    names = original(model).name
    linear = {f'{name}.weight' for name, module in model.named_modules() if isinstance(module, torch.nn.Linear)}
    gradients = {
        names(name): p.grad.T if name in linear else p.grad for name, p in model.named_parameters() if p.grad is not None
    }
    assert gradients.keys() == FACTS['grad_l2_all'].keys()
    for name, length in FACTS['grad_l2_all'].items():
        assert gradients[name].norm().item() == pytest.approx(length, rel=1e-3), name
    for key in (key for key in ARRAYS if key.startswith('grad/')):
        assert_close(key, gradients[key.removeprefix('grad/')])


def test_the_first_optimizer_step_is_that_of_the_original() -> None:
    """Adam, each tensor's gradient clipped to a length of 5 by itself.

    No further steps: Adam divides by the size of a gradient, so where one is rounding noise the weight moves just as far. After
    two steps the loss in float32 is 1e-2 away from that in float64.
    """
    model = network().train()
    optimizer = torch.optim.Adam(model.parameters(), FACTS['optim_trace'][0]['lr'])
    torch.stack(follow(model)[1]).sum().backward()
    clip(model.parameters(), Clip(norm=5.0, per_tensor=True))
    optimizer.step()
    assert torch.stack(follow(model)[1]).sum().item() == pytest.approx(FACTS['optim_trace'][1]['loss'], rel=1e-3)


def test_the_learning_rate_of_the_recipe_is_that_of_the_original() -> None:
    facts = FACTS['lr']
    config = facts['lr_config']
    rate = piecewise(
        config['learning_rate'], facts['total_steps'], facts['steps_per_epoch'], factors=(0.1, 0.05), boundary_epochs=(40, 50)
    )
    assert [rate(step) for step in facts['step_index']] == pytest.approx(facts['lr'])
