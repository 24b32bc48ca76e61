"""Runs that meet a fault: their messages, their checkpoints, and how they resume."""

import contextlib
import json
import signal
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from faults.files import FILES, write_data_set
from faults.started import BOUND, Started, left
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.engine.worker import prepare_folder
from phalanx.system.errors import RunError
from phalanx.weights.checkpoint import load
from running import TINY, Command, losses, records, run_fork

RECIPE = (*FILES, 'train.steps=3')


def test_an_unreadable_image_ends_the_run_with_its_path_unless_the_recipe_allows_it(
    phalanx_here: Command, tmp_path: Path
) -> None:
    data = write_data_set(tmp_path)
    (data / '3.jpg').write_bytes((data / '3.jpg').read_bytes()[:100])
    strict = phalanx_here('train', *RECIPE, '--save_dir', 'strict')
    assert strict.returncode == 1
    assert '3.jpg' in strict.stderr
    lenient = phalanx_here('train', *RECIPE, 'train.bad_samples=1', '--save_dir', 'lenient')
    assert lenient.returncode == 0, lenient.stderr
    assert 'skipped' in lenient.stdout
    assert '3.jpg' in lenient.stdout
    assert '3.jpg' in (tmp_path / 'lenient' / 'summary.json').read_text()


@pytest.mark.long
def test_skipping_gives_the_same_training_on_two_ranks(phalanx: Command, phalanx_here: Command, tmp_path: Path) -> None:
    data = write_data_set(tmp_path)
    (data / '3.jpg').write_bytes(b'')
    allowed = (*RECIPE, 'train.bad_samples=1', 'evaluate.enabled=false')
    assert phalanx_here('train', *allowed, '--save_dir', 'one').returncode == 0
    assert phalanx('train', *allowed, '--save_dir', 'two', '--nproc_per_node', '2').returncode == 0
    assert losses(tmp_path / 'two') == pytest.approx(losses(tmp_path / 'one'), rel=1e-5)


def test_a_wrong_label_image_ends_the_run_with_its_path_and_values(phalanx_here: Command, tmp_path: Path) -> None:
    """A value outside the classes, and another size than that of its image."""
    data = write_data_set(tmp_path)
    cv2.imwrite(str(data / '5.png'), np.full((64, 64), 7, np.uint8))
    run = phalanx_here('train', *RECIPE, '--save_dir', 'classes')
    assert run.returncode == 1
    assert '5.png' in run.stderr
    assert '7' in run.stderr
    cv2.imwrite(str(data / '5.png'), np.zeros((32, 64), np.uint8))
    run = phalanx_here('train', *RECIPE, '--save_dir', 'sizes')
    assert run.returncode == 1
    assert '5.png' in run.stderr
    assert '32' in run.stderr


@pytest.mark.parametrize(
    ('name', 'text', 'message'),
    [
        ('train.txt', '', 'train.txt'),
        ('train.txt', '0.jpg 0.png\n1.jpg\n', 'train.txt:2'),
        ('val.txt', '0.jpg 99.png\n', '99.png'),
        ('train.txt', '../../etc/passwd 0.png\n', 'passwd'),
    ],
)
def test_a_broken_list_is_reported_before_anything_starts(
    phalanx_here: Command, tmp_path: Path, name: str, text: str, message: str
) -> None:
    data = write_data_set(tmp_path)
    (data / name).write_text(text)
    run = phalanx_here('train', *RECIPE, '--nproc_per_node', '2')
    assert run.returncode == 2
    assert message in run.stderr
    assert not (tmp_path / 'runs').exists()


def test_a_loss_that_is_not_finite_ends_the_run_with_step_samples_and_checkpoint(phalanx_here: Command) -> None:
    recipe = (*TINY, 'train.steps=30', 'checkpoint.every=1', 'evaluate.enabled=false', 'optimizer.lr=1e25')
    run = phalanx_here('train', *recipe, 'schedule={name: constant, warmup_steps: 3}')
    assert run.returncode == 1
    last = run.stderr.splitlines()[-1]
    assert 'the loss is not finite at step' in last
    assert 'samples of that step: ' in last
    assert 'last good checkpoint: runs/pp_liteseg_digits/checkpoints/step_' in last


