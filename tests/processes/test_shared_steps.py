"""Three ranks with shares of a batch compute what one rank does with all of it: losses of a whole step, and norms."""

from __future__ import annotations

import gc
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.utils import counters

from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.loss.cross_entropy import CrossEntropy
from phalanx.families.segmentation.loss.lovasz import LovaszHinge, LovaszSoftmax
from phalanx.families.segmentation.loss.ohem import OhemCrossEntropy
from phalanx.families.segmentation.loss.pixel_loss import PixelLoss
from phalanx.families.text_detection.loss import DbLoss
from phalanx.families.text_detection.models.maps import Maps, RefinedMaps
from phalanx.families.text_detection.targets import Targets
from phalanx.parallel import dist, norms
from phalanx.parallel.norms import BatchNorm2d
from phalanx.parallel.step import WholeStep
from running import as_ranks, made_once

RANKS = 3
SHARES = [slice(0, 4), slice(4, 6), slice(6, 7)]  # seven samples in unequal shares
LOSSES: dict[str, PixelLoss] = {
    'the threshold decides': OhemCrossEntropy(threshold=0.7, min_kept_per_sample=10),
    'the number decides': OhemCrossEntropy(threshold=0.01, min_kept_per_sample=10),
    'the number decides, weighted': OhemCrossEntropy(threshold=0.01, min_kept_per_sample=10, class_weights=(1, 2)),
    'more than there are': OhemCrossEntropy(threshold=0.01, min_kept_per_sample=48),
    'a fifth': CrossEntropy(top_k=0.2),
    'a fifth, weighted': CrossEntropy(top_k=0.2, class_weights=(1, 2)),
    'nine tenths, which reach into the void': CrossEntropy(top_k=0.9),
    'lovasz': LovaszSoftmax(),
    'lovasz hinge': LovaszHinge(),
}
TEXT_LOSSES = {
    'dice': DbLoss(),
    'hardest of no text': DbLoss(main='bce', ohem_ratio=1.5),
    'all of no text': DbLoss(main='bce', ohem_ratio=1000),
    'cross-entropy, unbalanced': DbLoss(main='bce', balanced=False),
}
NORMS = [
    (dtype, layout)
    for dtype in (torch.float32, torch.float64, torch.bfloat16)
    for layout in (torch.contiguous_format, torch.channels_last)
]
Found = dict[str, Tensor]


