"""From the flags of a launch to places, on made-up nodes."""

import argparse
from pathlib import Path

import pytest

from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import Flags, add_flags

HERE = {'127.0.0.1': 'lo', '10.0.0.2': 'eth0', '192.168.7.2': 'ib0', '172.17.0.1': 'docker0'}  # address -> network card


def flags(*words: str, environment: dict[str, str] | None = None) -> Flags:
    parser = argparse.ArgumentParser()
    add_flags(parser)
    return Flags.of(parser.parse_args(words), environment or {})


def cluster(*words: str, available: int = 0) -> Cluster:
    made, _ = Cluster.from_flags(flags(*words), available, HERE)
    assert made is not None
    return made


def refused(*words: str, available: int = 0) -> str:
    with pytest.raises(ValueError) as caught:
        cluster(*words, available=available)
    return str(caught.value)


def test_without_flags_one_process_is_enough() -> None:
    assert Cluster.from_flags(flags(), 8, HERE) == (None, [])


@pytest.mark.parametrize('flag', ['--gpus', '--devices', '--selected_gpus', '--selected-gpus', '--selected_gpu'])
def test_every_name_of_the_devices_means_the_same(flag: str) -> None:
    assert cluster(flag, '0,2', available=4).devices == ('0', '2')


def test_devices_count_within_those_that_are_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('CUDA_VISIBLE_DEVICES', '4,5,6')
    assert cluster('--gpus', '0,2', available=3).devices == ('4', '6')
    assert 'there is no device 3; this process sees 3: 0 to 2' in refused('--gpus', '3', available=3)


def test_missing_devices_become_cpu_ranks_with_a_warning() -> None:
    made, warnings = Cluster.from_flags(flags('--gpus', '0,1'), 0, HERE)
    assert made is not None
    assert made.ranks_per_node == 2
    assert warnings == ['--gpus 0,1: torch sees no CUDA device here; starting 2 ranks on the CPU']


def test_more_ranks_than_cores_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr('phalanx.launch.cluster.count_cores', lambda: 4)
    assert Cluster.from_flags(flags('--nproc_per_node', '4'), 0, HERE)[1] == []
    assert Cluster.from_flags(flags('--nproc_per_node', '8'), 8, HERE)[1] == []
    warning = '--nproc_per_node 5: ranks on the CPU share its cores (4), so expect slow steps'
    assert Cluster.from_flags(flags('--nproc_per_node', '5'), 0, HERE)[1] == [warning]


def test_a_node_finds_its_place_and_card_by_its_own_addresses() -> None:
    made = cluster('--ips', '10.0.0.1,10.0.0.2,10.0.0.3', '--start_port', '7000')
    assert (made.nodes.index(made.address), made.address, made.interface) == (1, '10.0.0.2', 'eth0')
    assert made.rendezvous == ('10.0.0.1', 7000)
    assert not made.hosts_rendezvous
    assert (made.environment()['GLOO_SOCKET_IFNAME'], made.environment()['NCCL_SOCKET_IFNAME']) == ('eth0', '=eth0')


def test_the_first_of_the_list_is_where_they_meet() -> None:
    assert cluster('--ips', '192.168.7.2,192.168.7.3').hosts_rendezvous


