"""`phalanx.train` and `phalanx.evaluate`: the commands as functions.

They run in this process, alone or as a rank of the group that it is in; or they start ranks and wait for them.
"""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from phalanx.cli.ranks import find_network, make_logs
from phalanx.engine import worker
from phalanx.engine.job import Job, open_job
from phalanx.engine.trained import Trained
from phalanx.launch.environment import detect
from phalanx.launch.from_python import run_command
from phalanx.launch.start import OURS, Start, apply_start
from phalanx.parallel import dist
from phalanx.report.evaluation import Evaluation
from phalanx.report.report import Callback
from phalanx.system.errors import RequestError, StoppedError
from phalanx.system.paths import parse_path
from phalanx.system.stops import interrupting_signal, keep_handlers

SETTINGS = ('PHALANX_LOG_DIR', 'PHALANX_LOG_MODE', 'GLOO_SOCKET_IFNAME')
PATIENCE = 300  # seconds to wait for the address of a node's name


def train(
    recipe: str | Path,
    *,
    save_dir: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    callback: Callback | None = None,
    stop: threading.Event | None = None,
    gpus: Sequence[int] | None = None,
    nproc_per_node: int | None = None,
) -> Trained:
    """Train a recipe with the same result as `phalanx train`; return the trained model.

    Trains in this process, from any thread: on one rank, or as a rank of the process group that Ray Train, accelerate or a
    notebook launcher has made, which is left as it was. With `gpus` (numbers of devices) or `nproc_per_node` (a count), starts
    one process per rank and shows their output.

    `overrides`: keys of the recipe and their values, such as `{'train.steps': 100}`. A run that is already in the folder
    continues; with `fresh` it is set aside. `callback` is called on rank 0 with each event of the run, a dict with its `kind`
    (`train`, `eval`, `saved`, `warning`, `end` ...); an exception in it ends the run. `stop`: once it is set, on any rank, the
    run stops after a step, with a checkpoint, as at Ctrl-C.

    Raises RequestError (ConfigError among them) before anything is started, StoppedError if the run was stopped (saved, if it
    had made a step), and RunError, BadSampleError, CheckpointError or OSError if the run failed.
    """
    assignments = _assignments(overrides)
    job = open_job(str(recipe), assignments, parse_path(str(save_dir)) if save_dir is not None else None)
    if gpus is not None or nproc_per_node is not None:
        if dist.is_launched():
            rank = f'rank {max(dist.rank(), dist.rank_of_environment())}'
            raise RequestError(
                f'gpus and nproc_per_node start ranks, but this process is {rank} of a run already: leave them out'
            )
        flags = [*(['--gpus', ','.join(map(str, gpus))] if gpus is not None else [])]
        flags += ['--nproc_per_node', str(nproc_per_node)] if nproc_per_node is not None else []
        sets = ['--set', *(text for text, _ in assignments)] if assignments else []
        words = ['train', str(recipe), '--save_dir', str(job.place), *(['--fresh'] if fresh else []), *flags, *sets]
        run_command(words, lambda line: callback and callback(json.loads(line)), lambda: stop is not None and stop.is_set())
        return Trained(job, None, job.recipe.device)
    trained: list[Trained] = []

    def load(device: torch.device) -> None:
        trained.append(Trained(job, None, device, is_shared=True))

    with _part_of_this_program(job):
        try:
            worker.train(job, fresh=fresh, is_checked=False, callback=callback, stop=stop, then=load)
        except KeyboardInterrupt as signalled:
            raise StoppedError(
                f'stopped by {interrupting_signal(signalled).name} before the first step; the same call starts again'
            ) from None
    if not trained:
        raise StoppedError(f'stopped; the same call continues from there ({job.place})')
    return trained[0]


def evaluate(run: str | Path, *, weights: str | Path | None = None, overrides: Mapping[str, Any] | None = None) -> Evaluation:
    """Evaluate the best weights of a run, or `weights`, as `phalanx eval` does, in this process and its process group.

    The result has `metrics` by name, the number of `samples`, and on rank 0 a `table`. Raises RequestError, CheckpointError or
    BadSampleError.
    """
    job = open_job(str(run), _assignments(overrides))
    with _part_of_this_program(job):
        return worker.evaluate(job, weights, raw=job.recipe.ema is None)


def _assignments(overrides: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    return [(f'{key}={json.dumps(value, default=str)}', f'overrides[{key!r}]') for key, value in (overrides or {}).items()]


@contextlib.contextmanager
def _part_of_this_program(job: Job) -> Iterator[None]:
    """Read how this process was started. Its environment, log and handlers of signals are the same afterwards.

    Raises RequestError if it was started once per node of several, and so would train on this node alone.
    """
    # a group that exists may span nodes; groups that we add to it need the interface to the others
    changes: Mapping[str, str | None] = {}
    start = Start('the program', 'rank', exports={'MASTER_ADDR': os.environ.get('MASTER_ADDR', '')})
    if not dist.is_initialized():
        try:
            start = detect(os.environ, os.getppid())
        except ValueError as error:
            raise RequestError(str(error)) from None
        if start.per == 'node' and start.count > 1:
            raise RequestError(
                f'{start}: this call would use this node alone. Start the script with `phalanx launch SCRIPT`, which starts '
                'ranks on all nodes; `phalanx.train` also starts them itself, with nproc_per_node=N or gpus=[0, 1, ...]'
            )
        changes = start.changes()
    log = logging.getLogger('phalanx')
    logged, before = ((log.handlers, log.propagate, log.level), {name: os.environ.get(name) for name in (*changes, *SETTINGS)})
    with keep_handlers():
        try:
            if changes:
                apply_start(start)
            if start.per == 'rank' and start.by != OURS:
                find_network(start, PATIENCE)
            if dist.is_launched() and 'PHALANX_LOG_DIR' not in os.environ:
                make_logs(job.folder / 'log')
            yield
        finally:
            for handler in log.handlers if log.handlers is not logged[0] else ():
                handler.close()
            log.handlers, log.propagate = logged[:2]
            log.setLevel(logged[2])
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
