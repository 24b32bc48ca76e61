"""`phalanx bench train`, `phalanx bench data` and `phalanx plan` from the command line, of a small recipe."""

from __future__ import annotations

import io
import json
import shlex
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from running import TINY, run_here

SMALL = (*TINY, 'data.train_scenes=8', 'data.eval_scenes=2', 'train.global_batch_size=2', 'device=cpu')


@pytest.fixture(scope='module')
def measured(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Figures and profile of `phalanx bench train`."""
    file, output = tmp_path_factory.mktemp('bench') / 'profile.json', io.StringIO()
    with redirect_stdout(output):
        assert run_here('bench', 'train', *SMALL, '--steps', '2', '--warmup', '1', '--json', '--profile', str(file)) == 0
    (figures,) = json.loads(output.getvalue())['variants']
    return figures, json.loads(file.read_text())


@pytest.fixture
def profile(measured: tuple[dict[str, Any], dict[str, Any]], tmp_path: Path) -> str:
    """The measured profile as it would be of a step of 1 s, on a node where no rank waits for data."""
    phases = {'data wait': 0.0, 'forward': 0.3, 'loss': 0.1, 'backward': 0.5, 'optimizer': 0.1}
    file = tmp_path / 'profile.json'
    file.write_text(json.dumps(measured[1] | {'phases': phases, 'loader_rate': 1e9}))
    return str(file)


def test_the_time_of_a_step_is_the_sum_of_its_phases(measured: tuple[dict[str, Any], dict[str, Any]]) -> None:
    figures, _ = measured
    assert sum(figures['phases'].values()) == pytest.approx(figures['step_s'])
    assert (figures['samples'], figures['world_size'], figures['exchanges']) == (2, 1, 0)
    assert figures['samples_per_s'] == pytest.approx(2 / figures['step_s'])


def test_two_nodes_over_links_that_cost_nothing_are_twice_as_fast(profile: str, capsys: pytest.CaptureFixture[str]) -> None:
    free = ('--bandwidth', 'inf', '--latency', '0s', '--node_bandwidth', 'inf', '--node_latency', '0s')
    assert run_here('plan', '--profile', profile, '--nodes', '1,2', '--devices_per_node', '4', *free, '--json') == 0
    one, two = json.loads(capsys.readouterr().out)['nodes']
    assert (two['nodes'], two['speed_up'], two['efficiency']) == (2, pytest.approx(2), pytest.approx(1))
    assert two['samples_per_s'] == pytest.approx(2 * one['samples_per_s'])


def test_a_plan_over_a_slow_network_names_the_bottleneck_and_what_to_try(
    profile: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """2 MB of gradients take seconds over 10 Mbit/s."""
    assert run_here('plan', '--profile', profile, '--nodes', '1,8', '--bandwidth', '10Mbit') == 0
    rows = capsys.readouterr().out.splitlines()
    (eight,) = (row.split() for row in rows if row.startswith('8 '))
    assert (eight[1], eight[-1]) == ('64', 'gradients')
    assert any(row.startswith('to try: gradients.compression=bf16: efficiency ') for row in rows)


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        ((), 'the recipe is missing: name one to measure here, or give --profile FILE'),
        (('--profile', 'none.json'), 'none.json: No such file or directory'),
        (('--profile', 'none.json', '--devices_per_node', '0'), '--devices_per_node must be at least 1, got 0'),
        (('--profile', 'none.json', '--bandwidth', 'fast'), 'fast'),
    ],
)
def test_a_plan_that_cannot_be_made_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here('plan', *words) == 2
    assert message in capsys.readouterr().err


def test_the_pipeline_is_measured_by_transform(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_here('bench', 'data', *SMALL, '--samples', '4', '--rate', '100') == 0
    out = capsys.readouterr().out
    assert 'RandomFlip' in out
    assert 'a device that trains 100 samples/s needs ' in out
    assert out.splitlines()[-1] == f'next: phalanx train {shlex.join(SMALL)}'


@pytest.mark.parametrize(
    ('words', 'message'),
    [
        (('train', *SMALL, '--steps', '0'), '--steps and --warmup must be at least 1'),
        (('train', *SMALL, '--precision', 'fp8'), '--precision fp8: give one or more of fp32, bf16, fp16'),
        (('train', *SMALL, '--precision', 'fp32,bf16', '--profile', 'p.json'), '--profile is of one variant'),
        (('train', *SMALL, '--profile', 'missing/p.json'), '--profile missing/p.json: there is no such folder'),
        (('data', *SMALL, '--samples', '0'), '--samples must be at least 1 and --rate above 0'),
        (('memory', *SMALL, '--ranks', '0'), '--ranks must be at least 1'),
        (('comm',), 'one rank has no peers to communicate with'),
    ],
)
def test_a_measurement_that_makes_no_sense_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_here('bench', *words) == 2
    assert message in capsys.readouterr().err


def test_a_device_is_given_by_the_size_of_its_memory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run_here('bench', 'memory', *SMALL, '--device', 'large')
    assert "argument --device: 'large' is not a size of memory" in capsys.readouterr().err
