"""Atomic file writes, locks, and the only functions that remove anything from a disk."""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from phalanx.system.errors import RequestError

log = logging.getLogger('phalanx')

LOCK = 'lock'  # file in a run folder, locked while a run writes there
ENDING = 1 << 16  # bytes

# Loader workers hand batches over through sockets TMPDIR/pymp-xxxxxxxx/listener-xxxxxxxx. A socket path is limited to
# 107 characters; if it is longer, Python loses the batch silently.
LONGEST_TMPDIR = 107 - len('/pymp-xxxxxxxx/listener-xxxxxxxx')


def check_writable(file: Path, cure: str) -> None:
    """Raise RequestError if `file` cannot be made, as on a read-only disk: reported before the work, not after it."""
    folder = next((folder for folder in file.absolute().parents if folder.is_dir()), Path('/'))
    if not os.access(folder, os.W_OK):
        raise RequestError(f'{folder}: cannot be written to; {cure}')


def write_atomically(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Write a file atomically: after an OSError, `path` is as it was before.

    `durable`: flush the content to disk before it replaces the old file. Raises OSError naming `path`.
    """
    with replace_atomically(path) as new:
        new.write_bytes(content)
        if durable:
            flush(new)


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path next to `path`; it replaces `path` on success and is removed on failure.

    Raises OSError naming `path`, and any error of the context.
    """
    # In the same folder, so that the rename stays within one file system, and named by process, so that two never share it.
    # 60 characters of its name take at most 240 of the 255 bytes that a name may have.
    new = path.with_name(f'.{path.name[-60:]}.{os.getpid()}.part')
    try:
        yield new
        new.replace(path)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        remove_own(new)


def remove_own(path: Path) -> None:
    """Remove a file, a link or a folder that Phalanx created: in this process, or earlier under a name that only Phalanx uses.

    Never call it on a path named by the user or another program; each caller says how it knows. Links are not followed; a
    missing path is not an error.
    """
    with contextlib.suppress(FileNotFoundError):
        path.lstat()  # a read-only file system refuses to remove what is not there
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def read_end(log: Path) -> str:
    """Last ENDING bytes of a log, as text: the whole may have gigabytes."""
    with log.open('rb') as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - ENDING))
        return file.read().decode(errors='replace')


def free_name(path: Path) -> Path:
    """`PATH.old-1` or, where that exists, the first free one after it."""
    return next(free for n in count(1) if not (free := path.with_name(f'{path.name}.old-{n}')).exists())


def hash_file(path: Path) -> str:
    """SHA-256 of a file as hexadecimal digits."""
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk (fsync).

    Folders on network file systems without support for it are skipped.
    """
    # A rename is durable only after an fsync of its folder, which can be opened for reading alone.
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP) or not path.is_dir():
            raise
    finally:
        os.close(handle)


@contextlib.contextmanager
def exclude_others(path: Path) -> Iterator[None]:
    """Exclude other processes and threads that use this context with the same file."""
    with path.open('a') as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:  # on a disk without locks two processes may work in the same place
            log.info('%s: cannot be locked: %s', path, error)
        yield


def is_locked(lock: Path) -> bool:
    """Return True while a run of another process holds this lock. False for a lock that cannot be read, or without locks.

    Not for a process that trains itself: to close a file ends all locks that this process has on it.
    """
    try:
        # A shared lock needs no right to write, and several readers can have it at a time.
        with lock.open('rb') as file:
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def user_caches() -> Path:
    """Folder of the caches of this user. Raises RequestError for a user without a home folder, as a container may have."""
    try:
        return Path(os.environ.get('XDG_CACHE_HOME') or '~/.cache').expanduser()
    except RuntimeError:
        raise RequestError(
            f'user {os.getuid()} has no home folder for caches: set HOME, or XDG_CACHE_HOME, to a folder that can be written'
        ) from None
