"""Two ranks that Ray or accelerate starts, in an environment made for them: the run that two ranks of our own give."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import phalanx as package
from nodes.conftest import Node, nodes  # noqa: F401 - fixture
from running import TINY, clean_environment, extended_python, free_port, losses

MORE = ('train.steps=12', 'evaluate.enabled=false', 'checkpoint.every=1', 'norm_sync=node')
OVERRIDES: dict[str, Any] = {key: yaml.safe_load(value) for key, value in (word.split('=', 1) for word in (*TINY[2:], *MORE))}
ARGUMENTS = f"'pp_liteseg_digits', save_dir='run', overrides=json.loads({json.dumps(OVERRIDES)!r})"
TRAIN = f'phalanx.train({ARGUMENTS})'

TRAINER = f"""
import json, os, sys
import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

ray.init(address=sys.argv[1])

def train(config):
    import phalanx
    os.chdir(config['folder'])
    assert {TRAIN}.step == 12

TorchTrainer(
    train,
    train_loop_config={{'folder': os.getcwd()}},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.getcwd(), name='results'),
).fit()
"""

FAILING_TRAINER = f"""
import json, os, sys
from pathlib import Path
import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

ray.init(address=sys.argv[1])

def train(config):
    import phalanx
    os.chdir(config['folder'])

    def fail_once(event):
        if event['kind'] == 'saved' and not Path('failed').exists():  # the first: a busy machine leaves some out
            Path('failed').touch()
            raise OSError('the node is lost')

    assert phalanx.train({ARGUMENTS}, fresh=True, callback=fail_once).step == 12

TorchTrainer(
    train,
    train_loop_config={{'folder': os.getcwd()}},
    scaling_config=ScalingConfig(num_workers=2),
    run_config=RunConfig(storage_path=os.getcwd(), name='results', failure_config=FailureConfig(max_failures=1)),
).fit()
"""

ACCELERATED = f"""
import json
import phalanx
from accelerate import debug_launcher
from accelerate.state import PartialState

def train():
    state = PartialState(cpu=True)
    assert {TRAIN}.step == 12
    state.wait_for_everyone()  # the group is still there

