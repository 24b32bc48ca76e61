"""Signals that stop a run gracefully, after a checkpoint."""

import contextlib
import signal
import threading
from collections.abc import Iterator

# Ctrl-C; `kill`, systemd, Kubernetes; a terminal that closes; SLURM's --signal=USR1 or USR2.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOP_STATUSES = tuple(128 + number for number in STOPS)
STACKS = signal.SIGRTMIN + 5  # a launcher asks a rank for the stacks of its threads; no scheduler sends it


def stop_signals() -> tuple[signal.Signals, ...]:
    """Signals of STOPS that this process obeys; not SIGHUP under `nohup`, where a command outlives its terminal."""
    return tuple(number for number in STOPS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def in_main_thread() -> bool:
    """True where Python allows handlers of signals to be set."""
    return threading.current_thread() is threading.main_thread()


@contextlib.contextmanager
def keep_handlers() -> Iterator[None]:
    """Restore the handlers of stop signals at the end, for work inside a program of somebody else."""
    # Elsewhere nothing could have changed them: Python refuses to set handlers outside the main thread.
    handlers = {number: signal.getsignal(number) for number in STOPS} if in_main_thread() else {}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def interrupt_at_stops() -> None:
    """Make each stop signal raise KeyboardInterrupt(number) in the main thread, for commands with nothing to save."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    if in_main_thread():
        for number in stop_signals():
            signal.signal(number, interrupt)


def interrupting_signal(stop: KeyboardInterrupt) -> signal.Signals:
    """Signal behind a KeyboardInterrupt; SIGINT if Python's own handler raised it."""
    return signal.Signals(stop.args[0] if stop.args else signal.SIGINT)
