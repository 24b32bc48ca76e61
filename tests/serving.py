"""An exported file, served from a thread of the test."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import uvicorn

from phalanx.deploy.serve.app import create_app
from phalanx.deploy.serve.batching import Batcher
from phalanx.runtime import Model, load


class Watched(Batcher):
    """Says when a request has come to it."""

    def __init__(self, model: Model, *, most: int, room: int) -> None:
        super().__init__(model, most=most, room=room)
        self.taken = threading.Semaphore(0)

    def wait_for(self, requests: int) -> None:
        for _ in range(requests):
            assert self.taken.acquire(timeout=60)

    async def result(self, image: Any) -> Any:
        self.taken.release()  # what is left until it stands in the queue happens before anything else does
        return await super().result(image)


class Server(uvicorn.Server):
    """Says on which port it listens."""

    def __init__(self, batcher: Watched, file: Path, most_bytes: int) -> None:
        app = create_app(batcher, file=file, most_bytes=most_bytes)
        # No log of its own: for that uvicorn closes all handlers there are, and absl's closes the stream that pytest writes to.
        super().__init__(uvicorn.Config(app, host='127.0.0.1', port=0, log_level='error', log_config=None))
        self.batcher = batcher
        self.port, self.listening = 0, threading.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        self.port = self.servers[0].sockets[0].getsockname()[1]
        self.listening.set()


@contextmanager
def served(file: Path, model: Model | None = None, *, room: int = 64, most_bytes: int = 2**20) -> Iterator[Server]:
    """Serve an exported file, from a thread; `model` is that file, loaded."""
    server = Server(Watched(model or load(file), most=8, room=room), file, most_bytes)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.listening.wait(60)
        yield server
    finally:
        server.should_exit = True
        thread.join()


def asked(port: int, path: str, data: bytes | None = None, kind: str = 'image/png') -> tuple[int, Any]:
    """The status and the answer."""
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=60)
    connection.request('GET' if data is None else 'POST', path, data, {'Content-Type': kind})
    response = connection.getresponse()
    output = response.read()
    connection.close()
    return response.status, json.loads(output) if output.startswith(b'{') else output.decode()
