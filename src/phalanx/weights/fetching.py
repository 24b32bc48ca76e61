"""Download of one file over HTTPS: resumed after a lost connection, checked, once for all processes of a node.

FOLDER/NAME         the file; it gets its name when it is complete and checked
FOLDER/facts.json   its address, size and sha256: a later download must be the same
FOLDER/NAME.part    the part received so far; NAME.part.json: the version of the file that it belongs to
FOLDER/lock         held by the process that downloads
"""

import contextlib
import errno
import http.client
import json
import logging
import re
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote, urlsplit

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

import phalanx
from phalanx.system.disk import exclude_others, hash_file, remove_own, write_atomically
from phalanx.system.errors import CheckpointError

log = logging.getLogger('phalanx')

ATTEMPTS, PAUSE = 5, 1.0  # a lost connection is tried again after 1, 2, 4 ... seconds
SILENCE = 60  # seconds without a byte until the connection counts as lost
BLOCK = 1 << 20
LOOPBACK = ('localhost', '127.0.0.1', '::1')


class FetchError(CheckpointError):
    """A file that cannot be fetched from its address; the message has the reason and the fix."""


class _CutError(Exception):
    """A connection that ended too early; another attempt may resume the download."""


@dataclass(frozen=True)
class FetchedFile:
    """File from the network on this disk."""

    path: Path
    address: str
    size: int  # bytes
    sha256: str
    fetched_at: str  # date and time, UTC


def find_fetched(folder: Path) -> FetchedFile | None:
    """File fetched into `folder` earlier; None without one. Raises FetchError if it has changed since."""
    facts = _read_json(folder / 'facts.json')
    try:
        file = FetchedFile(folder / str(facts['name']), *(facts[key] for key in ('address', 'size', 'sha256', 'fetched_at')))
    except KeyError:
        return None
    if not file.path.is_file():
        return None
    if file.path.stat().st_size != file.size or hash_file(file.path) != file.sha256:
        raise FetchError(f'{file.path}: has changed since it was fetched from {file.address} (sha256 differs); remove it')
    return file


def fetch(
    address: str, folder: Path, *, sha256: str | None = None, headers: Mapping[str, str] | None = None, pause: float = PAUSE
) -> FetchedFile:
    """Fetch the file at `address` into `folder`, unless it was fetched before. `headers` go to that host only.

    Waits while another process fetches the same file. Raises FetchError.
    """
    check_address(address, sha256)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        # Locked: the processes of a node ask for the same file, and one fetches it for all.
        with exclude_others(folder / 'lock'):
            file = find_fetched(folder) or _fetch(address, folder, dict(headers or {}), sha256, pause)
    except OSError as error:
        raise FetchError(f'{folder}: {error.strerror}; another folder can be named in PHALANX_CACHE') from None
    if sha256 is not None and file.sha256 != sha256.lower():
        raise FetchError(f'{file.path}: has the sha256 {file.sha256}, not the requested {sha256}; remove it')
    return file


def check_address(address: str, sha256: str | None) -> None:
    """Raise FetchError for an address whose content could be changed in transit."""
    # A changed file runs no code, but could spoil results: require HTTPS or a known checksum.
    parts = urlsplit(address)
    if not parts.hostname or parts.scheme not in ('https', 'http'):
        raise FetchError(f'{address}: is not an address of a file: https://HOST/PATH')
    if parts.scheme == 'http' and parts.hostname not in LOOPBACK and sha256 is None:
        raise FetchError(f'{address}: could be changed in transit; use https://, or give its checksum: {address}#sha256=HEX')


def _fetch(address: str, folder: Path, headers: Mapping[str, str], sha256: str | None, pause: float) -> FetchedFile:
    """Fetch into `folder`, which this process has locked."""
    # A safe file name: the last part of the path, without leading dots.
    name = re.sub(r'[^\w.+-]', '_', unquote(urlsplit(address).path).rpartition('/')[2]).lstrip('.') or 'weights'
    part = folder / f'{name}.part'
    log.info('fetching %s', address)
    # Attempts continue from the received part, after growing pauses.
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(pause * 2 ** (attempt - 1))
        try:
            _receive(address, part, headers, sha256)
            break
        except _CutError as error:
            cut = error
            log.info('%s: %s', address, error)
    else:
        received = f'{part.stat().st_size:,} bytes are kept, the same command continues from there; ' if part.is_file() else ''
        cure = 'behind a proxy, set https_proxy; without a network, copy the file here and name its path'
        raise FetchError(f'{address}: {cut} ({ATTEMPTS} attempts); {received}{cure}')
    # Checked before it gets its name: against the given checksum, else against an earlier download.
    previous = _read_json(folder / 'facts.json')
    now = time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())
    file = FetchedFile(folder / name, address, part.stat().st_size, hash_file(part), now)
    expected = sha256.lower() if sha256 else previous.get('sha256')
    if expected not in (None, file.sha256):
        remove_own(part)
        origin = 'was requested' if sha256 else f'came from there on {previous.get("fetched_at")}'
        cure = '' if sha256 else f'; if the change is intended, remove {folder / "facts.json"}'
        raise FetchError(f'{address}: has the sha256 {file.sha256}, but {expected} {origin}{cure}')
    facts = {**asdict(file), 'name': name, 'path': None}
    write_atomically(folder / 'facts.json', json.dumps(facts, indent=1).encode())
    part.replace(file.path)
    remove_own(folder / f'{name}.part.json')
    return file


