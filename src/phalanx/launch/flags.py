"""Flags of a launch, with their usual aliases, and the environment variables that set them."""

# ruff: noqa: RUF009 - the calls in `Flags` make its fields
from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from phalanx.launch.environment import detect
from phalanx.launch.names import START_PORT, read_hostfile
from phalanx.launch.start import Setting, Start
from phalanx.system.cores import count_cores
from phalanx.system.paths import parse_path

LONGEST = 1e8  # seconds, three years: the limit of system timers is not much higher

# Variables of PaddlePaddle's launcher and schedulers. A flag on the command line wins.
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


def flag(about: str, metavar: str, *also: str, kind: Callable[[str], Any] = str, default: float | None = None) -> Any:
    """Field of `Flags` and its option, converted by `kind`; `also`: its other names."""
    about += f' ({default:g})' if default else ''
    return field(default=default, metadata={'also': also, 'type': kind, 'metavar': metavar, 'help': about})


def switch(about: str) -> Any:
    """Field of `Flags` that is true if its option is given."""
    return field(default=False, metadata={'also': (), 'action': 'store_true', 'help': about})


@dataclass(frozen=True)
class Flags:
    """Flags of a launch, one field per option; None: not given."""

    gpus: str | None = flag('one rank on each of these devices', '0,1,..', '--devices', '--selected_gpus', '--selected_gpu')
    nproc_per_node: int | None = flag('N ranks on this node', 'N', kind=int)
    ips: str | None = flag('the nodes, rank 0 first; the same command on each of them', 'A,B,..')
    nnodes: str | None = flag('number of nodes; with MIN:MAX, nodes may leave and join during the run', 'N|MIN:MAX')
    master: str | None = flag('with --nnodes: the rendezvous address', 'IP:PORT')
    rank: int | None = flag('with --nnodes: the place of this node, 0 on the master', 'N', kind=int)
    host: str | None = flag('the address of this node, if it has several', 'IP')
    start_port: int | None = flag(f'the first port to use ({START_PORT}, or FLAGS_START_PORT)', 'PORT', kind=int)
    log_dir: Path | None = flag('folder of workerlog.<rank> (default: <run folder>/log)', 'DIR', kind=parse_path)
    log_append: bool = switch('append to the logs of earlier runs')
    job_id: str | None = flag('nodes with another name are not admitted', 'NAME')
    max_restart: int | None = flag('start again from the last checkpoint up to N times', 'N', '--max_restarts', kind=int)
    join_timeout: float = flag('give up on nodes missing after S seconds', 'S', kind=float, default=300)
    hang_timeout: float = flag('end a run without progress for S seconds', 'S', kind=float, default=1800)
    heartbeat_timeout: float = flag('a node counts as lost after S seconds without heartbeat', 'S', kind=float, default=30)
    ssh: bool = switch('with --ips: start the other nodes from here, over ssh')
    hostfile: Path | None = flag('the nodes, one address per line, instead of --ips', 'FILE', kind=parse_path)

    @classmethod
    def of(cls, given: argparse.Namespace, environment: Mapping[str, str] = os.environ, start: Start | None = None) -> Flags:
        """Flags of a command line; the environment sets those that are not given.

        `start`: of this process (None: detect it). Raises ValueError for bad values, and for flags that contradict it.
        """
        # the command line first, then the environment; the origin of each value is kept for messages
        start = detect(environment) if start is None else start
        options = {option.name: option for option in fields(cls)}
        values = {name: getattr(given, name) for name in options}
        origins = {name: f'--{name} {value}' for name, value in values.items() if value is not None and value is not False}
        for variable, name in ENVIRONMENT.items():
            if values[name] is None and environment.get(variable):
                kind = options[name].metadata['type']
                if kind is int and not environment[variable].isdecimal():
                    raise ValueError(f'{variable}={environment[variable]}: expected a number')
                values[name] = kind(environment[variable])
                origins[name] = f'{variable}={environment[variable]}'
        if values['hostfile'] is not None and values['ips'] is None:
            values['ips'], origins['ips'] = _read_nodes(values['hostfile']), f'--hostfile {values["hostfile"]}'
        # values must agree with the launcher that started this process, and are completed from it
        start.check({name: Setting(str(values[name]), origin) for name, origin in origins.items()})
        return cls(**values | (_flags_of_node(start, values) if start.per == 'node' else {}))

    def __post_init__(self) -> None:
        """Check the ranges of numbers. Raises ValueError."""
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
        """True if any flag needs a launcher; else a command runs in its own process."""
        requests = (self.gpus, self.nproc_per_node, self.ips, self.nnodes, self.master)
        return any(request is not None for request in requests)

    def placed(self, start: Start) -> Start:
        """Copy of `start` that meets where these flags say."""
        return start.at(self.master, self.start_port, self.ips or self.nnodes)


def check_port(port: int, flag: str) -> None:
    """Raise ValueError, starting with `flag`, if `port` is not a port number."""
    if not 0 < port < 65536:
        raise ValueError(f'{flag}: expected a port from 1 to 65535')


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a launch to a command, each with underscores or dashes."""
    group = parser.add_argument_group('several devices and nodes')
    for option in fields(Flags):
        settings = dict(option.metadata)
        names = (f'--{option.name}', *settings.pop('also'))
        dashed = [f'--{name[2:].replace("_", "-")}' for name in names if '_' in name]
        group.add_argument(*names, *dashed, dest=option.name, default=option.default, **settings)


def _flags_of_node(start: Start, values: Mapping[str, Any]) -> dict[str, Any]:
    """Flags set by a launcher of nodes, except those that are given."""
    settings = {name: setting.value for name, setting in start.settings.items() if values[name] is None}
    listed = values['ips'] is not None or (values['master'] is None and 'ips' in settings)  # else the nodes meet at --master
    names = {'nproc_per_node'} | (
        {'ips', 'start_port'} if listed else {'nnodes', 'master', 'rank'} if start.nodes != 1 else set()
    )
    flags: dict[str, Any] = {name: value for name, value in settings.items() if name in names}
    if start.nodes == 1:
        flags.pop('ips', None)
    flags |= {name: int(flags[name]) for name in ('rank', 'start_port') if name in flags}
    if 'nproc_per_node' in flags:  # `auto` and `gpu`: each device, as without the flag
        number = flags.pop('nproc_per_node')
        devices_decide = values['gpus'] is not None or not (number.isdecimal() or number == 'cpu')
        flags |= {} if devices_decide else {'nproc_per_node': count_cores() if number == 'cpu' else int(number)}
    return flags


def _read_nodes(file: Path) -> str:
    """Nodes in a hostfile, separated by commas. Raises ValueError."""
    try:
        nodes = read_hostfile(file)
    except OSError as error:
        raise ValueError(f'--hostfile {file}: {error.strerror}') from None
    except UnicodeDecodeError:
        raise ValueError(f'--hostfile {file}: is not UTF-8 text; write the name of a node in each line') from None
    if not nodes:
        raise ValueError(f'--hostfile {file}: names no node')
    return ','.join(nodes)
