"""Names of the classes of masks, masks in unusual places, and messages about what only looks like masks."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import yaml
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

import drawn
from phalanx.curation.prepare.class_files import read_class_file
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from running import run_here


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def new(*words: str) -> int:
    return run_here('new', 'mine', '--no_trial', *words)


def classes() -> list[str]:
    names: list[str] = yaml.safe_load(Path('mine_phalanx/mine.yml').read_text())['data']['classes']
    return names


@pytest.mark.parametrize(
    ('file', 'text'),
    [
        ('class_names.txt', '_background_\nbolt\nnut\n'),
        ('labels.txt', '__ignore__\n_background_\nbolt\nnut\n'),
        ('_classes.csv', 'Pixel Value, Class\n0, background\n1, bolt\n2, nut\n'),
        ('id2label.json', '{"0": "background", "2": "nut", "1": "bolt"}'),
        ('class_id_to_name.json', '{"0": "background", "1": "bolt", "2": "nut"}'),
        ('classes.txt', '0: background\n1: bolt\n2: nut\n'),
        ('classes.txt', '0 background\n1 bolt\n2 nut\n'),
    ],
)
def test_names_of_classes_are_found_in_the_files_of_exporters(file: str, text: str) -> None:
    drawn.masks_palette(Path('mine'))
    Path('mine/labels.txt').unlink()
    Path('mine', file).write_text(text)
    assert new() == 0
    assert classes() == ['background', 'bolt', 'nut']
    assert not Path('mine_phalanx/labels').exists()  # they are trained on as they are


@pytest.mark.parametrize('words', [('new', 'mine', '--no_trial'), ('data', 'prepare', 'masks', 'mine', '--out', 'out')])
def test_masks_that_stay_as_they_are_are_decoded_once(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    drawn.masks_palette(Path('mine'))
    decoded, load = Counter[Path](), PngImageFile.load_prepare

    def count(picture: PngImageFile) -> None:
        path = Path(picture.filename)
        decoded[path] += path.parent.name == 'SegmentationClass'
        load(picture)

    monkeypatch.setattr(PngImageFile, 'load_prepare', count)
    assert run_here(*words) == 0
    assert {*(+decoded).values()} == {1} and len(+decoded) == drawn.COUNT


def test_numbers_with_gaps_keep_their_names(capsys: pytest.CaptureFixture[str]) -> None:
    """Values 0, 7 and 40, of which 7 has no name."""
    drawn.masks_palette(Path('mine'))
    Path('mine/labels.txt').unlink()
    Path('mine/_classes.csv').write_text('Pixel Value, Class\n0, background\n40, nut\n')
    for path in Path('mine/SegmentationClass').iterdir():
        Image.fromarray(np.array([0, 7, 40], np.uint8)[np.array(Image.open(path))]).save(path)
    assert new() == 0
    assert classes() == ['background', 'class_7', 'nut']
    assert '_classes.csv does not name the values 7 of the masks' in capsys.readouterr().out


@pytest.mark.parametrize('kind', ['16 bits', 'three channels'])
def test_numbers_are_read_from_16_bits_and_from_equal_channels(kind: str) -> None:
    drawn.masks_palette(Path('mine'))
    numbers = np.array([0, 1000, 40000], np.uint16) if kind == '16 bits' else np.array([0, 1, 2], np.uint8)
    for path in Path('mine/SegmentationClass').iterdir():
        values = numbers[np.array(Image.open(path))]
        Image.fromarray(values if kind == '16 bits' else np.repeat(values[..., None], 3, 2)).save(path)
    assert new() == 0
    assert classes() == (['class_0', 'class_1000', 'class_40000'] if kind == '16 bits' else ['background', 'bolt', 'nut'])
    (path,) = Path('mine_phalanx/labels').glob('*part_3.png')
    np.testing.assert_array_equal(np.array(Image.open(path)), drawn.mask_of(3))


def test_amounts_are_names_not_numbers_of_classes(tmp_path: Path) -> None:
    file = tmp_path / 'classes.txt'
    file.write_text('1 euro\n2 euro\n')
    assert read_class_file(file)[:2] == (['1 euro', '2 euro'], {})


def test_masks_of_one_class_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.masks_binary(Path('mine'))
    for path in Path('mine/masks').iterdir():
        Image.fromarray(np.zeros((48, 64), np.uint8)).resize(Image.open(path).size).save(path)
    assert new() == 0
    assert 'all pixels of the training masks are of one class, so nothing is learned' in capsys.readouterr().out


def test_validation_masks_of_background_only_are_reported_last(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.masks_binary(Path('mine'))
    for split in ('train', 'val'):
        shutil.copytree('mine/images', f'split/{split}/images')
        shutil.copytree('mine/masks', f'split/{split}/masks')
    for path in sorted(Path('split/val').rglob('*.*')):
        if path.parent.name == 'masks':
            Image.fromarray(np.zeros((48, 64), np.uint8)).resize(Image.open(path).size).save(path)
        path.rename(path.with_name(f'v{path.name}'))
    assert run_here('new', 'split', '--no_trial') == 0
    findings, _ = capsys.readouterr().out.split('\n\n')
    assert findings.splitlines()[-1] == (
        '  warning: no image in val shows an object, so nothing can be measured; change --val or --seed'
    )


def test_swapped_folders_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.masks_binary(Path('mine'))
    Path('mine/masks').rename('mine/other')
    Path('mine/images').rename('mine/masks')
    Path('mine/other').rename('mine/images')
    assert new() == 2
    assert 'masks/ holds photographs, images/ the masks: swapped?' in capsys.readouterr().err


def test_two_folders_of_equal_names_are_offered_with_the_option_that_takes_them(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.masks_palette(Path('mine'))
    Path('mine/SegmentationClass').rename('mine/y')
    assert new() == 2
    assert "(2 colours) have equal names: if the latter are masks, add --masks 'y'" in capsys.readouterr().err
    assert new('--masks', 'y') == 0
    assert classes() == ['background', 'bolt', 'nut']


def test_an_ending_of_names_is_offered_with_the_option_that_takes_it(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.masks_palette(Path('mine'))
    for path in [*Path('mine/SegmentationClass').iterdir()]:
        (image,) = [other for other in Path('mine').rglob(f'{path.stem}.*') if other.parent != path.parent]
        shutil.move(path, image.with_name(f'{path.stem}_zz.png'))
    assert new() == 2
    assert "if the latter are masks, add --masks '*_zz.png'" in capsys.readouterr().err
    assert new('--masks', '*_zz.png') == 0
    assert classes() == ['background', 'bolt', 'nut']


def test_masks_that_are_nowhere_and_masks_of_another_format_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.masks_palette(Path('mine'))
    assert new('--masks', 'nowhere') == 2
    assert (
        '--masks nowhere: mine has no such folder with files in it; there are JPEGImages, SegmentationClass'
        in capsys.readouterr().err
    )
    assert new('--masks', 'y', '--format', 'coco') == 2
    assert '--masks: is for --format masks, not coco' in capsys.readouterr().err


@pytest.mark.parametrize('kind', ['labelIds', 'labelTrainIds'])
def test_masks_of_cityscapes_have_its_classes(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Road is 7 in the archive, and 0 after the official tool; 4 (static) and 255 are ignored."""
    numbers = np.full((48, 64), 255 if kind == 'labelTrainIds' else 4, np.uint8)
    numbers[:20] = 0 if kind == 'labelTrainIds' else 7
    for number in range(8):
        name = f'aachen_{number:06}_000019'
        drawn.draw(Path(f'mine/leftImg8bit/{"val" if number > 5 else "train"}/aachen/{name}_leftImg8bit.png'), 1)
        path = Path(f'mine/gtFine/{"val" if number > 5 else "train"}/aachen/{name}_gtFine_{kind}.png')
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(numbers).save(path)
    assert run_here('new', 'mine', '--no_trial') == 0
    assert 'named like Cityscapes' in capsys.readouterr().out
    data = open_job('mine_phalanx/mine.yml').task
    assert data.data().class_names[:2] == ('road', 'sidewalk')
    assert [len(data.dataset(split).source) for split in ('train', 'eval')] == [6, 2]
    labels = data.dataset('train').source.read(Draw(0))[1]
    assert (labels[:20] == 0).all() and (labels[20:] == 255).all()


