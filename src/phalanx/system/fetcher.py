"""Process that fetches objects from buckets for all processes of a node, into a bounded cache on disk.

Started by `buckets.py`; ends with its last connection. A request is a line of JSON, and so is its answer.

The cache needs no locks: a file is named by the digest of the URL and version of its object, appears by a rename, and may be
removed at any time by whoever finds the cache too large, the longest unused first. Several fetchers can share one.
"""

import asyncio
import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import signal
import sys
import time
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import obstore
from obstore import exceptions
from obstore.store import from_url

from phalanx.system.buckets import MISSING, redact
from phalanx.system.disk import remove_own, user_caches
from phalanx.system.errors import RequestError

T = TypeVar('T')
Meta = tuple[int, str]  # size and version of an object

GIB = 2**30
AT_ONCE = 32  # requests ahead
GIVE_UP_S = 300  # repeating a request; shorter than a rank waits for its loader workers
FIRST_S = 60  # the same before a bucket has answered once: its name or address may be wrong
LONGEST_PAUSE_S = 5
WARN_S = 15  # seconds between two warnings
PART_RETRIES = 10  # of the parts of a file that is uploaded
STREAMED = 2**23  # bytes of an object above which it is written while it arrives
# Requests that would fail again.
FINAL = (
    *(exceptions.PermissionDeniedError, exceptions.UnauthenticatedError, exceptions.InvalidPathError),
    *(exceptions.NotSupportedError, exceptions.UnknownConfigurationKeyError, exceptions.PreconditionError, ValueError),
)
CLIENT = {'connect_timeout': '5s', 'read_timeout': '30s', 'timeout': '3600s'}
CREDENTIALS = 'credentials come from the environment (AWS_ACCESS_KEY_ID, ...), a profile, or the role of the machine'


class ChangedError(ValueError):
    """Object that is not the one that was listed."""


