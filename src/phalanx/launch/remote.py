"""One command for all nodes: starts the same command on each of them, on the others through the user's own OpenSSH.

A launcher that is started so lives as long as its standard input is open, so it ends with the connection, whatever ends that.
What travels through a shell is quoted word by word; the token of the job travels through the standard input, where no process
list shows it. The command here is a process like the others, so that all stop in the same way.
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
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import FrameType

from phalanx.launch.cluster import local_addresses
from phalanx.launch.flags import Flags
from phalanx.launch.names import resolve, split_list
from phalanx.launch.rendezvous import print_line
from phalanx.system.errors import RequestError
from phalanx.system.stops import STOP_STATUSES, stop_signals

REMOTE = 'PHALANX_REMOTE'  # set for a launcher that another one started
SSH = (
    *('ssh', '-o', 'BatchMode=yes', '-o', 'ConnectTimeout=10', '-o', 'ServerAliveInterval=5'),
    *('-o', 'ControlMaster=no'),  # a connection kept for later (the user's ControlPersist) would hold our pipe open
)
UNREACHED = 255  # what ssh itself ends with when it could not connect, or lost the connection
LINGER = 60  # seconds within which all nodes end once one has
STOPPED_STATUSES = (0, *STOP_STATUSES)  # how a command ends that heeded a stop
HERE_ONLY = {'--ssh': 0, '--hostfile': 1, '--host': 1, '--ips': 1}  # flags that are not passed on, and how many words follow


def run_on_all_nodes(flags: Flags, command: str, words: Sequence[str], folder: Path, script: Sequence[str] = ()) -> int:
    """Runs `phalanx COMMAND WORDS SCRIPT` on all nodes of `--ips`, this one among them or not; the exit status of the whole.

    `words` are read by Phalanx, and adapted to each node; the words of `script` are the user's, and stay as they were typed.
    Afterwards `folder` is on this node: brought home from the first node when that is another. Raises RequestError.
    """
    names = split_list(flags.ips or '')
    if not names:
        raise RequestError('--ssh: on which nodes? give --ips or --hostfile')
    if dashed := [name for name in names if name.startswith('-')]:
        raise RequestError(f'--ips: {dashed[0]!r} is not the name of a node')
    words = ['--ips', ','.join(names), *strip_local_flags(words), *script]
    try:
        own = local_addresses()
        mine = {name for name in names if own.keys() & set(resolve(name))}
    except ValueError as error:
        raise RequestError(f'--ips {",".join(names)}: {error}; correct it, or give addresses') from None
    os.environ.setdefault('PHALANX_TOKEN', secrets.token_hex(16))
    here, there = [sys.executable, '-m', 'phalanx', command, *words], remote_command(command, words, Path.cwd())
    nodes, asked = _run([(name, here if name in mine else [*SSH, '--', name, there]) for name in names], mine)
    if unreached := [node.name for node in nodes if node.status == UNREACHED]:
        print_line(f'ssh could not reach {", ".join(unreached)}, or lost it; its own message stands above')
        return 2
    if asked and all(node.status in STOPPED_STATUSES for node in nodes):
        return 128 + asked
    status = max(node.status for node in nodes if node.name in mine or not mine)
    if names[0] not in mine and status == 0:
        fetch_folder(names[0], folder)
    return status


def _run(starts: Sequence[tuple[str, Sequence[str]]], mine: Collection[str]) -> tuple[list[_Node], int]:
    """Starts a command on each node, those in `mine` here. Returns all, ended, and the signal that asked them to stop.

    That is 0 without one. As soon as a node cannot be reached, or long after one has ended, the rest are asked to stop.
    """
    nodes: list[_Node] = []
    ended: queue.SimpleQueue[_Node] = queue.SimpleQueue()
    asked = 0

    def ask(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked = asked or number
        raise KeyboardInterrupt

    for number in stop_signals():
        signal.signal(number, ask)
    try:
        for name, start in starts:
            nodes.append(_Node(name, start, ended, is_here=name in mine))
        for others in range(len(nodes)):  # that have ended before
            if ended.get(timeout=LINGER if others else None).status == UNREACHED:
                break
    except (KeyboardInterrupt, queue.Empty):
        pass
    try:
        for node in nodes:
            node.ask_to_stop()
        for node in nodes:
            node.reader.join(None if asked else LINGER)  # who asked may wait for a long step and a large checkpoint
    except KeyboardInterrupt:  # asked once more: at once, then
        pass
    finally:
        for node in nodes:
            node.end()
    return nodes, asked


def strip_local_flags(words: Sequence[str]) -> list[str]:
    """The words of a command without the flags that concern the node where it was typed."""
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


def remote_command(command: str, words: Sequence[str], folder: Path) -> str:
    """The one line that the remote shell gets: every word is quoted, so that none of them means anything to the shell."""
    run = shlex.join(['env', f'{REMOTE}=1', sys.executable, '-m', 'phalanx', command, *words])
    return f'cd {shlex.quote(str(folder))} && exec {run}'


class _Node:
    """The command on one node. Lines from another one are shown with its name before them; here it has the terminal."""

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
            start_new_session=not is_here,  # Ctrl-C is for the command here: ssh would end before the last lines have come
        )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # ssh that ended at once: its status and last lines say why
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
        """The exit status, as a shell reports it; waits for it."""
        code = self.process.wait()
        return code if code >= 0 else 128 - code

    def ask_to_stop(self) -> None:
        """Closes its standard input, which a launcher takes for a wish to stop."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()

    def end(self) -> None:
        """Ends what has not ended by itself."""
        if self.process.poll() is None:
            self.process.terminate()
            self.reader.join(5)
            self.process.kill()
        self.reader.join(5)  # its last lines; a process that ssh left behind may hold the pipe open forever


