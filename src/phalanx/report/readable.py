"""Numbers and paths formatted for people, and numbers for JSON."""

import math
from collections.abc import Mapping, Sequence
from os.path import commonpath
from typing import Any

MISSING = '–'


def format_number(value: object) -> str:
    """Format with 4 significant digits; values that are not numbers are returned unchanged, as text."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return MISSING
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isinf(value):
        return str(value)
    size = abs(value)
    if isinstance(value, int) or size >= 1000 or (size >= 10 and value.is_integer()):
        return f'{value:,.0f}'
    if 0 < size < 1e-3:
        return f'{value:.3e}'
    return f'{value:.4f}' if size < 10 else f'{value:.4g}'


def pluralize(count: int, one: str, many: str = '') -> str:
    """'1 sample', '2 samples'; `many` for irregular plurals."""
    return f'{count:,} {one if count == 1 else many or one + "s"}'


def format_percent(share: float | None) -> str:
    """Format a share as per cent."""
    return MISSING if share is None else f'{100 * share:.1f} %'


def format_mebibytes(size: float | None) -> str:
    """Format a size given in MiB."""
    if size is None:
        return MISSING
    return f'{size:,.0f} MiB' if size < 10_000 else f'{size / 1024:,.1f} GiB'


def format_duration(seconds: float | None) -> str:
    """Format a time given in seconds."""
    if seconds is None or not math.isfinite(seconds):
        return MISSING
    if seconds < 60:
        return f'{seconds:.1f} s'
    minutes, rest = divmod(round(seconds), 60)
    return f'{minutes} min {rest:02} s' if minutes < 60 else f'{minutes // 60} h {minutes % 60:02} min'


def shorten_paths(captions: Sequence[str]) -> list[str]:
    """Remove the folder that all captions have in common, if they begin with absolute paths."""
    if not captions or not all(caption.startswith('/') for caption in captions):
        return list(captions)
    paths = [caption.partition(': ')[0] for caption in captions]
    common = commonpath([path.rpartition('/')[0] or '/' for path in paths]).rstrip('/')
    return [caption[len(common) + 1 :] for caption in captions]


def make_finite(value: object) -> Any:
    """Replace NaN and infinities, which JSON lacks, by None, within mappings and lists, too."""
    if isinstance(value, Mapping):
        return {key: make_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [make_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
