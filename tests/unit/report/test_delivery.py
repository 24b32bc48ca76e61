"""Trackers on servers get each line of metrics.jsonl once, from a thread."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from phalanx.report.trackers import Picture, PostponedError, Run, delivery, send_exports
from phalanx.report.trackers.delivery import Delivery, Line, flatten, read_from
from run_folder import train_line, write_lines


class Server:
    """Server of a tracker: the lines that it has, and how often it refuses."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, bool, dict[str, float]]] = []
        self.keys: set[str] = set()
        self.closed: list[Any] = []
        self.pictures: list[tuple[Line, str]] = []
        self.refusals = 0  # number of calls to refuse
        self.refused = threading.Event()
        self.knows_last_line = False


class ToServer(Delivery):
    name, is_stored = 'server', True

    def __init__(self, server: Server, *, weights: bool = False) -> None:
        super().__init__(weights=weights)
        self.server = server

    def connect(self, run: Run, key: str) -> Line | None:
        self.server.keys.add(key)
        return Line(*self.server.rows[-1][:2]) if self.server.knows_last_line and self.server.rows else None

    def send(self, line: Line, values: Mapping[str, float]) -> None:
        if self.server.refusals:
            self.server.refusals -= 1
            self.server.refused.set()
            raise ConnectionError('no route')
        self.server.rows.append((*line, dict(values)))

    def send_pictures(self, line: Line, pictures: Mapping[str, Picture]) -> None:
        self.server.pictures += [(line, name) for name in pictures]
        raise ConnectionError('too large')

    def close(self, summary: Mapping[str, Any] | None) -> None:
        self.server.closed.append(summary)


def deliver(folder: Path, server: Server, steps: int, summary: Mapping[str, Any] | None = None) -> None:
    """One start of a run, whose log has `steps` lines at its end."""
    write_lines(folder / 'metrics.jsonl', [train_line(step, 0.5) for step in range(1, steps + 1)])
    tracker = ToServer(server)
    tracker.start(Run('x', folder, {}, 0, {}))
    tracker.finish(summary)


def steps_of(server: Server) -> list[int]:
    return [step for step, _, _ in server.rows]


def test_lines_have_full_names_and_no_unknown_values(tmp_path: Path) -> None:
    file = tmp_path / 'metrics.jsonl'
    evaluation = {'kind': 'eval', 'step': 3, 'iou': 0.5, 'ap': None, 'samples': 2, 'seconds': 1.0, 'raw': {'iou': 0.25}}
    write_lines(file, [{'kind': 'train', 'step': 3, 'epoch': 0.5, 'loss': 2.0, 'terms': {'a': 1.5}, 'lr': 0.1}, evaluation])
    lines = [line[1:] for line in read_from(file, 0)]
    assert lines == [
        (Line(3, False), {'train/epoch': 0.5, 'train/loss': 2.0, 'train/lr': 0.1, 'train/loss/a': 1.5}),
        (Line(3, True), {'eval/iou': 0.5, 'eval as trained/iou': 0.25}),
    ]


def test_reading_continues_behind_the_last_complete_line(tmp_path: Path) -> None:
    file = tmp_path / 'metrics.jsonl'
    whole, rest = json.dumps(train_line(1, 0.5)) + '\n', json.dumps(train_line(2, 0.5)) + '\n'
    file.write_text(whole + rest[:9])
    ((position, line, _),) = read_from(file, 0)
    assert line == (1, False)
    file.write_text(whole + rest)
    assert [line for _, line, _ in read_from(file, position)] == [(2, False)]


def test_a_run_that_repeats_steps_sends_each_once_in_one_run_of_the_tracker(tmp_path: Path) -> None:
    """Killed after step 5, resumed from 2, ended at 8: `metrics.jsonl` is written again from line 3."""
    server = Server()
    for steps in (5, 3, 8):
        deliver(tmp_path, server, steps, {'steps': 8} if steps == 8 else None)
    assert steps_of(server) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(server.keys) == 1
    assert server.closed == [None, None, {'steps': 8}]


def test_what_the_server_has_counts_more_than_our_own_note(tmp_path: Path) -> None:
    """A kill between its answer and the note would send a line twice."""
    server = Server()
    deliver(tmp_path, server, 4)
    note = tmp_path / 'tracker_server.json'
    note.write_text(json.dumps({**json.loads(note.read_text()), 'step': 3}))
    server.knows_last_line = True
    deliver(tmp_path, server, 5)
    assert steps_of(server) == [1, 2, 3, 4, 5]


def test_a_kill_before_the_server_answers_begins_no_second_run(tmp_path: Path) -> None:
    """The key is on disk before the server knows it."""
    server = Server()
    keys = []

    class Killed(ToServer):
        def connect(self, run: Run, key: str) -> Line | None:
            keys.append(json.loads((tmp_path / 'tracker_server.json').read_text())['key'])
            return super().connect(run, key)

    tracker = Killed(server)
    tracker.start(Run('x', tmp_path, {}, 0, {}))
    tracker.finish(None)
    assert {*keys} == server.keys


