"""Start of this process by a launcher or scheduler, and the check of flags against it."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from phalanx.launch.names import START_PORT, is_same_node, split_list
from phalanx.system.errors import RequestError

STARTED_BY = 'PHALANX_STARTED_BY'  # set after reading a contract, so that child processes do not read it again
OURS = 'Phalanx'

Variables = Mapping[str, str]


class Setting(NamedTuple):
    """Value of a flag of a launch, and its origin."""

    value: str
    origin: str  # for messages: a variable with its value, or a flag


@dataclass(frozen=True)
class Start:
    """Launcher of this process, and the settings that it determines."""

    by: str = ''  # name of the launcher; empty: started by hand
    per: Literal['rank', 'node', ''] = ''
    count: int = 1  # processes that it started
    nodes: int | None = None  # None: unknown
    unit: str = 'process'
    variables: tuple[str, ...] = ()  # the variables it was detected by, as NAME=VALUE
    settings: Mapping[str, Setting] = field(default_factory=dict)  # by the name of the flag
    exports: Mapping[str, str] = field(default_factory=dict)  # of a rank: variables for torch.distributed
    note: str = ''  # for the user, if started by hand

    def __str__(self) -> str:
        """One line for the start of a run; may be empty."""
        if not self.per or self.by == OURS:
            return self.note
        unit = self.unit if self.count == 1 else f'{self.unit}es' if self.unit.endswith('s') else f'{self.unit}s'
        nodes = '' if self.nodes is None else f' on {self.nodes} node{"s" if self.nodes > 1 else ""}'
        meaning = 'one per rank' if self.per == 'rank' else 'one per node, which starts its ranks'
        return f'started by {self.by}: {self.count} {unit}{nodes}, {meaning}'

    def changes(self) -> dict[str, str | None]:
        """Changes of the environment (None: remove), after which RANK and WORLD_SIZE are set only if this process is a rank."""
        if self.by == OURS:
            return {}
        if self.per == 'rank':
            return {**self.exports, STARTED_BY: self.by}
        unset = dict.fromkeys(('RANK', 'WORLD_SIZE'))
        return {**unset, 'MASTER_ADDR': None, 'MASTER_PORT': None, STARTED_BY: self.by} if self.per else {**unset}

    def at(self, master: str | None, port: int | None, nodes: str | None = None) -> Start:
        """Copy of this start that meets at the address and port of flags, unless the launcher determines them.

        With flags for several `nodes`, their list or number, the note does not apply.
        """
        if not self.per and nodes is not None:
            return replace(self, note='')
        if self.per != 'rank' or 'master' in self.settings or not self.exports:
            return self
        host, _, number = (master or '').rpartition(':')
        chosen = {'MASTER_ADDR': host.strip('[]'), 'MASTER_PORT': number or str(port or '')}
        return replace(self, exports={**self.exports, **{name: value for name, value in chosen.items() if value}})

    def check(self, given: Mapping[str, Setting]) -> None:
        """Compare flags, by name, with the settings of the launcher. Raises ValueError with all contradictions."""
        found = [line for name, flag in given.items() if (line := self._contradiction(name, flag))]
        if found:
            names = ' '.join(variable.partition('=')[0] for variable in self.variables)
            contradictions = ''.join(f'\n  {line}' for line in found)
            raise ValueError(
                f'the flags contradict the environment of this process, set by {self.by} ({", ".join(self.variables)}):'
                f'{contradictions}\n'
                f'leave these flags out; or, if these variables are not meant for this command, unset {names}'
            )

    def _contradiction(self, name: str, flag: Setting) -> str:
        """Line with both values and their origins if they contradict each other, else ''."""
        if name == 'ssh':
            return f'{flag.origin}, but {self.by} has started the other nodes' if self.per and self.count > 1 else ''
        if name == 'start_port':
            port = self.settings['master'].value.rpartition(':')[2] if 'master' in self.settings else flag.value
            ours = not flag.origin.startswith('--') or port == flag.value  # FLAGS_START_PORT is a default, and often set
            return '' if ours else f'{flag.origin}, but {self.settings["master"].origin}'
        name, value = {'gpus': ('nproc_per_node', str(len(split_list(flag.value))))}.get(name, (name, flag.value))
        own = self.settings.get(name)
        if name == 'ips' and (own is None or len(split_list(value)) != len(split_list(own.value))):
            name, value, own = 'nnodes', str(len(split_list(value))), self.settings.get('nnodes')
        agree = COMPARISONS.get(name)
        if own is None or agree is None or agree(value, own.value):
            return ''
        return f'{flag.origin} ({describe(name, value)}), but {own.origin} ({describe(name, own.value)})'


def _same_nodes(one: str, other: str) -> bool:
    return one == other or all(is_same_node(*pair) for pair in zip(split_list(one), split_list(other), strict=True))


def _same_master(one: str, other: str) -> bool:
    (host, _, port), (other_host, _, other_port) = one.rpartition(':'), other.rpartition(':')
    return port == other_port and is_same_node(host.strip('[]'), other_host.strip('[]'))


def _overlap(one: str, other: str) -> bool:
    """True if two numbers of nodes, N or MIN:MAX, overlap."""
    (low, _, high), (other_low, _, other_high) = one.partition(':'), other.partition(':')
    numbers = [low, high or low, other_low, other_high or other_low]
    if not all(number.isdecimal() for number in numbers):
        return True  # another check reports it
    least, most, other_least, other_most = map(int, numbers)
    return least <= other_most and other_least <= most


COMPARISONS: Mapping[str, Callable[[str, str], bool]] = {
    'nproc_per_node': lambda one, other: one == other or not other.isdecimal(),  # `auto` leaves it to the flag
    'nnodes': _overlap,
    'ips': _same_nodes,
    'master': _same_master,
    'rank': str.__eq__,
}


def describe(name: str, value: str) -> str:
    """Value of a setting, in words."""
    if name == 'nnodes':
        return f'{value} node{"" if value == "1" else "s"}'
    return {'nproc_per_node': '{} per node', 'ips': 'nodes {}', 'master': 'master {}', 'rank': 'node rank {}'}[name].format(
        value
    )


def apply_start(start: Start) -> None:
    """Apply the changes of a start to the environment, and print its line, once over all ranks."""
    for name, value in start.changes().items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if str(start) and (start.per != 'rank' or start.exports['RANK'] == '0'):
        print(f'phalanx: {start}', file=sys.stderr, flush=True)


@contextlib.contextmanager
def once_per_node(start: Start) -> Iterator[None]:
    """Leave a RequestError to the first rank of each node: the others read the same files, and exit with its status."""
    try:
        yield
    except RequestError:
        if start.per == 'rank' and start.by != OURS and start.exports['LOCAL_RANK'] != '0':
            raise SystemExit(2) from None
        raise


class Reader:
    """Reader of the variables of one contract; its messages name the contract and the variable."""

    def __init__(self, variables: Variables, contract: str) -> None:
        self.variables, self.contract = variables, contract

    def has(self, *names: str) -> bool:
        return all(self.variables.get(name) for name in names)

    def text(self, name: str) -> str:
        """Value of a variable. Raises ValueError if it is missing."""
        if not self.has(name):
            raise ValueError(f'{self.contract} started this process without {name}; set it, or unset the others')
        return self.variables[name]

    def number(self, name: str, least: int = 0) -> int:
        """Integer value of a variable. Raises ValueError if it is missing, no number or below `least`."""
        text = self.text(name)
        if not text.isdecimal() or int(text) < least:
            raise ValueError(f'{name}={text}: expected a number, at least {least}')
        return int(text)

    def setting(self, name: str) -> Setting:
        return Setting(self.text(name), f'{name}={self.text(name)}')

    def shown(self, *names: str) -> tuple[str, ...]:
        return tuple(f'{name}={self.variables[name]}' for name in names if self.has(name))

    def master(self, address: str = 'MASTER_ADDR', port: str = 'MASTER_PORT') -> Setting:
        """ADDRESS:PORT. The port defaults to START_PORT. Raises ValueError without the address."""
        host, number = self.text(address), str(self.number(port, 1)) if self.has(port) else str(START_PORT)
        host = f'[{host}]' if ':' in host else host
        return Setting(f'{host}:{number}', ', '.join(self.shown(address, port)))
