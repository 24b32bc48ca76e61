"""Device of a rank."""

import os

import torch

from phalanx.system.errors import RequestError


def pick_device(wish: str, local_rank: int = 0) -> torch.device:
    """Device of a rank for the recipe key `device`: auto, cpu or cuda.

    A launcher may give each task its own device (srun --gpus-per-task=1, or CUDA_VISIBLE_DEVICES per process): that device is
    number 0 for every rank. Raises RequestError if there are fewer devices than ranks, or no CUDA for `cuda`.
    """
    if wish not in ('auto', 'cpu', 'cuda'):
        raise RequestError(f'device: {wish!r} is not one of auto, cpu, cuda')
    if wish == 'cpu' or (wish == 'auto' and not torch.cuda.is_available()):
        return torch.device('cpu')
    if not torch.cuda.is_available():
        raise RequestError('device: cuda is requested, but torch sees no CUDA device here; use device=cpu or fix the driver')
    # One visible device is that of this rank, whatever its local rank.
    count, visible = torch.cuda.device_count(), os.environ.get('CUDA_VISIBLE_DEVICES', '')
    if count == 1 and visible and ',' not in visible:  # if ranks share this device by mistake, NCCL refuses to start
        return torch.device('cuda', 0)
    if local_rank >= count:
        raise RequestError(
            f'local rank {local_rank} has no device: torch sees {count} CUDA devices; '
            'start fewer ranks per node, or give each its own device in CUDA_VISIBLE_DEVICES'
        )
    return torch.device('cuda', local_rank)
