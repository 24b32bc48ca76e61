"""Parts of a network that keep the weights it starts from."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from phalanx.config.read import did_you_mean
from phalanx.parallel import norms


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Excludes `parts` of `model`, named as its modules are, from training: parameters, and statistics of norms.

    Raises ValueError for a part that there is not, and when nothing is left to train.
    """
    modules = dict(model.named_modules())
    for name in parts:
        if name not in modules:
            top = ', '.join(name for name, _ in model.named_children())
            raise ValueError(f'train.freeze: the network has no part {name!r}{did_you_mean(name, modules)} (it has {top})')
        modules[name].requires_grad_(False)
        norms.freeze(modules[name])
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f'train.freeze: {", ".join(parts)} is all there is; nothing would be trained')
