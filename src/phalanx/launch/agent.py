"""Runs a command as ranks on this machine with torch.distributed.elastic: starts them, watches them, ends them together."""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import LogsDest, LogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from phalanx.launch.cluster import Cluster


class RankLogs(LogsSpecs):
    """`workerlog.<rank>` in one folder; rank 0 has the terminal, and writes its own copy (see `Report`)."""

    def __init__(self, folder: Path, errors: Path) -> None:
        super().__init__(str(folder))
        self.folder, self.errors = folder, errors

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        errors = {local: str(self.errors / f'error.{env["RANK"]}.json') for local, env in envs.items()}
        for local, env in envs.items():
            env['TORCHELASTIC_ERROR_FILE'] = errors[local]
        logs = {
            local: '' if env['RANK'] == '0' else str(self.folder / f'workerlog.{env["RANK"]}') for local, env in envs.items()
        }
        return LogsDest(stdouts=logs, stderrs=dict(logs), error_files=errors)

    @property
    def root_log_dir(self) -> str:
        return str(self.folder)


def launch(command: Sequence[str], cluster: Cluster, log_dir: Path) -> int:
    """Runs `command` once a rank; the exit status of the whole is 0, 1 with the first cause on the last line, or 130/143."""
    log_dir.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix='phalanx-') as scratch:
        os.environ.update(cluster.environment())
        # Ranks of one machine meet in a file and talk over the loopback interface: nothing listens to the network.
        os.environ.update(
            {
                'PHALANX_INIT_METHOD': f'file://{scratch}/ranks',
                'GLOO_SOCKET_IFNAME': 'lo',
                'NCCL_SOCKET_IFNAME': 'lo',
                'TORCH_DISABLE_SHARE_RDZV_TCP_STORE': '1',
                'PHALANX_LOG_DIR': str(log_dir.absolute()),
            }
        )
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=cluster.ranks_per_node,
            run_id=f'phalanx-{os.getpid()}',
            rdzv_backend='c10d',
            rdzv_endpoint=f'{scratch}/rendezvous',
            rdzv_configs={'store_type': 'file', 'is_host': True},
            max_restarts=0,
            monitor_interval=0.1,
            logs_specs=RankLogs(log_dir, Path(scratch)),
            start_method='spawn',
        )
        for name in ('agent.server.api', 'multiprocessing.api'):  # what they have to say is said below, once
            logging.getLogger(f'torch.distributed.elastic.{name}').setLevel(logging.CRITICAL)
        begun = time.monotonic()
        try:
            elastic_launch(config, command[0])(*command[1:])
        except ChildFailedError as error:
            rank, failure = error.get_first_failure()
            return _explain(rank, failure, cluster.ranks_per_node, log_dir, time.monotonic() - begun)
        except SignalException as stopped:
            return 128 + int(stopped.sigval)
    return 0


def _explain(rank: int, failure: ProcessFailure, world_size: int, log_dir: Path, seconds: float) -> int:
    """Prints why the run ended, the first cause last. The status is 1, or a rank's own 130/143 when it was stopped."""
    if failure.exitcode in (128 + signal.SIGINT, 128 + signal.SIGTERM):
        return failure.exitcode
    log = log_dir / f'workerlog.{failure.local_rank if rank < 0 else rank}'
    tail = log.read_text(errors='replace').splitlines()[-30:] if rank != 0 and log.is_file() else []
    for line in tail:
        print(f'[rank {rank}] {line}', file=sys.stderr)
    cause = _cause(failure)
    print(
        f'the run failed after {seconds:.0f} s: rank {rank} of {world_size} (log: {log}): {cause}', file=sys.stderr, flush=True
    )
    return 1


def _cause(failure: ProcessFailure) -> str:
    if failure.exitcode < 0:
        name = signal.Signals(-failure.exitcode).name
        hint = ' (out of memory? the kernel log says so)' if name == 'SIGKILL' else ''
        return f'was ended by {name}{hint}'
    message = failure.message if isinstance(failure.message, str) else str(failure.message.get('message', ''))
    return message.strip() or f'exit status {failure.exitcode}'
