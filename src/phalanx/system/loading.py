"""How a process that is ours alone loads its modules."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Within this context modules are loaded, without the garbage collector.

    PyTorch is half a million objects that live to the end of the process. While they are made the collector goes through all
    of them again and again, a quarter of the time that loading takes. What is there at the end it leaves alone for good,
    also at the end of the process: so this is for programs, not for a library in the process of somebody else.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
