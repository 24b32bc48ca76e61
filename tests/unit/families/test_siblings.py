"""Recipes say the same in all families: metrics, transforms, mixtures of data sets, distillation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from phalanx.cli.predict_options import FORMS
from phalanx.config.bind import key_types
from phalanx.config.read import ConfigError, to_plain
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.families.base import Family
from phalanx.families.catalog import CATALOGS, FAMILIES, OWN_KINDS
from phalanx.parallel.step import WholeStep

DEMOS = {  # of each family: a recipe, its data set small, and what distillation compares
    'segmentation': ('unet_digits', '{name: digit_scenes, train_scenes: 4, eval_scenes: 3, size: [64, 64]}', "'0'"),
    'detection': ('ppyoloe_digits', '{name: digit_scenes, train_scenes: 4, eval_scenes: 3, size: [64, 64]}', 'logits'),
    'recognition': ('crnn_digits', '{name: digit_lines, train_lines: 4, eval_lines: 3}', 'ctc'),
    'table': ('slanet_rendered', '{name: rendered_tables, train_tables: 4, eval_tables: 3}', 'logits'),
    'text_detection': ('db_pages', '{name: drawn_pages, train_pages: 4, eval_pages: 3, page_size: [64, 64]}', 'shrink'),
}
SMALL = {'recognition': ('train_image_sizes=[]',), 'table': ('image_size=64',)}


def task_of(family: str, *assignments: str) -> Any:
    recipe, data, _ = DEMOS[family]
    words = (f'data={data}', *SMALL.get(family, ()), *assignments)
    return open_job(recipe, [(text, '--set') for text in words]).task


def test_help_lists_what_each_family_can_save() -> None:
    writers = {family: task_of(family).writers for family in DEMOS}
    assert {family: ', '.join((*each.formats, *each.labels)) for family, each in writers.items()} == FORMS


def test_every_family_has_the_same_catalogs_and_keys() -> None:
    kinds = {'models', 'data', 'losses', 'transforms', 'metrics'}
    keys = {
        *(
            'model',
            'data',
            'loss',
            'loss_coefficients',
            'metric',
            'main_metric',
            'transforms',
            'eval_transforms',
            'mean',
            'std',
        ),
        *('networks', 'between', 'frozen'),
    }
    for family, task in FAMILIES.items():
        assert CATALOGS[family].keys() == kinds | OWN_KINDS.get(family, {}).keys(), family
        assert all(CATALOGS[family].values()), family
        assert keys <= key_types(task.Keys).keys(), family


@pytest.mark.parametrize('family', DEMOS)
def test_the_main_metric_is_one_that_the_metric_reports(family: str) -> None:
    task = task_of(family)
    first = task.metric()
    names = type(first).names
    assert task.main_metric in names and set(task.tie_breakers) <= set(names)
    assert task_of(family, f'main_metric={names[-1]}').main_metric == names[-1]
    with pytest.raises(ConfigError, match=f"main_metric: 'beauty' is not one of {', '.join(names)}, the values of this metric"):
        task_of(family, 'main_metric=beauty')


@pytest.mark.parametrize('family', DEMOS)
def test_data_sets_are_mixed_alike(family: str) -> None:
    """An epoch takes the first part twice and half of the second; the samples of the first two rounds are those of the part."""
    data = DEMOS[family][1]
    alone = task_of(family, f'data={{name: mixture, parts: [{data}]}}')
    mixed = task_of(family, f'data={{name: mixture, parts: [{data}, {data}], train_shares: [2, 0.5]}}')
    part, whole = alone.dataset('train'), mixed.dataset('train')
    assert (len(part), len(whole), len(mixed.dataset('eval'))) == (4, 2 * 4 + 2, 3)
    for index in range(8):
        assert whole.name(index) == part.name(index % 4)
        np.testing.assert_array_equal(whole.original(Draw(index)), part.original(Draw(index % 4)))
    assert len({whole.original(Draw(index)).tobytes() for index in (8, 9)}) == 2  # the broken share: two of the four
    assert mixed.model().state_dict().keys() == alone.model().state_dict().keys()


@pytest.mark.parametrize('family', DEMOS)
def test_networks_of_every_family_can_learn_from_one_another(family: str) -> None:
    """The frozen teacher has no loss of its own and no gradient; what is evaluated is the student."""
    output = DEMOS[family][2]
    teacher = to_plain(open_job(DEMOS[family][0]).resolved)['model']
    between = f'between=[{{name: feature_distance, output: {output}}}]'
    task = task_of(family, f'networks={{teacher: {teacher}}}'.replace('None', 'null'), 'frozen=[teacher]', between)
    torch.manual_seed(0)
    model, data = task.model(), task.dataset('train')
    batch = task.collate([data[Draw(index)] for index in range(2)])
    terms = task.loss(task.outputs(model, batch), batch, WholeStep())
    distances = [name for name in terms if name.startswith('distance_')]
    assert len(distances) == 1 and all(name.endswith('_student') for name in terms if name not in distances)
    weights = task.weights(batch)
    assert weights is None or weights.keys() == terms.keys()
    sum(term.total for term in terms.values()).backward()  # type: ignore[union-attr]
    assert all(value.grad is None for value in model.networks['teacher'].parameters())
    assert any(value.grad is not None for value in model.student.parameters())
    assert torch.isfinite(terms[distances[0]].total)
    model.eval()
    with torch.no_grad():
        found = task.predict(model, task.collate([task.dataset('eval')[Draw(0)]]))
    assert len(found) == 1


@pytest.mark.parametrize('family', ['recognition', 'table'])
def test_transforms_of_training_are_not_those_of_evaluation(family: str) -> None:
    """A transform that inverts or distorts colours: in `transforms` training sees it, in `eval_transforms` evaluation does."""
    strong = {
        'recognition': 'rec_aug, invert_probability: 1.0',
        'table': 'random_distort, brightness: 0.9, brightness_probability: 1.0, contrast_probability: 1.0',
    }[family]
    changed = f'[{{name: {strong}}}]'
    plain_task = task_of(family, 'transforms=[]', 'eval_transforms=[]')
    train, evaluated = (task_of(family, f'{key}={changed}') for key in ('transforms', 'eval_transforms'))

    def pictures(task: Any, split: str) -> np.ndarray:
        return np.stack([task.dataset(split)[Draw(index)].image.numpy() for index in range(3)])

    assert (pictures(train, 'train') != pictures(plain_task, 'train')).any()
    assert (pictures(train, 'eval') == pictures(plain_task, 'eval')).all()
    assert (pictures(evaluated, 'eval') != pictures(plain_task, 'eval')).any()


def test_tables_that_are_too_long_are_left_out_of_every_part_of_a_mixture() -> None:
    """One of two rows and one of ten; the mixture is itself a part of one."""
    short, long = (f'{{name: rendered_tables, train_tables: 4, rows: [{rows}, {rows}], columns: [2, 2]}}' for rows in (2, 10))
    inner = f'{{name: mixture, parts: [{short}, {long}]}}'
    data = task_of(
        'table', f'data={{name: mixture, parts: [{short}, {inner}], train_shares: [1, 2]}}', 'max_length=40'
    ).dataset('train')
    assert len(data) == 4 + 2 * 4
    assert '8 of 20 tables for training have more than max_length=40' in data.notes[0]


def test_a_mixture_of_other_classes_is_refused() -> None:
    from phalanx.families.segmentation.data import DATA

    class Other:
        class_names = ('background', 'cat')

    mixture = DATA['mixture'](parts=(DATA['digit_scenes'], Other))  # type: ignore[operator]
    with pytest.raises(ValueError, match=r'data\.parts: 1 has other classes than 0: background, cat, not background, 0, 1'):
        _ = mixture.class_names


def test_a_family_without_a_method_of_the_seam_cannot_be_made() -> None:
    class Unfinished(Family):
        def model(self) -> Any: ...

    with pytest.raises(TypeError, match='abstract methods') as refused:
        Unfinished(FAMILIES['detection'].Keys)  # type: ignore[abstract, arg-type]
    missing = ['begin_prediction', 'collate', 'dataset', 'export', 'metric', 'picture', 'request', 'writers']
    assert [name for name in missing if name not in str(refused.value)] == []
