"""Pages from label files, from the folders of ICDAR, TotalText and COCO-Text, and drawn ones."""

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
from phalanx.families.text_detection.data.coco_text import CocoText
from phalanx.families.text_detection.data.icdar import Icdar2015
from phalanx.families.text_detection.data.label_files import LabelFiles
from phalanx.families.text_detection.data.source import Texts
from phalanx.families.text_detection.data.total_text import TotalText

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
    ('text', 'message'),
    [
        ('a.png [{}]', 'train_label.txt:1: expected an image and its texts as JSON with a tab between them'),
        ('a.png\t[{]', 'train_label.txt:1: is not JSON'),
        ('a.png\t{}', 'train_label.txt:1: expected a list of texts'),
        ('../a.png\t[]', 'train_label.txt:1: .* lies outside the data set'),
        ('a.png\t[{"points": [[0, 0]]}]', 'train_label.txt:1: text 1: expected {"transcription"'),
        (line('a.png', ('x', [[0, 0], [1, 1]])), 'text 1: points: an outline has at least 3 points, got 2'),
        (line('a.png', ('x', [[0, 0], [1, 1], [2]])), r'points: an outline is a list of points \[x, y\]'),
        (line('a.png', ('x', [[0, 0], [1, 1], [2, float('nan')]])), r'points: an outline is a list of points \[x, y\]'),
    ],
)
def test_a_malformed_line_is_reported_with_file_and_number(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / 'train_label.txt').write_text(text + '\n')
    with pytest.raises(ValueError, match=message):
        LabelFiles(root=tmp_path).split('train')


def test_all_malformed_lines_are_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / 'train_label.txt').write_text('a.png\n' + line('b.png', ('x', QUAD)) + '\nc.png\t[1]\n')
    with pytest.raises(ValueError, match=r'(?s)train_label\.txt:1: .*train_label\.txt:3: text 1'):
        LabelFiles(root=tmp_path).split('train')


def test_a_page_whose_texts_are_on_several_lines_is_noted(tmp_path: Path) -> None:
    one, other = line('a.png', ('x', QUAD)), line('a.png', ('y', QUAD))
    (tmp_path / 'train_label.txt').write_text(f'{one}\n{line("b.png", ("x", QUAD))}\n{other}\n{one}\n')
    ((note, count),) = LabelFiles(root=tmp_path).split('train').notes.items()
    assert count == 1 and note.startswith('pages have several lines with different texts') and '(such as a.png)' in note


def test_a_missing_image_is_named(tmp_path: Path) -> None:
    (tmp_path / 'train_label.txt').write_text('\n' + line('gone.png', ('x', QUAD)))
    with pytest.raises(FileNotFoundError, match=r'gone\.png \(.*train_label\.txt:2\)'):
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
def test_a_malformed_line_of_icdar_is_reported_with_file_and_number(
    tmp_path: Path, page: Callable[[str], None], text: str
) -> None:
    page('images/img_1.png')
    (tmp_path / 'labels').mkdir()
    (tmp_path / 'labels/gt_img_1.txt').write_text('1,1,9,1,9,9,1,9,fine\n' + text)
    with pytest.raises(ValueError, match=r'gt_img_1\.txt:2: expected x1,y1,x2,y2,x3,y3,x4,y4,text'):
        icdar(tmp_path).split('train')


def read_icdar(tmp_path: Path, page: Callable[[str], None], *texts: str) -> Texts:
    """Texts of a page whose label file has all of `texts` behind the corners of QUAD."""
    page('images/img_1.png')
    (tmp_path / 'labels').mkdir()
    lines = ''.join(f'10,10,60,12,60,30,10,28,{text}\n' for text in texts)
    (tmp_path / 'labels/gt_img_1.txt').write_text(lines, encoding='utf-8')
    return icdar(tmp_path).split('train').read(Draw(0))[1]


def test_the_script_in_files_of_mlt_is_no_part_of_the_text(tmp_path: Path, page: Callable[[str], None]) -> None:
    texts = read_icdar(tmp_path, page, 'Latin,Rue, 3', 'None,###', 'Arabic,باب')
    assert texts.strings == ('Rue, 3', '###', 'باب') and texts.ignored == (False, True, False)


def test_a_text_may_begin_with_the_name_of_a_script(tmp_path: Path, page: Callable[[str], None]) -> None:
    assert read_icdar(tmp_path, page, 'Chinese,Food', 'open').strings == ('Chinese,Food', 'open')


def test_difficult_texts_of_rctw_are_ignored(tmp_path: Path, page: Callable[[str], None]) -> None:
    texts = read_icdar(tmp_path, page, '0,"书, 店"', '1,"x"')
    assert texts.strings == ('书, 店', '###') and texts.ignored == (False, True)


