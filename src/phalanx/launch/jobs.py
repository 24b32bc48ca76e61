"""Job files for SLURM and Kubernetes."""

import copy
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

import yaml

from phalanx.launch.names import START_PORT


def write_slurm(file: Path, command: Sequence[str], nodes: int, devices: int) -> None:
    """Writes a batch script that runs `command` on `nodes` nodes with `devices` GPUs each (0: on their CPUs)."""
    gpus = f'#SBATCH --gpus-per-node={devices}              # devices of a node\n' if devices else ''
    file.write_text(
        f"""#!/bin/bash
# sbatch {file.name}
#SBATCH --job-name={_name(command)}
#SBATCH --nodes={nodes}                      # nodes
#SBATCH --ntasks-per-node=1            # one launcher a node; it starts the ranks
{gpus}#SBATCH --cpus-per-task=16             # cores for the ranks and their loader workers: edit
#SBATCH --time=24:00:00                # edit; the same script goes on where a run was stopped
#SBATCH --signal=TERM@120              # two minutes before the end: ranks save and stop
#SBATCH --output=%x-%j.log
#SBATCH --requeue                      # after a node failed, the job starts again and goes on

# source /path/to/venv/bin/activate    # edit: the environment, at one path on all nodes
export PHALANX_TOKEN=$SLURM_JOB_ID-$RANDOM$RANDOM  # nodes of another job are not admitted

exec srun --kill-on-bad-exit=1 {shlex.join(command)}
"""
    )


def write_kubernetes(file: Path, command: Sequence[str], nodes: int, devices: int) -> None:
    """Writes a PyTorchJob (Kubeflow) that runs `command` on `nodes` pods with `devices` GPUs each (0: on their CPUs)."""
    line = f'{shlex.join(command)} --nnodes {nodes} --master "$MASTER_ADDR:{START_PORT}" --rank "$NODE"'
    # The operator describes one rank a pod in RANK and WORLD_SIZE; here a pod holds a launcher with several ranks.
    script = f'NODE=$RANK; unset RANK WORLD_SIZE LOCAL_RANK MASTER_PORT; exec {line}'
    container = {
        'name': 'pytorch',  # the operator looks for this name
        'image': 'EDIT/image-with-phalanx:tag',
        'command': ['/bin/sh', '-c', script],
        'ports': [{'name': 'pytorchjob-port', 'containerPort': START_PORT}],
        'resources': {'limits': {'nvidia.com/gpu': devices} if devices else {'cpu': 16}},
        'volumeMounts': [{'name': 'shared', 'mountPath': '/data'}, {'name': 'memory', 'mountPath': '/dev/shm'}],
    }
    pod = {
        'spec': {
            'containers': [container],
            'volumes': [
                {'name': 'shared', 'persistentVolumeClaim': {'claimName': 'EDIT'}},
                {'name': 'memory', 'emptyDir': {'medium': 'Memory', 'sizeLimit': '8Gi'}},
            ],
        }
    }
    replica = {'restartPolicy': 'OnFailure', 'template': pod}
    replicas = {'Master': {'replicas': 1, **replica}}
    if nodes > 1:
        replicas['Worker'] = {'replicas': nodes - 1, **copy.deepcopy(replica)}  # written out, not as a reference
    job = {
        'apiVersion': 'kubeflow.org/v1',
        'kind': 'PyTorchJob',
        'metadata': {'name': _name(command)},
        'spec': {'pytorchReplicaSpecs': replicas},
    }
    heading = (
        f'# kubectl create -f {file.name}\n'
        '# Edit: the image, the claim of the volume with data and run folder (shared by all pods), resources.\n'
        '# NCCL exchanges between GPUs of one pod through /dev/shm, 64 MiB in a container by default: hence that volume.\n'
    )
    file.write_text(heading + yaml.safe_dump(job, sort_keys=False, width=1000))


def _name(command: Sequence[str]) -> str:
    """A job name from the recipe or script: lower-case letters, digits and dashes, as Kubernetes wants them."""
    words = [Path(word).stem for word in command if not word.startswith('-')]
    named = next((word for word in words[1:] if word not in ('train', 'launch')), words[0])
    return re.sub(r'[^a-z0-9]+', '-', named.lower()).strip('-')[:40] or 'phalanx'
