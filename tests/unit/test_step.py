"""Micro-batches that meet, and the batch norm that makes use of it."""

import copy
from functools import partial

import pytest
import torch
from torch import nn

from phalanx import norms
from phalanx.memory import parked
from phalanx.norms import BatchNorm2d
from phalanx.step import WholeStep

CUT = (slice(0, 1), slice(1, 4), slice(4, 6))


def test_micro_batches_meet_in_the_sum_of_their_parts() -> None:
    whole = WholeStep()
    assert whole.run([lambda n=n: whole.sum(torch.tensor(float(n))).item() for n in (1, 2, 4)]) == [7, 7, 7]  # type: ignore[misc]


def test_micro_batches_agree_on_the_largest_of_their_numbers() -> None:
    whole = WholeStep()
    found = whole.run([lambda n=n: whole.largest(n, 9) for n in ((4, 0), (3, 9), (0, 1))])  # type: ignore[misc]
    assert found == [[4, 9]] * 3


def test_micro_batches_take_turns_in_order() -> None:
    """One at a time, so that a run is the same every time."""
    whole, said = WholeStep(), []

    def speak(number: int) -> None:
        for round_ in range(3):
            said.append((round_, number))
            whole.sum(torch.zeros(()))

    whole.run([lambda n=n: speak(n) for n in range(3)])  # type: ignore[misc]
    assert said == [(round_, number) for round_ in range(3) for number in range(3)]


def test_the_gradient_of_a_sum_reaches_every_micro_batch() -> None:
    """d/dx_i of 2 (x_0 + x_1)^2, once from each micro-batch's loss (x_0 + x_1)^2, is 4 (x_0 + x_1) = 20."""
    whole, xs = WholeStep(), [torch.tensor(2.0, requires_grad=True), torch.tensor(3.0, requires_grad=True)]
    losses = whole.run([lambda x=x: whole.sum(x).square() for x in xs])  # type: ignore[misc]
    torch.stack(losses).sum().backward()
    assert [x.grad.item() for x in xs if x.grad is not None] == [20, 20]


def test_an_error_in_one_micro_batch_ends_the_step_with_that_error() -> None:
    whole = WholeStep()

    def broken() -> None:
        raise ZeroDivisionError('here')

    with pytest.raises(ZeroDivisionError, match='here'):
        whole.run([lambda: whole.sum(torch.zeros(1)), broken, lambda: whole.sum(torch.zeros(1))])
    assert whole.run([lambda: 1, lambda: 2]) == [1, 2]  # and the next step is not hurt by it


def test_settings_of_the_thread_hold_in_every_micro_batch() -> None:
    whole = WholeStep()
    with torch.no_grad(), torch.autocast('cpu', dtype=torch.bfloat16):
        found = whole.run([lambda: (torch.is_grad_enabled(), torch.is_autocast_enabled('cpu'))] * 2)
    assert found == [(False, True)] * 2


def test_every_micro_batch_parks_what_waits_for_the_backward_pass_but_for_the_weights() -> None:
    torch.manual_seed(0)
    last = {'memory_format': torch.channels_last}
    network = nn.Conv2d(3, 4, 3).double().to(**last)
    batches = [torch.randn(2, 3, 5, 5, dtype=torch.float64).to(**last) for _ in range(2)]
    network(torch.cat(batches)).square().sum().backward()
    assert network.weight.grad is not None
    expected = network.weight.grad.clone()
    network.zero_grad()

    maps = WholeStep().run([partial(network, batch) for batch in batches], within=partial(parked, torch.device('cpu')))
    for batch, found in zip(batches, maps, strict=True):
        kept = found.grad_fn._saved_input
        assert kept.equal(batch) and kept.is_contiguous(**last) and kept.data_ptr() != batch.data_ptr()
        assert found.grad_fn._saved_weight.data_ptr() == network.weight.data_ptr()
    torch.cat(maps).square().sum().backward()
    assert network.weight.grad.allclose(expected)


