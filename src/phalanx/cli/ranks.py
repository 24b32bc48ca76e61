"""Launch of commands that can run as several ranks."""

import argparse
import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from phalanx.engine.folder import NEW_LOG
from phalanx.engine.job import Job
from phalanx.engine.samples import NodeSamples
from phalanx.launch.cluster import Cluster, find_interface
from phalanx.launch.environment import detect
from phalanx.launch.flags import Flags
from phalanx.launch.launcher import launch
from phalanx.launch.names import is_loopback, shorten_silent_lookups, split_list
from phalanx.launch.preflight import free_disk
from phalanx.launch.start import OURS, Start, apply_start
from phalanx.parallel import dist
from phalanx.system.cores import count_cores, threads_per_rank
from phalanx.system.errors import RequestError, SameRequestError
from phalanx.system.stops import STOP_STATUSES


def read_launch(given: argparse.Namespace) -> tuple[Flags, Start]:
    """Read the flags of a command line and the environment of a launcher or scheduler, and check that they agree.

    Afterwards `dist.is_launched` is true if this process is a rank. Raises RequestError.
    """
    try:
        start = detect(os.environ, os.getppid())
        flags = Flags.of(given, start=start)
    except ValueError as error:
        raise RequestError(str(error)) from None
    apply_start(flags.placed(start))
    return flags, start


def build_cluster(flags: Flags, start: Start, job: Job | None) -> Cluster | None:
    """Cluster that the flags request; None if this process is enough. Raises RequestError."""
    if flags.ssh:
        return None
    # a launcher of nodes leaves the number of ranks to us: one per device
    available = torch.cuda.device_count() if job is None or job.recipe.device != 'cpu' else 0
    if start.per == 'node' and available > 1 and not flags.asks_for_ranks:
        flags = replace(flags, nproc_per_node=available)
    try:
        cluster, warnings = Cluster.from_flags(flags, available, patience=patience_with_names(flags, start))
    except ValueError as error:
        raise RequestError(str(error)) from None
    for warning in warnings:
        print(f'warning: {warning}', file=sys.stderr)
    return cluster


def patience_with_names(flags: Flags, start: Start) -> float:
    """Seconds to wait for addresses of listed names: those of pods appear as they start; one typed by hand is wrong at once."""
    return flags.join_timeout if start.per == 'node' or 'KUBERNETES_SERVICE_HOST' in os.environ else 0


def run_as_rank(start: Start, flags: Flags, folder: Path, run: Callable[[], int], *, fresh: bool = False) -> int:
    """Run the work of this rank, `run`, and return its exit status.

    Under a foreign launcher (torchrun, srun, mpirun), only rank 0 writes to the terminal; others write to workerlog.<rank>
    below `folder` (`fresh`: see NEW_LOG); if they fail, one line to the terminal. Raises RequestError without such a folder.
    """
    if start.per != 'rank' or start.by == OURS:
        return run()
    # a foreign launcher has set up neither logs, nor the interface of gloo, nor threads
    log, rank = flags.log_dir or folder / 'log', dist.rank_of_environment()
    make_logs(log, append=flags.log_append)
    if 'OMP_NUM_THREADS' not in os.environ and count_cores() == os.cpu_count():  # a scheduler has not given each rank its cores
        torch.set_num_threads(threads_per_rank(int(os.environ.get('LOCAL_WORLD_SIZE', 1))))

    def run_connected() -> int:
        find_network(start, flags.join_timeout)
        return run()

    name = ('' if flags.log_dir or flags.log_append or not fresh else NEW_LOG) + f'workerlog.{rank}'
    return run_connected() if rank == 0 else _with_log(log / name, rank, run_connected, append=flags.log_append)


def find_network(start: Start, patience: float) -> None:
    """Set the interface of gloo for a rank of another launcher, unless all ranks are on this node.

    Raises RequestError if the name of a node has no address within `patience` seconds.
    """
    names = split_list(start.settings['ips'].value) if 'ips' in start.settings else [start.exports.get('MASTER_ADDR', '')]
    here = start.nodes == 1 or all(is_loopback(name) for name in names)
    if here or 'GLOO_SOCKET_IFNAME' in os.environ or not all(names):
        return
    try:
        interface = find_interface(names, patience)
    except ValueError as error:
        raise RequestError(str(error)) from None
    if interface is not None:
        os.environ['GLOO_SOCKET_IFNAME'] = interface
    if shorten_silent_lookups(os.environ.get('MASTER_ADDR', '')):
        print('phalanx: no name server answers: the start takes longer; see /etc/resolv.conf', file=sys.stderr)


def make_logs(log: Path, *, append: bool = False) -> None:
    """Make `log` the folder of workerlog.<rank>. Raises RequestError if it cannot be created."""
    os.environ |= {'PHALANX_LOG_DIR': str(log.absolute()), 'PHALANX_LOG_MODE': 'a' if append else 'w'}
    try:
        log.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f'{log}: the folder for logs cannot be created: {error.strerror}') from None


def _with_log(file: Path, rank: int, run: Callable[[], int], *, append: bool) -> int:
    """Exit status of `run`, with standard output and error in `file`."""
    terminal = os.dup(2)
    number = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if append else os.O_TRUNC), 0o644)
    os.dup2(number, 1)
    os.dup2(number, 2)
    os.close(number)
    status, why, is_reported = 1, '', False
    try:
        status = run()
    except SameRequestError:
        is_reported = True
        raise
    except Exception as error:
        why = f': {type(error).__name__}: {error}'
        raise
    finally:
        if status and status not in STOP_STATUSES and not is_reported:
            log = file if file.exists() else file.with_name(file.name.removeprefix(NEW_LOG))
            with contextlib.suppress(OSError):  # the terminal is gone
                os.write(terminal, f'phalanx: rank {rank} failed{why} (log: {log})\n'.encode())
    return status


def launch_ranks(command: str, words: Sequence[str], cluster: Cluster, flags: Flags, log: Path, own: NodeSamples | None) -> int:
    """Run `phalanx COMMAND WORDS` as the ranks of `cluster`; return the exit status. `log`: default folder of logs."""
    log = flags.log_dir or log

    def facts() -> dict[str, Any]:
        recipe, data = (own.job.digest(), own.fingerprint()) if own else ('', '')
        return {'command': command, 'recipe': recipe, 'data': data, 'disk': free_disk(log)}

    with own.announced() if own else contextlib.nullcontext():
        return launch([sys.executable, '-m', 'phalanx', command, *words], cluster, flags, log, facts)
