"""Trained model with its pre- and post-processing, for Python."""

from collections.abc import Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import torch

from phalanx.data.image import AnImage
from phalanx.data.samples import Image
from phalanx.engine.device import pick_device
from phalanx.engine.folder import describe_weights
from phalanx.engine.initial import load_trained
from phalanx.engine.job import Job, open_job
from phalanx.parallel import dist
from phalanx.weights.checkpoint import step_of


class Trained:
    """Trained model with its pre- and post-processing.

    `model(image)` returns the result for an image [H, W, 3] uint8 RGB (with `data.bands`, [H, W, C] of these), the path of one,
    or one of PIL; for a list of images, a list of results. Results are, in pixels of the image: segmentation, a class map
    [H, W] uint8; detection, a list of `Found`, the most probable first; recognition, a `Reading`; table, a `Prediction`.

    `task` is the family, `class_names` are the classes (characters of a recogniser, tokens of tables) by index. `weights`
    describes the loaded weights (`runs/mine, step 200 (best), EMA`), `step` is that of the checkpoint, None for other weights.
    `network` is the module, on its device, in evaluation mode.
    """

    def __init__(self, job: Job, weights: str | Path | None, device: str | torch.device, *, is_shared: bool = False) -> None:
        """`is_shared`: the ranks of a process group do this together, and rank 0 reads the weights for all of them."""
        # Without an EMA in the recipe there are only the weights as trained.
        raw, self._task = job.recipe.ema is None, job.task
        self._device = device if isinstance(device, torch.device) else pick_device(str(device))
        self.task = str(job.resolved.value['task'].value)
        self.network = job.task.model()
        if not is_shared or dist.rank() == 0:
            load_trained(self.network, job.task, weights or job.folder, raw=raw).announce()
            place = Path(weights or job.folder)
            self.weights = describe_weights(job, weights, raw=raw)
            self.step = step_of(place) if place.is_dir() else None
        if is_shared:
            state = dict(self.network.state_dict())
            state, self.weights, self.step = dist.broadcast_with_tensors(
                (state, self.weights, self.step) if dist.rank() == 0 else None
            )
            self.network.load_state_dict(state)
        self.network.to(self._device).eval()
        self.class_names = tuple(next(iter(job.task.labels()), ()))

    def __repr__(self) -> str:
        return f'<Trained: {self.weights}>'  # the last line of a cell shows it

    def __call__(self, images: AnImage | Sequence[AnImage], *, batch_size: int = 8) -> Any:
        """Return the result of an image, or the results of a list of images in order, `batch_size` of equal size at a time.

        Raises ValueError for an array that is not an image, and SampleError for a file that cannot be read.
        """
        if batch_size < 1:
            raise ValueError(f'batch_size must be at least 1, got {batch_size}')
        if isinstance(images, list | tuple):
            return self._results([self._task.load_image(image) for image in images], batch_size)
        (result,) = self._results([self._task.load_image(images)], 1)  # type: ignore[arg-type]
        return result

    def draw(self, image: AnImage, result: Any) -> Image:
        """Return the image [H, W, 3] uint8 RGB with its result drawn on it; recognised text is drawn below its line."""
        return self._task.writers.draw(self._task.load_image(image), result)

    @torch.no_grad()
    def _results(self, images: Sequence[Image], batch_size: int) -> list[Any]:
        """Predict in batches of consecutive images of one prepared size, so that each result is that of its image alone."""
        results: list[Any] = []
        # Only neighbours are batched, so results come in the order of the images without sorting.
        for _, alike in groupby(map(self._task.request, images), key=lambda prepared: prepared.image.shape):
            # A batch needs images of equal size: padding would change results at the edge.
            while samples := list(islice(alike, batch_size)):
                batch = self._task.collate(samples).to(self._device)
                results += self._task.results(self._task.predict(self.network, batch), batch)
        return results


def load_run(folder: str | Path, weights: str | Path | None = None, device: str = 'auto') -> Trained:
    """Load the trained model of a run folder; `weights` replaces the run's best ones. `device`: auto, cpu, cuda or
    cuda:N.

    Raises ConfigError or CheckpointError if something is missing or damaged.
    """
    return Trained(open_job(str(folder)), weights, device)
