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
    (tmp_path / 'own').write_text('0::/\n')
    (tmp_path / 'cpu.max').write_text(quota + '\n')
    assert count_cores(tmp_path, tmp_path / 'own') == expected


@pytest.mark.usefixtures('node_of_eight')
@pytest.mark.parametrize(('quota', 'expected'), [('150000', 2), ('-1', 8)])
def test_the_quota_of_a_job_or_an_older_container_counts(tmp_path: Path, quota: str, expected: int) -> None:
    """Version 1 of control groups has quota and period in two files, and a container knows itself by its name outside."""
    (tmp_path / 'own').write_text('5:cpu,cpuacct:/docker/1f\n0::/user.slice/run-7.scope\n')
    (tmp_path / 'cpu').mkdir()
    (tmp_path / 'cpu/cpu.cfs_quota_us').write_text(quota + '\n')
    (tmp_path / 'cpu/cpu.cfs_period_us').write_text('100000\n')
    assert count_cores(tmp_path, tmp_path / 'own') == expected
    (tmp_path / 'user.slice').mkdir()
    (tmp_path / 'user.slice/cpu.max').write_text('100000 100000\n')
    assert count_cores(tmp_path, tmp_path / 'own') == 1


@pytest.mark.usefixtures('node_of_eight')
def test_outside_of_containers_all_cores_that_a_process_may_use_count(tmp_path: Path) -> None:
    assert count_cores(tmp_path, tmp_path / 'own') == 8
