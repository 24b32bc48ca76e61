"""Heartbeat of a rank: its position, in a small file that its launcher reads, and its stack on request."""

import faulthandler
import os
import time
from pathlib import Path
from typing import NamedTuple

import psutil

from phalanx.parallel.flight_recorder import answer_requests
from phalanx.system.stops import STACKS

FOLDER = 'PHALANX_HEARTBEATS'  # environment variable: folder of the heartbeats


class Beat(NamedTuple):
    """Last heartbeat of a rank."""

    step: int
    doing: str
    pid: int
    age: float  # seconds since
    stopped: bool  # its process does not run, as after SIGSTOP: only its own node can see that
    when: float = 0.0  # time.monotonic() of its node


class Heartbeat:
    """Heartbeats in the launcher's folder; none if no such launcher started the rank. A beat costs about 10 us."""

    def __init__(self, rank: int) -> None:
        folder = os.environ.get(FOLDER)
        self.file = (Path(folder) / f'beat.{rank}').open('w') if folder else None
        if folder:
            self.stack = (Path(folder) / f'stack.{rank}').open('w')
            faulthandler.register(STACKS, file=self.stack, all_threads=True)
            answer_requests(Path(folder), rank)

    def beat(self, step: int, doing: str) -> None:
        """Record the step and the current activity."""
        if self.file is not None:
            line = f'{step} {os.getpid()} {time.monotonic():.3f} {doing}'
            # One write of fixed length: the launcher never reads half of a line.
            os.pwrite(self.file.fileno(), f'{line:<80}\n'.encode(), 0)


def read_beats(folder: Path) -> dict[int, Beat]:
    """Return the last heartbeat of each rank with a file in `folder`."""
    beats = {}
    for file in folder.glob('beat.*'):
        # The file is empty until the first beat.
        words = file.read_text().split(None, 3)
        if len(words) == 4:
            step, pid, when, doing = words
            age = time.monotonic() - float(when)
            beats[int(file.suffix[1:])] = Beat(int(step), doing.strip(), int(pid), age, _is_stopped(int(pid)), float(when))
    return beats


def _is_stopped(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False
