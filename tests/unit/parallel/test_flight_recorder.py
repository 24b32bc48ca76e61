"""Sentence about the collective in which ranks differ, from records of torch's flight recorder."""

from __future__ import annotations

from typing import Any

import torch

from phalanx.parallel import dist
from phalanx.parallel.flight_recorder import _call_site, describe_last_calls, explain

GROUPS = {'0': [0, 1, 2], '1': [0, 1]}


def call(number: int, name: str = 'nccl:all_reduce', size: int = 3, group: str = '0 nccl', when: int = 0) -> list[Any]:
    return [group, number, name, [[size]], f'net.py:{number} (forward)', when or number]


def records(*calls: list[list[Any]]) -> dict[int, Any]:
    return {rank: {'groups': GROUPS, 'calls': own} for rank, own in enumerate(calls)}


def test_a_rank_that_skips_a_collective_is_named_with_the_line_of_the_others() -> None:
    both = [call(1), call(2)]
    assert explain(records(both, both[:1], both)) == (
        'rank 1 did not take part in collective number 2 of group 0 nccl, nccl:all_reduce of [[3]] at net.py:2 (forward); '
        'its last in this group was number 1, nccl:all_reduce of [[3]] at net.py:1 (forward)'
    )


def test_a_rank_that_never_called_a_collective_is_named() -> None:
    said = explain(records([call(1)], [], [call(1)]))
    assert (
        said
        == 'rank 1 did not take part in collective number 1 of group 0 nccl, nccl:all_reduce of [[3]] at net.py:1 (forward)'
    )


def test_the_rank_in_the_minority_is_named_when_collectives_differ() -> None:
    said = explain(records([call(1), call(2, 'nccl:broadcast')], [call(1), call(2)], [call(1), call(2)]))
    assert said == (
        'in collective number 2 of group 0 nccl, rank 0 called nccl:broadcast of [[3]] at net.py:2 (forward), '
        'but ranks 1, 2 nccl:all_reduce of [[3]] at net.py:2 (forward)'
    )


def test_a_rank_that_sends_another_shape_is_named() -> None:
    said = explain(records([call(1)], [call(1)], [call(1, size=7)]))
    assert 'rank 2 called nccl:all_reduce of [[7]]' in said


def test_sizes_may_differ_where_each_rank_has_its_own() -> None:
    assert explain(records(*([call(1, 'gloo:all_to_all', size)] for size in (1, 2, 3)))) == ''


def test_only_members_of_a_group_take_part_in_its_collectives() -> None:
    own = [call(1), call(1, group='1 nccl')]
    assert explain(records(own, own, own[:1])) == ''
    assert explain(records(own, own[:1], own[:1])).startswith('rank 1 did not take part in collective number 1 of group 1 nccl')


def test_collectives_that_one_rank_has_forgotten_are_not_compared() -> None:
    whole = [call(number) for number in range(1, 6)]
    assert explain(records(whole, whole[2:], whole)) == ''


def test_ranks_that_did_not_answer_are_not_accused() -> None:
    assert explain({rank: record for rank, record in records([call(1)], [], [call(1)]).items() if rank != 1}) == ''
    assert explain({}) == ''


def test_of_two_groups_the_one_with_fewer_deviating_ranks_is_explained() -> None:
    """Rank 1 went past the collective of the default group, and waits in one of the other."""
    said = explain(records([call(1), call(2)], [call(1), call(1, group='1 nccl', when=9)], [call(1), call(2)]))
    assert said.startswith('rank 1 did not take part in collective number 2 of group 0 nccl')


def test_the_last_collective_of_each_rank_is_described() -> None:
    said = describe_last_calls(records([call(1), call(2)], []))
    assert said == 'rank 0 last called nccl:all_reduce of [[3]] at net.py:2 (forward), number 2 of group 0 nccl'


def test_a_collective_is_located_where_neither_torch_nor_our_wrappers_are() -> None:
    inner = [{'filename': file, 'line': 9, 'name': 'send'} for file in (torch.distributed.__file__, dist.__file__)]
    outer = [{'filename': file, 'line': 3, 'name': 'step'} for file in ('net.py', 'train.py')]
    assert _call_site(inner + outer) == 'net.py:3 (step)'
    assert _call_site(inner) == 'an unknown line'
