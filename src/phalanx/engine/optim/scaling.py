"""How the learning rate follows the global batch size."""

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Scaling:
    rule: Literal['linear', 'sqrt', 'none'] | float = 'none'
    """`linear`: the rate grows as the global batch does (Goyal et al. 2017, for SGD); `sqrt`: as its square root (for Adam);
    a number: the rate times it, whatever the batch."""
    reference_batch_size: int | None = None
    """The global batch size that `optimizer.lr` was chosen for; `linear` and `sqrt` need it."""

    def __post_init__(self) -> None:
        if self.rule in ('linear', 'sqrt') and self.reference_batch_size is None:
            raise ValueError(
                f'rule {self.rule} needs reference_batch_size: the global batch size that optimizer.lr was chosen for'
            )
        if self.reference_batch_size is not None and self.reference_batch_size <= 0:
            raise ValueError(f'reference_batch_size must be above 0, got {self.reference_batch_size}')
        if not isinstance(self.rule, str) and not self.rule > 0:
            raise ValueError(f'a scaling factor must be above 0, got {self.rule}')


def scale_lr(lr: float, scaling: Scaling, global_batch_size: int) -> float:
    """`lr` as it should be at `global_batch_size`."""
    ratio = global_batch_size / (scaling.reference_batch_size or global_batch_size)
    factors = {'linear': ratio, 'sqrt': math.sqrt(ratio), 'none': 1.0}
    return lr * (factors[scaling.rule] if isinstance(scaling.rule, str) else scaling.rule)
