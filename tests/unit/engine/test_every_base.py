"""Every shipped base trains with `data` alone: each with every data set kind of its family, on images that differ in size.

What is set beside `data` makes networks and pictures small and runs short.
"""

from __future__ import annotations

import json
from itertools import cycle
from pathlib import Path

import pytest
import torch

import drawn
from layouts import LAYOUTS, write_recipe
from phalanx.config.shipped import recipes_folder
from phalanx.engine.checks import check_parts
from phalanx.engine.job import open_job
from phalanx.engine.trainer import Trainer
from phalanx.families.catalog import CATALOGS
from running import records, run_here

PIECES = {  # what recipes may have beside a base, and a base that makes it whole
    'camvid': 'pp_liteseg',
    'cityscapes': 'pp_liteseg',
    'coco': 'ppyoloe',
    'iiit5k': 'crnn',
    'ppyoloe_gpu': 'ppyoloe',
}
# What published recipes share, incomplete without them; test_published_recipes opens those.
PARTS = (
    *('detr', 'dfine', 'dfine_n', 'dfine_s', 'dfine_m', 'dfine_l', 'dfine_x', 'deimv2', 'deimv2_lite', 'rtdetr', 'rtdetrv2'),
    'objects365',
)
SHORT = ('train.steps=1', 'train.global_batch_size=2', 'train.workers=0', 'report.pictures=1', 'device=cpu')
SMALL_PPYOLOE = ('model.size=n', 'transforms.4.sizes=[64]', 'eval_transforms.0.target_size=[64, 64]')
SMALL_DB = ('model.backbone={name: mobilenet_v3, scale: 0.35}', 'model.neck_channels=16', 'transforms.3.crop_size=[64, 64]')
BASES: dict[str, dict[str, tuple[str, ...]]] = {  # family -> base -> what makes its network and its images small
    'segmentation': {'pp_liteseg': ('model.width=0.125', 'transforms.1.crop_size=[64, 64]')},
    'detection': dict.fromkeys(
        (
            'ppyoloe',
            'ppyoloe_300e_coco',
            'ppyoloe_60e_objects365',
            'ppyoloe_bccd',
            'ppyoloe_playing_cards',
            'ppyoloe_plus_30e_voc',
            'ppyoloe_plus_80e_coco',
        ),
        SMALL_PPYOLOE,
    ),
    'recognition': {
        'crnn': ('model.backbone.size=small', 'model.hidden_size=8'),
        'pp_ocrv3_rec': ('model.sar_size=16', 'image_size=[48, 64]', 'concatenate.image_size=[48, 64]'),
        'pp_ocrv4_rec': (
            'model.nrtr_size=32',
            'image_size=[48, 64]',
            'train_image_sizes=[[32, 64], [48, 64]]',
            'concatenate.image_size=[48, 64]',
        ),
    },
    'table': {'slanet': ('model.backbone.scale=0.25', 'model.hidden=16', 'image_size=64', 'max_length=20')},
    'text_detection': {'db': SMALL_DB, 'pp_ocr_det': (*SMALL_DB, 'eval_transforms.0.side=64')},
}
PAIRS = [(family, base, data) for family, bases in BASES.items() for base in bases for data in LAYOUTS[family]]


def all_the_way() -> list[tuple[str, str, str]]:
    """A minimal selection of pairs with every base and every data set."""
    pairs = []
    for family, bases in BASES.items():
        longer, shorter = sorted((list(bases), list(LAYOUTS[family])), key=len, reverse=True)
        for one, other in zip(longer, cycle(shorter), strict=False):
            pairs.append((family, *((one, other) if one in bases else (other, one))))
    return pairs


def test_every_file_of_the_folder_is_a_base_a_piece_or_a_part() -> None:
    bases = [base for family in BASES.values() for base in family]
    assert sorted([*bases, *PIECES, *PARTS]) == sorted(path.stem for path in (recipes_folder() / '_base_').glob('*.yml'))


def test_every_data_set_of_every_family_is_here() -> None:
    assert {family: set(layouts) for family, layouts in LAYOUTS.items()} == {
        family: set(catalogs['data']) for family, catalogs in CATALOGS.items()
    }


def test_every_part_is_in_a_shipped_recipe() -> None:
    text = '\n'.join(path.read_text() for path in recipes_folder().rglob('*.yml'))
    assert [part for part in PARTS if f'{part}.yml' not in text] == []


@pytest.mark.parametrize(('piece', 'base'), PIECES.items())
def test_a_piece_makes_a_whole_recipe_with_a_base(piece: str, base: str, tmp_path: Path) -> None:
    data = 'data: {name: coco, root: data}\n' if piece == 'ppyoloe_gpu' else ''
    (tmp_path / 'mine.yml').write_text(f'_base_: [{base}, {piece}]\n{data}')
    assert open_job(str(tmp_path / 'mine.yml')).name == 'mine'


@pytest.mark.long
@pytest.mark.parametrize(('family', 'base', 'data'), [pair for pair in PAIRS if pair not in all_the_way()])
def test_a_base_trains_with_data_alone(
    family: str, base: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recipe is whole as it is; with a small network `data check` is content with it, and a step has a finite loss."""
    monkeypatch.chdir(tmp_path)
    write_recipe(family, base, data)
    open_job('mine.yml')
    sets = [(text, text) for text in (*SHORT, *BASES[family][base])]
    assert run_here('data', 'check', 'mine.yml', '--set', *(text for text, _ in sets)) == 0, capsys.readouterr().out
    job = open_job('mine.yml', sets)
    check_parts(job, 1)
    trainer = Trainer(job.recipe, job.task, folder=tmp_path / 'run', device=torch.device('cpu'))
    trainer.train_step(next(trainer.batches()))
    trainer.progress.step += 1
    trainer.read_numbers(keep=0)
    (losses,) = trainer.numbers.logged
    assert torch.tensor(losses).isfinite().all()


FIRST = {(family, base): data for family, base, data in reversed(all_the_way())}  # of each base, a data set


@pytest.mark.parametrize(
    ('family', 'base', 'data'),
    [pytest.param(*pair, marks=() if FIRST[pair[:2]] == pair[2] else pytest.mark.long) for pair in all_the_way()],
)
def test_a_base_goes_all_the_way_with_data_alone(
    family: str, base: str, data: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Check, training, evaluation and prediction for photographs of two sizes. (Exports: tests/processes.)"""
    monkeypatch.chdir(tmp_path)
    write_recipe(family, base, data)
    open_job('mine.yml')
    photos = [drawn.draw(Path(f'photos/{number}.jpg'), number, (100 + 20 * number, 70)) for number in range(2)]
    sets = ('--set', *SHORT, *BASES[family][base])
    assert run_here('data', 'check', 'mine.yml', *sets) == 0, capsys.readouterr().out
    assert run_here('train', 'mine.yml', *sets) == 0, capsys.readouterr().err
    assert len(records(Path('runs/mine'))) == 1
    capsys.readouterr()
    assert run_here('eval', 'runs/mine', '--json') == 0, capsys.readouterr().err
    assert json.loads(capsys.readouterr().out)['samples'] == 2
    assert run_here('predict', 'runs/mine', 'photos', '--out', 'results') == 0, capsys.readouterr().err
    assert {path.name[0] for path in Path('results').iterdir()} >= {photo.stem for photo in photos}
