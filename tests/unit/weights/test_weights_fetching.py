"""Weights from addresses, a hub and names, against a server on this node that misbehaves as real ones do."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from PIL import Image

from phalanx import create_model
from phalanx.cli.weights import command as weights_command
from phalanx.engine.job import open_job
from phalanx.engine.worker import fetch_initial_weights
from phalanx.families.detection.models.ppyoloe import ppyoloe
from phalanx.weights.fetching import FetchedFile, FetchError, fetch
from phalanx.weights.finding import NotFoundError, find
from phalanx.weights.published import PUBLISHED, Published
from phalanx.weights.reading import load_own_weights
from running import TINY, run_here

CONTENT = bytes(range(256)) * 4000  # about a megabyte
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """A server with the next answers to give, and the requests it got."""

    address: str = ''
    content: bytes = CONTENT
    etag: str | None = '"1"'
    ranges: bool = True  # whether it goes on in the middle of a file
    cuts: list[int] = field(default_factory=list)  # after how many bytes the next answers end
    codes: list[int] = field(default_factory=list)  # of the next answers, before the file
    headers: dict[str, str] = field(default_factory=dict)  # in the place of its own
    pages: dict[str, Any] = field(default_factory=dict)  # path -> JSON
    asked: list[dict[str, str]] = field(default_factory=list)  # the headers of each request, and its path


class Handler(BaseHTTPRequestHandler):
    server_state: Server

    def do_GET(self) -> None:
        state = self.server_state
        state.asked.append({**self.headers, 'path': self.path})
        if self.path in state.pages:
            self.reply(200, json.dumps(state.pages[self.path]).encode(), {'Content-Type': 'application/json'})
        elif state.codes:
            self.reply(state.codes.pop(0), b'', state.headers)
        else:
            self.send_file(state)

    def send_file(self, state: Server) -> None:
        begin, code = 0, 200
        asked = re.fullmatch(r'bytes=(\d+)-', self.headers.get('Range', ''))
        if asked and state.ranges and self.headers.get('If-Range') == state.etag:
            begin, code = int(asked[1]), 206
        headers = {'Content-Length': str(len(state.content) - begin)}
        if code == 206:
            headers['Content-Range'] = f'bytes {begin}-{len(state.content) - 1}/{len(state.content)}'
        if state.etag:
            headers['ETag'] = state.etag
        cut = state.cuts.pop(0) if state.cuts else len(state.content)
        self.reply(code, state.content[begin : begin + cut], headers | state.headers)

    def reply(self, code: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A server on the loopback device, an empty cache, and no proxy in between."""
    for name in (
        'http_proxy',
        'https_proxy',
        'all_proxy',
        'HTTP_PROXY',
        'HTTPS_PROXY',
        'ALL_PROXY',
        'HF_TOKEN',
        'PHALANX_OFFLINE',
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv('PHALANX_CACHE', str(tmp_path / 'cache'))
    state = Server()
    own = type('OwnHandler', (Handler,), {'server_state': state})
    with ThreadingHTTPServer(('127.0.0.1', 0), own) as listening:
        state.address = f'http://127.0.0.1:{listening.server_address[1]}'
        thread = threading.Thread(target=listening.serve_forever, kwargs={'poll_interval': 0.01})
        thread.start()
        yield state
        listening.shutdown()
        thread.join()


def fetched(server: Server, folder: Path, **options: Any) -> FetchedFile:
    return fetch(f'{server.address}/net/model.pdparams', folder, pause=0, **options)


def test_a_file_is_fetched_once_and_then_taken_from_the_disk(server: Server, tmp_path: Path) -> None:
    first = fetched(server, tmp_path)
    assert first.path == tmp_path / 'model.pdparams' and first.path.read_bytes() == CONTENT
    assert (first.size, first.sha256) == (len(CONTENT), SHA256)
    assert fetched(server, tmp_path) == first
    assert len(server.asked) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == ['facts.json', 'lock', 'model.pdparams']


def test_a_cut_is_resumed_where_it_happened(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000, 2000]
    assert fetched(server, tmp_path).path.read_bytes() == CONTENT
    assert [asked.get('Range') for asked in server.asked] == [None, 'bytes=1000-', 'bytes=3000-']


@pytest.mark.parametrize(('etag', 'ranges'), [(None, True), ('W/"weak"', True), ('"1"', False)])
def test_without_a_version_or_ranges_the_file_is_begun_again(
    server: Server, tmp_path: Path, etag: str | None, ranges: bool
) -> None:
    server.etag, server.ranges, server.cuts = etag, ranges, [1000]
    assert fetched(server, tmp_path).path.read_bytes() == CONTENT


def test_a_file_that_changes_between_two_attempts_is_not_put_together_from_both(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000] * 5
    with pytest.raises(FetchError, match=r'the connection was cut after 5,000 of 1,024,000 bytes \(5 attempts\); 5,000 bytes'):
        fetched(server, tmp_path)
    server.content, server.etag = CONTENT[::-1], '"2"'
    assert fetched(server, tmp_path).path.read_bytes() == CONTENT[::-1]
    assert server.asked[-1]['Range'] == 'bytes=5000-'


def test_another_run_goes_on_where_one_gave_up(server: Server, tmp_path: Path) -> None:
    server.cuts = [1000] * 5
    with pytest.raises(FetchError, match='the same command continues from there'):
        fetched(server, tmp_path)
    assert not (tmp_path / 'model.pdparams').exists()
    assert fetched(server, tmp_path).path.read_bytes() == CONTENT
    assert server.asked[5]['Range'] == 'bytes=5000-'


def test_a_server_that_is_busy_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.codes = [503, 429]
    assert fetched(server, tmp_path).path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ('code', 'message'), [(404, 'there is no such file'), (401, 'requires a login'), (403, 'is forbidden'), (410, 'Gone')]
)
def test_permanent_errors_are_reported_at_once(server: Server, tmp_path: Path, code: int, message: str) -> None:
    server.codes = [code]
    with pytest.raises(FetchError, match=rf'model\.pdparams: {message}.*\(HTTP {code}\)'):
        fetched(server, tmp_path)
    assert len(server.asked) == 1


