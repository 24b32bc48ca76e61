"""The signals that end a run gracefully: it saves and leaves."""

import signal
import threading

# Ctrl-C; `kill`, systemd, Kubernetes; a terminal that closes; SLURM's --signal=USR1 or USR2.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STOP_STATUSES = tuple(128 + number for number in STOPS)
STACKS = signal.SIGRTMIN + 5  # a launcher asks a rank for the stacks of its threads; no scheduler sends it


def stop_signals() -> tuple[signal.Signals, ...]:
    """Those that this process heeds: a command that runs under `nohup` outlives its terminal."""
    return tuple(number for number in STOPS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)


def interrupt_at_stops() -> None:
    """Lets each of them interrupt the main thread like Ctrl-C, with KeyboardInterrupt(number): where nothing is to be saved."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt(number)

    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in stop_signals():
            signal.signal(number, interrupt)


def interrupting_signal(stop: KeyboardInterrupt) -> signal.Signals:
    """The signal that interrupted: of Python's own handler, SIGINT."""
    return signal.Signals(stop.args[0] if stop.args else signal.SIGINT)
