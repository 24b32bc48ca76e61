"""A store of objects in this process that speaks some S3, and a proxy in front of real ones; both fail on request."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

SECRET = 'never-to-be-written'
SIGNATURE = 'AWS4-HMAC-SHA256 Credential=tests/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0'


class Store:
    """Objects by `/bucket/key`, and how to answer the next requests."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []  # method and path
        self.sent = 0  # bytes of objects
        self.failures = 0  # of the next requests: they get 503
        self.pause_s = 0.0  # before each answer
        self.mark = '"'  # around ETags in lists; Azure has none there

    def put(self, folder: Path, prefix: str) -> None:
        for file in folder.rglob('*'):
            if file.is_file():
                self.objects[f'/{prefix}/{file.relative_to(folder).as_posix()}'] = file.read_bytes()

    def gets(self, path: str) -> int:
        """Number of times that the object was sent."""
        return self.requests.count(('GET', path))

    def listing(self, bucket: str, prefix: str) -> bytes:
        entries = (
            f'<Contents><Key>{escape(key.removeprefix(f"/{bucket}/"))}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>'
            f'<ETag>{self.mark}{etag(data)}{self.mark}</ETag><Size>{len(data)}</Size></Contents>'
            for key, data in sorted(self.objects.items())
            if key.startswith(f'/{bucket}/{prefix}')
        )
        return f'<ListBucketResult><IsTruncated>false</IsTruncated>{"".join(entries)}</ListBucketResult>'.encode()


def etag(data: bytes) -> str:
    return hashlib.md5(data).hexdigest()


@contextmanager
def serve(store: Store) -> Iterator[str]:
    """Address of a server of `store`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            path, query = unquote(url.path), parse_qs(url.query)
            store.requests.append((self.command, path))
            time.sleep(store.pause_s)
            if store.failures:
                store.failures -= 1
                self.answer(503, b'<Error><Code>SlowDown</Code></Error>')
            elif 'list-type' in query:
                self.answer(200, store.listing(path.split('/')[1], query.get('prefix', [''])[0]))
            elif path not in store.objects:
                self.answer(404, b'<Error><Code>NoSuchKey</Code></Error>')
            else:
                data = store.objects[path]
                store.sent += len(data) * (self.command == 'GET')
                self.answer(200, data)

        do_HEAD = do_GET  # noqa: N815

        def do_PUT(self) -> None:
            path = unquote(urlsplit(self.path).path)
            store.requests.append((self.command, path))
            store.objects[path] = self.rfile.read(int(self.headers['Content-Length']))
            self.answer(200, b'', tag=etag(store.objects[path]))

        def do_POST(self) -> None:
            """Remove the objects that the body lists, and name them."""
            body = self.rfile.read(int(self.headers['Content-Length'])).decode()
            keys = re.findall('<Key>(.*?)</Key>', body)
            for key in keys:
                path = f'{unquote(urlsplit(self.path).path).rstrip("/")}/{unescape(key)}'
                store.requests.append(('DELETE', path))
                store.objects.pop(path, None)
            removed = ''.join(f'<Deleted><Key>{key}</Key></Deleted>' for key in keys)
            self.answer(200, f'<DeleteResult>{removed}</DeleteResult>'.encode())

        def answer(self, status: int, data: bytes, tag: str = '') -> None:
            self.send_response(status)
            self.send_header('Content-Length', str(len(data)))
            self.send_header('ETag', f'"{tag or etag(data)}"')
            self.send_header('Last-Modified', 'Thu, 01 Jan 2026 00:00:00 GMT')
            self.end_headers()
            if self.command != 'HEAD':
                self.wfile.write(data)

        def log_message(self, format: str, *values: object) -> None:
            """Keep quiet."""

    with _served(Handler) as address:
        yield address


def access(address: str, cache: Path) -> dict[str, str]:
    """Environment variables with which obstore reaches a server of S3, and where the cache of its objects lies."""
    return {
        'AWS_ENDPOINT_URL': address,
        'AWS_ALLOW_HTTP': 'true',
        'AWS_REGION': 'us-east-1',
        'AWS_ACCESS_KEY_ID': 'tests',
        'AWS_SECRET_ACCESS_KEY': SECRET,
        'XDG_CACHE_HOME': str(cache),
    }


class Proxy:
    """Way to a store, of `rate` bytes per second, on which every `failing`-th request gets 503."""

    def __init__(self, rate: float, failing: int) -> None:
        self.rate, self.failing = rate, failing
        self.requests = self.failed = self.written = 0  # written: number of uploads
        self.sent = self.cut = 0  # bytes of objects; of these, in transfers that `vanish` cut
        self._free = self._back = 0.0  # times at which the line is free, and at which the store is back
        self._lock = threading.Lock()

    def vanish(self, seconds: float) -> None:
        """Cut all connections for some time."""
        self._back = time.monotonic() + seconds

    def is_gone(self) -> bool:
        return time.monotonic() < self._back

    def fails(self) -> bool:
        """Count a request; True if it is to fail."""
        with self._lock:
            self.requests += 1
            self.failed += self.requests % self.failing == 0
            return self.requests % self.failing == 0

    def wait_for_line(self, size: int, of_object: bool) -> None:
        with self._lock:
            self.sent += size * of_object
            self._free = max(self._free, time.monotonic()) + size / self.rate
            free = self._free
        time.sleep(max(0.0, free - time.monotonic()))


@contextmanager
def forward(proxy: Proxy, port: int) -> Iterator[str]:
    """Address of a proxy in front of the server at a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = 'HTTP/1.1'

        def do_GET(self) -> None:
            if proxy.is_gone():
                self.close_connection = True
                return
            body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
            proxy.written += self.command == 'PUT'
            if proxy.fails():
                self.answer(503, [], b'<Error><Code>SlowDown</Code></Error>')
                return
            upstream = HTTPConnection('127.0.0.1', port)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() != 'authorization' or value.startswith('AWS'):
                    upstream.putheader(name, value)  # the host too: it is part of the signature
            if not self.headers.get('Authorization', '').startswith('AWS'):  # of Google's client; moto needs one of AWS
                upstream.putheader('Authorization', SIGNATURE)
            upstream.endheaders(body)
            response = upstream.getresponse()
            self.answer(response.status, response.getheaders(), response.read())
            upstream.close()

        do_HEAD = do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815

        def answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                if name.lower() not in ('transfer-encoding', 'connection', 'content-length', 'date', 'server'):
                    self.send_header(name, value)
            kept = {name.lower(): value for name, value in headers}
            self.send_header('Content-Length', kept.get('content-length', '0') if self.command == 'HEAD' else str(len(data)))
            self.end_headers()
            of_object = self.command == 'GET' and status < 300 and 'list-type' not in self.path
            for begin in range(0, len(data), 2**16):
                part = data[begin : begin + 2**16]
                proxy.wait_for_line(len(part), of_object)
                if proxy.is_gone():
                    proxy.cut += (begin + len(part)) * of_object
                    self.close_connection = True
                    return
                self.wfile.write(part)

        def log_message(self, format: str, *values: object) -> None:
            """Keep quiet."""

    with _served(Handler) as address:
        yield address


@contextmanager
def _served(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    server = ThreadingHTTPServer(('127.0.0.1', 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f'http://127.0.0.1:{server.server_address[1]}'
    finally:
        server.shutdown()
        server.server_close()
