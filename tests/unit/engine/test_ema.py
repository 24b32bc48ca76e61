"""The EMA: what it covers, and that it gives the model back. Its numbers are compared in golden/test_averages.py."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from phalanx.engine.ema import Ema, EmaOptions


def network() -> nn.Sequential:
    """A batch norm has weights, running statistics and, in `num_batches_tracked`, an integer."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))


def train(model: nn.Module, ema: Ema, updates: int) -> None:
    """Moves every number of the model somewhere else, and the average after it."""
    with torch.no_grad():
        for _ in range(updates):
            for parameter in model.parameters():
                parameter.add_(1)
            model(torch.randn(4, 1, 3, 3))
            ema.update()


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_running_statistics_are_averaged_and_whole_numbers_copied() -> None:
    """One update of the kind normal, corrected for its start from zero, is the model itself; of two, see below.

    (0.5 x 0.5 x first + 0.5 x second) / (1 - 0.25) = (first + 2 second) / 3.
    """
    model = network()
    ema = Ema(model, EmaOptions(decay=0.5, kind='normal'))
    train(model, ema, 1)
    first = copy.deepcopy(model.state_dict())
    train(model, ema, 1)
    second, averaged = model.state_dict(), ema.weights()
    for name in ('0.weight', '0.bias', '1.weight', '1.bias', '1.running_mean', '1.running_var'):
        torch.testing.assert_close(averaged[name], (first[name] + 2 * second[name]) / 3)
    assert averaged['1.num_batches_tracked'] == 2


def test_what_matches_a_skip_pattern_is_taken_as_it_is() -> None:
    model = network()
    ema = Ema(model, EmaOptions(decay=0.5, skip=('1.*',)))
    train(model, ema, 3)
    averaged, own = ema.weights(), model.state_dict()
    assert {name for name in own if torch.equal(averaged[name], own[name])} == {name for name in own if name.startswith('1.')}


def test_the_ramp_starts_from_the_model() -> None:
    """1 at the start, then 2: the first decay is a half."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 1.0)
    ema = Ema(model, EmaOptions(kind='ramp'))
    nn.init.constant_(model.weight, 2.0)
    ema.update()
    assert ema.weights()['weight'].item() == 1.5


def test_an_update_of_twice_the_samples_counts_as_two() -> None:
    """0.5 squared of the average stays, and the start from zero is made up for as after two updates."""
    model = nn.Linear(1, 1, bias=False)
    nn.init.constant_(model.weight, 3.0)
    ema = Ema(model, EmaOptions(kind='normal', decay=0.5))
    ema.update(2.0)
    assert ema.averages(['weight'])[0].item() == 3.0 * (1 - 0.25)
    assert ema.weights()['weight'].item() == 3.0
    assert ema.decay(10) == 0.5


def test_before_the_first_update_the_model_stands_for_its_average() -> None:
    model = network()
    assert same(Ema(model, EmaOptions()).weights(), model.state_dict())


def test_the_model_has_the_averages_inside_the_context_and_its_own_weights_after_it() -> None:
    model = network()
    ema = Ema(model, EmaOptions())
    train(model, ema, 3)
    own, averaged = copy.deepcopy(model.state_dict()), ema.weights()
    pointers = [parameter.data_ptr() for parameter in model.parameters()]
    with ema.applied():
        assert same(model.state_dict(), averaged)
        assert not same(model.state_dict(), own)
    assert same(model.state_dict(), own)
    assert [parameter.data_ptr() for parameter in model.parameters()] == pointers  # the optimizer still holds them


def test_an_error_inside_the_context_gives_the_weights_back() -> None:
    model = network()
    ema = Ema(model, EmaOptions())
    train(model, ema, 3)
    own = copy.deepcopy(model.state_dict())
    with pytest.raises(KeyError), ema.applied():
        raise KeyError
    assert same(model.state_dict(), own)


def test_a_weight_with_two_names_comes_back_too() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    ema = Ema(model, EmaOptions())
    ema.update()
    own = copy.deepcopy(model.state_dict())
    with ema.applied():
        pass
    assert same(model.state_dict(), own)


def test_exported_weights_do_not_move_with_the_training() -> None:
    model = network()
    ema = Ema(model, EmaOptions())
    train(model, ema, 1)
    exported = ema.weights()['0.weight']
    before = exported.clone()
    train(model, ema, 1)
    assert torch.equal(exported, before)


def test_the_warm_up_of_the_exponential_kind_is_in_updates() -> None:
    """Decay of D-FINE: decay * (1 - exp(-updates / warmups)), where the first update is number 1."""
    ema = Ema(network(), EmaOptions(kind='exponential', decay=0.9999, warmup=1000))
    assert [ema.decay(update) for update in (0, 999, 4999)] == pytest.approx([0.00099940, 0.63205734, 0.99316273], abs=1e-8)
    assert Ema(network(), EmaOptions(kind='exponential', decay=0.9999, warmup=0)).decay(0) == 0.9999
    with pytest.raises(ValueError, match='warmup cannot be negative, got -1'):
        EmaOptions(warmup=-1)


@pytest.mark.parametrize('kind', ['threshold', 'normal', 'exponential', 'ramp'])
def test_a_resumed_average_is_bitwise_the_uninterrupted_one(kind: Any) -> None:
    model = network()
    ema = Ema(model, EmaOptions(kind=kind))
    train(model, ema, 3)
    resumed = Ema(model, EmaOptions(kind=kind))
    resumed.restore(copy.deepcopy(ema.state()))
    with torch.no_grad():
        model.get_parameter('0.weight').add_(1)
    ema.update()
    resumed.update()
    assert same(resumed.weights(), ema.weights())


def test_the_average_of_another_model_is_refused() -> None:
    saved = Ema(nn.Linear(2, 2), EmaOptions()).state()
    message = r'^the EMA was saved for another model: only one of them has 0\.bias, 0\.weight, bias, weight$'
    with pytest.raises(ValueError, match=message):
        Ema(nn.Sequential(nn.Linear(2, 2)), EmaOptions()).restore(saved)


def test_a_decay_that_keeps_everything_is_refused() -> None:
    with pytest.raises(ValueError, match=r'^decay must be at least 0 and below 1, got 1\.0$'):
        EmaOptions(decay=1.0)


@pytest.mark.parametrize(
    ('kind', 'decay', 'steps', 'warning'),
    [
        ('ramp', 0.998, 615, '615 steps are too few for the EMA, which needs 3,500 to forget the start of the run'),
        ('normal', 0.998, 615, 'ema.decay=0.98 suits'),
        ('ramp', 0.998, 3500, None),
        ('threshold', 0.998, 615, None),  # reaches back a ninth of the updates so far
        ('exponential', 0.998, 615, None),
        ('ramp', 0.998, 20, None),  # a trial
    ],
)
def test_a_run_too_short_for_its_average_is_reported(kind: Any, decay: float, steps: int, warning: str | None) -> None:
    notes = Ema(network(), EmaOptions(decay=decay, kind=kind)).notes(steps)
    assert len(notes) == (warning is not None)
    assert warning is None or warning in notes[0]


@pytest.mark.parametrize('kind', ['ramp', 'normal'])
def test_an_average_is_used_when_it_has_forgotten_the_beginning(kind: Any) -> None:
    model = network()
    ema = Ema(model, EmaOptions(decay=0.5, kind=kind))  # a window of 2 updates: after 7 windows e^-7 of the beginning is left
    train(model, ema, 13)
    assert not ema.is_settled
    train(model, ema, 1)
    assert ema.is_settled