def test_masks_of_ade20k_have_its_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """The first class, wall, is 1; 0 is ignored."""
    for number in range(8):
        folder, name = ('validation', 'val') if number > 5 else ('training', 'train')
        drawn.draw(Path(f'mine/images/{folder}/ADE_{name}_{number:08}.jpg'), 1)
        path = Path(f'mine/annotations/{folder}/ADE_{name}_{number:08}.png')
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.repeat(np.array([0, 1, 150], np.uint8), 16)[:, None].repeat(64, 1)).save(path)
    assert run_here('new', 'mine', '--no_trial') == 0
    data = open_job('mine_phalanx/mine.yml').task
    assert (data.data().class_names[0], data.data().class_names[-1]) == ('wall', 'flag')
    assert data.dataset('train').source.read(Draw(0))[1][::16, 0].tolist() == [255, 0, 149]


@pytest.mark.parametrize(
    ('image', 'mask', 'ending'),
    [('img_dir/{}/{}.jpg', 'ann_dir/{}/{}.png', 'mmsegmentation'), ('{}/{}.jpg', '{}_masks/{}_mask.gif', 'carvana')],
)
def test_layouts_of_mmsegmentation_and_carvana_are_found(image: str, mask: str, ending: str) -> None:
    """Carvana has 0 and 1 in a palette; `train_masks` lies beside `train`."""
    for number in range(8):
        split = 'val' if number > 5 else 'train'
        drawn.draw(Path('mine', image.format(split, f'{number}_01')), number)
        path = Path('mine', mask.format(split, f'{number}_01'))
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((drawn.mask_of(number) > 0).astype(np.uint8)).save(path)
    assert run_here('new', 'mine', '--no_trial') == 0
    data = open_job('mine_phalanx/mine.yml').task
    assert [len(data.dataset(split).source) for split in ('train', 'eval')] == [6, 2]
    assert data.data().class_names == ('background', 'object')
    _, labels = data.dataset('train').source.read(Draw(3))
    np.testing.assert_array_equal(labels, drawn.mask_of(3) > 0)


def test_masks_beside_their_images_are_offered_and_their_soft_edges_are_no_classes(capsys: pytest.CaptureFixture[str]) -> None:
    """`a.jpg` beside `a.png`, whose object fades out over 200 levels at its edge."""
    Path('mine').mkdir()
    fading = np.r_[np.zeros(400), np.linspace(1, 254, 200), np.full(400, 255)].astype(np.uint8)
    for number in range(8):
        photograph = np.random.default_rng(number).integers(0, 255, (20, 1000, 3), dtype=np.uint8)
        Image.fromarray(photograph).save(f'mine/{number}.jpg')
        mask = np.tile(np.where((np.arange(1000) + 6 * number) % 50 < 6, fading, np.where(fading > 127, 255, 0)), (20, 1))
        Image.fromarray(mask.astype(np.uint8)).save(f'mine/{number}.png')
    assert new() == 2
    assert "add --masks '*.png'" in capsys.readouterr().err
    assert new('--masks', '*.png') == 0
    found = capsys.readouterr().out
    assert '2 classes' in found and 'two values' in found
