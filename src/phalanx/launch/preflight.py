"""Before the ranks start: do the nodes agree, and does each reach every other?

Every node writes what it is (its info) and what it finds of the others; all read the same and come to the same answer.
"""

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
from phalanx.launch.rendezvous import Members, NodeInfo, Rendezvous, RendezvousError, listen, print_line, probe_all
from phalanx.system.cores import count_cores

Level = Literal['error', 'warning']  # an error stops the start, a warning does not


@dataclass(frozen=True)
class Rule:
    """A fact that should be the same everywhere."""

    fact: str
    name: str
    level: Level  # of the finding where it is not
    cure: str


RULES = (
    Rule('phalanx', 'Phalanx', 'error', 'install the same version on all nodes'),
    Rule('code', "Phalanx's code", 'error', 'bring the same revision to all nodes'),
    Rule('torch', 'torch', 'error', 'install the same version on all nodes'),
    Rule('python', 'Python', 'warning', 'use one version; data loading or numbers may differ'),
    Rule('cuda', 'CUDA', 'warning', 'use one version of torch and driver; kernels may differ in the last bits'),
    Rule('ranks', 'ranks per node', 'error', 'give the same --gpus or --nproc_per_node on all nodes'),
    Rule('devices', 'devices', 'warning', 'the slowest sets the pace'),
    Rule('command', 'the command', 'error', 'give the same command on all nodes'),
    Rule('recipe', 'the recipe', 'error', 'bring the same recipe and give the same overrides on all nodes'),
    Rule('data', 'the list of samples', 'error', 'bring the same data to all nodes; check data.root there'),
    Rule('max_restart', '--max_restart', 'error', 'give the same number on all nodes'),
)
COMPARE_TIMEOUT = 60  # seconds that nodes wait for each other while they compare themselves
CLOCK = 5.0  # seconds that clocks may differ without a word
DISK = 2.0  # GiB free below which a run is likely to fail
SHARED_MEMORY = 0.25  # GiB free in /dev/shm, the same for GPUs of one node that exchange through NCCL
SLOW = 0.5  # Gbit/s between nodes below which gradients will hold the run up


@dataclass(frozen=True)
class Finding:
    """Something that differs or is missing."""

    level: Level
    text: str

    def __str__(self) -> str:
        return f'{self.level}: {self.text}'


@dataclass(frozen=True)
class Link:
    """The way between nodes: seconds to connect, and bits a second of an all-reduce over all of them."""

    latency: float
    bandwidth: float

    def __str__(self) -> str:
        if self.bandwidth == float('inf'):
            return 'no other node'
        return f'{self.latency * 1e3:.1f} ms and {self.bandwidth / 1e9:.2f} Gbit/s between nodes'


def node_facts(cluster: Cluster) -> NodeInfo:
    """What this node is, for the comparison with others."""
    count = torch.cuda.device_count()
    names = sorted({torch.cuda.get_device_name(number) for number in range(count)})
    return {
        'host': socket.gethostname(),
        'phalanx': phalanx.__version__,
        'code': hash_code(),
        'torch': torch.__version__,
        'python': platform.python_version(),
        'cuda': torch.version.cuda if count else None,
        'ranks': cluster.ranks_per_node,
        'interface': cluster.interface,
        'devices': f'{count} x {", ".join(names)}' if count else f'{count_cores()} CPU cores',
        'memory': [round(torch.cuda.get_device_properties(n).total_memory / 2**30, 1) for n in range(count)],
        **shared_memory_fact(),
    }


def shared_memory_fact() -> NodeInfo:
    """GiB free in /dev/shm. Loader workers do not use it."""
    return {'shared_memory': round(_free(Path('/dev/shm')), 2)}


def hash_code() -> str:
    """One word for the source of this package: equal code, equal word."""
    root = Path(phalanx.__file__).parent
    return hash_parts(part for file in sorted(root.rglob('*.py')) for part in (str(file.relative_to(root)), file.read_bytes()))


