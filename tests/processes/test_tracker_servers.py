"""Each number reaches real trackers once, whatever happens to the run or to the server."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest

import phalanx
from running import TINY, clean_environment, extended_python, free_port

pytestmark = pytest.mark.long

STEPS, KILLS = 66, 10
TRACKERS = 'report.trackers=[tensorboard, mlflow, wandb, clearml, trackio, swanlab]'
WORDS = (*TINY, f'train.steps={STEPS}', 'checkpoint.every=4', 'evaluate.every=11', TRACKERS)
LOGGED = [*range(1, STEPS + 1)]
EVALUATED = [*range(11, STEPS + 1, 11)]


@pytest.fixture(scope='module')
def python() -> str:
    """Interpreter with this environment and the trackers; kept below the user's cache."""
    return extended_python('trackers', 'mlflow', 'wandb', 'clearml', 'trackio', 'swanlab')


@pytest.fixture
def server(python: str, tmp_path: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """MLflow's server on SQLite, on a free port: its address and its process."""
    port = free_port()
    place = tmp_path / 'server'
    place.mkdir()
    words = ['server', '--host', '127.0.0.1', '--port', str(port), '--workers', '1']
    store = ['--backend-store-uri', f'sqlite:///{place}/mlflow.db', '--artifacts-destination', str(place / 'artifacts')]
    with (place / 'log').open('wb') as log:
        command = [python, '-m', 'mlflow', *words, *store]
        process = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, cwd=place)
    url = f'http://127.0.0.1:{port}'
    try:
        while not answers(url):
            assert process.poll() is None, (place / 'log').read_text()
            time.sleep(0.5)
        yield url, process
    finally:
        os.killpg(process.pid, signal.SIGCONT)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def answers(url: str) -> bool:
    try:
        return bool(urlopen(f'{url}/health', timeout=10).status == 200)
    except (URLError, OSError):
        return False


def begin(python: str, folder: Path, url: str, ranks: int) -> subprocess.Popen[str]:
    environment = clean_environment() | {
        'PYTHONPATH': str(Path(phalanx.__file__).parent.parent),
        'MLFLOW_TRACKING_URI': url,
        'WANDB_MODE': 'offline',
        'SWANLAB_MODE': 'offline',
        'CLEARML_OFFLINE_MODE': '1',
        'TRACKIO_DIR': str(folder.parent / 'trackio'),
    }
    command = [python, '-m', 'phalanx', 'train', *WORDS, '--save_dir', str(folder), '--nproc_per_node', str(ranks)]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def last_step(folder: Path) -> int:
    file = folder / 'metrics.jsonl'
    lines = file.read_bytes().split(b'\n')[:-1] if file.is_file() else []
    return int(json.loads(lines[-1])['step']) if lines else 0


def history(url: str, folder: Path, name: str) -> list[int]:
    """Steps of a metric on the server."""
    key = json.loads((folder / 'tracker_mlflow.json').read_text())['key']
    asked = json.dumps({'experiment_ids': ['1'], 'filter': f"tags.phalanx_key = '{key}'"}).encode()
    found = Request(f'{url}/api/2.0/mlflow/runs/search', asked, {'Content-Type': 'application/json'})
    with urlopen(found, timeout=60) as answer:
        (run,) = (one['info']['run_id'] for one in json.load(answer)['runs'])
    with urlopen(f'{url}/api/2.0/mlflow/metrics/get-history?run_id={run}&metric_key={name}', timeout=60) as answer:
        return [int(metric['step']) for metric in json.load(answer).get('metrics', [])]


READ = """
import json, sys
from pathlib import Path
from wandb.proto.wandb_internal_pb2 import Record
rows, ids = [], set()
for file in sorted(Path(sys.argv[1]).glob('wandb/offline-run-*/*.wandb')):
    ids.add(file.stem)
    data, place, whole = file.read_bytes(), 7, b''
    # LevelDB's log: blocks of 32 KiB; each part has a checksum, a length and a kind (1 whole, 2 first, 3 middle, 4 last)
    while place + 7 <= len(data):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], 'little'), data[place + 6]
        if kind == 0 or place + 7 + length > len(data):
            break
        whole += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record, whole = Record.FromString(whole), b''
            if record.WhichOneof('record_type') == 'history':
                items = {item.key or '.'.join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
                rows.append({'wandb step': record.history.step.num, **items})
print(json.dumps({'rows': rows, 'ids': sorted(ids)}))
"""


def offline_rows(python: str, folder: Path) -> list[dict[str, Any]]:
    """Rows that the offline runs of Weights & Biases hold, in one run by their id."""
    done = subprocess.run([python, '-c', READ, str(folder)], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found['ids']) == 1
    return list(found['rows'])


