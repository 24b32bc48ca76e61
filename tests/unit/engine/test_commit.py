"""The banner of a run states the commit of the working folder."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from phalanx.engine.worker import commit_of


def git(folder: Path, *words: str) -> str:
    author = ('-c', 'user.name=x', '-c', 'user.email=x@example.org')
    done = subprocess.run(['git', '-C', str(folder), *author, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_commit_comes_with_its_branch_and_uncommitted_changes(tmp_path: Path) -> None:
    git(tmp_path, 'init', '-q', '-b', 'trial')
    (tmp_path / 'a').write_text('1')
    git(tmp_path, 'add', 'a')
    git(tmp_path, 'commit', '-q', '-m', 'first')
    commit = f'commit {git(tmp_path, "rev-parse", "HEAD")[:12]} of trial'
    (tmp_path / 'results').touch()  # untracked files, such as run folders, are no change of the code
    assert commit_of(tmp_path) == commit
    (tmp_path / 'a').write_text('2')
    assert commit_of(tmp_path) == f'{commit}, uncommitted changes'


def test_a_folder_outside_a_repository_has_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ''


def test_a_branch_whose_name_is_not_utf8_is_named_all_the_same(tmp_path: Path) -> None:
    git(tmp_path, 'init', '-q', '-b', os.fsdecode(b'versuch-\xfc'))
    git(tmp_path, 'commit', '-q', '--allow-empty', '-m', 'first')
    assert commit_of(tmp_path).endswith(' of versuch-\ufffd')
