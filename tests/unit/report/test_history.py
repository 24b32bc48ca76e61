"""Curves of long logs in bounded memory, and their summary beside the log."""

from __future__ import annotations

import io
import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.report import history
from phalanx.report.history import MOST, History, write_summary


def line(step: int, loss: float | None, **more: float) -> dict[str, Any]:
    return {'kind': 'train', 'step': step, 'epoch': 0.0, 'loss': loss, 'terms': {'a': 1.0}, **more}


def evaluation(step: int) -> dict[str, Any]:
    return {'kind': 'eval', 'step': step, 'mean_iou': step / 1000}


def of_lines(*lines: dict[str, Any]) -> History:
    found = History()
    for each in lines:
        found.add(each)
    return found


def write(folder: Path, *lines: dict[str, Any]) -> None:
    (folder / 'metrics.jsonl').write_text(''.join(json.dumps(each) + '\n' for each in lines))


def summarise(folder: Path, found: History) -> None:
    with (folder / 'metrics.jsonl').open('rb') as file:
        write_summary(folder, found.summary(file))


def test_a_short_log_is_kept_whole() -> None:
    log = of_lines(*(line(step, step / 8, lr=0.1) for step in range(1, MOST))).log()
    assert log.curves['loss'] == log.means['loss'] == [(step, step / 8) for step in range(1, MOST)]
    assert log.curves['terms/a'][0] == (1, 1.0) and log.step == log.last['step'] == MOST - 1


def test_a_long_log_has_curves_of_bounded_size_with_all_extremes() -> None:
    values = {step: float(step % 7) for step in range(1, 20_000)} | {777: -50.0, 15_001: 1e6}
    log = of_lines(*(line(step, value) for step, value in values.items())).log()
    points = log.curves['loss']
    assert len(points) <= 2 * MOST
    assert (777, -50.0) in points and (15_001, 1e6) in points
    assert all(value == values[int(step)] for step, value in points)
    assert [step for step, _ in points] == sorted(step for step, _ in points)


def test_means_are_those_of_all_values_of_a_stretch() -> None:
    """With 2 * MOST - 1 steps, stretches of 2: of steps 0 and 1 there is 1, then there are 2 and 3, ..."""
    log = of_lines(*(line(step, float(step)) for step in range(1, 2 * MOST))).log()
    assert log.means['loss'][:3] == [(1.0, 1.0), (3.0, 2.5), (5.0, 4.5)]


def test_a_loss_that_is_not_finite_stays_a_gap() -> None:
    lines = [line(step, None if step == 5000 else 1.0) for step in range(1, 10_000)]
    assert (5000, None) in of_lines(*lines).log().curves['loss']


@pytest.mark.parametrize('summarised', [0, 1, 1500, 3000])
@pytest.mark.parametrize('step', [-1, 0, 1, 1033, 2999, 3000])
def test_a_resumed_run_has_the_curves_of_one_that_was_never_interrupted(summarised: int, step: int, tmp_path: Path) -> None:
    """Wherever the summary ends, and wherever the run continues."""
    lines = [each for at in range(1, 3001) for each in (line(at, math.sin(at)), *([evaluation(at)] if at % 1000 == 0 else []))]
    write(tmp_path, *lines)
    if summarised:
        own = [each for each in lines if each['step'] <= summarised]
        write(tmp_path, *own)
        summarise(tmp_path, of_lines(*own))
        write(tmp_path, *lines)
    found = History.read(tmp_path)
    assert found.log() == of_lines(*lines).log()
    with (tmp_path / 'metrics.jsonl').open('r+b') as file:
        file.truncate(found.cut(file, step))
    kept = [each for each in lines if each['step'] <= step]
    assert [json.loads(each) for each in (tmp_path / 'metrics.jsonl').read_text().splitlines()] == kept
    after = [line(at, math.cos(at)) for at in range(max(1, step + 1), 5000)]
    for each in after:
        found.add(each)
    log, expected = found.log(), of_lines(*kept, *after).log()
    assert replace(log, means={}) == replace(expected, means={})
    for key, means in expected.means.items():  # sums are added in another order
        assert [mean for _, mean in log.means[key]] == pytest.approx([mean for _, mean in means])


def test_a_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    write(tmp_path, line(1, 1.0), line(2, 2.0))
    with (tmp_path / 'metrics.jsonl').open('a') as file:
        file.write('{"kind": "tra')
    found = History.read(tmp_path)
    assert found.step == 2
    with (tmp_path / 'metrics.jsonl').open('r+b') as rest:
        rest.truncate(found.cut(rest, 2))
    assert (tmp_path / 'metrics.jsonl').read_bytes().endswith(b'}\n')


@pytest.mark.parametrize('changed', ['another log', 'damage', 'another version'])
def test_a_summary_that_is_not_of_this_log_is_not_used(changed: str, tmp_path: Path) -> None:
    lines = [line(1, 1.0), line(2, 2.0)]
    write(tmp_path, *lines)
    summarise(tmp_path, of_lines(line(1, 5.0), line(2, 5.0)))
    if changed == 'another log':
        lines[0]['loss'] = 7.0
        write(tmp_path, *lines)
    elif changed == 'damage':
        (tmp_path / 'curves.json').write_text('{"tail"')
    else:
        state = json.loads((tmp_path / 'curves.json').read_text())
        (tmp_path / 'curves.json').write_text(json.dumps({**state, 'more': 1}))
    assert History.read(tmp_path).log() == of_lines(*lines).log()


def test_a_long_log_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a summary, as many lines are parsed for a log of 30,000 as come after it, and some tens to find where to go on."""
    lines = [line(step, 1.0) for step in range(1, 30_001)]
    write(tmp_path, *lines)
    summarise(tmp_path, of_lines(*lines))
    parsed: list[object] = []
    monkeypatch.setattr(history, 'json', SimpleNamespace(loads=lambda text: parsed.append(text) or json.loads(text)))
    found = History.read(tmp_path)
    with (tmp_path / 'metrics.jsonl').open('rb') as file:
        found.cut(file, 29_990)
    assert found.last['step'] == 29_990 and len(parsed) < 100


@given(st.lists(st.integers(0, 40), max_size=60).map(sorted), st.integers(-1, 41))
def test_the_first_later_line_is_found_at_any_length(steps: list[int], step: int) -> None:
    lines = [json.dumps({'step': at, 'x': 'y' * (at % 5)}).encode() + b'\n' for at in steps]
    before = b''.join(text for text, at in zip(lines, steps, strict=True) if at <= step)
    assert history._find_after(io.BytesIO(b''.join(lines)), step) == len(before)
