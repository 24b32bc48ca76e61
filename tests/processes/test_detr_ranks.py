"""D-FINE on one to four ranks and with micro-batches: in float64, where the cut of a step must not show.

In float32 the same runs differ by rounding, which freshly drawn networks amplify: measured in float64, from 1e-13 in step 10
to 1e-5 in step 25, by how much depends on the CPU.
"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from doubled import InDouble
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.parallel import dist
from running import as_ranks

# Six samples of two sizes; four ranks or micro-batches have 2, 2, 1 and 1 of them. Norms do not see what a rank has.
RECIPE = (
    'data={name: digit_scenes, train_scenes: 40, eval_scenes: 2, size: [64, 96], digit_height: [24, 44]}',
    'transforms=[random_expand, random_crop, random_flip, {name: batch_random_resize, sizes: [64, 96]}]',
    'model={name: dfine}',
    'loss=[dfine]',
    'optimizer={name: adamw, lr: 1.0e-3}',
    'schedule={name: constant}',
    'train.global_batch_size=6',
    'train.workers=0',
    'norm_sync=frozen',
    'ema=null',
    'report.every=1',
    'device=cpu',
)


def trained(folder: Path, *sets: str) -> Tensor:
    """Terms and total of the loss of each step, float64 [steps, terms + 1]."""
    job = open_job('ppyoloe_digits', [(text, text) for text in (*RECIPE, *sets)], folder)
    trainer: Trainer[Any, Any, Any] = Trainer(job.recipe, InDouble(job.task), folder=folder, device=torch.device('cpu'))  # type: ignore[arg-type]
    for batch in trainer.batches():
        trainer.train_step(batch)
        trainer.progress.step += 1
    trainer.read_numbers(keep=0)
    return torch.tensor(trainer.numbers.logged, dtype=torch.float64)


def as_rank(rank: int, ranks: int, folder: Path, *sets: str) -> None:
    torch.set_num_threads(1)
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': str(ranks), 'PHALANX_INIT_METHOD': f'file://{folder}/rendezvous'}
    dist.join(torch.device('cpu'))
    found = trained(folder, *sets)
    if rank == 0:
        torch.save(found, folder / 'losses.pt')
    gc.collect()  # DDP lets go of the process group
    dist.leave()


def test_four_uneven_micro_batches_train_like_one(tmp_path: Path) -> None:
    """Two of them are single images, whose gradients torch's kernel of batch norm got wrong."""
    small = ('train.steps=2', 'model.decoder_layers=2', 'model.queries=20')
    alone, cut = (trained(tmp_path, *small, f'train.micro_batches={parts}') for parts in (1, 4))
    torch.testing.assert_close(cut, alone, rtol=1e-10, atol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize(('steps', 'tolerance'), [(3, 1e-10), (10, 1e-8)])
def test_the_cut_of_a_step_does_not_show(tmp_path: Path, steps: int, tolerance: float) -> None:
    length = f'train.steps={steps}'
    alone = trained(tmp_path, length)
    for ranks in (2, 3, 4):
        folder = tmp_path / f'{ranks} ranks'
        folder.mkdir()
        as_ranks(ranks, as_rank, ranks, folder, length)
        torch.testing.assert_close(torch.load(folder / 'losses.pt'), alone, rtol=tolerance, atol=1e-12)
    for parts in (2, 4):
        cut = trained(tmp_path, length, f'train.micro_batches={parts}')
        torch.testing.assert_close(cut, alone, rtol=tolerance, atol=1e-12)
