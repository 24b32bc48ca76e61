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

from phalanx.data.batch import ImageBatch
from phalanx.data.samples import Draw
from phalanx.engine.job import Job, open_job
from phalanx.engine.meters import peak_memory_mb
from phalanx.engine.precision import DTYPES
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


class PlainTraining:
    """The loop of PyTorch's documentation: autocast, gradient accumulation, DDP if there is a process group."""

    def __init__(self, job: Job, device: torch.device) -> None:
        train = job.recipe.train
        self.task, self.device, self.parts = job.task, device, train.least_micro_batches
        self.dtype = DTYPES[job.recipe.precision.dtype]
        layout = torch.channels_last if train.channels_last else torch.contiguous_format
        model = with_norms_of_torch(job.task.model()).train().to(device).to(memory_format=layout)
        self.replica = DistributedDataParallel(model, gradient_as_bucket_view=True) if dist.is_initialized() else None
        self.model, self.optimizer = model, job.recipe.optimizer(model.parameters())

    def step(self, batch: ImageBatch) -> None:
        batch = batch.to(self.device)
        for number, part in enumerate(batch.split(self.parts) if self.parts > 1 else [batch]):
            with self.replica.no_sync() if self.replica and number < self.parts - 1 else nullcontext():
                with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
                    loss = self.task.loss(self.task.outputs(self.replica or self.model, part), part, SingleBatchStep())
                torch.autograd.backward(torch.stack([term.mean() for term in loss.values()]).sum() / self.parts)
        self.optimizer.step()
        self.optimizer.zero_grad()


def main() -> None:
    recipe, steps, *keys = sys.argv[1:]
    # data, network, loss and optimizer of the recipe; norms and the loop are plain PyTorch
    job = open_job(recipe, [(key, key) for key in keys])
    size = job.recipe.train.batch_size_per_rank or job.recipe.train.global_batch(1)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if dist.is_torchelastic_launched():
        dist.init_process_group('gloo')
    rank = dist.get_rank() if dist.is_initialized() else 0
    dataset = job.task.dataset('train')
    batch = job.task.collate([dataset[Draw(rank * size + number, 0, 0, 0)] for number in range(size)])
    training = PlainTraining(job, CPU)
    base, seconds = peak_memory_mb(CPU), []
    for _ in range(WARMUP + int(steps)):
        begin = time.perf_counter()
        training.step(batch)
        seconds.append(time.perf_counter() - begin)
    # memory relative to the start, as training_step.py measures Phalanx
    if rank == 0:
        print(json.dumps({'step_s': statistics.fmean(seconds[WARMUP:]), 'memory_mb': peak_memory_mb(CPU) - base}))
    if dist.is_initialized():
        del training
        dist.destroy_process_group()


if __name__ == '__main__':
    main()
