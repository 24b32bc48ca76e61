"""`phalanx.train` and `phalanx.evaluate` in a program of somebody else: their arguments, and what they leave as it was."""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from phalanx.cli.ranks import find_network, make_logs
from phalanx.config.arguments import Assignments
from phalanx.config.read import check_alternatives
from phalanx.engine.job import Job
from phalanx.launch.environment import detect
from phalanx.launch.start import OURS, Start, apply_start
from phalanx.parallel import dist
from phalanx.system.errors import RequestError
from phalanx.system.stops import keep_handlers

SETTINGS = ('PHALANX_LOG_DIR', 'PHALANX_LOG_MODE', 'GLOO_SOCKET_IFNAME')
PATIENCE = 300  # seconds to wait for the address of a node's name
RUNNING = threading.Lock()  # held by the thread that trains or evaluates


def parse_overrides(overrides: Mapping[str, Any] | None) -> Assignments:
    """Assignments of a dict of keys of the recipe and their values, which may be numpy's. Raises RequestError."""
    if not isinstance(overrides, Mapping | None):
        raise RequestError(f"overrides: a dict such as {{'train.steps': 100}} is expected, got {overrides!r:.60}")
    assigned = list[tuple[str, str]]()
    for key, value in (overrides or {}).items():
        name = f'overrides[{key!r}]'
        if not isinstance(key, str) or '=' in key:
            raise RequestError(f'{name}: a key is text such as train.steps, and its value stands behind the colon')
        try:
            assigned.append((f'{key}={json.dumps(value, default=_to_plain)}', name))
        except (TypeError, ValueError):
            raise RequestError(f'{name}: a value is a number, text, list or dict, got {value!r:.60}') from None
    check_alternatives(assigned)
    return assigned


def _to_plain(value: object) -> object:
    """Path, or number or array of numpy or torch, as JSON has it. Raises TypeError for other things."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, np.generic | np.ndarray | torch.Tensor):
        return value.tolist()
    raise TypeError


@contextlib.contextmanager
def part_of_this_program(job: Job) -> Iterator[None]:
    """Read how this process was started. Environment, log, handlers of signals and torch's settings are the same afterwards.

    Raises RequestError if it was started once per node of several, and so would train on this node alone, and if another thread
    trains or evaluates.
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
    with _alone(), keep_handlers(), _keep_torch():
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


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Raise RequestError if another thread trains or evaluates: both would share random numbers and process group."""
    if not RUNNING.acquire(blocking=False):
        raise RequestError(
            'this process trains or evaluates already; wait for the end of that run, or train in a process of its own, with '
            'nproc_per_node=1'
        )
    try:
        yield
    finally:
        RUNNING.release()


@contextlib.contextmanager
def _keep_torch() -> Iterator[None]:
    """Restore torch's random numbers and its choice of kernels, which also hold for networks of the program around us."""
    cudnn, precision = torch.backends.cudnn, None
    with contextlib.suppress(RuntimeError):  # of a program that uses torch's newer names for these, which do not mix
        precision = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    benchmark = cudnn.benchmark
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            cudnn.benchmark = benchmark
            if precision is not None:
                torch.set_float32_matmul_precision(precision[0])
                cudnn.allow_tf32 = precision[1]
