"""Cache folder of compiled kernels (`train.compile`): private, because torch executes the files in it."""

import os
from pathlib import Path

from phalanx.system.errors import RequestError

CACHE = 'TORCHINDUCTOR_CACHE_DIR'  # torch's own choice is TMPDIR/torchinductor_USER, which another user can create first


def use_own_cache() -> None:
    """Point torch to a cache folder of this user, unless the environment names one."""
    caches = Path(os.environ.get('XDG_CACHE_HOME') or Path('~/.cache').expanduser())
    os.environ.setdefault(CACHE, str(caches / 'phalanx' / 'torchinductor'))


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
