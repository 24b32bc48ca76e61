"""Names of nodes as real clusters have them: each node has its own /etc/hosts and /etc/resolv.conf."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from nodes.conftest import SILENT, Node, Started, ip
from running import TINY

TRAIN = ('train', *TINY, 'train.steps=2', 'evaluate.enabled=false', 'report.pictures=0', '--save_dir', 'run')
OVERRIDES: dict[str, Any] = {
    key: yaml.safe_load(value) for key, value in (word.split('=', 1) for word in (*TRAIN[3:-2], 'norm_sync=global'))
}
WITHIN = 'mount --bind hosts /etc/hosts && mount --bind resolv.conf /etc/resolv.conf && exec "$@"'
REFUSES = '127.0.0.9'  # a name server: nothing listens there
PROGRAM = f"""
import json, os
import torch.distributed as dist
import phalanx
os.environ['GLOO_SOCKET_IFNAME'] = os.environ.pop('CARD')  # for this group alone
dist.init_process_group('gloo')
del os.environ['GLOO_SOCKET_IFNAME']
overrides = json.loads({json.dumps(OVERRIDES)!r})
assert phalanx.train('pp_liteseg_digits', save_dir='run', overrides=overrides).step == 2
assert 'GLOO_SOCKET_IFNAME' not in os.environ
dist.barrier()
"""
IPV4 = '10.78.0.1 gpu01\n10.78.0.2 gpu02\n'
IPV6 = 'fd00:78::1 gpu01\nfd00:78::2 gpu02\n'
DEBIAN = ('127.0.1.1 gpu01\n10.78.0.2 gpu02\n', '10.78.0.1 gpu01\n127.0.1.1 gpu02\n')  # each node knows itself as 127.0.1.1


def train(node: Node, hosts: str, *words: str, server: str = REFUSES, **environment: str) -> Started:
    """Start a training on a node that knows `hosts` and asks `server` for other names."""
    return start(node, hosts, '-m', 'phalanx', *TRAIN, *words, server=server, **environment)


def start(node: Node, hosts: str, *words: str, server: str = REFUSES, **environment: str) -> Started:
    (node.folder / 'hosts').write_text(f'127.0.0.1 localhost\n{hosts}')
    (node.folder / 'resolv.conf').write_text(f'nameserver {server}\n')
    return node.start('unshare', '--mount', 'sh', '-c', WITHIN, 'sh', sys.executable, *words, **environment)


def rank(number: int, master: str) -> dict[str, str]:
    """Variables of one of two ranks on two nodes, as torchrun sets them."""
    local = {'LOCAL_RANK': '0', 'LOCAL_WORLD_SIZE': '1'}
    return local | {'RANK': str(number), 'WORLD_SIZE': '2', 'MASTER_ADDR': master, 'MASTER_PORT': '6300'}


def pod(number: int, master: str) -> dict[str, str]:
    """Variables of one of two pods of a TrainJob."""
    values = {'NNODES': '2', 'NPROC_PER_NODE': '1', 'NODE_RANK': str(number), 'MASTER_ADDR': master, 'MASTER_PORT': '6300'}
    return {f'PET_{name}': value for name, value in values.items()}


@pytest.mark.long
def test_a_silent_name_server_and_debians_own_name_keep_no_run_from_starting(nodes: list[Node]) -> None:
    pair = nodes[:2]
    for node in pair:
        ip('-n', node.namespace, 'route', 'add', 'default', 'via', nodes[2].address)
    started = [train(node, hosts, '--ips', 'gpu01,gpu02', server=SILENT) for node, hosts in zip(pair, DEBIAN, strict=True)]
    assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output
    assert 'no name server answers a lookup of 10.78.0.1' in started[0].output
    assert '10.78.0.1 (eth1) is node 1 of 2' in started[0].output
    assert '10.78.0.2 (eth2) is node 2 of 2' in started[1].output
    started = [train(node, DEBIAN[i], server=SILENT, **rank(i, 'gpu01')) for i, node in enumerate(pair)]
    assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output
    # the same name server, for a name that nobody knows
    started = [train(pair[0], IPV4, '--ips', '10.78.0.1,gpu03', server=SILENT)]
    assert started[0].end() == 2
    assert 'gpu03: this node cannot resolve the name (no name server gave an answer; see /etc/resolv.conf' in started[0].output


@pytest.mark.long
def test_a_name_with_another_family_on_each_node_is_shown_on_both(nodes: list[Node]) -> None:
    pair = nodes[:2]
    for number, node in enumerate(pair, 1):
        ip('-n', node.namespace, 'addr', 'add', f'fd00:78::{number}/64', 'dev', node.card, 'nodad')
    cases = (
        (('--ips', 'gpu01,gpu02'), (IPV4, IPV6), '10.78.0.1 there, but to fd00:78::1 on fd00:78::2'),
        (('--nnodes', '2', '--master', 'gpu01:6170'), (IPV6, IPV4), 'fd00:78::1 there, but to 10.78.0.1 on 10.78.0.2'),
    )
    for words, hosts, message in cases:
        started = [train(node, known, *words) for node, known in zip(pair, hosts, strict=True)]
        assert [one.end() for one in started] == [2, 2]
        for one in started:
            assert f'the name of the first node resolves to {message}: give its address' in one.output
    # ranks of other launchers meet at any family
    started = [train(node, (IPV4, IPV6)[i], **rank(i, 'gpu01')) for i, node in enumerate(pair)]
    assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output


@pytest.mark.long
@pytest.mark.parametrize('contract', [pod, rank])
def test_a_name_that_appears_late_is_waited_for(nodes: list[Node], contract: Callable[[int, str], dict[str, str]]) -> None:
    pair = nodes[:2]
    started = [train(node, '', **contract(number, 'pod-0.job')) for number, node in enumerate(pair)]
    started[0].until_said('pod-0.job: the name has no address yet')
    for node in pair:
        with (node.folder / 'hosts').open('a') as file:
            file.write('10.78.0.1 pod-0.job\n')
    assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output


@pytest.mark.long
@pytest.mark.parametrize('contract', [pod, rank])
def test_a_name_that_never_appears_is_named_after_the_time_to_join(
    nodes: list[Node], contract: Callable[[int, str], dict[str, str]]
) -> None:
    started = train(nodes[0], '', '--join_timeout', '3', **contract(0, 'pod-0.job'))
    assert started.end() == 2
    assert 'pod-0.job: this node cannot resolve the name' in started.output
    assert 'gave up after 3 s' in started.output


@pytest.mark.long
def test_a_call_inside_a_group_over_two_nodes_uses_the_card_between_them(nodes: list[Node]) -> None:
    """The name of the host is in no list, so that gloo, left alone, takes a loopback address for the groups that are added."""
    started = [start(node, DEBIAN[i], '-c', PROGRAM, CARD=node.card, **rank(i, 'gpu01')) for i, node in enumerate(nodes[:2])]
    assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output


def test_a_script_of_ranks_that_another_launcher_starts_uses_the_card_between_the_nodes(nodes: list[Node]) -> None:
    script = 'import torch.distributed as d\nd.init_process_group("gloo")\nd.barrier()\nd.destroy_process_group()\n'
    for node in nodes[:2]:
        (node.folder / 'script.py').write_text(script)
    words = ('-m', 'phalanx', 'launch', 'script.py')
    started = [start(node, DEBIAN[i], *words, **rank(i, 'gpu01')) for i, node in enumerate(nodes[:2])]
    assert [one.end() for one in started] == [0, 0], started[0].output + started[1].output
