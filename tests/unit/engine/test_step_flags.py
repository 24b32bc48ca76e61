"""Flags that ranks exchange with each step: requests to stop, and unusable samples, each of them reported once."""

from __future__ import annotations

import json
import multiprocessing
import os
from pathlib import Path

import torch

from one_layer import Doubling
from phalanx.engine.loader import Loader
from phalanx.engine.step_flags import StepFlags
from phalanx.parallel import dist


def flags() -> StepFlags:
    task, cpu = Doubling(), torch.device('cpu')
    return StepFlags(Loader(task.dataset('train'), task.collate, workers=0, bad_samples=9, device=cpu, replace=True))


def test_a_step_without_news_changes_nothing() -> None:
    own = flags()
    assert own.collect() == [0, 0]
    assert own.receive(0, 0) == []
    assert (own.stop_agreed, own.bad) == (False, {})


def test_a_request_to_stop_counts_once_any_rank_made_it() -> None:
    own = flags()
    own.signalled = True
    assert own.collect() == [1, 0]
    assert not own.stop_agreed  # before the sums of the step are there
    own.receive(1, 0)
    own.receive(0, 0)
    assert own.stop_agreed


def test_an_unusable_sample_is_announced_and_reported_once() -> None:
    own = flags()
    own.loader.bad[3] = 'train 3: cannot be read'
    assert own.collect() == [0, 1]
    own.loader.bad[5] = 'train 5: cannot be read'  # read ahead for the next step, before the flags of this one are received
    assert own.receive(0, 1) == ['train 3: cannot be read', 'train 5: cannot be read']
    assert own.collect() == [0, 1]
    assert own.receive(0, 1) == []
    assert own.collect() == [0, 0]
    assert own.bad == {3: 'train 3: cannot be read', 5: 'train 5: cannot be read'}


def test_samples_of_one_unusable_file_are_one_report() -> None:
    own = flags()
    own.loader.bad |= {3: 'page.jpg: cannot be read', 4: 'page.jpg: cannot be read'}
    assert own.collect() == [0, 2]
    assert own.receive(0, 2) == ['page.jpg: cannot be read']
    own.loader.bad[6] = 'page.jpg: cannot be read'
    assert own.receive(0, *own.collect()[1:]) == []
    assert sorted(own.bad) == [3, 4, 6]


def test_ranks_report_the_same_samples_at_the_same_step(tmp_path: Path) -> None:
    """Of two ranks both meet sample 1, and rank 1 alone meets sample 2 in the second step and is asked to stop in the third."""
    fork = multiprocessing.get_context('fork')
    processes = [fork.Process(target=exchange_flags, args=(rank, tmp_path)) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    expected = [[['train 1: torn'], False], [['train 2: torn'], False], [[], True]]
    assert [json.loads((tmp_path / f'{rank}.json').read_text()) for rank in range(2)] == [expected, expected]


def exchange_flags(rank: int, folder: Path) -> None:
    """Three steps of one rank, whose reports and agreement it writes. A forked process must not compute: it has no threads."""
    os.environ |= {'RANK': str(rank), 'WORLD_SIZE': '2', 'PHALANX_INIT_METHOD': f'file://{folder}/store'}
    dist.join(torch.device('cpu'))
    own, found = flags(), []
    for bad, stop in (({1: 'train 1: torn'}, False), ({2: 'train 2: torn'} if rank else {}, False), ({}, rank == 1)):
        own.loader.bad |= bad
        own.signalled = stop
        sums = dist.sum_over_ranks(torch.tensor(own.collect())).tolist()
        found.append((own.receive(*sums), own.stop_agreed))
    (folder / f'{rank}.json').write_text(json.dumps(found))
    dist.leave()
