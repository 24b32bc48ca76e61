"""`phalanx.train` on two ranks: those it starts as processes, and those of a process group that somebody else has made."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

import phalanx
from phalanx.parallel.flight_recorder import Call, explain
from phalanx.system.errors import RequestError, StoppedError
from running import PHALANX, TINY, clean_environment, losses, records

MORE = ('train.steps=6', 'evaluate.every=6', 'norm_sync=node')
OVERRIDES: dict[str, Any] = {key: yaml.safe_load(value) for key, value in (word.split('=', 1) for word in (*TINY[2:], *MORE))}

# Rank RANK of a group of 2: trains in a thread, is refused, stops on request of rank 0; the group works afterwards.
MEMBER = """
import json, sys, threading
import torch
import torch.distributed as torch_dist
import phalanx
from phalanx.parallel.flight_recorder import own_records
from phalanx.system.errors import RequestError, StoppedError

rank, overrides = int(sys.argv[1]), json.loads(sys.argv[2])
torch_dist.init_process_group('gloo', init_method='file://' + sys.argv[3], rank=rank, world_size=2)

def train(folder, **more):
    return phalanx.train('pp_liteseg_digits', save_dir=folder, overrides={**overrides, **more}, callback=hear, stop=stop)

def hear(event):
    if event['kind'] == 'train' and event['step'] == 2 and 'stopped' in threading.current_thread().name:
        stop.set()

def work():
    assert train('whole').weights == 'whole, step 6 (best), as trained'
    assert phalanx.evaluate('whole').metrics['mean_iou'] >= 0
    try:
        train('refused', **{'train.global_batch_size': 1000})
    except RequestError as error:
        print(error)
    threading.current_thread().name = 'stopped'
    try:
        train('stopped')
    except StoppedError as error:
        print(error)

stop = threading.Event()
thread = threading.Thread(target=work)
thread.start()
thread.join()
ones = torch.ones(1)
torch_dist.all_reduce(ones)
assert ones == 2
json.dump(own_records(), open(f'records.{rank}', 'w'))
"""


@pytest.fixture(scope='module')
def started(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of two ranks that were started from here: stopped by an event, then by Ctrl-C, then trained to its end."""
    before = psutil.Process().children()  # such as multiprocessing's helper, from tests of other modules
    folder, stop, events = tmp_path_factory.mktemp('started') / 'run', threading.Event(), list[Any]()

    def train(**more: Any) -> phalanx.Trained:
        return phalanx.train('pp_liteseg_digits', save_dir=folder, overrides=OVERRIDES, nproc_per_node=2, **more)

    def set_stop(event: Any) -> None:
        if event['kind'] == 'train':
            stop.set()

    def press_ctrl_c(event: Any) -> None:
        if event['kind'] == 'train':
            signal.raise_signal(signal.SIGINT)

    for way in ({'callback': set_stop, 'stop': stop}, {'callback': press_ctrl_c}):
        with pytest.raises(StoppedError, match='the same call continues from the checkpoint'):
            train(**way)
        assert psutil.Process().children() == before
    assert train(callback=events.append).step == 6
    assert [event['kind'] for event in events if event['kind'] != 'train'][-3:] == ['eval', 'saved', 'end']
    assert events[-1]['world_size'] == 2
    heard = [(event['step'], event['loss']) for event in events if event['kind'] == 'train']
    assert heard == [(line['step'], line['loss']) for line in records(folder)][-len(heard) :]
    return folder


def test_ranks_that_a_call_started_report_to_its_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / 'python'  # one whose launcher forks its ranks
    helpers = Path(__file__).parents[1]
    python.write_text(f'#!{sys.executable}\nimport sys; del sys.argv[1:3]; sys.path.insert(0, {str(helpers)!r}); {PHALANX}')
    python.chmod(0o755)
    monkeypatch.setattr(sys, 'executable', str(python))
    short = {**OVERRIDES, 'train.steps': 2, 'evaluate.every': 2}
    events = list[Any]()
    trained = phalanx.train(
        'pp_liteseg_digits', save_dir=tmp_path / 'run', overrides=short, nproc_per_node=2, callback=events.append
    )
    assert trained.step == 2 and events[-1]['kind'] == 'end' and events[-1]['world_size'] == 2


@pytest.mark.long
def test_a_foreign_process_group_gives_the_run_of_ranks_started_from_python(started: Path, tmp_path: Path) -> None:
    ranks = [
        subprocess.Popen(
            [sys.executable, '-c', MEMBER, str(rank), json.dumps(OVERRIDES), str(tmp_path / 'store')],
            cwd=tmp_path,
            env=clean_environment() | {'TORCH_FR_BUFFER_SIZE': '5000'},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    (first, first_errors), (second, second_errors) = (rank.communicate() for rank in ranks)
    assert [rank.returncode for rank in ranks] == [0, 0], first_errors + second_errors
    assert losses(tmp_path / 'whole') == losses(started)
    assert 1 <= len(losses(tmp_path / 'stopped')) < 6
    refusal, stopped = second.splitlines()  # the other rank writes nothing of its own
    assert 'train.global_batch_size' in refusal
    assert stopped == 'stopped; the same call continues from there (stopped)'
    assert refusal in first and first.count('run folder') == 2
    assert (tmp_path / 'whole' / 'log' / 'workerlog.1').is_file()
    assert not (tmp_path / 'refused' / 'checkpoints').exists()
    check_collectives({rank: json.loads((tmp_path / f'records.{rank}').read_text()) for rank in range(2)})


def check_collectives(found: dict[int, dict[str, Any]]) -> None:
    """All ranks call the same collectives in one order over all groups: else NCCL, which runs them in that order, hangs."""
    assert explain(found) == ''
    first, second = (
        [
            (call.group, call.number, call.name)
            for call in sorted((Call(*each) for each in record['calls']), key=lambda c: c.when)
        ]
        for record in found.values()
    )
    assert first == second and len(first) > 300  # six steps with about 50 of norms, evaluations, checkpoints, a stop


def test_a_wrong_recipe_is_a_request_error_of_the_call_that_starts_ranks() -> None:
    with pytest.raises(RequestError, match='no_such_recipe'):
        phalanx.train('no_such_recipe.yml', gpus=[0, 1])
