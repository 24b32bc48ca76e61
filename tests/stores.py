"""A store of objects in this process that speaks as much S3 as is needed, fails on request and counts what it sends."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

SECRET = 'never-to-be-written'


class Store:
    """Objects by `/bucket/key`, and how to answer the next requests."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.requests: list[tuple[str, str]] = []  # method and path
        self.sent = 0  # bytes of objects
        self.failures = 0  # of the next requests: they get 503
        self.pause_s = 0.0  # before each answer

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
            f'<ETag>"{etag(data)}"</ETag><Size>{len(data)}</Size></Contents>'
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

    server = ThreadingHTTPServer(('127.0.0.1', 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f'http://127.0.0.1:{server.server_address[1]}'
    finally:
        server.shutdown()
        server.server_close()


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
