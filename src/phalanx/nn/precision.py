"""Number formats of losses."""

import torch
from torch import Tensor


def at_least_float32(value: Tensor) -> Tensor:
    """`value`, in float32 where autocast made it half precision: for sums of many small numbers."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
