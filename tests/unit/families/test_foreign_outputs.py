"""Outputs of a network of a plug-in that do not fit the recipe are reported as such, with what was expected."""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.families.detection.loss import Varifocal
from phalanx.families.recognition import loss as recognition
from phalanx.families.table import loss as table
from phalanx.families.table.output import TableOutput
from phalanx.families.text_detection.models.maps import Maps
from phalanx.parallel.step import WholeStep
from phalanx.system.errors import RunError

MAPS = '`shrink` [1, 1, 64, 64], `threshold` [1, 1, 64, 64], `binary` [1, 1, 64, 64]'
ANCHORS = '`logits` [1, A, 10], `distances` [1, A, 4 bins], `points` [A, 2], `strides` [A]'
DEMOS = {
    'crnn_digits': ('data.train_lines=1', 'data.eval_lines=1', 'train_image_sizes=[]'),
    'slanet_rendered': ('data.train_tables=1', 'data.eval_tables=1', 'image_size=64'),
    'db_pages': ('data.train_pages=1', 'data.eval_pages=1', 'data.page_size=[64,64]', 'transforms=[]'),
    'ppyoloe_digits': ('data.train_scenes=1', 'data.eval_scenes=1', 'data.size=[64,64]', 'transforms=[]'),
}


def opened(recipe: str) -> tuple[Any, Any]:
    """Task of a demo, and a batch of one sample."""
    task = open_job(recipe, [(text, '--set') for text in DEMOS[recipe]]).task
    return task, task.collate([task.dataset('train')[Draw(0)]])


def zeros(*shape: int) -> torch.Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ('recipe', 'outputs', 'said'),
    [
        ('crnn_digits', zeros(1, 9, 11), '`ctc` [1, T, 11]; it returned Tensor'),
        # Without the blank: the loss would read beyond the classes.
        (
            'crnn_digits',
            SimpleNamespace(ctc=zeros(1, 9, 10)),
            '`ctc` [1, T, 11]; it returned SimpleNamespace with `ctc` [1, 9, 10]',
        ),
        ('db_pages', {'shrink': 1}, f'{MAPS}; it returned dict'),
        (
            'db_pages',
            Maps(zeros(1, 1, 64, 64)),
            f'{MAPS}; it returned Maps with `shrink` [1, 1, 64, 64], `threshold` NoneType, `binary` NoneType',
        ),
        ('ppyoloe_digits', (zeros(1, 4, 4), zeros(1, 4, 10)), f'{ANCHORS}; it returned tuple'),
        (
            'ppyoloe_digits',
            SimpleNamespace(logits=zeros(1, 4, 10), distances=zeros(1, 4, 68), points=zeros(3, 2), strides=zeros(4)),
            f'{ANCHORS}; it returned SimpleNamespace with `logits` [1, 4, 10], `distances` [1, 4, 68], '
            '`points` [3, 2], `strides` [4]',
        ),
    ],
)
def test_outputs_that_do_not_fit_the_losses_are_reported(recipe: str, outputs: Any, said: str) -> None:
    task, batch = opened(recipe)
    with pytest.raises(RunError) as caught:
        task.supervised_loss(outputs, batch, WholeStep())
    assert str(caught.value) == f'model: in training it must return {said}'


def test_a_table_network_that_returns_too_few_steps_or_tokens_is_reported() -> None:
    task, batch = opened('slanet_rendered')
    L, K = batch.ids.shape[1] - 1, len(task.vocabulary)
    for shape in ((1, L - 1, K), (1, L, K - 1)):
        with pytest.raises(
            RunError, match=rf'must return `logits` \[1, {L}, {K}\], `boxes` \[1, {L}, 4\]; it returned TableOutput with'
        ):
            task.supervised_loss(TableOutput(zeros(*shape), zeros(1, L, 4)), batch, WholeStep())


@pytest.mark.parametrize(
    ('recipe', 'expected'), [('db_pages', r'`shrink` \[1, 1, 64, 64\]'), ('slanet_rendered', r'`logits` \[1, L, ')]
)
def test_outputs_that_do_not_fit_the_evaluation_are_reported(recipe: str, expected: str) -> None:
    task, batch = opened(recipe)
    with pytest.raises(RunError, match=rf'model: in evaluation it must return {expected}.*; it returned Tensor'):
        task.begin_prediction(lambda *_: zeros(1), batch)


class Decoding:
    """Detector whose `decode` returns what it was given."""

    def __init__(self, decoded: Any) -> None:
        self.decoded = decoded

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        return images

    def decode(self, raw: torch.Tensor) -> Any:
        return self.decoded


@pytest.mark.parametrize(
    'decoded', [zeros(1, 4, 4), (zeros(1, 4, 4), zeros(1, 3, 10)), (zeros(1, 4, 4), zeros(1, 4, 10), 0), None]
)
def test_a_detector_that_decodes_no_boxes_and_scores_is_reported(decoded: Any) -> None:
    task, batch = opened('ppyoloe_digits')
    with pytest.raises(
        RunError, match=r'evaluation, from `decode`, it must return `boxes` \[1, A, 4\], `scores` \[1, A, K\]; '
    ):
        task.begin_prediction(Decoding(decoded), batch)


@pytest.mark.parametrize(
    ('recipe', 'loss'), [('crnn_digits', recognition.CTC), ('slanet_rendered', table.Structure), ('ppyoloe_digits', Varifocal)]
)
def test_a_loss_of_a_plug_in_takes_what_it_likes(recipe: str, loss: type[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Plug-ins add theirs to the catalogs, from which a check may not conclude that they take our outputs."""
    task, batch = opened(recipe)

    class Own(loss):
        heads = frozenset({'own'})

        def __call__(self, outputs: Any, *_: Any) -> dict[str, Any]:
            return {}

    module = import_module(f'phalanx.families.{type(task).__module__.split(".")[2]}.loss')
    monkeypatch.setitem(module.LOSSES, 'own', Own)
    task.losses = [(Own(), 1.0)]
    if recipe == 'ppyoloe_digits':
        task.assigner = lambda *_: None
        monkeypatch.setitem(module.ASSIGNERS, 'own', type(task.assigner))
    assert task.supervised_loss('anything', batch, WholeStep()) == {}
