"""Scaling of the learning rate with the global batch size."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Scaling:
    rule: Literal['linear', 'sqrt', 'none'] | float = 'none'
    """`linear`: proportional to the global batch size (Goyal et al. 2017, for SGD); `sqrt`: proportional to its square root
    (for Adam); a number: constant factor, independent of the batch size."""
    reference_batch_size: int | None = None
    """Global batch size that `optimizer.lr` was tuned for; required by `linear` and `sqrt`."""

    def __post_init__(self) -> None:
        if self.rule in ('linear', 'sqrt') and self.reference_batch_size is None:
            raise ValueError(
                f'rule {self.rule} needs reference_batch_size: the global batch size that optimizer.lr was tuned for'
            )
        if self.reference_batch_size is not None and self.reference_batch_size <= 0:
            raise ValueError(f'reference_batch_size must be above 0, got {self.reference_batch_size}')
        if not isinstance(self.rule, str) and not self.rule > 0:
            raise ValueError(f'a scaling factor must be above 0, got {self.rule}')


def scale_lr(lr: float, scaling: Scaling, global_batch_size: int) -> float:
    """Return `lr` scaled to `global_batch_size`."""
    # Without a reference only `none` and constant factors are possible, which do not use the ratio.
    ratio = global_batch_size / (scaling.reference_batch_size or global_batch_size)
    factors = {'linear': ratio, 'sqrt': math.sqrt(ratio), 'none': 1.0}
    return lr * (factors[scaling.rule] if isinstance(scaling.rule, str) else scaling.rule)