def clearml_steps(folder: Path, plot: tuple[str, str]) -> list[int]:
    """Steps of a plot in the offline sessions of ClearML, as its import appends them to one task."""
    found = []
    for file in (folder / 'clearml' / 'offline').glob('offline-*/metrics.jsonl'):
        for line in file.read_text().splitlines():
            with contextlib.suppress(ValueError):  # a line that a kill cut off
                found += [event['iter'] for event in json.loads(line) if (event['metric'], event['variant']) == plot]
    return sorted(found)


READ_TRACKIO = """
import json, sys, trackio
(run,) = trackio.SQLiteStorage.get_runs('phalanx')
print(json.dumps(trackio.SQLiteStorage.get_logs('phalanx', run)))
"""


def trackio_rows(python: str, folder: Path) -> list[dict[str, Any]]:
    """Rows of the only run in Trackio's file."""
    place = os.environ | {'TRACKIO_DIR': str(folder.parent / 'trackio')}
    done = subprocess.run([python, '-c', READ_TRACKIO], capture_output=True, text=True, check=True, env=place)
    return list(json.loads(done.stdout.splitlines()[-1]))


READ_SWANLAB = """
import json, sys
from pathlib import Path
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.sdk.internal.core_python.store import DataStoreReader
files = []
for file in sorted(Path(sys.argv[1]).glob('swanlab/run-*/*.swanlab'), key=lambda file: file.stat().st_ctime):
    reader, rows = DataStoreReader(), []
    if file.stat().st_size:
        reader.open(file)
        for data in reader:
            record = Record.FromString(data)
            if record.WhichOneof('record_type') == 'scalar':
                rows.append((record.scalar.key, record.scalar.step))
    files.append((file.stem, rows))
print(json.dumps(files))
"""


def swanlab_steps(python: str, folder: Path) -> dict[str, list[int]]:
    """Steps of each metric after all offline runs of SwanLab were synchronised: it takes steps above its last one only."""
    done = subprocess.run([python, '-c', READ_SWANLAB, str(folder)], capture_output=True, text=True, check=True)
    files = json.loads(done.stdout)
    assert len({name for name, _ in files}) == 1  # one run by its id
    steps: dict[str, list[int]] = {}
    for _, rows in files:
        last = {key: found[-1] for key, found in steps.items()}
        for key, step in rows:
            if step > last.get(key, -1) and step not in steps.get(key, []):
                steps.setdefault(key, []).append(step)
    return steps


def test_after_ten_kills_each_step_is_in_one_run_of_each_tracker_once(
    python: str, server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    url, _ = server
    folder = tmp_path / 'run'
    for kill in range(KILLS):
        process = begin(python, folder, url, ranks=1 + kill % 2)
        # Killed between two checkpoints, the steps since the last one are logged again.
        while last_step(folder) < 6 * kill + 3:
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process = begin(python, folder, url, ranks=2)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert history(url, folder, 'train/loss') == LOGGED
    assert history(url, folder, 'eval/mean_iou') == EVALUATED
    pictures = folder.parent / 'server' / 'artifacts'
    shown = {re.sub(r'.*\Wstep\W(\d+)\W.*', r'\1', file.name) for file in pictures.rglob('samples*.png')}
    assert {*map(int, shown)} <= {*EVALUATED}  # a kill may come between the values and the pictures of an evaluation
    assert EVALUATED[-1] in map(int, shown)
    rows, last = [], -1
    for row in offline_rows(python, folder):  # as the service does: it drops what is not above the last step
        if row['wandb step'] > last:
            last = row['wandb step']
            rows.append(row)
    assert Counter(row['step'] for row in rows if 'train/loss' in row) == Counter(LOGGED)
    assert Counter(row['step'] for row in rows if 'eval/mean_iou' in row) == Counter(EVALUATED)
    assert clearml_steps(folder, ('loss', 'train')) == LOGGED
    assert clearml_steps(folder, ('mean_iou', 'eval')) == EVALUATED
    kept = trackio_rows(python, folder)
    assert [row['step'] for row in kept if 'train/loss' in row] == LOGGED
    assert [row['step'] for row in kept if 'eval/mean_iou' in row] == EVALUATED
    scalars = swanlab_steps(python, folder)
    assert scalars['train/loss'] == LOGGED
    assert scalars['eval/mean_iou'] == EVALUATED


def test_a_server_that_does_not_answer_delays_nothing_and_gets_everything_later(
    python: str, server: tuple[str, subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """Stopped from step 5 to 60: the steps go on, and the end of the run waits for the rest."""
    url, mlflow = server
    folder = tmp_path / 'run'
    process = begin(python, folder, url, ranks=1)
    for step, number in ((5, signal.SIGSTOP), (60, signal.SIGCONT)):
        while last_step(folder) < step:
            assert process.poll() is None, process.stdout and process.stdout.read()
            time.sleep(0.02)
        os.killpg(mlflow.pid, number)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert history(url, folder, 'train/loss') == LOGGED
