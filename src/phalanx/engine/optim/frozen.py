"""Parts of a network that keep the weights it starts from."""

import contextlib
from collections.abc import Iterator, Sequence

from torch import nn

from phalanx.config.read import did_you_mean
from phalanx.parallel import norms


class TemporaryFreeze:
    """Parts of a network that keep their weights for the first steps of a run, and then train like the rest.

    Whether they do is a function of the step, so a resumed run needs no state of it. Their gradients are still computed: DDP
    settles what it averages once for the whole run. The optimizer does not see them, so nothing decays or gathers momentum.
    """

    def __init__(self, model: nn.Module, parts: Sequence[str], steps: int) -> None:
        """Norms that are frozen already stay so. Raises as `freeze` does."""
        modules = _modules(model, parts)
        self.steps = steps
        self.parameters = {parameter for module in modules for parameter in module.parameters()}
        inside = {each for module in modules for each in module.modules()}
        self.norms = [norm for norm in inside if isinstance(norm, norms.BatchNorm2d) and not norm.is_frozen]

    @contextlib.contextmanager
    def during(self, step: int) -> Iterator[None]:
        """The passes of `step` are to be made within this context."""
        for norm in self.norms:
            norm.is_frozen = step < self.steps
        try:
            yield
        finally:
            if step < self.steps:
                for parameter in self.parameters:
                    parameter.grad = None


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Excludes `parts` of `model`, named as its modules are, from training: parameters, and statistics of norms.

    Raises ValueError for a part that there is not, and when nothing is left to train.
    """
    for module in _modules(model, parts):
        module.requires_grad_(False)
        norms.freeze(module)


def _modules(model: nn.Module, parts: Sequence[str]) -> list[nn.Module]:
    """`parts` of `model`. Raises ValueError for one that there is not, and when nothing is left to train beside them."""
    modules = dict(model.named_modules())
    for name in parts:
        if name not in modules:
            top = ', '.join(name for name, _ in model.named_children())
            raise ValueError(f'train.freeze: the network has no part {name!r}{did_you_mean(name, modules)} (it has {top})')
    chosen = [modules[name] for name in parts]
    inside = {parameter for module in chosen for parameter in module.parameters()}
    if all(parameter in inside for parameter in model.parameters() if parameter.requires_grad):
        raise ValueError(f'train.freeze: {", ".join(parts)} is all there is; nothing would be trained')
    return chosen
