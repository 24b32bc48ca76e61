"""`phalanx.train` and `phalanx.evaluate`: the commands as functions.

They run in this process, alone or as a rank of the group that it is in; or they start ranks and wait for them.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phalanx.cli.guest import parse_overrides, part_of_this_program
from phalanx.engine import worker
from phalanx.engine.job import open_job
from phalanx.engine.trained import Trained
from phalanx.launch.from_python import run_command
from phalanx.parallel import dist
from phalanx.report.evaluation import Evaluation
from phalanx.report.report import Callback
from phalanx.system.errors import RequestError, StoppedError
from phalanx.system.paths import parse_path
from phalanx.system.stops import interrupting_signal


def train(
    recipe: str | Path,
    *,
    save_dir: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    fresh: bool = False,
    resume: str | Path | None = None,
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
    continues; with `fresh` it is set aside. `resume`, as `--resume`: 'auto' continues it with other settings; or a checkpoint
    to continue from. `callback` is called on rank 0 with each event of the run, a dict with its `kind` (`train`, `eval`,
    `saved`, `warning`, `end` ...); an exception in it ends the run. `stop`: once it is set, on any rank, the run stops after a
    step, with a checkpoint, as at Ctrl-C.

    Raises RequestError (ConfigError among them) before anything is started, StoppedError if the run was stopped (saved, if it
    had made a step), and RunError, BadSampleError, CheckpointError or OSError if the run failed.
    """
    assignments, flags = parse_overrides(overrides), _parse_devices(gpus, nproc_per_node)
    if not (callback is None or callable(callback)) or not (stop is None or hasattr(stop, 'is_set')):
        raise RequestError(f'callback is a function, stop a threading.Event; got callback={callback!r}, stop={stop!r}')
    job = open_job(str(recipe), assignments, parse_path(str(save_dir)) if save_dir is not None else None)
    if flags:
        sets = ['--set', *(text for text, _ in assignments)] if assignments else []
        words = ['train', str(recipe), '--save_dir', str(job.place), *flags, *sets]
        words += [*(['--fresh'] if fresh else []), *(['--resume', str(resume)] if resume is not None else [])]
        run_command(words, lambda line: callback and callback(json.loads(line)), lambda: stop is not None and stop.is_set())
        return Trained(job, None, job.recipe.device)
    trained: list[Trained] = []

    def load(device: torch.device) -> None:
        trained.append(Trained(job, None, device, is_shared=True))

    with part_of_this_program(job):
        try:
            start = None if resume is None else str(resume)
            worker.train(job, start, fresh, is_checked=False, callback=callback, stop=stop, then=load)
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
    job = open_job(str(run), parse_overrides(overrides))
    with part_of_this_program(job):
        return worker.evaluate(job, weights, raw=job.recipe.ema is None)


def _parse_devices(gpus: Sequence[int] | None, nproc_per_node: int | None) -> list[str]:
    """Flags of `phalanx train` for the ranks that a call requests, none for this process alone. Raises RequestError."""
    flags = list[str]()
    if gpus is not None:
        if (
            isinstance(gpus, str)
            or not isinstance(gpus, Sequence)
            or not all(isinstance(number, int | np.integer) for number in gpus)
        ):
            raise RequestError(
                f'gpus={gpus!r}: give a list of the numbers of devices, such as [0, 1]; nproc_per_node=2 starts two ranks'
            )
        flags += ['--gpus', ','.join(map(str, gpus))]
    if nproc_per_node is not None:
        if not isinstance(nproc_per_node, int):
            raise RequestError(f'nproc_per_node={nproc_per_node!r}: give the number of ranks, such as 2')
        flags += ['--nproc_per_node', str(nproc_per_node)]
    if flags and dist.is_launched():
        rank = f'rank {max(dist.rank(), dist.rank_of_environment())}'
        raise RequestError(f'gpus and nproc_per_node start ranks, but this process is {rank} of a run already: leave them out')
    return flags
