"""Checks before the ranks start: versions and settings agree on all nodes, and nodes reach each other.

Every node publishes its facts and its findings about some others; the first node reads all, and publishes the result.
"""

import hashlib
import platform
import shutil
import socket
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
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
from phalanx.launch.members import Members, NodeInfo, shorten
from phalanx.launch.ports import RendezvousError, listen, probe_all
from phalanx.launch.rendezvous import Rendezvous, print_line
from phalanx.parallel.dist import connect_when_needed
from phalanx.system.cores import count_cores

Level = Literal['error', 'warning']  # an error stops the start, a warning does not


@dataclass(frozen=True)
class Rule:
    """Fact that should be the same on all nodes."""

    fact: str
    name: str
    level: Level  # of the finding if it differs
    cure: str


RULES = (
    Rule('phalanx', 'Phalanx', 'error', 'install the same version on all nodes'),
    Rule('code', "Phalanx's code", 'error', 'install the same revision on all nodes'),
    Rule('torch', 'torch', 'error', 'install the same version on all nodes'),
    Rule('python', 'Python', 'warning', 'use one version; data loading or numbers may differ'),
    Rule('cuda', 'CUDA', 'warning', 'use one version of torch and driver; kernels may differ in the last bits'),
    Rule('ranks', 'ranks per node', 'error', 'give the same --gpus or --nproc_per_node on all nodes'),
    Rule('devices', 'devices', 'warning', 'the slowest sets the pace'),
    Rule('command', 'the command', 'error', 'give the same command on all nodes'),
    Rule('recipe', 'the recipe', 'error', 'copy the same recipe to all nodes and give the same overrides'),
    Rule('data', 'the list of samples', 'error', 'copy the same data to all nodes; check data.root there'),
    Rule('max_restart', '--max_restart', 'error', 'give the same number on all nodes'),
)
MOST = 20  # findings, or values of a finding, to show
COMPARE_TIMEOUT = 60  # seconds that nodes wait for each other during the checks
CLOCK = 5.0  # seconds that clocks may differ without a warning
DISK = 2.0  # GiB free below which a run is likely to fail
SHARED_MEMORY = 0.25  # GiB free in /dev/shm, for NCCL between the GPUs of a node
SLOW = 0.5  # Gbit/s between nodes below which gradient exchange limits the speed


@dataclass(frozen=True)
class Finding:
    """Difference between nodes, or shortage of a node."""

    level: Level
    text: str

    def __str__(self) -> str:
        return f'{self.level}: {self.text}'


@dataclass(frozen=True)
class Link:
    """Link between the nodes: `latency` in seconds to connect, `bandwidth` in bit/s of an all-reduce over all of them."""

    latency: float
    bandwidth: float

    def __str__(self) -> str:
        if self.bandwidth == float('inf'):
            return 'no other node'
        return f'{self.latency * 1e3:.1f} ms and {self.bandwidth / 1e9:.2f} Gbit/s between nodes'


def node_facts(cluster: Cluster) -> NodeInfo:
    """Facts of this node, for the comparison with others."""
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
    """GiB free in /dev/shm, for NCCL; loader workers do not use it."""
    return {'shared_memory': round(_free(Path('/dev/shm')), 2)}


def hash_code() -> str:
    """Hash of the source of this package, see `hash_parts`."""
    root = Path(phalanx.__file__).parent
    return hash_parts(part for file in sorted(root.rglob('*.py')) for part in (str(file.relative_to(root)), file.read_bytes()))


