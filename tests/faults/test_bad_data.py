"""Data that cannot be used, in every family: what is wrong with a list is reported before anything starts; what is wrong with a
sample costs that sample, is counted, and is reported by name.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from phalanx.data.samples import Draw
from phalanx.engine.job import Job, open_job
from phalanx.engine.loader import BadSampleError, Loader
from running import run_here

NAMES = [f'{number}.png' for number in range(4)]  # each split has all of them
SMALL = (
    'train.steps=2',
    'train.global_batch_size=4',
    'train.workers=0',
    'evaluate.batch_size=1',
    'report.every=1',
    'ema=null',
    'device=cpu',
)
RECIPES = {
    'segmentation': (
        'pp_liteseg_digits',
        'data={name: file_list, root: data, classes: [a, b]}',
        f'loss={["cross_entropy"] * 3}',
    ),
    'detection': (
        'ppyoloe_digits',
        'data={name: yolo, root: data, classes: [a, b]}',
        'eval_transforms=[{name: resize, target_size: [64, 64]}]',
    ),
    'recognition': ('crnn_digits', 'data={name: label_files, root: data, train: [train.txt], eval: [val.txt]}'),
    'table': ('slanet_rendered', 'data={name: pubtabnet, root: data}', 'image_size=64', 'max_length=20'),
}


def picture(path: Path, height: int = 64, width: int = 64) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8))


def segmentation(root: Path) -> None:
    for name in NAMES:
        picture(root / 'images' / name)
        (root / 'labels').mkdir(exist_ok=True)
        cv2.imwrite(str(root / 'labels' / name), np.ones((64, 64), np.uint8))
    for split in ('train.txt', 'val.txt'):
        (root / split).write_text(''.join(f'images/{name} labels/{name}\n' for name in NAMES))


def detection(root: Path) -> None:
    for split in ('train', 'val'):
        (root / 'labels' / split).mkdir(parents=True)
        for name in NAMES:
            picture(root / 'images' / split / name)
            (root / 'labels' / split / name).with_suffix('.txt').write_text('1 0.5 0.5 0.5 0.5\n')


def recognition(root: Path) -> None:
    for split in ('train', 'val'):
        for name in NAMES:
            picture(root / split / name, height=32)
        (root / f'{split}.txt').write_text(''.join(f'{split}/{name}\t12\n' for name in NAMES))


def table(root: Path) -> None:
    lines = []
    for split in ('train', 'val'):
        for name in NAMES:
            picture(root / split / name)
            lines.append(annotation(name, split))
    (root / 'PubTabNet_2.0.0.jsonl').write_text('\n'.join(lines) + '\n')


def annotation(name: str, split: str, *, box: Any = (4, 4, 30, 20), columns: int = 1) -> str:
    tokens = ['<tr>', *(['<td>', '</td>'] * columns), '</tr>']
    cells = [{'tokens': ['x'], 'bbox': box}] * columns
    return json.dumps({'filename': name, 'split': split, 'html': {'structure': {'tokens': tokens}, 'cells': cells}})


MAKE: dict[str, Callable[[Path], None]] = {
    'segmentation': segmentation,
    'detection': detection,
    'recognition': recognition,
    'table': table,
}


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the data set of a family below `data` of an empty folder, which becomes the working directory."""

    def prepare(family: str) -> Path:
        monkeypatch.chdir(tmp_path)
        root = tmp_path / 'data'
        root.mkdir()
        MAKE[family](root)
        return root

    return prepare


def replace_line(path: Path, number: int, line: str) -> None:
    lines = path.read_text().splitlines()
    path.write_text('\n'.join([*lines[:number], line, *lines[number + 1 :]]) + '\n')


