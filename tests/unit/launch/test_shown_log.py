"""Logs of ranks: copied to the terminal while they grow, read from the end."""

import os
import sys
import time
import tracemalloc
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

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


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / 'workerlog.0'
    log.touch()
    os.truncate(log, 1 << 28)
    with log.open('a') as file:
        file.write('\nthe cause\n')
    tracemalloc.start()
    try:
        failure = agent._failure(
            0, ProcessFailure(0, 0, 1, str(tmp_path / 'none')), agent.Attempt(1, tmp_path, tmp_path, False, True), False
        )
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert failure.tail[-1] == 'the cause'
    assert peak < 1 << 22
