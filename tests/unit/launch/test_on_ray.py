"""Requests to `phalanx launch --ray` that are refused before a cluster is asked."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from phalanx.launch.flags import Flags
from phalanx.launch.on_ray import Worker, _request
from running import run_here


@pytest.mark.skipif(find_spec('ray') is not None, reason='Ray is installed here')
def test_without_ray_the_launch_names_the_extra(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here('launch', '--ray', 'auto', '--', 'train', 'unet_digits') == 2
    cure = 'pip install "phalanx-vision[ray]", on every node of the cluster'
    assert capsys.readouterr().err == f'phalanx launch: --ray needs the package ray: {cure}\n'


@pytest.mark.parametrize(
    'flags', [('--gpus', '0,1'), ('--ips', '10.0.0.1,10.0.0.2'), ('--master', '10.0.0.1:6170'), ('--ssh',)]
)
def test_flags_of_what_ray_decides_are_refused(flags: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here('launch', '--ray', 'auto', *flags, '--', 'train', 'unet_digits') == 2
    assert f'{flags[0]}: with --ray, Ray chooses nodes and devices' in capsys.readouterr().err


def test_a_number_of_nodes_needs_the_number_of_ranks_on_each() -> None:
    """`--nnodes 2` alone, in a cluster of two nodes with four GPUs each, trained on two of the eight."""
    with pytest.raises(ValueError, match=r'--nnodes 2 with --ray: give --nproc_per_node N, the number of ranks on each node'):
        _request((), Flags(nnodes='2'), {'GPU': 8.0, 'CPU': 64.0})
    asked = _request((), Flags(nnodes='2', nproc_per_node=4), {'GPU': 8.0})
    assert (asked.least, asked.most, asked.each, asked.strategy) == (2, 2, 4, 'STRICT_SPREAD')
    asked = _request((), Flags(), {'GPU': 8.0})
    assert (asked.least, asked.most, asked.each, asked.strategy) == (8, 8, 1, 'PACK')


def test_the_last_words_of_a_rank_are_shown_however_much_it_wrote_before(tmp_path: Path) -> None:
    worker = Worker()
    worker.start(['-c', f'print("x" * {3 << 20}); print("the cause")'], {}, str(tmp_path))
    assert worker.process is not None
    worker.process.wait()
    text, status, _ = worker.poll()
    worker.close()
    assert (text[-10:], status) == ('the cause\n', 0)
