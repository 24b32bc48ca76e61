"""Training on a device as strict as a GPU: the values of the CPU, and nothing that a GPU would refuse or wait for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from running import clean_environment, made_once, run_fork

SHORT, LONG = ('segmentation', 'detection'), ('recognition', 'text_detection', 'table')
FAMILIES = (*SHORT, *(pytest.param(name, marks=pytest.mark.long) for name in LONG))
MODELS = (
    *('unet', 'ocrnet', 'segformer', 'deeplabv3p', 'lraspp', 'dfine', 'deimv2', 'rtdetr', 'rtdetrv2'),
    *('svtr_lcnet', 'svtr_lcnetv3', 'svtr_lcnetv4', 'conv_lcnetv4'),
)
OPTIONS = (
    *('micro_batches', 'whole_step', 'channels_last', 'freeze', 'layer_rates', 'clip', 'ema', 'distillation'),
    *('bf16', 'fp16', 'fp16_constant', 'class_weights', 'mixture'),
)
PARTS = (
    *('ohem', 'dice', 'lovasz', 'rmi', 'mixed', 'feature_distance', 'lars', 'lamb', 'adam', 'adamw', 'per_tensor'),
    *('freeze_steps', 'frozen_norms', 'layer_decay', 'segmentation_windows', 'varifocal', 'quality_focal', 'from_teacher'),
    *('detection_windows', *(f'{name}_fixed_objects' for name in MODELS if name.startswith(('dfine', 'deimv2', 'rtdetr')))),
    *('sar', 'fixed_length', 'l1'),
)
QUERIES = tuple(name for name in (*MODELS, *PARTS) if name.startswith(('dfine', 'deimv2', 'rtdetr')))
TEXTS = ('recognition', 'svtr_lcnet', 'svtr_lcnetv3', 'svtr_lcnetv4', 'conv_lcnetv4', 'sar')
# Other kernels than on CPUs, which sum in another order: fused GRU and LSTM cells, attention, and what follows from them.
ROUNDED = {*QUERIES, *TEXTS, 'table', 'fixed_length', 'l1', 'segformer'}
EXACT, ROUNDING = {'rel': 0, 'abs': 0}, {'rel': 1e-4, 'abs': 1e-6}
# torch's CTC copies the lengths of texts to a GPU in both passes. Hungarian matching and the search for connected components
# of `mixed` are done on the host.
CTC = ['_ctc_loss', '_ctc_loss_backward']
WAITS = dict.fromkeys(TEXTS, CTC) | {name: ['copy to host'] for name in QUERIES} | {'mixed': 2 * ['copy to host']}
# Post-processing and metric take so long on the host that the device predicts the next batch meanwhile.
OVERLAPPING = {'detection', 'detection_windows', 'text_detection', 'table', *QUERIES}
BATCHES = 2  # of an evaluation


# A process of its own: torch makes the queues of its autograd engine for the devices that it knows at the first backward pass.
SCRIPT = f'import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import steps, exports; {{}}.main()'


class Results:
    """Findings of the script `steps.py`, by case: it runs once for each group of cases that is asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory

    def of(self, *cases: str, script: str = 'steps') -> dict[str, dict[str, Any]]:
        def run(folder: Path) -> None:
            ended = run_fork(SCRIPT.format(script), folder, *cases)
            assert ended.returncode == 0, ended.stderr
            (folder / 'found.json').write_text(ended.stdout.splitlines()[-1])

        found: dict[str, dict[str, Any]]
        found = json.loads((made_once(self.factory, f'{script}_{cases[0]}', run) / 'found.json').read_text())
        return found

    def of_family(self, family: str) -> dict[str, Any]:
        return self.of(*(SHORT if family in SHORT else LONG))[family]


@pytest.fixture(scope='module')
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return Results(tmp_path_factory)


def check_step(name: str, step: dict[str, Any]) -> None:
    """Losses of three steps are those of the CPU, also after a resume; the third one lets the host run ahead."""
    assert step['losses'] == [
        pytest.approx(terms, **(ROUNDING if name in ROUNDED else EXACT)) for terms in step['cpu']['losses']
    ]
    assert step['resumed'] == step['losses'][-1:]
    assert [wait.split(' at ')[0] for wait in step['waits']] == WAITS.get(name, [])
    assert step['growth'] == 0  # tensors that the step leaves


def count(copies: list[str], direction: str) -> int:
    return sum(copy.startswith(direction) for copy in copies)


def check_prediction(name: str, step: dict[str, Any]) -> None:
    """Results are those of the CPU, and the host waits for all queued work once per batch, or only for a copy."""
    if name not in ROUNDED:
        assert (step['metrics'], step['results']) == (step['cpu']['metrics'], step['cpu']['results'])
    waits = 0 if name in OVERLAPPING else 1
    assert len(step['evaluation']) == waits * BATCHES, step['evaluation']
    assert len(step['prediction']) == waits, step['prediction']
    assert count(step['copies of prediction'], 'to host') >= 1


