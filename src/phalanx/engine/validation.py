"""The loss of the evaluation samples, to be seen beside that of the training: where it rises again, a run learns by heart."""

import math
from collections.abc import Sequence
from itertools import islice

import torch
from torch import Tensor, nn

from phalanx.engine.evaluation import Setup
from phalanx.engine.loader import evaluation_draws
from phalanx.engine.passes import NetworkWithLoss
from phalanx.engine.terms import means
from phalanx.families.task import Task
from phalanx.nn.stochastic import Dropout
from phalanx.parallel import dist
from phalanx.parallel.norms import BatchNorm2d
from phalanx.parallel.step import WholeStep

ONLY_TRAINING = (BatchNorm2d, Dropout, nn.modules.dropout._DropoutNd)  # what does one thing in training, another afterwards


class SingleBatchStep(WholeStep):
    """A batch whose loss is computed by itself: no other rank is asked, since ranks may have different numbers of them."""

    def sum(self, part: Tensor) -> Tensor:
        return part.detach()

    def largest(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)


@torch.no_grad()
def validation_loss(task: Task, model: nn.Module, setup: Setup, whole: WholeStep) -> float:
    """The loss of `model` on the evaluation samples, transformed as training ones, always by the same random numbers.

    Norms and dropout work as in evaluation. Each term is the sum of its totals by that of its weights, over all samples; what a
    loss asks about a whole step (hardest pixels, Lovász) is answered for a batch. `whole` says which epoch it is. All ranks
    call this together, and each has whole batches, so the number of ranks changes nothing. NaN where no sample can be read.
    Leaves the model in training mode.
    """
    dataset = task.for_validation_loss().dataset('train')
    alone = SingleBatchStep(epoch=whole.epoch, epochs=whole.epochs)
    with_loss: NetworkWithLoss = NetworkWithLoss(task, model.train(), alone)
    for module in model.modules():
        if isinstance(module, ONLY_TRAINING):
            module.eval()
    terms = list[Tensor]()  # [2, terms] float64 of each batch: totals, and their weights
    everywhere = evaluation_draws(len(dataset), setup.recipe.evaluate.batch_size, setup.recipe.train.seed, 0, 1)
    with setup.precision.autocast():
        for batch in setup.loader(task, dataset).batches(islice(everywhere, dist.rank(), None, dist.world_size())):
            setup.beat()
            totals, weights = with_loss(task.align(batch.to(setup.device), alone))
            terms.append(torch.stack([totals.double(), weights]))
    model.train()
    own = (torch.stack(terms).sum(0).cpu(), with_loss.least) if terms else None
    of_ranks = [part for part in dist.gather_objects(own) if part is not None]
    if not of_ranks:
        return math.nan
    totals, weights = torch.stack([sums for sums, _ in of_ranks]).sum(0)
    _, least = of_ranks[0]
    return float(means(totals, weights, least).sum())
