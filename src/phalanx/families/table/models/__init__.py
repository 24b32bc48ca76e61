"""Networks for tables.

A network takes images [B, 3, H, W], the true tokens [B, L] in training, and how many steps it may take without them; it gives
a `TableOutput`. `exported` gives the module that `phalanx export` writes, and the meaning of its outputs.

To add one: a file here that ends with a variant function, whose positional parameter is the number of tokens and whose
keyword-only parameters are the options of `model:` in a recipe; a line in MODELS; a file in `paddle/weights` if the original
has published weights; its golden numbers in tests/golden. Batch norms are `parallel.norms.BatchNorm2d`, so that they can be
synchronised, and every parameter takes part in every training step.
"""

from collections.abc import Callable

from torch import nn

from phalanx.families.table.models.slanet import slanet

MODELS: dict[str, Callable[..., nn.Module]] = {'slanet': slanet}
