"""Helpers of tests in several folders: the smallest real run, and readers of its files."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import json
import logging
import multiprocessing
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import pytest
import torch
from filelock import FileLock

from phalanx.cli.main import main
from phalanx.system.stops import keep_handlers

# The smallest real run: the embedded data set, PP-LiteSeg with a quarter of its channels, a batch that 1, 2 and 3 ranks and 2
# micro-batches share evenly.
TINY = (
    'pp_liteseg_digits',
    '--set',
    'model.width=0.25',
    'data.size=[64,96]',
    'data.digit_height=[16,24]',  # larger ones seldom fit, and cost more to draw than a step
    'transforms=[random_flip]',
    'loss=[cross_entropy, cross_entropy, cross_entropy]',
    'optimizer={name: sgd, lr: 0.01, weight_decay: 5.0e-4}',
    'schedule={name: polynomial, power: 0.9, warmup_steps: 5}',
    'ema=null',
    'data.train_scenes=48',
    'data.eval_scenes=13',
    'train.global_batch_size=6',
    'train.workers=0',
    'report.every=1',
    'report.pictures=2',
    'device=cpu',
)

# The command, in a fork.
PHALANX = 'import sys; from running import prepare_ranks; from phalanx.__main__ import main; prepare_ranks(); sys.exit(main())'

# Several commands in turn, in the same processes: most of the time goes into their start.
IN_TURN = """
import json, os, sys
from phalanx.cli.main import main
from phalanx.system.stops import keep_handlers
from phalanx.system.process import fast_imports
for number, words in enumerate(json.loads(sys.argv[1])):
    os.environ['PHALANX_INIT_METHOD'] = f'file://{os.getcwd()}/rendezvous{number}'
    assert main(words, fast_imports) == 0
"""

# Forks of a process that has imported what a training needs: half the time of a short one.
FORKS = torch.multiprocessing.get_context('forkserver')
FORKS.set_forkserver_preload(
    ['torch._dynamo', 'torch.utils.tensorboard', 'torchvision', 'pytest', 'phalanx.engine.worker', 'phalanx.cli.train']
)

Command = Callable[..., subprocess.CompletedProcess[str]]


def clean_environment() -> dict[str, str]:
    """The environment without what a launcher around the tests may have set; one thread a process, modules compiled once."""
    launchers = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'LOCAL_WORLD_SIZE', 'MASTER_ADDR', 'MASTER_PORT', 'PHALANX_INIT_METHOD')
    left_out = (*launchers, 'PYTHONDONTWRITEBYTECODE')
    schedulers = ('SLURM_', 'PET_', 'OMPI_', 'PMI_', 'PHALANX_STARTED')
    kept = {key: value for key, value in os.environ.items() if key not in left_out and not key.startswith(schedulers)}
    return kept | {'OMP_NUM_THREADS': '1'}


def free_port() -> int:
    """A port of this machine at which nothing listens: tests run side by side, and the default is taken by one of them."""
    with socket.socket() as free:
        free.bind(('127.0.0.1', 0))
        return int(free.getsockname()[1])


def both_ranks(script: str, folder: Path, *words: str, ranks: int = 2) -> str:
    """The output of rank 0 of `ranks` when all run `script`."""
    common = {'WORLD_SIZE': str(ranks), 'PHALANX_INIT_METHOD': f'file://{folder}/rendezvous'}
    outputs = [Path(tempfile.mkdtemp(dir=folder)) / 'output.txt' for _ in range(ranks)]  # shown where a test fails
    processes = [
        start_fork(script, words, folder, output, output, RANK=str(rank), LOCAL_RANK=str(rank), **common)
        for rank, output in enumerate(outputs)
    ]
    for process in processes:
        process.join()
    said = [output.read_text() for output in outputs]
    assert [process.exitcode for process in processes] == [0] * ranks, said
    return said[0]


def as_ranks(number: int, function: Callable[..., None], *arguments: Any) -> None:
    """Call `function(RANK, ...)` in a fork for each of `number` ranks; raises the error of the first that fails."""
    torch.multiprocessing.start_processes(_frozen, (function, *arguments), number, start_method='forkserver')


def _frozen(rank: int, function: Callable[..., None], *arguments: Any) -> None:
    gc.freeze()  # as our commands do after their imports
    function(rank, *arguments)


def start_fork(script: str, words: Sequence[str], folder: Path, output: Path, errors: Path, **environment: str) -> BaseProcess:
    """A process that runs `script` as `python -c SCRIPT WORDS...` does, but has PyTorch from its start."""
    file = output.with_name('script.py')
    file.write_text(script)
    process = FORKS.Process(target=_run_script, args=(file, words, folder, output, errors, clean_environment() | environment))
    process.start()
    return process


def run_fork(script: str, folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Result of a process of `start_fork`, when it has ended."""
    output, errors = (Path(tempfile.mkdtemp(dir=folder, prefix='.')) / f'output_{name}.txt' for name in ('out', 'err'))
    process = start_fork(script, words, folder, output, errors, **environment)
    process.join(3600)  # seconds, for a hang; all models on the strict device take four minutes on an idle node
    if process.exitcode is None:
        process.kill()
    return subprocess.CompletedProcess(words, process.exitcode, output.read_text(), errors.read_text())


