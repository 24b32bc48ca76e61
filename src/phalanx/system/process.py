"""How a process that is ours alone begins and ends: for programs, not for a library in the process of somebody else."""

import atexit
import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence


@contextlib.contextmanager
def fast_imports() -> Iterator[None]:
    """Within this context modules are loaded, without the garbage collector.

    PyTorch is half a million objects that live to the end of the process. While they are made the collector goes through all
    of them again and again, a quarter of the time that loading takes. What is there at the end it leaves alone for good.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def run_and_exit(command: Callable[[], int]) -> int:
    """The exit status of `command`, with which the process ends at once when all that waits for its end is done.

    The interpreter would take PyTorch's objects apart one by one, in a third of the time that loading them takes; the system
    frees them all at once. To be called before anything is registered with `atexit`: the first of it is done last.
    """
    status: list[int] = []
    atexit.register(_end, status)
    status.append(command())
    return status[0]


def _end(status: Sequence[int]) -> None:
    """Ends the process if the command came to an end; an error is left to the interpreter, which shows it."""
    if status:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status[0])
