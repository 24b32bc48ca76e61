"""An exported model with its pre- and post-processing, ready to call on an image."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from phalanx.runtime.detection import Detection
from phalanx.runtime.family import Family
from phalanx.runtime.orientation import Orientation
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
    'orientation': Orientation,
}


class Model:
    """Exported network, called on images; `guide` is its metadata. Thread-safe."""

    def __init__(self, guide: Mapping[str, Any], run: Run) -> None:
        self.guide, self.run = guide, run
        self.family = FAMILIES[guide['task']](guide)

    def __call__(self, image: Image) -> Any:
        """Result for an image [H, W, 3] uint8 RGB, or with the bands that the file is for, as that of `phalanx.load_run`.

        Raises ValueError for another array, ArtifactError for a size that the file does not accept.
        """
        return self.batch([image])[0]

    def batch(self, images: Sequence[Image]) -> list[Any]:
        """Results for images; those of equal input size go through the network together."""
        pairs = zip(self.predictions(images), images, strict=True)
        return [self.family.result(prediction, image) for prediction, image in pairs]

    def predictions(self, images: Sequence[Image]) -> list[Any]:
        """Predictions for metrics, which `batch` turns into results: boxes are not clipped to the image yet."""
        bands = self.guide['preparation'].get('bands', {})  # of a file without the entry: RGB
        pixels = [check_image(image, **bands) for image in images]
        prepared = [self.family.prepare(image) for image in pixels]
        # Images of one input size share a pass, if the file accepts batches; results return in the order of `images`.
        together: dict[tuple[int, ...], list[int]] = {}
        for place, array in enumerate(prepared):
            key = array.shape if self.guide['input']['shape'][0] != 1 else (place,)  # a fixed batch size of 1
            together.setdefault(key, []).append(place)
        predictions: dict[int, Any] = {}
        for places in together.values():
            alike = [prepared[place] for place in places]
            outputs = self.family.outputs(self.run, np.stack(alike) if len(alike) > 1 else alike[0][None])
            for row, place in enumerate(places):
                own = {name: values[row] for name, values in outputs.items()}
                predictions[place] = self.family.prediction(own, pixels[place])
        return [predictions[place] for place in range(len(pixels))]


def load(file: str | Path, *, threads: int = 0) -> Model:
    """Load a file written by `phalanx export`; 0 threads: one per core. Raises ArtifactError."""
    guide, run = open_model(Path(file), threads)
    if guide['task'] not in FAMILIES:
        raise ArtifactError(f'{file}: is for {guide["task"]!r}; this version knows {", ".join(FAMILIES)}')
    return Model(guide, run)
