"""A run over several nodes: starts, joins, failures and ends. Nodes are network namespaces (root only)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cv2
import numpy as np
import psutil
import pytest

from faults.started import JUMPING
from nodes.conftest import Node, Started
from running import TINY, Command, losses, records

SHORT = ('train.steps=12', 'evaluate.enabled=false', 'report.every=1', 'report.pictures=0')
LONG = ('train.steps=4000', 'evaluate.enabled=false', 'report.every=1', 'checkpoint.every=4', 'report.pictures=0')


def ips(nodes: list[Node]) -> str:
    return ','.join(node.address for node in nodes)


def train(nodes: list[Node], *words: str, extra: tuple[str, ...] = SHORT, **environment: str) -> list[Started]:
    """The same command on each node."""
    command = ('train', *TINY, *extra, '--save_dir', 'run', '--ips', ips(nodes), '--heartbeat_timeout', '6', *words)
    return [node.phalanx(*command, **environment) for node in nodes]


def steps(node: Node) -> int:
    """The steps logged so far in a node's folder."""
    file = node.folder / 'run' / 'metrics.jsonl'
    found = records(node.folder / 'run') if file.is_file() else []
    return int(found[-1]['step']) if found else 0


def rank_on(node: Node) -> int:
    """The process of the one rank on a node; its launcher has no number, and its loader workers are its children."""
    ranks = {pid for pid in node.processes() if 'RANK' in psutil.Process(pid).environ()}
    (rank,) = (pid for pid in ranks if psutil.Process(pid).ppid() not in ranks)
    return rank


def nobody_left(nodes: list[Node], seconds: float = 120) -> bool:
    end = time.monotonic() + seconds
    while any(node.processes() for node in nodes) and time.monotonic() < end:
        time.sleep(0.1)
    return not any(node.processes() for node in nodes)