def test_a_server_that_refuses_gets_the_line_at_the_next_attempt(tmp_path: Path) -> None:
    server = Server()
    server.refusals = 1
    deliver(tmp_path, server, 3)
    assert steps_of(server) == [1, 2, 3]


def test_a_line_that_arrived_before_the_failure_is_not_sent_twice(tmp_path: Path) -> None:
    """The answer is lost on its way: after a failure the server is asked for its last line."""
    server = Server()
    server.knows_last_line = True

    class AnswerLost(ToServer):
        def send(self, line: Line, values: Mapping[str, float]) -> None:
            super().send(line, values)
            if not server.refused.is_set():
                server.refused.set()
                raise ConnectionError('timed out')

    write_lines(tmp_path / 'metrics.jsonl', [train_line(step, 0.5) for step in (1, 2)])
    tracker = AnswerLost(server)
    tracker.start(Run('x', tmp_path, {}, 0, {}))
    tracker.finish(None)
    assert steps_of(server) == [1, 2]


def test_a_failure_is_reported_once_and_delays_no_log_line(tmp_path: Path) -> None:
    server = Server()
    server.refusals = 10**9
    write_lines(tmp_path / 'metrics.jsonl', [train_line(1, 0.5)])
    tracker = ToServer(server)
    tracker.start(Run('x', tmp_path, {}, 0, {}))
    server.refused.wait()
    reported = 0
    while not reported:  # the thread notes the failure after the refusal
        try:
            tracker.log(1, {})
        except PostponedError as error:
            assert 'no route' in str(error)
            reported += 1
    tracker.log(1, {})
    server.refusals = 0
    tracker.finish(None)
    assert steps_of(server) == [1]


def test_a_run_that_ends_before_its_tracker_says_how_to_send_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, 'PATIENCE_S', 0.01)
    server = Server()
    server.refusals = 10**9
    with pytest.raises(PostponedError, match='start it again to send the rest'):
        deliver(tmp_path, server, 2)
    server.refusals = 0
    monkeypatch.undo()
    deliver(tmp_path, server, 2, {'steps': 2})
    assert steps_of(server) == [1, 2]


def test_a_recipe_is_flattened_to_dotted_keys() -> None:
    assert flatten({'train': {'steps': 9, 'freeze': []}, 'networks': {}}) == {
        'train.steps': 9,
        'train.freeze': [],
        'networks': {},
    }


def test_the_pictures_of_an_evaluation_go_with_its_line_once(tmp_path: Path) -> None:
    """The second start repeats the evaluation after step 4. Pictures that the server refuses do not repeat the values."""
    server, file = Server(), tmp_path / 'metrics.jsonl'
    evaluations = [{'kind': 'eval', 'step': step, 'iou': 0.5, 'samples': 2, 'seconds': 1.0} for step in (2, 4)]
    for _ in range(2):
        file.unlink(missing_ok=True)
        tracker = ToServer(server)
        tracker.start(Run('x', tmp_path, {}, 0, {}))
        tracker.show(4, {'samples/0': Picture('x', np.zeros((2, 2, 3), np.uint8))})
        write_lines(file, [evaluations[0], train_line(4, 0.5), evaluations[1]])
        tracker.log(4, {})
        tracker.finish(None)
    assert server.pictures == [(Line(4, True), 'samples/0')]
    assert steps_of(server) == [2, 4, 4]


def test_a_tracker_keeps_the_page_and_on_request_the_best_weights(tmp_path: Path) -> None:
    best = tmp_path / 'checkpoints' / 'step_0000004' / 'model.safetensors'
    best.parent.mkdir(parents=True)
    for file in (best, tmp_path / 'report.html'):
        file.touch()
    for weights in (False, True):
        tracker = ToServer(Server(), weights=weights)
        tracker.run = Run('x', tmp_path, {}, 0, {})
        kept = tracker.artifacts({'steps': 8, 'best_step': 4})
        assert kept['report'] == [tmp_path / 'report.html']
        assert kept.get('weights') == ([best] if weights else None)


def test_exports_join_the_run_that_keeps_weights(tmp_path: Path) -> None:
    """A run that the tracker does not know, or whose weights it does not keep, is not begun by an export."""
    server, summary, file = Server(), {'steps': 3}, tmp_path / 'model.onnx'
    file.touch()

    def send(tracker: ToServer) -> None:
        server.keys.clear()
        assert not send_exports({'server': lambda: tracker}, Run('x', tmp_path, {}, 0, {}), summary, [file])

    send(ToServer(server, weights=True))
    assert not server.keys
    deliver(tmp_path, server, 3, summary)
    (key,) = server.keys
    send(ToServer(server))
    assert not server.keys
    tracker = ToServer(server, weights=True)
    send(tracker)
    assert server.keys == {key}
    assert tracker.artifacts(summary) == {'export': [file]}


def test_a_tracker_that_cannot_take_an_export_is_named(tmp_path: Path) -> None:
    failed = send_exports({'server': lambda: 1 / 0}, Run('x', tmp_path, {}, 0, {}), {}, [])
    assert failed == {'server': 'ZeroDivisionError: division by zero'}
