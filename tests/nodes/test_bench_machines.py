"""`phalanx bench scaling` over several machines, which are network namespaces (root only)."""

from __future__ import annotations

import json

import pytest

from nodes.conftest import Machine
from running import TINY


@pytest.mark.slow
def test_worlds_take_turns_over_the_machines_and_the_first_has_the_table(machines: list[Machine]) -> None:
    recipe, *settings = TINY
    words = ('bench', 'scaling', recipe, '--world', '1,2', '--ips', '10.78.0.1,10.78.0.2', '--nproc_per_node', '1')
    short = ('--steps', '5', '--repeats', '1', '--threads', '1', '--out', 'scaling', '--json')
    small = ('train.steps=100', 'norm_sync=off', 'data.size=[32,64]')
    first, second = (machine.phalanx(*words, *short, *settings, *small) for machine in machines[:2])
    assert (first.end(300), second.end(300)) == (0, 0), first.said + second.said
    told = json.loads(first.lines[-1])
    assert [world['world'] for world in told['worlds']] == [1, 2]
    assert told['machines'] == '10.78.0.1, 10.78.0.2'
    assert (machines[0].folder / 'scaling' / 'scaling.html').is_file()
    logs = {machine.address: sorted(log.name for log in (machine.folder / 'scaling').glob('*.log')) for machine in machines[:2]}
    assert logs == {'10.78.0.1': ['world_1_1.log', 'world_2_1.log'], '10.78.0.2': ['world_2_1.log']}
