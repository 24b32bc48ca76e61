"""Devices of ranks, on a node whose number of CUDA devices is given: the tests have none."""

import pytest
import torch

from phalanx.engine.device import pick_device
from phalanx.system.errors import RequestError


def set_devices(monkeypatch: pytest.MonkeyPatch, count: int, visible: str | None) -> None:
    monkeypatch.setattr(torch.cuda, 'is_available', lambda: count > 0)
    monkeypatch.setattr(torch.cuda, 'device_count', lambda: count)
    if visible is None:
        monkeypatch.delenv('CUDA_VISIBLE_DEVICES', raising=False)
    else:
        monkeypatch.setenv('CUDA_VISIBLE_DEVICES', visible)


@pytest.mark.parametrize(
    ('count', 'visible', 'local_rank', 'device'),
    [
        (4, None, 3, 'cuda:3'),
        (2, '4,5', 1, 'cuda:1'),  # numbers count within CUDA_VISIBLE_DEVICES
        (1, '3', 3, 'cuda:0'),  # a device per task, by its number on the node
        (1, '0', 3, 'cuda:0'),  # a device per task in a cgroup of its own, as srun --gpus-per-task=1 sets it
        (1, 'GPU-5a1e', 1, 'cuda:0'),
    ],
)
def test_a_rank_takes_the_device_of_its_number_or_the_only_one_of_its_task(
    count: int, visible: str | None, local_rank: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_devices(monkeypatch, count, visible)
    assert pick_device('auto', local_rank) == torch.device(device)


@pytest.mark.parametrize(('count', 'visible'), [(1, None), (2, '0,1')])
def test_more_ranks_than_devices_are_refused(count: int, visible: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    set_devices(monkeypatch, count, visible)
    with pytest.raises(RequestError, match=f'local rank {count} has no device: torch sees {count} CUDA devices'):
        pick_device('cuda', count)


def test_a_model_alone_takes_the_device_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    set_devices(monkeypatch, 2, '4,5')
    assert pick_device('cuda:1') == torch.device('cuda', 1)
    with pytest.raises(RequestError, match='cuda:2 is requested, but torch sees 2 CUDA devices here, from cuda:0 on'):
        pick_device('cuda:2')
    for wrong in ('gpu', 'cpu:1', 'cuda:', 'cuda:x'):
        with pytest.raises(RequestError, match=f"'{wrong}' is not one of auto, cpu, cuda, cuda:N"):
            pick_device(wrong)
