"""Running the command as a user does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from running import Command, clean_environment


@pytest.fixture
def phalanx(tmp_path: Path) -> Command:
    """Runs `phalanx WORDS...` in an empty folder, one thread a process, and returns what came of it."""

    def run(*words: str, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, '-m', 'phalanx.cli', *words],
            cwd=tmp_path,
            env={**clean_environment(), **environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    return run
