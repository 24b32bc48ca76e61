"""Two nodes that somebody else starts: exactly the variables of a contract, the same command, and the run that --ips gives."""

from __future__ import annotations

import json
import shlex
import shutil
import sys

import pytest

from nodes.conftest import Node
from nodes.slurm import Slurm, slurm, slurm_packages  # noqa: F401 - fixtures
from running import TINY, losses

SHORT = ('train.steps=20', 'evaluate.enabled=false', 'report.every=1', 'report.pictures=0')
PORT = '6300'
AGENT = """#!/bin/sh
# stands in for `ssh HOST COMMAND`: runs the command on the node with that address
while [ "${{1#-}}" != "$1" ]; do shift; done
host=$1; shift
exec nsenter --net=/var/run/netns/{nodes}${{host##*.}} unshare --uts sh -c "hostname node${{host##*.}}; $*"
"""
ADDRESSES = ('10.78.0.1', '10.78.0.2')
MPI = {  # Debian's names, where both may be installed; four processes on two nodes
    'Open MPI': (
        *('mpiexec.openmpi', '--allow-run-as-root', '--mca', 'plm_rsh_agent', './agent'),
        *('--mca', 'oob_tcp_if_include', '10.78.0.0/24', '--host', ','.join(f'{address}:2' for address in ADDRESSES)),
        *('-x', 'MASTER_ADDR=10.78.0.1'),
    ),
    'MPICH or Intel MPI': (
        *('mpiexec.mpich', '-launcher', 'rsh', '-launcher-exec', './agent', '-hosts', ','.join(ADDRESSES), '-ppn', '2'),
        *('-n', '4', '-genv', 'MASTER_ADDR', '10.78.0.1'),
    ),
}


def _kubeflow(node: int) -> dict[str, str]:
    variables = {'NNODES': '2', 'NPROC_PER_NODE': '2', 'NODE_RANK': str(node), 'MASTER_ADDR': '10.78.0.1', 'MASTER_PORT': PORT}
    return {f'PET_{name}': value for name, value in variables.items()}


def _counted(node: int) -> dict[str, str]:
    return {'RANK': str(node), 'WORLD_SIZE': '2', 'MASTER_ADDR': '10.78.0.1', 'MASTER_PORT': PORT, 'NPROC_PER_NODE': '2'}


def _listed(node: int) -> dict[str, str]:
    return {'SKYPILOT_NUM_NODES': '2', 'SKYPILOT_NODE_RANK': str(node), 'SKYPILOT_NODE_IPS': '\n'.join(ADDRESSES)}


def _dstack(node: int) -> dict[str, str]:
    counts = {'DSTACK_NODES_NUM': '2', 'DSTACK_NODE_RANK': str(node), 'DSTACK_GPUS_PER_NODE': '0'}
    return counts | {'DSTACK_NODES_IPS': '\n'.join(ADDRESSES), 'DSTACK_MASTER_NODE_IP': ADDRESSES[0]}


def _sagemaker(node: int) -> dict[str, str]:
    return {'SM_HOSTS': json.dumps(ADDRESSES), 'SM_CURRENT_HOST': ADDRESSES[node], 'SM_NUM_GPUS': '0'}


def _jobset(node: int) -> dict[str, str]:
    """Variables as users set them; the flag --nnodes gives the number of nodes."""
    return {'RANK': str(node), 'MASTER_ADDR': ADDRESSES[0], 'JOB_COMPLETION_INDEX': str(node)}


def _aws_batch(node: int) -> dict[str, str]:
    variables = {'NUM_NODES': '2', 'NODE_INDEX': str(node), 'MAIN_NODE_INDEX': '0'}
    if node:
        variables['MAIN_NODE_PRIVATE_IPV4_ADDRESS'] = '10.78.0.1'
    return {f'AWS_BATCH_JOB_{name}': value for name, value in variables.items()}


def _vertex(node: int) -> dict[str, str]:
    pools = {'workerpool0': [f'10.78.0.1:{PORT}'], 'workerpool1': ['10.78.0.2:2222']}
    return {'CLUSTER_SPEC': json.dumps({'cluster': pools, 'task': {'type': f'workerpool{node}', 'index': 0}})}


