"""Launcher or scheduler that has started this process: by the first contract whose variables are set."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from phalanx.launch.contracts import CONTRACTS, LAUNCHERS, OF_JOBS, OF_TORCH, TORCH, Contract, expand_hostlist
from phalanx.launch.names import is_loopback, read_hostfile
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
    return Start(note=_note_on_job(environment))


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


class Script(NamedTuple):
    """Scheduler that runs the script of a job on the first node of the job only."""

    name: str
    job: str  # variable with the name of the job
    nodes: Callable[[Mapping[str, str]], list[str]]
    cure: str  # runs a command on all of them


def _note_on_job(environment: Mapping[str, str]) -> str:
    """Note for the script of a job of several nodes, and for a process that it has started with a command of its scheduler."""
    if any(launcher.names[0] in environment for launcher in LAUNCHERS.values()):
        return ''  # one process was asked for
    for job, remote, name in (
        ('PBS_JOBID', environment.get('PBS_TASKNUM', '1') != '1', 'pbsdsh in PBS'),
        ('JOB_ID', 'PE' in environment and 'PE_HOSTFILE' not in environment, 'qrsh in Grid Engine'),
    ):
        if job in environment and remote:
            return f'a process of {name} job {environment[job]}: without --ips, each of them does a run of its own'
    for script in SCRIPTS:
        nodes = script.nodes(environment) if script.job in environment else []
        if len(nodes) > 1:
            names = ', '.join(nodes if len(nodes) < 6 else [*nodes[:4], '...', nodes[-1]])
            return (
                f'in the script of {script.name} job {environment[script.job]}, which has {len(nodes)} nodes ({names}): '
                f'this runs on one of them ({script.cure} runs on all)'
            )
    return ''


def _nodes_of_slurm(environment: Mapping[str, str]) -> list[str]:
    return [] if 'SLURM_STEP_ID' in environment else expand_hostlist(environment.get('SLURM_JOB_NODELIST', ''))


def _nodes_of_flux(environment: Mapping[str, str]) -> list[str]:
    """Nodes of the instance, which no variable names."""
    try:
        command = ('flux', 'getattr', 'hostlist')
        asked = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return list(dict.fromkeys(expand_hostlist(asked.stdout.strip())))  # a node may have several brokers


def _nodes_in(variable: str) -> Callable[[Mapping[str, str]], list[str]]:
    """Function that reads the names at the beginning of lines in the file that a variable names."""

    def read(environment: Mapping[str, str]) -> list[str]:
        try:
            return read_hostfile(Path(environment[variable]))
        except (KeyError, OSError, UnicodeDecodeError):
            return []

    return read


SCRIPTS = (
    Script('SLURM', 'SLURM_JOB_ID', _nodes_of_slurm, 'srun COMMAND'),
    Script('Flux', 'FLUX_URI', _nodes_of_flux, 'flux run -N NODES COMMAND'),
    Script('PBS', 'PBS_JOBID', _nodes_in('PBS_NODEFILE'), '--ssh --hostfile $PBS_NODEFILE, or mpiexec,'),
    Script('LSF', 'LSB_JOBID', _nodes_in('LSB_DJOB_HOSTFILE'), '--ssh --hostfile $LSB_DJOB_HOSTFILE, jsrun or mpiexec'),
    Script('Grid Engine', 'JOB_ID', _nodes_in('PE_HOSTFILE'), '--ssh --hostfile $PE_HOSTFILE, or mpiexec,'),
)
