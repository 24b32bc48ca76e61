"""`phalanx bench comm` between two real ranks."""

from __future__ import annotations

import json

from running import Command


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
