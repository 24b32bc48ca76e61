"""The device of a rank."""

import torch

from phalanx.system.errors import RequestError


def pick_device(wish: str, local_rank: int = 0) -> torch.device:
    """The device of a rank. Raises RequestError when there are fewer devices than ranks, or CUDA is wanted and absent."""
    if wish not in ('auto', 'cpu', 'cuda'):
        raise RequestError(f'device: {wish!r} is not one of auto, cpu, cuda')
    if wish == 'cpu' or (wish == 'auto' and not torch.cuda.is_available()):
        return torch.device('cpu')
    if not torch.cuda.is_available():
        raise RequestError('device: cuda was asked for, but torch sees no CUDA device here; use device=cpu or fix the driver')
    if local_rank >= torch.cuda.device_count():
        raise RequestError(f'local rank {local_rank} has no device: torch sees {torch.cuda.device_count()} CUDA devices')
    return torch.device('cuda', local_rank)
