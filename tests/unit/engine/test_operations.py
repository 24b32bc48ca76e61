"""Operations of a training step on one rank: the same number as plain PyTorch with the same network and loss."""

from __future__ import annotations

import copy
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.engine.job import open_job
from phalanx.engine.optim.groups import parameter_groups
from phalanx.engine.trainer import Trainer
from phalanx.parallel.norms import BatchNorm2d
from phalanx.parallel.step import WholeStep

CPU = torch.device('cpu')
FAMILIES = {
    'segmentation': ('pp_liteseg_digits', 'data.size=[32,64]', 'data.train_scenes=2'),
    'detection': ('ppyoloe_digits',),
    'recognition': ('crnn_digits',),
    'table': ('slanet_rendered',),
    'text_detection': ('db_pages',),
}


class Operations(TorchDispatchMode):
    """Counts the ATen operations within its context."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[str(function)] += 1
        return function(*args, **(kwargs or {}))

    @classmethod
    def of(cls, step: Any) -> Self:
        with cls() as operations:
            step()
        return operations


def plain(trainer: Trainer, batch: Any) -> Any:
    """A step of plain PyTorch with the network, the loss and the optimizer of `trainer`, and torch's own norms."""
    model = with_norms_of_torch(copy.deepcopy(trainer.model))
    optimizer = trainer.recipe.optimizer(parameter_groups(model, trainer.recipe.parameters))
    whole = WholeStep(samples=len(batch))

    def step() -> None:
        terms = trainer.task.loss(trainer.task.outputs(model, batch), batch, whole)
        torch.stack([term.mean() for term in terms.values()]).sum().backward()
        if trainer.recipe.clip:
            nn.utils.clip_grad_norm_(model.parameters(), trainer.recipe.clip.norm)
        optimizer.step()
        optimizer.zero_grad()

    return step


def with_norms_of_torch(model: nn.Module) -> nn.Module:
    for name, child in model.named_children():
        if isinstance(child, BatchNorm2d):
            setattr(model, name, nn.BatchNorm2d(child.num_features, child.eps, child.momentum))
        else:
            with_norms_of_torch(child)
    return model


@pytest.mark.parametrize('family', FAMILIES)
def test_a_step_on_one_rank_is_that_of_plain_pytorch(family: str, tmp_path: Path) -> None:
    """Within a tenth; what Phalanx adds is the numbers of the log, and the gradient norm."""
    recipe, *sets = FAMILIES[family]
    own = (*sets, 'train.workers=0', 'train.global_batch_size=2', 'device=cpu', 'ema=null')
    job = open_job(recipe, [(text, text) for text in own])
    trainer: Trainer = Trainer(job.recipe, job.task, folder=tmp_path, device=CPU)
    batches = trainer.batches()
    trainer.train_step(next(batches))  # optimizers make their state in the first step
    batch = next(batches)
    step = plain(trainer, batch.to(CPU))
    step()
    ours, theirs = Operations.of(lambda: trainer.train_step(batch)), Operations.of(step)
    assert ours.counts.total() <= 1.1 * theirs.counts.total(), (ours.counts - theirs.counts).most_common(8)


def calls_of(step: Callable[[], None]) -> int:
    """Number of Python functions and built-in functions that `step` calls."""
    calls = 0

    def count(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ('call', 'c_call')

    sys.setprofile(count)
    try:
        step()
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize('family', FAMILIES)
def test_a_step_calls_as_few_functions_as_plain_pytorch(family: str, tmp_path: Path) -> None:
    """A GPU waits for the host that launches its kernels: a network of 300 norms was 17 % slower for 2.3 times the calls."""
    recipe, *sets = FAMILIES[family]
    own = (*sets, 'train.workers=0', 'train.global_batch_size=2', 'device=cpu', 'ema=null', 'clip=null')
    job = open_job(recipe, [(text, text) for text in own])
    trainer: Trainer = Trainer(job.recipe, job.task, folder=tmp_path, device=CPU)
    batches = trainer.batches()
    trainer.train_step(next(batches))
    batch = next(batches)
    step = plain(trainer, batch.to(CPU))
    step()
    assert calls_of(lambda: trainer.train_step(batch)) <= 1.1 * calls_of(step)


def test_a_detection_step_decodes_the_predicted_boxes_once(tmp_path: Path) -> None:
    """The assigner and the GIoU loss share them: of a step, only decoding takes a softmax over the bins of distances."""
    recipe, *_ = FAMILIES['detection']
    own = ('train.workers=0', 'train.global_batch_size=2', 'device=cpu', 'ema=null')
    job = open_job(recipe, [(text, text) for text in own])
    trainer: Trainer = Trainer(job.recipe, job.task, folder=tmp_path, device=CPU)
    batch = next(trainer.batches())
    operations = Operations.of(lambda: trainer.train_step(batch))
    assert operations.counts['aten._softmax.default'] == operations.counts['aten._softmax_backward_data.default'] == 1