def test_an_outline_of_more_than_four_corners_is_not_taken_for_a_text(tmp_path: Path, page: Callable[[str], None]) -> None:
    with pytest.raises(ValueError, match=r'gt_img_1\.txt:1: has more than four corners; write outlines as PaddleOCR does'):
        read_icdar(tmp_path, page, '50,60,70,80,90,99,####text')


def test_an_image_without_its_text_file_is_reported(tmp_path: Path, page: Callable[[str], None]) -> None:
    page('images/img_1.png')
    (tmp_path / 'labels').mkdir()
    with pytest.raises(FileNotFoundError, match=r'gt_img_1\.txt'):
        icdar(tmp_path).split('train')


CURVED = [[153, 347], [161, 323], [179, 305], [195, 315], [184, 331], [177, 357]]
WRAPPED = """x: [[153 161 179
  195 184 177]], y: [[347 323 305 315 331 357]], ornt: [u'c'], transcriptions: [u'the']
x: [[ 10  60  60  10]], y: [[10 12 30 28]], ornt: [u'm'], transcriptions: [u"it's"]
x: [[10 60 60 10]], y: [[10 12 30 28]], ornt: [u'#'], transcriptions: [u'#']
"""


def total_text(root: Path) -> TotalText:
    return TotalText(root=root, train_images='images', train_labels='labels')


def test_words_of_total_text_as_text_may_be_wrapped(tmp_path: Path, page: Callable[[str], None]) -> None:
    page('images/img11.png')
    page('images/img12.png')
    (tmp_path / 'labels').mkdir()
    (tmp_path / 'labels/poly_gt_img11.txt').write_text(WRAPPED)
    (tmp_path / 'labels/poly_gt_img12.txt').write_text('')
    source = total_text(tmp_path).split('train')
    texts = source.read(Draw(0))[1]
    assert [points.tolist() for points in texts.outlines] == [CURVED, QUAD, QUAD]
    assert texts.strings[:2] == ('the', "it's") and texts.ignored == (False, False, True)
    assert len(source.read(Draw(1))[1]) == 0


def test_words_of_total_text_as_matlab_are_the_same(tmp_path: Path, page: Callable[[str], None]) -> None:
    """The file is as published: a cell array with a row for each word, numbers in the smallest integer types that hold them."""
    io = pytest.importorskip('scipy.io')
    page('images/img11.png')
    (tmp_path / 'labels').mkdir()
    rows = [(CURVED, ['the'], 'c'), (QUAD, [], 'm'), (QUAD, ['#'], '#')]
    cells = np.empty((3, 6), object)
    for row, (points, word, orientation) in zip(cells, rows, strict=True):
        xs, ys = (np.array([[point[axis] for point in points]], np.uint16) for axis in (0, 1))
        row[:] = ['x:', xs, 'y:', ys, np.array(word), orientation]
    io.savemat(tmp_path / 'labels/poly_gt_img11.mat', {'polygt': cells})
    texts = total_text(tmp_path).split('train').read(Draw(0))[1]
    assert [points.tolist() for points in texts.outlines] == [CURVED, QUAD, QUAD]
    assert texts.strings[:2] == ('the', '') and texts.ignored == (False, False, True)


@pytest.mark.parametrize(
    ('text', 'message'),
    [
        ("x: [[1 2 3]], y: [[1 2]], ornt: [u'h'], transcriptions: [u'a']", 'expected as many x as y and one word, got 3, 2'),
        ("x: [[1 2]], y: [[1 2]], ornt: [u'h'], transcriptions: [u'a']", 'an outline has at least 3 points, got 2'),
        ("x: [[1 2 z]], y: [[1 2 3]], ornt: [u'h'], transcriptions: [u'a']", 'expected as many x as y and one word'),
        ('x: [[1 2 3]], y: [[1 2 3]], transcriptions: [1 + 1]', 'expected as many x as y and one word'),
        ('1,2,3,4,5,6,word', r'expected x: \[\[\.\.\]\]'),
        ('x: [[1 2 3]], y: [[1 2 3]]', r'expected x: \[\[\.\.\]\]'),
    ],
)
def test_a_malformed_word_of_total_text_is_reported_with_its_line(
    tmp_path: Path, page: Callable[[str], None], text: str, message: str
) -> None:
    page('images/img1.png')
    (tmp_path / 'labels').mkdir()
    (tmp_path / 'labels/poly_gt_img1.txt').write_text(
        f"x: [[1 9 9]], y: [[1 1 9]], ornt: [u'h'], transcriptions: [u'a']\n{text}\n"
    )
    with pytest.raises(ValueError, match=rf'poly_gt_img1\.txt:[12]: {message}'):
        total_text(tmp_path).split('train')


