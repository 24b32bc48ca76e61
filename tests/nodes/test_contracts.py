"""Two nodes that somebody else starts: exactly the variables of a contract, the same command, and the run that --ips gives."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

import pytest

from nodes.conftest import Node
from nodes.slurm import Slurm, slurm, slurm_packages  # noqa: F401 - fixtures
from running import TINY, losses

SHORT = ('train.steps=3', 'evaluate.enabled=false', 'report.every=1', 'report.pictures=0')
PORT = '6300'


def _kubeflow(node: int) -> dict[str, str]:
    variables = {'NNODES': '2', 'NPROC_PER_NODE': '2', 'NODE_RANK': str(node), 'MASTER_ADDR': '10.78.0.1', 'MASTER_PORT': PORT}
    return {f'PET_{name}': value for name, value in variables.items()}


def _counted(node: int) -> dict[str, str]:
    return {'RANK': str(node), 'WORLD_SIZE': '2', 'MASTER_ADDR': '10.78.0.1', 'MASTER_PORT': PORT, 'NPROC_PER_NODE': '2'}


def _listed(node: int) -> dict[str, str]:
    return {'SKYPILOT_NUM_NODES': '2', 'SKYPILOT_NODE_RANK': str(node), 'SKYPILOT_NODE_IPS': '10.78.0.1\n10.78.0.2'}


def _aws_batch(node: int) -> dict[str, str]:
    variables = {'NUM_NODES': '2', 'NODE_INDEX': str(node), 'MAIN_NODE_INDEX': '0'}
    if node:
        variables['MAIN_NODE_PRIVATE_IPV4_ADDRESS'] = '10.78.0.1'
    return {f'AWS_BATCH_JOB_{name}': value for name, value in variables.items()}


def _vertex(node: int) -> dict[str, str]:
    pools = {'workerpool0': [f'10.78.0.1:{PORT}'], 'workerpool1': ['10.78.0.2:2222']}
    return {'CLUSTER_SPEC': json.dumps({'cluster': pools, 'task': {'type': f'workerpool{node}', 'index': 0}})}


def _open_mpi(rank: int) -> dict[str, str]:
    variables = {'RANK': rank, 'SIZE': 4, 'LOCAL_RANK': rank % 2, 'LOCAL_SIZE': 2}
    return {f'OMPI_COMM_WORLD_{name}': str(value) for name, value in variables.items()} | {'MASTER_ADDR': '10.78.0.1'}


def _azure(rank: int) -> dict[str, str]:
    """Without LOCAL_WORLD_SIZE."""
    variables = {'RANK': rank, 'WORLD_SIZE': 4, 'LOCAL_RANK': rank % 2, 'NODE_RANK': rank // 2, 'MASTER_PORT': PORT}
    return {name: str(value) for name, value in variables.items()} | {'MASTER_ADDR': '10.78.0.1'}


@pytest.mark.long
def test_every_contract_gives_the_run_of_the_list_of_nodes(nodes: list[Node]) -> None:
    def command(name: str) -> tuple[str, ...]:
        return ('train', *TINY, *SHORT, 'norm_sync=node', '--save_dir', name)

    listed = ('--ips', '10.78.0.1,10.78.0.2', '--nproc_per_node', '2')
    started = [node.phalanx(*command('listed'), *listed) for node in nodes[:2]]
    assert [one.end() for one in started] == [0, 0], started[0].output
    expected = losses(nodes[0].folder / 'listed')
    per_node: tuple[Callable[[int], dict[str, str]], ...] = (_kubeflow, _counted, _listed, _aws_batch, _vertex)
    for contract in per_node:
        name = contract.__name__
        ranks = () if contract in (_kubeflow, _counted) else ('--nproc_per_node', '2')  # else one per device
        started = [node.phalanx(*command(name), *ranks, **contract(number)) for number, node in enumerate(nodes[:2])]
        assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output
        assert '2 processes on 2 nodes, one per node' in started[1].output
        assert 'ranks 2 to 3 of 4' in started[1].output
        assert losses(nodes[0].folder / name) == expected
    for contract in (_open_mpi, _azure):
        name = contract.__name__
        started = [nodes[rank // 2].phalanx(*command(name), **contract(rank)) for rank in range(4)]
        assert [one.end() for one in started] == [0] * 4, started[0].output + started[1].output
        assert 'one per rank' in started[0].output
        assert [one.output for one in started[1:]] == [''] * 3
        assert losses(nodes[0].folder / name) == expected


@pytest.mark.long
def test_tasks_of_slurm_are_nodes_or_ranks(slurm: Slurm) -> None:  # noqa: F811
    train = (sys.executable, '-m', 'phalanx', 'train', *TINY, *SHORT)
    per_node = slurm.start('srun', '-N2', '-n2', *train, '--nproc_per_node', '2', '--save_dir', 'nodes')
    assert per_node.end() == 0, per_node.output
    assert 'phalanx: started by SLURM: 2 tasks on 2 nodes, one per node, which starts its ranks' in per_node.output
    per_rank = slurm.start('srun', '-N2', '-n4', '--ntasks-per-node=2', *train, '--save_dir', 'ranks')
    assert per_rank.end() == 0, per_rank.output
    assert 'phalanx: started by SLURM: 4 tasks on 2 nodes, one per rank' in per_rank.output
    assert per_rank.output.count('run folder') == 1  # ranks 1 to 3 have logs
    assert losses(slurm.folder / 'ranks') == losses(slurm.folder / 'nodes')
    assert (slurm.folder / 'ranks' / 'log' / 'workerlog.3').is_file()
    uneven = slurm.start('srun', '-N2', '-n3', *train, '--save_dir', 'uneven')
    assert uneven.end() == 2
    assert 'SLURM_STEP_TASKS_PER_NODE=2,1: nodes must have equal numbers of ranks' in uneven.output

    (slurm.folder / 'batch.sh').write_text(
        '#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=2 --output=batch.txt\n'
        f'{sys.executable} -m phalanx eval ranks --nproc_per_node 2\n'
    )
    batch = slurm.start('sbatch', '--wait', 'batch.sh')
    assert batch.end() == 0, (slurm.folder / 'batch.txt').read_text()
    assert 'in the batch script of SLURM job' in (slurm.folder / 'batch.txt').read_text()
