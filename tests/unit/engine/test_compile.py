"""A network that is compiled trains as one that is not."""

from __future__ import annotations

import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters

from phalanx.engine.job import open_job
from phalanx.engine.loader import Stream
from phalanx.families.segmentation.models.pp_liteseg import UAFM
from phalanx.parallel import norms
from phalanx.parallel.step import WholeStep

Network = Callable[[Tensor], Tensor]


def losses(compiled: Callable[[nn.Module], Network]) -> list[float]:
    """Of three steps on two images."""
    torch.manual_seed(0)
    layers = [layer for C in (3, 8, 8) for layer in (nn.Conv2d(C, 8, 3, bias=False), norms.BatchNorm2d(8), nn.ReLU())]
    model, images = nn.Sequential(*layers).double(), torch.randn(2, 3, 16, 16, dtype=torch.float64)
    statistics = norms.synchronise(model, 'off', None)
    network, optimizer, found = compiled(model), torch.optim.SGD(model.parameters(), lr=0.1), []
    for _ in range(3):
        loss = (network(images) - 1).square().mean()
        loss.backward()
        statistics.follow()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def test_a_compiled_network_with_norms_is_one_graph_and_gives_the_same_losses() -> None:
    """In float64, where the order of sums shows in the last digits only; traced, but run without torch's code generator."""
    torch.compiler.reset()
    counters.clear()
    eager = losses(lambda model: model)
    assert losses(lambda model: torch.compile(model, backend='aot_eager', fullgraph=True)) == pytest.approx(eager, rel=1e-9)
    assert eager[2] < eager[0]
    assert counters['stats']['unique_graphs'] == 1


@pytest.mark.long
@pytest.mark.skipif(not shutil.which('g++'), reason='torch compiles for CPUs with g++, and there is none')
def test_the_gradients_of_a_compiled_fusion_in_bf16_are_those_of_float32() -> None:
    """Compiled code compares maps that it rounded with a maximum that it did not: who looks for equals finds none."""
    torch.compiler.reset()
    torch.manual_seed(0)
    fusion, low, high = UAFM(16, 16, 16), torch.randn(2, 16, 32, 32), torch.randn(2, 16, 16, 16)

    def gradients(network: Callable[[Tensor, Tensor], Tensor], dtype: torch.dtype) -> Tensor:
        with torch.autocast('cpu', dtype=torch.bfloat16, enabled=dtype is torch.bfloat16):
            loss = network(low, high).float().square().mean()
        (found,) = torch.autograd.grad(loss, [fusion.low.conv.weight])
        return found

    exact, rounded = gradients(fusion, torch.float32), gradients(torch.compile(fusion), torch.bfloat16)
    assert (rounded - exact).norm() < 0.1 * exact.norm()


@pytest.mark.long
@pytest.mark.parametrize('recipe', ['pp_liteseg_digits', 'ppyoloe_digits', 'crnn_digits', 'db_pages'])
def test_a_network_is_traced_for_its_first_two_batch_sizes_only_and_never_breaks(recipe: str) -> None:
    """Tables are an exception: the loop over their tokens is unrolled, so each further length is a graph of its own."""
    torch.compiler.reset()
    counters.clear()
    job, traced = open_job(recipe, [('train.workers=0', 'train.workers=0')]), CompileCounter()
    samples = job.task.dataset('train')
    network, graphs = torch.compile(job.task.model().train(), backend=traced), []
    for step, size in enumerate((2, 3, 4, 2, 5)):
        draws = Stream(len(samples), size, 1, 0, 0, 1).share(step)
        batch = job.task.align(job.task.collate([samples[draw] for draw in draws]), WholeStep())
        job.task.outputs(network, batch)
        graphs.append(traced.frame_count)
    assert graphs == [1, 2, 2, 2, 2]  # the second one has a variable batch size
    assert not counters['graph_break']
