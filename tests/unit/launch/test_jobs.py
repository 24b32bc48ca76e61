"""Job files for SLURM, Kubernetes and SkyPilot."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path

import pytest
import yaml

from phalanx.launch.flags import Flags
from phalanx.launch.jobs import WRITERS, flags_of_job, write_kubernetes, write_pytorchjob, write_skypilot, write_slurm
from phalanx.launch.options import JOB_FILES, launch_parser
from phalanx.launch.start import Start
from stores import Store

COMMAND = ['phalanx', 'train', 'ocrnet hrnet.yml', '--gpus', '0,1', '--set', "data.root=/data/it's; here"]


def test_the_slurm_script_starts_one_launcher_per_node(tmp_path: Path) -> None:
    file = tmp_path / 'job.sh'
    write_slurm(file, COMMAND, nodes=4, devices=2)
    subprocess.run(['bash', '-n', str(file)], check=True)
    lines = file.read_text().splitlines()
    options = {line.split()[1] for line in lines if line.startswith('#SBATCH')}
    assert {'--nodes=4', '--ntasks-per-node=1', '--gpus-per-node=2', '--signal=TERM@120'} <= options
    (srun,) = (line for line in lines if line.startswith('srun '))
    assert shlex.split(srun)[-len(COMMAND) :] == COMMAND  # quoted: the shell hands on exactly these words


AGAIN = ['requeue 7']
SOON, LATER = datetime.now() + timedelta(minutes=2), datetime.now() + timedelta(hours=2)


@pytest.mark.parametrize(
    ('ended', 'state', 'step', 'limit', 'requeued'),
    [
        (143, 'RUNNING', 5, SOON, AGAIN),  # the time limit, after a step
        (143, 'RUNNING', 4, SOON, []),  # no step was trained: it would never end
        (143, 'RUNNING', 4, LATER, AGAIN),  # a preemption
        (143, 'RUNNING', 4, None, AGAIN),
        (0, 'RUNNING', 5, LATER, []),
        (1, 'RUNNING', 5, LATER, []),
        (143, 'CANCELLED', 5, LATER, []),
    ],
)
def test_a_job_that_was_stopped_after_a_checkpoint_queues_again(
    tmp_path: Path, ended: int, state: str, step: int, limit: datetime | None, requeued: list[str]
) -> None:
    """The commands of SLURM are scripts here: srun leaves a checkpoint and a status, scontrol notes what it is asked."""
    write_slurm(tmp_path / 'job.sh', [*COMMAND, '--save_dir', "it's a run"], nodes=4, devices=2)
    (tmp_path / "it's a run/checkpoints/step_0000004").mkdir(parents=True)
    scripts = {
        'srun': f'echo $SRUN_CPUS_PER_TASK > cpus; mkdir -p "it\'s a run/checkpoints/step_000000{step}"; exit {ended}',
        'squeue': f'echo {limit.isoformat("T", "seconds") if limit else "NONE"}',
        'scontrol': f'[ "$1" = show ] && echo "JobState={state}" || echo "$@" >> asked',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f'#!/bin/sh\n{script}\n')
        (tmp_path / name).chmod(0o755)
    environment = {'PATH': f'{tmp_path}:/usr/bin:/bin', 'SLURM_JOB_ID': '7', 'SLURM_CPUS_PER_TASK': '16'}
    done = subprocess.run(['bash', 'job.sh'], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == ended
    assert (tmp_path / 'cpus').read_text() == '16\n'
    asked = tmp_path / 'asked'
    assert (asked.read_text().splitlines() if asked.exists() else []) == requeued
    assert ('give the job a longer --time' in done.stderr) == ((ended, step, limit) == (143, 4, SOON))


@pytest.mark.parametrize('step', [4, 5])
def test_a_job_with_its_run_folder_in_a_bucket_asks_there_for_the_newest_checkpoint(
    store: Store, tmp_path: Path, step: int
) -> None:
    """Close to its time limit it queues again if this start has stored a step."""
    write_slurm(tmp_path / 'job.sh', [*COMMAND, '--save_dir', 's3://tests/runs/a'], nodes=1, devices=0)
    store.objects['/tests/runs/a/latest'] = b'checkpoints/step_4'
    url = "os.environ['AWS_ENDPOINT_URL'] + '/tests/runs/a/latest'"
    put = f"import os, urllib.request as u; u.urlopen(u.Request({url}, b'checkpoints/step_{step}', method='PUT'))"
    scripts = {
        'srun': f'python -c "{put}"; exit 143',
        'squeue': f'echo {SOON.isoformat("T", "seconds")}',
        'scontrol': '[ "$1" = show ] && echo JobState=RUNNING || echo "$@" >> asked',
        'python': f'exec {sys.executable} "$@"',
    }
    for name, script in scripts.items():
        (tmp_path / name).write_text(f'#!/bin/sh\n{script}\n')
        (tmp_path / name).chmod(0o755)
    environment = {**os.environ, 'PATH': f'{tmp_path}:/usr/bin:/bin', 'SLURM_JOB_ID': '7'}
    done = subprocess.run(['bash', 'job.sh'], cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert done.returncode == 143
    assert (tmp_path / 'asked').exists() == (step == 5), done.stderr
    assert ('give the job a longer --time' in done.stderr) == (step == 4)


def test_the_trainjob_runs_the_command_on_every_node_with_its_run_folder_on_the_volume(tmp_path: Path) -> None:
    file = tmp_path / 'job.yml'
    write_kubernetes(file, COMMAND, nodes=3, devices=2)
    job = yaml.safe_load(file.read_text())
    assert (job['apiVersion'], job['kind']) == ('trainer.kubeflow.org/v1alpha1', 'TrainJob')
    trainer = job['spec']['trainer']
    assert (trainer['numNodes'], trainer['numProcPerNode']) == (3, 2)
    assert trainer['resourcesPerNode']['limits'] == {'nvidia.com/gpu': 2}
    assert trainer['command'] == [*COMMAND, '--save_dir', '/data/runs/ocrnet-hrnet']
    (patch,) = job['spec']['runtimePatches']
    (replicated,) = patch['trainingRuntimeSpec']['template']['spec']['replicatedJobs']
    pod = replicated['template']['spec']['template']['spec']
    assert [mount['mountPath'] for mount in pod['containers'][0]['volumeMounts']] == ['/data', '/dev/shm']


@pytest.mark.parametrize(
    ('given', 'written'),
    [
        (('--save_dir', 'runs/a'), ('--save_dir', '/data/runs/a')),
        (('--save_dir=runs/a',), ('--save_dir=/data/runs/a',)),
        (('--save_dir', '/mnt/a'), ('--save_dir', '/mnt/a')),
        (('--save_dir', 's3://b/a'), ('--save_dir', 's3://b/a')),
    ],
)
def test_a_run_folder_that_was_given_is_on_the_volume_too(
    tmp_path: Path, given: tuple[str, ...], written: tuple[str, ...]
) -> None:
    write_kubernetes(tmp_path / 'job.yml', ['phalanx', 'train', 'a.yml', *given], nodes=1, devices=0)
    command = yaml.safe_load((tmp_path / 'job.yml').read_text())['spec']['trainer']['command']
    assert tuple(command[3:]) == written


def test_the_pytorchjob_has_a_master_and_the_other_nodes(tmp_path: Path) -> None:
    file = tmp_path / 'job.yml'
    write_pytorchjob(file, COMMAND, nodes=3, devices=2)
    job = yaml.safe_load(file.read_text())
    assert (job['apiVersion'], job['kind']) == ('kubeflow.org/v1', 'PyTorchJob')
    replicas = job['spec']['pytorchReplicaSpecs']
    assert {name: part['replicas'] for name, part in replicas.items()} == {'Master': 1, 'Worker': 2}
    container = replicas['Worker']['template']['spec']['containers'][0]
    assert container['resources']['limits'] == {'nvidia.com/gpu': 2}
    assert container['command'] == [*COMMAND, '--save_dir', '/data/runs/ocrnet-hrnet']


def test_every_job_file_has_an_option() -> None:
    assert WRITERS.keys() == JOB_FILES.keys()


def test_the_skypilot_task_runs_the_command_with_its_run_folder_in_the_bucket(tmp_path: Path) -> None:
    write_skypilot(tmp_path / 'task.yml', COMMAND, nodes=2, devices=8)
    task = yaml.safe_load((tmp_path / 'task.yml').read_text())
    assert (task['num_nodes'], task['resources']['accelerators']) == (2, 'A100:8')
    assert list(task['file_mounts']) == ['/data']
    assert shlex.split(task['run']) == [*COMMAND, '--save_dir', '/data/runs/ocrnet-hrnet']


# Programs that read job files with the package of their recipient.
KUBEFLOW = """
import json, sys
from kubeflow_trainer_api.models import TrainerV1alpha1TrainJob as Job
for name in sys.argv[1:]:
    given = json.load(open(name))
    assert Job.from_dict(given).to_dict() == given, name  # nothing is unknown to it