def test_a_login_page_is_not_taken_for_weights(server: Server, tmp_path: Path) -> None:
    server.content, server.headers = b'<html>log in', {'Content-Type': 'text/html; charset=utf-8'}
    with pytest.raises(FetchError, match='answers with a web page, not a file'):
        fetched(server, tmp_path)
    assert not (tmp_path / 'model.pdparams').exists()


def test_what_the_disk_cannot_hold_is_refused_before_it_is_received(server: Server, tmp_path: Path) -> None:
    server.headers = {'Content-Length': str(10**16)}
    with pytest.raises(FetchError, match=r'the disk is full: 10,000,000,000,000,000 bytes are needed.*PHALANX_CACHE'):
        fetched(server, tmp_path)


def test_redirects_are_followed_but_not_out_of_the_network(server: Server, tmp_path: Path) -> None:
    server.codes, server.headers = [302], {'Location': f'{server.address}/elsewhere'}
    moved = fetch(f'{server.address}/a/model.pth', tmp_path / '1', headers={'Authorization': 'Bearer secret'}, pause=0)
    assert moved.path.name == 'model.pth' and [asked['path'] for asked in server.asked] == ['/a/model.pth', '/elsewhere']
    assert [asked.get('Authorization') for asked in server.asked] == ['Bearer secret', None]
    server.codes, server.headers = [302], {'Location': 'http://example.org/a'}
    with pytest.raises(FetchError, match='could be changed in transit; use https://'):
        fetched(server, tmp_path / '2')
    server.codes, server.headers = [302], {'Location': 'file:///etc/passwd'}
    with pytest.raises(FetchError):
        fetched(server, tmp_path / '3')


def test_the_sha256_that_was_asked_for_is_checked(server: Server, tmp_path: Path) -> None:
    with pytest.raises(FetchError, match=f'has the sha256 {SHA256}, but {"0" * 64} was requested'):
        fetched(server, tmp_path, sha256='0' * 64)
    assert not (tmp_path / 'model.pdparams').exists()
    assert fetched(server, tmp_path, sha256=SHA256.upper()).sha256 == SHA256


def test_a_file_that_the_server_has_replaced_is_noticed(server: Server, tmp_path: Path) -> None:
    fetched(server, tmp_path).path.unlink()
    server.content = CONTENT[::-1]
    with pytest.raises(
        FetchError, match=rf'but {SHA256} came from there on .*; if the change is intended, remove .*facts\.json'
    ):
        fetched(server, tmp_path)


