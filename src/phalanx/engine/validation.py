"""Loss on the evaluation samples, to compare with the training loss: it rises when a run overfits."""

import math
from collections.abc import Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from phalanx.data.samples import Dataset
from phalanx.engine.evaluation import Setup
from phalanx.engine.loader import evaluation_draws
from phalanx.engine.passes import NetworkWithLoss
from phalanx.engine.terms import means
from phalanx.families.task import Task
from phalanx.nn.stochastic import Dropout
from phalanx.parallel import dist
from phalanx.parallel.norms import BatchNorm2d
from phalanx.parallel.step import WholeStep

ONLY_TRAINING = (BatchNorm2d, Dropout, nn.modules.dropout._DropoutNd)  # modules that behave differently in evaluation


class SingleBatchStep(WholeStep):
    """Step that consists of one batch on one rank: no collectives, since ranks may have different numbers of batches."""

    def sum(self, part: Tensor) -> Tensor:
        return part.detach()

    def largest(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)


@torch.no_grad()
def validation_loss(task: Task, model: nn.Module, setup: Setup, whole: WholeStep, dataset: Dataset[Any]) -> float:
    """Return the loss of `model` on `dataset`, evaluation samples with the transforms of training and fixed random numbers.
    Collective.

    Norms and dropout work as in evaluation. Each term is the sum of its totals by that of its weights, over all samples; values
    that a loss takes over a whole step (OHEM threshold, Lovász) are per batch. `whole` provides the epoch. Each rank gets whole
    batches, so the result does not depend on the number of ranks. NaN if no sample can be read. Leaves the model in training
    mode.
    """
    alone = SingleBatchStep(epoch=whole.epoch, epochs=whole.epochs)
    with_loss: NetworkWithLoss = NetworkWithLoss(task, model.train(), alone)
    # Training mode for its outputs (auxiliary heads), but norms and dropout as in evaluation.
    for module in model.modules():
        if isinstance(module, ONLY_TRAINING):
            module.eval()
    terms = list[Tensor]()  # [2, terms] float64 of each batch: totals, and their weights
    all_draws = evaluation_draws(len(dataset), setup.recipe.evaluate.batch_size, setup.recipe.train.seed, 0, 1)
    with setup.precision.autocast():
        # Whole batches are dealt out to ranks in turn, so that values per batch (OHEM threshold) do not depend on the world
        # size.
        for batch in setup.loader(task, dataset).batches(islice(all_draws, dist.rank(), None, dist.world_size())):
            setup.beat()
            totals, weights = with_loss(task.align(batch.to(setup.device), alone))
            terms.append(torch.stack([totals.double(), weights]))
    model.train()
    # Ranks without a batch have no terms, nor do they know their number.
    own = (torch.stack(terms).sum(0).cpu(), with_loss.least) if terms else None
    of_ranks = [part for part in dist.gather_objects(own) if part is not None]
    if not of_ranks:
        return math.nan
    # Sums over ranks and batches, divided once: a mean of means would weigh batches, not samples.
    totals, weights = torch.stack([sums for sums, _ in of_ranks]).sum(0)
    _, least = of_ranks[0]
    return float(means(totals, weights, least).sum())
