"""`loss` is one key with one meaning in all families: a list, each entry times its coefficient; older keys are still read."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from phalanx.config.bind import hints_of
from phalanx.config.read import ConfigError, plain
from phalanx.data.samples import Draw
from phalanx.engine.runs import differences, open_job
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
        assert 'loss' in hints_of(FAMILIES[family].Keys), family


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


def test_one_coefficient_too_few_is_said() -> None:
    with pytest.raises(ConfigError, match='loss has 2 entries, but loss_coefficients has 1'):
        open_job('slanet_rendered', [('loss_coefficients=[1]', '--set')])
    with pytest.raises(ConfigError, match='loss: the list is empty'):
        open_job('crnn_digits', [('loss=[]', '--set')])


def test_the_keys_of_before_are_read_and_noted(tmp_path: Path) -> None:
    recipe = tmp_path / 'mine.yml'
    recipe.write_text('_base_: pp_liteseg_digits\nlosses:\n- cross_entropy\n- dice\n- lovasz\n')
    job = open_job(str(recipe), [('losses.1.smooth=0.5', '--set'), ('losses.1.name=dice', '--set')])
    assert [loss['name'] for loss in plain(job.resolved)['loss']] == ['cross_entropy', 'dice', 'lovasz']
    assert plain(job.resolved)['loss'][1]['smooth'] == 0.5
    assert f'{recipe.name}:2: losses: is called loss now; the old key will be refused by the next version' in job.notes[0]
    assert len(job.notes) == 3

    recipe.write_text('_base_: slanet_rendered\nlocation_loss: l1\nlocation_coefficient: 3\n')
    found = plain(open_job(str(recipe)).resolved)
    assert found['loss'] == [{'name': 'structure'}, {'name': 'l1'}] and found['loss_coefficients'] == [1.0, 3.0]

    recipe.write_text('_base_: pp_liteseg_digits\nlosses: [ohem]\nloss: [ohem]\n')
    with pytest.raises(ConfigError, match='losses: is now loss, which the recipe has too; take losses out'):
        open_job(str(recipe))


def test_the_former_name_of_pascal_voc_is_read_and_noted() -> None:
    job = open_job('ppyoloe_plus_crn_s_30e_voc', [('data={name: voc, root: .}', '--set')])
    assert plain(job.resolved)['data']['name'] == 'pascal_voc'
    assert 'data.name: voc is called pascal_voc now' in job.notes[0]


def test_a_run_of_before_goes_on_with_the_recipe_of_now(tmp_path: Path) -> None:
    """Its folder remembers the recipe with the keys of then."""
    job = open_job('slanet_rendered', folder=tmp_path)
    (tmp_path / 'config.yml').write_text(
        'location_loss: {name: smooth_l1}\nstructure_coefficient: 1.0\nlocation_coefficient: 2.0\nimage_size: 192\n'
    )
    assert not any(line.startswith(('loss', 'location', 'structure')) for line in differences(job))
