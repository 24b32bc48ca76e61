"""Selection of the hardest pixels of a whole step, independent of its distribution over ranks."""

import torch
from torch import Tensor

from phalanx.parallel.step import WholeStep

BINS = 1 << 16


def kth_largest(values: Tensor, among: Tensor, k: Tensor, whole: WholeStep) -> tuple[Tensor, Tensor]:
    """Return the k-th largest of all the step's `values` [...] (at least 0) where `among` [...] holds, exactly, and a share [].

    Taking all larger values, and this fraction of each value equal to the k-th, selects k values in total. `k`
    [] counts from 1 to the number of values; beyond that the result is meaningless.

    Non-negative floats are ordered like the integers with the same bits. So the value is determined 16 bits at a time, from the
    highest (radix select): a histogram of these bits over the step gives those of the k-th value, and the next round counts the
    values that share them. That is two passes over float32 (four over float64) and the same number of all-reduces of 65536
    counts (512 KB), whatever the number of pixels; gathering the pixels themselves would be 8 MB per 1024 x 2048 image.
    """
    rounds = values.element_size() * 8 // 16
    bits = values.view(torch.int32 if rounds == 2 else torch.int64)
    bits = bits & torch.iinfo(bits.dtype).max  # -0.0 is zero
    result, rank = torch.zeros_like(k, dtype=bits.dtype), k
    for shift in range(16 * (rounds - 1), -1, -16):
        digits = (bits >> shift).long() & (BINS - 1)
        counts = torch.zeros(BINS, dtype=torch.int64, device=bits.device)
        counts = whole.sum(counts.scatter_add_(0, digits.flatten(), among.flatten().long()))
        larger = counts.sum() - counts.cumsum(0)  # [BINS] number of values with a larger digit
        digit = (larger >= rank).sum().clamp(max=BINS - 1)  # of the k-th value: the lowest digit exceeded by fewer than `rank`
        rank = rank - _at(larger, digit)  # among the values with that digit
        among = among & (digits == digit)
        result = result | (digit.to(bits.dtype) << shift)
    return result.view(values.dtype), rank.to(values.dtype) / _at(counts, digit)


def _at(values: Tensor, place: Tensor) -> Tensor:
    """Return the value at index `place` [] without moving it to the host, which would wait for the device."""
    return values.gather(0, place[None])[0]
