"""The host never has to know what a device has found before it can hand it the rest of a step.

torch's device `meta` has shapes and no values: whatever asks for one, or makes a shape of one, fails there. On CUDA it would
wait until the device has done all that was asked of it so far, and the device would then wait for the host.
"""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from phalanx.engine.job import open_job
from phalanx.engine.loader import Stream
from phalanx.families.recognition.models import MODELS
from phalanx.families.recognition.texts import Texts
from phalanx.families.segmentation.loss import LOSSES
from phalanx.families.task import Loss
from phalanx.families.text_detection.loss import DbLoss
from phalanx.families.text_detection.models.db import db
from phalanx.families.text_detection.targets import Targets
from phalanx.parallel.step import WholeStep

META = torch.device('meta')
EPOCH = 10
OPTIONS = {'ohem': {'min_kept_per_sample': 100}}
WITHOUT = {
    'semantic_connectivity',  # counts areas on the host; it has no gradient, and is there to be looked at
    'mixed',  # of others
}


def step_of(recipe: str, *settings: str) -> Loss:
    """A forward and a backward pass of two samples, without values."""
    job = open_job(recipe, [(setting, setting) for setting in settings])
    dataset = job.task.dataset('train')
    draws = Stream(len(dataset), 2, 1, 0, 0, 1).share(0)
    batch = job.task.collate([dataset[draw] for draw in draws]).to(META)
    with META:
        model = job.task.model().train()
    loss = job.task.loss(job.task.outputs(model, batch), batch, WholeStep(epoch=EPOCH))
    total(loss).backward()
    assert all(parameter.grad is not None for parameter in model.parameters() if parameter.requires_grad)
    return loss


def total(loss: Loss) -> Tensor:
    return torch.stack([term.mean() for term in loss.values()]).sum()


@pytest.mark.parametrize(
    ('recipe', 'settings'),
    [
        ('pp_liteseg_digits', ()),
        ('ppyoloe_digits', ('loss.static_assigner_epochs=100',)),
        ('ppyoloe_digits', ('loss.static_assigner_epochs=0',)),
        ('slanet_rendered', ()),
    ],
    ids=['segmentation', 'detection by position', 'detection by task', 'tables'],
)
def test_a_step_asks_the_device_for_nothing(recipe: str, settings: tuple[str, ...]) -> None:
    """Text is missing: torch's CTC takes the lengths of texts from the host, wherever it runs."""
    assert {term.total.device for term in step_of(recipe, *settings).values()} == {META}


@pytest.mark.parametrize(
    'settings',
    [
        ('model={name: unet}', 'loss=[cross_entropy]'),
        pytest.param(
            ('model={name: ocrnet, backbone: hrnet_w18}', 'loss=[cross_entropy, cross_entropy]'), marks=pytest.mark.long
        ),
        ('model={name: segformer, backbone: mit_b0}', 'loss=[cross_entropy]'),
        pytest.param(('model={name: deeplabv3p, backbone: xception65}', 'loss=[cross_entropy]'), marks=pytest.mark.long),
    ],
    ids=['unet', 'ocrnet', 'segformer', 'deeplabv3p'],
)
def test_no_network_of_segmentation_asks_the_device(settings: tuple[str, ...]) -> None:
    step_of('pp_liteseg_digits', *settings)


@pytest.mark.parametrize('name', [pytest.param('crnn', marks=pytest.mark.long), 'svtr_lcnet', 'svtr_lcnetv3'])
def test_no_network_of_text_asks_the_device(name: str) -> None:
    """The attention decoder follows the true texts, of 3 and 5 characters."""
    with META:
        model = MODELS[name](10, **({'nrtr_size': 32} if name == 'svtr_lcnetv3' else {})).train()
        lengths = torch.tensor([3, 5])
        texts = Texts(torch.ones(2, 5, dtype=torch.int64), lengths, torch.ones(2, 25, dtype=torch.int64), torch.ones(2))
        outputs = model(torch.rand(2, 3, 32 if name == 'crnn' else 48, 320), texts)
    assert (outputs.sar is not None) == (name == 'svtr_lcnet')
    assert (outputs.nrtr is not None) == (name == 'svtr_lcnetv3')
    parts = (outputs.ctc, outputs.sar, outputs.nrtr)
    torch.stack([part.sum() for part in parts if part is not None]).sum().backward()


@pytest.mark.parametrize('name', sorted(LOSSES.keys() - WITHOUT))
def test_a_loss_of_segmentation_asks_the_device_for_nothing(name: str) -> None:
    logits = torch.zeros(2, 2, 32, 32, device=META, requires_grad=True)
    term = LOSSES[name](**OPTIONS.get(name, {}))(logits, torch.zeros(2, 32, 32, dtype=torch.int64, device=META), WholeStep())
    term.mean().backward()
    assert logits.grad is not None


@pytest.mark.parametrize('main', ['dice', 'bce'])
def test_text_detection_asks_the_device_for_nothing(main: Literal['dice', 'bce']) -> None:
    with META:
        model, targets = db(head='local_small').train(), Targets(*torch.zeros(4, 2, 64, 64))
        maps = model(torch.rand(2, 3, 64, 64))
    total(DbLoss(main=main)(maps, targets, WholeStep())).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