@pytest.mark.parametrize('family', FAMILIES)
def test_a_step_of_each_family_is_that_of_the_cpu_and_waits_for_nothing(results: Results, family: str) -> None:
    """But for the lengths of texts."""
    check_step(family, results.of_family(family))


@pytest.mark.parametrize('family', FAMILIES)
def test_a_step_copies_its_batch_to_the_device_in_one_piece_and_one_vector_back(results: Results, family: str) -> None:
    step = results.of_family(family)
    assert (count(step['copies'], 'to device'), count(step['copies'], 'to host')) == (2, 1), step['copies']
    assert step['bytes']['to host'] < 100


@pytest.mark.parametrize('family', FAMILIES)
def test_an_evaluation_and_a_prediction_are_those_of_the_cpu_and_wait_at_most_once_per_batch(
    results: Results, family: str
) -> None:
    check_prediction(family, results.of_family(family))


def test_suppression_waits_for_a_copy_alone_unless_there_are_more_candidates_than_it_sends(results: Results) -> None:
    found = results.of(*SHORT)['suppression']
    few, many = found['few'], found['many']
    assert few['equal'] and many['equal'] and few['boxes'] == many['boxes'] == 300
    assert (few['waits'], many['waits']) == (0, 2)


def test_the_device_refuses_to_mix_devices_and_counts_waits(results: Results) -> None:
    seen = results.of(*SHORT)['misuse']
    assert 'expected all tensors to be on the same device' in seen['refusal'] and seen['sum'] == 6
    waits = ['_local_scalar_dense', 'nonzero', 'copy to device', 'copy to host', 'copy to device']
    assert seen['waits'] == [f'{name} at torch' for name in waits]
    assert (count(seen['copies'], 'to device'), count(seen['copies'], 'to host')) == (3, 1)


@pytest.mark.long
@pytest.mark.parametrize('name', MODELS)
def test_training_and_evaluation_of_each_model_are_those_of_the_cpu(results: Results, name: str) -> None:
    step = results.of(*MODELS)[name]
    check_step(name, step)
    check_prediction(name, step)
    # The batch, the flags of the rank, random keys of dropout; of detectors with queries their pairs and the number of boxes.
    assert count(step['copies'], 'to device') <= 5


@pytest.mark.long
@pytest.mark.parametrize('name', PARTS)
def test_a_step_with_each_part_is_that_of_the_cpu_and_waits_for_nothing(results: Results, name: str) -> None:
    step = results.of(*PARTS)[name]
    check_step(name, step)
    assert count(step['copies'], 'to device') <= (5 if name in QUERIES else 3 if name == 'sar' else 2)
    if 'evaluation' in step:
        check_prediction(name, step)


@pytest.mark.long
def test_each_model_loss_assigner_and_optimizer_has_a_case(results: Results) -> None:
    """But for a loss for two classes, of which no data set at hand is."""
    assert results.of(*PARTS)['untested']['parts'] == ['lovasz_hinge']


@pytest.mark.long
@pytest.mark.parametrize('name', OPTIONS)
def test_a_step_with_each_option_is_that_of_the_cpu_and_waits_for_nothing(results: Results, name: str) -> None:
    step = results.of(*OPTIONS)[name]
    check_step(name, step)
    assert count(step['copies'], 'to device') == 2


@pytest.mark.long
@pytest.mark.parametrize('family', FAMILIES)
def test_the_exported_file_of_a_run_on_the_device_computes_what_the_network_trained_on_the_cpu_does(
    results: Results, family: str
) -> None:
    found = results.of(family, script='exports')[family]
    assert len(found['file']) == len(found['network'])
    for file, network in zip(found['file'], found['network'], strict=True):
        np.testing.assert_allclose(file, network, rtol=1e-3, atol=1e-4)


@pytest.mark.long
def test_two_ranks_on_the_device_train_as_on_the_cpu_also_with_compressed_gradients(tmp_path: Path) -> None:
    """And no collective makes the host wait."""
    words = [sys.executable, str(Path(__file__).with_name('ranks.py'))]
    ranks = [
        subprocess.Popen(
            [*words, str(rank), str(tmp_path / 'store')], env=clean_environment(), stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for output, _ in [rank.communicate() for rank in ranks]:
        for name, found in json.loads(output.splitlines()[-1]).items():
            rounding = ROUNDING if name in ROUNDED else EXACT
            assert found['strict']['losses'] == [pytest.approx(terms, **rounding) for terms in found['cpu']['losses']], name
            assert [wait.split(' at ')[0] for wait in found['strict']['waits']] == WAITS.get(name, [])
