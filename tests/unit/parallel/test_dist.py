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


def test_ranks_on_gpus_join_with_nccl_for_their_device_and_gloo_for_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL itself needs a GPU: these are the arguments for it."""
    arguments: dict[str, object] = {}
    monkeypatch.setattr(
        dist.torch_dist, 'init_process_group', lambda backend, **more: arguments.update(backend=backend, **more)
    )
    monkeypatch.setattr(dist, 'open_store', lambda rank, ranks, seconds: (rank, ranks))
    monkeypatch.setenv('RANK', '5')
    monkeypatch.setenv('WORLD_SIZE', '16')
    assert dist.join(torch.device('cuda', 1))
    assert arguments['backend'] == 'cpu:gloo,cuda:nccl' and arguments['device_id'] == torch.device('cuda', 1)
    assert (arguments['rank'], arguments['world_size']) == (5, 16)