def test_an_invalid_matlab_file_is_reported(tmp_path: Path, page: Callable[[str], None]) -> None:
    pytest.importorskip('scipy.io')
    page('images/img1.png')
    (tmp_path / 'labels').mkdir()
    (tmp_path / 'labels/poly_gt_img1.mat').write_bytes(b'no MATLAB' * 40)
    with pytest.raises(ValueError, match=r'poly_gt_img1\.mat: is not a MATLAB file'):
        total_text(tmp_path).split('train')


def coco_text(root: Path, **annotations: dict[str, object]) -> CocoText:
    images: dict[str, object] = {
        '7': {'id': 7, 'set': 'train', 'file_name': 'a.png', 'width': 80, 'height': 48},
        '8': {'id': 8, 'set': 'train', 'file_name': 'b.png', 'width': 80, 'height': 48},
        '9': {'id': 9, 'set': 'val', 'file_name': 'c.png', 'width': 80, 'height': 48},
    }
    (root / 'cocotext.v2.json').write_text(json.dumps({'imgs': images, 'anns': annotations}))
    return CocoText(root=root)


def test_coco_text_is_one_file_for_both_splits(tmp_path: Path, page: Callable[[str], None]) -> None:
    for name in 'abc':
        page(f'train2014/{name}.png')
    masked = {
        'image_id': 7,
        'mask': np.ravel(QUAD).tolist(),
        'utf8_string': 'word',
        'legibility': 'legible',
        'language': 'english',
    }
    boxed = {'image_id': 7, 'bbox': [10, 20, 30, 5], 'utf8_string': '', 'legibility': 'illegible'}
    old = {'image_id': 9, 'polygon': np.ravel(CURVED).tolist(), 'utf8_string': 'old', 'legibility': 'legible'}
    data = coco_text(tmp_path, **{'45': masked, '46': boxed, '47': old})
    train, held_out = data.split('train'), data.split('eval')
    assert (len(train), len(held_out)) == (1, 1)
    texts = train.read(Draw(0))[1]
    assert [points.tolist() for points in texts.outlines] == [QUAD, [[10, 20], [40, 20], [40, 25], [10, 25]]]
    assert texts.strings[0] == 'word' and texts.ignored == (False, True)
    assert held_out.read(Draw(0))[1].outlines[0].tolist() == CURVED
    assert len(CocoText(root=tmp_path, empty_images=True).split('train')) == 2


@pytest.mark.parametrize(
    ('annotation', 'message'),
    [
        ({'image_id': 1}, 'word 45: image_id: no such image'),
        ({'image_id': 7}, 'word 45: has no mask, and its bbox is not x, y, width, height'),
        ({'image_id': 7, 'mask': [1, 2, 3, 4, 5, 'six']}, r'word 45: an outline is a list of points \[x, y\]'),
        ({'image_id': 7, 'mask': [1, 2, 3, 4, 5, 6, 7]}, r'word 45: an outline is a list of points \[x, y\]'),
    ],
)
def test_a_malformed_word_of_coco_text_is_reported_with_its_id(
    tmp_path: Path, annotation: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        coco_text(tmp_path, **{'45': annotation}).split('train')


@pytest.mark.parametrize(
    ('content', 'message'), [('[', 'is not JSON'), ('{"images": []}', 'is not in the format of COCO-Text')]
)
def test_a_file_of_another_format_is_rejected_as_coco_text(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / 'cocotext.v2.json').write_text(content)
    with pytest.raises(ValueError, match=message):
        CocoText(root=tmp_path).split('eval')


def test_drawn_pages_are_reproducible_and_differ_from_each_other() -> None:
    data = DATA['drawn_pages'](page_size=(96, 128), train_pages=3, eval_pages=2)
    source = data.split('train')
    again = pickle.loads(pickle.dumps(source))  # noqa: S301
    for index in range(3):
        (image, texts), (same, same_texts) = source.read(Draw(index)), again.read(Draw(index))
        assert image.shape == (96, 128, 3)
        assert np.array_equal(image, same) and texts.strings == same_texts.strings
    assert not np.array_equal(source.read(Draw(0))[0], source.read(Draw(1))[0])
    assert not np.array_equal(source.read(Draw(0))[0], data.split('eval').read(Draw(0))[0])


def test_the_ink_of_a_drawn_text_is_inside_its_outline() -> None:
    """Compare pages that differ in one text: changed pixels lie within its outline, dilated by a pixel."""
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
