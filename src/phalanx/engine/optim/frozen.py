"""Parts of a network that keep the weights it starts from."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from torch import nn

from phalanx.parallel import norms


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Excludes `parts` of `model`, named as its modules are, from training: parameters, and statistics of norms.

    Raises ValueError for a part that there is not, and when nothing is left to train.
    """
    modules = dict(model.named_modules())
    for name in parts:
        if name not in modules:
            near = difflib.get_close_matches(name, modules, n=1)
            hint = f'; did you mean {near[0]!r}?' if near else ''
            top = ', '.join(name for name, _ in model.named_children())
            raise ValueError(f'train.freeze: the network has no part {name!r}{hint} (it has {top})')
        modules[name].requires_grad_(False)
        norms.freeze(modules[name])
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f'train.freeze: {", ".join(parts)} is all there is; nothing would be trained')
