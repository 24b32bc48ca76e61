"""Launcher or scheduler that has started this process: by the first contract whose variables are set."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from phalanx.launch.contracts import CONTRACTS, OF_JOBS, OF_TORCH, TORCH, Contract
from phalanx.launch.names import is_loopback
from phalanx.launch.start import OURS, STARTED_BY, Reader, Start, describe


def detect(environment: Mapping[str, str], parent: int | None = None) -> Start:
    """Start described by `environment`; `parent`: pid of the parent process.

    Raises ValueError, with a line for the user, if a contract is incomplete or contradicts itself.
    """
    if STARTED_BY in environment and 'RANK' not in environment:
        return Start()
    if 'RANK' in environment and parent is not None and environment.get('PHALANX_LAUNCHER') == str(parent):
        return Start(OURS, 'rank')  # our launcher has checked the flags already
    for contract in CONTRACTS:
        start = contract.read(Reader(environment, contract.name), contract.name)
        if start is not None:
            return _compare_with_job(start, environment) if contract.read in OF_TORCH else start
    return Start(note=_batch_script_note(environment))


def _compare_with_job(start: Start, environment: Mapping[str, str]) -> Start:
    """Start by RANK and WORLD_SIZE, which must agree with a scheduler that has started several processes, if one has.

    Raises ValueError with both values. A start by an unknown launcher takes the name of the scheduler.
    """
    others = {name: value for name, value in environment.items() if name not in TORCH}
    jobs = [job for contract in CONTRACTS if contract.read in OF_JOBS and (job := _read_if_valid(contract, others))]
    job = next((job for job in jobs if job.count > 1), None)
    # workers of Ray are not the processes that a scheduler has started
    if job is None or not start.per or start.by == 'Ray' or STARTED_BY in environment:
        return start
    if 'TORCHELASTIC_RUN_ID' in environment:
        _compare_torchrun(start, job, environment)
        return start
    # on Vertex AI, nothing says that RANK and CLUSTER_SPEC number the nodes alike
    compared = ('nnodes',) if job.by == 'Vertex AI' else ('nnodes', 'rank')
    pairs = [(start.settings.get(name), job.settings.get(name), name) for name in compared]
    contradictions = [
        f'{own.origin} ({describe(name, own.value)}), but {other.origin} of {job.by} ({describe(name, other.value)})'
        for own, other, name in pairs
        if own is not None and other is not None and own.value != other.value
    ]
    if start.per == 'rank' and start.count % job.count:
        contradictions.append(f'WORLD_SIZE={start.count}, which {job.settings["nnodes"].origin} of {job.by} does not divide')
    if contradictions:
        names = ' '.join(variable.partition('=')[0] for variable in job.variables)
        raise ValueError(
            f'two descriptions of this start contradict each other: {"; ".join(contradictions)}. '
            f'If RANK and WORLD_SIZE are right, unset {names}; if those of {job.by} are, unset RANK, WORLD_SIZE and LOCAL_RANK'
        )
    return replace(start, by=job.by) if start.by.startswith('another') else start


def _compare_torchrun(start: Start, job: Start, environment: Mapping[str, str]) -> None:
    """Raise ValueError if torchrun, started by a scheduler in several processes, has joined the ranks of this one only.

    `--standalone` names the run by a random UUID; without `--nnodes`, ranks meet at a loopback address. Nodes that can meet are
    numbered in an order of torchrun's own, and with `--nnodes MIN:MAX` there may be fewer.
    """
    master, run = environment.get('MASTER_ADDR', ''), environment['TORCHELASTIC_RUN_ID']
    is_standalone = start.nodes == 1 and re.fullmatch(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', run)
    if is_standalone or (is_loopback(master) and start.nodes != job.count):
        names = ' '.join(variable.partition('=')[0] for variable in job.variables)
        raise ValueError(
            f'{job.by} has started {job.count} processes, and in each of them {start.by} a run of its own '
            f'(WORLD_SIZE={start.count}, MASTER_ADDR={master}): leave {start.by} out, or let all of them meet '
            f'(torchrun --nnodes, accelerate --num_machines); if several runs are meant, unset {names}'
        )


def _read_if_valid(contract: Contract, variables: Mapping[str, str]) -> Start | None:
    try:
        return contract.read(Reader(variables, contract.name), contract.name)
    except ValueError:  # incomplete, but RANK and WORLD_SIZE are set
        return None


def _batch_script_note(environment: Mapping[str, str]) -> str:
    """Note for the batch script of a SLURM job: it runs on the first node only."""
    nodes = environment.get('SLURM_JOB_NUM_NODES', '1')
    if 'SLURM_JOB_ID' not in environment or 'SLURM_STEP_ID' in environment or nodes == '1':
        return ''
    return (
        f'in the batch script of SLURM job {environment["SLURM_JOB_ID"]}, which has {nodes} nodes: this runs on one of them '
        '(srun COMMAND runs on all)'
    )
