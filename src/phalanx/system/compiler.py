"""Cache folder of compiled kernels (`train.compile`): private, because torch executes the files in it."""

import contextlib
import os
import tempfile
from pathlib import Path

from phalanx.system.disk import user_caches
from phalanx.system.errors import RequestError

CACHE = 'TORCHINDUCTOR_CACHE_DIR'  # torch's own choice is TMPDIR/torchinductor_USER, which another user can create first


def use_own_cache() -> None:
    """Point torch, which creates it on import, to a cache folder of this user, unless the environment names one.

    It is below TMPDIR for a user whose home cannot be written: in a container that is often `/`.
    """
    if CACHE in os.environ:
        return
    with contextlib.suppress(OSError, RequestError):
        folder = user_caches() / 'phalanx' / 'torchinductor'
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ[CACHE] = str(folder)
            return
    os.environ[CACHE] = f'{tempfile.gettempdir()}/phalanx-torchinductor-{os.getuid()}'


def check_cache() -> None:
    """Create the folder that the environment names. Raises RequestError if another user can write to it."""
    folder = Path(os.environ[CACHE])
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError as error:
        raise RequestError(f'train.compile: {folder}: {error.strerror}; name another folder in {CACHE}') from None
    # Whoever can write there can make torch execute code of theirs.
    if status.st_uid != os.getuid() or status.st_mode & 0o022:
        fault = 'belongs to another user' if status.st_uid != os.getuid() else 'is writable by other users'
        cure = f'run chmod 700 on your own folder, or name another one in {CACHE}'
        raise RequestError(f'train.compile: the cache of compiled kernels, {folder}, {fault}: {cure}')
