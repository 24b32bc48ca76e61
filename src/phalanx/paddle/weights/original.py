"""How an original network names its parameters."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from phalanx.nn.backbones.lcnetv3 import ConvSum

Rule = tuple[str, str | Callable[[re.Match[str]], str]]  # our pattern, original replacement: what re.sub takes

PADDLE_BUFFERS: tuple[Rule, ...] = ((r'running_mean$', '_mean'), (r'running_var$', '_variance'))


@dataclass(frozen=True)
class Original:
    """The names of an original network, as rules on ours, and what else its files may hold.

    `rules` are regular expressions, each applied in turn to a whole name of ours. A replacement that must count otherwise than
    we do (from 1, say) is a function of the match. The layout of linear layers needs no rule, see `paddle_layout`.
    """

    rules: tuple[Rule, ...]
    buffers: tuple[Rule, ...] = PADDLE_BUFFERS  # the last rules
    aliases: Mapping[str, str] = field(default_factory=dict)  # the second name of an array that is stored twice -> the first
    constants: Mapping[str, npt.ArrayLike] = field(default_factory=dict)  # arrays that are never trained -> their value
    computed: frozenset[str] = frozenset()  # arrays that are no weights: here they follow from the shape of what they are for

    def name(self, ours: str) -> str:
        """The original name of our parameter or buffer `ours`."""
        return apply_rules(ours, (*self.rules, *self.buffers))

    def is_redundant(self, name: str, arrays: Mapping[str, Any]) -> bool:
        """Whether the array `name` says nothing that is not known: an alias equal to the first, a constant of its value, ..."""
        if name in self.aliases:
            return np.array_equal(arrays[name], arrays.get(self.aliases[name], ()))
        if name in self.computed:
            return True
        return name in self.constants and bool((np.asarray(arrays[name]) == self.constants[name]).all())


def apply_rules(name: str, rules: Iterable[Rule]) -> str:
    """`name` once each of `rules` was applied to it in turn."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def number_from(text: str, first: int = 1) -> Callable[[re.Match[str]], str]:
    """The replacement `text`, with the numbers of the match in its `{}`; what is 0 here is `first` there."""
    return lambda match: text.format(*(int(number) + first for number in match.groups()))


def layers_with_weights(model: nn.Module) -> list[str]:
    """The names of the modules that have parameters of their own, in our order."""
    return [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]


def select_layers(layers: Sequence[str], parts: Iterable[str]) -> list[str]:
    """Those of `layers` that are, or are in, one of `parts`; in the order of `parts`."""
    return [name for part in parts for name in layers if f'{name}.'.startswith(f'{part}.')]


def check_merged(model: nn.Module, backbone: str) -> None:
    """Raises ValueError for a network with sums of convolutions, which exported files do not have."""
    if any(isinstance(module, ConvSum) for module in model.modules()):
        raise ValueError(f'exported files of {backbone} have a single convolution for each sum: build it with `merged: true`')
