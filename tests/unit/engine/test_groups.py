"""Parameter groups of a small network, worked out by hand."""

from __future__ import annotations

import re

import pytest
from torch import nn

from phalanx.engine.optim.groups import LayerDecay, ParameterRule, Parameters, parameter_groups
from phalanx.parallel.norms import BatchNorm2d


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 1), BatchNorm2d(4))
        self.neck = nn.LSTM(4, 2)
        self.head = nn.Sequential(nn.LayerNorm(2), nn.Linear(2, 5))


def members(net: nn.Module, parameters: Parameters) -> list[tuple[list[str], float, float | None]]:
    """The groups by name: members, share of the learning rate, weight decay (None: the optimizer's)."""
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    groups = parameter_groups(net, parameters)
    return [([names[id(p)] for p in group['params']], group['lr_factor'], group.get('weight_decay')) for group in groups]


NAMES = [name for name, _ in Net().named_parameters()]
NORMS = ['backbone.1.weight', 'backbone.1.bias', 'head.0.weight', 'head.0.bias']
BIASES = ['backbone.0.bias', 'neck.bias_ih_l0', 'neck.bias_hh_l0', 'head.1.bias']


def without(names: list[str]) -> list[str]:
    return [name for name in NAMES if name not in names]


def test_everything_decays_unless_the_recipe_says_otherwise() -> None:
    """Same as PaddleSeg."""
    assert members(Net(), Parameters()) == [(NAMES, 1, None)]


def test_norms_can_be_spared_and_other_biases_still_decay() -> None:
    """Same as PaddleDetection."""
    assert members(Net(), Parameters(decay_norms=False)) == [(without(NORMS), 1, None), (NORMS, 1, 0)]


def test_biases_can_be_spared_and_norms_still_decay() -> None:
    assert members(Net(), Parameters(decay_biases=False)) == [(without(BIASES), 1, None), (BIASES, 1, 0)]


def test_norms_and_biases_can_be_spared_together() -> None:
    spared = [name for name in NAMES if name in NORMS + BIASES]
    assert members(Net(), Parameters(decay_norms=False, decay_biases=False)) == [(without(spared), 1, None), (spared, 1, 0)]


def test_a_rule_changes_the_rate_of_what_it_matches_and_leaves_its_decay_alone() -> None:
    parameters = Parameters(decay_norms=False, rules=(ParameterRule(match='backbone.*', lr_factor=0.1),))
    assert members(Net(), parameters) == [
        (['backbone.0.weight', 'backbone.0.bias'], 0.1, None),
        (['backbone.1.weight', 'backbone.1.bias'], 0.1, 0),
        ([name for name in NAMES if not name.startswith('backbone') and name not in NORMS], 1, None),
        (['head.0.weight', 'head.0.bias'], 1, 0),
    ]


def test_the_decay_of_a_rule_holds_for_norms_and_biases_too() -> None:
    parameters = Parameters(decay_norms=False, rules=(ParameterRule(match='head.*', weight_decay=0.3),))
    head = [name for name in NAMES if name.startswith('head')]
    assert (head, 1, 0.3) in members(Net(), parameters)


def test_frozen_parameters_are_left_out() -> None:
    net = Net()
    net.backbone.requires_grad_(False)
    rules = (ParameterRule(match='backbone.*', lr_factor=0.1),)
    assert members(net, Parameters(rules=rules)) == [([name for name in NAMES if not name.startswith('backbone')], 1, None)]


def test_a_shared_parameter_is_in_one_group() -> None:
    net = nn.ModuleDict({'first': nn.Linear(2, 2), 'second': nn.Linear(2, 2)})
    net['second'].weight = net['first'].weight
    assert members(net, Parameters()) == [(['first.weight', 'first.bias', 'second.bias'], 1, None)]


def test_a_parameter_under_two_rules_is_named() -> None:
    rules = (ParameterRule(match='backbone.*'), ParameterRule(match='*.0.weight'))
    message = "parameters.rules: both 'backbone.*' and '*.0.weight' match backbone.0.weight; make one of them narrower"
    with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
        parameter_groups(Net(), Parameters(rules=rules))


def test_a_rule_that_matches_nothing_is_named_with_what_was_meant() -> None:
    message = "parameters.rules: 'backbnoe.*' matches no parameter of the model; did you mean 'backbone.*'"
    with pytest.raises(ValueError, match=f'^{re.escape(message)}'):
        parameter_groups(Net(), Parameters(rules=(ParameterRule(match='backbnoe.*'),)))


def test_a_rule_like_no_name_is_shown_what_names_look_like() -> None:
    message = (
        "parameters.rules: 'transformer' matches no parameter of the model; its parameters are named like 'backbone.0.weight'"
    )
    with pytest.raises(ValueError, match=f'^{re.escape(message)}$'):
        parameter_groups(Net(), Parameters(rules=(ParameterRule(match='transformer'),)))


def test_layers_learn_the_more_slowly_the_nearer_they_are_to_the_input() -> None:
    """0.5 cubed, squared, and 0.5; what no layer matches learns at the full rate."""
    layers = ('backbone.0.*', 'backbone.1.*', 'neck.*')
    head = [name for name in NAMES if name.startswith('head')]
    assert members(Net(), Parameters(layer_decay=LayerDecay(factor=0.5, layers=layers))) == [
        (['backbone.0.weight', 'backbone.0.bias'], 0.125, None),
        (['backbone.1.weight', 'backbone.1.bias'], 0.25, None),
        ([name for name in NAMES if name.startswith('neck')], 0.5, None),
        (head, 1, None),
    ]


def test_a_rule_holds_on_top_of_the_decay_of_layers() -> None:
    """The rule cuts through two layers: its 0.1 times the 0.25 and the 0.5 of theirs; its weight decay is one for both."""
    rule = ParameterRule(match='*.0.weight', lr_factor=0.1, weight_decay=0.3)
    parameters = Parameters(rules=(rule,), layer_decay=LayerDecay(factor=0.5, layers=('backbone.*', 'head.*')))
    assert members(Net(), parameters) == [
        (['backbone.0.weight'], pytest.approx(0.025), 0.3),
        (['backbone.0.bias', 'backbone.1.weight', 'backbone.1.bias'], 0.25, None),
        ([name for name in NAMES if name.startswith('neck')], 1, None),
        (['head.0.weight'], pytest.approx(0.05), 0.3),
        (['head.0.bias', 'head.1.weight', 'head.1.bias'], 0.5, None),
    ]


def test_a_layer_that_matches_nothing_or_what_another_matches_is_refused() -> None:
    unknown = LayerDecay(factor=0.5, layers=('backbon.*',))
    with pytest.raises(
        ValueError, match=r"parameters\.layer_decay\.layers: 'backbon\.\*' matches no parameter .*'backbone\.\*'"
    ):
        parameter_groups(Net(), Parameters(layer_decay=unknown))
    both = LayerDecay(factor=0.5, layers=('backbone.*', '*.0.weight'))
    with pytest.raises(ValueError, match=r'parameters\.layer_decay\.layers: both .* match backbone\.0\.weight'):
        parameter_groups(Net(), Parameters(layer_decay=both))


@pytest.mark.parametrize('factor', [0.0, 1.5, -1.0])
def test_a_decay_of_layers_is_a_share(factor: float) -> None:
    with pytest.raises(ValueError, match='factor must be above 0 and at most 1'):
        LayerDecay(factor=factor, layers=('backbone.*',))