def hash_parts(parts: Iterator[str | bytes]) -> str:
    """First 12 hexadecimal digits of a SHA-256 over the parts and their lengths."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, 'big') + data)
    return digest.hexdigest()[:12]


def free_disk(folder: Path) -> float:
    """GiB free on the disk of a folder, which need not exist yet."""
    return _free(next(parent for parent in (folder, *folder.absolute().parents) if parent.exists()))


def _free(folder: Path) -> float:
    return shutil.disk_usage(folder).free / 2**30 if folder.exists() else float('inf')


def check_nodes(rendezvous: Rendezvous, members: Members) -> Link:
    """Check the nodes and print warnings; return the link between them. Raises RendezvousError with all errors."""
    findings, link = examine(rendezvous, members)
    if link is None:
        rendezvous.leave(members)
        report = '\n'.join(f'  {finding}' for finding in findings)
        raise RendezvousError(f'the nodes are incompatible; nothing was started\n{report}')
    for finding in findings:
        print_line(str(finding))
    return link


def examine(rendezvous: Rendezvous, members: Members) -> tuple[list[Finding], Link | None]:
    """Compare the nodes, and measure the link between them (None: there are errors)."""
    findings, latency = compare_nodes(rendezvous, members)
    if any(finding.level == 'error' for finding in findings):
        return findings, None
    if members.count == 1:
        return findings, Link(0.0, float('inf'))
    link = Link(latency, measure_bandwidth(rendezvous, members))
    if link.bandwidth < SLOW * 1e9:
        findings.append(Finding('warning', f'{link}: the exchange of gradients will limit the speed'))
    return findings, link


def compare_nodes(rendezvous: Rendezvous, members: Members) -> tuple[list[Finding], float]:
    """Findings, and the longest time to connect in seconds; the same on all nodes."""

    def compare(ways: Sequence[Any]) -> NodeInfo:
        """Result from the probes of all nodes, computed on the first."""
        findings = [Finding('error', line) for way in ways for line in way['blocked']]
        findings += compare_facts([info for _, info in members.nodes])
        findings += _clocks(members, [way['clock'] for way in ways])
        findings.sort(key=lambda finding: finding.level != 'error')
        rest = [Finding('warning', f'{len(findings) - MOST} more like these')] if len(findings) > MOST else []
        shown = [(finding.level, finding.text) for finding in [*findings[:MOST], *rest]]
        return {'findings': shown, 'latency': max(way['latency'] for way in ways)}

    with ExitStack() as opened:
        trouble = ''
        try:
            opened.enter_context(_accept_probes(rendezvous, rendezvous.port))
        except RendezvousError as error:
            trouble = str(error)
        # First every node listens, then all connect; each goes on accepting until all have tried.
        doors = rendezvous.meet(
            members, 'door', trouble, lambda all_troubles: {'troubles': [*filter(None, all_troubles)]}, COMPARE_TIMEOUT
        )
        if doors['troubles']:
            rendezvous.leave(members)
            raise RendezvousError('; '.join(doors['troubles'][:MOST]))
        common = rendezvous.meet(members, 'ways', _probe_neighbours(rendezvous, members), compare, COMPARE_TIMEOUT)
    return [Finding(level, text) for level, text in common['findings']], common['latency']


def compare_facts(infos: Sequence[NodeInfo]) -> list[Finding]:
    """Compare the facts of nodes; return differences and shortages."""
    findings = []
    for rule in RULES:
        values = {str(info['address']): info.get(rule.fact) for info in infos}
        if len({str(value) for value in values.values()}) > 1:
            findings.append(Finding(rule.level, f'not the same on all nodes: {rule.name} ({_group(values)}): {rule.cure}'))
    return findings + [finding for info in infos for finding in find_shortages(info)]


def _group(values: Mapping[str, Any]) -> str:
    """Values with the addresses of their nodes."""
    addresses: dict[str, list[str]] = {}
    for address, value in values.items():
        addresses.setdefault(str(value), []).append(address)
    groups = [f'{shorten(own)}: {value}' for value, own in addresses.items()]
    return '; '.join(groups[:MOST]) + (f'; {len(groups) - MOST} other values' if len(groups) > MOST else '')


def warn_about_this_node(folder: Path) -> None:
    """Warn about low disk space or shared memory before a run on this node alone, into `folder`."""
    for finding in find_shortages({'address': 'this node', 'disk': free_disk(folder), **shared_memory_fact()}):
        print_line(str(finding))


def find_shortages(info: NodeInfo) -> list[Finding]:
    """Problems and shortages that a node reports in its facts."""
    findings, where, shared = [], info['address'], info['shared_memory']
    if info.get('trouble'):
        findings.append(Finding('error', f'{where}: {info["trouble"]}'))
    if info.get('disk', DISK) < DISK:
        text = f'{where} has {info["disk"] * 1024:,.0f} MiB of disk left for the run folder: free some space'
        findings.append(Finding('warning', text))
    if info.get('memory') and info['ranks'] > 1 and shared < SHARED_MEMORY:
        cure = 'in a container give --shm-size=1g'
        text = f'{where} has {shared * 1024:.0f} MiB of shared memory for NCCL between its GPUs: {cure}'
        findings.append(Finding('warning', text))
    return findings


def _clocks(members: Members, clocks: Sequence[float]) -> list[Finding]:
    """Findings about clocks that differ from the first node's: harmless to training, but logs cannot be compared."""
    return [
        Finding('warning', f'the clock of {info["address"]} is {off:+.0f} s off that of the first node: set it (ntp)')
        for (_, info), clock in zip(members.nodes, clocks, strict=True)
        if abs(off := clock - clocks[0]) > CLOCK
    ]


