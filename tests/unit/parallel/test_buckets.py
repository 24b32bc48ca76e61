"""Sizes of DDP buckets."""

from __future__ import annotations

import pytest
from torch import nn

from phalanx.parallel.gradients import GradientOptions


def network(*mebibytes: int) -> nn.Module:
    """One layer per entry, of that many MiB of float32."""
    return nn.Sequential(*(nn.Linear(512, 512 * size, bias=False, device='meta') for size in mebibytes))


@pytest.mark.parametrize(('size', 'bucket'), [(2, 1), (32, 4), (160, 20), (400, 25)])
def test_an_eighth_of_the_gradients_travels_at_once_but_1_to_25_mebibytes(size: int, bucket: float) -> None:
    """The backward pass ends with one of them still to be sent: of one bucket of 25 MiB that would often be nearly all."""
    assert GradientOptions().bucket(network(size)) == bucket


def test_what_is_not_trained_does_not_travel() -> None:
    model = network(16, 16)
    model[0].requires_grad_(False)
    assert GradientOptions().bucket(model) == 2


def test_a_recipe_may_say_how_much_travels_at_once() -> None:
    assert GradientOptions(bucket_mb=3).bucket(network(400)) == 3
