"""Before the ranks start: do the machines agree, and does each reach every other?

Every machine writes what it is (its card) and what it finds of the others; all read the same and come to the same answer.
"""

from __future__ import annotations

import hashlib
import platform
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as torch_dist
from torch.distributed.distributed_c10d import PrefixStore

import phalanx
from phalanx.launch.cluster import Cluster
from phalanx.launch.rendezvous import Card, Meeting, MeetingError, Members, listen, reach_all, say
from phalanx.system.cores import cores


@dataclass(frozen=True)
class Rule:
    """A fact that should be the same everywhere."""

    fact: str
    name: str
    must: bool  # or else: only told
    cure: str


RULES = (
    Rule('phalanx', 'Phalanx', True, 'install the same version on all machines'),
    Rule('code', "Phalanx's code", True, 'bring the same revision to all machines'),
    Rule('torch', 'torch', True, 'install the same version on all machines'),
    Rule('python', 'Python', False, 'use one version; data loading or numbers may differ'),
    Rule('cuda', 'CUDA', False, 'use one version of torch and driver; kernels may differ in the last bits'),
    Rule('ranks', 'ranks per machine', True, 'give the same --gpus or --nproc_per_node on all machines'),
    Rule('devices', 'devices', False, 'the slowest sets the pace'),
    Rule('command', 'the command', True, 'give the same command on all machines'),
    Rule('recipe', 'the recipe', True, 'bring the same recipe and give the same overrides on all machines'),
    Rule('data', 'the list of samples', True, 'bring the same data to all machines; check data.root there'),
    Rule('max_restart', '--max_restart', True, 'give the same number on all machines'),
)
PATIENCE = 60  # seconds that nodes wait for each other while they compare themselves
CLOCK = 5.0  # seconds that clocks may differ without a word
DISK = 2.0  # GiB free below which a run is likely to fail
SHARED_MEMORY = 0.25  # GiB free in /dev/shm, the same for GPUs of one node that exchange through NCCL
SLOW = 0.5  # Gbit/s between machines below which gradients will hold the run up


@dataclass(frozen=True)
class Finding:
    """What is not as it should be: it stops the start, or is only told."""

    level: Literal['error', 'warning']
    text: str

    def __str__(self) -> str:
        return f'{self.level}: {self.text}'


@dataclass(frozen=True)
class Link:
    """The way between machines: seconds to connect, and bits a second of an all-reduce over all of them."""

    latency: float
    bandwidth: float

    def __str__(self) -> str:
        if self.bandwidth == float('inf'):
            return 'no other machine'
        return f'{self.latency * 1e3:.1f} ms and {self.bandwidth / 1e9:.2f} Gbit/s between machines'


def machine_facts(cluster: Cluster) -> Card:
    """What this machine is, for the comparison with others."""
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(number) for number in range(count)})
    return {
        'host': socket.gethostname(),
        'phalanx': phalanx.__version__,
        'code': code_fingerprint(),
        'torch': torch.__version__,
        'python': platform.python_version(),
        'cuda': torch.version.cuda if count else None,
        'ranks': cluster.ranks_per_node,
        'interface': cluster.interface,
        'devices': f'{count} x {", ".join(names)}' if count else f'{cores()} CPU cores',
        'memory': [round(torch.cuda.get_device_properties(n).total_memory / 2**30, 1) for n in range(count)],
        **shared_memory(),
    }


def shared_memory() -> Card:
    """GiB free in /dev/shm. Loader workers do not use it."""
    return {'shared_memory': round(_free(Path('/dev/shm')), 2)}


def code_fingerprint() -> str:
    """One word for the source of this package: equal code, equal word."""
    root = Path(phalanx.__file__).parent
    return fingerprint(part for file in sorted(root.rglob('*.py')) for part in (str(file.relative_to(root)), file.read_bytes()))


