"""`phalanx launch`, `python -m phalanx.launch` and `fleetrun`: any script as the ranks of a run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from faults.started import Fork
from running import TINY, Command, clean_environment, free_port, run_fork

# A training script as torch's own tutorial has them: it knows nothing of us.
SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
dist.init_process_group('gloo')
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(5):
    loss = model(torch.full((2, 4), float(dist.get_rank()))).square().mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print('rank', dist.get_rank(), 'of', dist.get_world_size(), 'total', total.item(), 'given', sys.argv[1:], flush=True)
dist.destroy_process_group()
os._exit(0)  # torch 2.15 aborts now and then when Python ends while one of gloo's threads still has a tensor to let go
"""


def run(folder: Path, *command: str, timeout: float = 120, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=folder,
        env={**clean_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


FLEETRUN = Path(sys.executable).with_name('fleetrun')


@pytest.mark.parametrize(
    'launcher',
    [
        (sys.executable, '-m', 'phalanx.launch', '--nproc_per_node', '2'),
        pytest.param(
            (str(FLEETRUN), '--gpus=0,1'),
            marks=[pytest.mark.long, pytest.mark.skipif(not FLEETRUN.exists(), reason='not installed')],
        ),
    ],
    ids=['module', 'fleetrun'],
)
def test_a_script_that_knows_nothing_of_us_runs_as_it_is(tmp_path: Path, launcher: tuple[str, ...]) -> None:
    (tmp_path / 'theirs.py').write_text(SCRIPT)
    done = run(tmp_path, *launcher, 'theirs.py', '--epochs', '3', '-x')
    assert done.returncode == 0, done.stderr
    assert "rank 0 of 2 total 3.0 given ['--epochs', '3', '-x']" in done.stdout
    assert 'rank 1 of 2 total 3.0' in (tmp_path / 'log' / 'workerlog.1').read_text()
    assert 'rank 0 of 2 total 3.0' in (tmp_path / 'log' / 'workerlog.0').read_text()


def test_missing_devices_become_cpu_ranks_with_a_warning(phalanx: Command, tmp_path: Path) -> None:
    (tmp_path / 'count.py').write_text('import os; print("rank", os.environ["RANK"], "of", os.environ["WORLD_SIZE"])')
    done = phalanx('launch', '--gpus', '0,1', 'count.py', CUDA_VISIBLE_DEVICES='')
    assert done.returncode == 0
    assert 'warning: --gpus 0,1: torch sees no CUDA device here; starting 2 ranks on the CPU' in done.stderr
    assert 'rank 0 of 2' in done.stdout


def test_a_module_runs_too(phalanx: Command, tmp_path: Path) -> None:
    (tmp_path / 'theirs.py').write_text('import sys; print("given", sys.argv[1:])')
    done = phalanx('launch', '--nproc_per_node=1', '-m', 'theirs', '--ips', 'mine')
    assert "given ['--ips', 'mine']" in done.stdout, done.stderr


def test_a_script_that_is_not_there_starts_nothing(phalanx: Command) -> None:
    done = phalanx('launch', 'gone.py')
    assert (done.returncode, done.stderr) == (2, 'phalanx launch: gone.py: there is no such script\n')


def test_the_first_rank_that_fails_has_the_last_word(phalanx: Command, tmp_path: Path) -> None:
    """The other rank waits in a barrier, whose broken connection is a consequence."""
    (tmp_path / 'fails.py').write_text(
        'import torch.distributed as dist, time\n'
        'dist.init_process_group("gloo")\n'
        'if dist.get_rank() == 1:\n    time.sleep(1); raise KeyError("no such image")\n'
        'dist.barrier()\n'
    )
    done = phalanx('launch', '--nproc_per_node', '2', 'fails.py')
    assert done.returncode == 1
    assert '[rank 1] [rank1]: Traceback' in done.stderr
    last = done.stderr.splitlines()[-1]
    assert 'rank 1 of 2' in last
    assert 'workerlog.1' in last
    assert last.endswith("KeyError: 'no such image' (exit status 1)")


def test_a_run_that_fails_again_and_again_is_restarted_as_often_as_allowed(phalanx: Command, tmp_path: Path) -> None:
    (tmp_path / 'fails.py').write_text('open("begun", "a").write("once "); raise KeyError("no such image")')
    done = phalanx('launch', '--nproc_per_node', '1', '--max_restart', '1', 'fails.py')
    assert done.returncode == 1
    assert (tmp_path / 'begun').read_text() == 'once once '
    assert done.stderr.count('starting again from the last checkpoint') == 1, done.stderr
    assert '(0 restarts left)' in done.stderr
    assert done.stderr.splitlines()[-1].endswith("KeyError: 'no such image' (exit status 1)")


def test_a_rank_that_the_kernel_kills_for_memory_is_reported_as_such(tmp_path: Path) -> None:
    """In the place of the kernel, which counts such ends, stands a count that grows during the attempt."""
    (tmp_path / 'killed.py').write_text('import os; os.kill(os.getpid(), 9)')
    start = (
        'import sys; from phalanx.cli.launch import command; from phalanx.launch import agent\n'
        'agent._oom_kills = iter((3, 4)).__next__\n'
        'sys.exit(command(["--nproc_per_node", "1", "killed.py"]))'
    )
    done = run_fork(start, tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(
        'was ended by SIGKILL: the kernel ran out of memory; lower the batch or train.workers'
    )


@pytest.mark.long
def test_two_launches_on_one_node_do_not_disturb_each_other(tmp_path: Path) -> None:
    """At the same time, without a word about ports."""
    folders = [tmp_path / 'one', tmp_path / 'two']
    for folder in folders:
        folder.mkdir()
        (folder / 'theirs.py').write_text(SCRIPT)
    command = (sys.executable, '-m', 'phalanx.launch', '--nproc_per_node', '2', 'theirs.py')
    with ThreadPoolExecutor() as both:
        done = list(both.map(lambda folder: run(folder, *command), folders))
    assert [one.returncode for one in done] == [0, 0], done[0].stderr + done[1].stderr
    assert all('rank 0 of 2 total 3.0' in one.stdout for one in done)


def open_mpi(folder: Path, *words: str) -> tuple[list[int], list[str]]:
    """Exit statuses and outputs of the ranks of `mpirun -n 2 phalanx train ...`. Only the contracts read its variables."""
    command = ('train', *TINY, 'train.steps=2', 'evaluate.enabled=false', *words, '--save_dir', 'run')
    common = {'MASTER_PORT': str(free_port())} | {f'OMPI_COMM_WORLD_{name}': '2' for name in ('SIZE', 'LOCAL_SIZE')}
    outputs = [folder / f'output_{rank}.txt' for rank in (0, 1)]
    ranks = [
        Fork(*(folder, command, output), **common, **{f'OMPI_COMM_WORLD_{name}': str(rank) for name in ('RANK', 'LOCAL_RANK')})
        for rank, output in enumerate(outputs)
    ]
    return [rank.wait() for rank in ranks], [output.read_text() for output in outputs]


def test_ranks_of_another_launcher_leave_the_terminal_to_the_first(tmp_path: Path) -> None:
    statuses, (first, second) = open_mpi(tmp_path)
    assert statuses == [0, 0], first + second
    assert first.startswith('phalanx: started by Open MPI: 2 processes on 1 node, one per rank\n')
    assert second == ''
    for rank in (0, 1):
        assert ', 2 ranks' in (tmp_path / 'run' / 'log' / f'workerlog.{rank}').read_text()


def test_a_wrong_request_to_ranks_of_another_launcher_is_reported_once(tmp_path: Path) -> None:
    statuses, (first, second) = open_mpi(tmp_path, 'train.global_batch_size=1000')
    assert statuses == [2, 2], first + second
    assert first.count('train.global_batch_size') == 1
    assert second == ''
    assert not (tmp_path / 'run' / 'config.yml').exists()


def test_logs_are_restarted_or_appended_to(phalanx: Command, tmp_path: Path) -> None:
    (tmp_path / 'say.py').write_text('import sys; print(sys.argv[1])')
    command = ('launch', '--nproc_per_node', '2', '--log_dir', 'logs')
    for words in (('say.py', 'one'), ('say.py', 'two'), ('--log_append', 'say.py', 'three')):
        assert phalanx(*command, *words).stdout == f'{words[-1]}\n'
    for rank in (0, 1):
        assert (tmp_path / 'logs' / f'workerlog.{rank}').read_text() == 'two\nthree\n'


def test_ranks_do_not_outlive_a_launcher_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / 'wait.py').write_text('import time; print("up", flush=True); time.sleep(10_000)')
    launcher = Fork(tmp_path, ('launch', '--nproc_per_node', '2', 'wait.py'), tmp_path / 'output.txt')
    logs = [tmp_path / 'log' / f'workerlog.{rank}' for rank in (0, 1)]
    while not all(log.is_file() and 'up' in log.read_text() for log in logs):
        assert launcher.poll() is None
        time.sleep(0.1)
    ranks = launcher.children()
    launcher.kill()
    launcher.wait()
    gone, alive = psutil.wait_procs(ranks, timeout=120)
    assert (len(gone), alive) == (2, [])


def test_doctor_describes_this_node(phalanx: Command) -> None:
    done = phalanx('doctor', '--json')
    facts = json.loads(done.stdout)
    assert done.returncode == 0
    assert facts['ok'] is True
    assert set(facts['nodes'][0]) >= {'phalanx', 'torch', 'python', 'devices', 'disk', 'shared_memory'}


@pytest.mark.parametrize('flag', ['--write-slurm', '--write_kubernetes', '--write_pytorchjob', '--write-skypilot'])
def test_a_job_file_is_written_and_nothing_is_started(phalanx_here: Command, tmp_path: Path, flag: str) -> None:
    words = (flag, 'job', '--nnodes', '4', '--gpus', '0,1', 'train', 'unet_pet', '--set', 'train.workers=4')
    done = phalanx_here('launch', *words)
    assert done.returncode == 0, done.stderr
    written = ' '.join((tmp_path / 'job').read_text().replace(' - ', ' ').replace("'", '').split())  # one word per line in YAML
    assert 'phalanx train unet_pet --set train.workers=4 --gpus 0,1' in written


CANNOT_SAVE = """
import signal, time
from pathlib import Path
from torch.distributed.elastic.multiprocessing.errors import record
@record
def train():
    def save(*_):
        raise RuntimeError('the disk is full')
    signal.signal(signal.SIGTERM, save)
    with Path('begun').open('a') as file:
        file.write('once ')
    time.sleep(10_000)
train()
"""


def test_a_rank_that_fails_while_it_is_stopped_is_reported_and_nothing_is_started_again(tmp_path: Path) -> None:
    """Status 143 would say that all is saved."""
    (tmp_path / 'train.py').write_text(CANNOT_SAVE)
    words = ('launch', '--nproc_per_node', '1', '--max_restart', '3', 'train.py')
    launcher = Fork(tmp_path, words, tmp_path / 'output.txt')
    end = time.monotonic() + 900
    while not (tmp_path / 'begun').exists() or not (tmp_path / 'begun').read_text():
        assert time.monotonic() < end
        time.sleep(0.1)
    launcher.send_signal(signal.SIGTERM)
    assert launcher.wait(900) == 1
    assert (tmp_path / 'output.txt').read_text().splitlines()[-1].endswith('RuntimeError: the disk is full')
    assert (tmp_path / 'begun').read_text() == 'once '


@pytest.mark.parametrize(
    'ranks', [(), pytest.param(('--nproc_per_node', '2'), marks=pytest.mark.long)], ids=['one process', 'launcher']
)
def test_a_node_that_trains_alone_reports_missing_resources_once(tmp_path: Path, ranks: tuple[str, ...]) -> None:
    """No node has a billion GiB of disk, so here every one has too little."""
    wanting = (
        'import sys\n'
        'from phalanx.cli.main import main\n'
        'from phalanx.launch import preflight\n'
        'preflight.DISK = 1e9\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    words = ('train', *TINY, 'train.steps=1', 'evaluate.enabled=false', *ranks)
    done = run_fork(wanting, tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith('phalanx: warning: this node has ')
    assert done.stderr.count('of disk left for the run folder: free some space') == 1


@pytest.mark.skipif(os.geteuid() != 0 or shutil.which('unshare') is None, reason='needs root and unshare')
def test_without_a_folder_for_temporary_files_one_line_says_what_to_set(tmp_path: Path) -> None:
    """A pod may have a root file system that cannot be written, and no volume at /tmp."""
    (tmp_path / 'script.py').touch()
    mount = (
        'for at in /tmp /var/tmp; do mount --bind $at $at && mount -o remount,ro,bind $at || exit 77; done; cd /proc; exec "$@"'
    )
    words = (sys.executable, '-m', 'phalanx', 'launch', '--log_dir', '/dev/shm', '--nproc_per_node', '1')
    done = run(tmp_path, 'unshare', '-m', 'sh', '-c', mount, 'sh', *words, str(tmp_path / 'script.py'), TMPDIR='')
    if done.returncode == 77 or 'unshare failed' in done.stderr:
        pytest.skip('cannot mount here')
    assert done.returncode == 2
    assert done.stderr.startswith('No usable temporary directory found in')
    assert done.stderr.endswith(': set TMPDIR to a folder that can be written\n')
    assert done.stderr.count('\n') == 1
