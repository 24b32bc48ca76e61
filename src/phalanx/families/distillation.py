"""Distillation: networks that see the same batch and learn from one another; only the student is deployed.

A network outputs named tensors, or a list of tensors (named 0, 1, ...), with samples in dim 0. Networks learn from one another
by a loss between two of them (DISTILLATIONS), and from annotations by the ordinary loss of the family (`Family.loss`).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phalanx.families.task import Loss, Term
from phalanx.nn.precision import at_least_float32
from phalanx.system.errors import RunError

STUDENT = 'student'
EPSILON = 1e-10  # added to probabilities, as in PaddleOCR


class DistillationModel(nn.Module):
    """Inputs of a network -> {name: its outputs} of all networks; in evaluation mode, the outputs of the student alone.

    A network in `frozen` only teaches: it stays in evaluation mode and its parameters are not trained. Raises
    ValueError if the student is missing or frozen, or `frozen` names an unknown network.
    """

    def __init__(self, networks: Mapping[str, nn.Module], *, frozen: Collection[str] = ()) -> None:
        super().__init__()
        unknown = {STUDENT, *frozen} - networks.keys()
        if unknown:
            raise ValueError(f'the networks of the distillation are {", ".join(networks)}; there is no {min(unknown)!r}')
        if STUDENT in frozen:
            raise ValueError(f'{STUDENT!r} is the network that learns, so it cannot be frozen')
        self.networks = nn.ModuleDict(networks)
        self.frozen = tuple(frozen)
        for name in frozen:
            self.networks[name].requires_grad_(False)
        self.train()

    @property
    def student(self) -> Any:
        """Network to evaluate and export."""
        return self.networks[STUDENT]

    def decode(self, *inputs: Any) -> Any:
        return self.student.decode(*inputs)

    def train(self, mode: bool = True) -> Self:
        # A frozen network keeps its running statistics and drops nothing out.
        super().train(mode)
        for name in self.frozen:
            self.networks[name].eval()
        return self

    def forward(self, *inputs: Any) -> Any:
        if not self.training:
            return self.student(*inputs)
        outputs = {}
        for name, network in self.networks.items():
            with torch.set_grad_enabled(torch.is_grad_enabled() and name not in self.frozen):
                outputs[name] = network(*inputs)
        return outputs


def student_of(model: nn.Module) -> nn.Module:
    """Student of a distillation; any other model itself."""
    student: nn.Module = model.student if isinstance(model, DistillationModel) else model
    return student


def network_of(model: nn.Module, name: str) -> nn.Module:
    """Network of that name in a distillation. Raises ValueError if `model` is not a distillation or has no such network."""
    networks = model.networks if isinstance(model, DistillationModel) else nn.ModuleDict()
    if name not in networks:
        raise ValueError(f'there is no network {name!r}; the distillation has {", ".join(networks) or "none: it is not one"}')
    return networks[name]


class NetworkLoss(Protocol):
    """Loss between two networks: one term, whose weight is the number of samples."""

    @property
    def name(self) -> str: ...
    @property
    def between(self) -> tuple[str, str]: ...
    def __call__(self, outputs: Mapping[str, Any]) -> Loss: ...


@dataclass(frozen=True, kw_only=True)
class DML:
    """Deep mutual learning (DML): divergence between the probabilities of two networks, summed over all positions, per sample.

    Zhang et al., Deep Mutual Learning, https://arxiv.org/abs/1706.00384, in the symmetric form of PaddleOCR: the mean of the
    Kullback-Leibler divergences in both directions. Classes are the dim `classes` of `output`, which holds logits.
    """

    between: tuple[str, str] = ('student', 'teacher')
    output: str
    classes: int = -1
    weight: float = 1.0

    def __call__(self, outputs: Mapping[str, Any]) -> Loss:
        first, second = (part.softmax(self.classes) + EPSILON for part in parts(outputs, self.between, self.output))
        # Symmetric: KL(p || q) + KL(q || p).
        divergences = _divergence(first, second) + _divergence(second, first)
        return {self.name: Term(self.weight / 2 * divergences, divergences.new_full((), len(first)))}

    @property
    def name(self) -> str:
        return f'dml_{self.output}_{"_".join(self.between)}'


@dataclass(frozen=True, kw_only=True)
class FeatureDistance:
    """Mean squared difference of a map or sequence of two networks; PaddleOCR's DistanceLoss in mode l2."""

    between: tuple[str, str] = ('student', 'teacher')
    output: str = 'features'
    weight: float = 1.0

    def __call__(self, outputs: Mapping[str, Any]) -> Loss:
        first, second = parts(outputs, self.between, self.output)
        # Summed over the batch; the weight of the term counts samples.
        squares = F.mse_loss(first, second, reduction='sum')
        per_sample = self.weight / first[0].numel()
        return {self.name: Term(per_sample * squares, squares.new_full((), len(first)))}

    @property
    def name(self) -> str:
        return f'distance_{self.output}_{"_".join(self.between)}'


DISTILLATIONS: dict[str, Callable[..., NetworkLoss]] = {'dml': DML, 'feature_distance': FeatureDistance}


def parts(outputs: Mapping[str, Any], between: tuple[str, str], output: str) -> list[Tensor]:
    """Tensors `output` of both networks, in float32 or better.

    Raises RunError if the tensor is missing, and if the two differ in shape.
    """
    tensors = []
    for name in between:
        own = outputs[name]
        # A list names its tensors 0, 1, ...; other outputs are a NamedTuple.
        pairs = enumerate(own) if isinstance(own, list) else own._asdict().items()
        named = {str(key): part for key, part in pairs if isinstance(part, Tensor)}
        if output not in named:
            raise RunError(f'between: the network {name!r} has no output {output!r}; it has {", ".join(named)}')
        tensors.append(at_least_float32(named[output]))
    first, second = (list(part.shape) for part in tensors)
    if first != second:
        raise RunError(f'between: {" and ".join(between)} give {output!r} of different shapes, {first} and {second}')
    return tensors


def _divergence(probable: Tensor, target: Tensor) -> Tensor:
    """Kullback-Leibler divergence from `target`, summed over all elements."""
    return (target * ((target + EPSILON).log() - probable.log())).sum()