debug_launcher(train, num_processes=2)  # notebook_launcher on CPUs
"""

SMALL = ('--block', '--num-gpus', '0', '--disable-usage-stats', '--object-store-memory', '80000000')
HEAD = ('start', '--head', '--include-dashboard', 'false')

pytestmark = pytest.mark.long


@pytest.fixture(scope='module')
def python() -> str:
    """Python with Ray and accelerate beside the packages of this one; made once per machine."""
    return extended_python('ray', 'ray[train]', 'accelerate')


@pytest.fixture(scope='module')
def environment() -> dict[str, str]:
    ray = {'RAY_memory_monitor_refresh_ms': '0'}  # it would kill workers because other programs use the memory of this machine
    return clean_environment() | {'PYTHONPATH': str(Path(package.__file__).parent.parent)} | ray


@pytest.fixture(scope='module')
def expected(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> list[float]:
    """Losses of the two ranks of our own launcher."""
    folder = tmp_path_factory.mktemp('expected')
    command = [sys.executable, '-m', 'phalanx', 'train', *TINY, *MORE, '--nproc_per_node', '2', '--save_dir', 'run']
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return losses(folder / 'run')


@pytest.fixture(scope='module')
def ray(python: str, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Ray cluster of one node with two CPUs."""
    folder = tmp_path_factory.mktemp('ray')
    port = free_port()
    command = [str(Path(python).with_name('ray')), *HEAD, '--port', str(port), '--num-cpus', '2', *SMALL]
    with (folder / 'ray.txt').open('w') as output:
        head = subprocess.Popen(command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        while 'Ray runtime started' not in (folder / 'ray.txt').read_text():
            assert head.poll() is None, (folder / 'ray.txt').read_text()
            time.sleep(0.2)
        yield f'127.0.0.1:{port}'
    finally:
        os.killpg(head.pid, signal.SIGTERM)
        head.wait()


@pytest.fixture
def two_nodes(python: str, environment: dict[str, str], nodes: list[Node]) -> str:  # noqa: F811
    """Address of a Ray cluster of two nodes, in network namespaces, with two CPUs each."""
    address = f'{nodes[0].address}:6379'
    for node, place in zip(nodes[:2], ((*HEAD, '--port', '6379'), ('start', '--address', address)), strict=True):
        command = (str(Path(python).with_name('ray')), *place, '--node-ip-address', node.address, '--num-cpus', '2', *SMALL)
        node.start(*command, **environment).until_said('Ray runtime started')
    return address


def test_ranks_on_two_nodes_of_ray_form_one_run_and_a_rank_that_hangs_is_named(
    python: str,
    two_nodes: str,
    nodes: list[Node],  # noqa: F811
    environment: dict[str, str],
    expected: list[float],
) -> None:
    ray = (python, '-m', 'phalanx', 'launch', '--ray', two_nodes, '--nnodes', '2', '--nproc_per_node', '1')
    train = ('train', *TINY, *MORE, 'norm_sync=global')  # on one node, as in `expected`, all ranks are those of the node
    whole = nodes[0].start(*ray, '--', *train, '--save_dir', 'run', **environment)
    assert whole.end() == 0, whole.output
    assert losses(nodes[0].folder / 'run') == expected

    command = (*ray, '--hang_timeout', '60', '--', *train, 'train.steps=100000', '--save_dir', 'hanging')
    hanging = nodes[0].start(*command, **environment)
    run = nodes[0].folder / 'hanging'
    hanging.until(lambda: (run / 'latest').exists())
    ranks = json.loads((run / 'journal.jsonl').read_text().splitlines()[0])['ranks']
    homes = [[rank['pid'] in node.processes() for node in nodes].index(True) for rank in ranks]
    assert sorted(homes) == [0, 1]  # although one node has room for both; Ray chooses which node gets rank 0
    os.kill(ranks[1]['pid'], signal.SIGSTOP)
    assert hanging.end() == 1, hanging.output
    last = hanging.output.splitlines()[-1]
    assert 'no progress for 60 s; rank 1 is furthest behind' in last or 'rank 1 did not take part' in last, hanging.output
    assert '(its process is stopped)' in last


def run(command: list[str], environment: dict[str, str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_run_on_a_ray_cluster_goes_on_after_one_of_its_workers_was_killed(
    python: str, ray: str, environment: dict[str, str], expected: list[float], tmp_path: Path
) -> None:
    words = ['launch', '--ray', ray, '--nproc_per_node', '2', '--max_restart', '1', '--', 'train', *TINY, *MORE]
    running = subprocess.Popen(
        [python, '-m', 'phalanx', *words, '--save_dir', 'run'],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / 'run' / 'latest').exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.05)
    start = json.loads((tmp_path / 'run' / 'journal.jsonl').read_text().splitlines()[0])
    ranks = [psutil.Process(rank['pid']) for rank in start['ranks']]
    worker = ranks[1].parent()
    assert worker is not None
    worker.kill()
    output, errors = running.communicate()
    assert running.returncode == 0, errors
    assert 'rank 1 of 2 on' in errors and 'is lost' in errors
    assert 'starting again from the last checkpoint (0 restarts left)' in errors
    assert 'resumed at step' in output
    assert not any(rank.is_running() for rank in ranks)
    assert losses(tmp_path / 'run') == expected
    assert (tmp_path / 'run' / 'log' / 'workerlog.1').is_file()


def test_a_wrong_request_on_a_ray_cluster_is_reported_once(
    python: str, ray: str, environment: dict[str, str], tmp_path: Path
) -> None:
    words = ['launch', '--ray', ray, '--nproc_per_node', '2', '--', 'train', *TINY, 'train.global_batch_size=1000']
    done = subprocess.run(
        [python, '-m', 'phalanx', *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2, done.stderr
    assert (done.stdout + done.stderr).count('train.global_batch_size') == 1


def test_the_workers_of_a_torch_trainer_are_the_ranks_of_one_run(
    python: str, ray: str, environment: dict[str, str], expected: list[float], tmp_path: Path
) -> None:
    run([python, '-c', TRAINER, ray], environment, tmp_path)
    assert losses(tmp_path / 'run') == expected


def test_a_second_attempt_of_a_torch_trainer_continues_although_its_call_says_fresh(
    python: str, ray: str, environment: dict[str, str], expected: list[float], tmp_path: Path
) -> None:
    run([python, '-c', FAILING_TRAINER, ray], environment, tmp_path)
    assert (tmp_path / 'failed').exists()
    assert not list(tmp_path.glob('run.old-*'))
    assert losses(tmp_path / 'run') == expected


def test_the_processes_of_accelerate_are_the_ranks_of_one_run(
    python: str, environment: dict[str, str], expected: list[float], tmp_path: Path
) -> None:
    run([python, '-c', ACCELERATED], environment, tmp_path)
    assert losses(tmp_path / 'run') == expected
