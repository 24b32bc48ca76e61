"""Settings of sliding windows and test-time augmentation, shared by the families that have them."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Views:
    """Windows, scales and flips of an image. Raises ValueError for settings that leave pixels out."""

    window: tuple[int, int] | None = None
    window_stride: tuple[int, int] | None = None
    scales: tuple[float, ...] = (1.0,)
    flip_horizontal: bool = False

    def __post_init__(self) -> None:
        if not self.scales or min(self.scales) <= 0:
            raise ValueError(f'scales must be one or more numbers above 0, got {list(self.scales)}')
        if (self.window is None) != (self.window_stride is None):
            raise ValueError('windows need both window and window_stride (height, width); only one of them is given')
        if self.window and self.window_stride:
            # A stride above the side of a window would leave pixels out.
            pairs = list(zip(self.window_stride, self.window, strict=True))
            if any(not 1 <= step <= side for step, side in pairs):
                stride, window = (f'[{height}, {width}]' for height, width in zip(*pairs, strict=True))
                raise ValueError(
                    f'window_stride must be at least 1 and at most window, or pixels are left out; got {stride} for {window}'
                )
