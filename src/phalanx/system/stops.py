"""The signals that end a run gracefully: it saves and leaves."""

import signal

# Ctrl-C; `kill`, systemd, Kubernetes; a terminal that closes; SLURM's --signal=USR1 or USR2.
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
STATUSES = tuple(128 + number for number in STOPS)
STACKS = signal.SIGRTMIN + 5  # a launcher asks a rank for the stacks of its threads; no scheduler sends it


def wanted() -> tuple[signal.Signals, ...]:
    """Those that this process heeds: a command that runs under `nohup` outlives its terminal."""
    return tuple(number for number in STOPS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN)
