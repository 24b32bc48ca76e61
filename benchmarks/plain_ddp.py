"""Steps of plain DistributedDataParallel, as torch documents it; scaling_between_nodes.py starts it to compare with.

    python benchmarks/plain_ddp.py RECIPE STEPS KEY=VALUE ...          (or under torchrun)

The network, loss and optimizer of the recipe, each rank for itself but for its gradients, on one batch that lies in memory.
Rank 0 prints the mean step in seconds as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from phalanx.data.samples import Draw
from phalanx.engine.runs import open_job
from phalanx.parallel.step import WholeStep

WARMUP = 3


class Alone(WholeStep):
    """What losses ask about the step is answered from this rank's batch, as elsewhere."""

    def sum(self, part: Tensor, group: Any = None) -> Tensor:
        return part


def main() -> None:
    recipe, steps, *keys = sys.argv[1:]
    job = open_job(recipe, [(key, key) for key in keys])
    size = job.recipe.train.batch_size_per_rank
    assert size is not None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rank = 0
    if dist.is_torchelastic_launched():
        dist.init_process_group('gloo')
        rank = dist.get_rank()
    dataset = job.task.dataset('train')
    batch = job.task.collate([dataset[Draw(rank * size + number, 0, 0, 0)] for number in range(size)])
    model = job.task.model().train()
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True) if dist.is_initialized() else model
    optimizer = job.recipe.optimizer(model.parameters())
    begin = 0.0
    for step in range(WARMUP + int(steps)):
        if step == WARMUP:
            begin = time.perf_counter()
        loss = job.task.loss(replica, batch, Alone())
        torch.stack([term.total / term.weight for term in loss.values()]).sum().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    seconds = (time.perf_counter() - begin) / int(steps)
    if rank == 0:
        print(json.dumps({'step_s': seconds}))
    if dist.is_initialized():
        del replica
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
