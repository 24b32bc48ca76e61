"""Exported models without torch: this folder needs numpy, OpenCV and onnxruntime (or OpenVINO) only.

    predict = phalanx.runtime.load('model.onnx')
    result = predict(image)  # [H, W, 3] uint8 RGB

How to prepare images and read results is stored in the file. Code shared with training, such as resizing and decoding, is
here, and the families import it.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.runtime.model import Model, load
    from phalanx.runtime.reading import lines_of, rows_of
    from phalanx.runtime.results import Found, Line, Prediction, Reading, TextRegion
    from phalanx.runtime.session import ArtifactError

__all__ = ['ArtifactError', 'Found', 'Line', 'Model', 'Prediction', 'Reading', 'TextRegion', 'lines_of', 'load', 'rows_of']

_HOMES = {'Model': 'model', 'load': 'model', 'lines_of': 'reading', 'rows_of': 'reading', 'ArtifactError': 'session'}


def __getattr__(name: str) -> object:
    """Load what is asked for: a training uses `prepare` and its own family, not the others."""
    if name not in __all__:
        raise AttributeError(f'module {__name__} has no attribute {name!r}')
    return getattr(import_module(f'{__name__}.{_HOMES.get(name, "results")}'), name)
