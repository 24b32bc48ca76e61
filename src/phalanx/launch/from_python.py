"""Ranks of a running Python program: a command as its child process, whose output and events it gets."""

import codecs
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO

from phalanx.launch.remote import REMOTE
from phalanx.system.errors import RequestError, RunError, StoppedError
from phalanx.system.stops import STOP_STATUSES

EVENTS = 'PHALANX_EVENTS'  # environment variable: file to which rank 0 appends each event of the run, a line of JSON
POLL = 0.2  # seconds
KEPT = 4000  # characters of the output


def run_command(
    words: Sequence[str], hear: Callable[[bytes], object], is_stopped: Callable[[], bool], *, quiet: bool = False
) -> None:
    """Run `phalanx WORDS...` and show its output here, unless `quiet`.

    `hear` gets each line that rank 0 writes to EVENTS. Ctrl-C, and `is_stopped` once it returns True, stop the command as a
    signal does. The command lives as long as this process: it stops when its standard input closes. Raises the error for its
    exit status:
    RequestError, StoppedError or RunError.
    """
    with tempfile.TemporaryDirectory(prefix='phalanx-') as scratch:
        file = Path(scratch) / 'events'
        file.touch()
        process = subprocess.Popen(
            [sys.executable, '-m', 'phalanx', *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, REMOTE: '1', EVENTS: str(file)},
            start_new_session=True,  # a terminal must not signal the ranks as well
        )
        with file.open('rb') as events, process:
            try:
                status, output = _follow(process, events, hear, is_stopped, quiet=quiet)
            except BaseException:
                process.terminate()  # ends with a checkpoint; `with` waits for it
                raise
    if status == 2:
        raise RequestError(output)
    if status in STOP_STATUSES:
        raise StoppedError('stopped; the same call continues from the checkpoint, if the run had made a step')
    if status:
        raise RunError(output.rpartition('\n')[2])


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines that are complete since the last call."""
    while (line := file.readline()).endswith(b'\n'):
        yield line
    file.seek(-len(line), os.SEEK_CUR)


def _follow(
    process: subprocess.Popen[bytes],
    events: IO[bytes],
    hear: Callable[[bytes], object],
    is_stopped: Callable[[], bool],
    *,
    quiet: bool,
) -> tuple[int, str]:
    """Exit status of the command, and the end of its output."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(b'\n')  # no token
    process.stdin.flush()
    decoder, last, is_open, is_asked = codecs.getincrementaldecoder('utf-8')('replace'), '', True, False
    while is_open:
        try:
            if select.select([process.stdout], [], [], POLL)[0]:
                chunk = os.read(process.stdout.fileno(), 1 << 16)
                is_open, text = bool(chunk), decoder.decode(chunk)
                last = (last + text)[-KEPT:]
                if not quiet:
                    sys.stdout.write(text)  # not to the file descriptor: a notebook shows what is written to this object
                    sys.stdout.flush()
            for line in _whole_lines(events):
                hear(line)
            if not is_asked and is_stopped():
                is_asked = True
                process.send_signal(signal.SIGTERM)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
    return process.wait(), last.strip()
