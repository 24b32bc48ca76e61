"""Training steps on a device as strict as a GPU: the values of the CPU, and nothing that a GPU would refuse or wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from running import clean_environment

FAMILIES = ('segmentation', 'detection', 'recognition', 'text_detection', 'table')
OPTIONS = (
    *('micro_batches', 'whole_step', 'channels_last', 'freeze', 'layer_rates', 'clip', 'ema', 'fp16', 'fp16_constant'),
    'segformer',
)
# Copies to the device in a step: the tensors of a batch, class weights of each loss twice, lower bounds of divisors, flags.
COPIES = {'segmentation': 9, 'detection': 7, 'recognition': 7, 'text_detection': 4, 'table': 6}
# Waits per batch of two images in an evaluation: a copy of the results; of detection also numbers of candidates, and one per
# image in torchvision. A decoder of tables waits more often the longer they are: it looks for their ends.
WAITS = {'segmentation': 1, 'detection': 7, 'recognition': 2, 'text_detection': 1}


def run(*cases: str) -> dict[str, dict[str, Any]]:
    words = [sys.executable, str(Path(__file__).with_name('steps.py')), *cases]
    ended = subprocess.run(words, env=clean_environment(), capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    found: dict[str, dict[str, Any]] = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope='module')
def families() -> dict[str, dict[str, Any]]:
    return run(*FAMILIES)


def check_step(step: dict[str, Any], *, is_exact: bool) -> None:
    """Losses of three steps are those of the CPU, and the third lets the host run ahead."""
    close = 0 if is_exact else 1e-5
    assert step['losses'] == [pytest.approx(terms, rel=close, abs=0) for terms in step['cpu']['losses']]
    assert step['waits'] == []


@pytest.mark.parametrize('family', FAMILIES)
def test_a_step_of_each_family_is_that_of_the_cpu_and_waits_for_nothing(
    families: dict[str, dict[str, Any]], family: str
) -> None:
    # torch fuses GRU and LSTM cells on devices other than CPUs: the same sums in another order.
    check_step(families[family], is_exact=family not in ('recognition', 'table'))


@pytest.mark.parametrize('family', FAMILIES)
def test_a_step_copies_its_batch_to_the_device_and_one_vector_back(families: dict[str, dict[str, Any]], family: str) -> None:
    assert families[family]['copies'] == {'to device': COPIES[family], 'to host': 1}
    assert families[family]['bytes']['to host'] < 100


@pytest.mark.parametrize('family', WAITS)
def test_an_evaluation_is_that_of_the_cpu_and_waits_a_few_times_per_batch(
    families: dict[str, dict[str, Any]], family: str
) -> None:
    step = families[family]
    assert step['metrics'] == step['cpu']['metrics']
    assert len(step['evaluation']) <= 2 * WAITS[family], step['evaluation']


@pytest.mark.long
def test_a_step_with_each_option_is_that_of_the_cpu_and_waits_for_nothing() -> None:
    for name, step in run(*OPTIONS).items():
        if name in OPTIONS:
            check_step(step, is_exact=name != 'segformer')  # its attention is another kernel on the CPU


def test_the_device_refuses_to_mix_devices_and_counts_waits(families: dict[str, dict[str, Any]]) -> None:
    seen = families['misuse']
    assert 'expected all tensors to be on the same device' in seen['refusal'] and seen['sum'] == 6
    waits = ['_local_scalar_dense', 'nonzero', 'copy to device', 'copy to host', 'copy to device']
    assert seen['waits'] == [f'{name} at torch' for name in waits]
    assert seen['copies'] == {'to device': 3, 'to host': 1}
