"""One attempt on this node with torch.distributed.elastic: starts the ranks, watches them, ends them together."""

from __future__ import annotations

import codecs
import contextlib
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from phalanx.launch import child
from phalanx.system.disk import read_end, remove_own
from phalanx.system.stops import STACKS, STOP_STATUSES, stop_signals

ERROR = 'error.{}.json'  # error record that a rank writes when it fails
# Errors of a rank whose peer has gone: a consequence, not the cause.
BROKEN_CONNECTION = re.compile(
    r'connection (closed|reset|refused|was closed)|broken pipe|gloo|nccl|recvvalue failed|timed out|DistBackendError|'
    r'DistNetworkError|DistStoreError|Socket closed',
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Failure:
    """Unexpected end of a rank."""

    rank: int
    cause: str
    when: float  # seconds since 1970
    log: str
    tail: Sequence[str]  # the last lines of its log, when that is a file
    is_consequence: bool  # of another rank's end
    address: str = ''  # of its node, if there are several


@dataclass(frozen=True)
class Outcome:
    """Result of an attempt on this node. `status`: 0; 128 + signal if it was stopped; 1 if it failed.

    `failure`: of the rank that caused it, also of a rank that failed while it was being stopped.
    """

    status: int
    failure: Failure | None = None

    @property
    def was_stopped(self) -> bool:
        return self.status > 128


@dataclass(frozen=True)
class Attempt:
    """Settings of one start of the ranks of this node, and the endpoint of torch's agents."""

    ranks_per_node: int
    scratch: Path
    log_dir: Path
    log_append: bool
    follow: bool  # rank 0 writes to its log, which is copied to the terminal; else directly to the terminal
    number: int = 0
    node_rank: int = 0
    nodes: int = 1
    endpoint: str | None = None  # address:port of a store that all nodes reach; None: this node is alone

    @property
    def ranks(self) -> range:
        return range(self.node_rank * self.ranks_per_node, (self.node_rank + 1) * self.ranks_per_node)


@dataclass
class RankLogs(LogsSpecs):
    """Paths of error records, for torch's agent. `child` redirects the output of the ranks."""

    attempt: Attempt
    root_log_dir = ''  # required by torch, used only in one of its log lines

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        errors = {local: str(self.attempt.scratch / ERROR.format(env['RANK'])) for local, env in envs.items()}
        for local, env in envs.items():
            env['TORCHELASTIC_ERROR_FILE'] = errors[local]
            env['TORCHELASTIC_RESTART_COUNT'] = str(self.attempt.number)  # ranks of two attempts must not share a store
        nowhere = dict.fromkeys(envs, '')
        return LogsDest(stdouts=nowhere, stderrs=dict(nowhere), error_files=errors)


def run_attempt(command: Sequence[str], attempt: Attempt, killed: Collection[int] = ()) -> Outcome:
    """Run `command` once per rank until all have ended. `killed`: pids that the watchdog ends by SIGKILL meanwhile."""
    for stale in (file for kind in ('error', 'beat', 'stack', 'records') for file in attempt.scratch.glob(f'{kind}.*')):
        remove_own(stale)  # of the attempt before, in the launcher's own folder
    oom_kills = _oom_kills()
    mode = 'a' if attempt.log_append or attempt.number else 'w'
    os.environ['PHALANX_LOG_MODE'] = mode
    terminal = '' if attempt.follow else '0'
    wrapped = [sys.executable, '-IS', child.__file__, str(attempt.log_dir / 'workerlog'), mode, terminal, *command]
    for name in ('agent.server.api', 'multiprocessing.api'):  # the launcher reports these errors itself, once
        logging.getLogger(f'torch.distributed.elastic.{name}').setLevel(logging.CRITICAL)
    is_shown = attempt.follow and attempt.node_rank == 0
    with _copy_lines(attempt.log_dir / 'workerlog.0', mode) if is_shown else contextlib.nullcontext():
        try:
            elastic_launch(_config(attempt), wrapped[0])(*wrapped[1:])
        except ChildFailedError as error:
            return _outcome(error, attempt, _oom_kills() > oom_kills, killed)
        except SignalException as stopped:
            return Outcome(128 + int(stopped.sigval), _failure_while_stopping(attempt))
    return Outcome(0)


def _config(attempt: Attempt) -> LaunchConfig:
    if attempt.endpoint is None:  # ranks of one node rendezvous in a file: nothing listens to the network
        os.environ['PHALANX_INIT_METHOD'] = f'file://{attempt.scratch}/ranks-{attempt.number}'
        os.environ['TORCH_DISABLE_SHARE_RDZV_TCP_STORE'] = '1'
        backend, endpoint = 'c10d', f'{attempt.scratch}/rendezvous-{attempt.number}'
        settings: dict[str, Any] = {'store_type': 'file', 'is_host': True}
    else:
        os.environ.pop('PHALANX_INIT_METHOD', None)
        backend, endpoint = 'static', attempt.endpoint
        settings = {'rank': attempt.node_rank, 'timeout': 60}
    return LaunchConfig(
        min_nodes=attempt.nodes,
        max_nodes=attempt.nodes,
        nproc_per_node=attempt.ranks_per_node,
        run_id=f'phalanx-{attempt.number}',
        max_restarts=0,  # a restart concerns all nodes: it is the launcher's, not this agent's
        monitor_interval=0.1,
        logs_specs=RankLogs(attempt),
        signals_to_handle=','.join(number.name for number in stop_signals()),
        rdzv_backend=backend,
        rdzv_endpoint=endpoint,
        rdzv_configs=settings,
    )


def _oom_kills() -> int:
    """Number of processes that the kernel of this node has killed so far because memory ran out."""
    with contextlib.suppress(OSError):
        for line in Path('/proc/vmstat').read_text().splitlines():
            if line.startswith('oom_kill '):
                return int(line.split()[1])
    return 0


def _outcome(error: ChildFailedError, attempt: Attempt, out_of_memory: bool, killed: Collection[int]) -> Outcome:
    """Outcome of a failed attempt; blames the first rank that did not just lose its connection."""
    found = [  # a rank that was asked for its stacks while it ended is no cause, either
        _failure(rank, failure, attempt, out_of_memory)
        for rank, failure in error.failures.items()
        if failure.exitcode != -STACKS and (failure.exitcode != -signal.SIGKILL or failure.pid not in killed)
    ]
    stopped = [failure.exitcode for failure in error.failures.values()]
    if all(code in STOP_STATUSES for code in stopped):
        return Outcome(stopped[0])
    return Outcome(1, min(found, key=lambda failure: (failure.is_consequence, failure.when), default=None))


def _failure_while_stopping(attempt: Attempt) -> Failure | None:
    """Failure of a rank that ended before it had saved, if any: torch ignores ranks once it stops them."""
    errors = {rank: attempt.scratch / ERROR.format(rank) for rank in attempt.ranks}
    records = {rank: ProcessFailure(rank, 0, 1, str(error)) for rank, error in errors.items() if error.is_file()}
    found = [_failure(rank, record, attempt, out_of_memory=False) for rank, record in records.items()]
    return min((failure for failure in found if not failure.is_consequence), key=lambda failure: failure.when, default=None)


def _failure(rank: int, failure: ProcessFailure, attempt: Attempt, out_of_memory: bool) -> Failure:
    log = attempt.log_dir / f'workerlog.{rank}'
    has_terminal = rank == 0 and not attempt.follow
    tail = read_end(log).splitlines()[-30:] if log.is_file() and not has_terminal else []
    cause = _cause(failure, out_of_memory)
    if not cause.startswith('exit status') and not any(line.endswith('Traceback (most recent call last):') for line in tail):
        tail = []  # the cause is complete without it
    if cause.startswith('exit status') and tail:  # a script without an error record: its last line is more specific
        cause = f'{tail[-1].removeprefix(f"[rank{rank}]: ")} ({cause})'
    # torch's agent ends the other ranks by SIGTERM; one that lost its connection before may have an earlier record.
    # SIGABRT is how NCCL ends a rank that waited too long for another one.
    given_up = failure.exitcode == -signal.SIGABRT and any('NCCL' in line for line in tail)
    ended = failure.exitcode in (-signal.SIGTERM, 128 + signal.SIGTERM)  # before it was ready to save, or afterwards
    is_consequence = ended or given_up or bool(BROKEN_CONNECTION.search(cause))
    return Failure(rank, cause, float(failure.timestamp), str(log), tail, is_consequence)


def _cause(failure: ProcessFailure, out_of_memory: bool) -> str:
    if failure.exitcode < 0:
        number = -failure.exitcode
        name = signal.Signals(number).name if number in set(signal.Signals) else f'signal {number}'  # a real-time signal
        if name == 'SIGKILL' and out_of_memory:
            name += ': the kernel ran out of memory; lower the batch or train.workers'
        return f'was ended by {name}'
    message = failure.message if isinstance(failure.message, str) else str(failure.message.get('message', ''))
    if not message.strip() or 'To enable traceback see' in message:  # a script that records no error
        return f'exit status {failure.exitcode}'
    return message.strip()


@contextlib.contextmanager
def _copy_lines(log: Path, mode: str) -> Iterator[None]:
    """Copy new lines of `log` to the terminal; mode `w` truncates it first."""
    log.open(mode).close()
    before = log.stat().st_size
    over = threading.Event()
    # The rank may be in the middle of a character, and another line of the launcher must not come between its bytes.
    decoder = codecs.getincrementaldecoder('utf-8')('surrogateescape')

    def follow() -> None:
        with log.open('rb') as file:
            file.seek(before)
            last = False
            while not last:
                last = over.wait(0.1)  # read once more after the end
                while chunk := file.read(1 << 16):
                    sys.stdout.buffer.write(decoder.decode(chunk).encode('utf-8', 'surrogateescape'))
                    sys.stdout.flush()

    thread = threading.Thread(target=follow, name='rank 0', daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
