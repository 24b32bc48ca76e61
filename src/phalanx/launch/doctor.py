"""`phalanx doctor`: what a start would check, without the start."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from phalanx.config.arguments import Parser, add_json
from phalanx.launch import preflight
from phalanx.launch.cluster import Cluster, local_addresses
from phalanx.launch.flags import START_PORT, Flags, add_flags
from phalanx.launch.preflight import Finding, Link
from phalanx.launch.rendezvous import Card, Meeting, MeetingError, MeetingLostError, listen, say, token_of

SHOWN = (
    'address',
    'host',
    'interface',
    'ranks',
    'devices',
    'phalanx',
    'code',
    'torch',
    'cuda',
    'python',
    'disk',
    'shared_memory',
)


def command(words: Sequence[str]) -> int:
    """0 when a run could start, 1 when something forbids it, 2 for a wrong request."""
    about = 'Checks this machine, and with --ips (the same command on each) whether the machines fit together.'
    parser = Parser('phalanx doctor', about)
    add_flags(parser)
    add_json(parser)
    given = parser.parse_args(words)
    try:
        flags = Flags.of(given)
        cluster, warnings = Cluster.from_flags(flags, torch.cuda.device_count())
        cards, findings, link = together(cluster, flags) if cluster and cluster.meeting else alone(cluster, flags)
    except ValueError as error:
        print(f'phalanx doctor: {error}', file=sys.stderr)
        return 2
    except (MeetingError, MeetingLostError) as error:
        print(error, file=sys.stderr)
        return 1
    findings = [*(Finding('warning', text) for text in warnings), *findings]
    well = not any(finding.level == 'error' for finding in findings)
    if given.json:
        told = {
            'ok': well,
            'machines': cards,
            'findings': [vars(finding) for finding in findings],
            'link': vars(link) if link else None,
        }
        print(json.dumps(told))
    else:
        show(cards, findings, link)
    return 0 if well else 1


def alone(cluster: Cluster | None, flags: Flags) -> tuple[list[Card], list[Finding], Link | None]:
    """This machine and what it lacks."""
    cluster = cluster or Cluster(max(1, torch.cuda.device_count()))
    addresses = local_addresses()
    outside = [address for address, card in addresses.items() if card != 'lo' and ':' not in address]
    card = {
        **preflight.machine_facts(cluster),
        'address': ', '.join(outside) or '127.0.0.1',
        'disk': preflight.disk_free(Path()),
    }
    findings = preflight.compare([card])
    port = flags.start_port or START_PORT
    try:
        listen(outside[0] if outside else '127.0.0.1', port).close()
    except MeetingError as error:
        findings.append(Finding('warning', str(error)))
    return [card], findings, None


def together(cluster: Cluster, flags: Flags) -> tuple[list[Card], list[Finding], Link | None]:
    """All machines, what differs, and the way between them. Raises MeetingError when they do not come together."""
    os.environ.update(cluster.environment())
    meeting = Meeting(cluster, token_of(os.environ, flags.job_id), flags.join_timeout, say)
    card = {'pid': os.getpid(), 'wish': cluster.wish, 'disk': preflight.disk_free(Path()), 'command': 'doctor'}
    members = meeting.join({**card, **preflight.machine_facts(cluster)})
    findings, link = preflight.examine(meeting, members)
    meeting.leave(members)
    return [card for _, card in members.cards], findings, link


def show(cards: Sequence[Card], findings: Sequence[Finding], link: Link | None) -> None:
    """One column a machine, then what was found."""
    rows = [[name.replace('_', ' '), *(_told(name, card.get(name)) for card in cards)] for name in SHOWN]
    widths = [max(len(row[column]) for row in rows) for column in range(len(cards) + 1)]
    for row in rows:
        print('  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    if link is not None:
        print(f'\n{link}')
    print()
    for finding in findings:
        print(finding)
    if not findings:
        print('nothing is wrong')


def _told(name: str, value: object) -> str:
    return f'{value:.1f} GiB' if name in ('disk', 'shared_memory') and isinstance(value, float) else str(value)