def _run_script(
    script: Path, words: Sequence[str], folder: Path, output: Path, errors: Path, environment: Mapping[str, str]
) -> None:
    for number, file in ((1, output), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    os.environ.clear()
    os.environ |= environment
    os.chdir(folder)
    torch.set_num_threads(1)
    gc.freeze()
    tempfile.tempdir = None
    multiprocessing.current_process()._config.pop('tempdir', None)  # type: ignore[attr-defined]
    multiprocessing.set_start_method(None, force=True)  # as in a process of its own
    sys.argv = ['-c', *words]
    runpy.run_path(str(script), run_name='__main__')


class Prepared(subprocess.Popen[bytes]):
    """A process that `prepare_ranks` has forked; one of its own when none is left, or for another program than a rank."""

    spares: ClassVar[list[tuple[int, int]]] = []  # a pid, and a pipe for the command

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        if not self.spares or 'child.py' not in ' '.join(args):
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        self.pid, pipe = self.spares.pop(0)
        with os.fdopen(pipe, 'w') as command:
            json.dump([args, others[5]], command)
        self._child_created = True


def prepare_ranks() -> None:
    """Fork the ranks that the command of this process will launch, while it has no threads. They have PyTorch already."""
    words = ' '.join(sys.argv)
    count = re.search(r'--nproc_per_node[ =](\d+)', words)
    restarts = re.search(r'--max_restart[ =](\d+)', words)
    if sys.platform != 'linux' or not (count or '--ips' in words):
        return
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.Popen = Prepared  # type: ignore[misc]
    for _ in range(int(count[1] if count else 1) * (1 + int(restarts[1] if restarts else 0))):
        command, pipe = os.pipe()
        pid = os.fork()
        if pid == 0:
            for opened in (pipe, *(other for _, other in Prepared.spares)):
                os.close(opened)  # so that a spare ends with the launcher
            _become_rank(command)
        os.close(command)
        Prepared.spares.append((pid, pipe))


def _become_rank(command: int) -> NoReturn:
    """Wait for a command, and run it as an interpreter of its own would."""
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    with os.fdopen(command) as sent:
        text = sent.read()
    if not text:
        os._exit(0)
    os.setsid()
    for number, handler in handlers.items():
        signal.signal(number, handler)
    (_, _, child, *words), environment = json.loads(text)
    os.environ.clear()
    os.environ |= environment
    _show_environment()
    os.execvp = _run_python
    sys.argv = [child, *words]
    try:
        runpy.run_path(child, run_name='__main__')
    except Exception as error:  # noqa: BLE001
        sys.excepthook(type(error), error, error.__traceback__)
        sys.exit(1)
    sys.exit()


def _run_python(program: str, words: Sequence[str]) -> None:
    """Run `python [-u] [-m] PROGRAM WORDS...` in this process, from child.py."""
    sys.stdout, sys.stderr = (os.fdopen(number, 'w', buffering=1, closefd=False) for number in (1, 2))
    _, *rest = (word for word in words if word != '-u')
    if rest[0] == '-m':
        sys.argv = rest[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(rest[1], run_name='__main__', alter_sys=True)
    else:
        sys.argv = rest
        sys.path.insert(0, str(Path(rest[0]).absolute().parent))
        runpy.run_path(rest[0], run_name='__main__')


def _show_environment() -> None:
    """Write the environment where the kernel shows that of a program that was executed: /proc/PID/environ."""
    numbers = Path('/proc/self/stat').read_text().rpartition(')')[2].split()
    begin, end = int(numbers[47]), int(numbers[48])
    ours_first = sorted(os.environ.items(), key=lambda item: not item[0].startswith(('RANK', 'PHALANX')))
    text = '\0'.join(f'{name}={value}' for name, value in ours_first).encode()[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, text, len(text))


def extended_python(name: str, *packages: str) -> str:
    """An interpreter with `packages` beside those of this one, made once per machine; skips where they cannot be installed."""
    shared = [path for path in sys.path if 'site-packages' in path]
    key = hashlib.sha256(os.pathsep.join((*shared, *packages)).encode()).hexdigest()[:8]
    folder = Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser() / 'phalanx-tests' / f'{name}-{key}'
    folder.parent.mkdir(parents=True, exist_ok=True)
    found = folder / 'bin' / 'python'
    with FileLock(f'{folder}.lock'):
        if not (folder / 'installed').exists():
            subprocess.run([sys.executable, '-m', 'venv', '--clear', '--without-pip', folder], check=True)
            (own,) = (folder / 'lib').glob('python*/site-packages')
            (own / 'shared.pth').write_text('\n'.join(shared))
            pip = [sys.executable, '-m', 'pip', '--python', found, 'install', '-q', *packages]
            done = subprocess.run(pip, capture_output=True, text=True, check=False)
            if done.returncode:
                reason = done.stderr.strip().splitlines()[-1]
                pytest.skip(f'{" and ".join(packages)} cannot be installed here: {reason}')
            (folder / 'installed').touch()
    return str(found)


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """The folder `name` with what `make` writes into it: made by the first worker of this run of the tests that asks for it."""
    own = factory.getbasetemp()
    folder = (own.parent if 'PYTEST_XDIST_WORKER' in os.environ else own) / name
    with FileLock(f'{folder}.lock'):
        if not folder.is_dir():
            making = Path(tempfile.mkdtemp(dir=folder.parent))
            make(making)
            making.rename(folder)
    return folder


def records(folder: Path, kind: str = 'train') -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl of one kind."""
    lines = [json.loads(line) for line in (folder / 'metrics.jsonl').read_text().splitlines()]
    return [line for line in lines if line['kind'] == kind]


def losses(folder: Path) -> list[float]:
    return [line['loss'] for line in records(folder)]


def run_here(*words: str) -> int:
    """The exit status of `phalanx WORDS...` in this process: one rank, one thread, seconds faster than a process of its own.

    What the command changes of the process, handlers of signals and of the log, is as before afterwards.
    """
    log = logging.getLogger('phalanx')
    logged = (log.handlers, log.propagate, log.level)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with keep_handlers():  # a process that a later test starts would inherit them, and could not be ended
        try:
            return main(words)
        finally:
            torch.set_num_threads(threads)
            log.handlers, log.propagate = logged[:2]
            log.setLevel(logged[2])
