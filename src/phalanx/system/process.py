"""Fast start and end of a process: for our own programs, not for a library in a host process."""

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence


@contextlib.contextmanager
def fast_imports() -> Iterator[None]:
    """Context for imports with the garbage collector off.

    PyTorch creates half a million objects that live until the process ends. The collector would scan them again and again, a
    quarter of the import time. At the end all existing objects are frozen: the collector ignores them for good.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_and_exit(command: Callable[[], int]) -> int:
    """Run `command` and return its exit status; the process ends by os._exit after the atexit handlers.

    The interpreter would destroy PyTorch's objects one by one, which takes a third of their import time; the system frees them
    all at once. Call this before anything else is registered with `atexit`: the first handler runs last.
    """
    status: list[int] = []
    atexit.register(_end, status)
    status.append(command())
    return status[0]


def _end(status: Sequence[int]) -> None:
    """End the process if the command returned; after an error the interpreter prints the traceback."""
    # os._exit does not flush Python's buffers.
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status[0])
