"""Where the time of one training step goes, on this machine.

    python benchmarks/train_step.py [--size H W] [--batch N] [--threads N] [--channels-last] [--dtype bf16]

Prints seconds by phase (medians over the steps) and the operators that take the most time.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator

import torch
from torch.profiler import ProfilerActivity, profile

from phalanx.norms import synchronise
from phalanx.runs import open_job
from phalanx.step import WholeStep


class Phases:
    """Seconds a phase, one number a step."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = defaultdict(list)

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[name].append(time.perf_counter() - begin)

    def table(self) -> str:
        medians = {name: statistics.median(values) for name, values in self.seconds.items()}
        whole = sum(medians.values())
        rows = [f'{name:<12} {value * 1000:>9.1f} ms {value / whole:>6.1%}' for name, value in medians.items()]
        return '\n'.join([*rows, f'{"step":<12} {whole * 1000:>9.1f} ms'])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument('--recipe', default='pp_liteseg_digits')
    parser.add_argument('--size', type=int, nargs=2, default=(256, 512))
    parser.add_argument('--batch', type=int, default=4)
    parser.add_argument('--steps', type=int, default=5)
    parser.add_argument('--threads', type=int, default=1)
    parser.add_argument('--channels-last', action='store_true')
    parser.add_argument('--dtype', choices=['fp32', 'bf16'], default='fp32')
    parser.add_argument('--operators', type=int, default=15, help='how many operators to list')
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)

    job = open_job(given.recipe)
    layout = torch.channels_last if given.channels_last else torch.contiguous_format
    model = job.task.model().to(memory_format=layout).train()
    whole = WholeStep()
    synchronise(model, whole)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, fused=True)
    images = torch.randn(given.batch, 3, *given.size).to(memory_format=layout)
    labels = torch.randint(0, len(job.task.data().class_names), (given.batch, *given.size))
    autocast = torch.autocast('cpu', dtype=torch.bfloat16, enabled=given.dtype == 'bf16')
    phases = Phases()

    def step() -> None:
        with autocast:
            with phases('forward'):
                outputs = model(images)
            with phases('loss'):
                terms = [loss(out, labels, whole) for loss, out in zip(job.task.losses, outputs, strict=True)]
                total = torch.stack([term.total / term.weight for term in terms]).sum()
        with phases('backward'):
            total.backward()
        with phases('optimizer'):
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    step()
    phases.seconds.clear()
    for _ in range(given.steps):
        step()
    shape = 'x'.join(map(str, images.shape))
    print(f'{given.recipe}, images {shape}, {given.dtype}, {given.threads} threads, {layout}'.replace('torch.', ''))
    print(phases.table())
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step()
    print(profiler.key_averages().table(sort_by='self_cpu_time_total', row_limit=given.operators, max_name_column_width=50))


if __name__ == '__main__':
    main()