@pytest.mark.parametrize('dtype', [torch.float32, torch.float64])
def test_synchronised_micro_batches_are_one_batch(dtype: torch.dtype) -> None:
    """Outputs, gradients and running statistics of a net with batch norm; the batch is far from mean 0 on purpose."""
    torch.manual_seed(0)
    alone = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3, bias=False), BatchNorm2d(4)
    )
    alone = alone.to(dtype)
    cut, whole = copy.deepcopy(alone), WholeStep()
    assert norms.synchronise(cut, whole)
    x, g = torch.randn(6, 3, 12, 12, dtype=dtype) * 3 + 5, torch.randn(6, 4, 8, 8, dtype=dtype)
    expected = alone(x)
    (expected * g).sum().backward()
    found = whole.run([lambda part=part: cut(x[part]) for part in CUT])  # type: ignore[misc]
    torch.stack([(out * g[part]).sum() for out, part in zip(found, CUT, strict=True)]).sum().backward()
    close = 1e-5 if dtype == torch.float32 else 1e-10
    torch.testing.assert_close(torch.cat(found), expected, rtol=close, atol=close * 10)
    for (name, a), b in zip(cut.named_parameters(), alone.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert (a.grad - b.grad).norm() < close * b.grad.norm(), name
    for (name, a), b in zip(cut.named_buffers(), alone.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=name)


def test_the_gradient_of_the_synchronised_norm_is_right() -> None:
    """Against finite differences, in float64."""

    class Cut(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.whole = BatchNorm2d(2).double(), WholeStep()
            norms.synchronise(self, self.whole)

        def forward(self, *parts: torch.Tensor) -> torch.Tensor:
            return torch.cat(self.whole.run([lambda part=part: self.norm(part) for part in parts]))  # type: ignore[misc]

    cut = Cut()

    def both(a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.func.functional_call(cut, {'norm.weight': weight, 'norm.bias': bias}, (a, b))
        return result

    inputs = [torch.randn(n, 2, 2, 3, dtype=torch.float64, requires_grad=True) for n in (1, 2)]
    inputs += [torch.randn(2, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradcheck(both, inputs)


@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize('dtype', [torch.bfloat16, torch.float16])
def test_the_synchronised_norm_of_half_precision_maps_has_float32_statistics(
    dtype: torch.dtype, layout: torch.memory_format
) -> None:
    """They are those of the same numbers in float32; the maps and their gradient are rounded, once. Means are far from 0."""
    torch.manual_seed(0)
    images, weights = ((torch.randn(4, 8, 9, 9) * shares + offset).to(dtype) for shares, offset in ((0.5, 5), (1, 0)))

    def normalised(kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, BatchNorm2d]:
        norm, whole = BatchNorm2d(8), WholeStep()
        norms.synchronise(norm, whole)
        x = images.to(kind).to(memory_format=layout).requires_grad_()
        (out,) = whole.run([lambda: norm(x)])
        (gradient,) = torch.autograd.grad(out, [x], weights.to(kind).to(memory_format=layout))
        assert out.dtype == gradient.dtype == kind
        return out.float(), gradient.float(), norm

    out, gradient, norm = normalised(dtype)
    exact_out, exact_gradient, exact_norm = normalised(torch.float32)
    for (name, a), b in zip(norm.named_buffers(), exact_norm.buffers(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=0, msg=name)
    step = torch.finfo(dtype).eps
    assert (out - exact_out).norm() < step * exact_out.norm()
    assert (gradient - exact_gradient).norm() < step * exact_gradient.norm()


def test_a_norm_that_cannot_be_synchronised_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r'1 is a BatchNorm2d, which cannot be synchronised or frozen'):
        norms.synchronise(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)), WholeStep())


def test_a_frozen_norm_trains_its_scale_and_offset_as_it_evaluates_and_keeps_its_statistics() -> None:
    norm = BatchNorm2d(2)
    statistics = torch.tensor([0.5, -1.0]), torch.tensor([2.0, 0.25])
    norm.running_mean, norm.running_var = statistics[0].clone(), statistics[1].clone()
    x = torch.randn(3, 2, 4, 5)
    expected = norm.eval()(x)
    norms.freeze(norm.train())
    y = norm(x)
    y.sum().backward()
    torch.testing.assert_close(y, expected)
    assert norm.weight.grad is not None and norm.bias.grad is not None
    torch.testing.assert_close(norm.bias.grad, torch.full((2,), 60.0))
    assert norm.running_mean.equal(statistics[0]) and norm.running_var.equal(statistics[1])
