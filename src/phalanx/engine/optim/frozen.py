"""Freezing of parts of a network."""

import contextlib
import fnmatch
from collections.abc import Iterator, Sequence

from torch import nn

from phalanx.config.read import did_you_mean
from phalanx.parallel import norms


class TemporaryFreeze:
    """Freeze of parts of a network for the first steps of a run.

    A pure function of the step, so a resumed run needs no state. Gradients are still computed, since DDP fixes its set of
    parameters for the whole run; the optimizer does not see them, so nothing decays or gathers momentum.
    """

    def __init__(self, model: nn.Module, parts: Sequence[str], steps: int) -> None:
        """Norms that are already frozen stay frozen. Raises ValueError as `freeze` does."""
        modules = _modules(model, parts)
        self.steps = steps
        self.parameters = {parameter for module in modules for parameter in module.parameters()}
        inside = {each for module in modules for each in module.modules()}
        self.norms = [norm for norm in inside if isinstance(norm, norms.BatchNorm2d) and not norm.is_frozen]

    @contextlib.contextmanager
    def during(self, step: int) -> Iterator[None]:
        """Context for the forward and backward passes of `step`."""
        for norm in self.norms:
            norm.is_frozen = step < self.steps
        try:
            yield
        finally:
            # Without a gradient the optimizer skips a parameter: no weight decay, no momentum.
            if step < self.steps:
                for parameter in self.parameters:
                    parameter.grad = None


def freeze(model: nn.Module, parts: Sequence[str]) -> None:
    """Exclude `parts` of `model` (module names) from training: parameters and batch-norm statistics.

    Raises ValueError for an unknown part, and if nothing is left to train.
    """
    for module in _modules(model, parts):
        module.requires_grad_(False)
        norms.freeze(module)


def _modules(model: nn.Module, parts: Sequence[str]) -> list[nn.Module]:
    """Return the modules named by `parts`, patterns of names.

    Raises ValueError for an unknown part, and if nothing else is left to train.
    """
    modules = dict(model.named_modules())
    matched = {name: fnmatch.filter(modules, name) for name in parts}
    for name, found in matched.items():
        if not found:
            top = ', '.join(name for name, _ in model.named_children())
            raise ValueError(f'train.freeze: the network has no part {name!r}{did_you_mean(name, modules)} (it has {top})')
    selected = [modules[name] for found in matched.values() for name in found]
    inside = {parameter for module in selected for parameter in module.parameters()}
    # torch's own errors, from DDP or the backward pass, do not name the key.
    if all(parameter in inside for parameter in model.parameters() if parameter.requires_grad):
        names = ', '.join(parts)
        raise ValueError(f'train.freeze: {names} is the whole network, so nothing would be trained; leave a part out')
    return selected
