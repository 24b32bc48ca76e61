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


SCENES, LINES = ('pp_liteseg_digits', 'data.size=[64,128]'), ('crnn_digits', 'image_size=[48,96]')
ONE, TWO = 'loss=[cross_entropy]', 'loss=[cross_entropy, cross_entropy]'
NETWORKS = {
    'pp_liteseg': SCENES,
    'ppyoloe': ('ppyoloe_digits',),
    'crnn': ('crnn_digits',),
    'db': ('db_pages',),
    'unet': (*SCENES, 'model={name: unet}', ONE),
    'segformer': (*SCENES, 'model={name: segformer, backbone: mit_b0}', ONE),
    'deeplabv3p': (*SCENES, 'model={name: deeplabv3p, backbone: resnet50_vd}', ONE),
    'lraspp': (*SCENES, 'model={name: lraspp}', ONE),
    'ocrnet': (*SCENES, 'model={name: ocrnet, backbone: hrnet_w18}', TWO),
    'slanet of one length': ('slanet_rendered', 'image_size=64', 'max_length=100', 'fixed_length=true'),
    'svtr_lcnetv3': (*LINES, 'model={name: svtr_lcnetv3, nrtr_size: 32}', 'loss=[ctc, nrtr]'),
    'conv_lcnetv4': (*LINES, 'model={name: conv_lcnetv4}', 'loss=[ctc]'),
    'svtr_lcnetv4': (*LINES, 'model={name: svtr_lcnetv4, nrtr_size: 32}', 'loss=[ctc, nrtr]'),
}
# Further graphs: SLANet unrolls the loop over the tokens of the longest table, detectors with queries the groups of denoising
# queries of the fullest image. torch does not trace the LSTMs of SAR, an auxiliary head of SVTR-LCNet.
VALUES_DECIDE = {
    'slanet': ('slanet_rendered', 'image_size=64', 'max_length=100'),
    'dfine': ('ppyoloe_digits', 'model={name: dfine, queries: 20, decoder_layers: 2}', 'loss=[dfine]'),
    'deimv2': ('ppyoloe_digits', 'model={name: deimv2, size: atto, queries: 20, decoder_layers: 2}', 'loss=[rtdetr]'),
    'rtdetr': ('ppyoloe_digits', 'model={name: rtdetr, queries: 20, decoder_layers: 2}', 'loss=[rtdetr]'),
    'rtdetrv2': ('ppyoloe_digits', 'model={name: rtdetrv2, queries: 20, decoder_layers: 2}', 'loss=[rtdetr]'),
}
NETWORKS |= {
    f'{name} of fixed objects': (*VALUES_DECIDE[name], 'fixed_objects=30') for name in ('dfine', 'deimv2', 'rtdetr', 'rtdetrv2')
}


def count_graphs(recipe: str, *keys: str) -> list[int]:
    """Graphs of a network after each of five batches of different sizes."""
    torch.compiler.reset()
    counters.clear()
    job, traced = open_job(recipe, [(key, key) for key in (*keys, 'train.workers=0')]), CompileCounter()
    samples = job.task.dataset('train')
    network, graphs = torch.compile(job.task.model().train(), backend=traced), []
    for step, size in enumerate((2, 3, 4, 2, 5)):
        draws = Stream(len(samples), size, 1, 0, 0, 1).share(step)
        batch = job.task.align(job.task.collate([samples[draw] for draw in draws]), WholeStep())
        job.task.outputs(network, batch)
        graphs.append(traced.frame_count)
    assert not [reason for reason in counters['graph_break'] if 'RNN, GRU, or LSTM' not in reason]
    return graphs


def test_a_compiled_network_computes_what_it_does_in_training_and_not_what_is_written_for_an_export() -> None:
    """torch 2.11 says in a network it traces that it exports; the LSTM of CRNN's export is an operator without values."""
    torch.compiler.reset()
    job = open_job('crnn_digits', [])
    model, images = job.task.model().eval(), torch.randn(2, 3, 32, 64, generator=torch.Generator().manual_seed(0))
    expected = model(images).ctc
    found = torch.compile(model, backend='eager')(images).ctc
    assert expected.std() > 0
    torch.testing.assert_close(found, expected)


@pytest.mark.long
@pytest.mark.parametrize('name', NETWORKS)
def test_a_network_is_traced_for_its_first_two_batch_sizes_only_and_never_breaks(name: str) -> None:
    parts, *later = count_graphs(*NETWORKS[name])
    assert parts == 1 or name == 'crnn'  # from torch 2.15 on, what is behind its LSTM is another graph
    assert later == [2 * parts] * 4  # the second one has a variable batch size


@pytest.mark.long
@pytest.mark.parametrize('name', VALUES_DECIDE)
def test_a_network_with_a_loop_over_values_never_breaks_and_is_traced_for_another_length(name: str) -> None:
    assert count_graphs(*VALUES_DECIDE[name])[-1] <= 4
