"""Requests to `phalanx launch --ray` that are refused before a cluster is asked."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

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
