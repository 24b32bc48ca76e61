"""The number of processes that can work side by side."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.system.cores import count_cores


@pytest.fixture
def node_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, 'sched_getaffinity', lambda process: set(range(8)), raising=False)


@pytest.mark.usefixtures('node_of_eight')
@pytest.mark.parametrize(
    ('quota', 'expected'), [('200000 100000', 2), ('150000 100000', 2), ('1600000 100000', 8), ('max 100000', 8), ('', 8)]
)
def test_a_container_has_its_share_of_the_cores(tmp_path: Path, quota: str, expected: int) -> None:
    (tmp_path / 'cpu.max').write_text(quota + '\n')
    assert count_cores(tmp_path / 'cpu.max') == expected


@pytest.mark.usefixtures('node_of_eight')
def test_outside_of_containers_all_cores_that_a_process_may_use_count(tmp_path: Path) -> None:
    assert count_cores(tmp_path / 'cpu.max') == 8
