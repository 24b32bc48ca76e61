"""Forward and backward passes of one step: they leave the gradients of the loss of the whole global batch.

A loss is a set of terms, each (sum of totals) / (sum of weights), both over the whole step: all ranks and all micro-batches.
With one micro-batch the sums over ranks are taken between the two passes. Several micro-batches are ordinary gradient
accumulation: each has its backward pass, after which its activations are freed, so its divisor must be known before:

- weights that targets alone determine (pixels, texts, boxes) are added up before the first pass;
- a weight that only the outputs determine, if all terms share it, divides the gradients after the last pass;
- a loss that must see the outputs for the whole step at once (hard-example mining, Lovász) costs a second forward pass: the
  first keeps nothing but the outputs, and gives the gradient with which each micro-batch then goes backward (GradCache, Gao et
  al. 2021, "Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup").
"""

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._pytree import tree_leaves, tree_map

from phalanx.data.batch import ImageBatch, split_evenly
from phalanx.engine.loader import Stream
from phalanx.engine.precision import Precision
from phalanx.engine.terms import factors, means
from phalanx.families.task import Loss, Task
from phalanx.nn import stochastic
from phalanx.nn.precision import at_least_float32
from phalanx.nn.stochastic import SampleKeys
from phalanx.parallel import dist, norms
from phalanx.parallel.gradients import GradientOptions, wrap_ddp
from phalanx.parallel.step import WholeStep
from phalanx.system.errors import RunError
from phalanx.system.memory import to_device


class NetworkWithLoss(nn.Module):
    """Network and loss in one module, for DDP to wrap: a task may call its network as it likes."""

    def __init__(self, task: Task, network: nn.Module, whole: WholeStep) -> None:
        super().__init__()
        self.task, self.network, self.whole = task, network, whole
        self.names: tuple[str, ...] = ()  # of the terms, after the first pass
        self.least: tuple[float, ...] = ()  # lower bounds of their weights
        self.has_one_divisor = False  # all terms share their weight and its lower bound

    def forward(self, batch: ImageBatch, only_outputs: bool = False) -> Any:
        """Return totals [terms] (float32 or better) and weights [terms] (float64) of a batch; or its outputs."""
        outputs = self.task.outputs(self.network, batch)
        return outputs if only_outputs else self.terms(outputs, batch)

    def check_weights(self, loss: Loss, batch: ImageBatch) -> None:
        """Raise RunError unless the weights of a loss are those that its method `weights` states: micro-batches rely on it."""
        known = self.task.weights(batch)
        if known is None:
            return
        if tuple(known) != tuple(loss):
            raise RunError(
                f'loss: returns the terms {", ".join(loss)}, but its method `weights` those of {", ".join(known)}; '
                'both must name the same terms in the same order'
            )
        for name, stated in known.items():
            if not math.isclose(weight := float(loss[name].weight), float(stated), rel_tol=1e-6):
                raise RunError(
                    f'loss: the weight of {name} is {weight:g}, but its method `weights` returns {float(stated):g} for it; '
                    'return the same number, or None if outputs determine it (docs/extending.md, Losses)'
                )

    def terms(self, outputs: Any, batch: ImageBatch) -> tuple[Tensor, Tensor]:
        """Return totals [terms] and weights [terms] of the loss of `outputs`."""
        loss = self.task.loss(outputs, batch, self.whole)
        if not self.names:  # once, since the host waits for the device
            self.check_weights(loss, batch)
        self.names, self.least = tuple(loss), tuple(term.least for term in loss.values())
        self.has_one_divisor = len({(id(term.weight), term.least) for term in loss.values()}) == 1
        return (
            torch.stack([at_least_float32(term.total) for term in loss.values()]),
            # float64: sums of pixel counts over a large step exceed the 24 bits of float32.
            torch.stack([term.weight.detach().double() for term in loss.values()]),
        )


