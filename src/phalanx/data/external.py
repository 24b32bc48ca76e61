"""Other libraries' transforms under the seed of a sample."""

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


@contextlib.contextmanager
def seed_global_generators(rng: np.random.Generator) -> Iterator[None]:
    """Context with the global generators of Python, NumPy and torch (CPU) seeded from `rng`; restores them afterwards.

    Random numbers of a transform from torchvision or Kornia are then a function of the sample: training does not depend on the
    number of ranks or workers, nor on where it was resumed. Albumentations has generators of its own, see docs/extending.md.
    """
    # NumPy's legacy generator takes 32 bits.
    seed = int(rng.integers(2**32))
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)
