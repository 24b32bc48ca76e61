"""Helpers of tests in several folders: the smallest real run, and readers of its files."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def both_ranks(script: str, folder: Path, *words: str) -> str:
    """The output of rank 0 of 2 when both run `script`."""
    common = {**clean_environment(), 'WORLD_SIZE': '2', 'PHALANX_INIT_METHOD': f'file://{folder}/rendezvous'}
    ranks = [
        subprocess.Popen(
            [sys.executable, '-c', script, *words],
            cwd=folder,
            env={**common, 'RANK': rank, 'LOCAL_RANK': rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in '01'
    ]
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    return said[0]


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
