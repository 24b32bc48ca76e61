"""Comparison of nodes. The infos are made up; real ones meet in tests/nodes."""

from typing import Any

import pytest

from phalanx.launch.cluster import Cluster
from phalanx.launch.preflight import Link, compare_facts, hash_parts, node_facts, ring_bits


def infos(**second: Any) -> list[dict[str, Any]]:
    """Two nodes that differ in what is given."""
    info = {**node_facts(Cluster(2)), 'disk': 100.0, 'shared_memory': 8.0, 'recipe': 'r', 'data': 'd', 'max_restart': 0}
    return [{**info, 'address': '10.0.0.1'}, {**info, **second, 'address': '10.0.0.2'}]


def test_equal_nodes_have_nothing_to_report() -> None:
    assert compare_facts(infos()) == []


@pytest.mark.parametrize('fact', ['phalanx', 'code', 'torch', 'ranks', 'recipe', 'data', 'max_restart'])
def test_incompatible_nodes_are_an_error_with_both_values_and_the_fix(fact: str) -> None:
    (finding,) = compare_facts(infos(**{fact: 'other'}))
    assert finding.level == 'error'
    assert '10.0.0.1: ' in finding.text
    assert '10.0.0.2: other' in finding.text
    assert finding.text.split('): ')[-1]  # the cure


@pytest.mark.parametrize('fact', ['python', 'devices'])
def test_differences_that_may_do_harm_are_warnings(fact: str) -> None:
    (finding,) = compare_facts(infos(**{fact: 'other'}))
    assert finding.level == 'warning'


def test_a_full_disk_and_little_shared_memory_are_reported_with_the_node() -> None:
    messages = [finding.text for finding in compare_facts(infos(disk=0.5, shared_memory=0.0625, memory=[80.0, 80.0]))]
    assert messages[0] == '10.0.0.2 has 512 MiB of disk left for the run folder: free some space'
    assert messages[1].startswith(
        '10.0.0.2 has 64 MiB of shared memory for NCCL between its GPUs: in a container give --shm-size=1g'
    )


def test_a_fingerprint_knows_where_its_parts_end() -> None:
    assert hash_parts(iter(['ab', 'c'])) != hash_parts(iter(['a', 'bc']))
    assert hash_parts(iter(['ab', 'c'])) == hash_parts(iter([b'ab', 'c']))


def test_the_link_between_nodes_is_shown_in_milliseconds_and_gigabits() -> None:
    assert str(Link(0.0012, 9.4e9)) == '1.2 ms and 9.40 Gbit/s between nodes'


def test_a_ring_all_reduce_sends_nearly_twice_the_data_from_each_node() -> None:
    """1000 float32 are 32,000 bits: each of 2 nodes sends them once, each of 4 nodes 1.5 times."""
    assert ring_bits(1000, nodes=2) == 32_000
    assert ring_bits(1000, nodes=4) == 48_000
