"""Names of nodes as real clusters have them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from nodes.conftest import Node, Started, ip
from running import TINY, clean_environment

TRAIN = ('train', *TINY, 'train.steps=2', 'evaluate.enabled=false', 'report.pictures=0', '--save_dir', 'run')
WITHIN = 'mount --bind hosts /etc/hosts && mount --bind resolv.conf /etc/resolv.conf && exec "$@"'


@pytest.mark.long
def test_a_silent_name_server_and_debians_own_name_keep_no_run_from_starting(nodes: list[Node]) -> None:
    """Each node knows itself as 127.0.1.1, and questions to the name server go to a node that drops them."""
    started = []
    for number, node in enumerate(nodes[:2], 1):
        ip('-n', node.namespace, 'route', 'add', 'default', 'via', nodes[2].address)
        other = 3 - number
        (node.folder / 'hosts').write_text(f'127.0.0.1 localhost\n127.0.1.1 gpu0{number}\n10.78.0.{other} gpu0{other}\n')
        (node.folder / 'resolv.conf').write_text('nameserver 192.0.2.53\n')
        process = subprocess.Popen(
            [
                *('nsenter', f'--net=/var/run/netns/{node.namespace}', 'unshare', '--mount', 'sh', '-c', WITHIN, 'sh'),
                *(sys.executable, '-m', 'phalanx', *TRAIN, '--ips', 'gpu01,gpu02'),
            ],
            cwd=node.folder,
            env=clean_environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        node.running.append(process)
        started.append(Started(process))
    assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output
    assert 'no name server answers a lookup of 10.78.0.1' in started[0].output
    assert '10.78.0.1 (eth1) is node 1 of 2' in started[0].output
    assert '10.78.0.2 (eth2) is node 2 of 2' in started[1].output
