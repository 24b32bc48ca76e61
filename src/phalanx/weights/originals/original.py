"""How an original network names its parameters."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import nn

from phalanx.weights.matching import Weights

Rule = tuple[str, str | Callable[[re.Match[str]], str]]  # our pattern, original replacement: what re.sub takes


@dataclass(frozen=True)
class Original:
    """The names of an original network, as rules on ours, and what else its files may hold.

    `rules` are regular expressions, each applied in turn to a whole name of ours. A replacement that must count otherwise than
    we do (from 1, say) is a function of the match. The layout of linear layers needs no rule, see `stored_as_in_paddle`.
    """

    rules: tuple[Rule, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)  # the second name of an array that is stored twice -> the first
    constants: Mapping[str, npt.ArrayLike] = field(default_factory=dict)  # arrays that are never trained -> their value
    computed: frozenset[str] = frozenset()  # arrays that are no weights: here they follow from the shape of what they are for

    def name(self, ours: str) -> str:
        """The original name of our parameter or buffer `ours`."""
        for pattern, replacement in self.rules:
            ours = re.sub(pattern, replacement, ours)
        return ours

    def is_redundant(self, name: str, arrays: Weights) -> bool:
        """Whether the array `name` says nothing that is not known: an alias equal to the first, a constant of its value, ..."""
        if name in self.aliases:
            return np.array_equal(arrays[name], arrays.get(self.aliases[name], ()))
        if name in self.computed:
            return True
        return name in self.constants and bool((np.asarray(arrays[name]) == self.constants[name]).all())


def layers_with_weights(model: nn.Module) -> list[str]:
    """The names of the modules that have parameters of their own, in our order."""
    return [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]


PADDLE_BUFFERS = ((r'running_mean$', '_mean'), (r'running_var$', '_variance'))
