"""Ranks that stand still, and the explanation: the heartbeats and records are written here as ranks write them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from phalanx.launch import watchdog
from phalanx.launch.watchdog import Watchdog
from phalanx.parallel.heartbeat import Beat, read_beats

LIMIT = 60.0


def judge(folder: Path, beats: dict[int, Beat], others: dict[int, Beat] | None = None) -> str | None:
    """Cause that the watchdog finds with the heartbeats of this node and those that another node has published."""
    watching = Watchdog(folder, range(2), LIMIT)
    if others is not None:
        watching.seen[1] = ([9, {str(rank): list(beat) for rank, beat in others.items()}], 0.0)  # as JSON
    watching.detect_hang(beats)
    return None if watching.verdict is None else watching.verdict['cause']


def beat(step: int, doing: str, age: float = LIMIT + 1, *, stopped: bool = False) -> Beat:
    return Beat(step, doing, 7, age, stopped)


def test_ranks_before_their_first_heartbeat_do_not_hang(tmp_path: Path) -> None:
    assert judge(tmp_path, {}) is None


def test_one_rank_with_progress_is_enough(tmp_path: Path) -> None:
    assert judge(tmp_path, {0: beat(5, 'training'), 1: beat(5, 'training', LIMIT - 1)}) is None


def test_of_ranks_that_stand_still_the_one_furthest_behind_is_blamed(tmp_path: Path) -> None:
    assert judge(tmp_path, {0: beat(5, 'training'), 1: beat(4, 'evaluating')}) == (
        'no progress for 60 s; rank 1 is furthest behind, at step 4, evaluating '
        '[rank 0: step 5, training, rank 1: step 4, evaluating]'
    )


def test_at_the_same_step_the_stopped_process_is_blamed(tmp_path: Path) -> None:
    cause = judge(tmp_path, {0: beat(5, 'training'), 1: beat(5, 'training', stopped=True)})
    assert cause is not None
    assert 'rank 1 is furthest behind, at step 5, training (its process is stopped)' in cause


def test_ranks_at_one_place_are_blamed_together(tmp_path: Path) -> None:
    cause = judge(tmp_path, {0: beat(5, 'saving'), 1: beat(5, 'saving')})
    assert cause is not None
    assert cause.startswith('no progress for 60 s; all ranks are at step 5, saving')


def test_a_rank_of_another_node_is_blamed_if_it_is_furthest_behind(tmp_path: Path) -> None:
    cause = judge(tmp_path, {0: beat(5, 'training'), 1: beat(5, 'training')}, {2: beat(3, 'loading'), 3: beat(5, 'training')})
    assert cause is not None
    assert 'rank 2 is furthest behind, at step 3, loading' in cause


def test_heartbeats_are_read_with_their_age_and_not_before_the_first(tmp_path: Path) -> None:
    (tmp_path / 'beat.0').write_text(f'7 {os.getpid()} {time.monotonic() - 100:.3f} reading images  \n')
    (tmp_path / 'beat.1').touch()
    (own,) = read_beats(tmp_path).items()
    assert (own[0], own[1].step, own[1].doing, own[1].pid, own[1].stopped) == (0, 7, 'reading images', os.getpid(), False)
    assert own[1].age > 99.99  # the file has milliseconds


def test_a_pause_of_the_launcher_is_no_hang_of_its_ranks(tmp_path: Path) -> None:
    """Ctrl-Z, and `fg` an hour later: the ranks were paused, too. What came before and after the pause counts."""
    now = time.monotonic()
    (tmp_path / 'beat.0').write_text(f'7 {os.getpid()} {now - 3610:.3f} training\n')
    (tmp_path / 'beat.1').write_text(f'7 {os.getpid()} {now - 1800:.3f} training\n')  # from within the pause
    watching = Watchdog(tmp_path, range(2), LIMIT)
    watching.woke = now - 3600
    assert watching.read()[0].age == pytest.approx(10 + watchdog.STALL, abs=5)  # up to 5 s on a busy machine
    assert 0 <= watching.read()[1].age < 5
    (tmp_path / 'beat.0').write_text(f'8 {os.getpid()} {now - 100:.3f} training\n')  # a heartbeat after the pause
    assert watching.read()[0].age > 99


def test_the_stacks_of_ranks_are_shown_and_the_rank_without_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(watchdog, 'print_line', lines.append)
    (tmp_path / 'stack.0').write_text('Thread 1:\n  File "train.py", line 3\n')
    Watchdog(tmp_path, range(2), LIMIT).show_stacks([])
    assert lines == [
        '[rank 0] Thread 1:',
        '[rank 0]   File "train.py", line 3',
        '[rank 1] no answer: its process is stopped, or waits in the kernel',
    ]


def test_a_node_whose_ranks_all_stand_still_is_reported_by_the_first(tmp_path: Path) -> None:
    cause = judge(tmp_path, {0: beat(5, 'training', 1)}, {2: beat(5, 'saving')})
    assert cause is not None
    assert 'rank 0: step 5, training, rank 2: step 5, saving' in cause