WRONG_LISTS = [
    ('segmentation', 'train.txt', '', 'data/train.txt: is empty'),
    ('segmentation', 'train.txt', 'images/0.png', "data/train.txt:1: expected an image and a label map with ' ' between them"),
    ('segmentation', 'val.txt', 'images/0.png labels/9.png', '1 file is missing in data: labels/9.png (data/val.txt:1)'),
    ('segmentation', 'val.txt', 'images/0.png ../../x.png', "data/val.txt:1: '../../x.png' lies outside the data set"),
    ('detection', 'labels/train/1.txt', '2 0.5 0.5 0.5 0.5', 'data/labels/train/1.txt:1: class 2 is not one of 0 to 1'),
    ('detection', 'labels/val/1.txt', '1 0.5 0.5', 'data/labels/val/1.txt:1: expected class x y width height'),
    (
        'detection',
        'labels/val/1.txt',
        '1 32 32 20 20',
        'data/labels/val/1.txt:1: expected class x y width height, the last four',
    ),
    ('detection', 'labels/train/1.txt', '1 nan 0.5 0.5 0.5', 'data/labels/train/1.txt:1: expected class x y width height'),
    ('recognition', 'train.txt', '\n', 'data/train.txt: is empty'),
    ('recognition', 'val.txt', 'val/0.png 12', "data/val.txt:1: expected an image and its text with '\\t' between them"),
    ('recognition', 'train.txt', 'train/7.png\t12', '1 file is missing in data: train/7.png (data/train.txt:1)'),
    ('table', 'PubTabNet_2.0.0.jsonl', '', "data/PubTabNet_2.0.0.jsonl: no line has the split 'train'; there are no lines"),
    ('table', 'PubTabNet_2.0.0.jsonl', '{"filename": "0.png"}', 'data/PubTabNet_2.0.0.jsonl:1: has no html.structure.tokens'),
    (
        'table',
        'PubTabNet_2.0.0.jsonl',
        annotation('0.png', 'train', columns=30) + '\n' + annotation('0.png', 'val'),
        'each of the 1 tables for training has more than max_length=20 tokens',
    ),
]


@pytest.mark.parametrize(('family', 'file', 'text', 'message'), WRONG_LISTS)
def test_a_list_that_is_wrong_is_reported_and_nothing_is_started(
    prepared: Callable[[str], Path], capsys: pytest.CaptureFixture[str], family: str, file: str, text: str, message: str
) -> None:
    root = prepared(family)
    (root / file).write_text(text)
    recipe, *sets = RECIPES[family]
    assert run_here('train', recipe, '--set', *SMALL, *sets) == 2
    assert message in capsys.readouterr().err
    assert not (root.parent / 'runs').exists()


@pytest.mark.parametrize(
    ('family', 'gone'),
    [
        ('segmentation', 'labels/1.png'),
        ('detection', 'images/train/1.png'),
        ('recognition', 'train/1.png'),
        ('table', 'train/1.png'),
    ],
)
def test_a_check_counts_missing_files_and_reads_the_others(
    prepared: Callable[[str], Path], capsys: pytest.CaptureFixture[str], family: str, gone: str
) -> None:
    root = prepared(family)
    recipe, *sets = RECIPES[family]
    if family == 'detection':  # of a folder the data set is what it holds; a list may name what is not there
        (root / 'list.txt').write_text(''.join(f'images/train/{name}\n' for name in NAMES))
        sets.append('data.train=list.txt')
    (root / gone).unlink()
    assert run_here('data', 'check', recipe, '--workers', '0', '--json', '--set', *sets) == 1
    found = json.loads(capsys.readouterr().out)
    both = family == 'segmentation'  # its two lists name the same files
    assert [problem['split'] for problem in found['problems']] == ['train', 'eval'][: 1 + both]
    assert {problem['problem'] for problem in found['problems']} == {f'data/{gone}: cannot be read: No such file or directory'}
    assert found['samples'] == {'train': {'all': 4, 'read': 3}, 'eval': {'all': 4, 'read': 4 - both}}


@pytest.mark.parametrize('family', RECIPES)
def test_a_check_reports_a_split_without_annotations_and_reads_the_other(
    prepared: Callable[[str], Path], capsys: pytest.CaptureFixture[str], family: str
) -> None:
    prepared(family)
    recipe, *sets = RECIPES[family]
    gone = 'data.train=[gone.txt]' if family == 'recognition' else 'data.train=gone.txt'
    assert run_here('data', 'check', recipe, '--workers', '0', '--json', '--set', *sets, gone) == 1
    found = json.loads(capsys.readouterr().out)
    assert [problem['problem'] for problem in found['problems']] == ['train: data/gone.txt: there is no such file']
    assert found['samples'] == {'eval': {'all': 4, 'read': 4}}


