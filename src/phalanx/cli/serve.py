"""`phalanx serve MODEL.onnx`: an exported model as an HTTP service."""

import contextlib
import errno
import socket
from collections.abc import Sequence
from importlib.util import find_spec

from phalanx.cli.deploy_options import serve_parser
from phalanx.deploy.exported import find_exported, open_exported
from phalanx.system.errors import RequestError

NEEDED = ('fastapi', 'uvicorn', 'onnxruntime', 'jinja2')
PORTS = 20  # tried for a free one to suggest


def command(words: Sequence[str]) -> int:
    """Serves until it is stopped, and answers what was asked before. Raises RequestError."""
    given = serve_parser().parse_args(words)
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        raise RequestError(f'serve needs {", ".join(absent)}: pip install "phalanx-vision[serve]"')

    import uvicorn

    from phalanx.deploy.serve.app import create_app
    from phalanx.deploy.serve.batching import Batcher

    file = find_exported(given.model)
    model = open_exported(file, given.threads)
    if 'bands' in model.guide['preparation']:
        raise RequestError(f'{file}: is for images of other bands than RGB; `phalanx predict` and phalanx.runtime take those')
    app = create_app(Batcher(model, most=given.batch, room=given.queue), file=file, most_bytes=given.max_mib * 2**20)
    host = given.host.strip('[]')  # an IPv6 address may come as in a URL
    with listen(host, given.port) as listening:
        shown = f'[{host}]' if ':' in host else host
        print(f'{file}: open http://{shown}:{listening.getsockname()[1]}/ and drop images there; Ctrl-C stops it', flush=True)
        config = uvicorn.Config(app, log_level='warning', access_log=False, timeout_graceful_shutdown=30)
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])
    return 0


def listen(host: str, port: int) -> socket.socket:
    """Listen at an address; port 0 is any free one. Raises RequestError; if the port is taken, it suggests another."""
    family = socket.AF_INET6 if ':' in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise RequestError(f'--host {host} --port {port}: {error.strerror}') from None
    for other in range(port + 1, min(port + PORTS, 2**16)):
        with contextlib.suppress(OSError), socket.create_server((host, other), family=family):
            raise RequestError(f'port {port} is in use, by another `phalanx serve`, perhaps; add --port {other}')
    raise RequestError(f'port {port} is in use; give another with --port')
