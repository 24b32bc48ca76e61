"""`phalanx serve MODEL.onnx`: an exported model as an HTTP service."""

from collections.abc import Sequence
from importlib.util import find_spec

from phalanx.cli.deploy_options import serve_parser
from phalanx.deploy.exported import find_exported
from phalanx.runtime import ArtifactError, load
from phalanx.system.errors import RequestError

NEEDED = ('fastapi', 'uvicorn', 'onnxruntime')


def command(words: Sequence[str]) -> int:
    """Serves until it is stopped, and answers what was asked before. Raises RequestError."""
    given = serve_parser().parse_args(words)
    if absent := [name for name in NEEDED if find_spec(name) is None]:
        raise RequestError(f'serve needs {", ".join(absent)}: pip install "phalanx-vision[serve]"')

    import uvicorn

    from phalanx.deploy.serve.app import create_app
    from phalanx.deploy.serve.batching import Batcher

    try:
        model = load(find_exported(given.model), threads=given.threads)
    except ArtifactError as error:
        raise RequestError(str(error)) from None
    app = create_app(Batcher(model, most=given.batch, room=given.queue), most_bytes=given.max_mib * 2**20)
    uvicorn.run(app, host=given.host, port=given.port, log_level='info', access_log=False, timeout_graceful_shutdown=30)
    return 0
