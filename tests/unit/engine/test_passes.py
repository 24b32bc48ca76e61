"""The gradient of a step is that of its whole batch, by each route and with any number of micro-batches.

One linear layer in float64 and three samples, of which some or all have no target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from phalanx.data.batch import ImageBatch
from phalanx.engine.loader import Stream
from phalanx.engine.passes import NetworkWithLoss, Passes
from phalanx.engine.precision import Precision, PrecisionOptions
from phalanx.families.task import Loss, Task, Term
from phalanx.parallel.gradients import GradientOptions
from phalanx.parallel.norms import RunningStatistics
from phalanx.parallel.step import WholeStep

CPU = torch.device('cpu')
FLAGS = [0.0, 2.0]


@dataclass(frozen=True)
class Batch(ImageBatch):
    targets: Tensor  # [B]
    weights: Tensor  # [B] of each sample; 0: it has no target


class OneLayer(Task):
    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(batch.images).squeeze(1)


OneLayer.__abstractmethods__ = frozenset()  # the passes of a step call no other method of a Task


class WeightsOfTargets(OneLayer):
    def loss(self, outputs: Tensor, batch: Batch, whole: WholeStep) -> Loss:
        errors, weights = outputs - batch.targets, self.weights(batch)
        return {
            'square': Term((errors.square() * batch.weights).sum(), weights['square'], least=1.0),
            'distance': Term((errors.abs() * batch.weights).sum(), weights['distance']),
        }

    def weights(self, batch: Batch) -> Mapping[str, Tensor]:
        return {'square': batch.weights.sum(), 'distance': 2 * batch.weights.sum()}


class WeightOfOutputs(OneLayer):
    least = 1.0, 1.0

    def loss(self, outputs: Tensor, batch: Batch, whole: WholeStep) -> Loss:
        errors, weight = outputs - batch.targets, (outputs.detach().abs() * batch.weights).sum()
        totals = (errors.square() * batch.weights).sum(), (errors.abs() * batch.weights).sum() + outputs.square().sum()
        return {name: Term(*parts) for name, *parts in zip('ab', totals, (weight, weight), self.least, strict=True)}

    def weights(self, batch: Batch) -> None:
        return None


class HardestOfStep(OneLayer):
    sees_whole_step = True  # type: ignore[assignment]

    def loss(self, outputs: Tensor, batch: Batch, whole: WholeStep) -> Loss:
        errors = (outputs - batch.targets).square()
        mean = whole.sum(errors.sum()) / whole.count(len(batch))
        kept = (errors.detach() > mean) * batch.weights
        return {'hardest': Term((errors * kept).sum(), kept.sum())}


TASKS: dict[str, type[OneLayer]] = {
    'weights of the targets': WeightsOfTargets,
    'a weight of the outputs': WeightOfOutputs,
    'the hardest of the step': HardestOfStep,
}


def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(2, 1, dtype=torch.float64)


def batch_with(weights: tuple[float, ...]) -> Batch:
    images, targets = [[1.0, -2.0], [3.0, 0.5], [-1.0, 2.0]], [1.0, -1.0, 2.0]
    return Batch(*(torch.tensor(values, dtype=torch.float64) for values in (images, targets, weights)))


def passes_of(task: OneLayer, model: nn.Module, micro_batches: int) -> Passes[Batch]:
    with_loss, stream = NetworkWithLoss(task, model, WholeStep(samples=3)), Stream(3, 3, micro_batches, 0, 0, 1)
    return Passes(with_loss, stream, Precision(PrecisionOptions(), CPU), RunningStatistics(model), GradientOptions(), CPU)


def mean_by_hand(term: Term) -> Tensor:
    """0 where the term weighs nothing."""
    weight = max(term.weight.item(), term.least)
    return term.total / weight if weight else term.total * 0


@pytest.mark.parametrize('weights', [(1, 1, 1), (0, 2, 0), (0.25, 0, 0), (0, 0, 0)], ids=str)
@pytest.mark.parametrize('micro_batches', [1, 2, 3])
@pytest.mark.parametrize('name', TASKS)
def test_gradients_and_means_are_those_of_the_whole_batch(name: str, micro_batches: int, weights: tuple[float, ...]) -> None:
    task, model, batch = TASKS[name](), layer(), batch_with(weights)
    terms = task.loss(task.outputs(model, batch), batch, WholeStep())
    expected = torch.stack([mean_by_hand(term) for term in terms.values()])
    gradients = torch.autograd.grad(expected.sum(), list(model.parameters()))

    means, flags = passes_of(task, model, micro_batches)(0, batch, FLAGS)
    torch.testing.assert_close(means, expected.detach())
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], list(gradients))
    assert flags.tolist() == FLAGS


def test_a_loss_without_a_common_divisor_is_refused_for_micro_batches() -> None:
    task = WeightOfOutputs()
    task.least = 1.0, 0.5  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r'the terms of this loss \(a, b\) have their own weights.*set train.micro_batches=1'):
        passes_of(task, layer(), micro_batches=2)(0, batch_with((1, 1, 1)), FLAGS)


def test_a_sum_of_nothing_with_a_value_is_an_infinite_loss() -> None:
    """Such a loss forgets the lower bound of its weight; the run then ends with its message for losses that are not finite."""

    class Forgetful(WeightOfOutputs):
        least = 0.0, 0.0

    means, _ = passes_of(Forgetful(), layer(), micro_batches=1)(0, batch_with((0, 0, 0)), FLAGS)
    assert means.tolist() == [0, torch.inf]


def test_the_passes_that_arrange_buckets_leave_no_gradient() -> None:
    model = layer()
    passes = passes_of(WeightsOfTargets(), model, micro_batches=2)
    passes.arrange_buckets(0, batch_with((1, 1, 1)))
    assert all(parameter.grad is None for parameter in model.parameters())
