"""Detection learns, and the cut of a step does not show."""

import math
from functools import partial
from pathlib import Path

import pytest
import torch

from phalanx.data.samples import Draw
from phalanx.families.detection.data import DATA
from phalanx.families.detection.loss import LOSSES
from phalanx.families.detection.metric import METRICS
from phalanx.families.detection.models import MODELS
from phalanx.families.detection.task import Detection, Samples
from phalanx.parallel.step import WholeStep
from running import Command, losses

# PP-YOLOE on images that change size from step to step. Epochs of 7 samples end within steps of 5, and with the first of them
# the assigner changes.
TINY = (
    'ppyoloe_digits',
    '--set',
    'data.size=[64,96]',
    'data.train_scenes=7',
    'data.eval_scenes=5',
    'transforms=[random_expand, random_crop, random_flip, {name: batch_random_resize, sizes: [64, 96]}]',
    'loss.static_assigner_epochs=1',
    'optimizer={name: sgd, lr: 1e-5}',
    'schedule={name: constant}',
    'ema=null',
    'train.global_batch_size=5',
    'train.steps=3',
    'train.workers=0',
    'report.every=1',
    'report.pictures=1',
    'device=cpu',
)


@pytest.mark.long
def test_four_scenes_are_memorised() -> None:
    """From images and boxes to found boxes: in 80 steps most digits of four scenes are found, with their classes."""
    torch.manual_seed(0)
    keys = Detection.Keys(
        model=partial(MODELS['ppyoloe']),
        data=partial(DATA['digit_scenes'], train_scenes=4, size=(64, 96), digit_height=(24, 44)),
        loss=(partial(LOSSES['task_aligned'], static_assigner_epochs=80),),  # all of the run: each step is an epoch
        metric=partial(METRICS['coco']),
    )
    task = Detection(keys)
    source = task.dataset('train').source
    learnt, eval_batch = (
        task.collate([Samples(source, (), split)[Draw(index, 0, 0, 0)] for index in range(4)]) for split in ('train', 'eval')
    )
    model, metric = task.model(), task.metric()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(80):
        for group in optimizer.param_groups:
            group['lr'] = 1e-3 * (1 + math.cos(math.pi * step / 80))  # at its end running statistics come to rest
        loss = sum(term.mean() for term in task.loss(task.outputs(model, learnt), learnt, WholeStep(epoch=step)).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        metric.update(task.predict(model.eval(), eval_batch), eval_batch)
    metric.gather()
    assert metric.compute()['ap50'] > 0.5  # 0.7 to 1.0 for the seeds 0 to 4


@pytest.mark.long
@pytest.mark.parametrize(
    'cut', [('--nproc_per_node', '3'), ('train.micro_batches=2',)], ids=['three ranks', 'two micro-batches']
)
def test_uneven_shares_of_a_batch_change_nothing(
    phalanx: Command, phalanx_here: Command, tmp_path: Path, cut: tuple[str, ...]
) -> None:
    """A global batch of 5 is 2, 2 and 1 samples, or 3 and 2."""
    alone = phalanx_here('train', *TINY, 'evaluate.enabled=false', '--save_dir', 'alone')
    assert alone.returncode == 0, alone.stderr
    run = phalanx('train', *TINY, 'evaluate.enabled=false', *cut, '--save_dir', 'cut')
    assert run.returncode == 0, run.stderr
    assert losses(tmp_path / 'cut') == pytest.approx(losses(tmp_path / 'alone'), rel=1e-5)