class Fetcher:
    """Buckets, their cache, and the answers to requests."""

    def __init__(self, folder: Path, gib: float) -> None:
        self.folder, self.limit = folder, int(gib * GIB)
        self.stores: dict[tuple[str, int], Any] = {}  # by the URL of the bucket and the number of retries
        self.reached: set[str] = set()  # buckets that have answered
        self.objects: dict[str, Meta | None] = {}  # by URL
        self.listed: dict[str, list[str]] = {}  # names below a folder, by its URL
        self.running: dict[str, asyncio.Task[Any]] = {}  # downloads and lists by URL: each once at a time
        self.queue: deque[str] = deque()  # to be fetched ahead
        self.pumps: set[asyncio.Task[None]] = set()
        self.counts = {'bytes': 0, 'objects': 0, 'ahead': 0, 'asked': 0, 'hits': 0, 'retries': 0}
        self.warned = -float(WARN_S)
        folder.mkdir(parents=True, exist_ok=True)
        self.used = sum(size for _, size, _ in self._files())

    async def answer(self, kind: str, *values: Any) -> Any:
        """Answer one request; an error as an object with `error`, `errno` and `url`."""
        kinds: dict[str, Callable[..., Awaitable[Any]]] = {
            'fetch': self.asked,
            'list': self.names,
            'state': self.state,
            'is_folder': self.is_folder,
            'ahead': self.ahead,
            'put': self.put,
            'remove': self.remove,
            'forget': self.forget,
            'counts': self.counted,
        }
        url = values[-1] if values else ''
        try:
            return await kinds[kind](*values)
        except FileNotFoundError:
            return {'error': MISSING, 'errno': errno.ENOENT, 'url': url}
        except ChangedError as error:
            return {'error': str(error), 'errno': errno.ESTALE, 'url': url}
        except FINAL as error:
            return {'error': f'the store refuses: {_reason(error)}', 'errno': errno.EACCES, 'url': url}
        except (OSError, exceptions.BaseError) as error:
            return {'error': _reason(error), 'errno': errno.EIO, 'url': url}

    async def counted(self) -> dict[str, int]:
        return self.counts

    async def asked(self, url: str) -> str:
        self.counts['asked'] += 1
        return await self.fetch(url, hit=1)

    async def fetch(self, url: str, hit: int = 0) -> str:
        """Path of the object in the cache. Raises FileNotFoundError."""
        meta = await self.state(url)
        if meta is None:
            raise FileNotFoundError(url)
        key = hashlib.sha256(f'{url}\0{meta[0]}\0{meta[1]}'.encode('utf-8', 'surrogateescape')).hexdigest()[:40]
        file = self.folder / key[:2] / key
        with contextlib.suppress(FileNotFoundError):
            os.utime(file)  # used now
            self.counts['hits'] += hit
            return str(file)
        await self._once(url, lambda: self._download(url, meta, file))
        return str(file)

    async def _download(self, url: str, meta: Meta, file: Path) -> None:
        file.parent.mkdir(exist_ok=True)
        part = file.with_name(f'{file.name}.{os.getpid()}.part')
        bucket, key = _split(url)

        async def attempt() -> None:
            got = await obstore.get_async(self._store(bucket), key)
            if _meta(got.meta) != meta:
                raise ChangedError('the object has changed since the run began; start the run again')
            with part.open('wb') as out:
                chunks = got.stream(min_chunk_size=STREAMED)
                async for chunk in chunks:
                    self.counts['bytes'] += len(chunk)
                    out.write(chunk)
                if out.tell() != meta[0]:
                    raise OSError(f'{out.tell()} of {meta[0]} bytes arrived')

        try:
            await self._repeat(url, attempt)
            part.replace(file)
        finally:
            remove_own(part)
        self.counts['objects'] += 1
        self.used += meta[0]
        if self.used > self._room():
            self._evict()

    async def state(self, url: str) -> Meta | None:
        """Size and version of an object; None if there is none."""
        if url not in self.objects:
            if any(url.startswith(folder) for folder in self.listed):
                return None
            bucket, key = _split(url)
            try:
                found = await self._repeat(url, lambda: obstore.head_async(self._store(bucket), key))
            except FileNotFoundError:
                return None
            self.objects[url] = _meta(found)
        return self.objects[url]

    async def is_folder(self, url: str) -> bool:
        if url.startswith('http'):
            return True  # cannot be found out: a file that is missing below it is named when it is read
        bucket, key = _split(url)
        if any(url.startswith(folder) for folder in self.listed):
            return any(other.startswith(f'{url}/') for other in self.objects)

        async def attempt() -> bool:
            async for chunk in obstore.list(self._store(bucket), prefix=key or None, chunk_size=1):
                return bool(chunk)
            return False

        return await self._repeat(url, attempt)

    async def names(self, url: str) -> list[str]:
        """Names of all objects below a folder, sorted; requested once."""
        folder = f'{url.rstrip("/")}/'
        if folder.startswith('http'):
            raise ValueError(
                f'{folder.partition(":")[0]} has no lists of files; use s3://, gs:// or az://, or a data set with lists'
            )
        if folder not in self.listed:
            await self._once(folder, lambda: self._list(folder))
        return self.listed[folder]

    async def _list(self, folder: str) -> None:
        bucket, key = _split(folder)

        async def attempt() -> dict[str, Meta]:
            found: dict[str, Meta] = {}
            async for chunk in obstore.list(self._store(bucket), prefix=key.rstrip('/') or None):
                found |= {f'{bucket}/{each["path"]}': _meta(each) for each in chunk}
            return found

        found = await self._repeat(folder, attempt)
        self.objects |= found
        # Some tools store an empty object for a folder.
        self.listed[folder] = sorted(url[len(folder) :] for url in found if url.startswith(folder) and url != folder)

    async def ahead(self, urls: list[str]) -> bool:
        self.queue.extend(urls)
        self.counts['ahead'] += len(urls)
        while len(self.pumps) < min(AT_ONCE, len(self.queue)):
            pump = asyncio.create_task(self._pump())
            self.pumps.add(pump)
            pump.add_done_callback(self.pumps.discard)
        return True

    async def _pump(self) -> None:
        while self.queue:
            with contextlib.suppress(OSError, ValueError, exceptions.BaseError):  # who asks for the object learns why
                await self.fetch(self.queue.popleft())

    async def put(self, file: str, url: str) -> bool:
        bucket, key = _split(url)
        # A large file has many parts: one that fails is repeated by obstore, not the whole file.
        await self._repeat(url, lambda: obstore.put_async(self._store(bucket, PART_RETRIES), key, Path(file)))
        return self._forget_one(url)

    async def remove(self, url: str) -> bool:
        bucket, key = _split(url)
        await self._repeat(url, lambda: obstore.delete_async(self._store(bucket), key))
        return self._forget_one(url)

    def _forget_one(self, url: str) -> bool:
        self.objects.pop(url, None)
        for folder in [folder for folder in self.listed if url.startswith(folder)]:
            del self.listed[folder]
        return True

    async def forget(self, url: str) -> bool:
        """Forget what is known of the objects at and below a URL."""
        self.objects = {other: meta for other, meta in self.objects.items() if not f'{other}/'.startswith(f'{url}/')}
        self.listed = {folder: names for folder, names in self.listed.items() if not _overlap(folder, f'{url}/')}
        return True

    async def _once(self, url: str, make: Callable[[], Any]) -> None:
        """Run `make` for a URL, or wait for the run that another request has begun."""
        if (task := self.running.get(url)) is None:
            task = self.running[url] = asyncio.create_task(make())
            task.add_done_callback(lambda _: self.running.pop(url, None))
        await asyncio.shield(task)

    async def _repeat(self, url: str, attempt: Callable[[], Awaitable[T]]) -> T:
        """Repeat a failing request with growing pauses, up to GIVE_UP_S."""
        begin, pause, bucket = time.monotonic(), 0.1, _split(url)[0]
        while True:
            try:
                result = await attempt()
            except FileNotFoundError:
                self.reached.add(bucket)
                raise
            except FINAL:
                raise
            except (OSError, exceptions.BaseError) as error:
                reason, passed = _reason(error), time.monotonic() - begin
                if passed > (GIVE_UP_S if bucket in self.reached else FIRST_S):
                    raise OSError(f'the store failed for {passed:.0f} s: {reason}') from None
                self.counts['retries'] += 1
                self._warn(f'{bucket}: {reason}; repeating ({self.counts["retries"]} requests so far)')
            else:
                self.reached.add(bucket)
                return result
            # Spread by the URL, so that requests that failed together are not repeated together.
            await asyncio.sleep(pause * (0.5 + hash(url) % 100 / 100))
            pause = min(2 * pause, LONGEST_PAUSE_S)

    def _warn(self, message: str) -> None:
        if time.monotonic() - self.warned >= WARN_S:
            self.warned = time.monotonic()
            with contextlib.suppress(OSError):  # whoever started this process may have closed its output
                sys.stderr.write(f'phalanx: {message}\n')

    def _store(self, bucket: str, retries: int = 0) -> Any:
        if (bucket, retries) not in self.stores:
            allowed = [os.environ.get(f'{cloud}_ALLOW_HTTP') for cloud in ('AWS', 'AZURE', 'GOOGLE')]
            plain = bucket.startswith('http:') or 'true' in allowed
            options = {**CLIENT, 'allow_http': plain}
            more: dict[str, Any] = {}
            if bucket.startswith('s3:') and os.environ.get('AWS_PROFILE'):
                from obstore.auth.boto3 import Boto3CredentialProvider  # ImportError names boto3

                more['credential_provider'] = Boto3CredentialProvider()
            retry: Any = {'max_retries': retries}
            self.stores[bucket, retries] = from_url(bucket, client_options=options, retry_config=retry, **more)
        return self.stores[bucket, retries]

    def _files(self) -> list[tuple[float, int, Path]]:
        """Time of the last use, size and path of each file in the cache."""
        found = []
        for folder in self.folder.glob('??'):
            for entry in os.scandir(folder):
                with contextlib.suppress(FileNotFoundError):
                    found.append((entry.stat().st_mtime, entry.stat().st_size, Path(entry.path)))
        return found

    def _room(self) -> int:
        """Largest size of the cache: as the recipe says, and not more than nine tenths of what the disk has for it."""
        return min(self.limit, (shutil.disk_usage(self.folder).free + self.used) * 9 // 10)

    def _evict(self) -> None:
        files, room = sorted(self._files()), self._room() * 9 // 10
        self.used = sum(size for _, size, _ in files)
        for _, size, file in files:
            if self.used <= room:
                break
            remove_own(file)  # named by a digest, in the folder of the cache
            self.used -= size


def _overlap(first: str, second: str) -> bool:
    return first.startswith(second) or second.startswith(first)


def _split(url: str) -> tuple[str, str]:
    """URL of the bucket, and the key in it."""
    scheme, _, rest = url.partition('://')
    bucket, _, key = rest.partition('/')
    return f'{scheme}://{bucket}', key


def _meta(found: Any) -> Meta:
    # Azure puts its ETags in quotation marks, but not in lists.
    return found['size'], (found['e_tag'] or str(found['last_modified'])).strip('"')


def _reason(error: Exception) -> str:
    """First line of an error of obstore, without queries of URLs: signatures."""
    text = re.sub(r'<\?xml.*', '', redact(str(error).partition('\n')[0]))  # servers explain themselves in XML
    return f'{text}; {CREDENTIALS}' if re.search(r'169\.254\.|credential|403|401', text) else text


async def serve(place: Path, fetcher: Fetcher) -> None:
    """Answer requests at a socket until its last connection is closed."""
    clients, ended = 0, asyncio.Event()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal clients
        clients += 1
        try:
            while line := await reader.readline():
                reply = await fetcher.answer(*json.loads(line))
                writer.write(json.dumps(reply).encode() + b'\n')
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()
            clients -= 1
            if not clients:
                ended.set()

    server = await asyncio.start_unix_server(connected, place, limit=2**28)
    sys.stdout.write('ready\n')
    sys.stdout.close()
    await ended.wait()
    server.close()


def main() -> None:
    for stop in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # of a whole session: its clients still need objects to end
        signal.signal(stop, signal.SIG_IGN)
    place, options = Path(sys.argv[1]), json.loads(sys.argv[2])
    try:
        folder = Path(options.get('folder') or user_caches() / 'phalanx' / 'buckets')
        fetcher = Fetcher(folder, options.get('gib') or 50)
    except (OSError, RequestError) as error:
        sys.stdout.write(str(error))  # for the process that started this one
    else:
        asyncio.run(serve(place, fetcher))
    finally:
        remove_own(place.parent)  # made by the process that started this one


if __name__ == '__main__':
    main()
