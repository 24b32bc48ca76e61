"""Operations of the loss and the matching of detectors with queries."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from phalanx.families.detection.loss.assign import pad_truths
from phalanx.families.detection.loss.queries import DFINELoss, RTDETRLoss
from phalanx.families.detection.models.dfine import dfine
from phalanx.parallel.step import WholeStep


class Counter(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize('loss', [RTDETRLoss(), DFINELoss()])
def test_each_layer_adds_few_operations_to_the_loss(loss: RTDETRLoss) -> None:
    """Predictions of all layers are compared with the true boxes at once, not layer by layer."""
    boxes = torch.tensor([[4.0, 4, 40, 30], [20, 20, 60, 60]])
    truths = pad_truths([boxes, boxes[:1]], [torch.tensor([0, 1]), torch.tensor([2])], torch.float32)
    counts = []
    for layers in (2, 6):
        small: dict[str, Any] = {'channels': 16, 'encoder_hidden': 16, 'decoder_hidden': 16, 'queries': 8, 'denoising': 4}
        raw = dfine(3, decoder_layers=layers, **small).train()(torch.rand(2, 3, 64, 64))
        with Counter() as counter:
            loss(raw, truths, loss.assigner(raw, truths, WholeStep()))
        counts.append(counter.count)
    assert (counts[1] - counts[0]) / 4 < 25
