"""The part of the log of rank 0 that the launcher copies to the terminal."""

import sys
import time
from pathlib import Path

import pytest

from phalanx.launch import agent


def test_lines_of_the_launcher_do_not_split_a_character(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    line, log = '─'.encode(), tmp_path / 'workerlog.0'
    with agent._copy_lines(log, 'w'):
        log.write_bytes(b'a' + line[:2])
        shown, end = b'', time.monotonic() + 900
        while not shown and time.monotonic() < end:  # what is whole of it is shown
            time.sleep(0.01)
            shown = capsysbinary.readouterr().out
        sys.stdout.buffer.write(b'|')
        with log.open('ab') as file:
            file.write(line[2:] + b'\xff')  # and a byte that is not text stays what it is
    assert shown + capsysbinary.readouterr().out == b'a|' + line + b'\xff'
