"""`phalanx new` for detection: `sampling` for rare classes, and windows for large images with small objects."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

import drawn
from phalanx.curation.new import plan
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from running import run_here

SMALL, LARGE = (64, 48), (700, 500)  # (width, height) of images


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node whose detectors see at most 320 x 320 pixels."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plan, 'describe_node', lambda: plan.Node('cpu', 2))


@pytest.fixture
def propose(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[dict[str, Any], str]]:
    def run(counts: Sequence[int], size: tuple[int, int], box: tuple[int, int]) -> tuple[dict[str, Any], str]:
        """Recipe and output for `counts` images of each class in training, with a box of `box` (width, height) pixels each."""
        training = [number for number, count in enumerate(counts) for _ in range(count)]
        for split, classes in {'train': training, 'val': range(len(counts))}.items():
            images = [drawn.draw(Path(f'mine/{split}/{n}.png'), n, size) for n in range(len(classes))]
            drawn.write(
                Path(f'mine/{split}.json'),
                {
                    'images': [
                        {'id': n, 'file_name': f'{split}/{path.name}', 'width': size[0], 'height': size[1]}
                        for n, path in enumerate(images)
                    ],
                    'annotations': [{'image_id': n, 'category_id': one, 'bbox': [9, 9, *box]} for n, one in enumerate(classes)],
                    'categories': [{'id': number, 'name': f'class{number}'} for number in range(len(counts))],
                },
            )
        assert run_here('new', 'mine', '--no_trial') == 0
        text = Path('mine_phalanx/mine.yml').read_text()
        return yaml.safe_load(text), text + capsys.readouterr().out

    return run


def test_classes_in_few_images_are_sampled_as_often_as_the_others(propose: Callable[..., Any]) -> None:
    recipe, said = propose([23, 2], SMALL, (20, 20))
    assert recipe['sampling'] == {'name': 'class_balanced'}
    assert said.count("'class1' is in 2 training images, 'class0' in 23") == 2  # in the recipe and in the output
    assert 'inference' not in recipe
    job = open_job('mine_phalanx/mine.yml')
    assert len(job.task.dataset('train')) == 25


@pytest.mark.parametrize(
    'counts', [[20, 2], [25], [12] + [1] * 10, [104, 1]], ids=['a tenth', 'one class', 'many classes', '52 repeats']
)
def test_other_classes_are_taken_as_they_come(propose: Callable[..., Any], counts: list[int]) -> None:
    assert 'sampling' not in propose(counts, SMALL, (20, 20))[0]


def test_small_objects_of_large_images_are_seen_in_windows(propose: Callable[..., Any]) -> None:
    """8 of 700 pixels are 3.7 of 320; windows overlap by 30 and 8 pixels, rounded up to a multiple of 32."""
    recipe, said = propose([8], LARGE, (30, 8))
    assert recipe['transforms'][0] == {'name': 'random_window', 'target_size': [320, 320]}
    assert recipe['eval_transforms'] == []
    assert recipe['inference'] == {'window': [320, 320], 'window_stride': [256, 256]}
    assert recipe['evaluate']['batch_size'] == 1  # whole images differ in size
    assert said.count('resized to 320 x 320, the median object would be 3.7 pixels across') == 2
    job = open_job('mine_phalanx/mine.yml')
    train, val = (job.task.collate([job.task.dataset(split)[Draw(0)]]).images for split in ('train', 'eval'))
    assert (train.shape[2:], val.shape[2:]) == ((320, 320), (512, 704))  # the whole image, padded to a multiple of 32


@pytest.mark.parametrize(
    ('size', 'box'),
    [((630, 500), (30, 8)), (LARGE, (36, 36)), (LARGE, (200, 8))],
    ids=['images as small as a window', 'objects of 16.5 pixels', 'objects too long for the overlap'],
)
def test_other_images_are_resized(propose: Callable[..., Any], size: tuple[int, int], box: tuple[int, int]) -> None:
    recipe, _ = propose([8], size, box)
    assert 'inference' not in recipe
    assert recipe['eval_transforms'][0]['name'] == 'resize'


@pytest.mark.parametrize(
    ('epochs', 'stops', 'sizes'), [(100, [('random_expand', 80), ('random_crop', 80)], [64, 96, 128]), (20, [], [64, 96])]
)
def test_objects_hardly_change_their_size_in_the_last_epochs(
    propose: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, epochs: int, stops: list[tuple[str, int]], sizes: list[int]
) -> None:
    monkeypatch.setattr(plan, 'EPOCHS', (5, epochs))
    recipe, _ = propose([9], SMALL, (20, 20))
    assert recipe['train']['epochs'] == epochs
    changing = [each for each in recipe['transforms'] if 'stop_epoch' in each]
    assert [(each['name'], each['stop_epoch']) for each in changing] == stops
    assert 'random_crop' not in recipe['transforms']  # without a limit
    assert recipe['transforms'][-1]['sizes'] == sizes
