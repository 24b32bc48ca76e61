"""What commands share that can run as several ranks: which ranks the flags ask for, and their launch."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from phalanx.config.read import plain
from phalanx.engine.runs import Job
from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import Flags
from phalanx.launch.launcher import launch
from phalanx.launch.preflight import disk_free, fingerprint
from phalanx.system.errors import RequestError


def cluster_of(given: argparse.Namespace, job: Job | None) -> tuple[Flags, Cluster | None]:
    """The processes that the flags ask for; None when this one is enough. Raises RequestError."""
    try:
        flags = Flags.of(given)
        if flags.ssh:
            return flags, None
        available = torch.cuda.device_count() if job is None or job.recipe.device != 'cpu' else 0
        cluster, warnings = Cluster.from_flags(flags, available)
    except ValueError as error:
        raise RequestError(str(error)) from None
    for warning in warnings:
        print(f'warning: {warning}', file=sys.stderr)
    return flags, cluster


def launched(command: str, words: Sequence[str], cluster: Cluster, flags: Flags, log: Path, job: Job | None) -> int:
    """Runs `phalanx COMMAND WORDS` as the ranks of `cluster`; the exit status. `log` is for logs unless flags name another."""
    log = flags.log_dir or log

    def facts() -> dict[str, Any]:
        recipe = json.dumps(plain(job.resolved), sort_keys=True) if job else ''
        data = job.fingerprint() if job else ''
        return {'command': command, 'recipe': fingerprint(iter([recipe])), 'data': data, 'disk': disk_free(log)}

    return launch([sys.executable, '-m', 'phalanx', command, *words], cluster, flags, log, facts)
