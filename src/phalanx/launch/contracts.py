"""Environment contracts of launchers and schedulers: the variables that give a process its rank or its node.

There are two kinds. Under the first, a launcher has started one process per rank, and this one is a rank. Under the second, it
has started one process per node, and this one starts the ranks of its node. `CONTRACTS` is checked in order; the first one
whose variables are set applies.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from phalanx.launch.names import START_PORT, is_loopback, parse_nodes
from phalanx.launch.start import Reader, Setting, Start


def expand_hostlist(text: str) -> list[str]:
    """Nodes of a SLURM hostlist: `gpu[01-03,7],login` -> gpu01, gpu02, gpu03, gpu7, login."""
    return [name for part in re.findall(r'(?:[^,\[]|\[[^\]]*\])+', text) for name in _expand(part)]


def _expand(part: str) -> Iterator[str]:
    found = re.search(r'\[([^\]]*)\]', part)
    if found is None:
        yield part
        return
    for piece in found.group(1).split(','):
        low, _, high = piece.partition('-')
        for number in range(int(low), int(high or low) + 1):
            yield from _expand(f'{part[: found.start()]}{number:0{len(low)}d}{part[found.end() :]}')


# One process per rank.


def _as_rank(
    read: Reader,
    by: str,
    rank: tuple[str, int],
    world: tuple[str, int],
    local: tuple[str, int],
    local_size: tuple[str, int] | None,
    rendezvous: Mapping[str, str] | None = None,
) -> Start:
    """Start of a rank; each number comes as (variable, value). `rendezvous`: MASTER_ADDR and MASTER_PORT if they are not set.

    Raises ValueError for impossible numbers.
    """
    # numbers must fit each other, and the standard variables if those are set as well
    for (name, number), (bound, limit) in ((rank, world), *([(local, local_size)] if local_size else [])):
        if number >= limit:
            raise ValueError(f'{name}={number} with {bound}={limit}: numbers start at 0')
    for name, (own, number) in (('RANK', rank), ('WORLD_SIZE', world), ('LOCAL_RANK', local)):
        if read.has(name) and read.number(name) != number:
            raise ValueError(f'{name}={read.text(name)} contradicts {own}={number} of {by}: unset {name}')
    if world[1] == 1 and not read.has('MASTER_ADDR') and 'PHALANX_INIT_METHOD' not in read.variables:
        return Start()  # a single rank needs no rendezvous
    # settings are compared with flags; exports become the environment of the rank
    nodes, settings = None, dict[str, Setting]()
    exports = {'RANK': str(rank[1]), 'WORLD_SIZE': str(world[1]), 'LOCAL_RANK': str(local[1])}
    if local_size is not None:
        nodes = -(-world[1] // local_size[1])
        settings['nproc_per_node'] = Setting(str(local_size[1]), f'{local_size[0]}={local_size[1]}')
        settings['nnodes'] = Setting(
            str(nodes), ', '.join(dict.fromkeys(f'{name}={number}' for name, number in (world, local_size)))
        )
        settings['rank'] = Setting(str(rank[1] // local_size[1]), f'{rank[0]}={rank[1]}')
        exports['LOCAL_WORLD_SIZE'] = str(local_size[1])
    # the rendezvous: from the variables, or else from what the launcher implies
    if 'PHALANX_INIT_METHOD' not in read.variables:
        master = Reader({**(rendezvous or {}), **{name: text for name, text in read.variables.items() if text}}, by).master()
        if read.has('MASTER_ADDR'):  # else we chose it, and flags may choose another
            settings['master'] = master
        host, _, port = master.value.rpartition(':')
        exports |= {'MASTER_ADDR': host.strip('[]'), 'MASTER_PORT': port}
    names = (rank[0], local[0], world[0], *([local_size[0]] if local_size else []), 'MASTER_ADDR', 'MASTER_PORT')
    return Start(by, 'rank', world[1], nodes, variables=read.shown(*dict.fromkeys(names)), settings=settings, exports=exports)


def _number(read: Reader, name: str, least: int = 0) -> tuple[str, int]:
    return name, read.number(name, least)


def _torchrun(read: Reader, name: str) -> Start | None:
    """RANK, LOCAL_RANK and WORLD_SIZE, as set by torchrun, accelerate, Composer, Ray Train, Azure ML and users."""
    if not read.has('RANK', 'LOCAL_RANK'):
        return None
    signs = {
        'PHALANX_LAUNCHER': 'phalanx launch',
        'TORCHELASTIC_RUN_ID': 'torchrun',
        'ACCELERATE_MIXED_PRECISION': 'accelerate',
        'AZUREML_RUN_ID': 'Azure ML',
        'RAY_ADDRESS': 'Ray',
    }
    by = next((launcher for sign, launcher in signs.items() if read.has(sign)), name)
    world = _number(read, 'WORLD_SIZE', 1)
    alone = world if world[1] == 1 else None  # a single rank is also the only one of its node
    size = _number(read, 'LOCAL_WORLD_SIZE', 1) if read.has('LOCAL_WORLD_SIZE') else alone
    return _as_rank(read, by, _number(read, 'RANK'), world, _number(read, 'LOCAL_RANK'), size)


def _ranks_here(read: Reader, name: str) -> Start | None:
    """RANK, WORLD_SIZE and a loopback MASTER_ADDR, set by hand: only ranks of this node can meet at a loopback address."""
    if not read.has('RANK', 'WORLD_SIZE') or 'KUBERNETES_SERVICE_HOST' in read.variables:
        return None
    if 'PHALANX_INIT_METHOD' not in read.variables and not is_loopback(read.variables.get('MASTER_ADDR', '')):
        return None
    if read.number('WORLD_SIZE', 1) == 1 or read.has('PET_NNODES'):
        return None
    rank, world = _number(read, 'RANK'), _number(read, 'WORLD_SIZE', 1)
    return _as_rank(read, name, rank, world, rank, world)


class Launcher(NamedTuple):
    """Launcher of MPI programs: the variables that it sets in each process, and commands with which it does as needed."""

    names: tuple[str, str, str, str]  # rank, number of ranks, rank within the node, ranks of the node (Flux: number of nodes)
    address: str  # hands on the address of the node of rank 0
    equal: str  # starts N ranks on each node


# In this order: jsrun sets variables of Open MPI as well, Flux those of PMI, and PALS may start the daemons of Open MPI.
LAUNCHERS: Mapping[str, Launcher] = {
    'Flux': Launcher(
        ('FLUX_TASK_RANK', 'FLUX_JOB_SIZE', 'FLUX_TASK_LOCAL_ID', 'FLUX_JOB_NNODES'),
        'flux run --env=MASTER_ADDR=10.0.0.1',
        'flux run --tasks-per-node=N',
    ),
    'jsrun': Launcher(
        ('JSM_NAMESPACE_RANK', 'JSM_NAMESPACE_SIZE', 'JSM_NAMESPACE_LOCAL_RANK', 'JSM_NAMESPACE_LOCAL_SIZE'),
        'jsrun -E MASTER_ADDR=10.0.0.1',
        'jsrun -r 1 -a N',
    ),
    'Open MPI': Launcher(
        ('OMPI_COMM_WORLD_RANK', 'OMPI_COMM_WORLD_SIZE', 'OMPI_COMM_WORLD_LOCAL_RANK', 'OMPI_COMM_WORLD_LOCAL_SIZE'),
        'mpiexec -x MASTER_ADDR=10.0.0.1',
        'mpiexec --npernode N',
    ),
    'MVAPICH2': Launcher(
        ('MV2_COMM_WORLD_RANK', 'MV2_COMM_WORLD_SIZE', 'MV2_COMM_WORLD_LOCAL_RANK', 'MV2_COMM_WORLD_LOCAL_SIZE'),
        'mpirun_rsh -hostfile FILE MASTER_ADDR=10.0.0.1 COMMAND',
        'mpirun_rsh -hostfile FILE, with each node N times in FILE',
    ),
    'PALS': Launcher(
        ('PALS_RANKID', 'PMI_SIZE', 'PALS_LOCAL_RANKID', 'PMI_LOCAL_SIZE'),
        'mpiexec --env MASTER_ADDR=10.0.0.1',
        'mpiexec --ppn N',
    ),
    'MPICH or Intel MPI': Launcher(
        ('PMI_RANK', 'PMI_SIZE', 'MPI_LOCALRANKID', 'MPI_LOCALNRANKS'), 'mpiexec -genv MASTER_ADDR 10.0.0.1', 'mpiexec -ppn N'
    ),
}


def _mpi(read: Reader, by: str) -> Start | None:
    """Start by one of LAUNCHERS: one process per rank, or per node if each node has one. They do not set MASTER_ADDR."""
    names, address, equal = LAUNCHERS[by]
    # srun and Flux set variables of PMI and PALS as well, without MPI_LOCALRANKID; mpiexec within them sets it
    others = 'PMI_SIZE' in names and (read.has('SLURM_STEP_NUM_TASKS') or read.has('FLUX_TASK_RANK'))
    if not read.has(names[0]) or (others and not read.has('MPI_LOCALRANKID')):
        return None
    rank, world, local, size = (_number(read, name, least) for name, least in zip(names, (0, 1, 0, 1), strict=True))
    if world[1] == 1:
        return None
    if by in ('Flux', 'jsrun'):
        _check_inner(read, by, rank, world)
    uneven = world[1] % size[1]  # a node with one process would take itself for one of as many nodes
    if size[0] == 'FLUX_JOB_NNODES':
        size = (f'{world[0]}/{size[0]}', max(1, world[1] // size[1]))
        uneven = uneven or local[1] >= size[1]
    if uneven:
        counts = ' with '.join(read.shown(names[1], names[3]))
        raise ValueError(f'{counts}: nodes must have equal numbers of ranks ({equal})')
    head = '127.0.0.1' if size[1] == world[1] else read.variables.get('AZ_BATCH_MASTER_NODE', '').rpartition(':')[0]
    if not head and not read.has('MASTER_ADDR'):
        raise ValueError(
            f'{by} started {world[1]} processes on several nodes without MASTER_ADDR, the address of the node of rank 0: '
            f'set it for all of them ({address})'
        )
    if size[1] == 1:
        master = read.master() if read.has('MASTER_ADDR') else Setting(f'{head}:{START_PORT}', 'AZ_BATCH_MASTER_NODE')
        return _as_node(read, by, world, rank, master, (*names, 'MASTER_ADDR', 'MASTER_PORT'))
    return _as_rank(read, by, rank, world, local, size, {'MASTER_ADDR': head})


def _check_inner(read: Reader, by: str, rank: tuple[str, int], world: tuple[str, int]) -> None:
    """Raise ValueError if mpiexec and Flux or jsrun, one within the other, count this process differently."""
    for prefix in ('OMPI_COMM_WORLD_', 'PMI_'):
        for word, (name, number) in (('RANK', rank), ('SIZE', world)):
            inner = f'{prefix}{word}'
            if read.has(inner) and read.number(inner) != number:
                raise ValueError(
                    f'{name}={number} of {by} contradicts {inner}={read.text(inner)} of mpiexec: leave one of them out, '
                    f'or unset the variables of the one that did not start this process'
                )


# One process per node, which starts its ranks.


def _as_node(
    read: Reader,
    by: str,
    nodes: tuple[str, int],
    rank: tuple[str, int] | None,
    master: Setting | None,
    shown: tuple[str, ...],
    *,
    names: Setting | None = None,
    nproc: Setting | None = None,
    unit: str = 'process',
) -> Start:
    """Start of a node, from its rank and the master, or from all addresses. Raises ValueError for impossible numbers."""
    if rank is not None and rank[1] >= nodes[1]:
        raise ValueError(f'{rank[0]}={rank[1]} with {nodes[0]}={nodes[1]}: numbers start at 0')
    if rank is not None:
        _compare_with_torch(read, by, nodes, rank)
    # a list of all nodes needs no rank; without one, rank and master are needed
    settings = {'nnodes': Setting(str(nodes[1]), f'{nodes[0]}={nodes[1]}')}
    if names is not None:
        settings['ips'] = names
        if len(names.value.split(',')) != nodes[1]:
            raise ValueError(f'{names.origin} contradicts {nodes[0]}={nodes[1]}')
    elif nodes[1] > 1 and rank is not None and master is not None:
        settings['master'] = master
    if nodes[1] > 1 and rank is not None:
        settings['rank'] = Setting(str(rank[1]), read.shown(rank[0])[0] if read.has(rank[0]) else f'{rank[0]}={rank[1]}')
    if nproc is not None:
        settings['nproc_per_node'] = nproc
    return Start(by, 'node', nodes[1], nodes[1], unit, read.shown(*dict.fromkeys(shown)), settings)


def _compare_with_torch(read: Reader, by: str, nodes: tuple[str, int], rank: tuple[str, int]) -> None:
    """Raise ValueError if RANK or WORLD_SIZE, set as well, count neither the nodes nor equal numbers of ranks on them."""
    world = read.number('WORLD_SIZE', 1) if read.has('WORLD_SIZE') else nodes[1]
    if world % nodes[1]:
        raise ValueError(f'WORLD_SIZE={world} contradicts {nodes[0]}={nodes[1]} of {by}: unset WORLD_SIZE')
    if read.has('RANK') and read.number('RANK') not in (rank[1], rank[1] * (world // nodes[1])):
        raise ValueError(f'RANK={read.text("RANK")} contradicts {rank[0]}={rank[1]} of {by}: unset RANK')


def _slurm(read: Reader, by: str) -> Start | None:
    """Start of a step: one task on each of its nodes is a node, more are ranks. The batch script of a job is no step."""
    if not read.has('SLURM_STEP_NUM_TASKS', 'SLURM_STEP_NODELIST', 'SLURM_PROCID'):
        return None
    tasks, node = _number(read, 'SLURM_STEP_NUM_TASKS', 1), _number(read, 'SLURM_NODEID')
    list_ = read.setting('SLURM_STEP_NODELIST')
    names = expand_hostlist(list_.value)
    _check_step(read, names, tasks[1])
    ips = Setting(','.join(names), list_.origin)
    # another port for each step, the same for its tasks, with room for further ones: steps of several jobs may share nodes
    port = str(10000 + (read.number('SLURM_JOB_ID') * 31 + read.number('SLURM_STEP_ID')) % 2000 * 10)
    shown = ('SLURM_STEP_NUM_TASKS', 'SLURM_STEP_NODELIST', 'SLURM_PROCID')
    if tasks[1] <= len(names):
        start = _as_node(read, by, tasks, node, None, shown, names=ips, unit='task')
        return replace(start, settings={**start.settings, 'start_port': Setting(port, read.shown('SLURM_JOB_ID')[0])})
    each = tasks[1] // len(names)
    if read.text('SLURM_STEP_TASKS_PER_NODE') not in (str(each), f'{each}(x{len(names)})'):
        raise ValueError(
            f'SLURM_STEP_TASKS_PER_NODE={read.text("SLURM_STEP_TASKS_PER_NODE")}: nodes must have equal numbers of ranks; '
            f'start the step with srun --ntasks={each * len(names)} --ntasks-per-node={each}'
        )
    # by node, as ranks of a node must be consecutive: SLURM_PROCID counts in turns over the nodes with --distribution=cyclic
    local = _number(read, 'SLURM_LOCALID')
    rank = ('SLURM_NODEID and SLURM_LOCALID', node[1] * each + local[1])
    rendezvous = {'MASTER_ADDR': names[0], 'MASTER_PORT': port}
    start = _as_rank(read, by, rank, tasks, local, ('SLURM_STEP_TASKS_PER_NODE', each), rendezvous)
    variables = read.shown(*shown, 'SLURM_LOCALID', 'MASTER_ADDR', 'MASTER_PORT')
    return replace(start, unit='task', variables=variables, settings={**start.settings, 'ips': ips})


def _check_step(read: Reader, names: Sequence[str], tasks: int) -> None:
    """Raise ValueError if the variables of the step, which `sbatch` hands on to a job submitted within it, are not of this job.

    A step of one task does not matter: this node is alone in both.
    """
    nodes = expand_hostlist(read.variables.get('SLURM_JOB_NODELIST') or ','.join(names))
    for name, own, agree in (
        ('SLURM_STEP_NUM_TASKS', 'SLURM_NTASKS', (read.variables.get('SLURM_NTASKS') or str(tasks)) == str(tasks)),
        ('SLURM_STEP_NODELIST', 'SLURM_JOB_NODELIST', set(names) <= set(nodes)),
    ):
        if tasks > 1 and not agree:
            raise ValueError(
                f'{name}={read.text(name)} contradicts {own}={read.text(own)}: if this job was submitted within a step of '
                f'another one, start this command with srun, or unset {name} to run on this node alone; if not, unset {own}'
            )


def _pet(read: Reader, by: str) -> Start | None:
    """PET_*: variables for the options of torchrun; Kubeflow sets them, for torchrun or for Phalanx."""
    if not read.has('PET_NNODES'):
        return None
    # MIN:MAX for an elastic run, as torchrun takes it
    _, most = parse_nodes(read.text('PET_NNODES'), read.shown('PET_NNODES')[0])
    nproc = read.setting('PET_NPROC_PER_NODE') if read.has('PET_NPROC_PER_NODE') else None
    if nproc and nproc.value not in ('auto', 'gpu', 'cpu'):
        read.number('PET_NPROC_PER_NODE', 1)
    # the rendezvous: an endpoint as torchrun has, or the master address that Kubeflow sets
    rank = master = None
    if most > 1 and read.has('PET_RDZV_ENDPOINT') and not read.has('PET_MASTER_ADDR'):
        endpoint = read.setting('PET_RDZV_ENDPOINT')
        master = endpoint if ':' in endpoint.value else endpoint._replace(value=f'{endpoint.value}:{START_PORT}')
    elif most > 1:
        master = read.master('PET_MASTER_ADDR', 'PET_MASTER_PORT')
        rank = _number(read, 'PET_NODE_RANK')
    shown = ('PET_NNODES', 'PET_NPROC_PER_NODE', 'PET_NODE_RANK', 'PET_MASTER_ADDR', 'PET_MASTER_PORT', 'PET_RDZV_ENDPOINT')
    start = _as_node(read, by, ('PET_NNODES', most), rank, master, shown, nproc=nproc)
    settings = {**start.settings, 'nnodes': read.setting('PET_NNODES')}
    if master is not None:
        settings['master'] = master
    return Start(by, 'node', most, most, variables=start.variables, settings=settings)


def _node_rank(read: Reader, name: str) -> Start | None:
    """RANK and WORLD_SIZE without LOCAL_RANK count nodes, as in PyTorchJob, Volcano, PAI-DLC and AI Platform.

    Users of JobSet set RANK and MASTER_ADDR; there, the flag --nnodes gives the number of nodes.
    """
    if read.has('WORLD_SIZE') and not read.has('RANK') and read.number('WORLD_SIZE', 1) > 1:
        raise ValueError(
            f'WORLD_SIZE={read.text("WORLD_SIZE")} without RANK: there are several processes, but the number of this one '
            'is missing; set RANK and MASTER_ADDR as well, or unset WORLD_SIZE'
        )
    if not read.has('RANK'):
        return None
    # only for the name in messages: the variables mean the same under all of them
    signs = {'VC_TASK_INDEX': 'Volcano', 'VK_TASK_INDEX': 'Volcano', 'DLC_JOB_ID': 'PAI-DLC', 'CLUSTER_SPEC': 'Vertex AI'}
    signs |= {'JOBSET_NAME': 'JobSet', 'JOB_COMPLETION_INDEX': 'JobSet', 'KUBERNETES_SERVICE_HOST': 'Kubernetes'}
    by = next((launcher for sign, launcher in signs.items() if read.has(sign)), name)
    nproc = read.setting('NPROC_PER_NODE') if read.has('NPROC_PER_NODE') else None
    shown = ('RANK', 'WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'NPROC_PER_NODE')
    # without WORLD_SIZE, rank 0 may be a leftover of a single process; others cannot be
    if not read.has('WORLD_SIZE') and not read.has('MASTER_ADDR'):
        if read.number('RANK') == 0:
            return None
        raise ValueError(f'RANK={read.text("RANK")} without WORLD_SIZE and MASTER_ADDR: set both, or unset RANK')
    if not read.has('WORLD_SIZE'):
        rank = read.setting('RANK')
        return Start(by, 'node', 1, None, variables=read.shown(*shown), settings={'rank': rank, 'master': read.master()})
    # the usual case: both numbers, and the master if there are several nodes
    world, rank_here = _number(read, 'WORLD_SIZE', 1), _number(read, 'RANK')
    if world[1] > 1 and not read.has('MASTER_ADDR'):
        raise ValueError(
            f'RANK={rank_here[1]} and WORLD_SIZE={world[1]} without MASTER_ADDR, the address of the node of rank 0: '
            'set it, or unset RANK and WORLD_SIZE'
        )
    master = read.master() if world[1] > 1 else None
    return _as_node(read, by, world, rank_here, master, shown, nproc=nproc)


def _list(read: Reader, by: str, nodes: str, rank: str, addresses: str) -> Start | None:
    """Start of a node from a list of addresses, separated by lines or commas."""
    if not read.has(nodes):
        return None
    count = _number(read, nodes, 1)
    if count[1] == 1:
        return _as_node(read, by, count, None, None, (nodes,))
    given = re.split(r'[\s,]+', read.text(addresses).strip())
    names = Setting(','.join(given), f'{addresses}={",".join(given)}')
    return _as_node(read, by, count, _number(read, rank), None, (nodes, rank, addresses), names=names)


def _skypilot(read: Reader, by: str) -> Start | None:
    return _list(read, by, 'SKYPILOT_NUM_NODES', 'SKYPILOT_NODE_RANK', 'SKYPILOT_NODE_IPS')


def _dstack(read: Reader, by: str) -> Start | None:
    return _list(read, by, 'DSTACK_NODES_NUM', 'DSTACK_NODE_RANK', 'DSTACK_NODES_IPS')


def _sagemaker(read: Reader, by: str) -> Start | None:
    if not read.has('SM_HOSTS'):
        return None
    hosts = _json(read, 'SM_HOSTS')
    if not isinstance(hosts, list) or read.text('SM_CURRENT_HOST') not in hosts:
        raise ValueError(f'SM_HOSTS={read.text("SM_HOSTS")} is not a list with SM_CURRENT_HOST={read.text("SM_CURRENT_HOST")}')
    names = Setting(','.join(sorted(hosts)), f'SM_HOSTS={read.text("SM_HOSTS")}')
    rank = ('SM_CURRENT_HOST', sorted(hosts).index(read.text('SM_CURRENT_HOST')))
    return _as_node(read, by, ('SM_HOSTS', len(hosts)), rank, None, ('SM_HOSTS', 'SM_CURRENT_HOST'), names=names)


def _aws_batch(read: Reader, by: str) -> Start | None:
    """Multi-node job of AWS Batch. The main node itself does not get its address."""
    nodes, index, main, address = (
        f'AWS_BATCH_JOB_{name}' for name in ('NUM_NODES', 'NODE_INDEX', 'MAIN_NODE_INDEX', 'MAIN_NODE_PRIVATE_IPV4_ADDRESS')
    )
    if not read.has(nodes):
        return None
    own, first = read.number(index), read.number(main)
    rank = 0 if own == first else own + 1 if own < first else own
    if rank:
        master = Setting(f'{read.text(address)}:{START_PORT}', read.shown(address)[0])
    else:
        master = Setting(f'localhost:{START_PORT}', f'{index}={own}, {main}={first}')
    return _as_node(read, by, _number(read, nodes, 1), (index, rank), master, (nodes, index, main, address))


def _vertex(read: Reader, by: str) -> Start | None:
    """CLUSTER_SPEC: the pools of nodes, and the place of this node."""
    if not read.has('CLUSTER_SPEC'):
        return None
    spec = _json(read, 'CLUSTER_SPEC')
    try:
        pools, pool, index = spec['cluster'], spec['task']['type'], int(spec['task']['index'])
        order = sorted(name for name in pools if name.startswith('workerpool'))
        nodes = [node for name in order for node in pools[name]]
        rank = sum(len(pools[name]) for name in order[: order.index(pool)]) + index
    except (KeyError, TypeError, ValueError):
        raise ValueError(f'CLUSTER_SPEC={read.text("CLUSTER_SPEC")}: expected the cluster and the task of Vertex AI') from None
    master = Setting(nodes[0], f'the first node of CLUSTER_SPEC, {nodes[0]}')
    return _as_node(read, by, ('nodes of CLUSTER_SPEC', len(nodes)), ('index of CLUSTER_SPEC', rank), master, ('CLUSTER_SPEC',))


def _leader_worker_set(read: Reader, by: str) -> Start | None:
    """Group of pods of LeaderWorkerSet, which sets all three variables from version 0.6 on."""
    shown = ('LWS_GROUP_SIZE', 'LWS_WORKER_INDEX', 'LWS_LEADER_ADDRESS')
    if not read.has('LWS_GROUP_SIZE'):
        return None
    nodes = _number(read, 'LWS_GROUP_SIZE', 1)
    if nodes[1] == 1:
        return _as_node(read, by, nodes, None, None, shown)
    return _as_node(read, by, nodes, _number(read, 'LWS_WORKER_INDEX'), read.master('LWS_LEADER_ADDRESS'), shown)


def _json(read: Reader, name: str) -> Any:
    try:
        return json.loads(read.text(name))
    except json.JSONDecodeError as error:
        raise ValueError(f'{name}={read.text(name)}: not JSON ({error})') from None


class Contract(NamedTuple):
    """Launcher, and the function that reads its variables (None: not set)."""

    name: str
    read: Callable[[Reader, str], Start | None]


TORCH = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE')
OF_TORCH = (_torchrun, _ranks_here, _node_rank)  # which read these
# whose variables describe a whole job
OF_JOBS = (_mpi, _slurm, _pet, _skypilot, _dstack, _sagemaker, _aws_batch, _vertex, _leader_worker_set)
CONTRACTS = (
    Contract('another launcher', _torchrun),
    Contract('hand (RANK, WORLD_SIZE)', _ranks_here),
    *(Contract(name, _mpi) for name in LAUNCHERS),
    Contract('SLURM', _slurm),
    Contract('Kubeflow (PET_NNODES)', _pet),
    Contract('another scheduler', _node_rank),
    Contract('SkyPilot', _skypilot),
    Contract('dstack', _dstack),
    Contract('SageMaker', _sagemaker),
    Contract('AWS Batch', _aws_batch),
    Contract('Vertex AI', _vertex),
    Contract('LeaderWorkerSet', _leader_worker_set),
)