def test_a_file_that_was_changed_on_the_disk_is_noticed(server: Server, tmp_path: Path) -> None:
    fetched(server, tmp_path).path.write_bytes(b'x' * len(CONTENT))
    with pytest.raises(FetchError, match=r'model\.pdparams: has changed since it was fetched from .*; remove it'):
        fetched(server, tmp_path)


def test_processes_that_want_the_same_file_wait_for_the_one_that_fetches_it(server: Server, tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fetched(server, tmp_path), range(4)))
    assert len(server.asked) == 1 and len(set(found)) == 1


@pytest.mark.parametrize('address', ['http://example.org/a.pth', 'https:///a.pth', 'ftp://example.org/a.pth'])
def test_an_address_that_cannot_be_trusted_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(FetchError):
        fetch(address, tmp_path)


# Finding: what a recipe or a person may write.


def test_a_name_of_the_list_is_fetched_and_brings_its_licence(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Published('net', 'COCO', 'mAP 50', f'{server.address}/net.pdparams', licence='CC-BY-NC-4.0', part='backbone')
    monkeypatch.setitem(PUBLISHED, 'my_net', entry)
    found = find('my_net')
    assert found.path.read_bytes() == CONTENT
    facts = found.facts()
    assert (facts['from'], facts['address'], facts['sha256']) == ('my_net', entry.address, SHA256)
    assert facts['licence'] == find(entry.address).licence == 'CC-BY-NC-4.0' and len(server.asked) == 1
    assert found.part == 'backbone'
    with pytest.raises(NotFoundError, match=r"there is no such file, run folder or name .*did you mean 'my_net'"):
        find('my_nett')


def test_offline_nothing_is_asked_and_what_was_fetched_is_there(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    address = f'{server.address}/net.pdparams'
    monkeypatch.setenv('PHALANX_OFFLINE', '1')
    with pytest.raises(
        FetchError, match=r'nothing is fetched offline \(--offline, PHALANX_OFFLINE=1\); .*copy it from there to'
    ):
        find(address)
    assert not server.asked
    monkeypatch.delenv('PHALANX_OFFLINE')
    there = find(address)
    monkeypatch.setenv('PHALANX_OFFLINE', '1')
    assert find(address) == there and len(server.asked) == 1


def test_the_command_fetches_ahead_of_a_run(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    assert weights_command(['get', f'{server.address}/net.pdparams']) == 0
    path, *facts = capsys.readouterr().out.splitlines()
    assert Path(path).read_bytes() == CONTENT and f'  sha256: {SHA256}' in facts
    server.codes = [404]
    assert weights_command(['get', f'{server.address}/other.pdparams']) == 1
    assert 'there is no such file' in capsys.readouterr().err
    assert weights_command([]) == 0
    assert 'ppyoloe_plus_crn_s_80e_coco' in capsys.readouterr().out


# The hub, as far as it is asked.


@pytest.fixture
def hub(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv('HF_ENDPOINT', server.address)
    files = [
        {'rfilename': 'README.md'},
        {'rfilename': 'model.safetensors', 'lfs': {'sha256': SHA256}},
        {'rfilename': 'a b.pth'},
    ]
    facts = {'sha': 'c0ffee', 'siblings': files, 'cardData': {'license': 'apache-2.0'}}
    server.pages = {f'/api/models/me/net/revision/{revision}?blobs=true': facts for revision in ('main', 'v1', 'pr%2F1')}
    return server


def test_a_repository_of_the_hub_gives_its_only_file_at_a_settled_commit(hub: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv('HF_TOKEN', 'secret')
    found = find('hf://me/net')
    assert found.path.name == 'model.safetensors' and found.licence == 'apache-2.0'
    assert found.facts()['address'] == f'{hub.address}/me/net/resolve/c0ffee/model.safetensors'
    assert all(asked['Authorization'] == 'Bearer secret' for asked in hub.asked)
    assert find('hf://me/net') == found and len(hub.asked) == 2  # the list, and the file


def test_a_file_at_a_revision_can_be_named(hub: Server) -> None:
    find('hf://me/net@v1/a b.pth')
    assert [asked['path'] for asked in hub.asked] == [
        '/api/models/me/net/revision/v1?blobs=true',
        '/me/net/resolve/c0ffee/a%20b.pth',
    ]


def test_what_the_hub_stores_must_be_what_it_says(hub: Server) -> None:
    hub.content = b'something else'
    with pytest.raises(FetchError, match=f'but {SHA256} was requested'):
        find('hf://me/net')


@pytest.mark.parametrize(
    ('place', 'message'),
    [
        ('hf://me/net@v1/b.pth', r"there is no such file; did you mean 'a b\.pth'|it has README\.md, model"),
        ('hf://me', 'expected hf://OWNER/REPO'),
    ],
)
def test_a_file_that_the_repository_has_not_is_reported(hub: Server, place: str, message: str) -> None:
    with pytest.raises(FetchError, match=message):
        find(place)


def test_a_gated_repository_needs_a_token(hub: Server) -> None:
    hub.codes = [401]
    with pytest.raises(FetchError, match=r'hf://me/other@main: the hub answers 401: .*set a token in HF_TOKEN'):
        find('hf://me/other')


# A run that starts from an address.


def test_a_run_says_what_it_fetched_and_what_it_took(server: Server, tmp_path: Path) -> None:
    model = open_job(TINY[0], [(word, word) for word in TINY[2:]]).task.model()
    state = model.state_dict()
    heads = [name for name in state if name.startswith('heads.0.')]
    server.content = safetensors.torch.save({name: tensor for name, tensor in state.items() if name not in heads})
    address = f'{server.address}/net.safetensors'
    folder = tmp_path / 'run'
    words = (*TINY, f'train.init_from={address}', 'train.steps=1', 'evaluate.enabled=false', '--save_dir', str(folder))
    assert run_here('train', *words) == 0
    (initial,) = json.loads((folder / 'summary.json').read_text())['initial_weights']
    assert (initial['from'], initial['licence']) == (address, 'not known')
    assert initial['sha256'] == hashlib.sha256(server.content).hexdigest()
    assert initial['missing'] == len([name for name in heads if not name.endswith('num_batches_tracked')])
    assert len(server.asked) == 1
    page = (folder / 'report.html').read_text()
    assert 'Initial weights' in page and initial['sha256'] in page and 'missing, as initialised' in page


def test_weights_that_a_backbone_names_are_fetched_with_those_of_the_run(server: Server) -> None:
    """Before the ranks load them, so that all of a node wait for one download."""
    timm = pytest.importorskip('timm', reason='timm, an optional library, is not installed')
    server.content = safetensors.torch.save(timm.create_model('test_resnet', num_classes=2).state_dict())
    backbone = {'name': 'timm_backbone', 'model': 'test_resnet', 'weights': f'{server.address}/net.safetensors'}
    model = create_model('db', num_classes=1, backbone=backbone)
    fetch_initial_weights(open_job('db_pages').recipe.train, model)
    assert len(server.asked) == 1
    load_own_weights(model)
    assert len(server.asked) == 1


def test_a_run_that_cannot_have_its_weights_does_not_start(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.codes = [404]
    words = (*TINY, f'train.init_from={server.address}/a.pth', 'train.steps=1', '--save_dir', str(tmp_path / 'run'))
    assert run_here('train', *words) == 2
    assert re.search(r'train\.init_from: http.*there is no such file .*\(HTTP 404\)', capsys.readouterr().err)
    assert not (tmp_path / 'run').exists()


def test_published_weights_predict_without_their_data_set(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The names of COCO's classes come with the list; a network one of whose heads says `dog` everywhere finds dogs."""
    model = ppyoloe(80, plus=True)
    with torch.no_grad():
        for head in model.heads:
            head.classify.bias.fill_(-9)
        model.heads[0].classify.bias[16] = 9  # of the coarsest map
    server.content = safetensors.torch.save(model.state_dict())
    name = 'ppyoloe_plus_crn_s_80e_coco'
    monkeypatch.setitem(PUBLISHED, name, replace(PUBLISHED[name], address=f'{server.address}/net.safetensors'))
    Image.new('RGB', (64, 64), 'gray').save(tmp_path / 'photo.png')
    monkeypatch.chdir(tmp_path)
    words = ('predict', name, 'photo.png', '--weights', name, '--out', 'results', '--set', 'device=cpu')
    assert run_here(*words) == 0
    found = json.loads((tmp_path / 'results' / 'photo.json').read_text())
    assert found and {each['name'] for each in found} == {'dog'}
    created = create_model('ppyoloe', num_classes=80, plus=True, weights=name)
    expected = model.state_dict()
    assert all(torch.equal(tensor, expected[key]) for key, tensor in created.state_dict().items())
