"""Networks for tables.

A network takes images [B, 3, H, W], the true tokens [B, L] in training, and the maximum of decoding steps without them; it
returns a `TableOutput`. `exported` returns the module for `phalanx export`, and descriptions of its outputs.

To add one: a file here that ends with a builder function, whose positional parameter is the number of tokens and whose
keyword-only parameters are the options of `model:` in a recipe; a line in MODELS; a file in `paddle/weights` if the original
has published weights; its golden numbers in tests/golden. Use `parallel.norms.BatchNorm2d`, which can be synchronised; every
parameter must take part in every training step.
"""

from collections.abc import Callable

from torch import nn

from phalanx.families.table.models.slanet import slanet

MODELS: dict[str, Callable[..., nn.Module]] = {'slanet': slanet}
