"""Paths in object stores (`s3://bucket/prefix`, also gs, az and https), which read like paths of a disk.

Objects are fetched by one process per node (`fetcher.py`) into a cache on disk: the network runtime of obstore does not survive
a fork, and loader workers are forked. Processes ask it through a socket.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.util import find_spec
from pathlib import Path, PosixPath, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, Self

from phalanx.system.errors import RequestError

SCHEMES = ('s3', 'gs', 'az', 'https', 'http')
FETCHER = 'PHALANX_FETCHER'  # environment variable: socket of the fetcher that a parent process has started
CACHE = 'PHALANX_BUCKETS'  # environment variable: JSON of the key `buckets` of the recipe
MISSING = 'there is no such object in the bucket'
SIGNED = re.compile(r'[?&][^=&]*(sig|token|passw|secret|credential|key)[^=&]*=', re.IGNORECASE)
INSTALL = "needs obstore: pip install 'phalanx-vision[buckets]'"


@dataclass(frozen=True, kw_only=True)
class BucketOptions:
    gib: float = 50
    """Largest size of the cache of fetched objects on the disk of a node; never more than nine tenths of its free space. The
    longest unused files are removed first."""
    folder: Path | None = None
    """Folder of the cache, on a local disk (default: phalanx/buckets in the cache folder of the user). Runs share it."""

    def __post_init__(self) -> None:
        if not self.gib > 0:
            raise ValueError(f'gib must be above 0, got {self.gib}')

    def announce(self) -> None:
        """Make these the options of a fetcher that this process or those it starts may need."""
        os.environ[CACHE] = json.dumps({'gib': self.gib, 'folder': self.folder and str(self.folder.absolute())})


class UrlError(argparse.ArgumentTypeError, ValueError, RequestError):
    """URL that cannot be used. The message does not contain what may be a secret, which argparse would add to a ValueError."""


class StoreError(OSError):
    """Object store that refuses, or that failed longer than requests are repeated."""


def is_url(text: str) -> bool:
    return text.partition('://')[0] in SCHEMES


def refuse_secrets(text: str) -> str:
    """Return `text`. Raises UrlError if it is a URL with a password or a signature; other queries are allowed."""
    scheme, separator, rest = text.partition('#')[0].partition('://')
    if separator and ('@' in rest.partition('/')[0] or SIGNED.search(rest)):
        raise UrlError(
            f'{redact(text)}: the URL has a password or a signature (cut off here), which would reach logs; {_cure(scheme)}'
        )
    return text


def redact(text: str) -> str:
    """`text` with the credentials and queries of the URLs in it cut off."""
    return re.sub(r"""(\b\w+://[^\s?"'@]*)\?[^\s"'}]*""", r'\1', re.sub(r"""(\b\w+://)[^/\s"']*@""", r'\1', text))


class StorePath(PosixPath):
    """Path of an object, or of a folder of objects. Read only; raises StoreError and FileNotFoundError.

    Relative paths, from `relative_to`, are ordinary ones.
    """

    __slots__ = ()

    @classmethod
    def parse(cls, url: str) -> Self:
        """Path of a URL. Raises UrlError for one with credentials or a query, which could be a signature."""
        scheme, _, rest = url.partition('://')
        host, _, key = rest.partition('/')
        plain = f'{scheme}://{host.rpartition("@")[2]}/{key.partition("?")[0]}'
        if '@' in host:
            raise UrlError(f'{plain}: credentials in a URL would reach logs; {_cure(scheme)}')
        if '?' in key or '#' in key:
            raise UrlError(f'{plain}: the URL has a query or signature (cut off here), which would reach logs; {_cure(scheme)}')
        if not host:
            raise UrlError(f'{url}: names no bucket; write {scheme}://BUCKET/PREFIX')
        return cls(url)

    @property
    def is_remote(self) -> bool:
        return bool(self.parts) and self.parts[0][-1:] == ':'

    def __str__(self) -> str:
        return f'{self.parts[0]}//{"/".join(self.parts[1:])}' if self.is_remote else '/'.join(self.parts) or '.'

    def __fspath__(self) -> str:
        return str(self)

    def is_absolute(self) -> bool:
        return self.is_remote

    def absolute(self) -> Self:
        return self

    def resolve(self, strict: bool = False) -> Self:
        return type(self)(self.parts[0], *os.path.normpath('/' + '/'.join(self.parts[1:])).split('/'))

    def local(self) -> Path:
        """Fetch the object; its file in the cache, which may be removed when the cache is full."""
        return Path(ask('fetch', str(self)))

    def copy_to(self, target: Path) -> None:
        """Copy the object, or the folder of objects, to a path of this machine. Raises StoreError for names that lead out."""
        names = [''] if self.is_file() else self.names()
        for name in names:
            if os.pardir in name.split('/') or '' in name.split('/')[1:] or name.startswith('/'):
                raise StoreError(errno.EINVAL, 'is not a name that a file can have; copy the others by hand', str(self / name))
        fetch_ahead(str(self / name) for name in names)
        for name in names:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            with (self / name).open('rb') as source, (target / name).open('wb') as file:
                shutil.copyfileobj(source, file)

    def names(self) -> list[str]:
        """Names of the objects in this folder and below, relative to it. Raises StoreError over https, which has no lists."""
        return list(ask('list', str(self)))

    def open(  # type: ignore[override]
        self,
        mode: str = 'r',
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
    ) -> IO[Any]:
        if set(mode) & set('wax+'):
            raise self._read_only()
        while True:
            try:
                return self.local().open(mode, buffering, encoding, errors, newline)
            except FileNotFoundError as error:
                if error.filename == str(self):
                    raise  # otherwise it was removed from a full cache before it was opened

    def mkdir(self, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        raise self._read_only()

    def _read_only(self) -> StoreError:
        return StoreError(errno.EROFS, 'is in a bucket, which is only read here; write to a folder of this machine', str(self))

    def is_file(self) -> bool:
        return ask('state', str(self)) is not None

    def is_dir(self) -> bool:
        return bool(ask('is_folder', str(self)))

    def exists(self) -> bool:
        return self.is_file() or self.is_dir()

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        """Size, and a number that changes with the content instead of a time. Raises FileNotFoundError."""
        if (state := ask('state', str(self))) is None:
            raise FileNotFoundError(errno.ENOENT, MISSING, str(self))
        size, version = state
        return SimpleNamespace(st_size=size, st_mtime_ns=int.from_bytes(version.encode()), st_mode=0o100444)

    def iterdir(self) -> Generator[Self, None, None]:
        for name in dict.fromkeys(name.partition('/')[0] for name in self.names()):
            yield self / name

    def glob(self, pattern: str) -> Iterator[Self]:  # type: ignore[override]
        wanted = pattern.split('/')
        for name in self.names():
            parts = name.split('/')
            if len(parts) == len(wanted) and all(map(fnmatchcase, parts, wanted)):
                yield self / name

    def rglob(self, pattern: str) -> Iterator[Self]:  # type: ignore[override]
        for name in self.names():
            if PurePosixPath(name).match(pattern):
                yield self / name


def _cure(scheme: str) -> str:
    if scheme.startswith('http'):
        return 'give a URL that needs none, or the s3://, gs:// or az:// form, whose credentials come from the environment'
    return 'remove them: they come from the environment, a profile or the role of the machine'


def fetch_ahead(urls: Iterable[str]) -> None:
    """Fetch objects in this order before they are asked for; does not wait. Others than URLs are left out."""
    if remote := [url for url in urls if is_url(url)]:
        ask('ahead', remote)


def upload(file: Path, url: StorePath) -> None:
    """Write a file to a bucket; the object appears as a whole. Raises StoreError."""
    ask('put', str(file.absolute()), str(url))


def remove_object(url: StorePath) -> None:
    """Remove an object that Phalanx wrote. Raises StoreError."""
    ask('remove', str(url))


def forget(url: StorePath) -> None:
    """Forget which objects are at or below a URL: another machine writes there."""
    ask('forget', str(url))


def fetched() -> dict[str, Any]:
    """Counts since the fetcher began, empty without one: `bytes` from buckets, files `ahead`, `asked` and `hits`, `retries`."""
    return dict(ask('counts')) if uses_buckets() else {}


def uses_buckets() -> bool:
    """True once this process, or one that started it, has read from a bucket."""
    return FETCHER in os.environ


def ask(*request: Any) -> Any:
    """Answer of the fetcher of this node to one request. Raises StoreError and FileNotFoundError."""
    # One connection per thread and process: a forked one would share that of its parent.
    connection = _connection(os.getpid(), threading.get_ident())
    try:
        reply = connection.ask(request)
    except (OSError, ValueError) as error:  # the fetcher was killed
        _connection.cache_clear()
        os.environ.pop(FETCHER, None)
        raise StoreError(errno.EIO, f'the process that fetches objects has ended ({error})', str(request[-1])) from None
    if isinstance(reply, dict) and 'error' in reply:
        kind = FileNotFoundError if reply['errno'] == errno.ENOENT else StoreError
        raise kind(reply['errno'], reply['error'], reply['url'])
    return reply


class _Connection:
    """Connection to the fetcher of this node, which is started if no parent process has done so."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None  # referenced, or Python would warn that it still runs
        place = os.environ.get(FETCHER)
        try:
            self._file = _connect(place or '')
        except OSError:  # none, or that of another node or of a process that has ended
            self._file = _connect(self._start())

    def ask(self, request: tuple[Any, ...]) -> Any:
        self._file.write(json.dumps(request).encode() + b'\n')
        self._file.flush()
        if not (line := self._file.readline()):
            raise OSError('no answer')
        return json.loads(line)

    def _start(self) -> str:
        """Start a fetcher, which ends with its last connection; its socket."""
        if find_spec('obstore') is None:
            raise StoreError(errno.ENOSYS, INSTALL, 'a bucket')
        folder = tempfile.mkdtemp(prefix='phalanx-fetcher-')
        place = f'{folder}/socket'
        command = [sys.executable, '-m', 'phalanx.system.fetcher', place, os.environ.get(CACHE, '{}')]
        # A session of its own: a terminal would send it the signals that ranks need their data to react to.
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self._process.stdout is not None
        with self._process.stdout as output:
            problem = output.readline()
        if problem != 'ready\n':
            raise StoreError(errno.EIO, f'the process that fetches objects did not start: {problem.strip()}', 'a bucket')
        os.environ[FETCHER] = place  # for the processes that this one starts
        return place


@cache
def _connection(process: int, thread: int) -> _Connection:
    return _Connection()


def _connect(place: str) -> Any:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(place)
    return connected.makefile('rwb')