@pytest.mark.parametrize(('count', 'ranks'), [(2, 2), pytest.param(3, 1, marks=pytest.mark.long)])
def test_nodes_train_as_one_process_does(
    nodes: list[Node], phalanx_here: Command, warm: Path, tmp_path: Path, count: int, ranks: int
) -> None:
    start = (f'train.init_from={warm}', 'optimizer.lr=2.0e-4')
    assert phalanx_here('train', *TINY, *SHORT, *start, '--save_dir', 'alone').returncode == 0
    started = train(nodes[:count], '--nproc_per_node', str(ranks), extra=(*SHORT, *start))
    assert [one.end() for one in started] == [0] * count, started[0].output
    assert losses(nodes[0].folder / 'run') == pytest.approx(losses(tmp_path / 'alone'), rel=1e-5)
    world = range(count * ranks)
    logs = [node.folder / 'run' / 'log' / f'workerlog.{rank}' for rank in world for node in [nodes[rank // ranks]]]
    assert all(log.is_file() for log in logs)
    assert not (nodes[1].folder / 'run' / 'checkpoints').exists()  # results are where rank 0 is: on the first node


def test_a_node_outside_the_list_is_shown_both_lists(nodes: list[Node]) -> None:
    one = nodes[2].phalanx('train', *TINY, '--ips', '10.78.0.1,10.78.0.2')
    assert one.end() == 2
    assert '--ips:        10.78.0.1, 10.78.0.2' in one.output
    assert 'this node: ' in one.output
    assert '10.78.0.3 (eth3)' in one.output


def test_a_missing_node_is_named(nodes: list[Node]) -> None:
    first, second = train(nodes[:2], '--join_timeout', '3')[0], None
    del second
    nodes[1].running[0].kill()
    assert first.end() == 2
    assert '10.78.0.2 has not joined after 3 s; nothing was started' in first.output


def test_a_node_that_waits_alone_names_the_missing_nodes(nodes: list[Node]) -> None:
    second = nodes[1].phalanx('train', *TINY, *SHORT, '--ips', ips(nodes[:2]), '--join_timeout', '2')
    assert second.end() == 2
    assert 'cannot reach the first node, 10.78.0.1, port 6170: nothing listens there yet; gave up after 2 s' in second.output


@pytest.mark.long
def test_another_port_on_one_node_is_reported_on_both(nodes: list[Node]) -> None:
    words = ('train', *TINY, *SHORT, '--ips', ips(nodes[:2]), '--join_timeout', '3')
    first, second = nodes[0].phalanx(*words), nodes[1].phalanx(*words, '--start_port', '6300')
    assert (first.end(), second.end()) == (2, 2)
    assert '10.78.0.2 has not joined' in first.output
    assert '10.78.0.1, port 6300: nothing listens there yet' in second.output


def test_a_port_in_use_is_reported_with_the_process_that_holds_it(nodes: list[Node]) -> None:
    holder = nodes[0].start(
        sys.executable,
        '-c',
        'import socket,time; s=socket.socket(); s.bind(("10.78.0.1",6170)); s.listen(); print("up",flush=1); time.sleep(900)',
    )
    holder.until_said('up')
    first = train(nodes[:1] + nodes[1:2])[0]
    assert first.end() == 2
    assert '10.78.0.1: port 6170 is in use by process' in first.output
    assert 'import socket,time; s=socket.socket()' in first.output


@pytest.mark.parametrize(
    ('change', 'message'),
    [
        (('--set', 'optimizer.lr=0.02'), 'not the same on all nodes: the recipe'),
        pytest.param(('--max_restart', '1'), 'not the same on all nodes: --max_restart', marks=pytest.mark.long),
    ],
)
def test_a_node_with_another_request_stops_the_start(nodes: list[Node], change: tuple[str, ...], message: str) -> None:
    command = ('train', *TINY, *SHORT, '--save_dir', 'run', '--ips', ips(nodes[:2]))
    both = [nodes[0].phalanx(*command), nodes[1].phalanx(*command, *change)]
    assert [one.end() for one in both] == [2, 2]
    for one in both:
        assert message in one.output
        assert '10.78.0.1: ' in one.output
        assert '10.78.0.2: ' in one.output


@pytest.mark.long
def test_a_node_with_another_list_of_samples_stops_the_start(nodes: list[Node]) -> None:
    """The same recipe, but the second node's copy of the data lacks a picture."""
    for node, count in zip(nodes, (6, 5), strict=False):
        names = [f'{number}.png' for number in range(count)]
        (node.folder / 'data').mkdir()
        for name in names:
            cv2.imwrite(str(node.folder / 'data' / name), np.zeros((64, 96), np.uint8))
        (node.folder / 'data' / 'all.txt').write_text(''.join(f'{name} {name}\n' for name in names))
    data = 'data={name: file_list, root: data, train: all.txt, eval: all.txt, classes: [a, b]}'
    words = [word for word in TINY if not word.startswith('data.')]
    command = ('train', *words, *SHORT, data, 'train.global_batch_size=4', '--save_dir', 'run', '--ips', ips(nodes[:2]))
    both = [node.phalanx(*command) for node in nodes[:2]]
    assert [one.end() for one in both] == [2, 2], both[0].output + both[1].output
    assert 'not the same on all nodes: the list of samples (10.78.0.1: ' in both[1].output
    assert 'check data.root there' in both[1].output


@pytest.mark.long
def test_a_node_with_another_version_stops_the_start(nodes: list[Node], tmp_path: Path) -> None:
    """A copy of the package with another version number, as a node would have that was not updated."""
    import shutil

    import phalanx as package

    copy = tmp_path / 'old' / 'phalanx'
    shutil.copytree(Path(package.__file__).parent, copy)
    init = copy / '__init__.py'
    init.write_text(init.read_text().replace(f"'{package.__version__}'", "'0.0.9'"))
    recipe = Path(package.__file__).parents[2] / 'recipes'
    shutil.copytree(recipe, tmp_path / 'recipes')
    command = ('train', *TINY, *SHORT, '--save_dir', 'run', '--ips', ips(nodes[:2]))
    both = [nodes[0].phalanx(*command), nodes[1].phalanx(*command, PYTHONPATH=str(copy.parent))]
    assert [one.end() for one in both] == [2, 2]
    assert (
        f'Phalanx (10.78.0.1: {package.__version__}; 10.78.0.2: 0.0.9): install the same version on all nodes' in both[0].output
    )


@pytest.mark.long
def test_of_two_network_cards_the_one_that_connects_is_used(nodes: list[Node]) -> None:
    """The second node has another card, which leads nowhere and comes first."""
    from nodes.conftest import ip

    name = nodes[1].namespace
    ip('-n', name, 'link', 'add', 'aaa0', 'type', 'veth', 'peer', 'name', 'bbb0')
    ip('-n', name, 'addr', 'add', '10.99.0.5/24', 'dev', 'aaa0')
    ip('-n', name, 'link', 'set', 'aaa0', 'up')
    started = train(nodes[:2])
    assert [one.end() for one in started] == [0, 0]
    assert '10.78.0.2 (eth2) is node 2 of 2' in started[1].output


@pytest.mark.long
@pytest.mark.parametrize('victim', [0, 1])
def test_a_rank_that_is_killed_ends_the_run_everywhere(nodes: list[Node], victim: int) -> None:
    started = train(nodes[:2], extra=LONG)
    started[0].until(lambda: steps(nodes[0]) >= 3)
    os.kill(rank_on(nodes[victim]), signal.SIGKILL)
    assert [one.end() for one in started] == [1, 1]  # after some 2 s, on a node that does nothing else
    for one in started:
        assert one.lines[-1].endswith('was ended by SIGKILL'), one.output
        assert f'rank {victim} of 2 on 10.78.0.{victim + 1}' in one.lines[-1]
    assert nobody_left(nodes)


@pytest.mark.long
def test_the_error_of_one_rank_is_the_last_line_on_every_node(nodes: list[Node]) -> None:
    """Its loader worker is killed."""
    started = train(nodes[:2], extra=(*LONG, 'train.workers=1'))
    started[0].until(lambda: steps(nodes[0]) >= 3)
    psutil.Process(rank_on(nodes[1])).children()[0].kill()
    assert [one.end() for one in started] == [1, 1]
    for one in started:
        assert 'rank 1 of 2 on 10.78.0.2' in one.lines[-1], one.output
        assert 'a loader worker has died' in one.lines[-1]
    assert nobody_left(nodes)


@pytest.mark.parametrize('victim', [0, pytest.param(1, marks=pytest.mark.long)])
def test_a_launcher_that_is_killed_ends_the_run_everywhere(nodes: list[Node], victim: int) -> None:
    started = train(nodes[:2], extra=LONG)
    started[0].until(lambda: steps(nodes[0]) >= 3)
    os.kill(started[victim].process.pid, signal.SIGKILL)
    other = started[1 - victim]
    assert other.end() == 1
    assert 'lost' in other.lines[-1], other.output
    assert nobody_left(nodes)  # not even the ranks of the launcher that died


@pytest.mark.long
def test_a_cut_link_ends_the_run_on_both_sides(nodes: list[Node]) -> None:
    started = train(nodes[:2], extra=LONG)
    started[0].until(lambda: steps(nodes[0]) >= 3)
    nodes[1].unplug()
    assert [one.end() for one in started] == [1, 1]
    assert '10.78.0.2 is lost' in started[0].lines[-1], started[0].output
    assert 'the first node' in started[1].lines[-1], started[1].output
    assert nobody_left(nodes)


@pytest.mark.long
def test_a_link_and_a_rank_that_return_in_time_change_nothing(nodes: list[Node], phalanx: Command, tmp_path: Path) -> None:
    """The run is that of two ranks on one node, to the last bit."""
    extra = (*SHORT, 'train.steps=40')
    assert phalanx('train', *TINY, *extra, '--nproc_per_node', '2', '--save_dir', 'alone').returncode == 0
    started = train(nodes[:2], extra=extra)
    started[0].until(lambda: steps(nodes[0]) >= 3)
    rank = psutil.Process(rank_on(nodes[1]))
    for stop, go_on in ((nodes[1].unplug, nodes[1].plug_in), (rank.suspend, rank.resume)):
        stop()
        time.sleep(3)
        reached = steps(nodes[0])
        assert reached < 30
        go_on()
        started[0].until(lambda reached=reached: steps(nodes[0]) >= reached + 3)
    assert [one.end() for one in started] == [0, 0], started[0].output
    assert losses(nodes[0].folder / 'run') == losses(tmp_path / 'alone')


@pytest.mark.long
def test_clocks_that_jump_on_all_nodes_end_no_run(nodes: list[Node], tmp_path: Path) -> None:
    (tmp_path / 'sitecustomize.py').write_text(JUMPING)
    started = train(nodes[:2], PYTHONPATH=str(tmp_path))
    assert [one.end() for one in started] == [0, 0], started[0].output
    assert steps(nodes[0]) == 12


@pytest.mark.long
def test_a_rank_that_stops_answering_is_named_with_every_stack(nodes: list[Node]) -> None:
    started = train(nodes[:2], '--hang_timeout', '10', extra=LONG)
    started[0].until(lambda: steps(nodes[0]) >= 3)
    os.kill(rank_on(nodes[1]), signal.SIGSTOP)
    assert [one.end() for one in started] == [1, 1]
    for one in started:
        assert 'no progress for 10 s; rank 1 is furthest behind' in one.lines[-1], one.output
    assert '[rank 0]   File ' in started[0].output  # where it waits
    assert '[rank 1] no answer: its process is stopped' in started[1].output
    assert nobody_left(nodes)


@pytest.mark.long
def test_a_list_in_another_order_is_shown_on_both(nodes: list[Node]) -> None:
    first, second = (
        nodes[number].phalanx('train', *TINY, *SHORT, '--ips', ips(nodes[:2][::step])) for number, step in ((0, 1), (1, -1))
    )
    assert (first.end(), second.end()) == (2, 2)
    for one in (first, second):
        assert '10.78.0.1: 10.78.0.1, 10.78.0.2' in one.output
        assert '10.78.0.2: 10.78.0.2, 10.78.0.1' in one.output


@pytest.mark.long
def test_a_folder_that_one_node_cannot_use_is_an_error_on_all(nodes: list[Node]) -> None:
    (nodes[1].folder / 'run').write_text('a file')
    started = train(nodes[:2])
    assert [one.end() for one in started] == [2, 2]
    for one in started:
        assert 'error: 10.78.0.2: run/log: the folder for logs cannot be created: ' in one.output


# A rank that lets the others lose their connection before it ends itself: `END` is how.
SLOW_END = """
import os, signal, sys, time, torch, torch.distributed as dist
dist.init_process_group('gloo')
if dist.get_rank() == 0:
    print('up', flush=True)
    dist.all_reduce(torch.ones(1))
    dist.all_reduce(torch.ones(1))
dist.all_reduce(torch.ones(1))
END
"""


@pytest.mark.parametrize(
    ('end', 'cause'),
    [
        ('dist.destroy_process_group(); time.sleep(2); raise KeyError("the cause")', "KeyError: 'the cause' (exit status 1)"),
        pytest.param(
            'os.kill(os.getppid(), signal.SIGSTOP); os.kill(os.getpid(), signal.SIGKILL)',
            'was ended by SIGKILL',
            marks=pytest.mark.long,
        ),
    ],
)
def test_a_cause_is_reported_instead_of_its_consequence_even_if_it_arrives_later(
    nodes: list[Node], end: str, cause: str
) -> None:
    """In the second case the launcher of the rank that is killed is held up until the other has reported its own rank."""
    for node in nodes[:2]:
        (node.folder / 's.py').write_text(SLOW_END.replace('END', end))
    words = ('launch', '--ips', ips(nodes[:2]), '--nproc_per_node', '1', 's.py')
    started = [node.phalanx(*words) for node in nodes[:2]]
    if 'SIGSTOP' in end:
        log = nodes[0].folder / 'log' / 'workerlog.0'
        started[0].until(lambda: log.is_file() and 'Error' in log.read_text())
        started[0].until(lambda: not any(_is_rank(pid) for pid in nodes[0].processes()))
        started[1].process.send_signal(signal.SIGCONT)
    assert [one.end() for one in started] == [1, 1]
    for one in started:
        assert one.lines[-1].endswith(cause), one.output
        assert 'rank 1 of 2 on 10.78.0.2' in one.lines[-1]


def _is_rank(pid: int) -> bool:
    """True for a process that runs and has a rank: one that ended meanwhile, waited for or not, has no environment."""
    try:
        return 'RANK' in psutil.Process(pid).environ()
    except psutil.NoSuchProcess:  # also of a zombie
        return False


@pytest.mark.long
def test_a_launcher_that_is_stopped_for_a_while_does_no_harm(nodes: list[Node]) -> None:
    started = train(nodes[:2], '--heartbeat_timeout', '30', extra=LONG)
    started[0].until(lambda: steps(nodes[0]) >= 1)
    for one in started:
        launcher = psutil.Process(one.process.pid)
        launcher.suspend()
        time.sleep(8)
        launcher.resume()
    reached = steps(nodes[0])
    started[0].until(lambda: steps(nodes[0]) >= reached + 3)
    for one in started:
        one.process.send_signal(signal.SIGTERM)
    assert [one.end() for one in started] == [143, 143], started[0].output


@pytest.mark.long
@pytest.mark.parametrize('first', [0, 1])
def test_a_job_that_is_suspended_for_longer_than_a_hang_goes_on(nodes: list[Node], first: int) -> None:
    """Suspended as by `scontrol suspend`: all processes of a node, and one node after the other, in either order."""
    started = train(nodes[:2], '--hang_timeout', '30', extra=LONG)
    started[0].until(lambda: steps(nodes[0]) >= 1)
    jobs = [[launcher, *launcher.children(recursive=True)] for launcher in (psutil.Process(one.process.pid) for one in started)]
    for process in [*jobs[0], *jobs[1]]:
        process.suspend()
    time.sleep(45)
    for job in (jobs[first], jobs[1 - first]):
        for process in job:
            process.resume()
        time.sleep(2)
    reached = steps(nodes[0])
    started[0].until(lambda: steps(nodes[0]) >= reached + 3)
    for one in started:
        one.process.send_signal(signal.SIGTERM)
    assert [one.end() for one in started] == [143, 143], started[0].output


def test_a_restart_resumes_from_the_last_checkpoint(nodes: list[Node]) -> None:
    extra = ('train.steps=16', 'evaluate.enabled=false', 'report.every=1', 'checkpoint.every=4', 'report.pictures=0')
    started = train(nodes[:2], '--max_restart', '1', extra=extra)
    started[0].until(lambda: steps(nodes[0]) >= 6)
    os.kill(rank_on(nodes[1]), signal.SIGKILL)
    assert [one.end() for one in started] == [0, 0], started[0].output
    assert 'starting again from the last checkpoint (0 restarts left)' in started[0].output
    assert 'resumed at step' in started[0].output
    assert steps(nodes[0]) == 16


def listening(node: Node) -> set[str]:
    """The addresses of a node that accept TCP connections; psutil would read those of our own network."""
    sockets = subprocess.check_output(['ip', 'netns', 'exec', node.namespace, 'ss', '-Hltn'], text=True)
    return {line.split()[3].rpartition(':')[0] for line in sockets.splitlines()}


@pytest.mark.parametrize('number', [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.long)])
def test_a_stop_of_one_node_saves_and_stops_all(nodes: list[Node], number: signal.Signals) -> None:
    started = train(nodes[:2], extra=LONG)
    started[0].until(lambda: steps(nodes[0]) >= 3)
    assert {'10.78.0.1'} <= listening(nodes[0]) | listening(nodes[1]) <= {'10.78.0.1', '10.78.0.2'}  # and at no other address
    started[1].process.send_signal(number)
    others, own = 128 + signal.SIGTERM, 128 + number  # the others are asked by SIGTERM
    assert [one.end() for one in started] == [others, own], started[0].output + started[1].output
    at = steps(nodes[0])
    assert (nodes[0].folder / 'run' / 'checkpoints' / f'step_{at:07d}').is_dir()
    assert nobody_left(nodes)


@pytest.mark.long
def test_a_node_that_joins_later_takes_part_from_then_on(nodes: list[Node]) -> None:
    command = (
        'train',
        *TINY,
        'train.epochs=500',  # of 48 samples
        'train.global_batch_size=null',
        'train.batch_size_per_rank=6',
        'checkpoint.every=1',  # a killed node costs the steps since the last one
        'evaluate.enabled=false',
        'report.every=1',
        'report.pictures=0',
        '--save_dir',
        str(nodes[0].folder / 'run'),
    )
    elastic = ('--nnodes', '1:3', '--master', '10.78.0.1:6170')
    first = nodes[0].phalanx(*command, *elastic)
    first.until(lambda: steps(nodes[0]) >= 3)
    second = nodes[1].phalanx(*command, *elastic)
    first.until_said('1 more node joined')
    second.until_said('is node 2 of 2')
    first.until_said('ranks 1 -> 2, global batch 6 -> 12, steps ')
    at = steps(nodes[0])
    first.until(lambda: steps(nodes[0]) >= at + 3)
    second.process.send_signal(signal.SIGKILL)  # and leaves again
    first.until_said('going on with the nodes that are left')
    at = steps(nodes[0])
    first.until(lambda: steps(nodes[0]) >= at + 3)
    lines = records(nodes[0].folder / 'run')
    assert [line['step'] for line in lines] == list(range(1, len(lines) + 1))
    samples = [round(line['epoch'] * 48) for line in lines]
    batches = [after - before for before, after in zip([0, *samples], samples, strict=False)]
    assert set(batches) == {
        6,
        12,
    }  # of one and of two ranks: the data stream goes on where it was, in neither direction it jumps
    assert (batches[0], batches[-1]) == (6, 6)
    first.process.send_signal(signal.SIGTERM)
    assert first.end() == 143


@pytest.mark.long
def test_a_stranger_at_the_port_neither_joins_nor_stops_the_run(nodes: list[Node]) -> None:
    command = ('train', *TINY, *SHORT, '--save_dir', 'run', '--ips', ips(nodes[:2]))
    first = nodes[0].phalanx(*command)
    first.until_said('10.78.0.2 has not joined')
    knock = (
        f'import socket; s=socket.create_connection(("{nodes[0].address}", 6170)); '
        's.sendall(b"GET / HTTP/1.0\\r\\n\\r\\n" * 1000); s.close()'
    )
    assert nodes[2].start(sys.executable, '-c', knock).end() == 0
    second = nodes[1].phalanx(*command)
    assert (first.end(), second.end()) == (0, 0), first.output
