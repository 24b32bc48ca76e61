"""Search spaces mean what is written, or are refused with the reason."""

from __future__ import annotations

import optuna
import pytest

from phalanx.bench.tuning.space import Dimension, check_space, parse_dimension
from phalanx.cli.tune import split_devices
from phalanx.cli.tune_options import tune_parser
from phalanx.config.read import ConfigError
from phalanx.system.errors import RequestError

RECIPE = 'pp_liteseg_digits'


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('a=1e-4..1e-2', Dimension('a', 'a=1e-4..1e-2', low=1e-4, high=1e-2)),
        ('a=log:1e-4..1', Dimension('a', 'a=log:1e-4..1', low=1e-4, high=1, is_log=True)),
        ('a=-2..8', Dimension('a', 'a=-2..8', low=-2, high=8, is_integer=True)),
        ('a=log:8..64', Dimension('a', 'a=log:8..64', low=8, high=64, is_log=True, is_integer=True)),
        ('a.b=sgd, adamw', Dimension('a.b', 'a.b=sgd, adamw', ('sgd', 'adamw'))),
        ('a=[64,96]|[128,192]', Dimension('a', 'a=[64,96]|[128,192]', ('[64,96]', '[128,192]'))),
    ],
)
def test_ranges_and_choices_are_read_as_written(text: str, expected: Dimension) -> None:
    assert parse_dimension(text) == expected


@pytest.mark.parametrize('text', ['a', 'a=', '=1,2', 'a=5', 'a=x,x', 'a=1,,2', 'a=2..1', 'a=0..b', 'a=log:0..1', 'a=log:1,2'])
def test_what_is_no_space_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match='--search'):
        parse_dimension(text)


def test_values_of_a_trial_lie_in_the_range_and_have_three_digits() -> None:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    rates, sizes = parse_dimension('lr=log:1e-4..1e-2'), parse_dimension('size=3..5')
    for _ in range(20):
        trial = study.ask()
        rate, size = rates.suggest(trial), sizes.suggest(trial)
        assert 1e-4 <= float(rate) <= 1e-2
        assert float(rate) == float(f'{float(rate):.3g}')
        assert size in ('3', '4', '5')


def test_all_invalid_values_of_a_space_are_reported_before_a_trial() -> None:
    space = [parse_dimension(text) for text in ('optimizer.name=sgd,sdg', 'optimiser.lr=0.1..0.2')]
    with pytest.raises(ConfigError) as caught:
        check_space(RECIPE, [], space)
    text = str(caught.value)
    assert 'sdg' in text
    assert 'optimiser' in text


def test_a_key_is_searched_once_and_not_set_as_well() -> None:
    rate = parse_dimension('optimizer.lr=0.1..0.2')
    with pytest.raises(RequestError, match=r'optimizer\.lr: given twice'):
        check_space(RECIPE, [], [rate, rate])
    with pytest.raises(RequestError, match=r'optimizer\.lr: the key is also given after --set'):
        check_space(RECIPE, [('optimizer.lr=1', '--set optimizer.lr=1')], [rate])
    with pytest.raises(ConfigError, match=r'train\.epochs=1: train\.steps is given, too \(--search train\.steps=1\.\.3\)'):
        check_space(RECIPE, [('train.epochs=1', '--set train.epochs=1')], [parse_dimension('train.steps=1..3')])


def test_two_trials_do_not_share_a_device() -> None:
    given = tune_parser().parse_args(['r.yml', '--gpus', '0,0', '--parallel', '2'])
    with pytest.raises(RequestError, match='--gpus 0,0: a device is named twice'):
        split_devices(given)
    given.gpus = '0, 1,'
    assert split_devices(given) == [['--gpus', '0'], ['--gpus', '1']]
