"""Compressed gradients, as two ranks receive them from each other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from phalanx.parallel.gradients import GradientOptions, PowerSgd
from running import IN_TURN, TINY, both_ranks, losses

# Rank r judges one sample, so the gradient of a weight, the mean of two outer products, is a matrix of rank 2.
SCRIPT = """
import json, sys, torch
from torch import nn
from phalanx.parallel import dist
from phalanx.parallel.gradients import GradientOptions, wrap_ddp
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
    options = GradientOptions(compression=compression, plain_steps=1, bucket_mb=0.001)  # the weights and the bias go apart
    replica, _ = wrap_ddp(model, options)
    for _ in range(4):
        given = gradients(replica, samples[dist.rank()][None])
    found[compression] = max(((g - e).norm() / e.norm()).item() for g, e in zip(given, expected))
if dist.rank() == 0:
    print(json.dumps(found))
del replica, _, model
import gc; gc.collect()  # DDP holds the process group
dist.leave()
"""


def test_gradients_arrive_as_exactly_as_their_compression_can(tmp_path: Path) -> None:
    """Relative errors: bf16 has 8 bits, fp16 has 11; two columns say all of a matrix of rank 2 (Vogels et al. 2019)."""
    apart = json.loads(both_ranks(SCRIPT, tmp_path))
    assert apart['none'] == pytest.approx(0, abs=1e-6)
    assert apart['power_sgd'] == pytest.approx(0, abs=1e-5)
    assert 1e-5 < apart['fp16'] < 2**-10
    assert 1e-4 < apart['bf16'] < 2**-7


@pytest.mark.long
def test_a_compressed_run_that_was_resumed_ends_bit_for_bit_like_one_that_was_not(tmp_path: Path) -> None:
    """Compressed from the second step on; what each rank has not sent after the fourth goes into the fifth."""
    recipe = ('train', *TINY, 'train.steps=6', 'evaluate.enabled=false', 'gradients={compression: power_sgd, plain_steps: 1}')
    halves = (*recipe, '--save_dir', 'halves')
    output = both_ranks(
        IN_TURN, tmp_path, json.dumps([(*recipe, '--save_dir', 'whole'), (*halves, '--set', 'train.until=4'), halves])
    )
    assert 'resumed at step 4' in output
    whole, resumed = (load_file(tmp_path / run / 'latest' / 'model.safetensors') for run in ('whole', 'halves'))
    assert [name for name, value in whole.items() if not value.equal(resumed[name])] == []
    assert losses(tmp_path / 'whole') == losses(tmp_path / 'halves')


def test_the_residual_of_two_ranks_is_sent_after_a_change_of_ranks() -> None:
    """Three ranks that each add the mean of two add as much to the mean gradient as the two did. Here it is one rank."""
    saved = {
        'steps': 5,
        'columns': 1,
        'p': {0: torch.tensor([1.0, 2.0])},
        'q': {0: torch.tensor([3.0])},
        'unsent': {0: torch.tensor([[1.0, -1.0], [5.0, 2.0]])},
    }
    memory = PowerSgd(GradientOptions(compression='power_sgd', rank=1), torch.device('cpu'))
    memory.restore(saved)
    state = memory.state()
    assert state['unsent'][0].tolist() == [[3.0, 0.5]]
    assert (state['steps'], state['p'][0].tolist(), state['q'][0].tolist()) == (5, [1.0, 2.0], [3.0])
    other = PowerSgd(GradientOptions(compression='power_sgd', rank=2), torch.device('cpu'))
    other.restore(saved)  # matrices of another shape: it begins afresh
    assert other.state()['unsent'] == {}
