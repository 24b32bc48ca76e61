"""The command line of `phalanx serve`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from phalanx.config.arguments import Parser
from phalanx.runtime import ArtifactError, load
from phalanx.system.errors import RequestError

NEEDED = ('fastapi', 'uvicorn', 'onnxruntime')
EXAMPLES = (
    'phalanx serve runs/mine/model.onnx                     # a page on http://127.0.0.1:8000',
    'curl --data-binary @photo.jpg http://127.0.0.1:8000/predict',
)


def command(words: Sequence[str]) -> int:
    """Serves until it is stopped, and answers what was asked before. Raises RequestError."""
    parser = Parser('phalanx serve', 'Serves an exported model over HTTP.', EXAMPLES)
    parser.add_argument('model', metavar='MODEL.onnx', type=Path, help='what `phalanx export` wrote')
    parser.add_argument('--host', default='127.0.0.1', help='the address to listen on (default: this node alone can ask)')
    parser.add_argument('--port', type=_natural, default=8000, metavar='N', help='default: 8000')
    parser.add_argument('--batch', type=_natural, default=8, metavar='N', help='images that are predicted at once (default: 8)')
    parser.add_argument('--queue', type=_natural, default=64, metavar='N', help='requests that may wait (default: 64)')
    parser.add_argument('--max_mib', type=_natural, default=32, metavar='N', help='size of a request (default: 32)')
    parser.add_argument('--threads', type=_natural, default=0, metavar='N', help='for the network (default: one a core)')
    given = parser.parse_args(words)
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        raise RequestError(f'serve needs {", ".join(absent)}: pip install "phalanx-vision[serve]"')

    import uvicorn

    from phalanx.deploy.serve.app import application
    from phalanx.deploy.serve.batching import Batcher

    try:
        model = load(given.model, threads=given.threads)
    except ArtifactError as error:
        raise RequestError(str(error)) from None
    app = application(Batcher(model, most=given.batch, room=given.queue), most_bytes=given.max_mib * 2**20)
    uvicorn.run(app, host=given.host, port=given.port, log_level='info', access_log=False, timeout_graceful_shutdown=30)
    return 0


def _natural(text: str) -> int:
    if not text.isdigit() or not int(text):
        raise argparse.ArgumentTypeError(f'{text!r} is not a whole number from 1 on')
    return int(text)