def test_a_damaged_checkpoint_is_skipped_and_named(phalanx_here: Command, tmp_path: Path) -> None:
    recipe = (*TINY, 'train.steps=6', 'checkpoint.every=2', 'evaluate.enabled=false')
    assert phalanx_here('train', *recipe, 'train.until=4').returncode == 0
    damaged = tmp_path / 'runs' / 'pp_liteseg_digits' / 'checkpoints' / 'step_0000004' / 'model.safetensors'
    damaged.write_bytes(damaged.read_bytes()[:1000])
    run = phalanx_here('train', *recipe)
    assert run.returncode == 0, run.stderr
    text = ' '.join(run.stdout.split())
    assert 'skipped a damaged checkpoint' in text
    assert 'resumed at step 2' in text
    assert [path.name for path in sorted(damaged.parents[1].iterdir())][-1] == 'step_0000006'


@pytest.mark.parametrize(
    ('ranks', 'asynchronous'),
    [('1', 'true'), pytest.param('2', 'true', marks=pytest.mark.long), pytest.param('1', 'false', marks=pytest.mark.long)],
)
def test_a_full_disk_costs_the_checkpoint_and_not_the_run(tmp_path: Path, ranks: str, asynchronous: str) -> None:
    """A limit on the size of files stands for the disk: a write beyond it fails as on a full one."""
    script = (
        'import resource, signal, sys\n'
        'signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n'
        'resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))\n'
        'from phalanx.cli.main import main\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    every = ('checkpoint.every=1', f'checkpoint.asynchronous={asynchronous}')
    words = ('train', *TINY, 'train.steps=3', *every, 'evaluate.enabled=false', '--nproc_per_node', ranks)
    run = run_fork(script, tmp_path, *words)
    assert run.returncode == 1
    output = ' '.join(run.stdout.split())
    assert 'the checkpoint of step 1 was not written (File too large; the checkpoint takes ' in output
    assert 'the last checkpoint, of step 3, could not be written' in run.stderr.splitlines()[-1]
    assert len(losses(tmp_path / 'runs' / 'pp_liteseg_digits')) == 3
    assert list((tmp_path / 'runs' / 'pp_liteseg_digits' / 'checkpoints').iterdir()) == []


@pytest.mark.parametrize(
    ('ranks', 'number', 'status'),
    [
        pytest.param('1', signal.SIGINT, 130, marks=pytest.mark.long),
        pytest.param('2', signal.SIGTERM, 143, marks=pytest.mark.long),
        ('2', signal.SIGINT, 130),
    ],
)
def test_a_stop_by_the_user_saves_and_the_same_command_resumes(
    phalanx: Command, tmp_path: Path, ranks: str, number: signal.Signals, status: int
) -> None:
    """All processes get the signal, the ranks twice, which is one request; the loader's workers must outlive the saving."""
    recipe = (*TINY, 'train.steps=40', 'train.workers=1', 'evaluate.enabled=false', 'checkpoint.every=1', 'checkpoint.keep=1')
    words = ('train', *recipe, '--nproc_per_node', ranks, '--save_dir', 'run')
    started = Started(tmp_path, *words)
    started.until(lambda: started.steps() >= 2, BOUND)
    started.send_to_all(number)
    assert started.end(BOUND) == status, started.output()
    output = started.output()
    (saved,) = (tmp_path / 'run' / 'checkpoints').iterdir()
    journal = [json.loads(line) for line in (tmp_path / 'run' / 'journal.jsonl').read_text().splitlines()]
    written = [Path(event['path']).name for event in journal if event['kind'] == 'saved']
    assert written == [f'step_{step:07d}' for step in range(1, int(saved.name[5:]) + 1)]  # each once, the last one too
    assert 'stopped after step' in ' '.join(output.split())
    assert f'{number.name}: stopping after this step, with a checkpoint; a second signal after 3 s ends at once' in output
    assert left(tmp_path) == []
    until = int(saved.name[5:]) + 2
    again = phalanx(*words, '--set', f'train.until={until}')
    assert again.returncode == 0, again.stderr
    assert f'resumed at step {int(saved.name[5:])}' in ' '.join(again.stdout.split())
    assert len(losses(tmp_path / 'run')) == until


@pytest.mark.long
def test_a_stop_of_the_process_group_in_a_slow_step_saves(tmp_path: Path) -> None:
    """The signal of `timeout`, systemd and container runtimes: to the launcher, its ranks and their loader workers at once.

    The step goes on for longer than torch waits before it looks after its workers, and they must be there afterwards.
    """
    (tmp_path / 'slow.py').write_text(
        'import sys, time\n'
        'from pathlib import Path\n'
        'from phalanx.cli.main import main\n'
        'from phalanx.families.segmentation.task import Segmentation\n'
        'right = Segmentation.outputs\n'
        'def outputs(self, model, batch):\n'
        '    if Path("run/metrics.jsonl").exists():\n'
        '        Path("slow").touch()\n'
        '        time.sleep(6)\n'
        '    return right(self, model, batch)\n'
        'Segmentation.outputs = outputs\n'
        'sys.exit(main(sys.argv[1:]))\n'
    )
    recipe = (*TINY, 'train.steps=40', 'train.workers=2', 'evaluate.enabled=false')
    words = ('--log_dir', 'log', 'slow.py', 'train', *recipe, '--save_dir', 'run')
    started = Started(tmp_path, 'launch', '--nproc_per_node', '2', *words)
    started.until((tmp_path / 'slow').exists, BOUND)
    started.send_to_all(signal.SIGTERM)
    assert started.end(BOUND) == 143, started.output()
    (saved,) = (tmp_path / 'run' / 'checkpoints').iterdir()
    assert load(saved).step == max(line['step'] for line in records(tmp_path / 'run'))
    assert left(tmp_path) == []


def test_a_second_request_to_stop_ends_a_rank_at_once(tmp_path: Path) -> None:
    """A step that never ends; what comes right after the first signal belongs to it."""
    program = (
        'import signal, sys, time\n'
        'from phalanx.engine import worker\n'
        'class Busy: signalled = False\n'
        'busy, worker.SAME_REQUEST = Busy(), 1\n'
        'busy.flags = busy\n'
        'worker.catch_signals(busy)\n'
        'signal.raise_signal(signal.SIGINT)\n'
        'signal.raise_signal(signal.SIGTERM)\n'
        'print(busy.signalled, flush=True)\n'
        'time.sleep(1.1)\n'
        'signal.raise_signal(signal.SIGTERM)\n'
        'print("still there", flush=True)\n'
    )
    done = run_fork(program, tmp_path)
    assert done.returncode == -signal.SIGTERM
    assert done.stdout == 'True\n'
    assert 'SIGINT: stopping after this step' in done.stderr


def test_a_killed_rank_ends_the_run_and_leaves_no_process(tmp_path: Path) -> None:
    """The other rank does not wait for its loader workers, which would outlive a wish to end by their grace."""
    started = Started(
        tmp_path, 'train', *TINY, 'train.steps=500', 'train.workers=1', '--nproc_per_node', '2', '--save_dir', 'run'
    )
    started.until(lambda: started.steps() >= 2, BOUND)
    started.ranks()[1].kill()
    assert started.end(BOUND) == 1
    assert 'was ended by SIGKILL' in started.last_words()
    assert left(tmp_path) == []


def test_gradients_that_are_not_finite_end_the_run_before_a_checkpoint_is_saved(tmp_path: Path) -> None:
    job = open_job(TINY[0], [(text, text) for text in TINY[2:]])
    trainer = Trainer(job.recipe, job.task, folder=tmp_path, device=torch.device('cpu'))
    next(trainer.model.parameters()).register_hook(lambda gradient: gradient * torch.nan)
    trainer.train_step(next(trainer.batches()))
    with pytest.raises(RunError, match='the loss is finite but its gradients are not finite at step 0 '):
        trainer.save()
    assert trainer.checkpoints.all() == []


def test_a_run_resumed_from_an_older_checkpoint_restarts_from_its_own_checkpoints(
    phalanx_here: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = (*TINY, 'train.steps=4', 'checkpoint={every: 1, keep: 9}', 'evaluate.enabled=false')
    assert phalanx_here('train', *recipe, '--save_dir', 'run').returncode == 0
    second = 'run/checkpoints/step_0000002'
    back = phalanx_here('train', *recipe, 'train.until=3', '--save_dir', 'run', '--resume', second)
    assert back.returncode == 0, back.stderr
    assert ' '.join(back.stdout.split()).count('later checkpoint set aside as') == 2  # steps 3 and 4

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('TORCHELASTIC_RESTART_COUNT', '1')  # a rank died, and the same words are given again
    job = open_job(TINY[0], [(text, text) for text in recipe[2:]], Path('run'))
    with contextlib.ExitStack() as held:
        checkpoint, notes = prepare_folder(job, second, False, held)
    assert checkpoint is not None
    assert (checkpoint.step, notes) == (3, [])

    on = phalanx_here('train', *recipe, '--save_dir', 'run')
    assert 'resumed at step 3' in on.stdout, on.stderr
    assert 'nothing is left' not in on.stdout
    shorter = phalanx_here('train', *recipe, 'train.steps=3', '--save_dir', 'run', '--resume', 'auto')
    told = 'nothing is left to train: the run ends with step 3; a larger train.steps continues it'
    assert told in ' '.join(shorter.stdout.split()), shorter.stderr
