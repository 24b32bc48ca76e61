"""Parameter groups: weight decay and learning-rate factors."""

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _NormBase

NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)  # _NormBase: batch and instance norms

Group = dict[str, Any]  # torch's parameter group: params, lr_factor, name, and weight_decay if it overrides the optimizer's


@dataclass(frozen=True, kw_only=True)
class ParameterRule:
    match: str
    """Glob pattern for full parameter names: `backbone.*`, `*.proj_conv.weight`; `*` also matches dots."""
    lr_factor: float = 1.0
    """Factor of the scheduled learning rate."""
    weight_decay: float | None = None
    """Weight decay of all matches, norms and biases included; null keeps the default."""

    def __post_init__(self) -> None:
        if not self.lr_factor >= 0:
            raise ValueError(f'lr_factor cannot be negative, got {self.lr_factor}')


DEFAULT_RULE = ParameterRule(match='(all others)')


@dataclass(frozen=True, kw_only=True)
class LayerDecay:
    """Layer-wise learning-rate decay (Howard & Ruder 2018, section 3.2): early layers, the most general ones, change least."""

    factor: float
    """Layer i of n (from 0) uses the scheduled learning rate times `factor ** (n - i)`."""
    layers: tuple[str, ...]
    """Patterns as in `rules`, from the input on: `[backbone.stem*, backbone.stages.0.*, backbone.stages.1.*]`. Unmatched
    parameters, for example of the head, use the scheduled learning rate."""

    def __post_init__(self) -> None:
        if not 0 < self.factor <= 1:
            raise ValueError(f'factor must be above 0 and at most 1, got {self.factor}')
        if not self.layers:
            raise ValueError('layers is empty; give patterns of parameter names, from the input on')

    def rules(self) -> tuple[ParameterRule, ...]:
        """Return one rule per layer."""
        depth = len(self.layers)
        return tuple(ParameterRule(match=each, lr_factor=self.factor ** (depth - i)) for i, each in enumerate(self.layers))


@dataclass(frozen=True, kw_only=True)
class Parameters:
    decay_norms: bool = True
    """Apply weight decay to the scales and shifts of norm layers."""
    decay_biases: bool = True
    """Apply weight decay to the biases of all other layers."""
    rules: tuple[ParameterRule, ...] = ()
    """Overrides for some parameters; each parameter may match one rule."""
    layer_decay: LayerDecay | None = None
    """Layer-wise learning-rate decay for fine-tuning; multiplied with the `lr_factor` of a matching rule."""


def parameter_groups(model: nn.Module, parameters: Parameters) -> list[Group]:
    """Return the trainable parameters of `model`, grouped for an optimizer; frozen parameters are left out.

    Groups and their members keep the order of the model's parameters. Raises ValueError for a parameter that two rules match
    and for a rule that matches nothing.
    """
    names = [name for name, _ in model.named_parameters()]
    rules = _rules_by_name(names, parameters.rules, 'rules')
    decay_of = parameters.layer_decay
    layers = _rules_by_name(names, decay_of.rules(), 'layer_decay.layers') if decay_of else {}
    norms = {id(p) for module in model.modules() if isinstance(module, NORMS) for p in module.parameters(recurse=False)}

    groups: dict[tuple[str, str, float | None], Group] = {}
    # One group per (rule, layer, decay), so that optimizers can update many tensors in one kernel.
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
    """Return the rule of each parameter that matches one. `key`: key under `parameters` that holds the rules."""
    rule_of: dict[str, ParameterRule] = {}
    for rule in rules:
        matched = fnmatch.filter(names, rule.match)
        if not matched:
            raise ValueError(f'parameters.{key}: {rule.match!r} matches no parameter of the model{_hint(rule.match, names)}')
        for name in matched:
            if name in rule_of:
                raise ValueError(
                    f'parameters.{key}: both {rule_of[name].match!r} and {rule.match!r} match {name}; make one of them narrower'
                )
            rule_of[name] = rule
    return rule_of


def _hint(pattern: str, names: Sequence[str]) -> str:
    parts = {f'{".".join(name.split(".")[:depth])}.*' for name in names for depth in range(1, name.count('.') + 1)}
    near = difflib.get_close_matches(pattern, [*sorted(parts), *names], n=3)
    return f'; did you mean {" or ".join(map(repr, near))}?' if near else f'; its parameters are named like {names[0]!r}'
