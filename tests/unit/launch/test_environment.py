"""The table of contracts: from the variables of a launcher or scheduler to ranks and nodes. Nothing is started here."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from phalanx.launch.contracts import expand_hostlist
from phalanx.launch.environment import detect
from phalanx.launch.flags import Flags, add_flags

PODS = {'MASTER_ADDR': 'job-master-0', 'MASTER_PORT': '23456'}
STEP = {  # of `srun -N2 -n4 --ntasks-per-node=2`, SLURM 22.05, as task 3 sees it
    'SLURM_JOB_ID': '7',
    'SLURM_JOB_NODELIST': 'gpu[01-02]',
    'SLURM_JOB_NUM_NODES': '2',
    'SLURM_LOCALID': '1',
    'SLURM_NODEID': '1',
    'SLURM_NTASKS': '4',
    'SLURM_PROCID': '3',
    'SLURM_STEP_ID': '0',
    'SLURM_STEP_NODELIST': 'gpu[01-02]',
    'SLURM_STEP_NUM_NODES': '2',
    'SLURM_STEP_NUM_TASKS': '4',
    'SLURM_STEP_TASKS_PER_NODE': '2(x2)',
}
NODE_STEP = {
    **STEP,
    'SLURM_NTASKS': '2',
    'SLURM_STEP_NUM_TASKS': '2',
    'SLURM_STEP_TASKS_PER_NODE': '1(x2)',
    'SLURM_PROCID': '1',
    'SLURM_LOCALID': '0',
}
BATCH = {name: value for name, value in STEP.items() if '_STEP_' not in name} | {'SLURM_PROCID': '0', 'SLURM_NODEID': '0'}
TORCHRUN = {
    'RANK': '3',
    'LOCAL_RANK': '1',
    'WORLD_SIZE': '4',
    'LOCAL_WORLD_SIZE': '2',
    'MASTER_ADDR': 'a',
    'MASTER_PORT': '29500',
}
KUBEFLOW = {
    'PET_NNODES': '2',
    'PET_NPROC_PER_NODE': '4',
    'PET_NODE_RANK': '1',
    'PET_MASTER_ADDR': 'job-node-0-0.job',
    'PET_MASTER_PORT': '29500',
}
LWS = {'LWS_GROUP_SIZE': '2', 'LWS_WORKER_INDEX': '1', 'LWS_LEADER_ADDRESS': 'set-0.set.default'}
VERTEX = {
    'CLUSTER_SPEC': '{"cluster": {"workerpool0": ["a:2222"], "workerpool1": ["b:2222", "c:2222"]}, '
    '"task": {"type": "workerpool1", "index": 1}}'
}
FLUX = {  # of `flux run -N2 -n4 --env=MASTER_ADDR=node1`, Flux 0.88, as task 3 sees it
    'FLUX_JOB_ID': 'ƒgbTpX9',
    'FLUX_JOB_NNODES': '2',
    'FLUX_JOB_SIZE': '4',
    'FLUX_TASK_LOCAL_ID': '1',
    'FLUX_TASK_RANK': '3',
    'FLUX_URI': 'local:///tmp/flux-ixmkX4/local-1',
    'MASTER_ADDR': 'node1',
    'PMI_FD': '22',
    'PMI_RANK': '3',
    'PMI_SIZE': '4',
}
ONE_OF_FLUX = {name: '1' for name in FLUX if name.startswith('FLUX_JOB')} | {'FLUX_TASK_RANK': '0', 'FLUX_TASK_LOCAL_ID': '0'}
COUNTS = {'RANK': '3', 'SIZE': '4', 'LOCAL_RANK': '1', 'LOCAL_SIZE': '2'}
ONE_OF_MPICH = {'PMI_RANK': '0', 'PMI_SIZE': '1', 'MPI_LOCALRANKID': '0', 'MPI_LOCALNRANKS': '1'}
OPEN_MPI = {f'OMPI_COMM_WORLD_{name}': value for name, value in COUNTS.items()}
JSRUN = {f'JSM_NAMESPACE_{name}': value for name, value in COUNTS.items()} | OPEN_MPI  # of IBM Spectrum MPI
MVAPICH2 = {f'MV2_COMM_WORLD_{name}': value for name, value in COUNTS.items()}
PALS = {f'PMI_{name}': value for name, value in COUNTS.items()} | {'PALS_RANKID': '3', 'PALS_LOCAL_RANKID': '1'}
FOUR_RANKS = {
    'RANK': '3',
    'WORLD_SIZE': '4',
    'LOCAL_RANK': '1',
    'LOCAL_WORLD_SIZE': '2',
    'MASTER_ADDR': 'node1',
    'MASTER_PORT': '6170',
}


def flags(environment: dict[str, str], *words: str) -> Flags:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return Flags.of(parser.parse_args(words), environment)


def rank_flags(environment: dict[str, str], *words: str) -> dict[str, object]:
    """The flags that say which ranks there are, those that are set."""
    found = vars(flags(environment, *words))
    return {
        name: found[name]
        for name in ('gpus', 'nproc_per_node', 'ips', 'nnodes', 'master', 'rank', 'start_port')
        if found[name] is not None
    }


def refusal(environment: dict[str, str], *words: str) -> str:
    with pytest.raises(ValueError) as caught:
        flags(environment, *words)
    return str(caught.value)


@pytest.mark.parametrize(
    ('environment', 'line', 'exports'),
    [
        ({**TORCHRUN, 'TORCHELASTIC_RUN_ID': 'x'}, 'started by torchrun: 4 processes on 2 nodes, one per rank', TORCHRUN),
        (
            {**TORCHRUN, 'ACCELERATE_MIXED_PRECISION': 'no'},
            'started by accelerate: 4 processes on 2 nodes, one per rank',
            TORCHRUN,
        ),
        (
            {**{name: value for name, value in TORCHRUN.items() if name != 'LOCAL_WORLD_SIZE'}, 'AZUREML_RUN_ID': 'x'},
            'started by Azure ML: 4 processes, one per rank',
            {name: value for name, value in TORCHRUN.items() if name != 'LOCAL_WORLD_SIZE'},
        ),
        (
            STEP,
            'started by SLURM: 4 tasks on 2 nodes, one per rank',
            {
                'RANK': '3',
                'WORLD_SIZE': '4',
                'LOCAL_RANK': '1',
                'LOCAL_WORLD_SIZE': '2',
                'MASTER_ADDR': 'gpu01',
                'MASTER_PORT': '12170',  # 10000 + 7 * 31 * 10
            },
        ),
        (
            {
                'OMPI_COMM_WORLD_RANK': '1',
                'OMPI_COMM_WORLD_SIZE': '2',
                'OMPI_COMM_WORLD_LOCAL_RANK': '1',
                'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
            },
            'started by Open MPI: 2 processes on 1 node, one per rank',
            {
                'RANK': '1',
                'WORLD_SIZE': '2',
                'LOCAL_RANK': '1',
                'LOCAL_WORLD_SIZE': '2',
                'MASTER_ADDR': '127.0.0.1',
                'MASTER_PORT': '6170',
            },
        ),
        (FLUX, 'started by Flux: 4 processes on 2 nodes, one per rank', FOUR_RANKS),
        ({**JSRUN, 'MASTER_ADDR': 'node1'}, 'started by jsrun: 4 processes on 2 nodes, one per rank', FOUR_RANKS),
        ({**MVAPICH2, 'MASTER_ADDR': 'node1'}, 'started by MVAPICH2: 4 processes on 2 nodes, one per rank', FOUR_RANKS),
        ({**PALS, 'MASTER_ADDR': 'node1'}, 'started by PALS: 4 processes on 2 nodes, one per rank', FOUR_RANKS),
        (
            {'PMI_RANK': '5', 'PMI_SIZE': '8', 'MPI_LOCALRANKID': '1', 'MPI_LOCALNRANKS': '4', 'MASTER_ADDR': '10.0.0.1'},
            'started by MPICH or Intel MPI: 8 processes on 2 nodes, one per rank',
            {
                'RANK': '5',
                'WORLD_SIZE': '8',
                'LOCAL_RANK': '1',
                'LOCAL_WORLD_SIZE': '4',
                'MASTER_ADDR': '10.0.0.1',
                'MASTER_PORT': '6170',
            },
        ),
        (
            {'RANK': '1', 'WORLD_SIZE': '2', 'MASTER_ADDR': 'localhost', 'MASTER_PORT': '29514'},
            'started by hand (RANK, WORLD_SIZE): 2 processes on 1 node, one per rank',
            {
                'RANK': '1',
                'WORLD_SIZE': '2',
                'LOCAL_RANK': '1',
                'LOCAL_WORLD_SIZE': '2',
                'MASTER_ADDR': 'localhost',
                'MASTER_PORT': '29514',
            },
        ),
    ],
    ids=[*('torchrun', 'accelerate', 'azure', 'slurm', 'open mpi', 'flux', 'jsrun', 'mvapich2', 'pals', 'mpich', 'by hand')],
)
def test_a_process_per_rank_is_a_rank(environment: dict[str, str], line: str, exports: dict[str, str]) -> None:
    start = detect(environment)
    assert (start.per, str(start)) == ('rank', line)
    assert dict(start.exports) == exports
    assert rank_flags(environment) == {}  # nothing is left to launch


@pytest.mark.parametrize(
    ('environment', 'by', 'flags_of_it'),
    [
        (NODE_STEP, 'SLURM', {'ips': 'gpu01,gpu02', 'start_port': 12170}),  # 10000 + 7 * 31 * 10
        (
            KUBEFLOW,
            'Kubeflow (PET_NNODES)',
            {'nproc_per_node': 4, 'nnodes': '2', 'master': 'job-node-0-0.job:29500', 'rank': 1},
        ),
        ({**KUBEFLOW, 'PET_NNODES': '2:4'}, 'Kubeflow (PET_NNODES)', {'nproc_per_node': 4, 'nnodes': '2:4'}),
        ({'PET_NNODES': '1', 'PET_NPROC_PER_NODE': '8'}, 'Kubeflow (PET_NNODES)', {'nproc_per_node': 8}),
        (
            {**KUBEFLOW, **PODS, 'RANK': '1', 'WORLD_SIZE': '8'},  # PyTorchJob with nprocPerNode: WORLD_SIZE counts ranks
            'Kubeflow (PET_NNODES)',
            {'nproc_per_node': 4, 'nnodes': '2', 'master': 'job-node-0-0.job:29500', 'rank': 1},
        ),
        (
            {**PODS, 'RANK': '1', 'WORLD_SIZE': '2', 'KUBERNETES_SERVICE_HOST': '10.96.0.1'},  # PyTorchJob
            'Kubernetes',
            {'nnodes': '2', 'master': 'job-master-0:23456', 'rank': 1},
        ),
        (
            {**PODS, 'RANK': '1', 'WORLD_SIZE': '2', 'VC_TASK_INDEX': '0'},
            'Volcano',
            {'nnodes': '2', 'master': 'job-master-0:23456', 'rank': 1},
        ),
        (
            {**PODS, 'RANK': '0', 'WORLD_SIZE': '2', 'NPROC_PER_NODE': '8', 'DLC_JOB_ID': 'x'},
            'PAI-DLC',
            {'nproc_per_node': 8, 'nnodes': '2', 'master': 'job-master-0:23456', 'rank': 0},
        ),
        (
            {'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_ADDR': '10.0.0.1'},
            'another scheduler',
            {'nnodes': '2', 'master': '10.0.0.1:6170', 'rank': 0},
        ),
        (
            {
                'SKYPILOT_NUM_NODES': '2',
                'SKYPILOT_NODE_RANK': '1',
                'SKYPILOT_NODE_IPS': '10.0.0.1\n10.0.0.2',
                'SKYPILOT_NUM_GPUS_PER_NODE': '8',
            },
            'SkyPilot',
            {'ips': '10.0.0.1,10.0.0.2'},
        ),
        (
            {
                'DSTACK_NODES_NUM': '2',
                'DSTACK_NODE_RANK': '0',
                'DSTACK_NODES_IPS': '10.0.0.1\n10.0.0.2\n',
                'DSTACK_MASTER_NODE_IP': '10.0.0.1',
            },
            'dstack',
            {'ips': '10.0.0.1,10.0.0.2'},
        ),
        (
            {'SM_HOSTS': '["algo-2", "algo-1"]', 'SM_CURRENT_HOST': 'algo-2', 'SM_NUM_GPUS': '8'},
            'SageMaker',
            {'ips': 'algo-1,algo-2'},
        ),
        (
            {
                'AWS_BATCH_JOB_NUM_NODES': '3',
                'AWS_BATCH_JOB_NODE_INDEX': '0',
                'AWS_BATCH_JOB_MAIN_NODE_INDEX': '1',
                'AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS': '10.0.0.1',
            },
            'AWS Batch',
            {'nnodes': '3', 'master': '10.0.0.1:6170', 'rank': 1},
        ),
        (
            {'AWS_BATCH_JOB_NUM_NODES': '2', 'AWS_BATCH_JOB_NODE_INDEX': '0', 'AWS_BATCH_JOB_MAIN_NODE_INDEX': '0'},
            'AWS Batch',
            {'nnodes': '2', 'master': 'localhost:6170', 'rank': 0},
        ),
        (VERTEX, 'Vertex AI', {'nnodes': '3', 'master': 'a:2222', 'rank': 2}),
        (LWS, 'LeaderWorkerSet', {'nnodes': '2', 'master': 'set-0.set.default:6170', 'rank': 1}),
        (
            {**FLUX, 'FLUX_JOB_SIZE': '2', 'FLUX_TASK_RANK': '1', 'FLUX_TASK_LOCAL_ID': '0', 'PMI_SIZE': '2', 'PMI_RANK': '1'},
            'Flux',
            {'nnodes': '2', 'master': 'node1:6170', 'rank': 1},
        ),
    ],
    ids=[
        *('slurm', 'trainjob', 'elastic trainjob', 'trainjob of one node', 'pytorchjob with nprocPerNode', 'pytorchjob'),
        *('volcano', 'pai-dlc', 'by hand', 'skypilot', 'dstack', 'sagemaker', 'aws batch', 'aws batch, main node', 'vertex'),
        *('leaderworkerset', 'flux'),
    ],
)
def test_a_process_per_node_starts_the_ranks_of_its_node(
    environment: dict[str, str], by: str, flags_of_it: dict[str, object]
) -> None:
    start = detect(environment)
    assert (start.per, start.by) == ('node', by)
    found = rank_flags(environment)
    assert found == {**found, **flags_of_it}
    assert set(found) >= set(flags_of_it)
    assert start.changes()['RANK'] is None  # a launcher is no rank


def test_a_user_of_jobset_gives_the_number_of_nodes() -> None:
    environment = {'RANK': '1', 'MASTER_ADDR': 'set-0', 'JOB_COMPLETION_INDEX': '1'}
    assert rank_flags(environment, '--nnodes', '2') == {'nnodes': '2', 'master': 'set-0:6170', 'rank': 1}


@pytest.mark.parametrize(
    'environment',
    [
        {},
        BATCH,
        {**BATCH, 'SLURM_JOB_NUM_NODES': '1'},
        {'RANK': '0'},
        {'WORLD_SIZE': '1'},
        {'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '1'},
        {
            'OMPI_COMM_WORLD_RANK': '0',
            'OMPI_COMM_WORLD_SIZE': '1',
            'OMPI_COMM_WORLD_LOCAL_RANK': '0',
            'OMPI_COMM_WORLD_LOCAL_SIZE': '1',
        },
        {**STEP, 'PHALANX_STARTED_BY': 'SLURM'},
    ],
)
def test_one_process_that_nobody_else_started_decides_for_itself(environment: dict[str, str]) -> None:
    assert detect(environment).per == ''
    assert rank_flags(environment) == {}
    assert rank_flags(environment, '--nproc_per_node', '2') == {'nproc_per_node': 2}


@pytest.mark.parametrize(
    ('environment', 'by', 'count'),
    [
        ({**STEP, **FLUX}, 'Flux', 4),  # a Flux that srun has started
        ({**STEP, **PALS}, 'SLURM', 4),  # srun --mpi=cray_shasta
        ({**PALS, **OPEN_MPI, 'PMI_SIZE': '2', 'MASTER_ADDR': 'a'}, 'Open MPI', 4),  # whose daemons PALS has started
        ({**ONE_OF_FLUX, **OPEN_MPI, 'MASTER_ADDR': 'a'}, 'Open MPI', 4),
        ({**ONE_OF_FLUX, 'PALS_RANKID': '0'}, '', 1),
    ],
    ids=['flux in slurm', 'pals variables of srun', 'mpirun by pals', 'mpirun in flux', 'one task of flux'],
)
def test_of_several_launchers_the_innermost_has_started_this_process(environment: dict[str, str], by: str, count: int) -> None:
    start = detect(environment)
    assert (start.by, start.count) == (by, count)


def test_the_script_of_a_job_of_several_nodes_gets_a_note_that_it_runs_on_one() -> None:
    assert str(detect(BATCH)) == (
        'in the script of SLURM job 7, which has 2 nodes (gpu01, gpu02): this runs on one of them (srun COMMAND runs on all)'
    )


@pytest.mark.parametrize(
    ('name', 'job', 'variable', 'lines'),
    [
        ('PBS', 'PBS_JOBID', 'PBS_NODEFILE', 'node1\nnode1\nnode2\nnode2\n'),  # select=2:mpiprocs=2
        ('Grid Engine', 'JOB_ID', 'PE_HOSTFILE', 'node1 2 all.q@node1 UNDEFINED\nnode2 2 all.q@node2 UNDEFINED\n'),
        ('LSF', 'LSB_JOBID', 'LSB_DJOB_HOSTFILE', 'node1\nnode1\nnode2\nnode2\n'),
    ],
)
def test_a_file_of_nodes_gives_the_note_and_is_its_cure(tmp_path: Path, name: str, job: str, variable: str, lines: str) -> None:
    file = tmp_path / 'nodes'
    file.write_text(lines)
    environment = {job: '2', variable: str(file)}
    note = str(detect(environment))
    assert note.startswith(f'in the script of {name} job 2, which has 2 nodes (node1, node2): this runs on one of them')
    assert f'--ssh --hostfile ${variable}, ' in note
    assert rank_flags(environment, '--ssh', '--hostfile', str(file)) == {'ips': 'node1,node2'}
    assert str(detect(environment).at(None, None, 'node1,node2')) == ''
    file.write_text(lines.split()[0])
    assert str(detect(environment)) == ''
    assert str(detect({job: '2'})) == ''
    file.write_text(lines)
    assert str(detect(environment | ONE_OF_MPICH)) == ''


@pytest.mark.parametrize(
    ('environment', 'by'),
    [
        ({'PBS_JOBID': '0.node1', 'PBS_NODENUM': '0', 'PBS_TASKNUM': '00000002'}, 'pbsdsh in PBS job 0.node1'),
        ({'JOB_ID': '2', 'JOB_NAME': 'petask', 'NHOSTS': '1', 'PE': 'mpi'}, 'qrsh in Grid Engine job 2'),
    ],
)
def test_processes_that_a_job_script_started_on_its_nodes_get_a_note(environment: dict[str, str], by: str) -> None:
    assert str(detect(environment)) == f'a process of {by}: without --ips, each of them does a run of its own'
    assert str(detect(environment).at(None, None, 'node1,node2')) == ''
    assert str(detect(environment | ONE_OF_MPICH)) == ''


def test_the_script_of_a_flux_job_asks_flux_for_its_nodes(tmp_path: Path) -> None:
    command = tmp_path / 'flux'
    command.write_text('#!/bin/sh\n[ "$*" = "getattr hostlist" ] && echo "node[1-12]"\n')
    command.chmod(0o755)
    script = {'FLUX_URI': 'local:///tmp/flux-xu29m5/local-0', 'PATH': str(tmp_path)}
    assert 'which has 12 nodes (node1, node2, node3, node4, ..., node12): this runs on one of them (flux run' in str(
        detect(script)
    )
    assert str(detect(script | ONE_OF_FLUX)) == ''
    assert str(detect(script | {'PATH': '/nowhere'})) == ''


def test_a_rank_of_our_own_launcher_is_known_by_its_parent() -> None:
    environment = {**TORCHRUN, 'PHALANX_LAUNCHER': '123'}
    assert (detect(environment, 123).by, detect(environment, 123).changes()) == ('Phalanx', {})
    assert detect(environment, 124).by == 'phalanx launch'  # a command that a rank runs


@pytest.mark.parametrize(
    ('environment', 'words', 'message'),
    [
        (TORCHRUN, ('--nproc_per_node', '4'), '--nproc_per_node 4 (4 per node), but LOCAL_WORLD_SIZE=2 (2 per node)'),
        (TORCHRUN, ('--gpus', '0,1,2'), '--gpus 0,1,2 (3 per node), but LOCAL_WORLD_SIZE=2 (2 per node)'),
        (TORCHRUN, ('--ips', 'a,b,c'), '--ips a,b,c (3 nodes), but WORLD_SIZE=4, LOCAL_WORLD_SIZE=2 (2 nodes)'),
        (TORCHRUN, ('--nnodes', '3'), '--nnodes 3 (3 nodes), but WORLD_SIZE=4, LOCAL_WORLD_SIZE=2 (2 nodes)'),
        (TORCHRUN, ('--master', 'a:1'), '--master a:1 (master a:1), but MASTER_ADDR=a, MASTER_PORT=29500 (master a:29500)'),
        (TORCHRUN, ('--ssh',), '--ssh True, but'),
        (STEP, ('--nproc_per_node', '8'), '--nproc_per_node 8 (8 per node), but SLURM_STEP_TASKS_PER_NODE=2 (2 per node)'),
        (KUBEFLOW, ('--nnodes', '4'), '--nnodes 4 (4 nodes), but PET_NNODES=2 (2 nodes)'),
        (KUBEFLOW, ('--nproc_per_node', '2'), '--nproc_per_node 2 (2 per node), but PET_NPROC_PER_NODE=4 (4 per node)'),
        (KUBEFLOW, ('--rank', '0'), '--rank 0 (node rank 0), but PET_NODE_RANK=1 (node rank 1)'),
        ({**KUBEFLOW, 'PADDLE_NNODES': '3'}, (), 'PADDLE_NNODES=3 (3 nodes), but PET_NNODES=2 (2 nodes)'),
        (
            {'RANK': '0', 'WORLD_SIZE': '2', 'MASTER_ADDR': 'localhost', 'MASTER_PORT': '29514'},
            ('--nproc_per_node', '2', '--nnodes', '2', '--master', '192.0.2.2:6170'),
            '--nnodes 2 (2 nodes), but WORLD_SIZE=2 (1 node)\n'
            '  --master 192.0.2.2:6170 (master 192.0.2.2:6170), but MASTER_ADDR=localhost, MASTER_PORT=29514 ',
        ),
    ],
)
def test_flags_that_contradict_the_launcher_are_refused_with_both_origins(
    environment: dict[str, str], words: tuple[str, ...], message: str
) -> None:
    output = refusal(environment, *words)
    assert message in output
    assert 'leave these flags out; or, if these variables are not meant for this command, unset ' in output


@pytest.mark.parametrize(
    ('environment', 'words'),
    [
        (TORCHRUN, ('--nproc_per_node', '2', '--nnodes', '2', '--master', 'a:29500')),
        (TORCHRUN, ('--gpus', '0,1', '--nnodes', '1:3')),
        (STEP, ('--nproc_per_node', '2', '--ips', 'gpu01,gpu02', '--master', 'gpu01:7000')),
        (KUBEFLOW, ('--gpus', '0,1,2,3', '--nnodes', '2', '--rank', '1')),
        ({**KUBEFLOW, 'PET_NPROC_PER_NODE': 'auto'}, ('--nproc_per_node', '3')),
        ({**KUBEFLOW, 'PET_NNODES': '1', 'PET_NODE_RANK': '0'}, ('--ssh',)),  # no other node has been started
    ],
)
def test_flags_that_agree_with_the_launcher_are_accepted(environment: dict[str, str], words: tuple[str, ...]) -> None:
    flags(environment, *words)


@pytest.mark.parametrize(
    'set_by_hand', [{'WORLD_SIZE': '2', 'RANK': '1'}, {'WORLD_SIZE': '16', 'RANK': '8'}, {'WORLD_SIZE': '16'}]
)
def test_numbers_that_agree_with_one_task_per_node_are_accepted(set_by_hand: dict[str, str]) -> None:
    """They may count nodes, or ranks of which each node has the same number."""
    assert detect(NODE_STEP | set_by_hand) == detect(NODE_STEP)


DSTACK = {'DSTACK_NODES_NUM': '2', 'DSTACK_NODE_RANK': '1', 'DSTACK_NODES_IPS': '10.0.0.1\n10.0.0.2'}
SAGEMAKER = {'SM_HOSTS': '["algo-1", "algo-2"]', 'SM_CURRENT_HOST': 'algo-2'}
COUNTED = {'RANK': '1', 'WORLD_SIZE': '2', 'MASTER_ADDR': '10.0.0.1'}  # nodes


@pytest.mark.parametrize(
    ('environment', 'line'),
    [
        ({**TORCHRUN, 'TORCHELASTIC_RUN_ID': 'a', **SAGEMAKER}, 'torchrun: 4 processes on 2 nodes, one per rank'),
        ({**TORCHRUN, **DSTACK}, 'dstack: 4 processes on 2 nodes, one per rank'),
        ({**COUNTED, **DSTACK}, 'dstack: 2 processes on 2 nodes, one per node, which starts its ranks'),
        ({**COUNTED, **SAGEMAKER}, 'SageMaker: 2 processes on 2 nodes, one per node, which starts its ranks'),
        ({**COUNTED, **LWS}, 'LeaderWorkerSet: 2 processes on 2 nodes, one per node, which starts its ranks'),
        ({**COUNTED, 'WORLD_SIZE': '3', **VERTEX}, 'Vertex AI: 3 processes on 3 nodes, one per node'),  # RANK is another number
        ({**TORCHRUN, **FLUX}, 'Flux: 4 processes on 2 nodes, one per rank'),
        ({**COUNTED, 'KUBERNETES_SERVICE_HOST': 'k', **DSTACK}, 'Kubernetes: 2 processes on 2 nodes, one per node, which'),
    ],
)
def test_ranks_that_agree_with_the_job_around_them_are_accepted(environment: dict[str, str], line: str) -> None:
    assert f'started by {line}' in str(detect(environment))


@pytest.mark.parametrize(
    ('environment', 'message'),
    [
        (  # torchrun --standalone on each of two nodes would train two runs
            {**TORCHRUN, 'RANK': '1', 'WORLD_SIZE': '2', **DSTACK},
            'WORLD_SIZE=2, LOCAL_WORLD_SIZE=2 (1 node), but DSTACK_NODES_NUM=2 of dstack (2 nodes)',
        ),
        (
            {**TORCHRUN, **DSTACK, 'DSTACK_NODE_RANK': '0'},
            'RANK=3 (node rank 1), but DSTACK_NODE_RANK=0 of dstack (node rank 0)',
        ),
        (
            {**TORCHRUN, **SAGEMAKER, 'SM_CURRENT_HOST': 'algo-1'},
            'RANK=3 (node rank 1), but SM_CURRENT_HOST=algo-1 of SageMaker (node rank 0)',
        ),
        ({**COUNTED, 'WORLD_SIZE': '16', **SAGEMAKER}, 'WORLD_SIZE=16 (16 nodes), but SM_HOSTS=2 of SageMaker (2 nodes)'),
        ({**COUNTED, 'RANK': '0', **LWS}, 'RANK=0 (node rank 0), but LWS_WORKER_INDEX=1 of LeaderWorkerSet (node rank 1)'),
        ({**COUNTED, **VERTEX}, 'WORLD_SIZE=2 (2 nodes), but nodes of CLUSTER_SPEC=3 of Vertex AI (3 nodes)'),
        ({**TORCHRUN, 'RANK': '1', **FLUX}, 'RANK=1 (node rank 0), but FLUX_TASK_RANK=3 of Flux (node rank 1)'),
        (
            {'RANK': '1', 'WORLD_SIZE': '2', 'MASTER_ADDR': 'localhost', **DSTACK},
            'RANK=1 (node rank 0), but DSTACK_NODE_RANK=1 of dstack (node rank 1)',
        ),
        (
            {'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '3', 'MASTER_ADDR': 'a', **DSTACK},
            'WORLD_SIZE=3, which DSTACK_NODES_NUM=2 of dstack does not divide',
        ),
    ],
)
def test_ranks_that_contradict_the_job_around_them_are_refused_with_both_values(
    environment: dict[str, str], message: str
) -> None:
    output = refusal(environment)
    assert message in output
    assert 'if those of' in output


def test_tasks_that_slurm_counts_in_turns_over_the_nodes_are_numbered_by_node() -> None:
    """Tasks 0 and 2 of `srun -N2 -n4 --distribution=cyclic` are on the first node, 1 and 3 on the second."""
    places = {0: ('0', '0'), 1: ('1', '0'), 2: ('0', '1'), 3: ('1', '1')}
    starts = [
        detect({**STEP, 'SLURM_PROCID': str(task), 'SLURM_NODEID': node, 'SLURM_LOCALID': local})
        for task, (node, local) in places.items()
    ]
    assert [start.exports['RANK'] for start in starts] == ['0', '2', '1', '3']
    assert [start.exports['LOCAL_RANK'] for start in starts] == ['0', '0', '1', '1']


@pytest.mark.parametrize(
    ('environment', 'message'),
    [
        ({**STEP, 'SLURM_NTASKS': '1', 'SLURM_PROCID': '0'}, 'SLURM_STEP_NUM_TASKS=4 contradicts SLURM_NTASKS=1'),
        ({**NODE_STEP, 'SLURM_JOB_NODELIST': 'gpu07'}, 'SLURM_STEP_NODELIST=gpu[01-02] contradicts SLURM_JOB_NODELIST=gpu07'),
    ],
)
def test_the_step_in_which_a_job_was_submitted_is_not_the_step_of_the_job(environment: dict[str, str], message: str) -> None:
    assert f'{message}: if this job was submitted within a step of another one, start this command with srun' in refusal(
        environment
    )
    alone = {**environment, 'SLURM_STEP_NUM_TASKS': '1', 'SLURM_STEP_NODELIST': 'gpu01', 'SLURM_NODEID': '0'}
    assert detect(alone).count == 1  # of `salloc` with an interactive step, say


def test_steps_of_several_jobs_on_one_node_meet_at_different_ports() -> None:
    steps = [(job, step) for job in range(7, 27) for step in range(2)]
    ports = {
        detect({**NODE_STEP, 'SLURM_JOB_ID': str(job), 'SLURM_STEP_ID': str(step)}).settings['start_port'].value
        for job, step in steps
    }
    assert len(ports) == len(steps)
    assert rank_flags(NODE_STEP, '--start_port', '7000')['start_port'] == 7000


LONE_TORCHRUN = {  # of `torchrun --standalone --nproc-per-node 2`
    'RANK': '1',
    'LOCAL_RANK': '1',
    'WORLD_SIZE': '2',
    'LOCAL_WORLD_SIZE': '2',
    'TORCHELASTIC_RUN_ID': 'a',
    'MASTER_ADDR': 'localhost',
    'MASTER_PORT': '29500',
}
MPI = {
    f'OMPI_COMM_WORLD_{name}': value for name, value in {'RANK': '1', 'SIZE': '2', 'LOCAL_RANK': '0', 'LOCAL_SIZE': '1'}.items()
}


@pytest.mark.parametrize(
    ('around', 'by', 'count'),
    [
        (NODE_STEP, 'SLURM', 2),
        (STEP, 'SLURM', 4),
        (MPI, 'Open MPI', 2),
        (KUBEFLOW, 'Kubeflow (PET_NNODES)', 2),
        (DSTACK, 'dstack', 2),
    ],
    ids=['slurm', 'slurm, tasks per node', 'mpi', 'trainjob', 'dstack'],
)
def test_torchrun_that_joins_one_node_in_each_of_several_processes_is_refused(
    around: dict[str, str], by: str, count: int
) -> None:
    assert f'{by} has started {count} processes, and in each of them torchrun a run of its own' in refusal(
        LONE_TORCHRUN | around
    )
    standalone = {'MASTER_ADDR': 'gpu01', 'TORCHELASTIC_RUN_ID': '4f210727-bc86-4d00-b5c0-748eb3dc1e58'}
    assert 'in each of them torchrun a run of its own (WORLD_SIZE=2, MASTER_ADDR=gpu01): leave torchrun out' in refusal(
        LONE_TORCHRUN | around | standalone
    )


@pytest.mark.parametrize(
    'environment',
    [
        {**NODE_STEP, **TORCHRUN, 'TORCHELASTIC_RUN_ID': 'a'},  # two agents that meet
        {**NODE_STEP, **LONE_TORCHRUN, 'MASTER_ADDR': 'gpu01'},  # --nnodes 1:2 after the loss of a node
        {**DSTACK, **TORCHRUN, 'TORCHELASTIC_RUN_ID': 'a', 'DSTACK_NODE_RANK': '0'},  # numbered by the names of the nodes
        {**NODE_STEP, **LONE_TORCHRUN, 'SLURM_STEP_NUM_TASKS': '1', 'SLURM_STEP_NODELIST': 'gpu01'},
        {**STEP, **TORCHRUN, 'LOCAL_WORLD_SIZE': ''},  # tasks that name their ranks themselves
        {**NODE_STEP, **LONE_TORCHRUN, 'TORCHELASTIC_RUN_ID': '', 'RAY_ADDRESS': 'a'},  # workers of Ray
    ],
)
def test_ranks_that_meet_or_are_alone_are_accepted_in_steps_of_slurm(environment: dict[str, str]) -> None:
    assert detect(environment).per == 'rank'


def test_tasks_of_slurm_meet_at_the_address_of_a_flag() -> None:
    met = detect(STEP).at('gpu02:7000', None).exports
    assert (met['MASTER_ADDR'], met['MASTER_PORT']) == ('gpu02', '7000')
    assert detect(STEP).at(None, 7000).exports['MASTER_PORT'] == '7000'
    assert '--start_port 7000, but MASTER_ADDR=a, MASTER_PORT=29500' in refusal(TORCHRUN, '--start_port', '7000')
    flags({**TORCHRUN, 'FLAGS_START_PORT': '7000'})  # a default
    alone = {'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '1', 'MASTER_ADDR': 'a', 'MASTER_PORT': '1'}  # as left by a notebook
    assert '--nproc_per_node 2 (2 per node), but WORLD_SIZE=1 (1 per node)' in refusal(alone, '--nproc_per_node', '2')


@pytest.mark.parametrize(
    ('environment', 'message'),
    [
        ({'RANK': '0', 'LOCAL_RANK': '0'}, 'without WORLD_SIZE; set it'),
        ({'RANK': '0', 'LOCAL_RANK': '0', 'WORLD_SIZE': '2'}, 'without MASTER_ADDR; set it, or unset'),
        ({'RANK': '1', 'WORLD_SIZE': '2'}, 'RANK=1 and WORLD_SIZE=2 without MASTER_ADDR, the address of the node of rank 0'),
        ({'RANK': '1'}, 'RANK=1 without WORLD_SIZE and MASTER_ADDR'),
        ({'WORLD_SIZE': '8'}, 'WORLD_SIZE=8 without RANK'),
        ({**TORCHRUN, 'RANK': 'x'}, 'RANK=x: expected a number, at least 0'),
        ({**TORCHRUN, 'RANK': '4'}, 'RANK=4 with WORLD_SIZE=4: numbers start at 0'),
        (
            {**STEP, 'SLURM_NTASKS': '3', 'SLURM_STEP_NUM_TASKS': '3', 'SLURM_STEP_TASKS_PER_NODE': '2,1'},
            'SLURM_STEP_TASKS_PER_NODE=2,1: nodes must have equal numbers of ranks; '
            'start the step with srun --ntasks=2 --ntasks-per-node=1',
        ),
        ({**STEP, 'WORLD_SIZE': '8'}, 'WORLD_SIZE=8 contradicts SLURM_STEP_NUM_TASKS=4 of SLURM'),
        ({**NODE_STEP, 'WORLD_SIZE': '5'}, 'WORLD_SIZE=5 contradicts SLURM_STEP_NUM_TASKS=2 of SLURM: unset WORLD_SIZE'),
        ({**NODE_STEP, 'WORLD_SIZE': '8', 'RANK': '3'}, 'RANK=3 contradicts SLURM_NODEID=1 of SLURM: unset RANK'),
        (
            {
                'OMPI_COMM_WORLD_RANK': '0',
                'OMPI_COMM_WORLD_SIZE': '4',
                'OMPI_COMM_WORLD_LOCAL_RANK': '0',
                'OMPI_COMM_WORLD_LOCAL_SIZE': '2',
            },
            'Open MPI started 4 processes on several nodes without MASTER_ADDR, the address of the node of rank 0: set it for '
            'all of them (mpiexec -x MASTER_ADDR=10.0.0.1)',
        ),
        (
            {'PMI_RANK': '0', 'PMI_SIZE': '3', 'MPI_LOCALRANKID': '0', 'MPI_LOCALNRANKS': '2', 'MASTER_ADDR': 'a'},
            'PMI_SIZE=3 with MPI_LOCALNRANKS=2: nodes must have equal numbers of ranks (mpiexec -ppn N)',
        ),
        (
            {'PMI_RANK': '0', 'PMI_SIZE': '4', 'MPI_LOCALRANKID': '0', 'MPI_LOCALNRANKS': '2'},
            'set it for all of them (mpiexec -genv MASTER_ADDR 10.0.0.1)',
        ),
        ({'PMI_RANK': '0', 'PMI_SIZE': '2'}, 'without MPI_LOCALRANKID'),
        (
            {**FLUX, 'MASTER_ADDR': ''},
            'Flux started 4 processes on several nodes without MASTER_ADDR, the address of the node of rank 0: set it for '
            'all of them (flux run --env=MASTER_ADDR=10.0.0.1)',
        ),
        (
            {**FLUX, 'FLUX_JOB_SIZE': '5', 'PMI_SIZE': '5'},
            'FLUX_JOB_SIZE=5 with FLUX_JOB_NNODES=2: nodes must have equal numbers of ranks (flux run --tasks-per-node=N)',
        ),
        ({**FLUX, 'FLUX_TASK_RANK': '2', 'PMI_RANK': '2', 'FLUX_TASK_LOCAL_ID': '2'}, 'FLUX_JOB_SIZE=4 with FLUX_JOB_NNODES=2'),
        (
            {**FLUX, **OPEN_MPI, 'OMPI_COMM_WORLD_SIZE': '8'},
            'FLUX_JOB_SIZE=4 of Flux contradicts OMPI_COMM_WORLD_SIZE=8 of mpiexec: leave one of them out',
        ),
        ({**FLUX, **OPEN_MPI, 'OMPI_COMM_WORLD_RANK': '0'}, 'FLUX_TASK_RANK=3 of Flux contradicts OMPI_COMM_WORLD_RANK=0'),
        (JSRUN, 'set it for all of them (jsrun -E MASTER_ADDR=10.0.0.1)'),
        (MVAPICH2, 'set it for all of them (mpirun_rsh -hostfile FILE MASTER_ADDR=10.0.0.1 COMMAND)'),
        (PALS, 'set it for all of them (mpiexec --env MASTER_ADDR=10.0.0.1)'),
        ({'PALS_RANKID': '0', 'PALS_LOCAL_RANKID': '0'}, 'PALS started this process without PMI_SIZE'),  # mpiexec --pmi=pmix
        ({'PET_NNODES': '2', 'PET_NODE_RANK': '0'}, 'without PET_MASTER_ADDR'),
        ({**KUBEFLOW, 'PET_NPROC_PER_NODE': 'many'}, 'PET_NPROC_PER_NODE=many: expected a number'),
        (
            {'SKYPILOT_NUM_NODES': '2', 'SKYPILOT_NODE_RANK': '0', 'SKYPILOT_NODE_IPS': '10.0.0.1'},
            'contradicts SKYPILOT_NUM_NODES=2',
        ),
        ({'SM_HOSTS': '["a"]', 'SM_CURRENT_HOST': 'b'}, 'is not a list with SM_CURRENT_HOST=b'),
        ({'CLUSTER_SPEC': '{}'}, 'CLUSTER_SPEC={}: expected the cluster and the task'),
    ],
)
def test_an_incomplete_contract_is_one_line_with_the_variable(environment: dict[str, str], message: str) -> None:
    output = refusal(environment)
    assert message in output
    assert '\n' not in output


@pytest.mark.parametrize(
    ('text', 'names'),
    [
        ('login', ['login']),
        ('a,b', ['a', 'b']),
        ('gpu[01-03,7],x', ['gpu01', 'gpu02', 'gpu03', 'gpu7', 'x']),
        ('r[1-2]n[8-9]', ['r1n8', 'r1n9', 'r2n8', 'r2n9']),
        ('n[098-101]', ['n098', 'n099', 'n100', 'n101']),
        ('', []),
    ],
)
def test_a_node_list_is_spelt_out(text: str, names: list[str]) -> None:
    """Examples of the format in `man scontrol`, show hostnames."""
    assert expand_hostlist(text) == names