def test_a_data_set_without_any_objects_is_reported(
    prepared: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = prepared('detection')
    for file in (root / 'labels' / 'train').iterdir():
        file.write_text('')
    recipe, *sets = RECIPES['detection']
    assert run_here('train', recipe, '--set', *SMALL, *sets) == 2
    assert 'data/images/train: not one of 4 images has an object; check the annotations' in capsys.readouterr().err


def job_of(family: str) -> Job:
    recipe, *sets = RECIPES[family]
    return open_job(recipe, [(text, text) for text in (*SMALL, *sets)])


def loaded(family: str, *, bad_samples: int) -> tuple[list[Any], dict[int, str]]:
    """The batches of one pass over the training samples, one sample each, and what could not be used."""
    task = job_of(family).task
    dataset = task.dataset('train')
    device = torch.device('cpu')
    loader: Loader[Any, Any] = Loader(dataset, task.collate, workers=0, bad_samples=bad_samples, device=device, replace=True)
    return list(loader.batches([Draw(index, 0, 0, 0)] for index in range(len(dataset)))), loader.bad


def test_an_image_with_empty_labels_shows_nothing_and_one_without_labels_is_left_out(prepared: Callable[[str], Path]) -> None:
    root = prepared('detection')
    (root / 'labels' / 'train' / '1.txt').write_text('')
    (root / 'labels' / 'train' / '2.txt').unlink()
    (root / 'labels' / 'train' / '3.txt').write_text('0 1.2 0.5 0.6 0.5\n0 1.8 0.5 0.2 0.2\n')  # reaches out; outside
    batches, bad = loaded('detection', bad_samples=0)
    assert [len(batch.boxes) for batch in batches] == [1, 0, 1]
    assert batches[2].boxes.tolist() == [pytest.approx([57.6, 16, 64, 48])]
    assert bad == {}
    assert job_of('detection').task.dataset('train').source.notes == {
        'images without a file of labels (an empty one: no object), left out': 1,
        'images without objects': 1,
        'boxes that reach out of their image, cut off in training': 2,
    }


def no_image(path: Path) -> None:
    path.write_bytes(b'<html>404 Not Found</html>')


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def of_value_200(path: Path) -> None:
    cv2.imwrite(str(path), np.full((64, 64), 200, np.uint8))


def of_another_size(path: Path) -> None:
    cv2.imwrite(str(path), np.ones((32, 64), np.uint8))


def second_line(line: str) -> Callable[[Path], None]:
    return lambda path: replace_line(path, 1, line)


JSONL = 'PubTabNet_2.0.0.jsonl'
UNUSABLE: list[tuple[str, str, Callable[[Path], None], str]] = [
    ('segmentation', 'images/1.png', no_image, 'data/images/1.png: is not an image that can be decoded'),
    ('segmentation', 'images/1.png', cut_off, 'data/images/1.png: the image is cut off'),
    ('segmentation', 'labels/1.png', no_image, 'data/labels/1.png: is not a label map that can be decoded'),
    ('segmentation', 'labels/1.png', picture, 'data/labels/1.png: has colour mode RGB'),
    ('segmentation', 'labels/1.png', of_value_200, 'data/labels/1.png: has pixels of value 200; allowed are 0 to 1, 255'),
    ('segmentation', 'labels/1.png', of_another_size, 'data/labels/1.png: is 64 x 32 pixels, but its image is 64 x 64'),
    ('detection', 'images/train/1.png', no_image, 'data/images/train/1.png: is not an image that can be decoded'),
    ('detection', 'images/train/1.png', cut_off, 'data/images/train/1.png: the image is cut off'),
    ('recognition', 'train/1.png', no_image, 'data/train/1.png: is not an image that can be decoded'),
    ('recognition', 'train.txt', second_line('train/1.png\tabc'), "data/train/1.png: 'abc' has no character of the dictionary"),
    ('recognition', 'train.txt', second_line('train/1.png\t'), 'data/train/1.png: the text is empty'),
    ('recognition', 'train.txt', second_line('train/1.png\t' + 26 * '1'), 'has 26 characters, more than max_length (25)'),
    ('table', 'train/1.png', no_image, 'data/train/1.png: is not an image that can be decoded'),
    (
        'table',
        JSONL,
        second_line(annotation('1.png', 'train', box=[4, 4])),
        'data/train/1.png (PubTabNet_2.0.0.jsonl:2): its annotation cannot be used',
    ),
    (
        'table',
        JSONL,
        second_line(annotation('1.png', 'train', box=[4, 4, 9, float('nan')])),
        'data/train/1.png (PubTabNet_2.0.0.jsonl:2): its annotation',
    ),
    (
        'table',
        JSONL,
        second_line(annotation('1.png', 'train').replace('"<tr>"', '7')),
        'data/train/1.png (PubTabNet_2.0.0.jsonl:2): its annotation',
    ),
]


@pytest.mark.parametrize(('family', 'file', 'spoil', 'message'), UNUSABLE)
def test_a_sample_that_cannot_be_used_is_replaced_counted_and_named(
    prepared: Callable[[str], Path], family: str, file: str, spoil: Callable[[Path], None], message: str
) -> None:
    root = prepared(family)
    spoil(root / file)
    batches, bad = loaded(family, bad_samples=1)
    assert [len(batch) for batch in batches] == [1, 1, 1, 1]
    assert list(bad) == [1]
    assert message in bad[1]
    with pytest.raises(BadSampleError, match='1 sample cannot be used, the recipe allows 0') as raised:
        loaded(family, bad_samples=0)
    assert message in str(raised.value)


def test_characters_outside_the_dictionary_are_removed_and_counted(prepared: Callable[[str], Path]) -> None:
    root = prepared('recognition')
    replace_line(root / 'train.txt', 1, 'train/1.png\t4x2')
    batches, bad = loaded('recognition', bad_samples=0)
    assert [batch.truths for batch in batches] == [(('12', 0),), (('42', 1),), (('12', 0),), (('12', 0),)]
    assert bad == {}


def test_tables_longer_than_the_limit_are_left_out_of_training_alone(
    prepared: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    root = prepared('table')
    replace_line(root / JSONL, 1, annotation('1.png', 'train', columns=30))
    replace_line(root / JSONL, 5, annotation('1.png', 'val', columns=30))
    task = job_of('table').task
    assert [Path(task.dataset('train').name(index)).name for index in range(3)] == ['0.png', '2.png', '3.png']
    assert len(task.dataset('eval')) == 4


@pytest.mark.parametrize('family', RECIPES)
def test_a_run_skips_samples_that_it_cannot_read(
    prepared: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], family: str
) -> None:
    root = prepared(family)
    for path in root.rglob('0.png'):  # the first sample of both splits, which the report would show
        no_image(path)
    recipe, *sets = RECIPES[family]
    assert run_here('train', recipe, '--set', *SMALL, *sets, 'train.bad_samples=1', '--save_dir', 'run') == 0
    output = ' '.join(capsys.readouterr().out.split())
    assert 'skipped: data/' in output
    assert 'not evaluated: data/' in output
    summary = json.loads((tmp_path / 'run' / 'summary.json').read_text())
    assert len(summary['skipped_samples']) == 1
    assert '0.png: is not an image' in summary['skipped_samples'][0]

    assert run_here('train', recipe, '--set', *SMALL, *sets, '--save_dir', 'strict') == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert 'the recipe allows 0 (fix or remove them, or allow some with train.bad_samples)' in last
    assert '0.png: is not an image that can be decoded' in last


def test_an_image_that_a_mixture_repeats_is_one_bad_sample(
    prepared: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    no_image(prepared('recognition') / 'train' / '0.png')
    part = '{name: label_files, root: data, train: [train.txt], eval: [val.txt]}'
    mixture = f'data={{name: mixture, parts: [{part}], train_shares: [3]}}'
    words = ('train', 'crnn_digits', '--set', *SMALL, mixture, 'train.steps=6')  # two epochs
    assert run_here(*words, 'train.bad_samples=1', '--save_dir', 'run') == 0, capsys.readouterr().err
    output = ' '.join(capsys.readouterr().out.split())
    assert output.count('skipped: data/train/0.png') == 1
    assert len(json.loads((tmp_path / 'run' / 'summary.json').read_text())['skipped_samples']) == 1
