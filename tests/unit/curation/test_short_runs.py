"""Short runs that choose settings of fine-tuning."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
from PIL import Image

from phalanx.curation.new import short_runs
from phalanx.curation.new.short_runs import DIVERGED, HELD_OUT, choose_settings, write_held_out
from phalanx.curation.new.trial import SIZED, _mean_size, _time_pictures, gain, step_time, try_steps
from phalanx.curation.prepare.targets import Written
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.engine.worker import process_group

RECIPE = """
task: recognition
model: {name: crnn, hidden_size: 8, backbone: {name: mobilenet_v3, size: small}}
loss: [ctc]
characters: {dictionary: digits}
image_size: [32, 40]
data: {name: label_files, root: ROOT, train: [train.txt], eval: [val.txt]}
train: {steps: 50, global_batch_size: 2, init_from: ROOT/weights.safetensors}
optimizer: {name: adamw, lr: 0.003}
schedule: {name: constant}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    """Recipe of a tiny reader; its 100 evaluation lines are one image with the text `12`."""
    Image.fromarray(np.zeros((32, 40, 3), np.uint8)).save(tmp_path / '0.png')
    for split, count in (('train', 8), ('val', 100)):
        (tmp_path / f'{split}.txt').write_text('0.png\t12\n' * count)
    path = tmp_path / 'mine.yml'
    path.write_text(RECIPE.replace('ROOT', str(tmp_path)))
    model = open_job(str(path), [('train.init_from=null', 'here')]).task.model()
    safetensors.torch.save_file(model.state_dict(), tmp_path / 'weights.safetensors')
    return path


def written(recipe: Path) -> Written:
    return Written(recipe.parent, {'root': str(recipe.parent), 'eval': ['val.txt']})


