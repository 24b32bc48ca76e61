"""Batching of concurrent requests."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from phalanx.runtime import Model
from phalanx.runtime.prepare import Image


class FullError(Exception):
    """Error for a request when the queue is full."""


@dataclass
class Counts:
    """Counts for `/metrics` since the start."""

    images: int = 0
    batches: int = 0
    refused: int = 0  # invalid requests
    turned_away: int = 0  # requests rejected because the queue was full
    seconds: float = 0.0  # spent predicting


class Batcher:
    """Queue of images for a model, predicted in batches of up to `most`; at most `room` images wait."""

    def __init__(self, model: Model, *, most: int, room: int) -> None:
        self.model, self.most = model, most
        self.waiting: asyncio.Queue[tuple[Image, asyncio.Future[Any]]] = asyncio.Queue(room)
        self.counts = Counts()

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Context in which images are predicted; its end waits for all answers."""
        work = asyncio.create_task(self._work())
        try:
            yield
            await self.waiting.join()
        finally:
            work.cancel()

    async def result(self, image: Image) -> Any:
        """Predict an image. Raises FullError, and the error of the model: ArtifactError for a size that it does not take."""
        # Never wait for a place in the queue: a client should rather hear that the service is full.
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        try:
            self.waiting.put_nowait((image, answer))
        except asyncio.QueueFull:
            self.counts.turned_away += 1
            raise FullError(f'{self.waiting.maxsize} requests wait already; try again later') from None
        return await answer

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = [await self.waiting.get()]
            while len(batch) < self.most and not self.waiting.empty():  # requests that arrived during the previous batch
                batch.append(self.waiting.get_nowait())
            # In a thread: the event loop goes on receiving requests.
            begin = loop.time()
            results = await asyncio.to_thread(self._predict, [image for image, _ in batch])
            self.counts.seconds += loop.time() - begin
            self.counts.batches += 1
            self.counts.images += len(batch)
            for (_, answer), result in zip(batch, results, strict=True):
                if answer.cancelled():  # the client has gone
                    pass
                elif isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
                self.waiting.task_done()

    def _predict(self, images: list[Image]) -> list[Any]:
        """Result of each image, or its error: an image that the file does not accept does not affect the others."""
        try:
            return self.model.batch(images)
        except Exception as error:  # noqa: BLE001 - it would end the task that answers all later requests
            # One by one, to find the images at fault.
            return [error] if len(images) == 1 else [result for image in images for result in self._predict([image])]
