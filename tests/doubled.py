"""Training in float64, where the number of ranks must not show at all."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class InDouble:
    """A task whose network computes in float64."""

    def __init__(self, task: Any) -> None:
        self.task = task

    def __getattr__(self, name: str) -> Any:
        return getattr(self.task, name)

    def model(self) -> nn.Module:
        model: nn.Module = self.task.model().double()
        model.register_forward_pre_hook(lambda _, inputs: tuple(map(in_double, inputs)))
        return model


def in_double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
