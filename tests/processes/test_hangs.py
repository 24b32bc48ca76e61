"""Ranks that do not call the same collectives: the launcher names the rank, the collective, its number and the line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from running import Command

# Rank 1 deviates in the second collective.
SCRIPT = """
import sys, time, torch, torch.distributed as torch_dist
from phalanx.engine.worker import process_group
from phalanx.parallel import dist
from phalanx.parallel.heartbeat import Heartbeat
with process_group('cpu'):
    heartbeat = Heartbeat(dist.rank())
    torch_dist.all_reduce(torch.ones(3))
    heartbeat.beat(1, 'training')
    if dist.rank() == 1:
        print('deviates', flush=True)
        {deviation}
    torch_dist.all_reduce(torch.ones(3))
    time.sleep(3600)
"""


@pytest.mark.parametrize(
    ('limit', 'deviation', 'sentence'),
    [
        (
            '3',
            'time.sleep(3600)',
            'rank 1 did not take part in collective number 2 of group 0 gloo, gloo:all_reduce of [[3]] at {script}:13 '
            '(<module>); its last in this group was number 1, gloo:all_reduce of [[3]] at {script}:8 (<module>)',
        ),
        pytest.param(
            '3',
            'dist.barrier()',
            'in collective number 2 of group 0 gloo, rank 1 called gloo:barrier of [] at {script}:12 (<module>), '
            'but rank 0 gloo:all_reduce of [[3]] at {script}:13 (<module>)',
            marks=pytest.mark.long,
        ),
        pytest.param(  # gloo does not hang, but ends the rank that receives too much
            '900',
            'torch_dist.all_reduce(torch.ones(7))',
            'rank 1 last called gloo:all_reduce of [[7]] at {script}:12 (<module>), number 2 of group 0 gloo',
            marks=pytest.mark.long,
        ),
    ],
    ids=['skipped', 'another', 'another shape'],
)
def test_a_rank_that_deviates_in_a_collective_is_named(
    phalanx: Command, tmp_path: Path, limit: str, deviation: str, sentence: str
) -> None:
    script = tmp_path / 'script.py'
    script.write_text(SCRIPT.format(deviation=deviation))
    done = phalanx('launch', '--nproc_per_node', '2', '--hang_timeout', limit, '--log_dir', 'log', str(script))
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].endswith(sentence.format(script=script)), done.stderr
    seconds = time.time() - (tmp_path / 'log' / 'workerlog.1').stat().st_mtime
    print(f'named {seconds:.1f} s after the deviation, with a hang limit of {limit} s')  # for the docs; not asserted
