"""Optimizers of the recipe catalog: torch's, in the forms that agree with Paddle's.

Weight decay of `sgd` and `adam` is the gradient of an L2 penalty, as with Paddle's L2Decay; that of `adamw` is decoupled. The
update runs in one fused kernel; `fused: false` uses torch's unfused form, for devices without that kernel.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from phalanx.engine.optim.groups import Group

OF_RECIPE = ('lr_factor', 'name', 'weight_decay')  # keys of a group that come from `parameters` in the recipe


def sgd(
    groups: list[Group],
    *,
    lr: float,
    momentum: float = 0.9,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    fused: bool = True,
) -> Optimizer:
    """Stochastic gradient descent with momentum; Paddle's `Momentum` with an L2 regularizer. `momentum: 0` is its `SGD`."""
    optimizer = SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov, weight_decay=weight_decay, fused=fused)
    if momentum:  # torch's fused kernel would leave it uninitialised memory when fp16 skips the very first step
        for group in optimizer.param_groups:
            for parameter in group['params']:
                optimizer.state[parameter]['momentum_buffer'] = torch.zeros_like(parameter)
    return optimizer


def adam(
    groups: list[Group],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    fused: bool = True,
) -> Optimizer:
    """Adam (Kingma & Ba 2015), with weight decay as an L2 penalty.

    Paddle writes the bias correction into the rate and into `eps`; the step is the same.
    """
    return Adam(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)


def adamw(
    groups: list[Group],
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.01,
    fused: bool = True,
) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019)."""
    return AdamW(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, fused=fused)


@torch.no_grad()
def load_state(optimizer: Optimizer, state: dict[str, Any], build: Callable[..., Optimizer]) -> None:
    """Load the state of another optimizer, a state_dict, and keep this one's settings: the options of its builder.

    All else in its groups is state, such as the step counter of `lamb`.
    State tensors take the memory layout of their weight, which may have changed: torch's fused CPU kernels traverse both in
    memory order. Raises as `load_state_dict` does if the state belongs to other weights.
    """
    keys = {*OF_RECIPE, *inspect.signature(build).parameters}
    settings = [{key: value for key, value in group.items() if key in keys} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, settings, strict=True):
        group.update(own)
        for parameter in group['params']:
            of_parameter = optimizer.state.get(parameter, {})
            for name, value in of_parameter.items():
                if isinstance(value, Tensor):
                    # Step counters and the like have another shape than the weight.
                    like = parameter if value.shape == parameter.shape else value
                    of_parameter[name] = torch.empty_like(like, dtype=value.dtype).copy_(value)


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Set the learning rate of the next step: `lr` times the factor of each group."""
    for group in optimizer.param_groups:
        group['lr'] = lr * group['lr_factor']