def test_a_trial_builds_the_network_and_reads_each_data_set_once(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, built = type(open_job(str(recipe)).task), list[tuple[str, ...]]()

    def count(name: str) -> None:
        build = getattr(task, name)

        def counted(self: Any, *words: str) -> Any:
            built.append((name, *words))
            return build(self, *words)

        monkeypatch.setattr(task, name, counted)

    count('model')
    count('dataset')
    try_steps(recipe, 1)
    assert sorted(built) == [('dataset', 'eval'), ('dataset', 'train'), ('model',)]


def test_the_best_of_the_short_runs_is_proposed_and_all_are_reported(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """6 steps of 2 samples each: a quarter of a minute at 4 samples per second, for 5 runs."""
    scores = iter([(0.1, 0.5), (0.1, 0.6), (0.3, 0.6), (0.3, 0.7), (0.2, 0.9)])
    monkeypatch.setattr(short_runs, '_evaluate', lambda trainer: next(scores))
    before = sorted(recipe.parent.iterdir())
    lines: list[str] = []
    settings = choose_settings(recipe, written(recipe), rate=4, seconds=60, report=lines.append)
    assert lines == [
        'accuracy, edit_similarity on held-out samples: 0.1000, 0.5000 at the start, after 6 steps with',
        'optimizer.lr=0.003: 0.1000, 0.6000',
        'optimizer.lr=0.009: 0.3000, 0.6000',
        'optimizer.lr=0.009 norm_sync=frozen: 0.3000, 0.7000',
        'optimizer.lr=0.009 train.freeze=[backbone]: 0.2000, 0.9000',
        'chosen: optimizer.lr=0.009 norm_sync=frozen',
    ]
    assert settings == ('optimizer.lr=0.009', 'norm_sync=frozen')
    assert sorted(recipe.parent.iterdir()) == before
    open_job(str(recipe), [(setting, 'proposal') for setting in settings])


def fold_norms(weights: Path) -> None:
    """Statistics as of a network whose batch norms are part of its convolutions."""
    tensors = safetensors.torch.load_file(weights)
    for name in tensors:
        tensors[name] = {'running_mean': 0 * tensors[name], 'running_var': 0 * tensors[name] + (1 - 1e-5)}.get(
            name.rpartition('.')[2], tensors[name]
        )
    safetensors.torch.save_file(tensors, weights)


def test_where_no_short_run_is_better_than_the_start_the_one_that_harmed_least_is_proposed(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Norms that are folded have no statistics, so norm_sync is not tried."""
    fold_norms(recipe.with_name('weights.safetensors'))
    scores = iter([(0.8, 0.9), (0.6, 0.7), (0.7, 0.7), (0.75, 0.8), (0.75, 0.7)])
    monkeypatch.setattr(short_runs, '_evaluate', lambda trainer: next(scores))
    lines: list[str] = []
    assert choose_settings(recipe, written(recipe), rate=4, seconds=60, report=lines.append) == ('optimizer.lr=0.0003',)
    tried = [line.partition(': ')[0] for line in lines[1:-3]]
    assert tried == [
        *(f'optimizer.lr={rate}' for rate in ('0.003', '0.001', '0.0003')),
        'optimizer.lr=0.0003 train.freeze=[backbone]',
    ]
    assert lines[-3:-1] == [
        'chosen: optimizer.lr=0.0003',
        'no short run was better than the start: this one harmed least; the weights may fit your data already, and stay',
    ]


def test_where_every_short_run_diverges_the_recipe_keeps_its_settings(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(short_runs, '_evaluate', lambda trainer: (0.5, 0.5))
    monkeypatch.setattr(short_runs, '_run', lambda path, settings: DIVERGED)
    assert choose_settings(recipe, written(recipe), rate=4, seconds=60, report=lambda line: None) == ()


def test_a_rate_at_which_the_loss_diverges_is_not_kept(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The best of the others is taken, although it is not better than the start."""
    scores = {'0.003': DIVERGED, '0.001': (0.25, 0.5), '0.0003': DIVERGED}
    monkeypatch.setattr(short_runs, '_evaluate', lambda trainer: (0.5, 0.5))
    monkeypatch.setattr(
        short_runs, '_run', lambda path, settings: next(scores[one[13:]] for one in settings if one.startswith('optimizer.lr='))
    )
    settings = choose_settings(recipe, written(recipe), rate=4, seconds=60, report=lambda line: None)
    assert settings == ('optimizer.lr=0.001',)


def test_each_short_run_is_reported_when_it_ends(recipe: Path) -> None:
    """The user sees progress: a run is known before the next one begins."""

    def interrupt(line: str) -> None:
        if line.startswith('optimizer.lr=0.003'):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        choose_settings(recipe, written(recipe), rate=4, seconds=60, report=interrupt)


def test_without_time_for_short_runs_nothing_is_proposed(recipe: Path) -> None:
    assert choose_settings(recipe, written(recipe), rate=4, seconds=29, report=pytest.fail) is None


@pytest.mark.parametrize(('sizes', 'least', 'most'), [('[64]', 1, 1), ('[64, 128]', 1.5, 3.5)])
def test_the_time_of_a_step_follows_from_the_mean_size_of_images(tmp_path: Path, sizes: str, least: float, most: float) -> None:
    """In units of an image of 64 x 64 pixels, of which one of 128 x 128 has four; each size has the same chance."""
    settings = [
        'data.size=[64,96]',
        f'transforms=[{{name: batch_random_resize, sizes: {sizes}, interpolation: linear}}]',
        'train.workers=0',
        'device=cpu',
    ]
    job = open_job('ppyoloe_digits', [(setting, 'a test') for setting in settings])
    with process_group('cpu') as device:
        size = _mean_size(Trainer(job.recipe, job.task, folder=tmp_path, device=device)) / (3 * 64 * 64)
    assert least <= size <= most
    assert (size - 1) % (3 / SIZED) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize('setting', ['report.pictures=8', 'report.pictures=2', 'data.eval_scenes=4'])
def test_the_time_of_pictures_is_that_of_as_many_samples_as_an_evaluation_draws(
    setting: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that advances by 1 whenever it is read: once per sample."""
    settings = ['data.size=[64,64]', 'data.eval_scenes=40', 'train.workers=0', 'device=cpu', setting]
    job = open_job('ppyoloe_digits', [(setting, 'a test') for setting in settings])
    drawn, picture = list[object](), job.task.picture
    with process_group('cpu') as device:
        trainer = Trainer(job.recipe, job.task, folder=tmp_path, device=device)
        found = _time_pictures(trainer, tmp_path, itertools.count().__next__)
        monkeypatch.setattr(job.task, 'picture', lambda *given: (drawn.append(given), picture(*given))[1])
        trainer.evaluator.evaluate(0, trainer.report)
    assert found == len(drawn) > 0


def test_the_time_of_a_step_has_a_part_that_does_not_depend_on_the_size_of_its_input() -> None:
    """0.2 s and 0.1 s per 1000 numbers; the first step is not counted, and nor are the first two of equal sizes."""
    assert step_time([9.0, 0.6, 0.3, 0.4], [4000, 4000, 1000, 2000], 3000) == pytest.approx(0.5)
    assert step_time([9.0, 0.8, 0.5, 0.7], [1000] * 4, 1000) == pytest.approx(0.6)
    assert step_time([0.8, 0.5], [1000, 1000], 2000) == pytest.approx(1.3)


def test_the_gain_of_threads_is_measured_within_what_is_possible() -> None:
    """4 s on one thread. Two threads gain at most 1 / (0.1 + 0.9 / 2) = 1.82; steps on both that take 2.5 s gain 1.6."""
    moments = {(): 1 / 0.55, (0, 9): 1 / 0.55, (0, 9, 11.5, 14): 1.6, (0, 9, 10, 11): 1 / 0.55, (0, 9, 14, 19): 1}
    assert {shared: gain(4, shared, 2) for shared in moments} == pytest.approx(moments)


def test_held_out_samples_are_few_and_evenly_spread(recipe: Path) -> None:
    # Unicode knows further ends of line, which a text may hold.
    (recipe.parent / 'val.txt').write_text(''.join(f'{number}.png\t1\u20282\n' for number in range(100)), encoding='utf-8')
    folder = recipe.parent / 'trial'
    folder.mkdir()
    assert write_held_out(written(recipe), folder) == '["trial/val.txt"]'
    names = [line.split('.')[0] for line in (folder / 'val.txt').read_text(encoding='utf-8').rstrip('\n').split('\n')]
    assert names == [str(number) for number in range(0, 100, 3)] and len(names) <= HELD_OUT
