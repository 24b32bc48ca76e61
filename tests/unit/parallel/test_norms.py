"""The batch norm that shares with nobody, and what freezes it."""

import pytest
import torch
from torch import nn

from phalanx.parallel import norms
from phalanx.parallel.norms import BatchNorm2d


def test_the_running_variance_follows_the_biased_one_of_the_batch() -> None:
    """torch's own norm follows the unbiased one; Paddle's and TensorFlow's do not."""
    norm, x = BatchNorm2d(3), torch.randn(4, 3, 2, 5) * 2 + 1
    norm(x)
    torch.testing.assert_close(norm.running_var, 0.9 * torch.ones(3) + 0.1 * x.var((0, 2, 3), correction=0))
    torch.testing.assert_close(norm.running_mean, 0.1 * x.mean((0, 2, 3)))


@pytest.mark.parametrize('parts', [1, 2, 5])
def test_running_statistics_of_micro_batches_are_those_of_one_update_with_their_mean(parts: int) -> None:
    norm, batches = BatchNorm2d(3), torch.randn(parts, 4, 3, 2, 5)
    statistics = norms.synchronise(norm, 'off', None)
    for part, batch in enumerate(batches):
        norm(batch)
        statistics.follow(part, parts)
    means, variances = batches.mean((1, 3, 4)), batches.var((1, 3, 4), correction=0)  # [parts, 3]
    torch.testing.assert_close(norm.running_mean, 0.1 * means.mean(0))
    torch.testing.assert_close(norm.running_var, 0.9 * torch.ones(3) + 0.1 * variances.mean(0))


def test_one_value_per_channel_is_refused_with_the_cure() -> None:
    with pytest.raises(ValueError, match='use two or more samples per rank, or norm_sync: global or frozen'):
        BatchNorm2d(3)(torch.randn(1, 3, 1, 1))


def test_a_norm_that_cannot_be_synchronised_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r'1 is a BatchNorm2d, which cannot be shared or frozen'):
        norms.synchronise(nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3)), 'off', None)


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


def test_a_norm_that_is_called_twice_in_a_pass_follows_both_batches() -> None:
    alone, settled, batches = BatchNorm2d(3), BatchNorm2d(3), torch.randn(2, 4, 3, 2, 5)
    statistics = norms.synchronise(settled, 'global', None)
    for batch in batches:
        alone(batch)
        settled(batch)
    statistics.follow()
    torch.testing.assert_close(settled.state_dict(), alone.state_dict())


@pytest.mark.parametrize('is_frozen', [True, False])
@pytest.mark.parametrize('layout', [torch.contiguous_format, torch.channels_last])
def test_gradients_of_one_image_are_right_behind_a_transposition(is_frozen: bool, layout: torch.memory_format) -> None:
    """Attention over positions transposes a map; the kernel of torch 2.14 for CPUs misreads the gradient of a single image."""
    norm = BatchNorm2d(3).double()
    norm.is_frozen = is_frozen
    x = torch.randn(1, 3, 2, 2, dtype=torch.float64).contiguous(memory_format=layout).requires_grad_()
    weights = torch.randn(1, 4, 3, dtype=torch.float64)

    def total(x: torch.Tensor) -> torch.Tensor:
        return (norm(x).flatten(2).transpose(1, 2) * weights).sum()

    assert torch.autograd.gradcheck(total, (x,), check_undefined_grad=False)