def hash_parts(parts: Iterator[str | bytes]) -> str:
    """The first 12 digits of a sha256 over the parts and where each ends."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, 'big') + data)
    return digest.hexdigest()[:12]


def free_disk(folder: Path) -> float:
    """GiB free where a folder is, or will be."""
    return _free(next(parent for parent in (folder, *folder.absolute().parents) if parent.exists()))


def _free(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 2**30 if folder.exists() else float('inf')


def check_nodes(rendezvous: Rendezvous, members: Members) -> Link:
    """The way between the nodes, when all is well. Raises RendezvousError with all that must be fixed."""
    findings, link = examine(rendezvous, members)
    if link is None:
        rendezvous.leave(members)
        report = '\n'.join(f'  {finding}' for finding in findings)
        raise RendezvousError(f'the nodes do not fit together; nothing was started\n{report}')
    for finding in findings:
        print_line(str(finding))
    return link


def examine(rendezvous: Rendezvous, members: Members) -> tuple[list[Finding], Link | None]:
    """Compares the nodes, and tries and measures the ways between them (None: what was found forbids it)."""
    findings, latency = compare_nodes(rendezvous, members)
    if any(finding.level == 'error' for finding in findings):
        return findings, None
    if len(members.nodes) == 1:
        return findings, Link(0.0, float('inf'))
    link = Link(latency, measure_bandwidth(rendezvous, members))
    if link.bandwidth < SLOW * 1e9:
        findings.append(Finding('warning', f'{link}: exchanging gradients will hold the run up'))
    return findings, link


def compare_nodes(rendezvous: Rendezvous, members: Members) -> tuple[list[Finding], float]:
    """What is not as it should be, and the longest time to connect in seconds; the same on all nodes."""
    blocked, slowest = _ways(rendezvous, members)
    rendezvous.put(members.key('ways', rendezvous.number), {'blocked': blocked, 'latency': slowest, 'clock': time.time()})
    ways = _everybodys(rendezvous, members, 'ways')
    findings = [Finding('error', line) for way in ways for line in way['blocked']]
    findings += compare_facts([info for _, info in members.nodes])
    findings += _clocks(members, [way['clock'] for way in ways])
    return findings, max(way['latency'] for way in ways)


def compare_facts(infos: Sequence[NodeInfo]) -> list[Finding]:
    """What differs between nodes, and what a node lacks."""
    findings = []
    for rule in RULES:
        values = {str(info['address']): info.get(rule.fact) for info in infos}
        if len({str(value) for value in values.values()}) > 1:
            shown = '; '.join(f'{address}: {value}' for address, value in values.items())
            findings.append(Finding(rule.level, f'not the same everywhere: {rule.name} ({shown}): {rule.cure}'))
    return findings + [finding for info in infos for finding in find_shortages(info)]


def warn_about_this_node(folder: Path) -> None:
    """Says what this node has too little of for a run into `folder` that it makes alone, of one process or several."""
    for finding in find_shortages({'address': 'this node', 'disk': free_disk(folder), **shared_memory_fact()}):
        print_line(str(finding))


def find_shortages(info: NodeInfo) -> list[Finding]:
    """What a node has too little of."""
    findings, where, shared = [], info['address'], info['shared_memory']
    if info.get('trouble'):
        findings.append(Finding('error', f'{where}: {info["trouble"]}'))
    if info.get('disk', DISK) < DISK:
        text = f'{where} has {info["disk"] * 1024:,.0f} MiB of disk left for the run folder: make room'
        findings.append(Finding('warning', text))
    if info.get('memory') and info['ranks'] > 1 and shared < SHARED_MEMORY:
        cure = 'in a container give --shm-size=1g'
        text = f'{where} has {shared * 1024:.0f} MiB of shared memory for NCCL between its GPUs: {cure}'
        findings.append(Finding('warning', text))
    return findings


def _clocks(members: Members, clocks: Sequence[float]) -> list[Finding]:
    """Clocks that differ from the first node's. Harmless to training, but the logs cannot be laid side by side."""
    return [
        Finding('warning', f'the clock of {info["address"]} is {off:+.0f} s off that of the first node: set it (ntp)')
        for (_, info), clock in zip(members.nodes, clocks, strict=True)
        if abs(off := clock - clocks[0]) > CLOCK
    ]


