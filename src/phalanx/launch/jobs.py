"""Job files for SLURM, Kubernetes and SkyPilot."""

import argparse
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from phalanx.launch.flags import Flags
from phalanx.launch.names import START_PORT, parse_nodes, split_list
from phalanx.system.buckets import is_url

OF_NODES = ('ips', 'hostfile', 'master', 'rank', 'host', 'start_port', 'ssh')  # flags of what a scheduler decides
IMAGE = 'EDIT/image-with-phalanx:tag'  # built from the Dockerfile of the repository
VOLUME = '/data'
GRACE = 120  # seconds between SIGTERM and the end of a pod, in which ranks save
MOUNTS = [{'name': 'shared', 'mountPath': VOLUME}, {'name': 'memory', 'mountPath': '/dev/shm'}]
VOLUMES = [
    {'name': 'shared', 'persistentVolumeClaim': {'claimName': 'EDIT'}},
    {'name': 'memory', 'emptyDir': {'medium': 'Memory', 'sizeLimit': '8Gi'}},
]


def flags_of_job(given: argparse.Namespace, flags: Flags) -> tuple[int, int, list[str]]:
    """Numbers of nodes and of devices on each, and the flags that the command of each node has. Raises ValueError."""
    for name in OF_NODES:
        if getattr(given, name) not in (None, False):
            raise ValueError(f'--{name}: the scheduler of a job chooses its nodes; give their number, --nnodes N')
    least, nodes = parse_nodes(flags.nnodes or '1', f'--nnodes {flags.nnodes}')
    if least != nodes:
        raise ValueError(f'--nnodes {flags.nnodes}: a job has a fixed number of nodes; give one number')
    words = list[str]()
    for option in fields(Flags):
        value = getattr(flags, option.name)
        if option.name not in ('nnodes', *OF_NODES) and value != option.default:
            words += [f'--{option.name}', *([] if value is True else [str(value)])]
    return nodes, len(split_list(flags.gpus)) if flags.gpus else flags.nproc_per_node or 0, words


def write_slurm(file: Path, command: Sequence[str], nodes: int, devices: int) -> None:
    """Write a batch script that runs `command` on `nodes` nodes with `devices` GPUs each (0: on their CPUs)."""
    gpus = f'#SBATCH --gpus-per-node={devices}              # GPUs per node\n' if devices else ''
    watched = _save_dir(command)
    requeue = (
        'scontrol requeue "$SLURM_JOB_ID"     # stopped by a preemption or the time limit, after a checkpoint: go on later'
    )
    begin, again = '', f'  {requeue}'
    if watched is not None:
        newest = f"ls {shlex.quote(watched[2])}/checkpoints 2>/dev/null | grep '^step_' | tail -n 1"
        if is_url(watched[2]):
            read = "print((parse_path(sys.argv[1]) / 'latest').read_text())"
            modules = 'import sys; from phalanx.system.paths import parse_path'
            newest = f'python -c "{modules}; {read}" {shlex.quote(watched[2])} 2>/dev/null'
        begin = f"""
# A start that trains no step before the time limit would do so for ever: then the job ends.
newest() {{ {newest}; }}
begin=$(newest)
end=$(date -d "$(SLURM_TIME_FORMAT=standard squeue -h -j "$SLURM_JOB_ID" -o %e)" +%s 2>/dev/null)  # empty: no time limit
"""
        again = f"""\
  if [ "$(newest)" = "$begin" ] && [ -n "$end" ] && [ $((end - $(date +%s))) -lt 240 ]; then
    echo "not queued again: the time limit came before the first step of this start; give the job a longer --time" >&2
  else
    {requeue}
  fi"""
    file.write_text(
        f"""#!/bin/bash
# sbatch {file.name}
#SBATCH --job-name={_job_name(command)}
#SBATCH --nodes={nodes}                      # nodes
#SBATCH --ntasks-per-node=1            # one launcher per node; it starts the ranks
{gpus}#SBATCH --cpus-per-task=16             # cores for the ranks and their loader workers: edit
#SBATCH --time=24:00:00                # edit; the script continues a run that was stopped
#SBATCH --signal=TERM@120              # two minutes before the end: ranks save and stop
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append             # a requeued job appends to its log
#SBATCH --requeue                      # after the failure of a node, the job restarts and continues

# source /path/to/venv/bin/activate    # edit: the environment, at one path on all nodes
export PHALANX_TOKEN=$SLURM_JOB_ID-$RANDOM$RANDOM  # nodes of another job are not admitted
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK     # srun does not take it from the job since Slurm 22.05
{begin}
srun --kill-on-bad-exit=1 {shlex.join(command)}
status=$?
if [ $status -eq 143 ] && scontrol show job "$SLURM_JOB_ID" | grep -q JobState=RUNNING; then
{again}
fi
exit $status
"""
    )


def write_kubernetes(file: Path, command: Sequence[str], nodes: int, devices: int) -> None:
    """Write a TrainJob (Kubeflow Trainer v2): `command` on `nodes` pods with `devices` GPUs each (0: on their CPUs)."""
    container = {'name': 'node', 'volumeMounts': MOUNTS}  # of the runtime `torch-distributed`
    pod = {'spec': {'terminationGracePeriodSeconds': GRACE, 'containers': [container], 'volumes': VOLUMES}}
    patch: dict[str, Any] = {'name': 'node', 'template': {'spec': {'template': pod}}}
    job = {
        'apiVersion': 'trainer.kubeflow.org/v1alpha1',
        'kind': 'TrainJob',
        'metadata': {'name': _job_name(command)},
        'spec': {
            'runtimeRef': {'name': 'torch-distributed'},
            'trainer': {
                'image': IMAGE,
                'command': _save_on_volume(command),
                'numNodes': nodes,
                'numProcPerNode': max(1, devices),  # else one per core where there are no GPUs
                'resourcesPerNode': _resource_limits(devices),
            },
            'runtimePatches': [
                {'manager': 'phalanx.io/launch', 'trainingRuntimeSpec': {'template': {'spec': {'replicatedJobs': [patch]}}}}
            ],
        },
    }
    _write_manifest(file, job)


