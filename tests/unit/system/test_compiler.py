"""Compiled kernels are run, so they come from a folder of the user's own."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from phalanx.system.compiler import CACHE, check_cache, use_own_cache
from phalanx.system.errors import RequestError


def test_kernels_are_kept_in_the_users_cache_where_nobody_else_can_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    monkeypatch.delenv(CACHE, raising=False)
    use_own_cache()
    check_cache()
    assert os.environ[CACHE] == str(tmp_path / 'phalanx' / 'torchinductor')
    assert Path(os.environ[CACHE]).stat().st_mode & 0o777 == 0o700


def test_a_user_whose_home_cannot_be_written_keeps_them_below_tmpdir(monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker gives `/` to a user without an entry in /etc/passwd; torch fails on import if it cannot make the folder."""
    monkeypatch.setenv('XDG_CACHE_HOME', '/proc/nobody')  # where not even root can create anything
    monkeypatch.setenv(CACHE, '')
    monkeypatch.delenv(CACHE)
    use_own_cache()
    assert os.environ[CACHE] == f'{tempfile.gettempdir()}/phalanx-torchinductor-{os.getuid()}'


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to become a user without an entry in /etc/passwd')
def test_a_user_without_a_home_folder_is_asked_for_one_only_where_it_is_needed() -> None:
    program = (
        'import os, pwd\n'
        'from phalanx.system.compiler import use_own_cache\n'
        'from phalanx.system.disk import user_caches\n'
        "[os.environ.pop(name, None) for name in ('HOME', 'XDG_CACHE_HOME', 'TORCHINDUCTOR_CACHE_DIR')]\n"
        'os.setuid(54321)\n'
        'use_own_cache()\n'
        "print(os.environ['TORCHINDUCTOR_CACHE_DIR'])\n"
        'user_caches()\n'
    )
    done = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True, check=False)
    assert done.stdout.endswith('/phalanx-torchinductor-54321\n'), done.stderr
    assert done.stderr.rstrip().endswith(
        'user 54321 has no home folder for caches: set HOME, or XDG_CACHE_HOME, to a folder that can be written'
    )


def test_a_folder_that_others_can_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o777)
    monkeypatch.setenv(CACHE, str(tmp_path))
    with pytest.raises(RequestError, match=r'is writable by other users: run chmod 700'):
        check_cache()


@pytest.mark.skipif(os.geteuid() != 0, reason='needs root to give a folder to another user')
def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp_path.chmod(0o700)
    os.chown(tmp_path, 12345, -1)
    monkeypatch.setenv(CACHE, str(tmp_path))
    with pytest.raises(RequestError, match=r'belongs to another user'):
        check_cache()
