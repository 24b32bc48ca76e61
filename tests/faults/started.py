"""Command that runs while a test acts on it: its ranks, its loader workers, and its output."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from running import PHALANX, clean_environment, start_fork

BOUND = 900  # seconds in which a command must end, or come to where a test waits for it; on an idle node it takes a few
# A sitecustomize.py, for Python in all processes: the clock of the node jumps by hours every second.
JUMPING = """
import datetime, time
real = time.time
def offset():  # seconds; of all processes of the node together
    return 3600 * (0, 5, -7, 1000)[int(time.monotonic()) % 4]
class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(time.time(), tz)
    @classmethod
    def utcnow(cls):
        return cls.utcfromtimestamp(time.time())
Jumping.__module__, Jumping.__name__, Jumping.__qualname__ = 'datetime', 'datetime', 'datetime'
datetime.datetime = Jumping
time.time = lambda: real() + offset()
time.time_ns = lambda: int(1e9 * time.time())
"""


PROGRAM = ('-m', 'phalanx')
SESSION = """
import os, signal, sys
os.setsid()
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as heed_hangups
"""


def heed_hangups() -> None:
    """The tests themselves may run under nohup, which their commands would inherit."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Fork(psutil.Process):
    """`phalanx WORDS...` in a fork that has PyTorch from its start, with what Popen has."""

    def __init__(self, folder: Path, words: Sequence[str], output: Path, before: str = '', **environment: str) -> None:
        self.fork = start_fork(f'{SESSION}{before}\n{PHALANX}', words, folder, output, output, **environment)
        super().__init__(self.fork.pid)

    def poll(self) -> int | None:
        return self.fork.exitcode

    def wait(self, timeout: float | None = None) -> int:  # type: ignore[override]
        self.fork.join(timeout)
        if self.fork.exitcode is None:
            raise psutil.TimeoutExpired(timeout)
        return self.fork.exitcode


class Started:
    """One start of `phalanx WORDS...` in a folder, until it ends."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        program: tuple[str, ...] = PROGRAM,
        within: tuple[str, ...] = (),  # the command that starts it: `ip netns exec NODE`, say
        before: str = '',  # Python that is run first, in the same process
        piped: bool = False,  # whether it writes into a pipe, whose `reader` keeps what it says
        **environment: str,
    ) -> None:
        self.folder, self.begun = folder, time.time()
        self.output_file = folder / 'output.txt'
        self.seen: set[int] = set()  # the processes that belonged to it
        self.reader: psutil.Popen | None = None
        with contextlib.ExitStack() as closed:
            output: IO[str] | IO[bytes] = closed.enter_context(self.output_file.open('w'))
            if piped:
                self.reader = psutil.Popen(['cat'], cwd='/', stdin=subprocess.PIPE, stdout=output, start_new_session=True)
                output = closed.enter_context(self.reader.stdin)
            if (program, within, piped) == (PROGRAM, (), False) and 'PYTHONPATH' not in environment:
                self.process: Any = Fork(folder, words, self.output_file, before, **environment)
                return
            self.process = psutil.Popen(
                [*within, sys.executable, *program, *words],
                cwd=folder,
                env={**clean_environment(), **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=heed_hangups,
            )

    def descendants(self) -> list[psutil.Process]:
        """All its processes besides the first."""
        try:
            found = self.process.children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self.seen |= {process.pid for process in found}
        return found

    def ranks(self) -> list[psutil.Process]:
        """The rank processes below a launcher, in order of rank."""
        found = {rank_of(one): one for one in self.descendants() if parent_of(one) == self.process.pid}
        return [found[rank] for rank in sorted(found) if rank >= 0]

    def workers(self, of: psutil.Process | None = None) -> list[psutil.Process]:
        """The loader workers of a rank, or of all."""
        ranks = [of.pid] if of else [rank.pid for rank in self.ranks()] or [self.process.pid]
        return [one for one in self.descendants() if parent_of(one) in ranks]

    def until(self, condition: Callable[[], object], seconds: float) -> bool:
        """True if `condition` came true, or the command ended, within `seconds`."""
        end = time.monotonic() + seconds
        while not condition() and self.process.poll() is None:
            self.descendants()
            if time.monotonic() > end:
                return False
            time.sleep(0.05)
        return True

    def end(self, seconds: float) -> int:
        """The exit status. Fails when the command has not ended within `seconds`; then it is killed."""
        try:
            return int(self.process.wait(seconds))
        except psutil.TimeoutExpired:
            for one in [*self.descendants(), self.process]:
                one.kill()
            raise AssertionError(f'still there after {seconds} s: {self.output()}') from None

    def send_to_all(self, number: int) -> None:
        """A signal to every process at once, as schedulers send it; the launcher passes its own on to its ranks as well."""
        for one in [self.process, *self.descendants()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.send_signal(number)

    def steps(self) -> int:
        """The number of log lines that the run has written into the folder `run`."""
        file = self.folder / 'run' / 'metrics.jsonl'
        return len(file.read_bytes().splitlines()) if file.is_file() else 0

    def has_gone_on_since(self, moment: float) -> bool:
        file = self.folder / 'run' / 'metrics.jsonl'
        return file.is_file() and file.stat().st_mtime > moment

    def is_read(self) -> bool:
        """True if a process reads its output."""
        return self.reader is None or self.reader.poll() != -signal.SIGKILL

    def output(self) -> str:
        if self.reader is not None and self.process.poll() is not None:
            self.reader.wait(BOUND)  # it has the last line by then
        return self.output_file.read_text(errors='replace')

    def last_words(self) -> str:
        lines = self.output().splitlines()
        return lines[-1] if lines else ''


def parent_of(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return 0


def rank_of(process: psutil.Process) -> int:
    """The rank of a process; -1 when it is none, or has ended."""
    try:
        return int(process.environ().get('RANK', -1))
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return -1


def command_of(process: psutil.Process) -> str:
    try:
        return ' '.join(process.cmdline())
    except psutil.NoSuchProcess:
        return ''


def living_in(folder: Path) -> list[psutil.Process]:
    """The living processes whose working folder is `folder`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and process.cwd() == str(folder):
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def left(folder: Path) -> list[str]:
    """Leftovers of a run: processes, and files under a hidden name."""
    end = time.monotonic() + 120
    while (processes := living_in(folder)) and time.monotonic() < end:
        time.sleep(0.1)
    return [*map(str, processes), *map(str, (folder / 'run').rglob('.*'))]
