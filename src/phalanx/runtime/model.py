"""An exported model with its pre- and post-processing, ready to call on an image."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.runtime.detection import Detection
from phalanx.runtime.family import Family
from phalanx.runtime.prepare import Image, check_image
from phalanx.runtime.recognition import Recognition
from phalanx.runtime.segmentation import Segmentation
from phalanx.runtime.session import ArtifactError, Run, open_model
from phalanx.runtime.table import Table
from phalanx.runtime.text_detection import TextDetection

FAMILIES: dict[str, type[Family]] = {
    'segmentation': Segmentation,
    'detection': Detection,
    'recognition': Recognition,
    'table': Table,
    'text_detection': TextDetection,
}


class Model:
    """Images to results; `guide` is what the file says about itself. Several threads may call one model at once."""

    def __init__(self, guide: Mapping[str, Any], run: Run) -> None:
        self.guide, self.run = guide, run
        self.family = FAMILIES[guide['task']](guide)

    def __call__(self, image: Image) -> Any:
        """The result for an image [H, W, 3] uint8 RGB, as `phalanx.load_run` gives it.

        Raises ValueError for what is not such an image, ArtifactError for a size that the file does not take.
        """
        return self.batch([image])[0]

    def batch(self, images: Sequence[Image]) -> list[Any]:
        """The results for images, those that the network sees at one size at once."""
        pairs = zip(self.predictions(images), images, strict=True)
        return [self.family.result(prediction, image) for prediction, image in pairs]

    def predictions(self, images: Sequence[Image]) -> list[Any]:
        """What `batch` makes results of, as an evaluation takes it: boxes are not cut off at the edges of the image."""
        pixels = [check_image(image) for image in images]
        prepared = [self.family.prepare(image) for image in pixels]
        together: dict[tuple[int, ...], list[int]] = {}
        for place, seen in enumerate(prepared):
            key = seen.shape if self.guide['input']['shape'][0] != 1 else (place,)  # the file may take one image at a time
            together.setdefault(key, []).append(place)
        found: dict[int, Any] = {}
        for places in together.values():
            alike = [prepared[place] for place in places]
            outputs = self.family.outputs(self.run, np.stack(alike) if len(alike) > 1 else alike[0][None])
            for row, place in enumerate(places):
                own = {name: values[row] for name, values in outputs.items()}
                found[place] = self.family.prediction(own, pixels[place])
        return [found[place] for place in range(len(pixels))]


def load(file: str | Path, *, threads: int = 0) -> Model:
    """The model in a file that `phalanx export` wrote; 0 threads: as many as there are cores. Raises ArtifactError."""
    guide, run = open_model(Path(file), threads)
    if guide['task'] not in FAMILIES:
        raise ArtifactError(f'{file}: is for {guide["task"]!r}; this version knows {", ".join(FAMILIES)}')
    return Model(guide, run)
