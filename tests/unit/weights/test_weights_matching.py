"""Heads for other classes: the rows that both sides have are taken by name. Expected rows are written by hand."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from phalanx.config.show import to_yaml
from phalanx.engine.folder import resolve_names
from phalanx.engine.initial import load_initial
from phalanx.engine.job import open_job
from phalanx.families.task import FEATURES
from phalanx.weights.checkpoint import Checkpoints
from phalanx.weights.matching import Fit, Naming, RowNames, Slot
from phalanx.weights.onnx_file import characters_in

PETS = ('dog', 'cat', 'horse')  # here
ANIMALS = ('bird', 'cat', 'cow', 'dog')  # in the file


def filled(model: nn.Module, weights: dict[str, Tensor], rows: RowNames) -> Fit:
    fit = Fit.of(Naming({name: Slot(name, tensor) for name, tensor in model.state_dict().items()}), weights, rows)
    fit.fill()
    return fit


def test_classes_that_both_have_keep_their_rows() -> None:
    model = nn.Conv2d(2, 3, 1)
    with torch.no_grad():
        model.weight.fill_(-1)
        model.bias.fill_(-1)  # type: ignore[union-attr]
    weights = {'weight': torch.arange(8.0).view(4, 2, 1, 1), 'bias': torch.tensor([0.0, 1, 2, 3])}
    fit = filled(model, weights, RowNames([PETS], [ANIMALS]))
    assert model.weight.flatten(1).tolist() == [[6, 7], [2, 3], [-1, -1]]  # dog, cat, and the horse as it was
    assert model.bias.tolist() == [3, 1, -1]  # type: ignore[union-attr]
    assert not fit.misshapen and set(fit.carried) == {'weight', 'bias'}
    assert fit.notes() == ['2 rows of shared classes, characters or tokens are loaded, the others are fresh: weight, bias']
    assert [row['rows by name'] for row in fit.rows()] == [1, 1]


@pytest.mark.filterwarnings('error')
def test_arrays_that_may_not_be_written_to_fill_a_network_without_a_warning() -> None:
    weights = {'weight': np.frombuffer(np.ones(4, np.float32).tobytes(), np.float32).reshape(2, 2), 'bias': np.ones(2, 'f4')}
    model = nn.Linear(2, 2)
    Fit.of(Naming({name: Slot(name, tensor) for name, tensor in model.state_dict().items()}), weights).fill()
    assert model.weight.tolist() == [[1, 1], [1, 1]]


def test_a_head_whose_rows_are_all_taken_has_no_fresh_ones() -> None:
    weights = {'weight': torch.rand(4, 2, 1, 1), 'bias': torch.rand(4)}
    fit = filled(nn.Conv2d(2, 2, 1), weights, RowNames([('dog', 'cat')], [ANIMALS]))
    assert fit.notes() == ['2 rows of shared classes, characters or tokens are loaded: weight, bias']


def test_rows_of_a_head_laid_out_as_in_paddle_lie_along_the_other_axis() -> None:
    linear = nn.Linear(2, 3, bias=False)
    slots = {'fc.weight': Slot('fc.weight', linear.weight.detach().T)}
    with torch.no_grad():
        linear.weight.fill_(-1)
    fit = Fit.of(Naming(slots), {'fc.weight': torch.arange(8.0).view(2, 4).numpy()}, RowNames([PETS], [ANIMALS]))
    fit.fill()
    assert linear.weight.tolist() == [[3, 7], [1, 5], [-1, -1]]


def test_the_features_that_a_decoder_sees_keep_their_places() -> None:
    """A decoder sees two features and its last token: columns 0 and 1, then one per token."""
    cell = nn.Linear(5, 1, bias=False)
    with torch.no_grad():
        cell.weight.fill_(-1)
    fit = filled(cell, {'weight': torch.arange(6.0)[None]}, RowNames([(FEATURES, *PETS)], [(FEATURES, *ANIMALS)]))
    assert cell.weight.tolist() == [[0, 1, 5, 3, -1]]
    assert not fit.misshapen


@pytest.mark.parametrize(
    ('shape', 'theirs'),
    [
        ((4, 3, 1, 1), ANIMALS),  # another axis differs too
        ((5, 2, 1, 1), ANIMALS),  # not as many rows as names
        ((4, 2, 1, 1), ('a', 'b', 'c', 'd')),  # no name in common
        ((4, 2), ANIMALS),
    ],
)
def test_what_is_no_head_for_those_classes_stays_as_initialised(shape: tuple[int, ...], theirs: tuple[str, ...]) -> None:
    model = nn.Conv2d(2, 3, 1, bias=False)
    drawn = model.weight.clone()
    assert filled(model, {'weight': torch.zeros(shape)}, RowNames([PETS], [theirs])).misshapen == ('weight',)
    assert torch.equal(model.weight, drawn)


def test_as_many_classes_with_other_names_are_remarked() -> None:
    assert not RowNames([PETS], [PETS]).notes() and not RowNames([PETS], [ANIMALS]).notes()
    (note,) = RowNames([PETS], [('a', 'b', 'c')]).notes()
    assert 'the same number of classes under other names (a, b, c)' in note


def test_a_recogniser_takes_the_characters_that_it_shares_with_the_run_it_starts_from(tmp_path: Path) -> None:
    """In the CTC head the blank is row 0 and character i row i + 1: of 0123456789, `3` is row 4 there; here, `a31`, row 2."""
    source = open_job('crnn_digits')
    model = source.task.model()
    run = tmp_path / 'digits'
    run.mkdir()
    (run / 'config.yml').write_text(to_yaml(resolve_names(source)))
    Checkpoints(run, keep=1).save(1, model.state_dict(), None, {'best_step': 1}, True)

    job = open_job('crnn_digits', [(f'train.init_from={run}', '--set'), ('characters.dictionary=[a, "3", "1"]', '--set')])
    other = job.task.model()
    drawn = other.head.weight[1].clone()
    (taken,) = load_initial(other, job.recipe, job.task)
    assert torch.equal(other.head.weight[[0, 2, 3]], model.head.weight[[0, 4, 2]])
    assert torch.equal(other.head.weight[1], drawn)
    assert [fit.misshapen for fit in taken.fits] == [()]
    assert any('3 rows of shared classes, characters or tokens' in note for note in taken.notes)


def test_a_table_network_with_more_spans_predicts_the_shared_tokens_as_before(tmp_path: Path) -> None:
    source = open_job('slanet_rendered')
    model = source.task.model()
    (tmp_path / 'config.yml').write_text(to_yaml(resolve_names(source)))
    Checkpoints(tmp_path, keep=1).save(1, model.state_dict(), None, {'best_step': 1}, True)
    words = (f'train.init_from={tmp_path}', 'more_tokens=[\'colspan="11"\', \'rowspan="11"\']')
    job = open_job('slanet_rendered', [(word, '--set') for word in words])
    wider = job.task.model()
    load_initial(wider, job.recipe, job.task)
    images, tokens = torch.rand(1, 3, 64, 64), torch.tensor([[0, 1, 2, 3]])
    end = model.head.num_tokens - 1  # the last token, after which the others have their place
    with torch.no_grad():
        before, after = (network.eval()(images, tokens).logits[0] for network in (model, wider))
    assert after.shape[1] == before.shape[1] + 2
    assert torch.equal(after[:, [*range(end), end + 2]], before)


def test_the_classes_of_a_file_can_be_named(tmp_path: Path) -> None:
    model = open_job('crnn_digits').task.model()
    safetensors.torch.save_file(model.state_dict(), tmp_path / 'digits.safetensors')
    (tmp_path / 'digits.txt').write_text('\n'.join('0123456789') + '\n')
    words = (f'init_from={tmp_path}/digits.safetensors', f'init_classes={tmp_path}/digits.txt')
    assigned = [(f'train.{word}', '--set') for word in words]
    job = open_job('crnn_digits', [*assigned, ('characters.dictionary=["9", x]', '--set')])
    other = job.task.model()
    load_initial(other, job.recipe, job.task)
    assert torch.equal(other.head.bias[[0, 1]], model.head.bias[[0, 10]])


def test_the_tokens_of_a_file_are_those_of_its_dictionary(tmp_path: Path) -> None:
    """Cells without spans are one token, the last of the dictionary, between `sos` and `eos`, as in PaddleOCR.

    RapidOCR ends all dictionaries in its files with a blank.
    """
    job = open_job('slanet_rendered')
    assert job.task.labels(['<tr>', '<td>', 'colspan="2"', '</td>', ' '])[0] == (
        *('sos', '<tr>', ' colspan="2"', '</td>', '<td></td>', 'eos'),
    )


def test_fresh_norms_that_are_frozen_are_reported(tmp_path: Path) -> None:
    """The head of a text detector that looks for thresholds is not in an exported file; `head.shrink` is."""
    state = open_job('db_pages').task.model().state_dict()
    trained = {name: value for name, value in state.items() if not name.startswith('head.threshold.')}
    safetensors.torch.save_file(trained, tmp_path / 'db.safetensors')
    assigned = [(f'train.init_from={tmp_path}/db.safetensors', '--set'), ('train.init_misshapen=skip', '--set')]
    notes = {}
    for sync in ('frozen', 'off'):
        job = open_job('db_pages', [*assigned, (f'norm_sync={sync}', '--set')])
        (taken,) = load_initial(job.task.model(), job.recipe, job.task)
        notes[sync] = [note for note in taken.notes if 'leaves newly initialised batch norms without statistics' in note]
    assert notes['off'] == [] and '(head.threshold.conv.norm, head.threshold.norm)' in notes['frozen'][0]


@pytest.mark.skipif(find_spec('onnx') is None, reason='reading ONNX files needs onnx')
def test_the_characters_of_an_exported_recogniser_stand_in_its_file(tmp_path: Path) -> None:
    from onnx import helper

    file = helper.make_model(helper.make_graph([], 'network', [], []))
    saved = tmp_path / 'recogniser.onnx'
    saved.write_bytes(file.SerializeToString())
    assert characters_in(saved) == ()
    helper.set_model_props(file, {'character': 'a\nb\n'})
    saved.write_bytes(file.SerializeToString())
    assert characters_in(saved) == ('a', 'b', ' ')