def stop_when_stdin_closes(environment: Mapping[str, str] = os.environ) -> None:
    """In a launcher that another node started: takes the token from standard input, and stops when that is closed."""
    if environment.get(REMOTE) != '1':
        return
    del os.environ[REMOTE]  # not for the ranks
    os.environ['PHALANX_TOKEN'] = sys.stdin.readline().strip()

    def watch() -> None:
        while sys.stdin.read(4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name='standard input', daemon=True).start()


def fetch_folder(name: str, folder: Path) -> None:
    """Copies `folder` of another node, at the same path there, to this one, unless both share the disk. Raises OSError."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=folder.parent, prefix='.phalanx-') as mark:
        if subprocess.run([*SSH, '--', name, shlex.join(['test', '-e', mark.name])], stdin=subprocess.DEVNULL).returncode == 0:
            return
    line = shlex.join(['tar', '-C', str(folder.parent), '-cf', '-', folder.name])
    with subprocess.Popen([*SSH, '--', name, line], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as copied:
        assert copied.stdout is not None
        try:
            with tarfile.open(fileobj=copied.stdout, mode='r|') as archive:
                archive.extractall(folder.parent, filter=_Inside(folder))
        except tarfile.TarError as error:
            copied.kill()
            raise OSError(f'{name} sent something else than {folder}: {error}') from None
        while copied.stdout.read(65536):  # what fills the last record, else tar there may die of a pipe that we closed
            pass
    if copied.returncode:
        raise OSError(f'the results of {name} could not be copied from {folder} there')
    print_line(f'the results of {name} are in {folder}')


class _Inside:
    """What tarfile lets through as data, if it lies in the run folder, links to nothing outside of it, and finds room here."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.base = folder, folder.resolve()
        self.room = shutil.disk_usage(folder.parent).free

    def __call__(self, member: tarfile.TarInfo, target: str) -> tarfile.TarInfo:
        """Raises tarfile.TarError."""
        checked = tarfile.data_filter(member, target)
        places = [Path(target, checked.name)]
        if checked.issym() or checked.islnk():
            places.append((places[0].parent if checked.issym() else Path(target)) / checked.linkname)
        begins_well = PurePosixPath(checked.name).parts[:1] == (self.folder.name,)
        if not begins_well or not all(place.resolve().is_relative_to(self.base) for place in places):
            raise tarfile.OutsideDestinationError(checked, str(places[-1]))
        self.room -= checked.size
        if self.room < 0:
            raise tarfile.ExtractError(f'{checked.name}: the disk has no room for it')
        return checked
