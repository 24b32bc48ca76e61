"""Overview of the runs in a folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.cli.main import main
from phalanx.engine.overview import RunFacts, differing_keys, find_runs, read_facts
from phalanx.system.errors import RequestError
from run_folder import finish, write_lines, write_run

HOLD = (
    'import fcntl, sys; f = open(sys.argv[1], "a"); fcntl.lockf(f, fcntl.LOCK_EX); print("held", flush=True); sys.stdin.read()'
)


def make_run(folder: Path, recipe: str = 'optimizer: {lr: 0.1}\n') -> Path:
    """A run of 40 steps without its summary: mean_iou 0.8125 at step 20 and 0.6875 at the end."""
    folder.mkdir(parents=True)
    write_run(folder)
    (folder / 'config.yml').write_text(recipe)
    return folder


def only(folder: Path) -> RunFacts:
    (run,), _ = find_runs(folder)
    return run


def test_a_run_is_listed_with_its_best_metric_time_and_host(tmp_path: Path) -> None:
    finish(make_run(tmp_path / 'a'))
    run = only(tmp_path)
    assert (run.state, run.step, run.total_steps, run.seconds) == ('finished', 40, 40, 75.0)
    assert run.score == ('mean_iou', 0.8125, 20)
    assert (run.hosts, run.world_size) == (('a',), 1)


def test_a_run_without_a_summary_was_stopped(tmp_path: Path) -> None:
    make_run(tmp_path / 'a')
    assert only(tmp_path).state == 'stopped'


def test_a_run_that_was_prolonged_after_its_summary_is_not_finished(tmp_path: Path) -> None:
    finish(make_run(tmp_path / 'a'))
    with (tmp_path / 'a' / 'metrics.jsonl').open('a') as file:
        file.write(json.dumps({'kind': 'train', 'step': 41, 'loss': 1.0}) + '\n')
    assert (only(tmp_path).state, only(tmp_path).step) == ('stopped', 41)


def test_a_run_whose_last_word_is_its_failure_has_failed(tmp_path: Path) -> None:
    folder = make_run(tmp_path / 'a')
    with (folder / 'journal.jsonl').open('a') as file:
        file.write(json.dumps({'kind': 'warning', 'text': 'the run failed: loss is nan', 'step': 40, 'time': 9.0}) + '\n')
    assert only(tmp_path).state == 'failed'


def test_a_run_is_running_while_its_process_holds_the_lock(tmp_path: Path) -> None:
    lock = make_run(tmp_path / 'a') / 'lock'
    lock.touch()
    holder = subprocess.Popen([sys.executable, '-c', HOLD, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        holder.stdout.readline()
        assert only(tmp_path).state == 'running'
        holder.stdin.close()
    assert only(tmp_path).state == 'stopped'


def test_the_goodput_of_an_unfinished_run_is_that_at_its_newest_checkpoint(tmp_path: Path) -> None:
    """60 s in steps of the 200 s since the first start, of which 100 s lay between two starts."""
    folder = make_run(tmp_path / 'a')
    start = {'kind': 'start', 'name': 'x', 'total_steps': 40, 'facts': {}, 'ranks': [], 'step': 0}
    lines = [
        start | {'time': 100.0},
        {'kind': 'saved', 'in_steps': 40.0, 'time': 150.0},
        start | {'time': 250.0},
        {'kind': 'saved', 'in_steps': 60.0, 'time': 300.0},
        {'kind': 'note', 'text': 'later', 'time': 900.0},
    ]
    write_lines(folder / 'journal.jsonl', lines[:1])
    assert only(tmp_path).goodput is None
    write_lines(folder / 'journal.jsonl', lines)
    assert only(tmp_path).goodput == pytest.approx(0.3)


def test_the_time_of_an_unfinished_run_is_that_of_its_starts_without_the_pauses(tmp_path: Path) -> None:
    folder = make_run(tmp_path / 'a')
    start = {'kind': 'start', 'name': 'x', 'total_steps': 40, 'facts': {}, 'ranks': [], 'step': 0}
    moments = ((start, 100.0), ({'kind': 'saved'}, 130.0), (start, 500.0), ({'kind': 'saved'}, 520.0))
    write_lines(folder / 'journal.jsonl', [{**line, 'time': moment} for line, moment in moments])
    (folder / 'metrics.jsonl').unlink()  # its age would count as a sign of life
    assert only(tmp_path).seconds == 50


def test_a_key_that_most_runs_of_a_recipe_share_is_no_difference(tmp_path: Path) -> None:
    for name, lr in (('a', 0.1), ('b', 0.1), ('c', 0.2)):
        make_run(tmp_path / name, f'optimizer: {{lr: {lr}}}\nreport: {{every: {len(name) + lr}}}\n')
    assert differing_keys(find_runs(tmp_path)[0]) == [{}, {}, {'optimizer.lr': 0.2}]


def test_runs_of_different_recipes_are_not_compared(tmp_path: Path) -> None:
    make_run(tmp_path / 'a')
    other = make_run(tmp_path / 'b', 'optimizer: {lr: 0.2}\n')
    start = {'kind': 'start', 'name': 'other', 'total_steps': 40, 'facts': {}, 'ranks': [], 'step': 0, 'time': 1.0}
    write_lines(other / 'journal.jsonl', [start])
    assert differing_keys(find_runs(tmp_path)[0]) == [{}, {}]


@pytest.mark.parametrize(
    ('file', 'text', 'reason'),
    [
        ('config.yml', 'a: [', 'config.yml:1: is not YAML'),
        ('journal.jsonl', '{"kind": "start"}\n', "damaged: its files are not those of a run (KeyError: 'name')"),
        ('journal.jsonl', '{', 'damaged: journal.jsonl: names no start of a run'),  # as if it had not started yet
        ('metrics.jsonl', '{"step": 3, "lo\n', 'damaged: metrics.jsonl: is not JSON as a run writes it'),
        ('summary.json', '', 'damaged: summary.json: is not JSON as a run writes it'),
    ],
)
def test_a_run_that_cannot_be_read_is_named_with_the_reason(file: str, text: str, reason: str, tmp_path: Path) -> None:
    make_run(tmp_path / 'deep' / 'er' / 'a')
    (make_run(tmp_path / 'damaged') / file).write_text(text)
    (run,), (problem,) = find_runs(tmp_path)
    assert run.folder == tmp_path / 'deep' / 'er' / 'a'
    assert reason in problem
    with pytest.raises(RequestError, match=re.escape(reason)):
        read_facts(tmp_path / 'damaged')


@pytest.mark.parametrize(('name', 'reason'), [('', 'has no run folders'), ('missing', 'no such folder')])
def test_a_folder_without_runs_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=reason):
        find_runs(tmp_path / name)


def test_the_command_prints_a_table_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finish(make_run(tmp_path / 'a'))
    assert main(['runs', str(tmp_path)]) == 0
    assert 'mean_iou 0.8125' in capsys.readouterr().out
    assert main(['runs', str(tmp_path), '--json']) == 0
    (run,) = json.loads(capsys.readouterr().out)['runs']
    assert run['score'] == {'metric': 'mean_iou', 'value': 0.8125, 'step': 20}
    assert run['differences'] == {}
    (tmp_path / 'a' / 'summary.json').write_text('')
    make_run(tmp_path / 'b')
    assert main(['runs', str(tmp_path)]) == 0
    assert 'not listed: ' in capsys.readouterr().out
    assert main(['runs', str(tmp_path / 'a')]) == 2
    assert 'summary.json: is not JSON' in capsys.readouterr().err
