"""What the service answers: `/` a page to drop an image on, `/predict`, `/health`, `/metrics`."""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, is_dataclass
from importlib.resources import files
from typing import Any

import cv2
import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, PlainTextResponse

from phalanx.data.image import decoded
from phalanx.data.samples import SampleError
from phalanx.deploy.serve.batching import Batcher, FullError
from phalanx.runtime import ArtifactError


def application(batcher: Batcher, *, most_bytes: int) -> FastAPI:
    """The service; a request may have `most_bytes`."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with batcher.working():
            yield

    guide, counts = batcher.model.guide, batcher.counts
    app = FastAPI(title='phalanx serve', lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get('/')
    async def page() -> HTMLResponse:
        return HTMLResponse(files('phalanx.deploy.serve').joinpath('page.html').read_text(encoding='utf-8'))

    @app.get('/health')
    async def health() -> Mapping[str, Any]:
        return {'status': 'ok', **{key: guide[key] for key in ('task', 'model', 'phalanx', 'recipe', 'metric')}}

    @app.get('/metrics')
    async def metrics() -> PlainTextResponse:
        values = {**{f'{name}_total': value for name, value in asdict(counts).items()}, 'waiting': batcher.waiting.qsize()}
        return PlainTextResponse(''.join(f'phalanx_{name} {value}\n' for name, value in values.items()))

    @app.post('/predict')
    async def predict(request: Request) -> Any:
        try:
            data = image_in(await body(request, most_bytes), request.headers.get('content-type', ''))
            image = await run_in_threadpool(decoded, data, 'the image')
            return answer(await batcher.result(image), guide)
        except FullError as error:
            raise HTTPException(503, str(error)) from None
        except (ArtifactError, SampleError, ValueError) as error:
            counts.refused += 1
            raise HTTPException(422, str(error)) from None

    return app


async def body(request: Request, most: int) -> bytes:
    """What was sent. Raises HTTPException as soon as it is more than `most` bytes, however much the client announced."""
    data = bytearray()
    async for piece in request.stream():
        data += piece
        if len(data) > most:
            raise HTTPException(413, f'a request may have {most} bytes (--max_mib)')
    return bytes(data)


def image_in(data: bytes, kind: str) -> bytes:
    """The bytes of the image file in a request: all of it, or `image` of a JSON object, in base64. Raises ValueError."""
    if not kind.startswith('application/json'):
        return data
    try:
        return base64.b64decode(json.loads(data)['image'], validate=True)
    except (json.JSONDecodeError, KeyError, TypeError, binascii.Error, UnicodeDecodeError):
        raise ValueError('the JSON object is {"image": "..."}, the bytes of an image file in base64') from None


def answer(result: Any, guide: Mapping[str, Any]) -> Mapping[str, Any]:
    """A result as JSON has it; a class map as a PNG file in base64, and how many pixels each class has."""
    if isinstance(result, list):
        return {'found': [asdict(one) for one in result]}
    if is_dataclass(result) and not isinstance(result, type):
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(result).items()}
    numbers, pixels = np.unique(result, return_counts=True)
    names = guide['reading']['classes']
    picture = base64.b64encode(cv2.imencode('.png', result)[1].tobytes()).decode()
    return {'pixels': {names[n]: int(count) for n, count in zip(numbers, pixels, strict=True)}, 'class_map_png': picture}
