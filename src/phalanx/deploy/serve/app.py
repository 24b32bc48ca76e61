"""HTTP service: `/` (a page to drop an image on), `/predict`, `/health`, `/metrics`."""

import base64
import contextlib
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from fastapi import FastAPI, HTTPException, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, PlainTextResponse
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException as FormError
from starlette.types import Message

from phalanx.data.image import decode_image, find_frames
from phalanx.data.samples import Image, SampleError
from phalanx.deploy.serve.batching import Batcher, FullError
from phalanx.deploy.serve.page import render_page
from phalanx.runtime import ArtifactError


def create_app(batcher: Batcher, *, file: Path, most_bytes: int) -> FastAPI:
    """Create the service for the exported `file` that `batcher` runs; requests are limited to `most_bytes`."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with batcher.working():
            yield

    guide, counts = batcher.model.guide, batcher.counts
    drop_page = render_page(guide, file)
    # Without FastAPI's pages of documentation, which load scripts from the internet.
    app = FastAPI(title='phalanx serve', lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)

    @app.get('/')
    async def page() -> HTMLResponse:
        return HTMLResponse(drop_page)

    @app.get('/health')
    async def health() -> Mapping[str, Any]:
        return {'status': 'ok', **{key: guide.get(key) for key in ('task', 'model', 'phalanx', 'recipe', 'metric')}}

    @app.get('/metrics')
    async def metrics() -> PlainTextResponse:
        values = {**{f'{name}_total': value for name, value in asdict(counts).items()}, 'waiting': batcher.waiting.qsize()}
        return PlainTextResponse(''.join(f'phalanx_{name} {value}\n' for name, value in values.items()))

    @app.post('/predict')
    async def predict(request: Request) -> Any:
        try:
            if request.query_params:
                raise ValueError(f'{next(iter(request.query_params))}: there are no parameters; each result has its score')
            data = await read_image_bytes(request, await read_body(request, most_bytes))
            # Decoding takes milliseconds, in which the event loop must go on to accept requests.
            image = await run_in_threadpool(decode_only_image, data)
            return to_json(await batcher.result(image), guide)
        except FullError as error:
            raise HTTPException(503, str(error)) from None
        except (ArtifactError, SampleError, ValueError) as error:
            counts.refused += 1
            raise HTTPException(422, str(error)) from None

    return app


def decode_only_image(data: bytes) -> Image:
    """Decode the only image in a file. Raises SampleError, and ValueError for a file of several."""
    if (count := len(find_frames(data))) > 1:
        raise ValueError(f'the file has {count} pages or frames; send each as an image of its own')
    return decode_image(data, 'the image')


async def read_body(request: Request, most: int) -> bytes:
    """Read the body of a request. Raises HTTPException as soon as it exceeds `most` bytes, whatever its header says."""
    data = bytearray()
    # Piece by piece: Content-Length may lie, or be absent.
    async for piece in request.stream():
        data += piece
        if len(data) > most:
            raise HTTPException(413, f'a request may have {most} bytes (--max_mib)')
    return bytes(data)


async def read_image_bytes(request: Request, data: bytes) -> bytes:
    """Bytes of the image file in the body `data`: the file of a form, base64 in a JSON object, or the body itself.

    Raises ValueError.
    """
    kind = request.headers.get('content-type', '').lower()  # but for the boundary of a form, which is read again
    if kind.startswith('multipart/form-data'):
        return await read_form_file(request, data)
    if not kind.startswith('application/json'):
        return data
    try:
        match json.loads(data):
            case {'image': str(image), **others} if not others:
                return base64.b64decode(image, validate=True)
    except (ValueError, RecursionError):
        pass  # as any other object
    raise ValueError('the JSON object is {"image": "..."} and nothing else: the bytes of an image file in base64')


async def read_form_file(request: Request, data: bytes) -> bytes:
    """Bytes of the only file in a form. Raises ValueError."""

    async def replay() -> Message:  # the body has been read by now, within its limit
        return {'type': 'http.request', 'body': data, 'more_body': False}

    try:
        async with Request(request.scope, replay).form(max_files=1, max_fields=8) as form:
            sent = [field for field in form.values() if isinstance(field, UploadFile)]
            if len(sent) == 1:
                return await sent[0].read()
    except FormError as error:
        raise ValueError(f'the form: {error.detail}') from None
    raise ValueError('the form has no file; send the image as one: curl -F image=@photo.jpg')


def to_json(result: Any, guide: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a result to JSON; a class map becomes a PNG file in base64 with pixel counts per class."""
    if isinstance(result, list):
        return {'found': [asdict(item) for item in result]}
    if isinstance(result, float):  # of a classifier of text lines
        return {'upside_down': result}
    if is_dataclass(result) and not isinstance(result, type):
        return {name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in asdict(result).items()}
    # A class map: one byte per pixel compresses well as PNG.
    numbers, pixels = np.unique(result, return_counts=True)
    names = guide['reading']['classes']
    picture = base64.b64encode(cv2.imencode('.png', result)[1].tobytes()).decode()
    return {'pixels': {names[n]: int(count) for n, count in zip(numbers, pixels, strict=True)}, 'class_map_png': picture}
