"""Text detection networks.

A network takes images [B, 3, H, W], H and W multiples of 32, and returns Maps (or RefinedMaps) of their size; in evaluation
with the shrink map alone. An optional method `fuse` speeds it up for evaluation and export.

To add one: a file here that ends with a variant function, whose positional parameter is the number of classes, 1, and whose
keyword-only parameters are the options of `model:` in a recipe; a line in MODELS; a file in `paddle/weights` if the original
has published weights; its golden numbers in tests/golden. Use `parallel.norms.BatchNorm2d` for batch norms, so that they can be
synchronised. Every parameter must take part in every training step.
"""

from collections.abc import Callable

from torch import nn

from phalanx.families.text_detection.models.db import db

MODELS: dict[str, Callable[..., nn.Module]] = {'db': db}
