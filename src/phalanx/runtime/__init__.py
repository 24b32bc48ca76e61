"""Exported models without torch: this folder needs numpy, OpenCV and onnxruntime (or OpenVINO) only.

    predict = phalanx.runtime.load('model.onnx')
    result = predict(image)  # [H, W, 3] uint8 RGB

How to prepare images and read results is stored in the file. Code shared with training, such as resizing and decoding, is
here, and the families import it.
"""

from phalanx.runtime.model import Model, load
from phalanx.runtime.reading import lines_of, rows_of
from phalanx.runtime.results import Found, Line, Prediction, Reading, TextRegion
from phalanx.runtime.session import ArtifactError

__all__ = ['ArtifactError', 'Found', 'Line', 'Model', 'Prediction', 'Reading', 'TextRegion', 'lines_of', 'load', 'rows_of']
