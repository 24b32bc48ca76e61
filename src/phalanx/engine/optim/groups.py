"""Parameter groups: which parameters decay, and with which share of the learning rate each learns."""

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # _NormBase: batch and instance norms

Group = dict[str, Any]  # as torch takes it: params, lr_factor, name, and weight_decay where it is not the optimizer's


@dataclass(frozen=True, kw_only=True)
class ParameterRule:
    match: str
    """A pattern for whole parameter names, as for file names: `backbone.*`, `*.proj_conv.weight`; `*` also crosses dots."""
    lr_factor: float = 1.0
    """Their learning rate is this share of the schedule's."""
    weight_decay: float | None = None
    """Their weight decay, norms and biases among them too; none given, as without the rule."""

    def __post_init__(self) -> None:
        if not self.lr_factor >= 0:
            raise ValueError(f'lr_factor cannot be negative, got {self.lr_factor}')


DEFAULT_RULE = ParameterRule(match='(all others)')


@dataclass(frozen=True, kw_only=True)
class LayerDecay:
    """Layer-wise decay of the learning rate (Howard & Ruder 2018, section 3.2): early layers, the most general ones, change
    the least.
    """

    factor: float
    """The learning rate of the last layer is this share of the schedule's, that of the layer before it this share of that."""
    layers: tuple[str, ...]
    """Patterns as in `rules`, the layer next to the input first: `[backbone.stem*, backbone.stages.0.*, backbone.stages.1.*]`.
    What none of them matches, a head say, learns at the rate of the schedule."""

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise ValueError(f'factor must be above 0 and at most 1, got {self.factor}')
        if not self.layers:
            raise ValueError('layers names none; give patterns of parameter names, the layer next to the input first')

    def rules(self) -> tuple[ParameterRule, ...]:
        depth = len(self.layers)
        return tuple(ParameterRule(match=each, lr_factor=self.factor ** (depth - i)) for i, each in enumerate(self.layers))


@dataclass(frozen=True, kw_only=True)
class Parameters:
    decay_norms: bool = True
    """Weight decay on the scales and shifts of norm layers."""
    decay_biases: bool = True
    """Weight decay on the biases of all other layers."""
    rules: tuple[ParameterRule, ...] = ()
    """What differs for some parameters; a parameter may match one rule."""
    layer_decay: LayerDecay | None = None
    """Smaller learning rates for earlier layers, for training on from weights; the `lr_factor` of a rule comes on top."""


def parameter_groups(model: nn.Module, parameters: Parameters) -> list[Group]:
    """The trainable parameters of `model`, grouped for an optimizer.

    Groups and their members stand in the order of the model's parameters; a frozen parameter is in none. Raises ValueError for
    a parameter that two rules match and for a rule that matches nothing.
    """
    names = [name for name, _ in model.named_parameters()]
    rules = _rules_by_name(names, parameters.rules, 'rules')
    decay_of = parameters.layer_decay
    layers = _rules_by_name(names, decay_of.rules(), 'layer_decay.layers') if decay_of else {}
    norms = {id(p) for module in model.modules() if isinstance(module, NORMS) for p in module.parameters(recurse=False)}

    groups: dict[tuple[str, str, float | None], Group] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rule, layer = rules.get(name, DEFAULT_RULE), layers.get(name, DEFAULT_RULE)
        is_bias = name.rpartition('.')[2].startswith('bias')  # an LSTM has `bias_ih_l0`
        decays = parameters.decay_norms if id(parameter) in norms else parameters.decay_biases or not is_bias
        decay = 0.0 if rule.weight_decay is None and not decays else rule.weight_decay
        fresh: Group = {'params': [], 'lr_factor': rule.lr_factor * layer.lr_factor, 'name': rule.match}
        group = groups.setdefault((rule.match, layer.match, decay), fresh)
        group['params'].append(parameter)
        if decay is not None:  # else the optimizer's own
            group['weight_decay'] = decay
    return list(groups.values())


def _rules_by_name(names: Sequence[str], rules: Sequence[ParameterRule], key: str) -> dict[str, ParameterRule]:
    """The rule of each parameter that has one. `key`: where in `parameters` the rules come from."""
    found: dict[str, ParameterRule] = {}
    for rule in rules:
        matched = fnmatch.filter(names, rule.match)
        if not matched:
            raise ValueError(f'parameters.{key}: {rule.match!r} matches no parameter of the model{_hint(rule.match, names)}')
        for name in matched:
            if name in found:
                raise ValueError(
                    f'parameters.{key}: {name} is matched by both {found[name].match!r} and {rule.match!r}; make one narrower'
                )
            found[name] = rule
    return found


def _hint(pattern: str, names: Sequence[str]) -> str:
    parts = {f'{".".join(name.split(".")[:depth])}.*' for name in names for depth in range(1, name.count('.') + 1)}
    near = difflib.get_close_matches(pattern, [*sorted(parts), *names], n=3)
    return f'; did you mean {" or ".join(map(repr, near))}?' if near else f'; its parameters are named like {names[0]!r}'
