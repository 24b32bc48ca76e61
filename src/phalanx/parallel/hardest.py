"""Finding the hardest pixels of a whole step, however it is cut."""

import torch
from torch import Tensor

from phalanx.parallel.step import WholeStep

BINS = 1 << 16


def kth_largest(values: Tensor, among: Tensor, k: Tensor, whole: WholeStep) -> tuple[Tensor, Tensor]:
    """The k-th largest of all the step's `values` [...] (at least 0) where `among` [...] holds, exactly, and a share [].

    The share says how much of each value equal to the k-th must be taken, beside all larger ones, to have taken k in all.
    `k` [] counts from 1 to the number of values; beyond that number the result is meaningless.

    Floats of one sign are ordered like the integers with their bits. So the value is found 16 bits at a time, from the highest:
    a histogram of these bits over the step tells which ones the k-th has, and the next round looks at the values that share
    them. That is two passes over float32 (four over float64) and as many exchanges of 65536 counts (512 KB), whatever the
    number of pixels; gathering the pixels themselves would be 8 MB for each 1024 x 2048 image.
    """
    rounds = values.element_size() * 8 // 16
    bits = values.view(torch.int32 if rounds == 2 else torch.int64)
    bits = bits & torch.iinfo(bits.dtype).max  # -0.0 is zero
    found, rank = torch.zeros_like(k, dtype=bits.dtype), k
    for shift in range(16 * (rounds - 1), -1, -16):
        digits = (bits >> shift).long() & (BINS - 1)
        counts = torch.zeros(BINS, dtype=torch.int64, device=bits.device)
        counts = whole.sum(counts.scatter_add_(0, digits.flatten(), among.flatten().long()))
        larger = counts.sum() - counts.cumsum(0)  # [BINS] how many values have a larger digit
        digit = (larger >= rank).sum().clamp(max=BINS - 1)  # that of the k-th: the lowest one that fewer than `rank` exceed
        rank = rank - _at(larger, digit)  # among the values that have it
        among = among & (digits == digit)
        found = found | (digit.to(bits.dtype) << shift)
    return found.view(values.dtype), rank.to(values.dtype) / _at(counts, digit)


def _at(values: Tensor, place: Tensor) -> Tensor:
    """The value at `place` [], which stays on its device: an index would be read on the host, which waits for it."""
    return values.gather(0, place[None])[0]
