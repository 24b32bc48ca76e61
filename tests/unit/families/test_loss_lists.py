"""`loss` is one key with one meaning in all families: a list, each entry times its coefficient; older keys are still read."""

from __future__ import annotations

import pytest
import torch

from phalanx.config.bind import key_types
from phalanx.config.read import ConfigError
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.families.catalog import CATALOGS, FAMILIES
from phalanx.parallel.step import WholeStep

DEMOS = {
    'detection': ('ppyoloe_digits', 'data.size=[64,64]', 'task_aligned'),
    'recognition': ('crnn_digits', 'train_image_sizes=[]', 'ctc'),
    'table': ('slanet_rendered', 'image_size=64', 'structure'),
    'text_detection': ('db_pages', 'data.page_size=[64,64]', 'db'),
}


def test_every_family_has_losses_to_list() -> None:
    for family in FAMILIES:
        assert CATALOGS[family]['losses'], family
        assert 'loss' in key_types(FAMILIES[family].Keys), family


@pytest.mark.parametrize('family', DEMOS)
def test_a_loss_that_is_listed_twice_counts_twice_and_coefficients_multiply(family: str) -> None:
    recipe, small, loss = DEMOS[family]

    def terms(*assignments: str) -> dict[str, float]:
        job = open_job(recipe, [(text, text) for text in (small, *assignments)])
        torch.manual_seed(0)
        model, data = job.task.model(), job.task.dataset('train')
        batch = job.task.collate([data[Draw(0, 0, index, 0)] for index in range(2)])
        found = job.task.loss(job.task.outputs(model, batch), batch, WholeStep())
        weights = job.task.weights(batch)
        assert weights is None or weights.keys() == found.keys()
        return {name: term.total.item() for name, term in found.items()}

    once, twice = terms(f'loss={loss}', 'loss_coefficients=[]'), terms(f'loss=[{loss}, {loss}]', 'loss_coefficients=[0.5, 3]')
    assert twice.keys() == once.keys() | {f'{name}_1' for name in once}
    for name, total in once.items():
        assert (twice[name], twice[f'{name}_1']) == pytest.approx((0.5 * total, 3 * total), rel=1e-4)


def test_a_missing_coefficient_is_reported() -> None:
    with pytest.raises(ConfigError, match='loss has 2 entries, but loss_coefficients has 1'):
        open_job('slanet_rendered', [('loss_coefficients=[1]', '--set')])
    with pytest.raises(ConfigError, match='loss: the list is empty'):
        open_job('crnn_digits', [('loss=[]', '--set')])
