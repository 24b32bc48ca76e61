"""Parts of one plugin, as docs/extending.md describes them, train and evaluate in every family."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.config.arguments import PLUGINS
from phalanx.config.read import ConfigError
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.engine.plugins import OF_ALL_FAMILIES, load_plugins
from phalanx.engine.trainer import Trainer
from phalanx.families.catalog import CATALOGS, FAMILIES

FILE = Path(__file__).parents[2] / 'foreign_parts.py'
SMALL = ('train.global_batch_size=4', 'train.workers=0', 'train.channels_last=false', 'ema=null', 'device=cpu')
RECIPES = {
    'segmentation': 'unet_digits',
    'detection': 'ppyoloe_digits',
    'recognition': 'crnn_digits',
    'table': 'slanet_rendered',
    'text_detection': 'db_pages',
}
DEMOS = {
    'segmentation': ('data.train_scenes=4', 'data.eval_scenes=1', 'data.size=[32,64]'),
    'detection': ('data.train_scenes=4', 'data.eval_scenes=1', 'data.size=[64,64]'),
    'recognition': ('data.train_lines=4', 'data.eval_lines=1', 'train_image_sizes=[]'),
    'table': ('data.train_tables=4', 'data.eval_tables=1', 'image_size=64', 'loss_coefficients=[]'),
    'text_detection': ('data.train_pages=4', 'data.eval_pages=1', 'data.page_size=[64,64]'),
}
# A small network and data set of the plugin, for parts of the other kinds.
OWN = {
    'segmentation': ('loss=[cross_entropy]',),
    'detection': ('transforms=[]', 'eval_transforms=[]', 'loss=[varifocal, giou, dfl]'),
    'recognition': ('train_image_sizes=[]', 'transforms=[]'),
    'table': ('image_size=64', 'max_length=20'),
    'text_detection': ('transforms=[]', 'eval_transforms=[]'),
}
USES = {  # of a kind: a part with an option, as a recipe names it
    'models': 'model={name: mine, width: 3}',
    'data': 'data={name: mine, count: 5}',
    'losses': 'loss=[mine]',
    'transforms': 'transforms=[{name: mine, amount: 9}]',
    'metrics': 'metric={name: mine, offset: 2}',
    'assigners': 'assigner={name: mine, score: 0.7}',
}
GRID = [(family, kind) for family in RECIPES for kind in ('models', 'data', 'losses', 'transforms', 'metrics')]


@pytest.fixture(autouse=True)
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the plugin; the catalogs afterwards are as before."""
    catalogs = [*OF_ALL_FAMILIES.values(), *(parts for kinds in CATALOGS.values() for parts in kinds.values())]
    before = [dict(parts) for parts in catalogs]
    monkeypatch.setenv(PLUGINS, str(FILE))
    load_plugins()
    module = sys.modules['phalanx_plugin_foreign_parts']
    module.CALLS.clear()
    yield module
    for parts, known in zip(catalogs, before, strict=True):
        parts.clear()
        parts.update(known)


def open_task(family: str, *assignments: str) -> Any:
    return open_job(RECIPES[family], [(text, '--set') for text in (*SMALL, *assignments)])


def train_step(job: Any, folder: Path) -> tuple[Trainer, list[float]]:
    """A trainer after one step, and the logged terms and total of that step."""
    trainer: Trainer = Trainer(job.recipe, job.task, folder=folder, device=torch.device('cpu'))
    trainer.train_step(next(trainer.batches()))
    trainer.read_numbers(keep=0)
    values = trainer.numbers.logged[-1]
    assert math.isfinite(values[-1])
    return trainer, values


def evaluate(trainer: Trainer) -> dict[str, float]:
    """The numbers of the metric of the recipe over one batch."""
    task = trainer.task
    model, dataset, metric = trainer.model.eval(), task.dataset('eval'), task.metric()
    batch = task.collate([dataset[Draw(index)] for index in range(2)])
    with torch.no_grad():
        metric.update(task.predict(model, batch), batch)
    metric.gather()
    return metric.compute()


def test_the_plugin_has_a_part_of_every_kind(plugin: Any) -> None:
    for family, kinds in CATALOGS.items():
        assert plugin.PLUGIN[family].keys() == kinds.keys()
    assert plugin.PLUGIN.keys() == {*CATALOGS, *OF_ALL_FAMILIES}


