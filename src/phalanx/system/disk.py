"""Files that matter: written aside and renamed, and the only place that removes anything from a disk."""

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

# Loader workers hand batches over through sockets TMPDIR/pymp-xxxxxxxx/listener-xxxxxxxx. A socket's path has at most 107
# letters, and Python loses the batch, silently, when it is longer.
LONGEST_TMPDIR = 107 - len('/pymp-xxxxxxxx/listener-xxxxxxxx')


def write_atomically(path: Path, content: bytes, *, durable: bool = False) -> None:
    """Writes a file that is there with all its content or, when that fails with an OSError, as it was before.

    `durable`: the content is on the disk before it takes the place of what was there. Raises OSError naming `path`.
    """
    with replace_atomically(path) as new:
        new.write_bytes(content)
        if durable:
            flush(new)


@contextlib.contextmanager
def replace_atomically(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the place of `path` when the context ends well, and is gone otherwise.

    Raises OSError naming `path`, and what the context raises.
    """
    new = path.with_name(f'.{path.name}.{os.getpid()}.part')
    try:
        yield new
        new.replace(path)
    except OSError as error:
        raise type(error)(error.errno, error.strerror, str(path)) from error
    finally:
        remove_own(new)


def remove_own(path: Path) -> None:
    """Removes a file, a link or a whole folder that this process made, or a predecessor with a mark that nobody else uses.

    Never a path that a person or another program named: whoever calls this says how it knows. Links are not followed, and what
    is not there is no error.
    """
    with contextlib.suppress(FileNotFoundError):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def hash_file(path: Path) -> str:
    """The sha256 of a file."""
    with path.open('rb') as file:
        return hashlib.file_digest(file, 'sha256').hexdigest()


def flush(path: Path) -> None:
    """Makes sure that a file, or the names in a folder, are on disk and not only on their way.

    Some network file systems cannot flush a folder; nothing more can be done there.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP) or not path.is_dir():
            raise
    finally:
        os.close(handle)
