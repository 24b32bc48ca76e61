"""Optimizers with layer-wise adaptive learning rates, for large global batches.

The larger the batch, the fewer and longer the steps; a rate that moves one layer by a thousandth of its norm throws another one
far off. Both optimizers scale each tensor's update by a trust ratio of norms, so that each tensor moves by about the same share
of its norm.

Scales and shifts of norm layers and biases have small norms for other reasons, so they are left out, as in the authors' code: a
group whose weight decay is 0 learns at the plain rate. Use these optimizers with `parameters: {decay_norms: false,
decay_biases: false}`.
"""

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.optim import Optimizer

from phalanx.engine.optim.groups import Group


class Lars(Optimizer):
    """Momentum with layer-wise adaptive rates (You, Gitman & Ginsburg 2017, algorithm 1).

    `velocity = momentum * velocity + lr * ratio * (g + weight_decay * w)`, then `w -= velocity`, with `ratio = coefficient *
    |w| / (|g| + weight_decay * |w|)`. The rate enters the velocity, as in the paper and in Paddle's `LarsMomentum`, unlike
    `sgd`. Typical rates are far above those of `sgd`, since the coefficient scales them down.

    Raises ValueError if no group has weight decay: nothing would be adapted.
    """

    def __init__(
        self, groups: list[Group], *, lr: float, momentum: float = 0.9, weight_decay: float = 5e-4, coefficient: float = 1e-3
    ) -> None:
        if not coefficient > 0:
            raise ValueError(f'coefficient must be above 0, got {coefficient}')
        super().__init__(groups, {'lr': lr, 'momentum': momentum, 'weight_decay': weight_decay, 'coefficient': coefficient})
        _check_decay(self)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # takes no closure
        for group, weights, gradients in _with_gradients(self):
            # g + weight_decay * w, for all tensors of the group in one multi-tensor kernel.
            decay, rate = group['weight_decay'], group['lr']
            updates = torch._foreach_add(gradients, weights, alpha=decay)
            if decay:
                # Trust ratio per tensor. No value is read by the host, which would wait for the device.
                of_weights, of_gradients = _lengths(weights), _lengths(gradients)
                shares = group['coefficient'] * of_weights / (of_gradients + decay * of_weights)
                torch._foreach_mul_(updates, _ratios(shares, of_weights, of_gradients))
            # velocity = momentum * velocity + lr * ratio * (g + weight_decay * w); w -= velocity
            velocities = [_state(self, weight, 'velocity') for weight in weights]
            torch._foreach_mul_(velocities, group['momentum'])
            torch._foreach_add_(velocities, updates, alpha=rate)
            torch._foreach_sub_(weights, velocities)


class Lamb(Optimizer):
    """Adam with layer-wise adaptive rates (You et al. 2020, algorithm 2, with the identity as its function phi).

    `update = m / (sqrt(v) + eps) + weight_decay * w`, with the bias of both moments corrected, then `w -= lr * |w| / |update| *
    update`.

    Raises ValueError if no group has weight decay: nothing would be adapted.
    """

    def __init__(
        self,
        groups: list[Group],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
    ) -> None:
        super().__init__(groups, {'lr': lr, 'betas': betas, 'eps': eps, 'weight_decay': weight_decay, 'steps': 0})
        _check_decay(self)

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # takes no closure
        for group, weights, gradients in _with_gradients(self):
            (first, second), decay = group['betas'], group['weight_decay']
            group['steps'] += 1
            # First and second moment, as in Adam.
            means = [_state(self, weight, 'mean') for weight in weights]
            squares = [_state(self, weight, 'square') for weight in weights]
            torch._foreach_lerp_(means, gradients, 1 - first)
            torch._foreach_mul_(squares, second)
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - second)

            # update = m / (sqrt(v) + eps) + weight_decay * w, with m and v corrected for their start from zero.
            roots = torch._foreach_sqrt(torch._foreach_div(squares, 1 - second ** group['steps']))
            torch._foreach_add_(roots, group['eps'])
            updates = torch._foreach_div(torch._foreach_div(means, 1 - first ** group['steps']), roots)
            torch._foreach_add_(updates, weights, alpha=decay)
            if decay:
                # Trust ratio |w| / |update| per tensor.
                of_weights, of_updates = _lengths(weights), _lengths(updates)
                torch._foreach_mul_(updates, _ratios(of_weights / of_updates, of_weights, of_updates))
            torch._foreach_add_(weights, updates, alpha=-group['lr'])


def _check_decay(optimizer: Optimizer) -> None:
    if not any(group['weight_decay'] for group in optimizer.param_groups):
        name = type(optimizer).__name__.lower()
        raise ValueError(
            f'{name} adapts only parameters with weight decay, and none has any: set optimizer.weight_decay above 0'
        )


def _with_gradients(optimizer: Optimizer) -> Iterator[tuple[Group, list[Tensor], list[Tensor]]]:
    """Yield each group with its weights that have a gradient, and these gradients; groups without any are left out."""
    for group in optimizer.param_groups:
        if weights := [weight for weight in group['params'] if weight.grad is not None]:
            yield group, weights, [weight.grad for weight in weights]


def _state(optimizer: Optimizer, weight: Tensor, name: str) -> Tensor:
    """Return the optimizer's state tensor `name` of a weight, zeros at first."""
    of_weight = optimizer.state[weight]
    if name not in of_weight:
        of_weight[name] = torch.zeros_like(weight)
    state: Tensor = of_weight[name]
    return state


def _lengths(tensors: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
    """Return the L2 norm of each tensor, [tensors]."""
    return torch.stack(torch._foreach_norm(tensors))


def _ratios(ratios: Tensor, *lengths: Tensor) -> list[Tensor]:
    """Return `ratios` [tensors] one by one; 1 where one of the `lengths` is 0, for which no ratio is defined."""
    return list(torch.where(torch.stack(lengths).all(0), ratios, 1.0).unbind())
