"""Checks of options shared by many components. Each raises ValueError with the given value and the valid range."""


def check_probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise ValueError(f'{name} must lie between 0 and 1, got {value}')


def check_size(name: str, size: tuple[int, int]) -> None:
    if min(size) < 1:
        raise ValueError(f'{name} is (height, width) in pixels, each at least 1; got {size[0]}, {size[1]}')


def check_std(std: tuple[float, ...]) -> None:
    """Pixels are divided by `std`, so each value must be positive."""
    if min(std) <= 0:
        raise ValueError(f'std must be above 0, got {", ".join(map(str, std))}')