def pixels() -> tuple[Tensor, Tensor]:
    """Logits [7, 2, 6, 8] and labels [7, 6, 8]; the last sample is nearly all void, one in the middle wholly."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(7, 2, 6, 8, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, 2, (7, 6, 8), generator=generator)
    labels[4] = VOID
    labels[6, 1:] = VOID
    return logits, labels


def loss_of_share(loss: PixelLoss, share: slice) -> Found:
    logits, labels = (part[share] for part in pixels())
    term = loss(logits.requires_grad_(), labels, WholeStep(samples=7))
    weight = dist.sum_over_ranks(term.weight)
    (gradient,) = torch.autograd.grad(term.total / weight, logits)
    return {'value': dist.sum_over_ranks(term.total.detach()) / weight, 'gradient': gradient}


def text_loss_of_share(loss: DbLoss, share: slice, *, refined: bool) -> Found:
    """The loss of random maps; two samples are without text, and one has only void labels."""
    generator = torch.Generator().manual_seed(3)
    maps = torch.rand(7, 3, 6, 8, generator=generator, dtype=torch.float64)[share].requires_grad_()
    targets = (torch.rand(4, 7, 6, 8, generator=generator) < 0.5).float()
    targets[0, 2:4] = 0
    targets[1, 5] = 0
    parts = maps.split(1, dim=1)
    terms = loss(RefinedMaps(*parts) if refined else Maps(*parts), Targets(*targets[:, share]), WholeStep(samples=7))
    weights = {name: dist.sum_over_ranks(term.weight) for name, term in terms.items()}
    total = sum((term.total / weights[name] for name, term in terms.items()), torch.zeros(()))
    (gradient,) = torch.autograd.grad(total, maps)
    values = {name: dist.sum_over_ranks(term.total.detach()) / weights[name] for name, term in terms.items()}
    return {'gradient': gradient} | values


def network(dtype: torch.dtype, layout: torch.memory_format) -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 8, 3, bias=False), BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False), BatchNorm2d(4))
    half = dtype == torch.bfloat16
    model = nn.Sequential(*layers).to(torch.float32 if half else dtype).to(memory_format=layout)
    return model if not half else model.apply(lambda m: m.to(dtype) if isinstance(m, nn.Conv2d) else m)


def norms_of_share(dtype: torch.dtype, layout: torch.memory_format, share: slice, group: dist.Group | None) -> Found:
    """Outputs, gradients and running statistics of a net with batch norm; the batch is far from mean 0 on purpose."""
    model = network(dtype, layout)
    norms.share_statistics(model, group)
    generator = torch.Generator().manual_seed(1)
    images = (torch.randn(7, 3, 12, 12, generator=generator) * 3 + 5).to(dtype).to(memory_format=layout)[share]
    directions = torch.randn(7, 4, 8, 8, generator=generator).to(dtype)[share]
    outputs = model(images)
    (outputs * directions).sum().backward()
    found = {'outputs': outputs.detach()}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        found[f'gradient of {name}'] = dist.sum_over_ranks(parameter.grad)
    return found | {name: buffer for name, buffer in model.named_buffers() if buffer.is_floating_point()}


def graphs(rank: int, group: dist.Group) -> Found:
    """The number of graphs that torch.compile makes of a network whose norms are shared, and the gradient it gives.

    Rank 0 also traces the backward pass. The others run their graph as it is, in half the time.
    """
    model = network(torch.float32, torch.contiguous_format)
    norms.share_statistics(model, group)
    counters.clear()
    compiled = torch.compile(model, backend='eager' if rank else 'aot_eager')
    images = torch.randn(2, 3, 12, 12, generator=torch.Generator().manual_seed(2))
    compiled(images).square().sum().backward()
    count, breaks = counters['stats']['unique_graphs'], sum(counters['graph_break'].values())
    gradient = model[0].weight.grad
    assert gradient is not None
    return {'graphs': torch.tensor(count), 'breaks': torch.tensor(breaks), 'gradient': gradient}


def sums(rank: int) -> Found:
    """Sums and maxima as a few ranks and as many ranks exchange them, and a sum over the ranks of a node: 0 and 1, or 2."""
    value = torch.tensor([0.1 * (rank + 1), 1e-7 * rank])
    found = {'few': dist.sum_over_ranks(value), 'most of few': dist.largest_over_ranks(value)}
    dist.MESH, few = 2, dist.MESH
    found |= {'many': dist.sum_over_ranks(value), 'most of many': dist.largest_over_ranks(value)}
    dist.MESH = few
    os.environ['LOCAL_RANK'] = str(rank % 2)
    found['node'] = dist.sum_over_ranks(torch.tensor(2**rank), dist.node_group())
    # as `mpirun --map-by node` numbers three ranks of two nodes
    os.environ['LOCAL_RANK'] = str(rank // 2)
    host, platform.node = platform.node, lambda: f'node{rank % 2}'
    found['node in turns'] = dist.sum_over_ranks(torch.tensor(2**rank), dist.node_group())
    platform.node = host
    del os.environ['LOCAL_RANK']
    return found


CASES: dict[str, Callable[[slice, dist.Group | None], Found]] = {
    **{name: lambda share, group, loss=loss: loss_of_share(loss, share) for name, loss in LOSSES.items()},  # type: ignore[misc]
    **{
        f'text: {name}': lambda share, group, loss=loss: text_loss_of_share(loss, share, refined=loss.balanced)  # type: ignore[misc]
        for name, loss in TEXT_LOSSES.items()
    },
    **{
        f'{dtype} {layout}': lambda share, group, d=dtype, m=layout: norms_of_share(d, m, share, group)
        for dtype, layout in NORMS
    },  # type: ignore[misc]
}


def as_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': str(RANKS), 'PHALANX_INIT_METHOD': f'file://{folder}/rendezvous'}
    dist.join(torch.device('cpu'))
    group = dist.new_group()
    found = {name: case(SHARES[rank], group) for name, case in CASES.items()}
    found['graphs'] = graphs(rank, group)
    found['sums'] = sums(rank)
    torch.save(found, folder / str(rank))
    gc.collect()
    dist.leave()


@pytest.fixture(scope='module')
def of_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Found]]:
    """The result of each rank, by case."""
    folder = made_once(tmp_path_factory, 'shared_steps', lambda folder: as_ranks(RANKS, as_rank, folder))
    return [torch.load(folder / str(rank)) for rank in range(RANKS)]


@pytest.mark.parametrize('name', LOSSES)
def test_a_loss_that_sees_the_whole_step_does_not_depend_on_how_ranks_share_it(
    name: str, of_ranks: list[dict[str, Found]]
) -> None:
    alone = CASES[name](slice(0, 7), None)
    for found, share in zip(of_ranks, SHARES, strict=True):
        torch.testing.assert_close(found[name]['value'], alone['value'])
        torch.testing.assert_close(found[name]['gradient'], alone['gradient'][share])


@pytest.mark.parametrize('name', TEXT_LOSSES)
def test_each_term_of_text_detection_does_not_depend_on_how_ranks_share_it(name: str, of_ranks: list[dict[str, Found]]) -> None:
    alone = CASES[f'text: {name}'](slice(0, 7), None)
    for found, share in zip(of_ranks, SHARES, strict=True):
        own = found[f'text: {name}']
        torch.testing.assert_close(own.pop('gradient'), alone['gradient'][share])
        torch.testing.assert_close(own, {term: value for term, value in alone.items() if term != 'gradient'})


@pytest.mark.parametrize(('dtype', 'layout'), NORMS)
def test_norms_that_ranks_share_are_those_of_one_batch(
    dtype: torch.dtype, layout: torch.memory_format, of_ranks: list[dict[str, Found]]
) -> None:
    """Of half-precision maps statistics are float32: what is rounded is maps and gradients, once or twice."""
    name = f'{dtype} {layout}'
    alone = CASES[name](slice(0, 7), None)
    outputs = torch.cat([found[name].pop('outputs') for found in of_ranks])
    close = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.02}[dtype]
    whole = alone.pop('outputs')
    assert (outputs.double() - whole.double()).norm() < close * whole.double().norm()
    for found in of_ranks:
        for key, value in alone.items():
            assert (found[name][key].double() - value.double()).norm() <= close * value.double().norm(), key


def test_a_compiled_network_whose_norms_are_shared_is_one_graph(of_ranks: list[dict[str, Found]]) -> None:
    for found in of_ranks:
        assert found['graphs']['breaks'] == 0
        assert found['graphs']['graphs'] == 1


def test_many_ranks_exchange_the_same_sums_by_the_first_of_them(of_ranks: list[dict[str, Found]]) -> None:
    for found in of_ranks:
        sums = found['sums']
        assert torch.equal(sums['many'], sums['few'])
        assert torch.equal(sums['many'], of_ranks[0]['sums']['many'])
        assert torch.equal(sums['most of many'], sums['most of few'])


def test_ranks_of_a_node_share_a_group_that_only_they_create(of_ranks: list[dict[str, Found]]) -> None:
    assert [int(found['sums']['node']) for found in of_ranks] == [1 + 2, 1 + 2, 4]
    assert [int(found['sums']['node in turns']) for found in of_ranks] == [1 + 4, 2, 1 + 4]


def test_shared_norms_of_equal_shares_have_the_gradient_of_finite_differences() -> None:
    """One rank that shares with nobody, in float64: the formulas of the route of CPUs alone."""
    norm = BatchNorm2d(2).double()

    def normalised(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return norms._SharedOnCpu.apply(x, weight, bias, norm.eps, None)[0]  # type: ignore[no-any-return]

    inputs = [torch.randn(3, 2, 2, 3, dtype=torch.float64), torch.randn(2).double(), torch.randn(2).double()]
    assert torch.autograd.gradcheck(normalised, [value.requires_grad_() for value in inputs])
