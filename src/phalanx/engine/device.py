"""Device of a rank."""

import os

import torch
from torch import nn

from phalanx.system.errors import RequestError


def pick_device(wish: str, local_rank: int = 0) -> torch.device:
    """Device of a rank for the recipe key `device`: auto, cpu or cuda; or for a model alone `cuda:N`, whatever the rank.

    A launcher may give each task its own device (srun --gpus-per-task=1, or CUDA_VISIBLE_DEVICES per process): that device is
    number 0 for every rank. Raises RequestError if there are fewer devices than ranks, or no CUDA for `cuda`.
    """
    kind, _, number = wish.partition(':')
    if kind not in ('auto', 'cpu', 'cuda') or (wish != kind and not (kind == 'cuda' and number.isdecimal())):
        raise RequestError(f'device: {wish!r} is not one of auto, cpu, cuda, cuda:N')
    if wish == 'cpu' or (wish == 'auto' and not torch.cuda.is_available()):
        return torch.device('cpu')
    if not torch.cuda.is_available():
        raise RequestError(f'device: {wish} is requested, but torch sees no CUDA device here; use device=cpu or fix the driver')
    count, visible = torch.cuda.device_count(), os.environ.get('CUDA_VISIBLE_DEVICES', '')
    if number:
        if int(number) >= count:
            raise RequestError(f'device: {wish} is requested, but torch sees {count} CUDA devices here, from cuda:0 on')
        return torch.device(kind, int(number))
    # One visible device is that of this rank, whatever its local rank.
    if count == 1 and visible and ',' not in visible:  # if ranks share this device by mistake, NCCL refuses to start
        return torch.device('cuda', 0)
    if local_rank >= count:
        raise RequestError(
            f'local rank {local_rank} has no device: torch sees {count} CUDA devices; '
            'start fewer ranks per node, or give each its own device in CUDA_VISIBLE_DEVICES'
        )
    return torch.device('cuda', local_rank)


def place_network(network: nn.Module, device: torch.device, *, channels_last: bool) -> None:
    """Move a network to a device, in the memory format of the recipe.

    The format selects kernels, whose sums are rounded differently: in bf16 the metric of the same weights changes in its third
    digit. So an evaluation uses the format of the training.
    """
    network.to(device)
    if channels_last:
        network.to(memory_format=torch.channels_last)