def write_pytorchjob(file: Path, command: Sequence[str], nodes: int, devices: int) -> None:
    """Write a PyTorchJob (Kubeflow training operator v1), see `write_kubernetes`."""
    container = {
        'name': 'pytorch',  # the operator requires this name, and that of the port, which becomes MASTER_PORT
        'image': IMAGE,
        'command': _save_on_volume(command),
        'ports': [{'name': 'pytorchjob-port', 'containerPort': START_PORT}],
        'resources': _resource_limits(devices),
        'volumeMounts': MOUNTS,
    }
    pod = {'spec': {'terminationGracePeriodSeconds': GRACE, 'containers': [container], 'volumes': VOLUMES}}
    replica = {'restartPolicy': 'OnFailure', 'template': pod}
    replicas = {'Master': {'replicas': 1, **replica}}
    if nodes > 1:
        replicas['Worker'] = {'replicas': nodes - 1, **replica}
    job = {
        'apiVersion': 'kubeflow.org/v1',
        'kind': 'PyTorchJob',
        'metadata': {'name': _job_name(command)},
        'spec': {'pytorchReplicaSpecs': replicas},
    }
    _write_manifest(file, job)


def write_skypilot(file: Path, command: Sequence[str], nodes: int, devices: int) -> None:
    """Write a task of SkyPilot: `command` on `nodes` machines with `devices` GPUs each (0: on their CPUs)."""
    again = {'max_restarts_on_errors': 3, 'recover_on_exit_codes': [143]}  # 143: stopped by a signal, after a checkpoint
    task = {
        'name': _job_name(command),
        'num_nodes': nodes,
        'resources': {
            'image_id': f'docker:{IMAGE}',
            **({'accelerators': f'A100:{devices}'} if devices else {'cpus': '16+'}),
            'use_spot': True,
            'job_recovery': again,
        },
        'file_mounts': {VOLUME: {'name': 'edit-bucket', 'mode': 'MOUNT'}},
        'run': shlex.join(_save_on_volume(command)),
    }
    file.write_text(
        f'# sky jobs launch {file.name}    (a preempted job continues on other machines from its last checkpoint)\n'
        f'# Edit: the image, the GPUs, the bucket behind {VOLUME} with data and run folder.\n' + _to_yaml(task)
    )


def _resource_limits(devices: int) -> dict[str, dict[str, int]]:
    return {'limits': {'nvidia.com/gpu': devices} if devices else {'cpu': 16}}


def _save_on_volume(command: Sequence[str]) -> list[str]:
    """Command with its run folder on the shared volume: the disk of a pod is lost with the pod."""
    words, name = list(command), _job_name(command)
    if words[:2] != ['phalanx', 'train']:
        place = words.index('launch') + 1
        return words if '--log_dir' in words else [*words[:place], '--log_dir', f'{VOLUME}/runs/{name}/log', *words[place:]]
    if (given := _save_dir(command)) is None:
        return [*words, '--save_dir', f'{VOLUME}/runs/{name}']
    at, option, folder = given
    if is_url(folder):
        return words
    return [*words[:at], option + str(PurePosixPath(VOLUME) / folder), *words[at + 1 :]]  # an absolute folder stays


def _save_dir(command: Sequence[str]) -> tuple[int, str, str] | None:
    """Run folder of a training: the number of its word, the `--save_dir=` before it in that word if any, and the folder."""
    if list(command[:2]) != ['phalanx', 'train']:
        return None
    for number, word in enumerate(command):
        option, equals, value = word.partition('=')
        if option in ('--save_dir', '--save-dir'):
            return (number, f'{option}=', value) if equals else (number + 1, '', command[number + 1])
    return None


def _write_manifest(file: Path, job: dict[str, Any]) -> None:
    heading = (
        f'# kubectl create -f {file.name}\n'
        f'# Edit: the image, the claim of the volume {VOLUME} with data and run folder (shared by all pods), resources.\n'
        '# NCCL exchanges between GPUs of one pod through /dev/shm, 64 MiB in a container by default: hence that volume.\n'
    )
    file.write_text(heading + _to_yaml(job))


def _to_yaml(job: dict[str, Any]) -> str:
    written_out = json.loads(json.dumps(job))  # else YAML would write repeated parts as aliases
    return yaml.safe_dump(written_out, sort_keys=False, width=1000)


def _job_name(command: Sequence[str]) -> str:
    """Job name from the recipe or script: lower-case letters, digits and dashes, as Kubernetes requires (RFC 1035).

    It begins with a letter, and ends with no dash.
    """
    words = [Path(word).stem for word in command if not word.startswith('-')]
    named = next((word for word in words[1:] if word not in ('train', 'launch')), words[0])
    name = re.sub(r'[^a-z0-9]+', '-', named.lower()).strip('-')
    return (name if name[:1].isalpha() else f'run-{name}')[:40].strip('-')


WRITERS = {'slurm': write_slurm, 'kubernetes': write_kubernetes, 'pytorchjob': write_pytorchjob, 'skypilot': write_skypilot}
