"""Job files for SLURM and Kubernetes."""

import shlex
import subprocess
from pathlib import Path

import yaml

from phalanx.launch.jobs import write_kubernetes, write_slurm

COMMAND = ['phalanx', 'train', 'ocrnet hrnet.yml', '--gpus', '0,1', '--set', "data.root=/data/it's; here"]


def test_the_slurm_script_is_a_shell_script_that_starts_one_launcher_a_node(tmp_path: Path) -> None:
    file = tmp_path / 'job.sh'
    write_slurm(file, COMMAND, nodes=4, devices=2)
    subprocess.run(['bash', '-n', str(file)], check=True)
    lines = file.read_text().splitlines()
    options = {line.split()[1] for line in lines if line.startswith('#SBATCH')}
    assert {'--nodes=4', '--ntasks-per-node=1', '--gpus-per-node=2', '--signal=TERM@120'} <= options
    assert shlex.split(lines[-1])[-len(COMMAND) :] == COMMAND  # quoted: the shell hands on exactly these words


def test_the_kubernetes_manifest_has_a_master_and_the_other_nodes(tmp_path: Path) -> None:
    file = tmp_path / 'job.yml'
    write_kubernetes(file, COMMAND, nodes=3, devices=2)
    job = yaml.safe_load(file.read_text())
    assert (job['apiVersion'], job['kind']) == ('kubeflow.org/v1', 'PyTorchJob')
    replicas = job['spec']['pytorchReplicaSpecs']
    assert {name: part['replicas'] for name, part in replicas.items()} == {'Master': 1, 'Worker': 2}
    container = replicas['Worker']['template']['spec']['containers'][0]
    assert container['resources']['limits'] == {'nvidia.com/gpu': 2}
    shell = container['command'][-1]
    ran = subprocess.check_output(
        ['/bin/sh', '-c', shell.replace('exec phalanx', 'exec printf "%s\\n"', 1)],
        env={'RANK': '2', 'WORLD_SIZE': '3', 'MASTER_ADDR': '10.0.0.1', 'PATH': '/usr/bin:/bin'},
        text=True,
    )
    assert ran.splitlines() == [*COMMAND[1:], '--nnodes', '3', '--master', '10.0.0.1:6170', '--rank', '2']
