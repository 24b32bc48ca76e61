"""What is random inside a network: values dropped in training, by a mask that each sample takes with it.

torch's dropout draws from the generator of its process, so the masks depend on how a batch is cut over ranks. Here a mask is a
hash of (seed, step, sample, which layer asked, which value): the same on every cut, every kind of device, and after a resume.
"""

from typing import TypeVar

import torch
from torch import Tensor, nn

N = TypeVar('N', int, Tensor)


class SampleKeys:
    """The keys [B] of the samples that the network sees, from which each layer that asks draws numbers of its own."""

    def __init__(self) -> None:
        self.keys: Tensor | None = None  # None: outside a training step
        self.asked = 0  # by how many layers in this forward pass

    def begin(self, keys: Tensor | None) -> None:
        """To be called before each forward pass, with the keys of its samples."""
        self.keys, self.asked = keys, 0

    def next_layer_keys(self) -> Tensor | None:
        """The keys [B] for the layer that asks."""
        if self.keys is None:
            return None
        self.asked += 1
        return _hash(self.keys ^ _hash(self.asked))


class Dropout(nn.Module):
    """x [B, ...] with each value set to 0 with probability `p`, the others scaled by 1 / (1 - p); x itself in evaluation."""

    axes: int | None = None  # how many of the first axes of x tell apart what is dropped by itself; None: all do
    samples: SampleKeys | None = None  # set by `tie`

    def __init__(self, p: float) -> None:
        super().__init__()
        if not 0 <= p < 1:
            raise ValueError(f'a probability to drop is at least 0 and below 1, got {p}')
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        keys = self.samples.next_layer_keys() if self.samples else None
        if keys is None:
            keys = torch.randint(2**32, (len(x),), device=x.device)
        own = x.shape[: self.axes]
        kept = uniform(keys, torch.Size((*own, *(1,) * (x.ndim - len(own))))) >= self.p
        return x * kept.to(x.dtype).div_(1 - self.p)

    def extra_repr(self) -> str:
        return f'p={self.p}'


class ChannelDropout(Dropout):
    """x [B, C, ...] with whole channels of a sample dropped."""

    axes = 2


class DropPath(Dropout):
    """x [B, ...] with whole samples dropped: stochastic depth, on the branch beside a shortcut (Huang et al. 2016)."""

    axes = 1


def tie(model: nn.Module, samples: SampleKeys) -> bool:
    """Makes what is random in `model` a function of the samples' keys; whether there is any."""
    layers = [module for module in model.modules() if isinstance(module, Dropout)]
    for layer in layers:
        layer.samples = samples
    return any(layer.p > 0 for layer in layers)


def uniform(keys: Tensor, shape: torch.Size) -> Tensor:  # keys [B] int64 below 2^32
    """Numbers in [0, 1) of `shape` [B, ...], 24 bits each, those of a sample being a function of its key alone."""
    values = torch.arange(shape[1:].numel(), device=keys.device)
    return (_hash(_hash(values) ^ keys[:, None]) >> 8).float().mul_(2.0**-24).view(shape)


def sample_keys(seed: int, step: int, samples: Tensor) -> Tensor:  # samples [B] int64: indices into the data set
    """A key [B] for each sample of a step: int64 below 2^32."""
    start = _hash(_hash(seed & 0xFFFFFFFF) ^ (step & 0xFFFFFFFF))
    return _hash(start ^ samples)


def _hash(x: N) -> N:
    """A bijection of 32 bits (held in int64) whose outputs look random: C. Wellons, "hash-prospector", two rounds.

    Both factors are below 2^31, so that a product never leaves int64.
    """
    x = ((x ^ (x >> 16)) * 0x21F0AAAD) & 0xFFFFFFFF
    x = ((x ^ (x >> 15)) * 0x735A2D97) & 0xFFFFFFFF
    return x ^ (x >> 15)