class Passes:
    """Runs the passes of a step in the order that its loss allows."""

    def __init__(
        self,
        with_loss: NetworkWithLoss,
        stream: Stream,
        precision: Precision,
        statistics: norms.RunningStatistics,
        gradients: GradientOptions,
        device: torch.device,
    ) -> None:
        """Collective; the network must be on its device, with its norms synchronised."""
        self.with_loss, self.stream, self.precision, self.statistics = with_loss, stream, precision, statistics
        self.device, self.micro_batches = device, stream.micro_batches
        self.keys = SampleKeys()
        self.is_random = stochastic.tie(with_loss, self.keys)
        self.replica, self.compression = wrap_ddp(with_loss, gradients)
        self.ranks = dist.world_size()  # cancels DDP's average: the loss is a sum over ranks

    def __call__(self, step: int, batch: ImageBatch, flags: Sequence[float]) -> tuple[Tensor, Tensor]:
        """Leave the gradients of the step's loss; `batch` is the share of this rank.

        Returns the means of the terms [terms] and `flags` summed over ranks [flags], both float64. Raises ValueError for a loss
        that cannot be computed with micro-batches.
        """
        batch, keys = self.prepare(step, batch)
        is_first = not self.with_loss.names
        # One vector for all sums of a step besides gradients and norms: each all-reduce costs a latency.
        numbers = self.sums(batch, keys, to_device(torch.tensor(flags, dtype=torch.float64), self.device))
        if is_first:
            self.check_gradients()
        terms = len(self.with_loss.names)
        totals, weights, summed_flags = torch.split(numbers, [terms, terms, len(flags)])
        return means(totals, weights, self.with_loss.least), summed_flags

    def sums(self, batch: ImageBatch, keys: Tensor | None, flags: Tensor) -> Tensor:
        """Leave the gradients; return sums over ranks [2 terms + flags] float64: totals and weights of terms, `flags`."""
        task = self.with_loss.task
        # The cheapest order that gives the exact loss of the whole step.
        if self.micro_batches == 1:
            return self.single_pass(batch, keys, flags)
        # Hard-example mining and the like: no sum of micro-batches gives this loss.
        if task.sees_whole_step:
            return self.two_forwards(batch, keys, flags)
        weights = task.weights(batch)
        # Weights that follow from targets alone; None if they follow from outputs.
        if weights is not None:
            return self.divide_before(batch, keys, flags, weights)
        return self.divide_after(batch, keys, flags)

    def prepare(self, step: int, batch: ImageBatch) -> tuple[ImageBatch, Tensor | None]:
        """Move `batch` to the device and pad it to the size on other ranks; return it with the random keys [B] of its
        samples.
        """
        self.with_loss.whole.epoch = self.stream.epoch_of(step)
        batch = self.with_loss.task.align(batch.to(self.device), self.with_loss.whole)
        if not self.is_random:
            # Keys follow samples, not ranks: dropout is the same at any world size.
            return batch, None
        indices = torch.tensor([draw.index for draw in self.stream.share(step)])
        return batch, to_device(stochastic.sample_keys(self.stream.seed, step, indices), self.device)

    def single_pass(self, batch: ImageBatch, keys: Tensor | None, flags: Tensor) -> Tensor:
        """One micro-batch: the sums over ranks are taken between forward and backward pass."""
        self.keys.begin(keys)
        # Forward, sums of totals and weights over ranks, then backward through totals times factors.
        with self.precision.autocast():
            totals, weights = self.replica(batch)
        numbers = dist.sum_over_ranks(torch.cat([totals.detach(), weights, flags]))
        self.precision.backward((totals * self.factors(numbers[len(totals) : -len(flags)]).to(totals.dtype)).sum())
        self.statistics.follow()
        return numbers

    def divide_before(self, batch: ImageBatch, keys: Tensor | None, flags: Tensor, known: Mapping[str, Tensor]) -> Tensor:
        """Gradient accumulation with weights from targets. `known`: the weights [] of this rank's share, by term."""
        weights = torch.stack([weight.double() for weight in known.values()])
        weights_of_step, sums = dist.sum_over_ranks(weights), torch.zeros_like(weights)
        for part in self.parts(batch, keys):
            with self.precision.autocast():
                totals, _ = self.replica(part)
            factors = self.factors(weights_of_step)  # here, since the first pass provides the lower bounds of the weights
            self.precision.backward((totals * factors.to(totals.dtype)).sum())
            sums += totals.detach()
        return dist.sum_over_ranks(torch.cat([sums, weights, flags]))

    def divide_after(self, batch: ImageBatch, keys: Tensor | None, flags: Tensor) -> Tensor:
        """Gradient accumulation with one weight for all terms, which follows from outputs: divide the gradients at the end."""
        samples = self.with_loss.whole.count(len(batch))  # provisional divisor, which keeps half precision in range
        sums: Tensor | float = 0.0
        for part in self.parts(batch, keys):
            with self.precision.autocast():
                totals, weights = self.replica(part)
            # One weight for all terms is a common factor of all gradients; different ones would need the gradients of each
            # term.
            if not self.with_loss.has_one_divisor:
                names = ', '.join(self.with_loss.names)
                raise ValueError(
                    f'train.micro_batches: the terms of this loss ({names}) have their own weights, which follow from outputs '
                    'alone, so the gradient of a micro-batch is unknown until the last one; set train.micro_batches=1'
                )
            self.precision.backward(totals.sum() / samples)
            sums = sums + torch.cat([totals.detach(), weights])
        numbers = dist.sum_over_ranks(torch.cat([sums, flags]))  # type: ignore[list-item]
        # The true divisor, now that all micro-batches are through: undo the provisional one.
        gradients = [value.grad for value in self.with_loss.parameters() if value.grad is not None]
        factor = self.factors(numbers[len(totals) : -len(flags)])[0] * samples
        torch._foreach_mul_(gradients, factor.to(gradients[0].dtype))
        return numbers

    def two_forwards(self, batch: ImageBatch, keys: Tensor | None, flags: Tensor) -> Tensor:
        """Loss over all outputs of the step: forward without graph, loss and its gradient, then forward and backward per
        micro-batch.
        """
        with_loss = self.with_loss
        # First forward pass: keep the outputs only, no graph and no running statistics.
        with torch.no_grad(), self.preserve_buffers(), self.precision.autocast():
            outputs_of_parts = [with_loss.task.outputs(with_loss.network, part) for part in self.parts(batch, keys)]
        outputs = tree_map(_join, *outputs_of_parts)
        # The loss of the whole share in one piece; its graph ends at the outputs, so no activations are kept.
        with self.precision.autocast():
            totals, weights = with_loss.terms(outputs, batch)
        numbers = dist.sum_over_ranks(torch.cat([totals.detach(), weights, flags]))
        loss = (totals * self.factors(numbers[len(totals) : -len(flags)]).to(totals.dtype)).sum()
        # Gradient of the loss by the outputs, then by the parameters, one micro-batch at a time.
        leaves = tree_leaves(outputs)
        asked = [number for number, leaf in enumerate(leaves) if leaf.requires_grad]
        found = torch.autograd.grad(self.precision.scale_loss(loss), [leaves[number] for number in asked], allow_unused=True)
        gradients = {number: gradient for number, gradient in zip(asked, found, strict=True) if gradient is not None}
        of_parts = zip(*(split_evenly(gradient, self.micro_batches) for gradient in gradients.values()), strict=True)
        # Second forward pass, now with a graph; its backward pass starts from the gradient of the outputs.
        for part, own in zip(self.parts(batch, keys), of_parts, strict=True):
            with self.precision.autocast():
                outputs = self.replica(part, only_outputs=True)
            leaves = tree_leaves(outputs)
            # Sizes, and outputs that the loss detaches, have no gradient.
            torch.autograd.backward([leaves[number] for number in gradients], own)
        return numbers

    def parts(self, batch: ImageBatch, keys: Tensor | None) -> Iterator[ImageBatch]:
        """Yield the micro-batches in turn. DDP sends the gradients of all of them in the backward pass of the last one."""
        count = self.micro_batches
        of_parts = [None] * count if keys is None else split_evenly(keys, count)
        for number, (part, own) in enumerate(zip(batch.split(count), of_parts, strict=True)):
            self.keys.begin(own)
            # `no_sync`: gradients of all but the last micro-batch are accumulated on this rank, then sent once.
            is_sent = number == count - 1 or not isinstance(self.replica, DistributedDataParallel)
            with contextlib.nullcontext() if is_sent else self.replica.no_sync():  # type: ignore[operator]
                yield part
            self.statistics.follow(number, count)

    def factors(self, weights: Tensor) -> Tensor:
        """Return factors [terms] of the totals of a rank, given the weights [terms] of the whole step."""
        return self.ranks * factors(weights, self.with_loss.least)

    def arrange_buckets(self, step: int, batch: ImageBatch) -> None:
        """Make DDP arrange its buckets now, by the passes of one micro-batch that leave no other trace.

        DDP arranges them after its first passes, and the summation order over three or more ranks depends on it: a resumed run
        would differ from an uninterrupted one in the last bits of its first step.
        """
        # As small as possible: DDP looks at the order of gradients only, not at their values.
        batch, keys = self.prepare(step, batch)
        part = batch.split(self.micro_batches)[0] if self.micro_batches > 1 else batch
        self.keys.begin(None if keys is None else keys[: len(part)])
        # A compressed exchange would change the state of PowerSGD.
        with self.preserve_buffers(), self.compression.off() if self.compression else contextlib.nullcontext():
            with self.precision.autocast():
                totals, _ = self.replica(part)
            totals.sum().backward()
        self.check_gradients()
        for value in self.with_loss.parameters():
            value.grad = None

    def check_gradients(self) -> None:
        """Raise RunError if a parameter took no part in the backward pass. Across ranks, DDP would fail in the next step."""
        unused = [
            name.removeprefix('_orig_mod.')  # of a compiled network
            for name, value in self.with_loss.network.named_parameters()
            if value.requires_grad and value.grad is None
        ]
        if unused:
            more = f' and {len(unused) - 3} more' if len(unused) > 3 else ''
            raise RunError(
                f'model: {", ".join(unused[:3])}{more} took no part in the loss of the first step; '
                'leave such parameters out of the network, or set their requires_grad to False'
            )

    @contextlib.contextmanager
    def preserve_buffers(self) -> Iterator[None]:
        """Context that restores the buffers of the network (running statistics) on exit."""
        before = [buffer.clone() for buffer in self.with_loss.buffers()]
        try:
            yield
        finally:
            self.statistics.forget()
            for buffer, value in zip(self.with_loss.buffers(), before, strict=True):
                buffer.copy_(value)


def _join(*parts: Tensor) -> Tensor:
    """Return the outputs of all micro-batches in one tensor, ready for a gradient unless they are integers."""
    joined = torch.cat(parts)
    return joined.requires_grad_() if joined.is_floating_point() else joined
