"""Names of nodes, as resolvers of clusters answer: the answers here are those that `getaddrinfo` would give."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from phalanx.launch import names
from phalanx.launch.cluster import Cluster, find_interface, local_addresses
from phalanx.launch.flags import Flags

OWN = {'127.0.0.1': 'lo', '10.0.0.1': 'eth0', 'fd00::1': 'eth0'}


class Resolver:
    """Answers for names; a name may have no answer the first times that it is asked for."""

    def __init__(self, answers: dict[str, list[str]], silent: int = 0) -> None:
        self.answers, self.silent = answers, silent

    def __call__(self, name: str, port: object, type: object) -> list[tuple[object, object, object, str, tuple[str, int]]]:
        self.silent -= 1
        if self.silent >= 0 or name not in self.answers:
            raise socket.gaierror(socket.EAI_NONAME, 'Name or service not known')
        return [(None, None, None, '', (address, 0)) for address in self.answers[name]]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    """The way to any other node leaves by 10.0.0.1."""
    made = Resolver({'10.0.0.2': ['10.0.0.2']})
    monkeypatch.setattr(names.socket, 'getaddrinfo', made)
    for module in ('names', 'cluster'):
        monkeypatch.setattr(
            f'phalanx.launch.{module}.local_address_to', lambda address: 'fd00::1' if ':' in address else '10.0.0.1'
        )
    return made


@pytest.mark.parametrize(
    ('answers', 'chosen'),
    [
        ({'gpu01': ['127.0.1.1'], 'gpu02': ['10.0.0.2']}, ['10.0.0.1', '10.0.0.2']),  # Debian's own name
        ({'gpu01': ['127.0.1.1', '10.0.0.1'], 'gpu02': ['10.0.0.2']}, ['10.0.0.1', '10.0.0.2']),
        ({'gpu01': ['::1'], 'gpu02': ['fd00::2']}, ['fd00::1', 'fd00::2']),
        ({'gpu01': ['fd00::1', '10.0.0.1'], 'gpu02': ['10.0.0.2']}, ['10.0.0.1', '10.0.0.2']),
        ({'gpu01': ['10.0.0.1', 'fd00::1'], 'gpu02': ['fd00::2']}, ['fd00::1', 'fd00::2']),
        ({'gpu01': ['fd00::1'], 'gpu02': ['fd00::2', '10.0.0.2']}, ['fd00::1', 'fd00::2']),
    ],
)
def test_nodes_get_addresses_of_one_family_that_others_reach(
    resolver: Resolver, answers: dict[str, list[str]], chosen: list[str]
) -> None:
    resolver.answers |= answers
    assert names.resolve_all(['gpu01', 'gpu02']) == chosen


def test_nodes_without_a_common_family_are_reported(resolver: Resolver) -> None:
    resolver.answers |= {'gpu01': ['10.0.0.1'], 'gpu02': ['fd00::2']}
    with pytest.raises(ValueError, match=r'gpu01: 10\.0\.0\.1; gpu02: fd00::2'):
        names.resolve_all(['gpu01', 'gpu02'])


def test_a_loopback_address_in_a_list_is_not_replaced(resolver: Resolver) -> None:
    resolver.answers |= {'localhost': ['127.0.0.1']}
    assert names.resolve_all(['localhost', '10.0.0.2']) == ['127.0.0.1', '10.0.0.2']


def test_a_name_is_waited_for(resolver: Resolver, capsys: pytest.CaptureFixture[str]) -> None:
    resolver.answers['pod-0'] = ['10.0.0.2']
    resolver.silent = 1
    assert names.resolve('pod-0', patience=900) == ['10.0.0.2']
    assert 'pod-0: the name has no address yet (Name or service not known); still trying' in capsys.readouterr().err


def test_a_name_that_never_gets_an_address_is_given_up(resolver: Resolver) -> None:
    with pytest.raises(ValueError, match=r'pod-0: this node cannot resolve the name .* gave up after 0 s'):
        names.resolve('pod-0', patience=0.01)


def met(flags: Flags) -> Cluster:
    made, _ = Cluster.from_flags(flags, 0, OWN)
    assert made is not None
    return made


def test_a_master_known_here_by_a_loopback_address_is_this_node(resolver: Resolver) -> None:
    resolver.answers |= {'gpu01': ['127.0.1.1'], 'localhost': ['127.0.0.1']}
    for master in ('gpu01', 'localhost'):  # `localhost` of rank 0: AWS Batch does not tell the main node its address
        made = met(Flags(nnodes='2', master=f'{master}:7000', rank=0))
        assert (made.rendezvous, made.interface, made.hosts_rendezvous) == (('10.0.0.1', 7000), 'eth0', True)


def test_a_master_with_addresses_of_both_families_is_reached_by_one_with_a_route(
    resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def towards(address: str) -> str:
        if '.' in address:
            raise ValueError(f'{address}: no route from this node')
        return 'fd00::1'

    monkeypatch.setattr('phalanx.launch.cluster.local_address_to', towards)
    resolver.answers['gpu02'] = ['10.0.0.2', 'fd00::2']
    made = met(Flags(nnodes='2', master='gpu02:7000', rank=1))
    assert (made.rendezvous, made.address) == (('fd00::2', 7000), 'fd00::1')


def test_the_interface_to_this_node_is_the_card_of_its_address() -> None:
    own = local_addresses()
    cards = {address: card for address, card in own.items() if not names.is_loopback(address)}
    if not cards:
        pytest.skip('this node has only loopback addresses')
    for address, card in cards.items():
        assert find_interface([address]) == card
    assert find_interface(['127.0.0.1']) in own.values()  # that of the default route


def test_a_name_without_an_address_has_no_interface() -> None:
    with pytest.raises(ValueError, match=r'nowhere\.invalid'):
        find_interface(['nowhere.invalid'])


def test_a_name_is_the_same_node_as_any_other_name_of_its_addresses(resolver: Resolver) -> None:
    resolver.answers |= {'gpu01': ['10.0.0.1'], 'gpu01.site': ['10.0.0.1', 'fd00::1'], 'gpu02': ['10.0.0.2']}
    same = {other: names.is_same_node('gpu01', other) for other in ('GPU01', 'gpu01.site', 'gpu02', 'unknown')}
    assert same == {'GPU01': True, 'gpu01.site': True, 'gpu02': False, 'unknown': False}


def test_a_silent_name_server_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*question: object, **more: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, 'Temporary failure in name resolution')

    monkeypatch.setattr(names.socket, 'getaddrinfo', fail)
    with pytest.raises(ValueError, match=r'gpu01: .*no name server gave an answer; see /etc/resolv\.conf, or add the name'):
        names.resolve('gpu01')


def test_lookups_time_out_sooner_where_no_name_server_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    monkeypatch.setattr(names, 'LOOKUP', 0.1)
    monkeypatch.setattr(names.socket, 'getnameinfo', lambda address, flags: answered.wait())
    monkeypatch.delenv('RES_OPTIONS', raising=False)
    try:
        assert names.shorten_silent_lookups('10.0.0.2')
        assert os.environ['RES_OPTIONS'] == 'timeout:1 attempts:1'
    finally:
        answered.set()


def test_a_node_without_a_default_route_is_reached_at_its_own_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(address: str) -> str:
        raise ValueError('no route')

    monkeypatch.setattr(names, 'local_address_to', fail)
    assert names.outward_address(OWN) == '10.0.0.1'
    with pytest.raises(ValueError, match='only loopback addresses: give --host'):
        names.outward_address({'127.0.0.1': 'lo'})
