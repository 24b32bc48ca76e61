"""Status of a TrainJob, sent to a server with TLS as Kubeflow's controller has one."""

from __future__ import annotations

import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from phalanx.report.trackers import Run
from phalanx.report.trainjob import CERTIFICATE, TOKEN, URL, TrainJobStatus, trainjob_tracker

PLACE = '/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainjobs/digits/status'


class Server(ThreadingHTTPServer):
    """Server that keeps what it is sent, and answers with `answer`."""

    received: list[tuple[str, str, Any]]
    answer = 200


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers['Content-Length'])))
        self.server.received.append((self.path, self.headers['Authorization'], body))
        self.send_response(self.server.answer)
        self.end_headers()

    def log_message(self, *words: object) -> None: ...


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    if shutil.which('openssl') is None:
        pytest.skip('needs openssl for a certificate')
    words = ('openssl', 'req', '-x509', '-newkey', 'rsa:2048', '-nodes', '-days', '2', '-subj', '/CN=localhost')
    names = ('-addext', 'subjectAltName=DNS:localhost', '-keyout', str(tmp_path / 'key.pem'), '-out', str(tmp_path / 'ca.crt'))
    subprocess.run([*words, *names], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / 'ca.crt', tmp_path / 'key.pem')
    with Server(('localhost', 0), Handler) as made:
        made.received = []
        made.socket = context.wrap_socket(made.socket, server_side=True)
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def variables(server: Server, folder: Path) -> dict[str, str]:
    (folder / 'token').write_text('secret\n')
    url = f'https://localhost:{server.server_port}{PLACE}'
    return {URL: url, CERTIFICATE: str(folder / 'ca.crt'), TOKEN: str(folder / 'token')}


def test_the_job_is_told_percentage_remaining_time_and_values(server: Server, tmp_path: Path) -> None:
    status = TrainJobStatus(40, variables(server, tmp_path), pause=0)
    status.start(Run('digits', tmp_path, {}, 10, {}))
    status.log(20, {'train/loss': 0.25, 'train/lr': float('nan')})
    assert status.sender is not None
    status.sender.join()
    (tmp_path / 'token').write_text('next\n')  # tokens rotate
    status.log(40, {'eval/mean_iou': 0.5})
    status.finish({})
    places, tokens, bodies = zip(*server.received, strict=True)
    assert set(places) == {PLACE}
    assert (tokens[0], tokens[-1]) == ('Bearer secret', 'Bearer next')
    states = [body['trainerStatus'] for body in bodies]
    assert [states[number]['progressPercentage'] for number in (0, 1, -1)] == [25, 50, 100]
    assert states[1]['metrics'] == [{'name': 'train/loss', 'value': '0.25'}]
    assert states[-1]['metrics'][-1] == {'name': 'eval/mean_iou', 'value': '0.5'}
    assert isinstance(states[1]['estimatedRemainingSeconds'], int)
    assert states[-1]['estimatedRemainingSeconds'] == 0
    assert states[0]['lastUpdatedTime'].endswith('Z')
    allowed = {'progressPercentage', 'estimatedRemainingSeconds', 'metrics', 'lastUpdatedTime'}  # trainjob_types.go
    assert all(state.keys() <= allowed for state in states)


@pytest.mark.parametrize('answer', [403, 422, 500])
def test_a_refusal_is_reported_once_and_ends_nothing(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture, answer: int
) -> None:
    server.answer = answer
    status = TrainJobStatus(40, variables(server, tmp_path), pause=0)
    status.start(Run('digits', tmp_path, {}, 0, {}))
    status.log(20, {'train/loss': 0.25})
    status.finish(None)
    assert len(server.received) == 3
    assert sum('TrainJob' in line and str(answer) in line for line in caplog.messages) == 1


def test_updates_are_five_seconds_apart(server: Server, tmp_path: Path) -> None:
    status = TrainJobStatus(40, variables(server, tmp_path), pause=1e6)
    status.start(Run('digits', tmp_path, {}, 0, {}))
    for step in range(10):
        status.log(step, {'train/loss': 0.25})
    assert len(server.received) == 1


def test_a_missing_certificate_or_token_ends_nothing(tmp_path: Path) -> None:
    missing = {URL: 'https://localhost:1/', CERTIFICATE: str(tmp_path / 'ca.crt'), TOKEN: str(tmp_path / 'token')}
    status = TrainJobStatus(40, missing)
    status.start(Run('digits', tmp_path, {}, 0, {}))
    status.finish(None)
    assert status.has_failed


def test_only_a_trainjob_with_the_feature_has_the_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trainjob_tracker(9) == {}
    for name in (URL, CERTIFICATE, TOKEN):
        monkeypatch.setenv(name, 'x')
    assert list(trainjob_tracker(9)) == ['TrainJob']
