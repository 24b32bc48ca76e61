"""`phalanx bench comm` and `bench scaling` between two real ranks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from running import TINY, Command


@pytest.mark.long
def test_a_larger_all_reduce_takes_longer(phalanx: Command) -> None:
    ended = phalanx('bench', 'comm', '--nproc_per_node', '2', '--device', 'cpu', '--repeats', '3', '--json')
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert found['world_size'] == 2
    seconds = {each['bytes']: each['seconds'] for each in found['sizes']}
    assert seconds[8] == found['latency_s']
    assert 0 < seconds[8] < seconds[64 * 2**20]  # apart by a hundred times and more: no load of the node turns that round
    assert seconds[2**20] < seconds[64 * 2**20]
    assert -seconds[64 * 2**20] < found['in_work_s'] < seconds[64 * 2**20]  # the difference of two times, which noise can turn


@pytest.mark.long
def test_one_and_two_ranks_are_compared_in_turns(phalanx: Command, tmp_path: Path) -> None:
    recipe, _, *keys = TINY
    short = ('--steps', '5', '--repeats', '1', '--threads', '1', '--out', 'scaling', '--json')
    ended = phalanx('bench', 'scaling', recipe, '--world', '1,2', *short, '--set', *keys)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert [world['world'] for world in found['worlds']] == [1, 2]
    assert (tmp_path / 'scaling' / 'scaling.html').is_file()
