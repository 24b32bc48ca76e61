"""Short runs that choose settings of fine-tuning."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
from PIL import Image

from phalanx.curation.new.short_runs import HELD_OUT, choose_settings, write_held_out
from phalanx.curation.prepare.targets import Written
from phalanx.engine.job import open_job

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


def test_the_best_of_the_short_runs_is_proposed_and_all_are_reported(recipe: Path) -> None:
    """6 steps of 2 samples each: a quarter of a minute at 4 samples per second, for 5 runs."""
    before = sorted(recipe.parent.iterdir())
    lines: list[str] = []
    settings = choose_settings(recipe, written(recipe), rate=4, seconds=60, report=lines.append)
    assert settings is not None
    head, *runs = [line for line in lines if not line.startswith(('chosen', 'no short run'))]
    assert head.startswith('accuracy, edit_similarity on held-out samples: ') and head.endswith('after 6 steps with')
    scores = {settings: tuple(map(float, score.split(', '))) for settings, _, score in (run.partition(': ') for run in runs)}
    assert next(iter(scores)) == 'optimizer.lr=0.003' and len(scores) >= 4
    assert scores[' '.join(settings)] == max(scores.values())
    assert sorted(recipe.parent.iterdir()) == before
    open_job(str(recipe), [(setting, 'proposal') for setting in settings])


def test_each_short_run_is_reported_when_it_ends(recipe: Path) -> None:
    """The user sees progress: a run is known before the next one begins."""

    def interrupt(line: str) -> None:
        if line.startswith('optimizer.lr=0.003'):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        choose_settings(recipe, written(recipe), rate=4, seconds=60, report=interrupt)


def test_without_time_for_short_runs_nothing_is_proposed(recipe: Path) -> None:
    assert choose_settings(recipe, written(recipe), rate=4, seconds=29, report=pytest.fail) is None


def test_held_out_samples_are_few_and_evenly_spread(recipe: Path) -> None:
    (recipe.parent / 'val.txt').write_text(''.join(f'{number}.png\t1\n' for number in range(100)))
    folder = recipe.parent / 'trial'
    folder.mkdir()
    assert write_held_out(written(recipe), folder) == '["trial/val.txt"]'
    names = [line.split('.')[0] for line in (folder / 'val.txt').read_text().splitlines()]
    assert names == [str(number) for number in range(0, 100, 3)] and len(names) <= HELD_OUT
