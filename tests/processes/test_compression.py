"""What two ranks get of each other's gradients when these travel compressed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from running import clean_environment

# Rank r judges one sample, so the gradient of a weight, the mean of two outer products, is a matrix of rank 2.
SCRIPT = """
import json, sys, torch
from torch import nn
from phalanx import dist
dist.join(torch.device('cpu'))
torch.manual_seed(0)
samples = torch.randn(2, 64)
def gradients(network, x):
    network.zero_grad()
    network(x).square().sum().backward()
    return [p.grad.clone() for p in network.parameters()]
found = {}
for compression in ('none', 'bf16', 'fp16', 'power_sgd'):
    torch.manual_seed(1)
    model = nn.Linear(64, 64)
    expected = [(a + b) / 2 for a, b in zip(gradients(model, samples[:1]), gradients(model, samples[1:]))]
    replica = dist.replicated(model, dist.GradientOptions(compression=compression, plain_steps=1))
    for _ in range(4):
        given = gradients(replica, samples[dist.rank()][None])
    found[compression] = max(((g - e).norm() / e.norm()).item() for g, e in zip(given, expected))
if dist.rank() == 0:
    print(json.dumps(found))
del replica
dist.leave()
"""


def test_gradients_arrive_as_exactly_as_their_compression_can(tmp_path: Path) -> None:
    """Relative errors: bf16 has 8 bits, fp16 has 11; two columns say all of a matrix of rank 2 (Vogels et al. 2019)."""
    common = {**clean_environment(), 'WORLD_SIZE': '2', 'PHALANX_INIT_METHOD': f'file://{tmp_path}/meeting'}
    ranks = [
        subprocess.Popen([sys.executable, '-c', SCRIPT], env={**common, 'RANK': rank}, stdout=subprocess.PIPE, text=True)
        for rank in '01'
    ]
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    apart = json.loads(said[0])
    assert apart['none'] == pytest.approx(0, abs=1e-6)
    assert apart['power_sgd'] == pytest.approx(0, abs=1e-5)
    assert 1e-5 < apart['fp16'] < 2**-10
    assert 1e-4 < apart['bf16'] < 2**-7
