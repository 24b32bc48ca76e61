"""Pages from label files, from ICDAR's folders, and drawn ones."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest

from phalanx.data.samples import Draw
from phalanx.families.text_detection.data import DATA
from phalanx.families.text_detection.data.icdar import Icdar2015
from phalanx.families.text_detection.data.label_files import LabelFiles

QUAD = [[10, 10], [60, 12], [60, 30], [10, 28]]


@pytest.fixture
def page(tmp_path: Path) -> Callable[[str], None]:
    def write(name: str) -> None:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(tmp_path / name), np.full((48, 80, 3), 200, np.uint8))

    return write


def line(path: str, *texts: tuple[str, list[list[float]]]) -> str:
    return path + '\t' + json.dumps([{'transcription': text, 'points': points} for text, points in texts], ensure_ascii=False)


def test_a_label_file_of_paddleocr(tmp_path: Path, page: Callable[[str], None]) -> None:
    page('images/a.png')
    page('images/b.png')
    curved = [*QUAD, [5, 20]]
    labels = [line('images/a.png', ('Zürich', QUAD), ('###', QUAD), ('*', curved)), line('images/b.png')]
    (tmp_path / 'train_label.txt').write_text('\n'.join(labels) + '\n', encoding='utf-8')
    source = LabelFiles(root=tmp_path).split('train')
    source.check_files()
    image, texts = source.read(Draw(0))
    assert image.shape == (48, 80, 3)
    assert (texts.strings, texts.ignored) == (('Zürich', '###', '*'), (False, True, True))
    assert [points.tolist() for points in texts.outlines] == [QUAD, QUAD, curved]
    assert len(source) == 2 and len(source.read(Draw(1))[1]) == 0


@pytest.mark.parametrize(
    ('text', 'said'),
    [
        ('a.png [{}]', 'train_label.txt:1: expected an image and its texts as JSON with a tab between them'),
        ('a.png\t[{]', 'train_label.txt:1: what follows the tab is not JSON'),
        ('a.png\t{}', 'train_label.txt:1: expected a list of texts'),
        ('../a.png\t[]', 'train_label.txt:1: .* lies outside the data set'),
        ('a.png\t[{"points": [[0, 0]]}]', 'train_label.txt:1: text 1: expected {"transcription"'),
        (line('a.png', ('x', [[0, 0], [1, 1]])), 'text 1: points: an outline has at least 3 points, got 2'),
        (line('a.png', ('x', [[0, 0], [1, 1], [2]])), r'points: an outline is a list of points \[x, y\]'),
        (line('a.png', ('x', [[0, 0], [1, 1], [2, float('nan')]])), r'points: an outline is a list of points \[x, y\]'),
    ],
)
def test_a_bad_line_is_reported_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / 'train_label.txt').write_text(text + '\n')
    with pytest.raises(ValueError, match=said):
        LabelFiles(root=tmp_path).split('train')


def test_all_bad_lines_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / 'train_label.txt').write_text('a.png\n' + line('b.png', ('x', QUAD)) + '\nc.png\t[1]\n')
    with pytest.raises(ValueError, match=r'(?s)train_label\.txt:1: .*train_label\.txt:3: text 1'):
        LabelFiles(root=tmp_path).split('train')


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    (tmp_path / 'train_label.txt').write_text(line('gone.png', ('x', QUAD)))
    with pytest.raises(FileNotFoundError, match=r'gone\.png'):
        LabelFiles(root=tmp_path).split('train').check_files()


def icdar(root: Path) -> Icdar2015:
    return Icdar2015(root=root, train_images='images', train_labels='labels')


def test_the_folders_of_icdar_2015(tmp_path: Path, page: Callable[[str], None]) -> None:
    page('images/img_1.png')
    page('images/img_2.png')
    (tmp_path / 'labels').mkdir()
    (tmp_path / 'labels/gt_img_1.txt').write_text(
        '\ufeff10,10,60,12,60,30,10,28,a, "b"\r\n1,1,9,1,9,9,1,9,###\r\n', encoding='utf-8'
    )
    (tmp_path / 'labels/gt_img_2.txt').write_text('')
    source = icdar(tmp_path).split('train')
    texts = source.read(Draw(0))[1]
    assert texts.strings == ('a, "b"', '###') and texts.ignored == (False, True)
    assert texts.outlines[0].tolist() == QUAD
    assert len(source.read(Draw(1))[1]) == 0


@pytest.mark.parametrize('text', ['10,10,60,12,60,30,10,text', '10,10,60,12,60,30,10,x,text', '10,10,60,12,60,30,10,inf,text'])
def test_a_bad_line_of_icdar_is_reported_with_its_place(tmp_path: Path, page: Callable[[str], None], text: str) -> None:
    page('images/img_1.png')
    (tmp_path / 'labels').mkdir()
    (tmp_path / 'labels/gt_img_1.txt').write_text('1,1,9,1,9,9,1,9,fine\n' + text)
    with pytest.raises(ValueError, match=r'gt_img_1\.txt:2: expected x1,y1,x2,y2,x3,y3,x4,y4,text'):
        icdar(tmp_path).split('train')


def test_an_image_without_its_text_file_is_reported(tmp_path: Path, page: Callable[[str], None]) -> None:
    page('images/img_1.png')
    (tmp_path / 'labels').mkdir()
    with pytest.raises(FileNotFoundError, match=r'gt_img_1\.txt'):
        icdar(tmp_path).split('train')


def test_drawn_pages_are_the_same_again_and_differ_from_each_other() -> None:
    data = DATA['drawn_pages'](page_size=(96, 128), train_pages=3, eval_pages=2)
    source = data.split('train')
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    for index in range(3):
        (image, texts), (same, same_texts) = source.read(Draw(index)), again.read(Draw(index))
        assert image.shape == (96, 128, 3)
        assert np.array_equal(image, same) and texts.strings == same_texts.strings
    assert not np.array_equal(source.read(Draw(0))[0], source.read(Draw(1))[0])
    assert not np.array_equal(source.read(Draw(0))[0], data.split('eval').read(Draw(0))[0])


def test_the_ink_of_a_drawn_text_is_in_its_outline() -> None:
    """Pages that differ in a text alone: what one text changes lies within its outline, widened by a pixel."""
    without = DATA['drawn_pages'](page_size=(160, 160), lines=(0, 0)).split('train')
    with_one = DATA['drawn_pages'](page_size=(160, 160), lines=(1, 1), ignored_share=0.0).split('train')
    seen = 0
    for index in range(12):
        image, texts = with_one.read(Draw(index))
        assert len(texts) <= 1 and not any(texts.ignored)
        for points in texts.outlines:
            inside = np.zeros(image.shape[:2], np.uint8)
            cv2.fillPoly(inside, [points.round().astype(np.int32)], 1)
            spread = image.astype(float).std(axis=2).max()
            assert spread >= 0 and (points >= 0).all() and (points <= 160).all()
            around = image[cv2.dilate(inside, np.ones((9, 9), np.uint8)) - inside > 0].astype(float)
            assert abs(image[inside > 0].astype(float).mean() - around.mean()) > 5
            seen += 1
    assert seen >= 6
    assert len(without.read(Draw(0))[1]) == 0
