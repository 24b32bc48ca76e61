"""A rank's sign of life: where it is, in a small file that its launcher reads, and its stack when the launcher asks."""

import faulthandler
import os
import time
from pathlib import Path
from typing import NamedTuple

from phalanx.system.stops import STACKS

FOLDER = 'PHALANX_HEARTBEATS'  # the environment variable in which a launcher names the folder


class Beat(NamedTuple):
    """The last sign of life of a rank."""

    step: int
    doing: str
    pid: int
    age: float  # seconds since


class Heartbeat:
    """Beats into the launcher's folder; does nothing for a rank that has no such launcher. A beat costs some 10 us."""

    def __init__(self, rank: int) -> None:
        folder = os.environ.get(FOLDER)
        self.file = (Path(folder) / f'beat.{rank}').open('w') if folder else None
        if folder:
            self.stack = (Path(folder) / f'stack.{rank}').open('w')
            faulthandler.register(STACKS, file=self.stack, all_threads=True)

    def beat(self, step: int, doing: str) -> None:
        if self.file is not None:
            line = f'{step} {os.getpid()} {time.monotonic():.3f} {doing}'
            os.pwrite(self.file.fileno(), f'{line:<80}\n'.encode(), 0)


def read_beats(folder: Path) -> dict[int, Beat]:
    """The last beat of each rank that has a file in `folder`."""
    beats = {}
    for file in folder.glob('beat.*'):
        words = file.read_text().split(None, 3)
        if len(words) == 4:
            step, pid, when, doing = words
            beats[int(file.suffix[1:])] = Beat(int(step), doing.strip(), int(pid), time.monotonic() - float(when))
    return beats
