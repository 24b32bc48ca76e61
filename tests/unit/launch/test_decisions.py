"""The end of an attempt on several nodes: the cause on which they agree, and whether they start again."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phalanx.launch import launcher
from phalanx.launch.agent import Attempt, Failure, Outcome
from phalanx.launch.cluster import Cluster
from phalanx.launch.flags import Flags
from phalanx.launch.members import Members
from phalanx.launch.watchdog import Verdict
from phalanx.system.stops import keep_handlers

NODES = ('10.0.0.1', '10.0.0.2', '10.0.0.3')
MEMBERS = Members(0, tuple((number, {'address': address}) for number, address in enumerate(NODES)), 6171, 0, 3)
THREE = Cluster(2, nodes=NODES, min_nodes=3, max_nodes=3, address=NODES[0], rendezvous=(NODES[0], 6170))
TWO_TO_THREE = Cluster(2, min_nodes=2, max_nodes=3, address=NODES[0], rendezvous=(NODES[0], 6170))
OUT_OF_MEMORY = Failure(
    3, 'out of memory', 7.0, 'log/workerlog.3', ('Traceback', 'out of memory'), is_consequence=False, address=NODES[1]
)
LOST_PEER = Failure(1, 'connection closed', 6.0, 'log/workerlog.1', (), is_consequence=True)


def run_on(cluster: Cluster, restarts: int = 0) -> Any:
    return launcher._Launch(
        ['true'], cluster, Flags(max_restart=restarts), Attempt(2, Path('scratch'), Path('log'), False, False)
    )


@pytest.mark.parametrize(
    ('outcome', 'verdict', 'status'),
    [
        (Outcome(0), {'kind': 'done'}, 0),
        (Outcome(143), {'kind': 'stopped', 'status': 130}, 143),  # this node was stopped itself
        (Outcome(0), {'kind': 'stopped', 'status': 130}, 130),  # its ranks had ended before another node was stopped
    ],
)
def test_a_run_that_ended_or_was_stopped_has_the_status_of_its_end(outcome: Outcome, verdict: Verdict, status: int) -> None:
    assert run_on(THREE, restarts=5).decide_status(MEMBERS, outcome, verdict, None) == status


def test_a_failed_run_ends_with_the_log_of_the_rank_and_its_cause(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_on(THREE).decide_status(MEMBERS, Outcome(1), {'kind': 'failed'}, OUT_OF_MEMORY) == 1
    *log, last = capsys.readouterr().err.splitlines()
    assert log == ['[rank 3] Traceback', '[rank 3] out of memory']
    assert re.fullmatch(
        r'the run failed after \d+ s: rank 3 of 6 on 10\.0\.0\.2 \(log: log/workerlog\.3\): out of memory', last
    )


def test_a_failed_run_starts_again_as_often_as_it_may(capsys: pytest.CaptureFixture[str]) -> None:
    run, failed = run_on(THREE, restarts=2), (MEMBERS, Outcome(1), {'kind': 'failed'}, OUT_OF_MEMORY)
    assert [run.decide_status(*failed) for _ in range(3)] == [None, None, 1]
    assert [line for line in capsys.readouterr().err.splitlines() if 'starting again' in line] == [
        'phalanx: starting again from the last checkpoint (1 restart left)',
        'phalanx: starting again from the last checkpoint (0 restarts left)',
    ]


def test_a_run_that_failed_while_it_was_stopped_does_not_start_again() -> None:
    verdict = {'kind': 'failed', 'stopped': True}
    assert run_on(THREE, restarts=2).decide_status(MEMBERS, Outcome(143, OUT_OF_MEMORY), verdict, OUT_OF_MEMORY) == 1


@pytest.mark.parametrize(
    ('cluster', 'restarts', 'lost', 'status', 'line'),
    [
        (TWO_TO_THREE, 0, 1, None, 'node is lost; going on with the nodes that are left, from the last checkpoint'),
        (replace(TWO_TO_THREE, min_nodes=1), 0, 2, None, 'going on with the nodes that are left'),
        (THREE, 0, 1, 1, 's: node is lost\n'),
        (THREE, 1, 1, None, 'starting again from the last checkpoint (0 restarts left)'),
        (TWO_TO_THREE, 1, 0, 1, 's: node is lost\n'),  # the first node, with the store
        (THREE, 1, 0, 1, 's: node is lost\n'),
    ],
)
def test_a_lost_node_ends_the_run_unless_the_others_are_enough(
    cluster: Cluster, restarts: int, lost: int, status: int | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    verdict = {'kind': 'lost', 'number': lost, 'cause': 'node is lost'}
    assert run_on(cluster, restarts).decide_status(MEMBERS, Outcome(1), verdict, None) == status
    assert line in capsys.readouterr().err


def test_one_node_of_two_is_too_few_where_two_must_stay() -> None:
    members = replace(MEMBERS, nodes=MEMBERS.nodes[:2], count=2)
    verdict = {'kind': 'lost', 'number': 1, 'cause': 'node is lost'}
    assert run_on(TWO_TO_THREE).decide_status(members, Outcome(1), verdict, None) == 1


def test_a_newcomer_restarts_the_ranks_at_no_cost(capsys: pytest.CaptureFixture[str]) -> None:
    run = run_on(TWO_TO_THREE, restarts=1)
    assert run.decide_status(MEMBERS, Outcome(143), {'kind': 'newcomer', 'cause': '1 more node joined'}, None) is None
    assert run.restarts == 1
    assert '1 more node joined; the ranks have saved and start again' in capsys.readouterr().err


class Store:
    """Verdict and failures that the nodes have published at the rendezvous."""

    def __init__(self, verdict: Verdict | None, failures: dict[int, Failure]) -> None:
        self.values: dict[str, Any] = {MEMBERS.verdict: verdict}
        self.values |= {MEMBERS.key('failure', number): vars(failure) for number, failure in failures.items()}

    def get_all(self, keys: list[str]) -> list[Any]:
        return [self.values.get(key) for key in keys]


def test_a_run_without_failures_is_done() -> None:
    assert run_on(THREE).agree(Store(None, {}), MEMBERS, []) == ({'kind': 'done'}, None)


def test_of_several_failures_the_cause_is_blamed_although_its_consequence_came_first() -> None:
    store = Store({'kind': 'failed'}, {0: LOST_PEER, 1: OUT_OF_MEMORY, 2: replace(OUT_OF_MEMORY, rank=4, when=8.0)})
    assert run_on(THREE).agree(store, MEMBERS, []) == ({'kind': 'failed'}, OUT_OF_MEMORY)


def test_a_silent_node_explains_broken_connections_but_not_an_error_of_another_rank() -> None:
    verdict, failure = run_on(THREE).agree(Store({'kind': 'failed'}, {0: LOST_PEER}), MEMBERS, [1, 2])
    assert (verdict, failure) == ({'kind': 'lost', 'number': 1, 'cause': '10.0.0.2, 10.0.0.3 is lost'}, None)
    assert run_on(THREE).agree(Store({'kind': 'failed'}, {0: OUT_OF_MEMORY}), MEMBERS, [1])[1] == OUT_OF_MEMORY


def test_a_rank_that_gloo_aborts_is_shown_with_the_last_collectives() -> None:
    run = run_on(THREE)
    run.last_calls = 'rank 0: all_reduce 4, rank 1: all_reduce 3'
    aborted = replace(OUT_OF_MEMORY, cause='was ended by SIGABRT', tail=())
    assert run.format_failure(aborted, None, 6).endswith(
        'was ended by SIGABRT; so gloo ends a rank that receives a tensor larger than its own; '
        'rank 0: all_reduce 4, rank 1: all_reduce 3'
    )


def test_a_hang_is_shown_with_the_collective_in_which_ranks_differ() -> None:
    run = run_on(THREE)
    run.explanation = 'rank 1 did not call all_reduce 4'
    line = run.format_failure(OUT_OF_MEMORY, {'kind': 'hang', 'cause': 'no progress for 9 s'}, 6)
    assert line.endswith('s: no progress for 9 s; rank 1 did not call all_reduce 4')
    assert 'out of memory' not in line


def test_a_stop_while_the_scratch_folder_is_made_is_a_stop_and_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mkdir = Path.mkdir

    def make(folder: Path, *args: Any, **kwargs: Any) -> None:
        mkdir(folder, *args, **kwargs)
        if folder.name.startswith(launcher.PREFIX):
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(Path, 'mkdir', make)
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    monkeypatch.setattr(launcher, 'stop_when_stdin_closes', lambda: None)
    paused = signal.getsignal(signal.SIGTSTP)
    monkeypatch.setattr(os, 'environ', dict(os.environ))
    try:
        with keep_handlers():
            assert launcher.launch(['unused'], Cluster(1), Flags(), tmp_path / 'log', dict) == 143
    finally:
        signal.signal(signal.SIGTSTP, paused)
    assert capsys.readouterr().err == 'stopped while no rank was running\n'
    assert [path.name for path in tmp_path.iterdir()] == ['log']