def _ways(rendezvous: Rendezvous, members: Members) -> tuple[list[str], float]:
    """What blocks this node's way to others, and the longest time to connect in seconds. All return at one moment."""
    own, port = rendezvous.cluster.address, rendezvous.port
    others = [str(info['address']) for number, info in members.nodes if number != rendezvous.number]
    with ExitStack() as opened:
        trouble = ''
        try:
            opened.enter_context(_door(rendezvous, port))
        except RendezvousError as error:
            trouble = str(error)
        rendezvous.put(members.key('door', rendezvous.number), trouble)
        if troubles := [trouble for trouble in _everybodys(rendezvous, members, 'door') if trouble]:
            rendezvous.leave(members)
            raise RendezvousError('; '.join(troubles))
        tried = probe_all(own, others, port)
        rendezvous.put(members.key('tried', rendezvous.number), True)
        _everybodys(rendezvous, members, 'tried')  # the door stays open until everybody has come by
    blocked = [
        f'{own} cannot connect to {address}, port {port}: {trouble}' for address, (_, trouble) in tried.items() if trouble
    ]
    return blocked, max((seconds for seconds, _ in tried.values()), default=0.0)


def _everybodys(rendezvous: Rendezvous, members: Members, what: str) -> list[Any]:
    """What every node writes of itself at this point, in order of rank. Raises RendezvousError naming those that do not."""
    try:
        return rendezvous.wait(members.keys(what), COMPARE_TIMEOUT)
    except RendezvousError:
        absent = [members.name(number) for number in members.numbers if rendezvous.get(members.key(what, number)) is None]
        raise RendezvousError(
            f'{", ".join(absent)} did not answer within {COMPARE_TIMEOUT:.0f} s while the nodes compared themselves: '
            'look what became of the launcher there; nothing was started'
        ) from None


@contextmanager
def _door(rendezvous: Rendezvous, port: int) -> Iterator[None]:
    """While open, others can connect to this node; whoever comes is let go at once. The first has its store there."""
    if rendezvous.server is not None:
        yield
        return
    with listen(rendezvous.cluster.address, port) as sock:
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


def measure_bandwidth(rendezvous: Rendezvous, members: Members) -> float:
    """Bits a second that leave a node in an all-reduce over all of them, as long as it takes about a second."""
    node_rank, nodes = members.numbers.index(rendezvous.number), len(members.nodes)
    store = PrefixStore(f'{members.attempt}/bandwidth', rendezvous.store)
    group: Any = torch_dist.ProcessGroupGloo(store, node_rank, nodes, timedelta(seconds=20))
    options = torch_dist.AllreduceOptions()
    seconds, size = 0.0, 1 << 15
    try:
        while seconds < 0.2 and size < 1 << 24:
            size *= 4
            tensor = torch.ones(size)
            begun = time.perf_counter()
            group.allreduce([tensor], options).wait()
            took = torch.tensor([time.perf_counter() - begun])
            group.allreduce([took], options).wait()  # the mean over nodes: all of them go on, or none does
            seconds = float(took) / nodes
    except RuntimeError as error:
        raise RendezvousError(
            f'the nodes cannot exchange data ({", ".join(str(info["address"]) for _, info in members.nodes)}): '
            f'{str(error).splitlines()[0]}; is a firewall open for all ports between them?'
        ) from None
    return size * 4 * 8 * 2 * (nodes - 1) / nodes / seconds
