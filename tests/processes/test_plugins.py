"""Networks written by users outside the package, one for each family, go the whole way: the examples of docs/extending.md."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Picture

from phalanx.config.arguments import PLUGINS
from phalanx.data.external import seed_global_generators
from phalanx.engine.plugins import load_plugins
from phalanx.families.catalog import CATALOGS
from phalanx.report.trackers import TRACKERS
from running import losses, run_here

EXAMPLES = Path(__file__).parents[2] / 'examples'
SHORT = (
    'train.steps=4',
    'train.global_batch_size=4',
    'train.workers=0',
    'evaluate={every: 4, batch_size: 4}',
    'checkpoint.every=2',
    'report={every: 1, pictures: 1}',
    'ema=null',
    'device=cpu',
)
RECIPES = {
    'fcos': (
        'ppyoloe_digits',
        ('model.name=fcos', 'model.channels=4', 'loss.name=fcos', 'nms.score_threshold=0'),
        ('data={name: digit_scenes, train_scenes: 8, eval_scenes: 4, size: [64, 64], digit_height: [24, 44]}',),
    ),
    'attention_recogniser': (
        'crnn_digits',
        ('model={name: attention, channels: 16, max_length: 4}', 'loss.name=attention'),
        ('data={name: digit_lines, train_lines: 8, eval_lines: 4, digits: [1, 2], digit_height: [20, 32]}',),
    ),
    'parallel_tables': (
        'slanet_rendered',
        ('model={name: parallel_tables, channels: 16}', 'image_size=64', 'max_length=60'),
        ('data={name: rendered_tables, train_tables: 8, eval_tables: 4, rows: [1, 2], columns: [1, 2]}',),
    ),
    'torchvision_segmentation': (
        'pp_liteseg_digits',
        ('model.name=tv_lraspp', 'loss=[focal]', 'transforms=[color_jitter]'),
        ('data={name: digit_scenes, train_scenes: 8, eval_scenes: 4, size: [32, 64], digit_height: [16, 24]}',),
    ),
}


@pytest.fixture(autouse=True)
def catalogs_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(PLUGINS, raising=False)
    catalogs = [TRACKERS, *(parts for kinds in CATALOGS.values() for parts in kinds.values())]
    before = [dict(parts) for parts in catalogs]
    yield
    os.environ.pop(PLUGINS, None)
    for parts, known in zip(catalogs, before, strict=True):
        parts.clear()
        parts.update(known)


@pytest.mark.parametrize(
    'example', [pytest.param(each, marks=() if each == 'attention_recogniser' else pytest.mark.long) for each in RECIPES]
)
def test_a_network_of_a_user_is_trained_resumed_evaluated_used_and_exported(
    example: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recipe, parts, data = RECIPES[example]
    plugin, options = ('--plugin', str(EXAMPLES / f'{example}.py')), ('--set', *SHORT, *data, *parts)
    whole, run = tmp_path / 'whole', tmp_path / 'run'
    assert run_here('train', recipe, *plugin, *options, '--save_dir', str(whole)) == 0
    assert run_here('train', recipe, *plugin, *options, 'train.until=2', '--save_dir', str(run)) == 0
    assert run_here('train', recipe, *plugin, *options, '--save_dir', str(run)) == 0
    assert losses(run) == losses(whole)
    capfd.readouterr()
    assert run_here('eval', str(run), *plugin, '--json') == 0
    assert json.loads(capfd.readouterr().out)['samples'] == 4
    Picture.fromarray(np.full((40, 64, 3), 200, np.uint8)).save(tmp_path / 'image.png')
    assert run_here('predict', str(run), str(tmp_path / 'image.png'), *plugin, '--out', str(tmp_path / 'out')) == 0
    assert list((tmp_path / 'out').iterdir())
    assert run_here('export', str(run), *plugin, '--out', str(tmp_path / 'model.onnx')) == 0


def test_a_tracker_of_a_user_gets_each_number_of_a_resumed_run_once(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plugin, run = ('--plugin', str(EXAMPLES / 'csv_tracker.py')), tmp_path / 'run'
    *_, data = RECIPES['torchvision_segmentation']
    options = (*SHORT, *data, 'loss=[cross_entropy, cross_entropy, cross_entropy]', 'model.width=0.25', 'checkpoint.every=3')
    trackers = 'report.trackers=[{name: csv, delimiter: ;}, tensorboard]'
    assert run_here('train', 'pp_liteseg_digits', *plugin, '--set', *options, trackers, '--save_dir', str(run)) == 0
    shutil.rmtree(run / 'checkpoints' / 'step_0000004')  # as if the run had been killed after its last log line
    assert run_here('train', 'pp_liteseg_digits', *plugin, '--set', *options, trackers, '--save_dir', str(run)) == 0
    table = [line.split(';') for line in (run / 'numbers.csv').read_text().splitlines()]
    assert [int(step) for step, name, _ in table[1:] if name == 'train/loss'] == [1, 2, 3, 4]
    assert [int(step) for step, name, _ in table[1:] if name == 'eval/mean_iou'] == [4]
    assert list((run / 'tensorboard').iterdir())
    capfd.readouterr()
    assert run_here('config', 'pp_liteseg_digits', *plugin, '--set', 'report.trackers=[cvs]') == 2
    assert (
        "report.trackers[0].name: 'cvs' is not one of tensorboard, visualdl, mlflow, wandb, clearml, trackio, swanlab, csv; "
        "did you mean 'csv'?" in capfd.readouterr().err
    )


def test_a_plugin_cannot_take_the_name_of_a_part(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'mine.py').write_text("PLUGIN = {'segmentation': {'models': {'unet': print}}}")
    assert run_here('config', 'pp_liteseg_digits', '--plugin', str(tmp_path / 'mine.py')) == 2
    assert "mine.py: PLUGIN: segmentation.models: 'unet' is taken; choose another name" in capfd.readouterr().err


def test_faults_of_a_plugin_are_reported_with_its_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'empty.py').write_text('')
    (tmp_path / 'tracker.py').write_text("PLUGIN = {'trackers': {'visualdl': print}}")
    (tmp_path / 'kind.py').write_text("PLUGIN = {'table': {'layers': {}}}")
    (tmp_path / 'list.py').write_text("PLUGIN = {'table': {'models': [print]}}")
    (tmp_path / 'instance.py').write_text("PLUGIN = {'table': {'models': {'mine': 5}}}")
    (tmp_path / 'untyped.py').write_text("def net(k, *, depth=2): ...\nPLUGIN = {'table': {'models': {'mine': net}}}")
    (tmp_path / 'unresolved.py').write_text("def net(k: 'Size'): ...\nPLUGIN = {'table': {'models': {'mine': net}}}")
    for name, message in {
        'none.py': 'no such Python file',
        'empty.py': 'has no dict PLUGIN',
        'kind.py': "PLUGIN: table: 'layers' is not one of models, data, losses, transforms, metrics",
        'tracker.py': "PLUGIN: trackers: 'visualdl' is taken; choose another name",
        'list.py': 'PLUGIN: table.models: expected {name: builder}, got [<built-in function print>]',
        'instance.py': "PLUGIN: table.models: 'mine' must be a class or a function, got an instance of int",
        'untyped.py': "'mine': its options are not known: the parameter depth has no type hint, which a recipe is checked by",
        'unresolved.py': "'mine': its options are not known: name 'Size' is not defined",
    }.items():
        os.environ.pop(PLUGINS, None)
        assert run_here('config', 'pp_liteseg_digits', '--plugin', str(tmp_path / name)) == 2
        assert message in capfd.readouterr().err


def test_a_plugin_that_was_edited_is_imported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook opens the same recipe again in the same process, here within a second."""
    file = tmp_path / 'edited.py'
    monkeypatch.setenv(PLUGINS, str(file))
    for scale in ('2', '3'):
        net = f'def net(num_classes):\n    return {scale}\n'
        file.write_text(f"{net}\nPLUGIN = {{'segmentation': {{'models': {{'edited': net}}}}}}")
        load_plugins()
        assert CATALOGS['segmentation']['models']['edited'](5) == int(scale)
    load_plugins()  # unchanged
    file.write_text("PLUGIN = {'segmentation': {'models': {'renamed': len}}}")
    load_plugins()
    assert 'edited' not in CATALOGS['segmentation']['models']
    del CATALOGS['segmentation']['models']['renamed']


def test_two_plugins_with_one_file_name_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The second was taken for the first."""
    for folder in 'ab':
        (tmp_path / folder).mkdir()
        (tmp_path / folder / 'part.py').write_text('PLUGIN = {}')
    plugins = ('--plugin', str(tmp_path / 'a/part.py'), '--plugin', str(tmp_path / 'b/part.py'))
    os.environ.pop(PLUGINS, None)
    assert run_here('config', 'pp_liteseg_digits', *plugins) == 2
    assert capfd.readouterr().err == (
        f'--plugin {tmp_path}/b/part.py: {tmp_path}/a/part.py has the same file name; rename one of them\n'
    )


def test_a_foreign_transform_draws_from_the_seed_of_its_sample_and_leaves_the_generators_alone() -> None:
    def draw(seed: int) -> tuple[float, float]:
        with seed_global_generators(np.random.default_rng(seed)):
            return float(np.random.rand()), float(np.random.rand())

    state = np.random.get_state()[1].copy()
    assert draw(1) == draw(1) != draw(2)
    assert (np.random.get_state()[1] == state).all()
