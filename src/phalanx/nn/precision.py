"""Number formats of losses."""

import torch
from torch import Tensor


def at_least_float32(value: Tensor) -> Tensor:
    """Return `value` in float32 if it is in half precision, as under autocast: for sums of many small numbers."""
    return value.to(torch.promote_types(value.dtype, torch.float32))
