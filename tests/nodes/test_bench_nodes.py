"""`phalanx bench scaling` over several nodes, which are network namespaces (root only)."""

from __future__ import annotations

import json

import pytest

from nodes.conftest import Node
from running import TINY

LISTED = ('--ips', '10.78.0.1,10.78.0.2', '--nproc_per_node', '1')
KUBEFLOW = {'NNODES': '2', 'NPROC_PER_NODE': '1', 'MASTER_ADDR': '10.78.0.1', 'MASTER_PORT': '6300'}


@pytest.mark.long
@pytest.mark.parametrize('is_listed', [True, False], ids=['--ips', 'TrainJob'])
def test_worlds_take_turns_over_the_nodes_and_the_first_has_the_table(nodes: list[Node], is_listed: bool) -> None:
    recipe, *settings = TINY
    words = ('bench', 'scaling', recipe, '--world', '1,2', *(LISTED if is_listed else ()))
    short = ('--steps', '5', '--repeats', '1', '--threads', '1', '--out', 'scaling', '--json')
    small = ('train.steps=100', 'norm_sync=off', 'data.size=[32,64]')
    first, second = (
        node.phalanx(
            *words,
            *short,
            *settings,
            *small,
            **({} if is_listed else {f'PET_{name}': value for name, value in {**KUBEFLOW, 'NODE_RANK': str(number)}.items()}),
        )
        for number, node in enumerate(nodes[:2])
    )
    assert (first.end(), second.end()) == (0, 0), first.output + second.output
    table = json.loads(first.lines[-1])
    assert [world['world'] for world in table['worlds']] == [1, 2]
    assert table['nodes'] == ('10.78.0.1, 10.78.0.2' if is_listed else '2, the first is 10.78.0.1')
    assert (nodes[0].folder / 'scaling' / 'scaling.html').is_file()
    logs = {node.address: sorted(log.name for log in (node.folder / 'scaling').glob('*.log')) for node in nodes[:2]}
    assert logs == {'10.78.0.1': ['world_1_1.log', 'world_2_1.log'], '10.78.0.2': ['world_2_1.log']}