"""
SKYPILOT = """
import json, sys
from sky import Task
for name in sys.argv[1:]:
    given = json.load(open(name))
    nodes = given['num_nodes']
    task = Task.from_yaml_config(given)
    assert task.num_nodes == nodes, name
    assert all(resources.use_spot for resources in task.resources), name
"""


@pytest.mark.long
@pytest.mark.parametrize(
    ('package', 'job', 'program'),
    [('kubeflow-trainer-api==2.3.0', 'kubernetes', KUBEFLOW), ('skypilot==0.14.1', 'skypilot', SKYPILOT)],
    ids=['kubeflow', 'skypilot'],
)
def test_job_files_are_accepted_by_the_package_of_their_recipient(tmp_path: Path, package: str, job: str, program: str) -> None:
    """In an environment of its own: SkyPilot takes 460 MB."""
    files = []
    for nodes in (1, 2, 8):
        for devices in (0, 8):
            WRITERS[job](tmp_path / 'job.yml', COMMAND, nodes, devices)
            files.append(tmp_path / f'{nodes}-{devices}.json')
            files[-1].write_text(json.dumps(yaml.safe_load((tmp_path / 'job.yml').read_text())))
    python = tmp_path / 'venv' / 'bin' / 'python'
    for step in ([sys.executable, '-m', 'venv', str(tmp_path / 'venv')], [str(python), '-m', 'pip', 'install', '-q', package]):
        made = subprocess.run(step, capture_output=True, text=True, check=False)
        if made.returncode:
            pytest.skip(f'{package} cannot be installed: {(made.stdout + made.stderr).strip()[-200:]}')
    environment = {'HOME': str(tmp_path), 'PATH': '/usr/bin:/bin', 'SKYPILOT_DISABLE_USAGE_COLLECTION': '1'}
    subprocess.run([str(python), '-c', program, *map(str, files)], check=True, env=environment)


@pytest.mark.long
def test_the_files_that_the_dockerfile_copies_are_enough_to_install_the_package(tmp_path: Path) -> None:
    repository = Path(__file__).parents[3]
    lines = [shlex.split(line) for line in (repository / 'Dockerfile').read_text().splitlines()]
    for words in (words[1:] for words in lines if words and words[0] == 'COPY'):
        target = tmp_path / words[-1].strip('/')
        for source in map(repository.joinpath, words[:-1]):
            if source.is_dir():
                shutil.copytree(source, target)
            else:
                target.mkdir(exist_ok=True)
                shutil.copy(source, target)
    (command,) = (words[1:] for words in lines if words and words[0] == 'RUN')
    assert command[:2] == ['pip', 'install']
    subprocess.run([sys.executable, '-m', 'venv', str(tmp_path / 'venv')], check=True)
    install = [str(tmp_path / 'venv/bin/python'), '-m', *command[:-1], '--no-deps', str(tmp_path / command[-1].strip('/'))]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if 'hatchling' in done.stderr and 'No matching distribution' in done.stderr:
        pytest.skip('the build needs hatchling, which cannot be installed')
    assert done.returncode == 0, done.stderr
    help_ = 'import phalanx.launch.options as o; o.launch_parser().parse_args(["train", "pp_liteseg_digits"])'
    subprocess.run([str(tmp_path / 'venv/bin/python'), '-I', '-c', help_], check=True, cwd=tmp_path)
    assert list((tmp_path / 'venv').glob('lib/*/site-packages/phalanx/recipes/**/*.yml'))


def read_flags(*words: str) -> tuple[int, int, list[str]]:
    given = launch_parser().parse_args([*words, 'train', 'a.yml'])
    return flags_of_job(given, Flags.of(given, {}, Start()))


def test_flags_of_a_launch_are_in_the_command_of_a_job() -> None:
    assert read_flags() == (1, 0, [])
    words = ['--gpus', '0,1,', '--log_append', '--max_restart', '3', '--hang_timeout', '60.0']
    assert read_flags('--nnodes', '4', *words) == (4, 2, words)
    assert read_flags('--nproc_per_node', '2') == (1, 2, ['--nproc_per_node', '2'])


@pytest.mark.parametrize(
    ('words', 'reason'),
    [
        (('--ips', '10.0.0.1,10.0.0.2'), '--ips: the scheduler of a job chooses its nodes; give their number, --nnodes N'),
        (('--nnodes', '2', '--master', '10.0.0.1:7'), '--master: the scheduler of a job chooses its nodes'),
        (('--nnodes', '2:4'), '--nnodes 2:4: a job has a fixed number of nodes; give one number'),
        (('--nnodes', 'two'), '--nnodes two: expected a number of nodes such as 2'),
    ],
)
def test_flags_that_a_job_cannot_have_are_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_flags(*words)


@pytest.mark.parametrize(
    ('recipe', 'name'),
    [
        ('Mein Modell.yml', 'mein-modell'),
        ('2024_run.yml', 'run-2024-run'),
        (f'{"a" * 39}_b.yml', 'a' * 39),
        ('\u6a21\u578b.yml', 'run'),
    ],
)
def test_the_name_of_a_job_is_one_that_kubernetes_takes(recipe: str, name: str, tmp_path: Path) -> None:
    """Labels of RFC 1035: https://kubernetes.io/docs/concepts/overview/working-with-objects/names."""
    write_kubernetes(tmp_path / 'job.yml', ['phalanx', 'train', recipe], nodes=2, devices=1)
    assert yaml.safe_load((tmp_path / 'job.yml').read_text())['metadata']['name'] == name
