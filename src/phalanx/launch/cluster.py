"""Cluster of a launch, from its flags: the nodes, the place of this node, and its ranks."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace

import psutil

from phalanx.launch.flags import Flags, check_port
from phalanx.launch.names import (
    START_PORT,
    Addresses,
    is_loopback,
    local_address_to,
    outward_address,
    parse_nodes,
    resolve,
    resolve_all,
    split_list,
    split_nodes,
)
from phalanx.system.cores import count_cores, threads_per_rank


@dataclass(frozen=True)
class Cluster:
    """Nodes and ranks of a run, from the view of one node."""

    ranks_per_node: int
    devices: tuple[str, ...] = ()  # CUDA_VISIBLE_DEVICES of this node, by local rank; empty: all devices
    nodes: tuple[str, ...] = ()  # addresses in order of rank; empty: this node alone, or any that join
    min_nodes: int = 1
    max_nodes: int = 1
    address: str = '127.0.0.1'  # of this node, as other nodes reach it
    interface: str = 'lo'  # the network interface that has this address
    rendezvous: tuple[str, int] | None = None  # address and port on the first node; None: one node
    wanted_rank: int | None = None  # node rank requested by --rank
    other_family: tuple[str, ...] = ()  # of a first node given by name: its addresses that the name may have on other nodes

    @property
    def hosts_rendezvous(self) -> bool:
        """True on the node of rank 0, which serves the rendezvous."""
        return self.rendezvous is not None and self.rendezvous[0] == self.address

    @property
    def requested(self) -> str:
        """Requested nodes, for messages."""
        return ', '.join(self.nodes) or f'{self.min_nodes} to {self.max_nodes}'

    @classmethod
    def from_flags(
        cls, flags: Flags, available: int, addresses: Addresses | None = None, patience: float = 0
    ) -> tuple[Cluster | None, list[str]]:
        """Cluster that the flags request (None: one process, no launcher) and warnings.

        `available`: CUDA devices here; `addresses`: of this node (None: asks the system); `patience`: seconds to wait for the
        addresses of listed names. Raises ValueError with the flag and the fix.
        """
        if not flags.asks_for_ranks:
            return None, []
        here, warnings = _ranks_here(flags, available)
        addresses = local_addresses() if addresses is None else addresses
        if flags.ips is not None:
            if flags.nnodes not in (None, str(len(split_list(flags.ips)))):
                raise ValueError(f'--ips {flags.ips} names {len(split_list(flags.ips))} nodes, --nnodes says {flags.nnodes}')
            return _read_list(here, flags, addresses, patience), warnings
        if flags.master is not None or flags.nnodes not in (None, '1'):
            return _joining(here, flags, addresses), warnings
        return here, warnings

    def environment(self) -> dict[str, str]:
        """Environment variables for the ranks of this node, in addition to those of the elastic agent."""
        environment = {
            'OMP_NUM_THREADS': os.environ.get('OMP_NUM_THREADS', str(threads_per_rank(self.ranks_per_node))),
            'GLOO_SOCKET_IFNAME': self.interface,
            # Without `=`, NCCL matches prefixes: eth1 would match eth10. A value set by the user wins.
            'NCCL_SOCKET_IFNAME': os.environ.get('NCCL_SOCKET_IFNAME', f'={self.interface}'),
        }
        if self.devices:
            environment['CUDA_VISIBLE_DEVICES'] = ','.join(self.devices)
        return environment


def local_addresses() -> dict[str, str]:
    """IP addresses of this node, with the network interface of each; only interfaces that are up."""
    up = {name for name, stats in psutil.net_if_stats().items() if stats.isup}
    return {
        address.address.partition('%')[0]: name
        for name, found in psutil.net_if_addrs().items()
        for address in found
        if name in up and address.family in (socket.AF_INET, socket.AF_INET6)
    }


def find_interface(names: Sequence[str], patience: float = 0) -> str | None:
    """Network interface to the nodes `names`, for a rank under a foreign launcher; None if unknown.

    Waits up to `patience` seconds for the address of each name. Raises ValueError if one has none.
    """
    own, answers = local_addresses(), [resolve(name, patience) for name in names]
    with contextlib.suppress(ValueError):
        for found in answers:
            for address in found:
                here = address if address in own else local_address_to(address)
                if not is_loopback(here) and here in own:
                    return own[here]
        return own.get(outward_address(own))
    return None


def _ranks_here(flags: Flags, available: int) -> tuple[Cluster, list[str]]:
    """Ranks of this node and their devices, and warnings. Numbers of `--gpus` index CUDA_VISIBLE_DEVICES."""
    # without --gpus: --nproc_per_node ranks, or one per device
    gpus, nproc = flags.gpus, flags.nproc_per_node
    if gpus is None:
        if nproc is not None and available and nproc > available:
            raise ValueError(f'--nproc_per_node {nproc}: this node has {available} CUDA devices')
        crowded = nproc is not None and not available and nproc > count_cores()
        warning = f'--nproc_per_node {nproc}: ranks on the CPU share its cores ({count_cores()}), so expect slow steps'
        return Cluster(nproc or max(available, 1)), [warning] if crowded else []
    # --gpus: one rank per device; every mistake is an error, since a wrong device is hard to notice
    devices = [part.strip() for part in gpus.strip(' ').removesuffix(',').split(',')]
    if not all(part.isdecimal() for part in devices):
        raise ValueError(f'--gpus {gpus!r}: expected numbers separated by commas, such as 0,1')
    if len(set(devices)) < len(devices):
        raise ValueError(f'--gpus {gpus}: a device is named twice')
    if nproc not in (None, len(devices)):
        raise ValueError(f'--gpus {gpus} names {len(devices)} devices, --nproc_per_node asks for {nproc} processes')
    if not available:
        ranks = f'{len(devices)} rank{"s" if len(devices) > 1 else ""}'
        return Cluster(len(devices)), [f'--gpus {gpus}: torch sees no CUDA device here; starting {ranks} on the CPU']
    # the numbers count within CUDA_VISIBLE_DEVICES, as torch's do
    listed = os.environ.get('CUDA_VISIBLE_DEVICES')
    visible = [part.strip() for part in listed.split(',')] if listed else [str(number) for number in range(available)]
    outside = [part for part in devices if int(part) >= len(visible)]
    if outside:
        there = f'this process sees {len(visible)}: 0 to {len(visible) - 1}'
        raise ValueError(f'--gpus {gpus}: there is no device {", ".join(outside)}; {there}')
    return Cluster(len(devices), tuple(visible[int(part)] for part in devices)), []


def _read_list(here: Cluster, flags: Flags, addresses: Addresses, patience: float) -> Cluster:
    """Cluster of the nodes of `--ips`; this node finds its place by its own addresses."""
    # the list must name each node once, by an address that the others can use
    names = split_nodes(flags.ips or '')
    nodes = tuple(resolve_all(names, patience))
    if not nodes:
        raise ValueError('--ips: names no node')
    twice = sorted({name for name, node in zip(names, nodes, strict=True) if nodes.count(node) > 1})
    if twice:
        raise ValueError(f'--ips {flags.ips}: {", ".join(twice)} are the same node; name it once')
    if len(nodes) > 1 and (loopback := [node for node in nodes if is_loopback(node)]):
        raise ValueError(
            f'--ips {flags.ips}: {loopback[0]} means "this node" on every node; '
            f'give the address by which the others reach it ({_format_addresses(addresses)})'
        )
    # this node is the entry with one of its own addresses; --host decides between several
    host = resolve(flags.host)[0] if flags.host else None
    mine = [node for node in nodes if node in addresses and host in (None, node)]
    if not mine:
        named = f'--host {flags.host} is not' if flags.host else 'none of the addresses of this node is'
        raise ValueError(
            f'{named} in the list of --ips\n  --ips:        {", ".join(nodes)}\n  this node: {_format_addresses(addresses)}\n'
            'give the list that has the address of this node; in a container start it with the network of its host'
        )
    # a list of one node is a run on one node, without a rendezvous
    if len(nodes) == 1:
        return here
    if len(mine) > 1:
        raise ValueError(f'--ips {flags.ips}: {" and ".join(mine)} are both this node; name it once')
    return replace(
        here,
        nodes=nodes,
        min_nodes=len(nodes),
        max_nodes=len(nodes),
        address=mine[0],
        interface=addresses[mine[0]],
        rendezvous=(nodes[0], flags.start_port or START_PORT),
        other_family=_other_family(mine[0], addresses) if nodes[0] == mine[0] != names[0] else (),
    )


def _joining(here: Cluster, flags: Flags, addresses: Addresses) -> Cluster:
    """Cluster of MIN to MAX nodes that meet at `--master`."""
    # the number of nodes, and the address where they meet
    if flags.nnodes is None:
        raise ValueError(f'--master {flags.master} needs --nnodes: the number of nodes, or MIN:MAX')
    least, most = parse_nodes(flags.nnodes, f'--nnodes {flags.nnodes}')
    if flags.master is None:
        raise ValueError(
            f'--nnodes {flags.nnodes}: the rendezvous is missing; give --master IP:PORT, or --ips with the addresses'
        )
    host, _, port = flags.master.rpartition(':')
    if not port.isdecimal() or not host:
        raise ValueError(f'--master {flags.master}: expected IP:PORT, such as 10.0.0.1:{START_PORT}')
    check_port(int(port), f'--master {flags.master}')
    # the address of this node follows from the way to the master, if --host does not give it
    master, own = _ways_to(host.strip('[]'), flags, addresses, alone=most == 1)
    if own not in addresses:
        raise ValueError(f'--host {flags.host}: this node has {_format_addresses(addresses)}')
    if flags.rank is not None and (flags.rank == 0) != (own == master):
        raise ValueError(
            f'--rank {flags.rank}: rank 0 is the node of --master {flags.master}, this one is {own} '
            '(RANK and WORLD_SIZE without LOCAL_RANK count nodes)'
        )
    return replace(
        here,
        min_nodes=least,
        max_nodes=most,
        address=own,
        interface=addresses[own],
        rendezvous=(master, int(port)),
        wanted_rank=flags.rank,
        other_family=_other_family(own, addresses) if own == master != host.strip('[]') else (),
    )


def _other_family(own: str, addresses: Addresses) -> tuple[str, ...]:
    """IPv6 addresses at the interface of an IPv4 address of this node, or the reverse, as other nodes may know it."""
    here = [address for address, interface in addresses.items() if interface == addresses[own]]
    return tuple(address for address in here if (':' in address) != (':' in own) and not address.startswith('fe80:'))


def _ways_to(host: str, flags: Flags, addresses: Addresses, *, alone: bool) -> tuple[str, str]:
    """Addresses of the master and of this node. Raises ValueError.

    A name with only a loopback address is this node's own name: Debian writes it into /etc/hosts like that.
    """
    found = resolve(host, flags.join_timeout)
    own = resolve(flags.host)[0] if flags.host else None
    # a loopback address of the master is only good for a run on one node, or for the master itself
    outside = [address for address in found if not is_loopback(address)]
    if alone and not outside:
        return found[0], own or found[0]
    if not outside and is_loopback(host) and flags.rank != 0:
        raise ValueError(
            f'--master {flags.master}: other nodes cannot reach a loopback address ({_format_addresses(addresses)})'
        )
    if not outside:
        own = own or outward_address(addresses)
        return own, own
    if (here := next((address for address in outside if address in addresses), None)) is not None:
        return here, own or here
    # otherwise the first address of the master to which this node has a route
    troubles = []
    for master in outside:
        try:
            return master, own or local_address_to(master)
        except ValueError as error:
            troubles.append(str(error))
    raise ValueError(f'--master {flags.master}: {"; ".join(troubles)}')


def _format_addresses(addresses: Addresses) -> str:
    return ', '.join(f'{address} ({interface})' for address, interface in addresses.items()) or 'no address at all'
