"""Dropout whose masks belong to the samples."""

import pytest
import torch
from torch import Tensor, nn

from phalanx.nn import stochastic
from phalanx.nn.stochastic import ChannelDropout, Dropout, DropPath, SampleKeys, sample_keys, uniform

KINDS = (Dropout, ChannelDropout, DropPath)


def network(p: float = 0.5) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for kind in KINDS for layer in (nn.Conv2d(4, 4, 1), kind(p))))


def output(cut: tuple[slice, ...], *, step: int = 3, seed: int = 1) -> Tensor:
    """Outputs for six samples, split into micro-batches."""
    model, of_samples, x = network(), SampleKeys(), torch.ones(6, 4, 5, 7)
    stochastic.tie(model, of_samples)
    keys, found = sample_keys(seed, step, torch.arange(10, 16)), []
    with torch.no_grad():
        for part in cut:
            of_samples.begin(keys[part])
            found.append(model(x[part]))
    return torch.cat(found)


def test_masks_do_not_depend_on_how_a_batch_is_split() -> None:
    whole = output((slice(0, 6),))
    for cut in ((slice(0, 2), slice(2, 6)), (slice(0, 1), slice(1, 3), slice(3, 6))):
        parts = output(cut)
        assert torch.equal(parts == 0, whole == 0)  # the masks, to the bit
        torch.testing.assert_close(parts, whole)  # what a convolution gives depends on the size of its batch, in the last bits


def test_tie_reports_dropout_with_a_positive_probability() -> None:
    assert stochastic.tie(network(), SampleKeys())
    assert not stochastic.tie(network(p=0), SampleKeys())
    assert not stochastic.tie(nn.Conv2d(4, 4, 1), SampleKeys())


@pytest.mark.parametrize('other', [{'step': 4}, {'seed': 2}])
def test_another_step_or_seed_has_other_masks(other: dict[str, int]) -> None:
    assert not torch.equal(output((slice(0, 6),), **other), output((slice(0, 6),)))


def test_two_layers_of_a_network_have_different_masks() -> None:
    keys, layers = SampleKeys(), nn.ModuleList([Dropout(0.5), Dropout(0.5)])
    stochastic.tie(layers, keys)
    keys.begin(sample_keys(0, 0, torch.arange(2)))
    first, second = (layer(torch.ones(2, 1000)) for layer in layers)
    agree = ((first > 0) == (second > 0)).float().mean()
    assert 0.45 < agree < 0.55  # as two independent fair coins do, 2000 times: a deviation of 4.5 sigma


@pytest.mark.parametrize('kind', KINDS)
def test_dropout_keeps_the_mean_and_drops_a_share_of_p(kind: type[Dropout]) -> None:
    """The standard deviation of a share over n masks is sqrt(p (1 - p) / n)."""
    layer, x = kind(0.3), torch.ones(4096, 16, 2)
    torch.manual_seed(0)
    y = layer(x)
    n = {Dropout: 4096 * 32, ChannelDropout: 4096 * 16, DropPath: 4096}[kind]
    assert abs((y == 0).double().mean() - 0.3) < 4 * (0.21 / n) ** 0.5
    assert y.unique().tolist() == [0, pytest.approx(1 / 0.7)]


@pytest.mark.parametrize(('kind', 'same_within'), [(ChannelDropout, (2,)), (DropPath, (1, 2))])
def test_channels_and_samples_are_dropped_whole(kind: type[Dropout], same_within: tuple[int, ...]) -> None:
    y = kind(0.5)(torch.ones(64, 8, 9))
    assert torch.equal(y.amax(same_within), y.amin(same_within))


def test_nothing_is_dropped_in_evaluation_or_at_probability_zero() -> None:
    x = torch.randn(3, 4)
    assert torch.equal(Dropout(0.9).eval()(x), x)
    assert torch.equal(Dropout(0.0)(x), x)


def test_a_probability_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r'below 1, got 1\.0'):
        Dropout(1.0)


def test_numbers_are_uniform_for_neighbouring_samples_and_steps() -> None:
    """Chi-square over 64 cells, 63 degrees of freedom: mean 63, deviation 11."""
    keys = torch.cat([sample_keys(0, step, torch.arange(64)) for step in range(16)])
    numbers = uniform(keys, torch.Size((1024, 256)))
    assert numbers.min() >= 0
    assert numbers.max() < 1
    for view in (numbers.flatten(), numbers[:, 0], numbers[0]):
        counts = torch.histc(view, 64, 0, 1)
        expected = view.numel() / 64
        assert ((counts - expected) ** 2 / expected).sum() < 63 + 5 * 11


def test_a_layer_that_is_called_more_often_than_there_are_layers_gets_the_keys_of_its_number() -> None:
    keys = torch.tensor([1, 2, 3])
    at_once, one_by_one = SampleKeys(), SampleKeys()
    at_once.count = 2
    for samples in (at_once, one_by_one):
        samples.begin(keys)
    for _ in range(3):
        expected = one_by_one.next_layer_keys()
        found = at_once.next_layer_keys()
        assert expected is not None and found is not None and found.equal(expected)
