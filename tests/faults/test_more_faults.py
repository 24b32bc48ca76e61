"""Faults from outside that a run must survive, or end from in bounded time with the cause and the fix on the last line."""

import gc
import hashlib
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from faults.files import FILES, write_data_set
from faults.soak import soak
from faults.started import BOUND, JUMPING, Started, left
from phalanx.data.image import read_image, read_labels
from phalanx.data.samples import Draw, SampleError
from phalanx.engine import loader, worker
from phalanx.engine.loader import Loader
from phalanx.parallel import dist
from phalanx.system.errors import RunError
from phalanx.weights.checkpoint import Checkpoints, load
from running import TINY, Command, records

LONG = (*TINY, 'train.steps=2000', 'evaluate.enabled=false', 'report.pictures=0', '--save_dir', 'run')


def test_an_image_that_becomes_unreadable_during_the_run_is_named(tmp_path: Path) -> None:
    data = write_data_set(tmp_path)
    started = Started(tmp_path, 'train', *FILES, *LONG[len(TINY) :], 'train.workers=1')
    started.until(lambda: started.steps() >= 2, BOUND)
    (data / '5.jpg').write_bytes((data / '5.jpg').read_bytes()[:500])
    assert started.end(BOUND) == 1
    assert 'data/5.jpg: the image is cut off (500 bytes are there)' in started.last_words()
    assert left(tmp_path) == []


def test_a_loader_worker_that_is_killed_ends_the_run_with_the_fix(tmp_path: Path) -> None:
    started = Started(tmp_path, 'train', *LONG, 'train.workers=2')
    started.until(lambda: started.steps() >= 2, BOUND)
    started.workers()[0].kill()
    assert started.end(BOUND) == 1
    assert 'a loader worker has died (' in started.last_words()
    assert 'if the kernel killed it (see its log), use fewer train.workers' in started.last_words()
    assert left(tmp_path) == []


@pytest.mark.long
def test_a_rank_that_runs_out_of_memory_is_named_with_the_fix(tmp_path: Path) -> None:
    """The limit comes when the networks are built, and leaves room for no batch."""
    started = Started(tmp_path, 'train', *LONG, 'data.size=[256,512]', '--nproc_per_node', '2')
    started.until((tmp_path / 'run' / 'journal.jsonl').is_file, BOUND)
    poor = started.ranks()[1]
    poor.rlimit(resource.RLIMIT_AS, (poor.memory_info().vms + 2**20,) * 2)
    assert started.end(BOUND) == 1
    assert 'rank 1 of 2' in started.last_words()
    assert 'out of memory (' in started.last_words()
    assert 'use a smaller global batch, more train.micro_batches' in started.last_words()
    assert left(tmp_path) == []