def _receive(address: str, part: Path, headers: Mapping[str, str], sha256: str | None) -> None:
    """Complete `part` from the end of an earlier attempt. Raises FetchError and _CutError."""
    version = part.with_name(f'{part.name}.json')
    validator = str(_read_json(version).get('validator') or '')
    received = part.stat().st_size if validator and part.is_file() else 0
    request = urllib.request.Request(address, headers={'User-Agent': f'phalanx/{phalanx.__version__}'})
    # Bytes as stored: sizes and ranges count those.
    request.add_header('Accept-Encoding', 'identity')
    # Resume only the same version: the server then answers 206, else 200 and the whole file.
    if received:
        request.add_header('Range', f'bytes={received}-')
        request.add_header('If-Range', validator)
    for name, value in headers.items():
        request.add_unredirected_header(name, value)  # not sent on redirects: a token is for its host only
    with _open(address, request, version, sha256) as response:
        if response.headers.get_content_type() == 'text/html':
            raise FetchError(f'{address}: answers with a web page, not a file, perhaps a login or a notice of the network')
        at, total = _content_range(response, received)
        # A weak ETag (W/) does not guarantee equal bytes.
        validator = response.headers.get('ETag', '')
        if not validator or validator.startswith('W/'):
            validator = response.headers.get('Last-Modified', '')
        write_atomically(version, json.dumps({'validator': validator}).encode())
        if total is not None and shutil.disk_usage(part.parent).free < total - at:
            raise _disk_full(part, total - at)
        with part.open('r+b' if at else 'wb') as file:
            file.seek(at)
            file.truncate()
            _copy(response, file, part, at, total)
    if total is not None and part.stat().st_size != total:
        raise _CutError(f'the connection was cut after {part.stat().st_size:,} of {total:,} bytes')


@contextlib.contextmanager
def _open(address: str, request: urllib.request.Request, version: Path, sha256: str | None) -> Iterator[Any]:
    """Open the response to `request`. Raises FetchError for permanent errors, _CutError for temporary ones."""
    # Temporary faults are worth another attempt, permanent ones end with the reason.
    opener = urllib.request.build_opener(_Redirect(sha256))  # with the proxies of the environment
    try:
        with opener.open(request, timeout=SILENCE) as response:
            yield response
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the received part is longer than the file: start again
            remove_own(version)
            raise _CutError('the file there has changed') from None
        if error.code in (408, 425, 429) or error.code >= 500:
            raise _CutError(f'the server answers {error.code} {error.reason}') from None
        cures = {
            404: 'there is no such file (any more)',
            401: 'requires a login: set a token in HF_TOKEN for a hub, else fetch it yourself and give its path',
            403: 'is forbidden: its owner requires a login or an agreement, or a network in between blocks it',
        }
        raise FetchError(f'{address}: {cures.get(error.code, error.reason)} (HTTP {error.code})') from None
    except urllib.error.URLError as error:
        raise _CutError(f'cannot be reached: {error.reason}') from None
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        raise _CutError(f'the connection was cut: {error!r}') from None


def _copy(response: Any, file: IO[bytes], part: Path, at: int, total: int | None) -> None:
    """Write the rest of the file, with a progress bar on a terminal and a log line for each tenth."""
    columns = (TextColumn('{task.description}'), BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(part.stem, total=total, completed=at)
        tenth = 0
        while block := response.read(BLOCK):
            # Flushed per block, so that a killed process leaves a part to resume from.
            try:
                file.write(block)
                file.flush()
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise FetchError(f'{part}: {error.strerror}; another folder can be named in PHALANX_CACHE') from None
                raise _disk_full(part, (total or at) - at) from None
            at += len(block)
            progress.update(bar, completed=at)
            if total and 10 * at // total > tenth:
                tenth = 10 * at // total
                log.info('%s: %d %% of %d bytes', part.stem, 10 * tenth, total)


def _content_range(response: Any, received: int) -> tuple[int, int | None]:
    """Offset in the file at which the response begins, and the size of the whole file, None if unknown."""
    if response.status == 206:
        # 206: the rest of the file, from the requested offset; the server must confirm both.
        content_range = re.fullmatch(r'bytes (\d+)-\d+/(\d+)', response.headers.get('Content-Range', ''))
        if content_range is None or int(content_range[1]) != received:
            raise _CutError('the server answers with another part of the file than requested')
        return received, int(content_range[2])
    length = response.headers.get('Content-Length', '')
    return 0, int(length) if length.isdecimal() else None


def _disk_full(part: Path, needed: int) -> FetchError:
    remove_own(part)
    free = shutil.disk_usage(part.parent).free
    return FetchError(
        f'{part.parent}: the disk is full: {needed:,} bytes are needed, {free:,} are free; '
        'make room, or name a folder on another disk in PHALANX_CACHE'
    )


class _Redirect(urllib.request.HTTPRedirectHandler):
    """Redirects to addresses that `check_address` accepts: never from HTTPS to HTTP."""

    def __init__(self, sha256: str | None) -> None:
        self.sha256 = sha256

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        # A redirect must be as safe as the address itself.
        check_address(newurl, self.sha256)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return {}