def _probe_neighbours(rendezvous: Rendezvous, members: Members) -> NodeInfo:
    """Errors of connections from this node to its neighbours, the longest time to connect in seconds, and the time here."""
    own, port = rendezvous.cluster.address, rendezvous.port
    tried = probe_all(own, members.neighbours, port)
    blocked = [
        f'{own} cannot connect to {address}, port {port}: {trouble}' for address, (_, trouble) in tried.items() if trouble
    ]
    slowest = max((seconds for seconds, _ in tried.values()), default=0.0)
    return {'blocked': blocked[:MOST], 'latency': slowest, 'clock': time.time()}


@contextmanager
def _accept_probes(rendezvous: Rendezvous, port: int) -> Iterator[None]:
    """Accept and close probe connections to this node within the context; the first node has its store on that port."""
    if rendezvous.server is not None:
        yield
        return
    with listen(rendezvous.cluster.address, port) as sock:
        over = threading.Event()

        def accept() -> None:
            sock.settimeout(0.2)
            while not over.is_set():
                with suppress(TimeoutError):
                    sock.accept()[0].close()

        thread = threading.Thread(target=accept, name='probes', daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def measure_bandwidth(rendezvous: Rendezvous, members: Members) -> float:
    """Bandwidth in bit/s out of a node, from all-reduces of growing size within about a second."""
    node_rank, nodes = members.position, members.count
    # a gloo group of the launchers, only for this measurement
    store = PrefixStore(f'{members.attempt}/bandwidth', rendezvous.store)
    connect_when_needed(nodes)
    group: Any = torch_dist.ProcessGroupGloo(store, node_rank, nodes, timedelta(seconds=20))
    options = torch_dist.AllreduceOptions()
    seconds, size = 0.0, 1 << 15
    try:
        # sizes grow until the time is well above the latency
        while seconds < 0.2 and size < 1 << 24:
            size *= 4
            tensor = torch.ones(size)
            begun = time.perf_counter()
            group.allreduce([tensor], options).wait()
            took = torch.tensor([time.perf_counter() - begun])
            group.allreduce([took], options).wait()  # the mean over nodes, so that all of them continue or none does
            seconds = float(took) / nodes
    except RuntimeError as error:
        raise RendezvousError(
            f'the {nodes} nodes cannot exchange data ({rendezvous.cluster.address}): '
            f'{str(error).splitlines()[0]}; is a firewall open for all ports between them?'
        ) from None
    return ring_bits(size, nodes) / seconds


def ring_bits(size: int, nodes: int) -> float:
    """Bits that each node sends in a ring all-reduce of `size` float32 values: 2 (n - 1) / n of the data."""
    return size * 4 * 8 * 2 * (nodes - 1) / nodes