@pytest.mark.parametrize(('family', 'kind'), [*GRID, ('detection', 'assigners')])
def test_a_foreign_part_trains_a_step_and_is_evaluated(family: str, kind: str, plugin: Any, tmp_path: Path) -> None:
    job = open_task(family, 'model=mine', 'data=mine', *OWN[family], 'loss_coefficients=[]', USES[kind])
    trainer, _ = train_step(job, tmp_path)
    numbers = evaluate(trainer)
    assert plugin.CALLS[f'{family}.{kind}'] > 0
    if kind == 'data':
        assert len(trainer.task.dataset('train')) == 5
    if kind == 'metrics':
        assert numbers == {'samples': 2 + 2}


def test_a_foreign_loss_learns_from_a_foreign_teacher(plugin: Any, tmp_path: Path) -> None:
    pair = ('model={name: ppyoloe, size: n}', 'networks={teacher: {name: ppyoloe, size: t}}', 'from_teacher=[mine]')
    job = open_task('detection', 'data=mine', *OWN['detection'], 'loss=[mine]', 'loss_coefficients=[]', *pair)
    trainer, _ = train_step(job, tmp_path)
    assert trainer.with_loss.names == ('mine_student', 'as_teacher_student')
    assert plugin.CALLS['detection.teacher_losses'] > 0


def test_a_foreign_detector_as_teacher_is_refused_with_the_reason(tmp_path: Path) -> None:
    job = open_task('detection', 'networks={teacher: mine}', 'from_teacher=[mine]')
    with pytest.raises(
        ValueError, match=r'from_teacher: it compares the maps of two PP-YOLOE networks; the teacher is a Detector'
    ):
        train_step(job, tmp_path)


@pytest.mark.parametrize('family', ['segmentation', 'detection', 'text_detection', 'table'])
def test_networks_take_a_foreign_backbone(family: str, plugin: Any, tmp_path: Path) -> None:
    network = {'segmentation': 'deeplabv3p', 'detection': 'ppyoloe', 'text_detection': 'db', 'table': 'slanet'}[family]
    model = f'model={{name: {network}, backbone: {{name: mine, depth: 4}}}}'
    train_step(open_task(family, model, 'data=mine', *OWN[family], 'loss_coefficients=[]'), tmp_path)
    assert plugin.CALLS['backbones'] > 0


def test_a_recipe_takes_a_foreign_tracker(plugin: Any) -> None:
    job = open_task('segmentation', 'report.trackers=[{name: mine, prefix: a}]')
    (build,) = job.recipe.report.tracker_builders().values()
    assert type(build()) is plugin.Recorder and build().prefix == 'a'


@pytest.mark.parametrize('family', FAMILIES)
def test_a_foreign_loss_trains_shipped_networks_also_in_micro_batches(family: str, tmp_path: Path) -> None:
    for micro_batches in (1, 2):
        job = open_task(family, *DEMOS[family], 'loss=[mine]', f'train.micro_batches={micro_batches}')
        trainer, values = train_step(job, tmp_path)
        assert trainer.with_loss.names == ('mine',)
        assert values[-1] > 0


def test_a_foreign_loss_of_pixels_can_be_mixed_and_is_logged_by_its_name(tmp_path: Path) -> None:
    mixture = '{name: mixed, losses: [mine, dice, mine], coefficients: [1, 0.5, 2]}'
    trainer, values = train_step(open_task('segmentation', *DEMOS['segmentation'], f'loss=[{mixture}]'), tmp_path)
    assert trainer.with_loss.names == ('mine', 'dice', 'mine.2')
    assert values[2] == pytest.approx(2 * values[0])


@pytest.mark.parametrize('family', FAMILIES)
def test_a_loss_without_the_method_weights_is_refused_at_the_start(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare:
        heads = frozenset({'ctc'})

        def __call__(self, *parts: Any) -> Any:
            raise NotImplementedError

    monkeypatch.setitem(CATALOGS[family]['losses'], 'bare', Bare)
    with pytest.raises(ConfigError, match=r'loss: Bare has no method `weights`; docs/extending\.md lists what a loss has'):
        open_task(family, *DEMOS[family], 'loss=[bare]', 'loss_coefficients=[]')


def test_weights_that_name_other_terms_than_the_loss_end_the_run(
    tmp_path: Path, plugin: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = {'mine': torch.tensor(2), 'yours': torch.tensor(1)}
    monkeypatch.setattr(plugin.TableError, 'weights', lambda self, targets: two)
    message = r'returns the terms mine, but its method `weights` those of mine, yours; both must name the same terms'
    with pytest.raises(ValueError, match=message):
        train_step(open_task('table', *DEMOS['table'], 'loss=[mine]', 'train.micro_batches=2'), tmp_path)
