"""Start of the same command on all nodes (--ssh), on other nodes through the user's own OpenSSH.

A launcher started this way stops when its standard input closes, so it ends with the connection. Words for the remote shell are
quoted one by one; the token of the job is sent through standard input, where no process list shows it. The command on this node
is a child process like the others, so that all stop in the same way.
"""

from __future__ import annotations

import contextlib
import os
import queue
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Collection, Sequence
from pathlib import Path, PurePosixPath
from types import FrameType

from phalanx.launch.cluster import local_addresses
from phalanx.launch.flags import Flags
from phalanx.launch.names import resolve, split_nodes
from phalanx.launch.rendezvous import print_line
from phalanx.system.errors import RequestError
from phalanx.system.stops import STOP_STATUSES, stop_signals

REMOTE = 'PHALANX_REMOTE'  # set in launchers started by another launcher
SSH = (
    *('ssh', '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=10', '-o', 'ServerAliveInterval=5'),
    *('-o', 'ControlMaster=no'),  # a persistent connection (ControlPersist of the user) would keep our pipe open
)
UNREACHED = 255  # exit status of ssh itself if it cannot connect, or loses the connection
LINGER = 60  # seconds within which all nodes end once one has
STOPPED_STATUSES = (0, *STOP_STATUSES)  # exit statuses of a command after a stop
HERE_ONLY = {'--ssh': 0, '--hostfile': 1, '--host': 1, '--ips': 1}  # flags of this node only, with the number of their words


def run_on_all_nodes(flags: Flags, command: str, words: Sequence[str], folder: Path, script: Sequence[str] = ()) -> int:
    """Run `phalanx COMMAND WORDS SCRIPT` on all nodes of `--ips`, which may include this one; return the exit status.

    Flags of this node are removed from `words`; the words of `script` are passed on as typed. Afterwards `folder` is on this
    node: it is copied from the first node if that is another. Raises RequestError.
    """
    # the nodes, and which of them is this one
    try:
        names = split_nodes(flags.ips or '')
    except ValueError as error:
        raise RequestError(str(error)) from None
    if not names:
        raise RequestError('--ssh: the nodes are missing; give --ips or --hostfile')
    if dashed := [name for name in names if name.startswith('-')]:
        raise RequestError(f'--ips: {dashed[0]!r} is not the name of a node')
    words = ['--ips', ','.join(names), *strip_local_flags(words), *script]
    try:
        own = local_addresses()
        mine = {name for name in names if own.keys() & set(resolve(name))}
    except ValueError as error:
        raise RequestError(f'--ips {",".join(names)}: {error}; correct it, or give addresses') from None
    # a new token per run; ssh passes it through standard input, not in the command
    os.environ.setdefault('PHALANX_TOKEN', secrets.token_hex(16))
    here, there = [sys.executable, '-m', 'phalanx', command, *words], remote_command(command, words, Path.cwd())
    nodes, stop_signal = _run([(name, here if name in mine else [*SSH, '--', name, there]) for name in names], mine)
    # the status of a stop, of rank 0's node where it is here, and the results
    if unreached := [node.name for node in nodes if node.status == UNREACHED]:
        print_line(f'ssh could not reach {", ".join(unreached)}, or lost the connection; see its own message above')
        return 2
    if stop_signal and all(node.status in STOPPED_STATUSES for node in nodes):
        return 128 + stop_signal
    status = max(node.status for node in nodes if node.name in mine or not mine)
    if names[0] not in mine and status == 0:
        fetch_folder(names[0], folder)
    return status


def _run(starts: Sequence[tuple[str, Sequence[str]]], mine: Collection[str]) -> tuple[list[_Node], int]:
    """Start a command on each node, locally for those in `mine`, and wait for all; return them and the stop signal (0: none).

    If a node cannot be reached, or has ended more than LINGER seconds ago, the others are asked to stop.
    """
    # start all, and wait until all have ended, one is unreachable, or the user stops
    nodes: list[_Node] = []
    ended: queue.SimpleQueue[_Node] = queue.SimpleQueue()
    stop_signal = 0

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stop_signal
        stop_signal = stop_signal or number
        raise KeyboardInterrupt

    for number in stop_signals():
        signal.signal(number, stop)
    try:
        for name, start in starts:
            nodes.append(_Node(name, start, ended, is_here=name in mine))
        for done in range(len(nodes)):  # number of nodes that have ended before
            if ended.get(timeout=LINGER if done else None).status == UNREACHED:
                break
    except (KeyboardInterrupt, queue.Empty):
        pass
    try:
        # then ask the rest to stop, and end what does not
        for node in nodes:
            node.ask_to_stop()
        for node in nodes:
            node.reader.join(None if stop_signal else LINGER)  # after a stop, a long step and a large checkpoint may follow
    except KeyboardInterrupt:  # a second stop: end at once
        pass
    finally:
        for node in nodes:
            node.end()
    return nodes, stop_signal


