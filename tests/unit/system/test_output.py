"""Standard output and error that lose their reader, their disk, or were never there."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.report.terminal import Terminal
from phalanx.system.output import Output
from running import clean_environment

SAYING = """
import argparse, logging, os, subprocess, sys, warnings
from rich.console import Console
from phalanx.system.output import protect_output

output = protect_output()
done = open(sys.argv[1], 'w')  # takes no number of a standard stream
for _ in range(2):
    print('printed' * 2000)
    print('printed', file=sys.stderr, flush=True)
    sys.stdout.buffer.write(b'bytes')
    sys.stdout.flush()
    Console().print('[bold]rich')
    Console(stderr=True).print('rich')
    logging.warning('logged')
    warnings.warn('warned')
    argparse.ArgumentParser().print_usage(sys.stderr)
    subprocess.run([sys.executable, '-c', 'print(1, flush=True)'], check=output.lost is None)
assert done.fileno() > 2
done.write(str(output.lost))
"""


@pytest.fixture
def broken() -> Iterator[int]:
    """The descriptor of a pipe whose reader has ended."""
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


def said_into(place: int | None, done: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
    """A process that says much, and writes its file `done` last; None: both its streams are closed."""
    return subprocess.run(
        [sys.executable, *options, '-c', SAYING, str(done)],
        env=clean_environment(),
        stdout=place,
        stderr=place,
        preexec_fn=(lambda: os.closerange(0, 3)) if place is None else None,
        check=False,
    )


@pytest.mark.parametrize('options', [(), ('-u',)], ids=['buffered', 'unbuffered'])
def test_a_process_whose_output_has_no_reader_goes_on_and_ends_as_ever(
    options: tuple[str, ...], broken: int, tmp_path: Path
) -> None:
    assert said_into(broken, tmp_path / 'done', *options).returncode == 0
    assert (tmp_path / 'done').read_text() == 'None'


def test_a_process_whose_output_is_closed_goes_on(tmp_path: Path) -> None:
    assert said_into(None, tmp_path / 'done').returncode == 0
    assert (tmp_path / 'done').read_text() == 'None'


def test_a_process_whose_output_is_on_a_full_disk_goes_on_and_knows_what_it_lost(tmp_path: Path) -> None:
    full = os.open('/dev/full', os.O_WRONLY)
    assert said_into(full, tmp_path / 'done').returncode == 0
    os.close(full)
    assert (tmp_path / 'done').read_text() == '[Errno 28] No space left on device'


@pytest.mark.parametrize(('command', 'status'), [('config', 1), ('nonsense', 2)])
def test_a_command_whose_product_could_not_be_written_fails_and_says_why(command: str, status: int) -> None:
    with Path('/dev/full').open('w') as full:
        words = [sys.executable, '-m', 'phalanx', command]
        done = subprocess.run(words, env=clean_environment(), stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == status
    assert ('standard output could not be written: No space left on device' in done.stderr) == (command == 'config')


def test_what_a_slow_reader_of_a_non_blocking_pipe_gets_is_whole() -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    child = os.fork()
    if child == 0:
        os.close(reader)
        Output(writer, 'w', closefd=False).write(b'0123456789' * 100_000)  # more than a pipe holds
        os._exit(0)
    os.close(writer)
    with open(reader, 'rb') as read:  # noqa: PTH123 - a descriptor
        assert read.read() == b'0123456789' * 100_000
    os.waitpid(child, 0)


def test_a_disk_that_has_room_again_gets_later_lines(tmp_path: Path) -> None:
    descriptor = os.open('/dev/full', os.O_WRONLY)
    output = Output(descriptor, 'w', closefd=False)
    output.write(b'lost')
    room = os.open(tmp_path / 'log', os.O_WRONLY | os.O_CREAT)
    os.dup2(room, descriptor)
    output.write(b'kept')
    os.close(room)
    os.close(descriptor)
    assert (tmp_path / 'log').read_bytes() == b'kept'


def test_a_console_of_the_report_raises_nothing_when_its_reader_has_ended(broken: int) -> None:
    """In the process of somebody who calls `phalanx.train`, whose streams are not ours."""
    with io.TextIOWrapper(io.FileIO(broken, 'w', closefd=False), write_through=True) as file:
        console = Terminal(file=file)
        console.print('a line')
        console.print('another one')
