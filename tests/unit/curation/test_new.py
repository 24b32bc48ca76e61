"""`phalanx new DIR`: a small folder in each format becomes a recipe that binds and makes a training step on it.

Images differ in size. Numbers of samples are those that the folder was drawn with.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import save_file

import drawn
from phalanx.config.read import to_plain
from phalanx.curation.new import create, published
from phalanx.curation.new.published import PACKAGED, find_detector
from phalanx.curation.prepare.samples import Family
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.system.errors import CheckpointError
from phalanx.weights.detectors import namings_of_detectors
from running import run_here

DRAWN: dict[Callable[[Path], None], tuple[str, int]] = {  # the family, and the training samples of those drawn
    **dict.fromkeys(
        (drawn.voc, drawn.coco, drawn.csv_boxes, drawn.csv_without_header, drawn.cvat, drawn.label_studio), ('detection', 8)
    ),
    drawn.yolo: ('detection', 9),
    drawn.roboflow_zip: ('detection', 16),
    **dict.fromkeys(
        (
            drawn.labelme,
            drawn.supervisely,
            drawn.yolo_polygons,
            drawn.masks_binary,
            drawn.masks_palette,
            drawn.masks_coloured,
            drawn.pairs,
        ),
        ('segmentation', 8),
    ),
    **dict.fromkeys(
        (drawn.label_file, drawn.csv_texts, drawn.text_files, drawn.class_folders, drawn.pages_paddle, drawn.pages_icdar),
        ('recognition', 8),
    ),
    drawn.ppocrlabel: ('text_detection', 8),
    **dict.fromkeys((drawn.html_files, drawn.csv_html, drawn.pubtabnet), ('table', 8)),
}


# Of each family one recipe is tried for some steps; those of other formats differ in their data alone.
STEPPED = (drawn.voc, drawn.masks_palette, drawn.label_file, drawn.ppocrlabel, drawn.html_files)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob('*')) if path.is_file()}


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardly any trial, and no published weights of packages that happen to be installed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(create, 'TRIED', 0)
    monkeypatch.setattr(create, 'TIMED', 0)
    monkeypatch.setattr(published, 'find_in_package', lambda package, file: None)


@pytest.mark.parametrize('drawing', DRAWN, ids=lambda drawing: drawing.__name__)
def test_a_folder_becomes_a_recipe_that_trains(drawing: Callable[[Path], None], capsys: pytest.CaptureFixture[str]) -> None:
    """The command itself makes steps. Of 10 samples 8 are for training, and nothing of the folder has changed."""
    drawing(Path('mine'))
    before = contents(Path('mine'))
    family, count = DRAWN[drawing]
    named = ('--family', family) if drawing in (drawn.class_folders, drawn.ppocrlabel) else ()
    untried = () if drawing in STEPPED else ('--no_trial',)
    assert run_here('new', 'mine', *named, *untried) == 0, capsys.readouterr().out
    recipe = yaml.safe_load(Path('mine_phalanx/mine.yml').read_text())
    assert recipe['task'] == family
    assert contents(Path('mine')) == before
    said = capsys.readouterr().out
    for line in ('phalanx data check', 'phalanx train', 'phalanx predict runs/mine'):
        assert f'  {line} ' in said
    job = open_job('mine_phalanx/mine.yml')
    train = job.task.dataset('train')
    assert len(train) == count
    assert len(job.task.collate([train[Draw(index)] for index in range(count)])) == count
    assert ('begin with published ones: --weights' in said) == (family in PACKAGED)
    if family == 'detection':
        assert recipe['data']['classes'] == ['bolt', 'nut']
    if family == 'segmentation':
        assert recipe['data']['classes'] == (
            ['background', 'object'] if drawing is drawn.masks_binary else ['background', *drawn.CLASSES]
        )


def test_the_name_of_a_recipe_is_refused_as_the_folder_to_write_to(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.csv_boxes(Path('mine'))
    assert run_here('new', 'mine', '--out', 'cells.yml') == 2
    assert capsys.readouterr().err == '--out cells.yml: is the folder to write to; give --out cells\n'
    assert not Path('cells.yml').exists()


@pytest.mark.parametrize('family', PACKAGED)
def test_installed_published_weights_are_fine_tuned(family: Family, capsys: pytest.CaptureFixture[str]) -> None:
    drawing = {'recognition': drawn.csv_texts, 'text_detection': drawn.ppocrlabel, 'table': drawn.html_files}[family]
    drawing(Path('mine'))
    weights, start = Path('weights.safetensors'), PACKAGED[family]
    words = ('new', 'mine', '--family', family, '--weights', str(weights))
    assert run_here(*words) == 2
    assert '--weights weights.safetensors: there is no such file' in capsys.readouterr().err
    tensors = open_job(start.base).task.model().state_dict()
    save_file({'something': torch.zeros(3)}, weights)
    assert run_here(*words, '--no_trial') == 1
    assert 'its weights do not fit: weights.safetensors' in capsys.readouterr().err.replace(f'{Path.cwd()}/', '')
    shutil.rmtree('mine_phalanx')
    # A file that lacks the last layer, as one of another variant does: the rest is taken, and the layer named.
    *known, last = tensors
    save_file({name: tensors[name].contiguous() for name in known}, weights)
    assert run_here(*words, '--no_trial') == 0
    printed = capsys.readouterr().out
    assert f'starts from {weights.absolute()}, read as the weights of {start.about}' in printed
    assert 'warning: ' in printed and last in printed
    resolved, base = to_plain(open_job('mine_phalanx/mine.yml').resolved), to_plain(open_job(start.base).resolved)
    assert resolved['train']['init_from'] == str(weights.absolute())
    assert resolved['model'] == base['model']
    assert resolved['data']['root'] != base['data'].get('root')
    if family == 'recognition':
        assert resolved['characters']['dictionary'] == str(Path('mine_phalanx/characters.txt').absolute())
    assert len(open_job('mine_phalanx/mine.yml').task.dataset('train')) == 8


def save_as_published(base: str, file: Path) -> None:
    """Save zeros in the layout of the authors of the detector `base`, with the average of the weights in it."""
    with torch.device('meta'):
        state = open_job(base).task.model().state_dict()
    slots = namings_of_detectors(state)[0].slots
    zeros = {name: torch.zeros((), dtype=slot.tensor.dtype).expand(slot.tensor.shape) for name, slot in slots.items()}
    torch.save({'ema': {'module': zeros}}, file)


def test_a_published_detector_is_fine_tuned_with_its_own_network_and_loss(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.csv_boxes(Path('mine'))
    base, weights = 'deimv2_hgnetv2_atto_coco', Path('deimv2_atto.pth')
    save_as_published(base, weights)
    # The command makes steps, for --minutes, and so trains the recipe.
    assert run_here('new', 'mine', '--weights', str(weights), '--no_trial', '--minutes', '0.01') == 0
    printed = capsys.readouterr().out
    assert f'starts from {weights.absolute()}, read as the weights of {base}' in printed
    assert re.search(r'warning: .* with the \d+ samples that --minutes 0.01 allows; about 1,600 are usual', printed)
    assert 'are of another shape and stay as initialised: decoder.enc_score_head.weight is [80, ' in printed
    recipe, published = yaml.safe_load(Path('mine_phalanx/mine.yml').read_text()), to_plain(open_job(base).resolved)
    assert recipe['model'] == {'name': 'deimv2', 'size': 'atto'}
    assert recipe['loss'] == {'name': 'rtdetr', 'classes': 'matchability', 'gamma': 1.5}
    assert recipe['parameters']['rules'][0]['lr_factor'] == published['parameters']['rules'][0]['lr_factor']
    assert recipe['train']['init_from'] == str(weights.absolute())
    assert recipe['data']['classes'] == ['bolt', 'nut']


def test_the_name_of_a_file_decides_between_networks_with_the_same_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, 'NETWORK', re.compile('rtdetr_r18vd_6x_coco|rtdetrv2_r18vd_120e_coco'))
    for name in ('best.pth', 'rtdetrv2_best.pth'):
        save_as_published('rtdetrv2_r18vd_120e_coco', Path(name))
    assert find_detector(Path('rtdetrv2_best.pth')) == 'rtdetrv2_r18vd_120e_coco'
    with pytest.raises(CheckpointError, match='of rtdetr_r18vd_6x_coco or rtdetrv2_r18vd_120e_coco; begin the name'):
        find_detector(Path('best.pth'))


def test_published_weights_for_another_task_are_refused(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn.masks_palette(Path('masks'))
    drawn.csv_boxes(Path('boxes'))
    save_file({'something': torch.zeros(3)}, 'weights.safetensors')
    assert run_here('new', 'masks', '--weights', 'weights.safetensors') == 2
    assert '--weights: is for detection, recognition, text_detection, table, and this is segm' in capsys.readouterr().err
    monkeypatch.setattr(published, 'NETWORK', re.compile('deimv2_hgnetv2_atto_coco'))
    assert run_here('new', 'boxes', '--weights', 'weights.safetensors') == 2
    assert 'it is of none of deimv2_hgnetv2_atto_coco; train.init_from takes it for' in capsys.readouterr().err
    assert not Path('boxes_phalanx').exists()


@pytest.mark.parametrize(
    'drawing', [drawn.csv_boxes, drawn.masks_palette, drawn.csv_texts, drawn.html_files], ids=lambda d: d.__name__
)
def test_three_images_are_enough_to_begin_with(drawing: Callable[[Path], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drawn, 'COUNT', 3)
    drawing(Path('mine'))
    assert run_here('new', 'mine') == 0


@pytest.mark.parametrize('has_amx', [True, False])
def test_the_processor_decides_the_precision_whatever_else_it_does(monkeypatch: pytest.MonkeyPatch, has_amx: bool) -> None:
    monkeypatch.setattr('torch.cpu._is_amx_tile_supported', lambda: has_amx)
    drawn.csv_boxes(Path('mine'))
    assert run_here('new', 'mine', '--no_trial') == 0
    assert open_job('mine_phalanx/mine.yml').recipe.precision.dtype == ('bf16' if has_amx else 'fp32')