def strip_local_flags(words: Sequence[str]) -> list[str]:
    """Words of a command without the flags that are for this node only."""
    remaining, skip = [], 0
    for word in words:
        name, equals, _ = word.partition('=')
        name = name.replace('-', '_').replace('__', '--', 1) if name.startswith('--') else name
        if skip:
            skip -= 1
        elif name in HERE_ONLY:
            skip = 0 if equals else HERE_ONLY[name]
        else:
            remaining.append(word)
    return remaining


def remote_command(command: str, words: Sequence[str], folder: Path) -> str:
    """Line for the remote shell, with every word quoted."""
    run = shlex.join(['env', f'{REMOTE}=1', sys.executable, '-m', 'phalanx', command, *words])
    return f'cd {shlex.quote(str(folder))} && exec {run}'


class _Node:
    """Command on one node. Lines from another node are printed after its name; on this node it uses the terminal."""

    def __init__(self, name: str, start: Sequence[str], ended: queue.SimpleQueue[_Node], *, is_here: bool) -> None:
        self.name, self.ended = name, ended
        self.process = subprocess.Popen(
            start,
            stdin=subprocess.PIPE,
            stdout=None if is_here else subprocess.PIPE,
            stderr=None if is_here else subprocess.STDOUT,
            text=True,
            errors='replace',
            env=os.environ | {REMOTE: '1'},
            start_new_session=not is_here,  # no Ctrl-C for ssh: it would end before the last lines arrive
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ssh has ended already: its status and last lines give the reason
            self.process.stdin.write(os.environ['PHALANX_TOKEN'] + '\n')
            self.process.stdin.flush()
        self.reader = threading.Thread(target=self._show, name=name, daemon=True)
        self.reader.start()

    def _show(self) -> None:
        for line in self.process.stdout or ():
            print(f'[{self.name}] {line}', end='', flush=True)
        self.process.wait()
        self.ended.put(self)

    @property
    def status(self) -> int:
        """Exit status as in a shell; waits for the end."""
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    def ask_to_stop(self) -> None:
        """Close its standard input, which stops a launcher."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self) -> None:
        """End the process if it is still running."""
        if self.process.poll() is None:
            self.process.terminate()
            self.reader.join(5)
            self.process.kill()
        self.reader.join(5)  # for its last lines; a process that ssh left behind may keep the pipe open forever


def stop_when_stdin_closes() -> None:
    """In a launcher started by another node: read the token from standard input, and stop when that closes."""
    if os.environ.pop(REMOTE, None) != '1':  # not for the ranks
        return
    os.environ['PHALANX_TOKEN'] = sys.stdin.readline().strip()

    def watch() -> None:
        while sys.stdin.read(4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name='standard input', daemon=True).start()


def fetch_folder(name: str, folder: Path) -> None:
    """Copy `folder` from another node, unless both share the disk. Raises OSError."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    # a temporary file that the other node can see proves a shared disk: nothing to copy
    with tempfile.NamedTemporaryFile(dir=folder.parent, prefix='.phalanx-') as mark:
        if subprocess.run([*SSH, '--', name, shlex.join(['test', '-e', mark.name])], stdin=subprocess.DEVNULL).returncode == 0:
            return
    # otherwise unpack the stream of a remote tar, through a filter against paths that leave the folder
    line = shlex.join(['tar', '-C', str(folder.parent), '-cf', '-', folder.name])
    with subprocess.Popen([*SSH, '--', name, line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as copied:
        assert copied.stdout is not None
        try:
            with tarfile.open(fileobj=copied.stdout, mode='r|') as archive:
                archive.extractall(folder.parent, filter=_ExtractionFilter(folder))
        except tarfile.TarError as error:
            copied.kill()
            raise OSError(f'{name} sent other data than {folder}: {error}') from None
        while copied.stdout.read(65536):  # padding of the last record: else tar may fail on a closed pipe
            pass
    if copied.returncode:
        raise OSError(f'the results of {name} could not be copied from {folder} there')
    print_line(f'the results of {name} are in {folder}')


class _ExtractionFilter:
    """Extraction filter for tarfile: data inside the run folder, without links out of it, that fits on the disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base = folder, folder.resolve()
        self.room = shutil.disk_usage(folder.parent).free

    def __call__(self, member: tarfile.TarInfo, target: str) -> tarfile.TarInfo:
        """Return the checked member. Raises tarfile.TarError."""
        checked = tarfile.data_filter(member, target)
        places = [Path(target, checked.name)]
        if checked.issym() or checked.islnk():
            places.append((places[0].parent if checked.issym() else Path(target)) / checked.linkname)
        in_folder = PurePosixPath(checked.name).parts[:1] == (self.folder.name,)
        if not in_folder or not all(place.resolve().is_relative_to(self.base) for place in places):
            raise tarfile.OutsideDestinationError(checked, str(places[-1]))
        self.room -= checked.size
        if self.room < 0:
            raise tarfile.ExtractError(f'{checked.name}: not enough space on the disk')
        return checked
