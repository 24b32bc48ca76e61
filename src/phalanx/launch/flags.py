"""The flags of a launch, under every name that people know them by, and the environment that says the same."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from phalanx.launch import schedulers

START_PORT = schedulers.START_PORT
LONGEST = 1e8  # seconds, three years: what clocks can count to is not much more

# What schedulers of the original projects set, where it means the same. A flag on the command line wins.
ENVIRONMENT = {
    'PADDLE_DEVICES': 'gpus',
    'PADDLE_NPROC_PER_NODE': 'nproc_per_node',
    'PADDLE_TRAINERS': 'ips',
    'PADDLE_NNODES': 'nnodes',
    'PADDLE_MASTER': 'master',
    'PADDLE_RANK': 'rank',
    'POD_IP': 'host',
    'FLAGS_START_PORT': 'start_port',
    'PADDLE_PORT': 'start_port',
    'PADDLE_LOG_DIR': 'log_dir',
    'PADDLE_JOB_ID': 'job_id',
    'PADDLE_MAX_RESTART': 'max_restart',
}


FLAGS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (
        ('--gpus', '--devices', '--selected_gpus', '--selected_gpu'),
        {'metavar': '0,1,..', 'help': 'one rank on each of these devices'},
    ),
    (('--nproc_per_node',), {'type': int, 'metavar': 'N', 'help': 'N ranks on this node'}),
    (('--ips',), {'metavar': 'A,B,..', 'help': 'the nodes, rank 0 first; the same command on each of them'}),
    (('--nnodes',), {'metavar': 'N|MIN:MAX', 'help': 'how many nodes; with MIN:MAX they may leave and join while it runs'}),
    (('--master',), {'metavar': 'IP:PORT', 'help': 'with --nnodes: the rendezvous address'}),
    (('--rank',), {'type': int, 'metavar': 'N', 'help': 'with --nnodes: the place of this node, 0 on the master'}),
    (('--host',), {'metavar': 'IP', 'help': 'the address of this node, when it has several'}),
    (
        ('--start_port',),
        {'type': int, 'metavar': 'PORT', 'help': f'the first port that is used ({START_PORT}, or FLAGS_START_PORT)'},
    ),
    (('--log_dir',), {'type': Path, 'metavar': 'DIR', 'help': 'where workerlog.<rank> go (default: <run folder>/log)'}),
    (('--log_append',), {'action': 'store_true', 'help': 'keep what earlier runs wrote there'}),
    (('--job_id',), {'metavar': 'NAME', 'help': 'nodes that give another name are not admitted'}),
    (
        ('--max_restart', '--max_restarts'),
        {'type': int, 'metavar': 'N', 'help': 'start again from the last checkpoint up to N times'},
    ),
    (
        ('--join_timeout',),
        {'type': float, 'default': 300, 'metavar': 'S', 'help': 'give up on nodes missing after S seconds (300)'},
    ),
    (
        ('--hang_timeout',),
        {'type': float, 'default': 1800, 'metavar': 'S', 'help': 'end a run that stands still for S seconds (1800)'},
    ),
    (
        ('--heartbeat_timeout',),
        {'type': float, 'default': 30, 'metavar': 'S', 'help': 'a node counts as lost after S seconds without heartbeat (30)'},
    ),
    (('--ssh',), {'action': 'store_true', 'help': 'with --ips: start the other nodes from here, over ssh'}),
    (('--hostfile',), {'type': Path, 'metavar': 'FILE', 'help': 'the nodes, one address a line, instead of --ips'}),
)


@dataclass(frozen=True)
class Flags:
    """A launch as it was asked for; None where nothing was said."""

    gpus: str | None = None
    nproc_per_node: int | None = None
    ips: str | None = None
    nnodes: str | None = None
    master: str | None = None
    rank: int | None = None
    host: str | None = None
    start_port: int | None = None
    log_dir: Path | None = None
    log_append: bool = False
    job_id: str | None = None
    max_restart: int | None = None
    join_timeout: float = 300
    hang_timeout: float = 1800
    heartbeat_timeout: float = 30
    ssh: bool = False
    hostfile: Path | None = None

    @classmethod
    def of(cls, given: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> Flags:
        """The flags of a command line, and where it is silent those of the environment. Raises ValueError."""
        values = {field.name: getattr(given, field.name) for field in fields(cls)}
        for variable, name in ENVIRONMENT.items():
            if values[name] is None and environment.get(variable):
                values[name] = _typed(variable, name, environment[variable])
        if values['hostfile'] is not None and values['ips'] is None:
            values['ips'] = ','.join(_hosts(values['hostfile']))
        if values['ips'] is None and values['nnodes'] is None:
            values['ips'] = ','.join(schedulers.slurm_nodes(environment)) or None
        return cls(**values)

    def __post_init__(self) -> None:
        """Raises ValueError for numbers that cannot be."""
        for name, least, unit in (('nproc_per_node', 1, ' process'), ('rank', 0, ''), ('max_restart', 0, '')):
            number = getattr(self, name)
            if number is not None and number < least:
                raise ValueError(f'--{name} {number}: at least {least}{unit}')
        for name in ('join_timeout', 'hang_timeout', 'heartbeat_timeout'):
            if not 0 < (seconds := getattr(self, name)) <= LONGEST:
                raise ValueError(f'--{name} {seconds:g}: seconds, above 0 and at most {LONGEST:g}')
        if self.start_port is not None:
            check_port(self.start_port, f'--start_port {self.start_port}')

    @property
    def asks_for_ranks(self) -> bool:
        """Whether anything here needs a launcher; without, a command runs in its own process."""
        wishes = (self.gpus, self.nproc_per_node, self.ips, self.nnodes, self.master)
        return any(wish is not None for wish in wishes)


def check_port(port: int, flag: str) -> None:
    """Raises ValueError, beginning with `flag`, for a number that is not a port."""
    if not 0 < port < 65536:
        raise ValueError(f'{flag}: a port is a number from 1 to 65535')


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the flags of a launch to a command, each with underscores or dashes."""
    group = parser.add_argument_group('several devices and nodes')
    for names, options in FLAGS:
        dashed = [f'--{name[2:].replace("_", "-")}' for name in names if '_' in name]
        group.add_argument(*names, *dashed, dest=names[0][2:], **options)


def _typed(variable: str, name: str, text: str) -> object:
    if name in ('nproc_per_node', 'rank', 'start_port', 'max_restart'):
        if not text.isdecimal():
            raise ValueError(f'{variable}={text}: expected a number')
        return int(text)
    return Path(text) if name == 'log_dir' else text


def _hosts(file: Path) -> list[str]:
    """One address a line; what follows it (`slots=8`), empty lines and comments are passed over. Raises ValueError."""
    try:
        lines = [line.partition('#')[0].split() for line in file.read_text(encoding='utf-8').splitlines()]
    except OSError as error:
        raise ValueError(f'--hostfile {file}: {error.strerror}') from None
    hosts = [words[0] for words in lines if words]
    if not hosts:
        raise ValueError(f'--hostfile {file}: names no node')
    return hosts
