"""One command for all machines: starts the same command on the others through the user's own OpenSSH.

A remote launcher lives as long as its standard input is open, so it ends with the connection, whatever ends that. What travels
through a shell is quoted word by word; the token of the job travels through the standard input, where no process list shows it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from phalanx.launch.cluster import local_addresses, resolve
from phalanx.launch.flags import Flags
from phalanx.launch.meeting import say

REMOTE = 'PHALANX_REMOTE'  # set for a launcher that another one started
SSH = ('ssh', '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=10', '-o', 'ServerAliveInterval=5')
LOST = 30  # seconds after which an interrupt was lost: one that comes in the middle of an import can be
HERE_ONLY = {'--ssh': 0, '--hostfile': 1, '--host': 1, '--ips': 1}  # flags that are not passed on, and how many words follow


def everywhere(flags: Flags, command: str, words: Sequence[str], here: Callable[[Sequence[str]], int], folder: Path) -> int:
    """Runs `phalanx COMMAND WORDS` on all machines of `--ips`, here through `here` when this one is among them.

    Afterwards `folder` is on this machine: brought home from the first one when that is another. Raises ValueError.
    """
    names = [name.strip() for name in (flags.ips or '').split(',') if name.strip()]
    if not names:
        raise ValueError('--ssh: on which machines? give --ips or --hostfile')
    if dashed := [name for name in names if name.startswith('-')]:
        raise ValueError(f'--ips: {dashed[0]!r} is no name of a machine')
    words = [*passed_on(words), '--ips', ','.join(names)]
    own = local_addresses()
    mine = [name for name in names if resolve(name) in own]
    os.environ.setdefault('PHALANX_TOKEN', secrets.token_hex(16))
    line = remote_line(command, words, Path.cwd())
    others = [_Other(name, line) for name in names if name not in mine]
    try:
        for other in others:
            other.reader.start()
        status = here(words) if mine else max(other.wait() for other in others)
    except KeyboardInterrupt:
        status = 130
    finally:
        for other in others:
            other.end()
    unreached = [other for other in others if other.status == 255]  # what ssh itself says when it could not connect
    if unreached:
        say(f'ssh could not start the command on {", ".join(other.name for other in unreached)}; its own message stands above')
        return 2
    if names[0] not in mine and status == 0:
        bring_home(names[0], folder)
    return status


def passed_on(words: Sequence[str]) -> list[str]:
    """The words of a command without the flags that concern the machine where it was typed."""
    kept, skip = [], 0
    for word in words:
        name, equals, _ = word.partition('=')
        name = name.replace('-', '_').replace('__', '--', 1) if name.startswith('--') else name
        if skip:
            skip -= 1
        elif name in HERE_ONLY:
            skip = 0 if equals else HERE_ONLY[name]
        else:
            kept.append(word)
    return kept


def remote_line(command: str, words: Sequence[str], folder: Path) -> str:
    """The one line that the remote shell gets: every word is quoted, so that none of them means anything to the shell."""
    run = shlex.join(['env', f'{REMOTE}=1', sys.executable, '-m', 'phalanx', command, *words])
    return f'cd {shlex.quote(str(folder))} && exec {run}'


class _Other:
    """The command on another machine: its lines are shown with its name before them."""

    def __init__(self, name: str, line: str) -> None:
        self.name = name
        self.status: int | None = None
        self.ending = threading.Event()
        self.process = subprocess.Popen(
            [*SSH, '--', name, line],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors='replace',
            start_new_session=True,  # Ctrl-C is for the launcher here, which then ends the others in order
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ssh that ended at once: its status and last words tell why
            self.process.stdin.write(os.environ['PHALANX_TOKEN'] + '\n')
            self.process.stdin.flush()
        self.reader = threading.Thread(target=self._show, name=name, daemon=True)

    def _show(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            print(f'[{self.name}] {line}', end='', flush=True)
        if self.process.wait() == 255:  # ssh never got there: waiting for that machine is in vain
            os.kill(os.getpid(), signal.SIGINT)
            if not self.ending.wait(LOST):
                os.kill(os.getpid(), signal.SIGINT)

    def wait(self) -> int:
        self.reader.join()
        return self.process.wait()

    def end(self) -> None:
        """Closes its standard input, which ends what still runs there, and waits until it has ended."""
        assert self.process.stdin is not None
        self.ending.set()
        try:
            self.status = self.process.wait(15)  # it ends by itself when the run has ended
        except subprocess.TimeoutExpired:
            self.process.stdin.close()
        try:
            self.status = self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.status = self.process.wait()


def live_by_standard_input(environment: Mapping[str, str] = os.environ) -> None:
    """In a launcher that another machine started: takes the token from standard input, and stops when that is closed."""
    if environment.get(REMOTE) != '1':
        return
    del os.environ[REMOTE]  # not for the ranks
    os.environ['PHALANX_TOKEN'] = sys.stdin.readline().strip()

    def watch() -> None:
        while sys.stdin.read(4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name='standard input', daemon=True).start()


def bring_home(name: str, folder: Path) -> None:
    """Copies `folder` of another machine, at the same path there, to this one, unless both share the disk. Raises OSError."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder.parent, prefix='.phalanx-') as mark:
        if subprocess.run([*SSH, '--', name, shlex.join(['test', '-e', mark.name])], stdin=subprocess.DEVNULL).returncode == 0:
            return
    line = shlex.join(['tar', '-C', str(folder.parent), '-cf', '-', folder.name])
    with subprocess.Popen([*SSH, '--', name, line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as copied:
        assert copied.stdout is not None
        with tarfile.open(fileobj=copied.stdout, mode='r|') as archive:
            archive.extractall(folder.parent, filter='data')
    if copied.returncode:
        raise OSError(f'the results of {name} could not be copied from {folder} there')
    say(f'the results of {name} are in {folder}')
