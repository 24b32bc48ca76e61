"""Steps of plain PyTorch: the network, loss and optimizer of a recipe, under torch's own DistributedDataParallel.

    python benchmarks/plain_ddp.py RECIPE STEPS KEY=VALUE ...          (or under torchrun)

Other benchmarks start it to compare with. It trains on one batch that lies in memory, with torch's own batch norms, which each
rank has for itself, and accumulates the gradients of `train.micro_batches`. Rank 0 prints the mean step in seconds and the
peak memory above that of the start in MiB, as JSON.
"""

import json
import statistics
import sys
import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.engine.meters import peak_memory_mb
from phalanx.engine.validation import SingleBatchStep
from phalanx.parallel.norms import BatchNorm2d

WARMUP, CPU = 3, torch.device('cpu')


def with_norms_of_torch(model: nn.Module) -> nn.Module:
    for name, child in model.named_children():
        if isinstance(child, BatchNorm2d):
            setattr(model, name, nn.BatchNorm2d(child.num_features, child.eps, child.momentum))
        else:
            with_norms_of_torch(child)
    return model


def main() -> None:
    recipe, steps, *keys = sys.argv[1:]
    # data, network, loss and optimizer of the recipe; norms and the loop are plain PyTorch
    job = open_job(recipe, [(key, key) for key in keys])
    train = job.recipe.train
    size, parts = train.batch_size_per_rank or train.global_batch(1), train.micro_batches
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if dist.is_torchelastic_launched():
        dist.init_process_group('gloo')
    rank = dist.get_rank() if dist.is_initialized() else 0
    dataset = job.task.dataset('train')
    batch = job.task.collate([dataset[Draw(rank * size + number, 0, 0, 0)] for number in range(size)])
    model = with_norms_of_torch(job.task.model()).train()
    replica = DistributedDataParallel(model, gradient_as_bucket_view=True) if dist.is_initialized() else None
    optimizer = job.recipe.optimizer(model.parameters())
    base, seconds = peak_memory_mb(CPU), []
    # gradient accumulation as in PyTorch's documentation
    for _ in range(WARMUP + int(steps)):
        begin = time.perf_counter()
        for number, part in enumerate(batch.split(parts) if parts > 1 else [batch]):
            with replica.no_sync() if replica and number < parts - 1 else nullcontext():
                loss = job.task.loss(job.task.outputs(replica or model, part), part, SingleBatchStep())
                torch.autograd.backward(torch.stack([term.mean() for term in loss.values()]).sum() / parts)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
    # memory relative to the start, as training_step.py measures Phalanx
    if rank == 0:
        print(json.dumps({'step_s': statistics.fmean(seconds[WARMUP:]), 'memory_mb': peak_memory_mb(CPU) - base}))
    if dist.is_initialized():
        del replica
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
