"""Compiled kernels are run, so they come from a folder of the user's own."""

import os
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
