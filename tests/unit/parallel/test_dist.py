"""Ranks as launchers describe them in the environment."""

from __future__ import annotations

import os

import pytest
import torch

from phalanx.parallel import dist


@pytest.mark.parametrize(
    ('variables', 'expected'),
    [({}, False), ({'RANK': '1'}, False), ({'WORLD_SIZE': '2'}, False), ({'RANK': '1', 'WORLD_SIZE': '2'}, True)],
)
def test_a_launcher_sets_both_the_rank_and_the_number_of_ranks(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: bool
) -> None:
    for name in ('RANK', 'WORLD_SIZE'):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert dist.is_launched() is expected


def test_only_values_in_host_memory_take_the_short_way_of_small_values() -> None:
    """NCCL reduces small values fast by itself, and has no exchange through host memory."""
    assert dist._is_small(torch.zeros(2))
    assert not dist._is_small(torch.zeros(2, device='meta'))
    assert not dist._is_small(torch.zeros(dist.SMALL))


@pytest.mark.parametrize(('members', 'expected'), [(dist.MESH, None), (dist.MESH + 1, '1')])
def test_members_of_a_large_group_connect_when_they_need_it(
    monkeypatch: pytest.MonkeyPatch, members: int, expected: str | None
) -> None:
    monkeypatch.setenv('TORCH_GLOO_LAZY_INIT', 'restored afterwards')
    del os.environ['TORCH_GLOO_LAZY_INIT']
    dist.connect_when_needed(members)
    assert os.environ.get('TORCH_GLOO_LAZY_INIT') == expected
