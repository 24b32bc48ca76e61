"""The optimizers a recipe can name. They are torch's, in the forms that agree with Paddle's.

Weight decay of `sgd` and `adam` is the gradient of an L2 penalty, as with Paddle's L2Decay; that of `adamw` is decoupled.
The update runs in one fused kernel; `fused: false` takes torch's other form, for devices that have none.
"""

from __future__ import annotations

import torch
from torch.optim import SGD, Adam, AdamW, Optimizer

from phalanx.optim.groups import Group


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


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Makes `lr` the learning rate of the next step, times the factor of each group."""
    for group in optimizer.param_groups:
        group['lr'] = lr * group['lr_factor']