def _leader_worker_set(node: int) -> dict[str, str]:
    return {'LWS_GROUP_SIZE': '2', 'LWS_WORKER_INDEX': str(node), 'LWS_LEADER_ADDRESS': '10.78.0.1'}


def _open_mpi(rank: int) -> dict[str, str]:
    variables = {'RANK': rank, 'SIZE': 4, 'LOCAL_RANK': rank % 2, 'LOCAL_SIZE': 2}
    return {f'OMPI_COMM_WORLD_{name}': str(value) for name, value in variables.items()} | {'MASTER_ADDR': '10.78.0.1'}


def _mpich(rank: int) -> dict[str, str]:
    variables = {'PMI_RANK': rank, 'PMI_SIZE': 4, 'MPI_LOCALRANKID': rank % 2, 'MPI_LOCALNRANKS': 2}
    return {name: str(value) for name, value in variables.items()} | {'MASTER_ADDR': '10.78.0.1'}


def _torchrun(rank: int) -> dict[str, str]:
    local = {'LOCAL_RANK': str(rank % 2), 'LOCAL_WORLD_SIZE': '2', 'GROUP_RANK': str(rank // 2), 'TORCHELASTIC_RUN_ID': 'none'}
    return local | {'RANK': str(rank), 'WORLD_SIZE': '4', 'MASTER_ADDR': '10.78.0.1', 'MASTER_PORT': PORT}


def _azure(rank: int) -> dict[str, str]:
    """Without LOCAL_WORLD_SIZE."""
    variables = {'RANK': rank, 'WORLD_SIZE': 4, 'LOCAL_RANK': rank % 2, 'NODE_RANK': rank // 2, 'MASTER_PORT': PORT}
    return {name: str(value) for name, value in variables.items()} | {'MASTER_ADDR': '10.78.0.1'}


PER_NODE = (_kubeflow, _counted, _jobset, _listed, _dstack, _sagemaker, _aws_batch, _vertex, _leader_worker_set)
PER_RANK = (_torchrun, _azure, _open_mpi, _mpich)


def _train(name: str) -> tuple[str, ...]:
    return ('train', *TINY, *SHORT, 'norm_sync=node', '--save_dir', name)


def _losses_of_the_list(nodes: list[Node]) -> list[float]:
    """Losses of four ranks on two nodes with --ips."""
    listed = ('--ips', ','.join(ADDRESSES), '--nproc_per_node', '2')
    started = [node.phalanx(*_train('listed'), *listed) for node in nodes[:2]]
    assert [one.end() for one in started] == [0, 0], started[0].output
    found = losses(nodes[0].folder / 'listed')
    assert len(found) == 20
    return found


@pytest.mark.long
def test_every_contract_gives_the_run_of_the_list_of_nodes(nodes: list[Node]) -> None:
    expected = _losses_of_the_list(nodes)
    for contract in PER_NODE:
        name = contract.__name__
        ranks = () if contract in (_kubeflow, _counted) else ('--nproc_per_node', '2')  # else one per device
        flags = (*ranks, '--nnodes', '2') if contract is _jobset else ranks
        started = [node.phalanx(*_train(name), *flags, **contract(number)) for number, node in enumerate(nodes[:2])]
        assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output
        assert contract is _jobset or '2 processes on 2 nodes, one per node' in started[1].output
        assert 'ranks 2 to 3 of 4' in started[1].output
        assert losses(nodes[0].folder / name) == expected, name
    for contract in PER_RANK:
        name = contract.__name__
        started = [nodes[rank // 2].phalanx(*_train(name), **contract(rank)) for rank in range(4)]
        assert [one.end() for one in started] == [0] * 4, started[0].output + started[1].output
        assert 'one per rank' in started[0].output
        assert [one.output for one in started[1:]] == [''] * 3
        assert losses(nodes[0].folder / name) == expected, name


@pytest.mark.long
def test_mpi_starts_the_ranks_of_two_nodes(nodes: list[Node]) -> None:
    found = {name: words for name, words in MPI.items() if shutil.which(words[0])}
    if not found:
        pytest.skip('needs mpiexec of Open MPI or MPICH (apt-get install openmpi-bin mpich)')
    expected = _losses_of_the_list(nodes)
    agent = nodes[0].folder / 'agent'
    agent.write_text(AGENT.format(nodes=nodes[0].namespace.removesuffix('1')))
    agent.chmod(0o755)
    for name, words in found.items():
        command = (*words, sys.executable, '-m', 'phalanx', *_train(words[0]))
        started = nodes[0].start('unshare', '--uts', 'sh', '-c', 'hostname node1; exec "$@"', 'sh', *command)
        assert started.end() == 0, started.output
        assert f'started by {name}: 4 processes on 2 nodes, one per rank' in started.output
        assert losses(nodes[0].folder / words[0]) == expected, name


@pytest.mark.long
def test_flux_starts_the_ranks_of_two_nodes(nodes: list[Node]) -> None:
    """Two brokers on one node count as two."""
    if shutil.which('flux') is None:
        pytest.skip('needs flux of flux-framework/flux-core')
    expected = _losses_of_the_list(nodes)
    train = (sys.executable, '-m', 'phalanx', *_train('flux'))
    flux = ('flux', 'start', '--test-size=2', 'flux', 'run', '-N2')
    ranks = nodes[0].start(*flux, '-n4', '--env=MASTER_ADDR=127.0.0.1', *train)
    assert ranks.end() == 0, ranks.output
    assert 'started by Flux: 4 processes on 2 nodes, one per rank' in ranks.output
    assert losses(nodes[0].folder / 'flux') == expected

    alone = nodes[0].start(*flux, '-n4', *train)
    assert alone.end() != 0
    assert 'Flux started 4 processes on several nodes without MASTER_ADDR' in alone.output


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
    assert 'in the script of SLURM job' in (slurm.folder / 'batch.txt').read_text()


@pytest.mark.long
def test_steps_of_slurm_in_turns_at_once_and_around_torchrun(slurm: Slurm) -> None:  # noqa: F811
    train = (sys.executable, '-m', 'phalanx', 'train', *TINY, *SHORT, 'norm_sync=node')
    ranks = ('-N2', '-n4', '--ntasks-per-node=2')
    cyclic = slurm.start('srun', *ranks, '--distribution=cyclic', *train, '--save_dir', 'cyclic')
    assert cyclic.end() == 0, cyclic.output
    block = slurm.start('srun', *ranks, '--distribution=block', *train, '--save_dir', 'block')
    assert block.end() == 0, block.output
    assert losses(slurm.folder / 'cyclic') == losses(slurm.folder / 'block')

    (slurm.folder / 'two.sh').write_text(
        '#!/bin/sh\n#SBATCH --nodes=2 --ntasks-per-node=2 --output=two.txt\n'
        + ''.join(
            f'srun -n2 --ntasks-per-node=1 --overlap {shlex.join(train)} --nproc_per_node 1 --save_dir {name} &\n'
            for name in 'ab'
        )
        + 'wait %1 && wait %2\n'
    )
    at_once = slurm.start('sbatch', '--wait', 'two.sh')
    assert at_once.end() == 0, (slurm.folder / 'two.txt').read_text()

    alone = slurm.start('srun', '-N2', '-n2', sys.executable, '-m', 'torch.distributed.run', '--standalone', '-m', *train[2:])
    assert alone.end() != 0
    assert 'SLURM has started 2 processes, and in each of them torchrun a run of its own' in alone.output

    # a job that is submitted within a step gets the variables of that step
    batch = f'#!/bin/sh\n#SBATCH --nodes=1 --output=within.txt\n{shlex.join(train)} --save_dir within\n'
    (slurm.folder / 'within.sh').write_text(batch)
    within = slurm.start('srun', '-N2', '-n2', '--overlap', 'sh', '-c', '[ $SLURM_PROCID = 1 ] || sbatch --wait within.sh')
    assert within.end() != 0
    assert 'SLURM_STEP_NODELIST=gpu[01-02] contradicts SLURM_JOB_NODELIST=' in (slurm.folder / 'within.txt').read_text()
