"""Dropout and other noise that depend on the samples, not on the ranks.

torch's dropout draws from the generator of its process, so its masks depend on how a batch is split over ranks. Here a mask is
a hash of (seed, step, sample, layer, element): the same for every split, on every kind of device, and after a resume.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

N = TypeVar('N', int, Tensor)


class SampleKeys:
    """Keys [B] of the samples of a forward pass; each random layer derives its own keys from them."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # None: outside a training step
        self.count = 0  # number of layers that use random numbers
        self.of_layers: Tensor | tuple[()] = ()  # [count, B], keys of the layers in the order of the forward pass
        self.calls = 0  # calls of random layers so far in this forward pass

    def begin(self, keys: Tensor | None) -> None:
        """Start a forward pass with the keys [B] of its samples; None outside training."""
        self.keys, self.of_layers, self.calls = keys, (), 0
        if keys is not None and self.count:
            # For all layers at once: a hash is nine small kernels.
            numbers = torch.arange(1, self.count + 1, device=keys.device)
            self.of_layers = _hash(keys ^ _hash(numbers)[:, None])

    def next_layer_keys(self) -> Tensor | None:
        """Return keys [B] for the next layer, None outside a training step."""
        if self.keys is None:
            return None
        # A layer is identified by its number in the order of the forward pass, which is the same on all ranks.
        self.calls += 1
        if self.calls <= len(self.of_layers):
            return self.of_layers[self.calls - 1]
        return _hash(self.keys ^ _hash(self.calls))  # a layer that is called more than once


class RandomLayer(nn.Module):
    """Layer whose random numbers follow the samples of a training step, once `tie` has connected it."""

    samples: SampleKeys | None = None  # set by `tie`

    @property
    def is_random(self) -> bool:
        """True if a forward pass in training uses random numbers."""
        return True

    def draw_keys(self, x: Tensor) -> Tensor:
        """Return the keys [B] of this layer for the samples of `x` [B, ...]."""
        # Without keys (a network used outside of training by Phalanx) the process generator has to do.
        keys = self.samples.next_layer_keys() if self.samples else None
        return torch.randint(2**32, (len(x),), device=x.device) if keys is None else keys


class Dropout(RandomLayer):
    """Dropout on x [B, ...]: values are 0 with probability `p`, others scaled by 1 / (1 - p); identity in evaluation."""

    # Number of leading axes with masks of their own; the mask is broadcast over the rest. None: all axes.
    axes: int | None = None

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f'a dropout probability must be at least 0 and below 1, got {p}')
        self.p = p

    @property
    def is_random(self) -> bool:
        return self.p > 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        # One random number per element of the masked axes, broadcast over the others.
        masked = x.shape[: self.axes]
        mask = uniform(self.draw_keys(x), torch.Size((*masked, *(1,) * (x.ndim - len(masked))))) >= self.p
        return x * mask.to(x.dtype).div_(1 - self.p)

    def extra_repr(self) -> str:
        return f'p={self.p}'


class ChannelDropout(Dropout):
    """Dropout of whole channels of x [B, C, ...]."""

    axes = 2


class DropPath(Dropout):
    """Stochastic depth (Huang et al. 2016): dropout of whole samples of x [B, ...], on the residual branch."""

    axes = 1


def tie(model: nn.Module, samples: SampleKeys) -> bool:
    """Connect all random layers of `model` to `samples`. Returns True if any of them uses random numbers."""
    # All layers share one counter, which numbers them in the order of their calls.
    layers = [module for module in model.modules() if isinstance(module, RandomLayer)]
    for layer in layers:
        layer.samples = samples
    samples.count = sum(layer.is_random for layer in layers)
    return samples.count > 0


def uniform(keys: Tensor, shape: torch.Size) -> Tensor:  # keys [B] int64 below 2^32
    """Return uniform numbers in [0, 1) of `shape` [B, ...], 24 bits each; those of a sample depend on its key alone."""
    # Elements are numbered within their sample, so that its position in the batch does not matter.
    elements = shape[1:].numel()
    values = (
        keys[:, None] if elements == 1 else _hash(torch.arange(elements, device=keys.device)) ^ keys[:, None]
    )  # hash of 0: 0
    return (_hash(values) >> 8).float().mul_(2.0**-24).view(shape)


def sample_keys(seed: int, step: int, samples: Tensor) -> Tensor:  # samples [B] int64: indices into the data set
    """Return one key per sample of a step, [B] int64 below 2^32."""
    # Hash after hash: a sum would give neighbouring steps and samples the same keys.
    start = _hash(_hash(seed & 0xFFFFFFFF) ^ (step & 0xFFFFFFFF))
    return _hash(start ^ samples)


def _hash(x: N) -> N:
    """Return a hash of 32-bit numbers (held in int64), a bijection: C. Wellons, "hash-prospector", two rounds.

    Both factors are below 2^31, so that a product fits int64.
    """
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
