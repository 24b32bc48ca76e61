"""Parameter names of an original network, as rules on ours."""

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
    """Names of an original network, as rules on ours, and further arrays of its files.

    `rules` are regular expressions, each applied in turn to a whole name of ours. A replacement that counts differently (from
    1, say) is a function of the match. The layout of linear layers needs no rule, see `paddle_layout`.
    """

    rules: tuple[Rule, ...]
    buffers: tuple[Rule, ...] = PADDLE_BUFFERS  # the last rules
    aliases: Mapping[str, str] = field(default_factory=dict)  # second name of an array that is stored twice -> first name
    constants: Mapping[str, npt.ArrayLike] = field(default_factory=dict)  # arrays that are not trained -> their value
    computed: frozenset[str] = frozenset()  # arrays that are not weights: Phalanx computes them, such as position encodings

    def name(self, ours: str) -> str:
        """Original name of our parameter or buffer `ours`."""
        return apply_rules(ours, (*self.rules, *self.buffers))

    def is_redundant(self, name: str, arrays: Mapping[str, Any]) -> bool:
        """True if the array `name` adds no information: an alias equal to the first array, a constant with its value, ..."""
        if name in self.aliases:
            return np.array_equal(arrays[name], arrays.get(self.aliases[name], ()))
        if name in self.computed:
            return True
        if name not in self.constants:
            return False
        stored, constant = np.asarray(arrays[name]), np.asarray(self.constants[name])
        return constant.shape in ((), stored.shape) and bool((stored == constant).all())


def apply_rules(name: str, rules: Iterable[Rule]) -> str:
    """Apply each of `rules` to `name` in turn."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name


def number_from(text: str, first: int = 1) -> Callable[[re.Match[str]], str]:
    """Replacement `text` with the numbers of the match in its `{}`, counted from `first` instead of 0."""
    return lambda match: text.format(*(int(number) + first for number in match.groups()))


def layers_with_weights(model: nn.Module) -> list[str]:
    """Names of the modules that have parameters of their own, in our order."""
    return [name for name, module in model.named_modules() if any(True for _ in module.parameters(recurse=False))]


def select_layers(layers: Sequence[str], parts: Iterable[str]) -> list[str]:
    """Select the `layers` that are one of `parts` or inside one, in the order of `parts`."""
    return [name for part in parts for name in layers if f'{name}.'.startswith(f'{part}.')]


def check_merged(model: nn.Module, backbone: str) -> None:
    """Raise ValueError for a network with parallel convolutions (RepConv); exported files have them merged."""
    if any(isinstance(module, ConvSum) for module in model.modules()):
        raise ValueError(f'exported files of {backbone} have a single convolution for each sum: build it with `merged: true`')
