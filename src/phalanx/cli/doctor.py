"""`phalanx doctor`: the checks of a launch, without the launch."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from phalanx.launch import preflight
from phalanx.launch.cluster import Cluster, local_addresses
from phalanx.launch.environment import detect
from phalanx.launch.flags import Flags
from phalanx.launch.members import NodeInfo
from phalanx.launch.names import START_PORT
from phalanx.launch.options import doctor_parser
from phalanx.launch.ports import RendezvousError, listen
from phalanx.launch.preflight import Finding, Link
from phalanx.launch.rendezvous import Rendezvous, RendezvousLostError, get_token
from phalanx.launch.start import Start, apply_start

SHOWN = (  # node, software, free space
    *('address', 'host', 'interface', 'ranks', 'devices'),
    *('phalanx', 'code', 'torch', 'cuda', 'python'),
    *('disk', 'shared_memory'),
)


def command(words: Sequence[str]) -> int:
    """Exit status: 0 if a run could start, 1 if a check failed, 2 for a wrong request."""
    given = doctor_parser().parse_args(words)
    try:
        # the same steps as a launch, up to the point where ranks would start
        start = detect(os.environ, os.getppid())
        flags = Flags.of(given, start=start)
        apply_start(flags.placed(start))
        patience = flags.join_timeout if start.per == 'node' else 0
        cluster, warnings = Cluster.from_flags(flags, torch.cuda.device_count(), patience=patience)
        infos, findings, link = (
            check_together(cluster, flags) if cluster and cluster.rendezvous else check_alone(cluster, flags)
        )
    except ValueError as error:
        print(f'phalanx doctor: {error}', file=sys.stderr)
        return 2
    except (RendezvousError, RendezvousLostError) as error:
        print(error, file=sys.stderr)
        return 1
    # a wrong request has ended above; only failed checks make the status 1
    findings = [*(Finding('warning', text) for text in warnings), *findings]
    ok = not any(finding.level == 'error' for finding in findings)
    if given.json:
        found = {
            'ok': ok,
            'started': _start_facts(start),
            'nodes': infos,
            'findings': [vars(finding) for finding in findings],
            'link': link and vars(link),
        }
        print(json.dumps(found))
    else:
        reason = f' ({", ".join(start.variables)})' if start.variables else ''
        print(f'{str(start) or "started by hand"}{reason}\n')
        print_nodes(infos, findings, link)
    return 0 if ok else 1


def _start_facts(start: Start) -> dict[str, object]:
    settings = {name: list(setting) for name, setting in start.settings.items()}
    return {'by': start.by, 'per': start.per, 'count': start.count, 'variables': list(start.variables), 'settings': settings}


def check_alone(cluster: Cluster | None, flags: Flags) -> tuple[list[NodeInfo], list[Finding], Link | None]:
    """Facts and findings of this node."""
    cluster = cluster or Cluster(max(1, torch.cuda.device_count()))
    addresses = local_addresses()
    outside = [address for address, interface in addresses.items() if interface != 'lo' and ':' not in address]
    info = {**preflight.node_facts(cluster), 'address': ', '.join(outside) or '127.0.0.1', 'disk': preflight.free_disk(Path())}
    findings = preflight.compare_facts([info])
    port = flags.start_port or START_PORT
    try:
        listen(outside[0] if outside else '127.0.0.1', port).close()
    except RendezvousError as error:
        findings.append(Finding('warning', str(error)))
    return [info], findings, None


def check_together(cluster: Cluster, flags: Flags) -> tuple[list[NodeInfo], list[Finding], Link | None]:
    """Facts of all nodes on the first one, elsewhere of this node; findings, and the link between the nodes.

    Raises RendezvousError if they do not meet.
    """
    os.environ.update(cluster.environment())
    rendezvous = Rendezvous(cluster, get_token(os.environ, flags.job_id), flags.join_timeout)
    info = {'pid': os.getpid(), 'wanted_rank': cluster.wanted_rank, 'disk': preflight.free_disk(Path()), 'command': 'doctor'}
    info |= preflight.node_facts(cluster)
    members = rendezvous.join(info)
    findings, link = preflight.examine(rendezvous, members)
    rendezvous.leave(members)
    infos = [of_node for _, of_node in members.nodes] if cluster.hosts_rendezvous else [{**info, 'address': cluster.address}]
    return infos, findings, link


def print_nodes(infos: Sequence[NodeInfo], findings: Sequence[Finding], link: Link | None) -> None:
    """Print one column per node, then the link and the findings."""
    rows = [[name.replace('_', ' '), *(_format_fact(name, info.get(name)) for info in infos)] for name in SHOWN]
    widths = [max(len(row[column]) for row in rows) for column in range(len(infos) + 1)]
    for row in rows:
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if link is not None:
        print(f'\n{link}')
    print()
    for finding in findings:
        print(finding)
    if not findings:
        print('no problems found\nnext: phalanx new DIR, for your data, or phalanx train RECIPE')


def _format_fact(name: str, value: object) -> str:
    return f'{value:.1f} GiB' if name in ('disk', 'shared_memory') and isinstance(value, float) else str(value)
