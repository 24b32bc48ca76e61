"""The EMA of the weights against PaddleDetection and PaddleSeg.

One weight takes the values 1, 2, .. 20. Expected averages, in float32, and decays come from the originals (data/ema.json).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from phalanx.engine.ema import Ema, EmaOptions

KINDS = json.loads((Path(__file__).parent / 'data' / 'ema.json').read_text())
DECAY = {'threshold': 0.9998, 'normal': 0.9998, 'exponential': 0.9998, 'ramp': 0.999}


class Weight(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))


@pytest.mark.parametrize('kind', KINDS)
def test_the_decay_of_every_update_is_the_original_one(kind: Any) -> None:
    ema = Ema(Weight(), EmaOptions(kind=kind, decay=DECAY[kind]))
    assert [ema.decay(update) for update in range(20)] == pytest.approx(KINDS[kind]['decays'], rel=1e-12)


@pytest.mark.parametrize('kind', ['threshold', 'normal', 'exponential'])
def test_the_average_and_what_is_applied_are_the_original_ones(kind: Any) -> None:
    model = Weight()
    ema = Ema(model, EmaOptions(kind=kind))
    averages, applied = [], []
    for value in range(1, 21):
        with torch.no_grad():
            model.weight.fill_(value)
        ema.update()
        averages.append(ema.state()['averages']['weight'].item())
        applied.append(ema.weights()['weight'].item())
    assert averages == pytest.approx(KINDS[kind]['ema_state'], rel=1e-6)
    assert applied == pytest.approx(KINDS[kind]['applied'], rel=1e-6)
