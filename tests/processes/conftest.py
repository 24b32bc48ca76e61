"""A finished run of each family, the smallest there is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from running import made_once, run_here

COMMON = (
    'ema=null',
    'train.steps=3',
    'train.global_batch_size=4',
    'train.workers=0',
    'report.every=1',
    'report.pictures=2',
    'evaluate.every=3',
    'device=cpu',
)
RECIPES = {
    'segmentation': ('pp_liteseg_digits', 'data.size=[64,96]', 'data.train_scenes=8', 'data.eval_scenes=5'),
    'detection': (  # as drawn, it gives all boxes the same score: it has to learn a little
        *('ppyoloe_digits', 'data.size=[64,96]', 'data.train_scenes=8', 'data.eval_scenes=5'),
        'schedule={name: constant}',
    ),
    'recognition': (  # squeeze-and-excitation takes a quarter of an export
        *('crnn_digits', 'data.train_lines=8', 'data.eval_lines=5', 'train.channels_last=false'),
        'model.backbone.squeeze=false',
    ),
    'table': (
        *('slanet_rendered', 'data.train_tables=24', 'data.eval_tables=5', 'image_size=64', 'max_length=40'),
        *('model.backbone.scale=0.5', 'model.channels=24', 'model.hidden=32'),
    ),
    'text_detection': (  # as drawn, its map is about 0.42 everywhere: with this threshold noise has texts
        *('db_pages', 'data.page_size=[96,64]', 'data.train_pages=8', 'data.eval_pages=5', 'data.lines=[1,2]'),
        'post_processing={threshold: 0.41, box_threshold: 0.1}',
    ),
}


class Runs(dict[str, Path]):
    """The run folder of each family, after three steps and an evaluation: made when it is asked for."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self.factory = factory

    def __missing__(self, family: str) -> Path:
        recipe, *settings = RECIPES[family]

        def train(root: Path) -> None:
            assert run_here('train', recipe, '--save_dir', str(root / family), '--set', *COMMON, *settings) == 0

        return self.setdefault(family, made_once(self.factory, f'run_of_{family}', train) / family)


@pytest.fixture(scope='session')
def family_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return Runs(tmp_path_factory)


@pytest.fixture(scope='session')
def exported(family_runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The exported model of a family; its guide lies beside it."""

    def file(family: str) -> Path:
        def export(folder: Path) -> None:
            assert run_here('export', str(family_runs[family]), '--out', str(folder / f'{family}.onnx')) == 0

        return made_once(tmp_path_factory, f'exported_{family}', export) / f'{family}.onnx'

    return file
