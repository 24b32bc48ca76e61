"""The tensors of a batch travel together, whatever else it holds."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from phalanx.data.batch import Tensors


@dataclass(frozen=True)
class Inner(Tensors):
    ids: Tensor
    ratios: Tensor | None


@dataclass(frozen=True)
class Outer(Tensors):
    images: Tensor
    inner: Inner
    names: tuple[str, ...]


def batch() -> Outer:
    return Outer(torch.ones(2), Inner(torch.zeros(3), None), ('a', 'b'))


def test_all_tensors_move_and_nothing_else_does() -> None:
    """The device `meta` holds shapes without numbers, on every node."""
    moved = batch().to(torch.device('meta'))
    assert moved.images.device.type == moved.inner.ids.device.type == 'meta'
    assert (moved.inner.ratios, moved.names) == (None, ('a', 'b'))


def test_the_batch_itself_is_unchanged() -> None:
    here = batch()
    here.to(torch.device('meta'))
    assert here.images.device.type == here.inner.ids.device.type == 'cpu'
