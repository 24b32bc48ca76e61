"""Sizes of recipes from before: they were (width, height), under other names, and are (height, width) now."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.config.read import ConfigError, plain
from phalanx.engine.runs import open_job


@pytest.mark.parametrize(
    ('written', 'place', 'expected'),
    [
        ('transforms: [{name: random_padding_crop, size: [64, 64]}]', ('transforms', 0, 'crop_size'), [64, 64]),
        ('eval_transforms: [{name: padding, size: [64, 64]}]', ('eval_transforms', 0, 'target_size'), [64, 64]),
        ('inference: {crop: [64, 64], stride: [32, 32]}', ('inference', 'window_stride'), [32, 32]),
    ],
)
def test_a_square_is_read_and_noted(tmp_path: Path, written: str, place: tuple[str | int, ...], expected: list[int]) -> None:
    recipe = tmp_path / 'mine.yml'
    recipe.write_text(f'_base_: unet_digits\n{written}\n')
    job = open_job(str(recipe))
    found = plain(job.resolved)
    for key in place:
        found = found[key]
    assert found == expected
    assert f'is called {place[-1]}' in job.notes[-1] or f'.{place[-1]} now' in job.notes[-1]


@pytest.mark.parametrize(
    ('base', 'written', 'cure'),
    [
        (
            'unet_digits',
            'transforms: [{name: random_padding_crop, size: [1024, 512]}]',
            'transforms.0.size: was [width, height]; write crop_size: [512, 1024], which is [height, width]',
        ),
        ('unet_digits', 'inference: {crop: [9, 8], stride: [8, 8]}', 'write window: [8, 9], which is [height, width]'),
        ('crnn_digits', 'size: [100, 32]', 'size: was [width, height]; write image_size: [32, 100], which is [height, width]'),
        ('crnn_digits', 'train_sizes: [[64, 32], [32, 32]]', 'write train_image_sizes: [[32, 64], [32, 32]], which'),
        ('db_pages', 'data: {name: drawn_pages, size: [96, 64]}', 'data.size: was [width, height]; write page_size: [64, 96]'),
    ],
)
def test_a_size_whose_order_would_differ_is_refused_with_the_cure(tmp_path: Path, base: str, written: str, cure: str) -> None:
    recipe = tmp_path / 'mine.yml'
    recipe.write_text(f'_base_: {base}\n{written}\n')
    with pytest.raises(ConfigError) as refused:
        open_job(str(recipe))
    assert [problem for problem in refused.value.problems if cure in problem]


def test_a_size_under_both_names_is_refused() -> None:
    """So is one on the command line: the recipe has the new name."""
    with pytest.raises(ConfigError, match=r'size: is now image_size, \[height, width\], which the recipe has too'):
        open_job('crnn_digits', [('size=[32, 32]', '--set')])
