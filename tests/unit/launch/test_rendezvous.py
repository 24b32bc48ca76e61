"""Rendezvous of nodes. Here they are threads with a loopback address each; real ones meet in tests/nodes."""

from __future__ import annotations

import errno
import gc
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from phalanx.launch import launcher, preflight, watchdog
from phalanx.launch import rendezvous as room
from phalanx.launch.agent import Attempt, Failure
from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import Flags
from phalanx.launch.members import Members, NodeInfo, choose_neighbours
from phalanx.launch.ports import RendezvousError, listen, probe
from phalanx.launch.rendezvous import Rendezvous, RendezvousLostError
from phalanx.launch.watchdog import Watchdog

Seat = Callable[..., Rendezvous]
ADDRESSES = ('127.0.0.1', '127.0.0.2', '127.0.0.3')


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(('127.0.0.1', 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def seat() -> Seat:
    """A seat for the node of an address at a rendezvous of `nodes`; the first of them holds it and comes first."""
    port = free_port()
    taken = []  # a rendezvous ends with the life of its first seat

    def sit(address: str, nodes: tuple[str, ...] = ADDRESSES) -> Rendezvous:
        count = len(nodes)
        cluster = Cluster(1, nodes=nodes, min_nodes=count, max_nodes=count, address=address, rendezvous=(nodes[0], port))
        taken.append(Rendezvous(cluster, 'token', 2, heartbeat_timeout=5))
        return taken[-1]

    return sit


def joined(seats: list[Rendezvous]) -> list[Members]:
    """Members as each node knows them."""
    with ThreadPoolExecutor(len(seats)) as pool:
        return list(pool.map(lambda one: one.join({'pid': 7}), seats))


def test_nodes_are_ordered_by_the_list_and_not_by_their_arrival(seat: Seat) -> None:
    first, third, second = (seat(address) for address in ('127.0.0.1', '127.0.0.3', '127.0.0.2'))
    members = joined([third, first, second])
    assert [info['address'] for _, info in members[1].nodes] == list(ADDRESSES)
    assert [each.position for each in members] == [2, 0, 1]


def test_other_nodes_than_the_first_know_the_first_and_their_neighbours_alone(seat: Seat) -> None:
    """So the bytes that each reads do not grow with the number of nodes."""
    _, second, third = joined([seat(address) for address in ADDRESSES])
    assert second.numbers == third.numbers == [0]
    assert (second.count, third.neighbours) == (3, ('127.0.0.1', '127.0.0.2'))


def test_nodes_test_their_connections_to_eight_others_at_most() -> None:
    assert choose_neighbours(1, 4) == [2, 3, 0]
    assert choose_neighbours(0, 9) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert choose_neighbours(1000, 1024) == [1001, 1002, 1004, 1008, 1016, 8, 40, 104]
    assert choose_neighbours(9, 10) == [0, 1, 3, 7]


def test_a_node_with_another_list_is_shown_both(seat: Seat) -> None:
    seat('127.0.0.1', ADDRESSES[:2])
    with pytest.raises(RendezvousError) as caught:
        seat('127.0.0.3')
    assert (
        'not the same on all nodes: the list of nodes '
        '(127.0.0.1: 127.0.0.1, 127.0.0.2; 127.0.0.3: 127.0.0.1, 127.0.0.2, 127.0.0.3): give the same list'
    ) in str(caught.value)


def test_a_waiting_node_reports_another_node_that_acts_as_the_first(seat: Seat) -> None:
    """The second node was given the list the other way round, so it listens for the first one."""
    first = seat('127.0.0.1')
    with listen('127.0.0.2', first.port), pytest.raises(RendezvousError, match='have not joined') as caught:
        first.join({})
    assert f'something listens at port {first.port} of 127.0.0.2: does its list of nodes start with itself?' in str(
        caught.value
    )


def test_of_two_runs_of_one_node_the_second_is_shown_the_first(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, 'REJOIN_TIMEOUT', 0.3)
    joined([seat(address) for address in ADDRESSES])
    with pytest.raises(RendezvousError, match='another --start_port for a second run') as caught:
        seat('127.0.0.2').join({'pid': 8})
    assert '127.0.0.2 takes part in this run already (process 7 there)' in str(caught.value)


def test_the_first_node_to_decide_gives_the_reason_for_all(seat: Seat) -> None:
    seats = [seat(address) for address in ADDRESSES]
    members, *_ = joined(seats)
    assert seats[1].put_if_unset(members.verdict, 'a rank failed') == 'a rank failed'
    assert [one.put_if_unset(members.verdict, 'another') for one in seats] == ['a rank failed'] * 3


def test_a_node_without_heartbeats_is_lost_but_not_one_whose_ranks_have_ended(
    seat: Seat, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second node says that it has ended, the third says nothing; the first watches."""
    monkeypatch.setattr(watchdog, 'STALL', 10)
    seats = [seat(address) for address in ADDRESSES]
    members, *_ = joined(seats)
    watching = Watchdog(tmp_path, range(1), 60, seats[0], members)
    seats[1].put(members.key('ended', 1), 0)
    for _ in range(2):
        assert watching.verdict is None
        watching.last -= 6  # this long ago, as it seems
        watching.exchange({})
    assert watching.verdict is not None
    assert watching.verdict['cause'].startswith('127.0.0.3 is lost')
    assert seats[1].get(members.verdict) == watching.verdict


def test_requests_of_heartbeats_and_their_bytes_grow_with_the_nodes(seat: Seat, tmp_path: Path) -> None:
    """Of three nodes, the others ask the first for its heartbeat and no more."""
    seats = [seat(address) for address in ADDRESSES]
    members = joined(seats)
    asked: list[tuple[int, int]] = []  # number of the node, and keys of a request

    def count(node: Rendezvous) -> None:
        get_all = node.get_all
        node.get_all = lambda keys: asked.append((node.number, len(keys))) or get_all(keys)  # type: ignore[func-returns-value, method-assign]

    for node, known in zip(seats, members, strict=True):
        count(node)
        Watchdog(tmp_path, range(1), 60, node, known).exchange({})
    assert asked == [(0, 1 + 2 * 3), (1, 1 + 2), (2, 1 + 2)]


def test_a_node_lost_after_the_ranks_of_the_first_have_ended_ends_those_of_the_third(seat: Seat, tmp_path: Path) -> None:
    """The second is silent and the third goes on, until it reads the verdict."""
    seats = [seat(address) for address in ADDRESSES]
    members = joined(seats)
    run = launcher._Launch(
        ['true'], seats[0].cluster, Flags(heartbeat_timeout=0.5), Attempt(1, tmp_path, tmp_path, False, False)
    )
    first, third = (Watchdog(tmp_path, range(1), 60, seats[number], members[number]) for number in (0, 2))
    seats[0].heartbeat_timeout = 0.5
    seats[0].put(members[0].key('ended', 0), 0)
    with ThreadPoolExecutor(1) as pool:
        missing = pool.submit(run.await_ends, first)
        while third.verdict is None:
            third.exchange({})
        seats[2].put(members[2].key('ended', 2), 1)
        assert missing.result() == [1]
    assert third.verdict['cause'].startswith('127.0.0.2 is lost')


def test_all_nodes_learn_the_verdict_and_the_first_failure_from_the_first(seat: Seat, tmp_path: Path) -> None:
    seats = [seat(address) for address in ADDRESSES]
    members = joined(seats)
    failure = Failure(1, 'out of memory', 7.0, 'log', ['Traceback'], is_consequence=False, address='127.0.0.2')
    seats[1].put(members[1].key('failure', 1), vars(failure))
    seats[1].put_if_unset(members[1].verdict, {'kind': 'failed'})
    for node, known in zip(seats, members, strict=True):
        node.put(known.key('ended', node.number), 1)
    run = launcher._Launch(['true'], seats[0].cluster, Flags(heartbeat_timeout=9), Attempt(1, tmp_path, tmp_path, False, False))
    dogs = [Watchdog(tmp_path, range(1), 60, node, known) for node, known in zip(seats, members, strict=True)]
    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(run.conclude, seats, members, dogs)) == [([], {'kind': 'failed'}, failure)] * 3


def test_time_that_this_launcher_was_stopped_does_not_count_as_silence_of_others(seat: Seat, tmp_path: Path) -> None:
    """Both were stopped, and this one goes on first: it reads the old heartbeat of the other, an hour later."""
    seats = [seat(address) for address in ADDRESSES[:2]]
    members = Members(0, tuple((number, {'address': address}) for number, address in enumerate(ADDRESSES[:2])), 0, 0, 2)
    for key in (members.verdict, *members.keys('heartbeat'), *members.keys('ended')):
        seats[0].put(key, None)
    watching = Watchdog(tmp_path, range(1), 60, seats[0], members)
    for _ in range(3):
        watching.exchange({})
        watching.last -= 3600
    assert watching.verdict is None


def test_the_watchdog_survives_an_error_of_its_own_and_reports_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of heartbeats that cannot be read, here a folder of that name."""
    (tmp_path / 'beat.0').mkdir()
    said: list[str] = []
    monkeypatch.setattr(watchdog, 'print_line', said.append)
    watching = Watchdog(tmp_path, range(1), 60)
    watching.start()
    while not said:
        watching.join(0.05)
        assert watching.is_alive()
    watching.over.set()
    watching.join()
    assert said[0].startswith('warning: the watchdog of this node met an error and goes on: IsADirectoryError')


def test_a_node_that_is_gone_during_the_comparison_is_named(seat: Seat, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third joins, and does nothing more."""
    monkeypatch.setattr(preflight, 'COMPARE_TIMEOUT', 0.5)
    seats = [seat(address) for address in ADDRESSES]
    members = joined(seats)
    with ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(preflight.compare_nodes, *pair) for pair in zip(seats[:2], members[:2], strict=True)]:
            with pytest.raises(RendezvousError, match=r'^127\.0\.0\.3 did not answer within'):
                found.result()


def test_a_node_whose_port_is_taken_is_named_on_all_with_the_holder(seat: Seat) -> None:
    seats = [seat(address) for address in ADDRESSES[:2]]
    members = Members(0, tuple((number, {'address': address}) for number, address in enumerate(ADDRESSES[:2])), 0, 0, 2)
    seats[1].cluster = Cluster(1, nodes=ADDRESSES[:2], address='127.0.0.2', rendezvous=('127.0.0.1', seats[0].port))
    with listen('127.0.0.2', seats[0].port), ThreadPoolExecutor(2) as pool:
        for found in [pool.submit(preflight.compare_nodes, one, members) for one in seats]:
            with pytest.raises(RendezvousError, match=rf'127\.0\.0\.2: port {seats[0].port} is in use'):
                found.result()


def test_a_connection_that_fails_is_explained_in_the_words_of_the_system() -> None:
    """203.0.113.1, an address of documentation, is no node's own."""
    _, error = probe('203.0.113.1', '127.0.0.1', 9)
    assert error == os.strerror(errno.EADDRNOTAVAIL)


Elastic = Callable[..., Rendezvous]


@pytest.fixture
def elastic() -> Elastic:
    """Seat at a rendezvous of one to three nodes that nobody has listed; the first node comes first."""
    port = free_port()
    taken = []

    def sit(address: str, token: str = 'token', **more: int) -> Rendezvous:
        cluster = Cluster(1, min_nodes=1, max_nodes=3, address=address, rendezvous=(ADDRESSES[0], port), **more)
        taken.append(Rendezvous(cluster, token, 30, heartbeat_timeout=5))
        return taken[-1]

    return sit


def test_an_elastic_run_starts_with_the_nodes_that_are_there(elastic: Elastic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, 'QUIET', 0)
    first = elastic('127.0.0.1')
    assert [info['address'] for _, info in first.join({}).nodes] == ['127.0.0.1']


def test_nodes_are_ordered_by_the_rank_they_ask_for_behind_the_first(elastic: Elastic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, 'QUIET', 600)  # until all of them are there
    seats = [elastic(address) for address in ADDRESSES]
    with ThreadPoolExecutor(3) as pool:
        members = list(pool.map(lambda seat, rank: seat.join({'wanted_rank': rank}), seats, (None, 2, 1)))
    assert [info['address'] for _, info in members[0].nodes] == ['127.0.0.1', '127.0.0.3', '127.0.0.2']


def test_a_node_with_another_token_is_not_admitted(elastic: Elastic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, 'QUIET', 0)
    first, stranger = elastic('127.0.0.1'), elastic('127.0.0.2', 'another')
    first.put('attempt', 0)
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(stranger.join, {})
        while first.get(f'0/info/{stranger.number}') is None:
            time.sleep(0.01)
        members = first.join({})
        with pytest.raises(RendezvousError, match='has not admitted this node: it uses another --job_id or PHALANX_TOKEN'):
            refused.result()
    assert members.numbers == [0]


def test_of_nodes_that_come_during_a_run_those_that_fit_take_part_in_the_next_attempt(
    elastic: Elastic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, 'QUIET', 0)
    first = elastic('127.0.0.1')
    members = first.join({})
    later, misfit = elastic('127.0.0.2'), elastic('127.0.0.3')
    with ThreadPoolExecutor(2) as pool:
        admitted, refused = pool.submit(later.join, {'torch': '2'}), pool.submit(misfit.join, {'torch': '1'})
        while None in (first.get(f'waiting/{later.number}'), first.get(f'waiting/{misfit.number}')):
            time.sleep(0.01)

        def find_misfits(info: NodeInfo) -> str:
            return '' if info['torch'] == '2' else 'torch 1'

        assert first.find_newcomers(members, find_misfits) == [later.number]
        with pytest.raises(RendezvousError, match='has refused this node: torch 1'):
            refused.result()
        monkeypatch.setattr(room, 'QUIET', 600)  # until all of them are there
        first.cluster = replace(first.cluster, max_nodes=2)
        assert first.join({}).numbers == [0, later.number]
        assert admitted.result().position == 1


def test_a_port_in_use_is_reported_with_its_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system names the parent of this process here; one's own sockets are not meant."""
    with listen('127.0.0.1', 0) as held:
        port = held.getsockname()[1]
        used = SimpleNamespace(laddr=SimpleNamespace(port=port), status='LISTEN', pid=os.getppid())
        monkeypatch.setattr(psutil, 'net_connections', lambda kind: [used])
        command = ' '.join(psutil.Process(os.getppid()).cmdline())[:120]
        with pytest.raises(RendezvousError) as caught:
            listen('127.0.0.1', port)
    assert str(caught.value) == (
        f'127.0.0.1: port {port} is in use by process {os.getppid()} ({command}); '
        'end that process, or give another --start_port on all nodes'
    )


def test_a_service_that_says_nothing_is_reported_as_no_rendezvous(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's client of a store would wait for it forever."""
    monkeypatch.setattr(room, 'FIRST_ANSWER', 0.5)
    with listen('127.0.0.1', 0) as service, pytest.raises(RendezvousError) as caught:
        room._connect('127.0.0.1', service.getsockname()[1], timedelta(seconds=1))
    assert 'is not a Phalanx rendezvous (it has not answered for 0.5 s); use another --start_port' in str(caught.value)
    for request in [thread for thread in threading.enumerate() if thread.name == 'request']:
        request.join()  # an answer while the interpreter ends would abort it


def test_the_first_node_that_is_gone_is_lost(seat: Seat) -> None:
    first, second = seat('127.0.0.1', ADDRESSES[:2]), seat('127.0.0.2', ADDRESSES[:2])
    first.store = first.server = None  # the end of its process closes the store
    gc.collect()
    with pytest.raises(RendezvousLostError, match=r'the first node, 127\.0\.0\.1, is lost'):
        second.get('attempt')