def test_one_address_is_a_node_alone() -> None:
    assert cluster('--ips', '10.0.0.2', '--nproc_per_node', '2').rendezvous is None


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (('--ips', '10.0.0.7,10.0.0.8'), '--ips:        10.0.0.7, 10.0.0.8\n  this node: 127.0.0.1 (lo), 10.0.0.2 (eth0)'),
        (('--ips', '127.0.0.1,10.0.0.8'), '127.0.0.1 means "this node" on every node'),
        (('--ips', '10.0.0.2,10.0.0.2'), 'are the same node; name it once'),
        (('--ips', '10.0.0.2,192.168.7.2'), '10.0.0.2 and 192.168.7.2 are both this node'),
        (('--ips', '10.0.0.1,10.0.0.2', '--nnodes', '3'), 'names 2 nodes, --nnodes says 3'),
        (('--ips', 'no-such-name.invalid,10.0.0.2'), 'cannot resolve the name'),
        (('--nnodes', '2'), 'the rendezvous is missing; give --master IP:PORT'),
        (('--nnodes', '4:2', '--master', '10.0.0.2:1'), '--nnodes 4:2: expected a number of nodes such as 2, or MIN:MAX'),
        (('--nnodes', '2', '--master', '10.0.0.2'), 'expected IP:PORT'),
        (('--nnodes', '2', '--master', '127.0.0.1:7000'), 'other nodes cannot reach a loopback address'),
        (('--nnodes', '2', '--master', '10.0.0.2:7000', '--rank', '1'), 'rank 0 is the node of --master'),
        (('--nproc_per_node', '0'), '--nproc_per_node 0: at least 1 process'),
        (('--rank', '-1', '--nnodes', '2', '--master', '10.0.0.2:7000'), '--rank -1: at least 0'),
        (('--max_restart', '-1'), '--max_restart -1: at least 0'),
        (('--join_timeout', '0'), '--join_timeout 0: seconds, above 0 and at most 1e+08'),
        (('--hang_timeout', 'nan'), '--hang_timeout nan: seconds, above 0'),
        (('--hang_timeout', 'inf'), '--hang_timeout inf: seconds, above 0'),
        (('--gpus', '0,0'), 'a device is named twice'),
        (('--gpus', '0,,1'), 'expected numbers separated by commas'),
        (('--ips', '10.0.0.1:6170,10.0.0.2'), "'10.0.0.1:6170' is no name or address; commas separate nodes, --start_port"),
        (('--ips', '10.0.0.1 10.0.0.2'), "'10.0.0.1 10.0.0.2' is no name or address; commas separate nodes"),
        (('--gpus', 'a'), 'expected numbers separated by commas'),
        (('--gpus', '0,1', '--nproc_per_node', '3'), 'names 2 devices, --nproc_per_node asks for 3 processes'),
        (('--ips', '10.0.0.1,10.0.0.2', '--start_port', '70000'), '--start_port 70000: expected a port from 1 to 65535'),
        (('--start_port', '0'), '--start_port 0: expected a port from 1 to 65535'),
        (('--nnodes', '2', '--master', '10.0.0.2:70000'), '--master 10.0.0.2:70000: expected a port from 1 to 65535'),
    ],
)
def test_impossible_flags_are_reported_by_name(words: tuple[str, ...], message: str) -> None:
    assert message in refused(*words)


def test_nodes_may_join_and_leave_between_two_numbers() -> None:
    made = cluster('--nnodes', '2:4', '--master', '10.0.0.2:7000')
    assert (made.min_nodes, made.max_nodes, made.hosts_rendezvous, made.nodes) == (2, 4, True, ())


def test_the_environment_sets_flags_that_are_not_given() -> None:
    environment = {'PADDLE_TRAINERS': '10.0.0.1,10.0.0.2', 'FLAGS_START_PORT': '7001', 'PADDLE_NPROC_PER_NODE': '2'}
    asked = flags(environment=environment)
    assert (asked.ips, asked.start_port, asked.nproc_per_node) == ('10.0.0.1,10.0.0.2', 7001, 2)
    assert flags('--start_port', '7002', environment=environment).start_port == 7002
    with pytest.raises(ValueError, match='FLAGS_START_PORT=x: expected a number'):
        flags(environment={'FLAGS_START_PORT': 'x'})


def test_a_host_file_names_the_nodes(tmp_path: Path) -> None:
    file = tmp_path / 'hosts'
    for text in ('# the lab\n10.0.0.1 slots=8\n\n10.0.0.2\n', '\ufeff10.0.0.1\r\n10.0.0.2\r\n'):  # the second of Windows
        file.write_text(text)
        assert flags('--hostfile', str(file)).ips == '10.0.0.1,10.0.0.2'


def test_a_host_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / 'hosts'
    file.write_bytes('# labor\nnode1\n'.encode('utf-16'))
    with pytest.raises(ValueError, match=f'--hostfile {file}: is not UTF-8 text'):
        flags('--hostfile', str(file))
