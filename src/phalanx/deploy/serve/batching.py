"""Requests that come at the same time are predicted together."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from phalanx.runtime import ArtifactError, Model
from phalanx.runtime.prepare import Image


class FullError(Exception):
    """More requests wait than are taken."""


@dataclass
class Counts:
    """What `/metrics` says, since the start."""

    images: int = 0
    batches: int = 0
    refused: int = 0  # requests with something wrong in them
    turned_away: int = 0  # requests for which there was no room
    seconds: float = 0.0  # spent predicting


class Batcher:
    """Images one by one to results, by a model that sees up to `most` of them at once; at most `room` wait for it."""

    def __init__(self, model: Model, *, most: int, room: int) -> None:
        self.model, self.most = model, most
        self.waiting: asyncio.Queue[tuple[Image, asyncio.Future[Any]]] = asyncio.Queue(room)
        self.counts = Counts()

    @contextlib.asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Within this context images are predicted; at its end those that wait have had their answers."""
        work = asyncio.create_task(self._work())
        try:
            yield
            await self.waiting.join()
        finally:
            work.cancel()

    async def result(self, image: Image) -> Any:
        """Raises FullError, and ArtifactError when the file does not take the image."""
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
            taken = [await self.waiting.get()]
            while len(taken) < self.most and not self.waiting.empty():  # whoever came while the last batch was predicted
                taken.append(self.waiting.get_nowait())
            begin = loop.time()
            results = await asyncio.to_thread(self._predicted, [image for image, _ in taken])
            self.counts.seconds += loop.time() - begin
            self.counts.batches += 1
            self.counts.images += len(taken)
            for (_, answer), result in zip(taken, results, strict=True):
                if answer.cancelled():  # the client has gone
                    pass
                elif isinstance(result, Exception):
                    answer.set_exception(result)
                else:
                    answer.set_result(result)
                self.waiting.task_done()

    def _predicted(self, images: list[Image]) -> list[Any]:
        """The result of each image, or the error that it raises: one that the file does not take costs no other its answer."""
        try:
            return self.model.batch(images)
        except (ArtifactError, ValueError) as error:
            return [error] if len(images) == 1 else [one for image in images for one in self._predicted([image])]
