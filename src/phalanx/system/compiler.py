"""Where `train.compile` keeps compiled kernels: in a folder that nobody else can write to, since what lies there is run."""

import os
from pathlib import Path

from phalanx.system.errors import RequestError

CACHE = 'TORCHINDUCTOR_CACHE_DIR'  # torch's own choice is TMPDIR/torchinductor_USER, which anybody may make first


def use_own_cache() -> None:
    """Names the folder to torch, unless the environment does."""
    caches = Path(os.environ.get('XDG_CACHE_HOME') or Path('~/.cache').expanduser())
    os.environ.setdefault(CACHE, str(caches / 'phalanx' / 'torchinductor'))


def check_cache() -> None:
    """Makes the folder that the environment names. Raises RequestError when somebody else could write to it."""
    folder = Path(os.environ[CACHE])
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise RequestError(f'train.compile: {folder}: {error.strerror}; name another folder in {CACHE}') from None
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        whose = 'belongs to another user' if found.st_uid != os.getuid() else 'can be written to by others'
        cure = f'chmod 700 your own, or name another in {CACHE}'
        raise RequestError(f'train.compile: {folder}, from which torch runs compiled kernels, {whose}: {cure}')
