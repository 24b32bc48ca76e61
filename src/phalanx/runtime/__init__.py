"""Exported models, run without torch: numpy, OpenCV and onnxruntime (or OpenVINO) are all that this folder needs.

    predict = phalanx.runtime.load('model.onnx')
    result = predict(image)  # [H, W, 3] uint8 RGB

Everything about the images and the results comes from the file. What training and this share, the fitting of an image and the
reading of a text say, stands here, and the families import it.
"""

from phalanx.runtime.model import Model, load
from phalanx.runtime.reading import lines_of, rows_of
from phalanx.runtime.results import Found, Line, Prediction, Reading, TextRegion
from phalanx.runtime.session import ArtifactError

__all__ = ['ArtifactError', 'Found', 'Line', 'Model', 'Prediction', 'Reading', 'TextRegion', 'lines_of', 'load', 'rows_of']