def test_a_loss_that_is_not_finite_on_one_rank_ends_all_with_the_samples(tmp_path: Path) -> None:
    """The third step of rank 1 divides by zero, as a bug in a loss may."""
    (tmp_path / 'broken.py').write_text(
        'import os, sys\n'
        'from phalanx.cli.main import main\n'
        'from phalanx.families.segmentation.task import Segmentation\n'
        'right, calls = Segmentation.loss, []\n'
        'def loss(self, outputs, batch, whole):\n'
        '    calls.append(1)\n'
        '    terms = right(self, outputs, batch, whole)\n'
        '    broken = os.environ["RANK"] == "1" and len(calls) > 3\n'
        '    return {name: term._replace(total=term.total / 0 if broken else term.total) for name, term in terms.items()}\n'
        'Segmentation.loss = loss\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    words = ('launch', '--nproc_per_node', '2', '--log_dir', 'log', 'broken.py', 'train', *LONG, 'checkpoint.every=1')
    started = Started(tmp_path, *words)
    assert started.end(BOUND) == 1
    assert 'the loss is not finite at step 2' in started.last_words()
    assert 'samples of that step: ' in started.last_words()
    assert 'last good checkpoint: run/checkpoints/step_' in started.last_words()
    newest = max((tmp_path / 'run' / 'checkpoints').iterdir())
    assert all(value.isfinite().all() for value in load(newest).model.values() if value.is_floating_point())
    assert left(tmp_path) == []


def test_a_rank_that_hangs_ends_the_run_with_its_name_and_all_stacks(tmp_path: Path) -> None:
    started = Started(tmp_path, 'train', *LONG, '--nproc_per_node', '2', '--hang_timeout', '15')
    started.until(lambda: started.steps() >= 2, BOUND)
    assert started.ranks()[1].environ()[dist.HANG_TIMEOUT] == '15.0'
    started.ranks()[1].suspend()
    assert started.end(BOUND) == 1
    assert 'no progress for 15 s; rank 1 is furthest behind' in started.last_words()
    assert '(its process is stopped)' in started.last_words()
    assert 'in train_step' in started.output()  # rank 0 waits for it there
    assert left(tmp_path) == []


@pytest.mark.long
def test_a_rank_that_is_slow_is_named_with_the_slow_phase(tmp_path: Path) -> None:
    (tmp_path / 'slow.py').write_text(
        'import os, sys, time\n'
        'from phalanx.cli.main import main\n'
        'from phalanx.families.segmentation.task import Segmentation\n'
        'right = Segmentation.begin_prediction\n'
        'def begin_prediction(self, model, batch):\n'
        '    time.sleep(2 * (os.environ["RANK"] == "1"))\n'
        '    return right(self, model, batch)\n'
        'Segmentation.begin_prediction = begin_prediction\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    words = (*TINY, 'train.steps=1', 'evaluate.batch_size=2', '--save_dir', 'run')
    started = Started(tmp_path, 'launch', '--nproc_per_node', '2', '--log_dir', 'log', 'slow.py', 'train', *words)
    assert started.end(BOUND) == 0
    journal = (tmp_path / 'run' / 'journal.jsonl').read_text()
    assert 'rank 1 is slower than the others: predicting took' in journal
    assert 'rank 0 is slower than the others: predicting' not in journal


@pytest.mark.parametrize(
    'ranks', [(), pytest.param(('--nproc_per_node', '2'), marks=pytest.mark.long)], ids=['one process', 'launcher']
)
def test_a_folder_that_cannot_be_written_ends_the_run_with_its_name(phalanx: Command, ranks: tuple[str, ...]) -> None:
    """/sys takes no folders, not even from root."""
    run = phalanx('train', *TINY, 'train.steps=1', '--save_dir', '/sys/run', *ranks)
    assert run.returncode in (1, 2)
    assert '/sys/run' in run.stderr.splitlines()[-1]
    assert 'Traceback' not in run.stderr


@pytest.mark.long
@pytest.mark.parametrize('steps', [3, 2])  # the evaluation after step 2 is one on the way, or the last
def test_a_stop_during_an_evaluation_ends_it_early_and_the_same_command_repeats_it(tmp_path: Path, steps: int) -> None:
    words = (
        *('train', *TINY, f'train.steps={steps}', 'evaluate.every=2', 'evaluate.batch_size=1', 'data.eval_scenes=80'),
        *('ema={decay: 0.9}', 'train.workers=1', '--nproc_per_node', '2'),
    )
    assert Started(tmp_path, *words, '--save_dir', 'undisturbed').end(BOUND) == 0
    with tempfile.TemporaryDirectory() as temporary:  # not below `tmp_path`: loader workers need a short path
        started = Started(tmp_path, *words, '--save_dir', 'run', TMPDIR=temporary)
        of = Path(temporary)
        started.until(lambda: any('evaluating' in beat.read_text() for beat in of.glob('phalanx-*/beat.1')), BOUND)
        started.send_to_all(signal.SIGTERM)
        assert started.end(BOUND) == 143
    assert records(tmp_path / 'run', 'eval') == []
    assert (tmp_path / 'run' / 'latest').resolve().name == 'step_0000002'
    assert left(tmp_path) == []
    assert Started(tmp_path, *words, '--save_dir', 'run').end(BOUND) == 0
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'undisturbed')


def outcome(run: Path) -> list[object]:
    """All that a run came to besides times: numbers of each step, weights to the bit, which step was the best."""
    lines = [*records(run), *records(run, 'eval')]
    measured = {'seconds', 'samples_per_s', 'data_wait', 'memory_mb'}
    numbers = [{key: value for key, value in line.items() if key not in measured} for line in lines]
    hashes = [hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted((run / 'latest').glob('*.safetensors'))]
    return [numbers, hashes, (run / 'best').resolve().name, sorted(path.name for path in (run / 'checkpoints').iterdir())]


def test_a_stop_while_a_checkpoint_is_written_loses_no_step(tmp_path: Path) -> None:
    started = Started(tmp_path, 'train', *LONG, 'checkpoint.every=1')
    root = tmp_path / 'run' / 'checkpoints'
    started.until(lambda: any(root.glob('.new_*')), BOUND)
    started.process.send_signal(signal.SIGTERM)
    assert started.end(BOUND) == 143
    reached = max(line['step'] for line in records(tmp_path / 'run'))
    assert load((tmp_path / 'run' / 'latest').resolve()).step == reached
    assert left(tmp_path) == []


@pytest.mark.long
def test_a_clock_that_jumps_by_hours_every_second_changes_nothing(tmp_path: Path) -> None:
    """For Python in all processes, launcher and torch's agent included; only the times in the journal show it."""
    (tmp_path / 'sitecustomize.py').write_text(JUMPING)
    words = (
        'train',
        *TINY,
        'train.steps=6',
        'train.workers=1',
        'checkpoint.every=2',
        'evaluate.every=3',
        '--nproc_per_node',
        '2',
        '--hang_timeout',
        '120',  # shows where every rank stands
    )
    assert Started(tmp_path, *words, '--save_dir', 'undisturbed').end(BOUND) == 0
    started = Started(tmp_path, *words, '--save_dir', 'run', PYTHONPATH=str(tmp_path))
    assert started.end(BOUND) == 0, started.output()
    assert outcome(tmp_path / 'run') == outcome(tmp_path / 'undisturbed')
    journal = [json.loads(line) for line in (tmp_path / 'run' / 'journal.jsonl').read_text().splitlines()]
    times = [event['time'] for event in journal]
    assert max(times) - min(times) > 3600


def test_the_newest_checkpoint_is_that_of_the_last_step_even_if_the_clock_jumps(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (9, 10):
        checkpoints.save(step, {'w': torch.ones(1)}, None, {'step': step}, False)
    for file in (tmp_path / 'checkpoints' / 'step_0000009', *(tmp_path / 'checkpoints' / 'step_0000009').iterdir()):
        os.utime(file, (2**31, 2**31))  # written in 2038
    newest, damaged = checkpoints.newest()
    assert newest is not None
    assert (newest.step, damaged) == (10, [])


def test_a_pipe_or_a_device_instead_of_an_image_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / 'pipe.png')
    (tmp_path / 'endless.png').symlink_to('/dev/zero')
    for path in tmp_path.iterdir():
        for read in (read_image, read_labels):
            with pytest.raises(SampleError, match=f'{path}: cannot be read: it is not a file'):
                read(path)


HANGING = """
import os, pathlib, time
flush = os.fsync
def fsync(handle):
    while pathlib.Path('run/checkpoints/.new_step_0000004').exists():
        time.sleep(1)
    flush(handle)
os.fsync = fsync
"""


@pytest.mark.parametrize(('asynchronous', 'reached'), [(True, 6), pytest.param(False, 4, marks=pytest.mark.long)])
def test_a_kill_never_costs_more_than_two_intervals_or_one(tmp_path: Path, asynchronous: bool, reached: int) -> None:
    """The disk stops answering within the second checkpoint. The run goes on, but not beyond the step of the third.

    Where checkpoints are waited for it does not go on at all.
    """
    every = ('checkpoint.every=2', f'checkpoint.asynchronous={asynchronous}'.lower())
    started = Started(tmp_path, 'train', *LONG, *every, before=HANGING)
    started.until(lambda: started.steps() >= reached, BOUND)
    time.sleep(2)  # enough for ten steps
    assert started.steps() == reached, started.output()
    started.process.kill()
    started.end(BOUND)
    newest, damaged = Checkpoints(tmp_path / 'run', keep=1).newest()
    assert newest is not None
    assert (newest.step, damaged) == (2, [])


@pytest.mark.long
def test_a_disk_that_does_not_answer_one_rank_ends_both(tmp_path: Path) -> None:
    (tmp_path / 'stalled.py').write_text(
        'import os, sys, time\n'
        'from phalanx.engine import loader\n'
        'from phalanx.cli.main import main\n'
        'from phalanx.families.segmentation.task import Samples\n'
        'right, loader.BATCH_TIMEOUT_S = Samples.__getitem__, 2\n'
        'def read(self, draw):\n'
        '    time.sleep(1000 * (os.environ["RANK"] == "1" and draw.step == 2))\n'
        '    return right(self, draw)\n'
        'Samples.__getitem__ = read\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    words = ('launch', '--nproc_per_node', '2', '--log_dir', 'log', 'stalled.py', 'train', *LONG, 'train.workers=1')
    started = Started(tmp_path, *words)
    assert started.end(BOUND) == 1
    assert 'rank 1 of 2' in started.last_words()
    assert 'does the disk of data.root still respond?' in started.last_words()
    assert left(tmp_path) == []


class Stalled:
    """A data set on a disk that does not answer."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, draw: Draw) -> int:
        time.sleep(1000)
        return draw.index

    def name(self, index: int) -> str:
        return str(index)


@pytest.mark.filterwarnings('error::pytest.PytestUnraisableExceptionWarning')
def test_a_disk_that_does_not_answer_ends_the_run_after_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, 'BATCH_TIMEOUT_S', 1)

    def collate(samples: Sequence[int]) -> torch.Tensor:
        return torch.tensor(samples)

    reader = Loader(Stalled(), collate, workers=1, bad_samples=0, device=torch.device('cpu'), replace=True)  # type: ignore[type-var]
    begun, handler = time.monotonic(), signal.getsignal(signal.SIGCHLD)
    try:
        with pytest.raises(RunError, match=r'does the disk of data\.root still respond'), worker.explain_faults():
            next(reader.batches(iter([[Draw(0, 0, 0, 0)]])))
        gc.collect()  # torch's iterator says nothing more at its end
    finally:
        signal.signal(signal.SIGCHLD, handler)
        for child in multiprocessing.active_children():
            child.kill()  # Python would wait for it at the end of all tests
    assert time.monotonic() - begun < 500  # half of what the disk takes


@pytest.mark.skipif(sys.platform != 'linux', reason='looks into /proc and /dev/shm')
@pytest.mark.long
def test_a_run_that_is_killed_repeatedly_ends_like_an_undisturbed_one() -> None:
    """The short form of `make soak`; docs/faults.md has the tally of a long one."""
    with tempfile.TemporaryDirectory(prefix='soak-') as folder:  # the paths of sockets in it must be short
        trial = soak(Path(folder), kills=6, seed=0)
    assert sum(trial.tally.values()) == 6
    assert trial.wrong == []
