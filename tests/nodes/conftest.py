"""Network namespaces as nodes: each has a network card of its own, on one bridge."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from faults.started import Fork
from running import clean_environment

NUMBER = itertools.count()  # a namespace that was deleted gives its names back only later


# Python 3.12 has os.setns.
ENTER = """
import ctypes, sys
with open(f'/run/netns/{sys.argv.pop(1)}') as namespace:
    assert ctypes.CDLL(None).setns(namespace.fileno(), 0x40000000) == 0  # CLONE_NEWNET
"""


def ip(*words: str) -> None:
    subprocess.run(['ip', *words], check=True, capture_output=True)


@dataclass
class Node:
    """A network namespace, and commands that run in it."""

    namespace: str
    address: str
    card: str
    folder: Path
    running: list[subprocess.Popen[bytes] | Fork] = field(default_factory=list)

    def start(self, *command: str, **environment: str) -> Started:
        words = ['ip', 'netns', 'exec', self.namespace, *command]
        process, output = start(words, self.folder, {**clean_environment(), **environment})
        self.running.append(process)
        return Started(process, output)

    def phalanx(self, *words: str, **environment: str) -> Started:
        """Start `phalanx WORDS...`: without an environment of its own, in a fork that has PyTorch from its start."""
        if environment:
            return self.start(sys.executable, '-m', 'phalanx', *words, **environment)
        output = _output_in(self.folder)
        process = Fork(self.folder, (self.namespace, *words), output, ENTER)
        self.running.append(process)
        return Started(process, output)

    def unplug(self) -> None:
        ip('-n', self.namespace, 'link', 'set', self.card, 'down')

    def plug_in(self) -> None:
        ip('-n', self.namespace, 'link', 'set', self.card, 'up')

    def processes(self) -> list[int]:
        """The processes that live in this node now."""
        return [int(pid) for pid in subprocess.check_output(['ip', 'netns', 'pids', self.namespace], text=True).split()]


def start(words: list[str], folder: Path, environment: Mapping[str, str]) -> tuple[subprocess.Popen[bytes], Path]:
    """A command that runs in `folder`, and the file with what it says."""
    output = _output_in(folder)
    with output.open('w') as file:
        process = subprocess.Popen(
            words, cwd=folder, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    return process, output


def _output_in(folder: Path) -> Path:
    file = Path(tempfile.mkdtemp(dir=folder, prefix='.')) / 'output.txt'
    file.touch()  # a fork opens it only once it runs, tests read it at once
    return file


SILENT = '192.0.2.53'  # a name server: questions go to a node that drops them
BOUND = 900  # seconds in which a command must end, or come to where a test waits for it; on an idle node it takes a few


class Started:
    """A command that runs on a node, and what it has said so far."""

    def __init__(self, process: subprocess.Popen[bytes] | Fork, file: Path) -> None:
        self.process, self.file = process, file

    @property
    def output(self) -> str:
        return self.file.read_text(errors='replace')

    @property
    def lines(self) -> list[str]:
        return self.output.splitlines()

    def until(self, come: Callable[[], bool], seconds: float = BOUND) -> None:
        """Waits until `come` is true. Fails with what was said when it does not come, or the command ends before."""
        end = time.monotonic() + seconds
        while not come():
            assert time.monotonic() < end, self.output
            assert self.process.poll() is None, self.output
            time.sleep(0.05)

    def until_said(self, text: str, seconds: float = BOUND) -> None:
        self.until(lambda: text in self.output, seconds)

    def end(self, seconds: float = BOUND) -> int:
        """The exit status, within `seconds`."""
        try:
            return self.process.wait(seconds)
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            raise AssertionError(f'still running after {seconds} s:\n{self.output}') from None


@contextlib.contextmanager
def bridged(folder: Path, count: int) -> Iterator[list[Node]]:
    """Nodes that reach each other, 10.78.0.1 and so on, each with a folder of its own in `folder`.

    Raises CalledProcessError when there can be no bridge.
    """
    bridge, made = f'px{os.getpid() % 100000}n{next(NUMBER)}', list[Node]()  # names of interfaces: at most 15 letters
    ip('link', 'add', bridge, 'type', 'bridge')
    try:
        ip('link', 'set', bridge, 'up')
        for number in range(1, count + 1):
            name = f'{bridge}m{number}'
            ip('netns', 'add', name)
            own = folder / f'm{number}'
            own.mkdir()
            made.append(Node(name, f'10.78.0.{number}', f'eth{number}', own))
            ip('link', 'add', f'{bridge}v{number}', 'type', 'veth', 'peer', 'name', f'eth{number}', 'netns', name)
            ip('link', 'set', f'{bridge}v{number}', 'master', bridge, 'up')
            ip('-n', name, 'addr', 'add', f'10.78.0.{number}/24', 'dev', f'eth{number}')
            ip('-n', name, 'link', 'set', f'eth{number}', 'up')
            ip('-n', name, 'link', 'set', 'lo', 'up')
        yield made
    finally:
        for node in made:
            for pid in node.processes():
                os.kill(pid, 9)
            for process in node.running:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()  # a fork that was to enter the node
                process.wait()
            ip('netns', 'del', node.namespace)
        ip('link', 'del', bridge)


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[list[Node]]:
    """Three nodes."""
    if os.geteuid() != 0 or shutil.which('ip') is None:
        pytest.skip('needs root and iproute2 for network namespaces')
    with contextlib.ExitStack() as stack:
        try:
            made = stack.enter_context(bridged(tmp_path, 3))
        except subprocess.CalledProcessError as error:
            pytest.skip(f'cannot make a network bridge here: {error.stderr}')
        yield made
