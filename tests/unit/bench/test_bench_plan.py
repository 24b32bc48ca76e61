"""The network model and the plan, against formulas done by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.bench.network import FREE, Link, Network, all_reduce, parse_bandwidth, parse_latency, ring, tree
from phalanx.bench.plan import plan
from phalanx.bench.profile import BUCKET, FIRST_BUCKET, Message, Profile

# Computing takes 1 s: forward 0.3, loss 0.1, backward 0.5, update 0.1. One norm, one set of numbers, 30 MB of gradients.
PROFILE = Profile(
    recipe='toy',
    device='cpu',
    samples=10,
    run_samples=36_000,
    phases={'data wait': 0.0, 'forward': 0.3, 'loss': 0.1, 'backward': 0.5, 'optimizer': 0.1},
    norm_sync='global',
    forward=(Message(0.1, 1000),),
    losses=(Message(0.4, 40),),
    backward=(Message(0.2, 1000),),
    gradients=(Message(0.1, 2_000_000), Message(0.3, 8_000_000), Message(0.5, 20_000_000)),
    loader_rate=1000.0,
    workers=1,
)
SLOW = Link(bandwidth=100e6, latency=0.001)


def test_a_ring_passes_its_share_on_twice_round() -> None:
    """4 ranks: 6 hops, each with a quarter of 8 MB over 100 MB/s, and a millisecond."""
    assert ring(8e6, 4, SLOW) == pytest.approx(6 * (0.02 + 0.001))


def test_a_tree_goes_up_and_down() -> None:
    """8 ranks: three levels up and three down; the whole size twice."""
    assert tree(8e6, 8, SLOW) == pytest.approx(6 * 0.001 + 2 * 0.08)


def test_one_rank_sends_nothing() -> None:
    assert ring(8e6, 1, SLOW) == tree(8e6, 1, SLOW) == 0


def test_little_among_many_takes_the_tree_and_much_the_ring() -> None:
    assert all_reduce(100, 32, SLOW) == tree(100, 32, SLOW) < ring(100, 32, SLOW)
    assert all_reduce(8e6, 4, SLOW) == ring(8e6, 4, SLOW) < tree(8e6, 4, SLOW)


@pytest.mark.parametrize(
    ('text', 'bytes_a_second'),
    [('25Gbit', 25e9 / 8), ('200Mbit/s', 25e6), ('3GB/s', 3e9), ('1 Gbps', 125e6), ('8kbit', 1000), ('inf', math.inf)],
)
def test_bandwidths_are_bits_or_bytes(text: str, bytes_a_second: float) -> None:
    assert parse_bandwidth(text) == pytest.approx(bytes_a_second)


@pytest.mark.parametrize(('text', 'seconds'), [('20us', 20e-6), ('0.1ms', 1e-4), ('0s', 0)])
def test_latencies_have_units(text: str, seconds: float) -> None:
    assert parse_latency(text) == pytest.approx(seconds)


@pytest.mark.parametrize('text', ['25', 'fast', '25 Gbyte', '0Gbit', '1.2.3Gbit'])
def test_a_text_that_is_not_a_bandwidth_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match='25Gbit'):
        parse_bandwidth(text)


def test_a_latency_without_unit_is_refused() -> None:
    with pytest.raises(ValueError, match='20us'):
        parse_latency('20')


def test_without_cost_the_speed_up_is_linear() -> None:
    for predicted in plan(PROFILE, [1, 2, 8, 32], 8, FREE):
        assert predicted.speed_up == pytest.approx(predicted.nodes)
        assert predicted.efficiency == pytest.approx(1)
        assert predicted.seconds == pytest.approx(1)
        assert predicted.bottleneck == 'computing'
        assert predicted.hours == pytest.approx(1 / (predicted.nodes * 8))  # 36,000 samples, 10 a second and rank


def test_two_nodes_by_hand() -> None:
    """Two nodes of one rank, 100 MB/s, no latency: a message of n bytes takes n / 100 MB/s.

    Buckets: 2 MB are more than the first MiB, so they leave at 0.1 and travel 0.02 s; the other 28 MB leave at 0.5 and travel
    0.28 s, of which nothing is hidden. Each norm exchange takes 10 us and waits for nothing else: at 0.2 the network is idle
    again. The numbers take 0.4 us.
    """
    (predicted,) = plan(PROFILE, [2], 1, Network(Link(100e6, 0), FREE.within))
    assert predicted.norms == pytest.approx(2e-5)
    assert predicted.losses == pytest.approx(4e-7)
    assert predicted.gradients == pytest.approx(0.28)
    assert predicted.seconds == pytest.approx(1 + 0.28 + 2e-5 + 4e-7)
    assert predicted.speed_up == pytest.approx(2 / predicted.seconds)
    assert predicted.bottleneck == 'gradients'


def test_a_norm_overtakes_the_gradients_on_the_wire() -> None:
    """At 10 MB/s the first bucket, sent at 0.1, is on its way until 0.3; the norm of 0.2 waits its own 0.1 ms."""
    (predicted,) = plan(replace(PROFILE, forward=()), [2], 1, Network(Link(10e6, 0), FREE.within))
    assert predicted.norms == pytest.approx(1e-4)


def test_norms_of_a_node_do_not_cross_the_network() -> None:
    network = Network(Link(math.inf, 0.01), FREE.within)
    (everywhere,), (at_home,) = (plan(replace(PROFILE, norm_sync=sync), [4], 8, network) for sync in ('global', 'node'))
    assert everywhere.norms == pytest.approx(2 * 4 * 0.01)  # there and back; up and down a tree of two levels
    assert at_home.norms == 0


def test_a_processor_that_copies_does_not_compute() -> None:
    """30,002,040 bytes at 1 GB/s, and an infinitely fast wire."""
    (predicted,) = plan(PROFILE, [2], 1, replace(FREE, host=1e9))
    assert predicted.host == pytest.approx(0.03000204)
    assert predicted.seconds == pytest.approx(1.03000204)


def test_a_slow_loader_is_the_bottleneck_of_any_number_of_nodes() -> None:
    """10 samples at 5 a second take 2 s, of which the rank computes one."""
    for predicted in plan(replace(PROFILE, loader_rate=5.0), [1, 4], 1, FREE):
        assert predicted.data == pytest.approx(1)
        assert predicted.bottleneck == 'data'
    assert plan(replace(PROFILE, loader_rate=5.0), [4], 1, FREE)[0].speed_up == pytest.approx(4)


def test_buckets_close_when_they_are_full_and_leave_when_their_last_gradient_is_ready() -> None:
    gradients = (Message(0.1, FIRST_BUCKET - 4), Message(0.2, 8), Message(0.3, BUCKET), Message(0.4, 100))
    profile = replace(PROFILE, gradients=gradients)
    assert profile.buckets() == [Message(0.2, FIRST_BUCKET + 4), Message(0.3, BUCKET), Message(0.4, 100)]


def test_buckets_of_a_recipe_that_names_their_size_have_it_from_the_first_on() -> None:
    """DDP's own rule: 5 MiB are reached with the second gradient, then with the third."""
    profile = replace(PROFILE, bucket_mb=5.0)
    assert profile.buckets() == [Message(0.3, 10_000_000), Message(0.5, 20_000_000)]


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    PROFILE.write(tmp_path / 'profile.json')
    assert Profile.read(tmp_path / 'profile.json') == PROFILE


@pytest.mark.parametrize('text', ['', '{}', '[1]', '{"recipe": "x"}'])
def test_a_file_that_is_not_a_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / 'other.json').write_text(text)
    with pytest.raises(ValueError, match='is not a profile'):
        Profile.read(tmp_path / 'other.json')