def fingerprint(parts: Iterator[str | bytes]) -> str:
    """The first 12 digits of a sha256 over the parts and where each ends."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, 'big') + data)
    return digest.hexdigest()[:12]


def disk_free(folder: Path) -> float:
    """GiB free where a folder is, or will be."""
    return _free(next(parent for parent in (folder, *folder.absolute().parents) if parent.exists()))


def _free(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 2**30 if folder.exists() else float('inf')


def check(meeting: Meeting, members: Members) -> Link:
    """The way between the machines, when all is well. Raises MeetingError with all that must be mended."""
    findings, link = examine(meeting, members)
    if link is None:
        meeting.leave(members)
        report = '\n'.join(f'  {finding}' for finding in findings)
        raise MeetingError(f'the machines do not fit together; nothing was started\n{report}')
    for finding in findings:
        say(str(finding))
    return link


def examine(meeting: Meeting, members: Members) -> tuple[list[Finding], Link | None]:
    """Compares the machines, and tries and measures the ways between them (None: what was found forbids it)."""
    findings, latency = look_around(meeting, members)
    if any(finding.level == 'error' for finding in findings):
        return findings, None
    if len(members.cards) == 1:
        return findings, Link(0.0, float('inf'))
    link = Link(latency, bandwidth(meeting, members))
    if link.bandwidth < SLOW * 1e9:
        findings.append(Finding('warning', f'{link}: exchanging gradients will hold the run up'))
    return findings, link


def look_around(meeting: Meeting, members: Members) -> tuple[list[Finding], float]:
    """What is not as it should be, and the longest time to connect in seconds; the same on all machines."""
    blocked, slowest = _ways(meeting, members)
    meeting.put(members.key('ways', meeting.number), {'blocked': blocked, 'latency': slowest, 'clock': time.time()})
    ways = _everybodys(meeting, members, 'ways')
    findings = [Finding('error', line) for way in ways for line in way['blocked']]
    findings += compare([card for _, card in members.cards])
    findings += _clocks(members, [way['clock'] for way in ways])
    return findings, max(way['latency'] for way in ways)


def compare(cards: Sequence[Card]) -> list[Finding]:
    """What differs between machines, and what a machine lacks."""
    findings = []
    for rule in RULES:
        values = {str(card['address']): card.get(rule.fact) for card in cards}
        if len({str(value) for value in values.values()}) > 1:
            told = '; '.join(f'{address}: {value}' for address, value in values.items())
            level: Literal['error', 'warning'] = 'error' if rule.must else 'warning'
            findings.append(Finding(level, f'not the same everywhere: {rule.name} ({told}): {rule.cure}'))
    return findings + [finding for card in cards for finding in lacking(card)]


def look_here(folder: Path) -> None:
    """Says what this machine has too little of for a run into `folder` that it makes alone, of one process or several."""
    for finding in lacking({'address': 'this machine', 'disk': disk_free(folder), **shared_memory()}):
        say(str(finding))


def lacking(card: Card) -> list[Finding]:
    """What a machine has too little of."""
    findings, where, shared = [], card['address'], card['shared_memory']
    if card.get('trouble'):
        findings.append(Finding('error', f'{where}: {card["trouble"]}'))
    if card.get('disk', DISK) < DISK:
        findings.append(Finding('warning', f'{where} has {card["disk"]:.1f} GiB of disk left for the run folder: make room'))
    if card.get('memory') and card['ranks'] > 1 and shared < SHARED_MEMORY:
        text = (
            f'{where} has {shared * 1024:.0f} MiB of shared memory for NCCL between its GPUs: in a container give --shm-size=1g'
        )
        findings.append(Finding('warning', text))
    return findings


def _clocks(members: Members, clocks: Sequence[float]) -> list[Finding]:
    """Clocks that differ from the first machine's. Harmless to training, but the logs cannot be laid side by side."""
    return [
        Finding('warning', f'the clock of {card["address"]} is {off:+.0f} s off that of the first machine: set it (ntp)')
        for (_, card), clock in zip(members.cards, clocks, strict=True)
        if abs(off := clock - clocks[0]) > CLOCK
    ]


def _ways(meeting: Meeting, members: Members) -> tuple[list[str], float]:
    """What blocks this machine's way to others, and the longest time to connect in seconds. All return at one moment."""
    own, port = meeting.cluster.address, meeting.port
    others = [str(card['address']) for number, card in members.cards if number != meeting.number]
    with ExitStack() as opened:
        trouble = ''
        try:
            opened.enter_context(_door(meeting, port))
        except MeetingError as error:
            trouble = str(error)
        meeting.put(members.key('door', meeting.number), trouble)
        if troubles := [trouble for trouble in _everybodys(meeting, members, 'door') if trouble]:
            meeting.leave(members)
            raise MeetingError('; '.join(troubles))
        tried = reach_all(own, others, port)
        meeting.put(members.key('tried', meeting.number), True)
        _everybodys(meeting, members, 'tried')  # the door stays open until everybody has come by
    blocked = [
        f'{own} cannot connect to {address}, port {port}: {trouble}' for address, (_, trouble) in tried.items() if trouble
    ]
    return blocked, max((seconds for seconds, _ in tried.values()), default=0.0)


def _everybodys(meeting: Meeting, members: Members, what: str) -> list[Any]:
    """What every node writes of itself at this point, in order of rank. Raises MeetingError naming those that do not."""
    try:
        return meeting.wait(members.keys(what), PATIENCE)
    except MeetingError:
        absent = [members.name(number) for number, _ in members.cards if meeting.look(members.key(what, number)) is None]
        raise MeetingError(
            f'{", ".join(absent)} did not answer within {PATIENCE:.0f} s while the nodes compared themselves: '
            'look what became of the launcher there; nothing was started'
        ) from None


@contextmanager
def _door(meeting: Meeting, port: int) -> Iterator[None]:
    """While open, others can connect to this machine; whoever comes is let go at once. The first has its store there."""
    if meeting.server is not None:
        yield
        return
    with listen(meeting.cluster.address, port) as sock:
        over = threading.Event()

        def greet() -> None:
            sock.settimeout(0.2)
            while not over.is_set():
                with suppress(TimeoutError):
                    sock.accept()[0].close()

        thread = threading.Thread(target=greet, name='door', daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def bandwidth(meeting: Meeting, members: Members) -> float:
    """Bits a second that leave a machine in an all-reduce over all of them, as long as it takes about a second."""
    place, nodes = members.place(meeting.number), len(members.cards)
    assert place is not None
    store = PrefixStore(f'{members.attempt}/bandwidth', meeting.store)
    group: Any = torch_dist.ProcessGroupGloo(store, place, nodes, timedelta(seconds=20))
    options = torch_dist.AllreduceOptions()
    seconds, size = 0.0, 1 << 15
    try:
        while seconds < 0.2 and size < 1 << 24:
            size *= 4
            tensor = torch.ones(size)
            begun = time.perf_counter()
            group.allreduce([tensor], options).wait()
            took = torch.tensor([time.perf_counter() - begun])
            group.allreduce([took], options).wait()  # the mean over machines: all of them go on, or none does
            seconds = float(took) / nodes
    except RuntimeError as error:
        raise MeetingError(
            f'the machines cannot exchange data ({", ".join(str(card["address"]) for _, card in members.cards)}): '
            f'{str(error).splitlines()[0]}; is a firewall open for all ports between them?'
        ) from None
    return size * 4 * 8 * 2 * (nodes - 1) / nodes / seconds
