"""Reading and splitting by `phalanx new`, against values by hand; nothing is trained here."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import zipfile
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from PIL import Image

import drawn
from phalanx.curation.new import characters as keeping
from phalanx.curation.new.characters import keep_characters
from phalanx.curation.new.plan import (
    Length,
    Node,
    Pace,
    compute_class_weights,
    count_ctc_steps,
    detection_side,
    length_of,
    length_on,
    line_size,
    longest_within,
    segmentation_sides,
    text_sides,
)
from phalanx.curation.new.published import Start
from phalanx.curation.new.recipe import _more_tokens
from phalanx.curation.prepare.dealing import deal, val_share
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.html_tables import tokenize_table
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.targets import Written
from phalanx.curation.prepare.tree import Tree
from phalanx.data.checks import AnnotationError
from phalanx.data.samples import Draw
from phalanx.engine.job import open_job
from phalanx.families.text_detection.data.label_files import LabelFiles
from phalanx.system.errors import RequestError
from running import run_here

CPU = Node('cpu', 2)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def new(*words: str) -> int:
    return run_here('new', 'mine', '--no_trial', *words)


def found_in(folder: str, name: str) -> AnnotationSet:
    return find_annotations(Tree(Path(folder).absolute()), [name])[name]


def boxes_in(found: AnnotationSet) -> dict[str, list[tuple[str, tuple[int, ...]]]]:
    """The label and the box, in whole pixels, of what is on each image."""
    rounded = {s.image.stem: [(t.label, tuple(round(v) for v in t.box)) for t in s.instances] for s in found.samples}
    return dict(sorted(rounded.items()))


BOXES = {f'part {number}': [(drawn.label_of(number), drawn.box_of(number))] for number in range(drawn.COUNT)}


@pytest.mark.parametrize(
    ('drawing', 'name'),
    [
        (drawn.voc, 'voc'),
        (drawn.yolo, 'yolo'),
        (drawn.csv_boxes, 'csv'),
        (drawn.csv_without_header, 'csv'),
        (drawn.cvat, 'cvat'),
        (drawn.label_studio, 'label_studio'),
        (drawn.labelme, 'labelme'),
        (drawn.supervisely, 'supervisely'),
        (drawn.yolo_polygons, 'yolo'),
    ],
)
def test_boxes_are_those_of_the_annotations(drawing: object, name: str) -> None:
    assert callable(drawing)
    drawing(Path('mine'))
    boxes = boxes_in(found_in('mine', name))
    expected = dict(BOXES)
    if name == 'voc':  # the box of the first reaches out of its image, which is 64 wide
        expected['part 1'] = [('bolt', (5, 6, 64, 30))]
    boxes.pop('none', None)
    assert boxes == expected


@pytest.mark.parametrize(
    'drawing', [drawn.masks_palette, drawn.masks_coloured, drawn.pairs, drawn.labelme, drawn.yolo_polygons]
)
def test_label_maps_are_those_of_the_annotations(drawing: object) -> None:
    assert callable(drawing)
    drawing(Path('mine'))
    assert new() == 0
    samples = open_job('mine_phalanx/mine.yml').task.survey('train').source  # type: ignore[attr-defined]
    for index in range(len(samples)):
        number = int(Path(samples.name(index)).stem.split()[-1])
        np.testing.assert_array_equal(samples.read(Draw(index))[1], drawn.mask_of(number))


def test_white_masks_are_one_class_also_when_they_are_smaller_than_their_image() -> None:
    drawn.masks_binary(Path('mine'))
    assert new() == 0
    maps = {path.stem[-1]: np.array(Image.open(path)) for path in Path('mine_phalanx/labels').iterdir()}
    assert len(maps) == drawn.COUNT
    for number, labels in maps.items():
        expected = drawn.mask_of(int(number)) > 0
        assert (labels == expected).mean() > (0.9 if number == '4' else 0.999), number


def test_a_hole_in_a_polygon_belongs_to_the_background() -> None:
    drawn.supervisely(Path('mine'))
    assert new() == 0
    labels = next(np.array(Image.open(path)) for path in Path('mine_phalanx/labels').glob('*part_3.png'))
    expected = drawn.mask_of(3)
    expected[10:14, 11:15] = 0
    np.testing.assert_array_equal(labels, expected)


def test_masks_that_can_be_trained_on_are_not_copied() -> None:
    drawn.masks_palette(Path('mine'))
    assert new() == 0
    assert not Path('mine_phalanx/labels').exists()


def test_outlines_are_boxes_where_detection_is_asked_for() -> None:
    drawn.labelme(Path('mine'))
    assert new('--family', 'detection') == 0
    content = json.loads(Path('mine_phalanx/val.json').read_text())
    assert [one['bbox'][2:] for one in content['annotations']] == [[20, 24]] * 2


def test_boxes_are_rectangles_of_pixels_where_segmentation_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.csv_boxes(Path('mine'))
    assert new('--family', 'segmentation') == 0
    assert 'boxes without an outline, painted as rectangles: 10' in capsys.readouterr().out
    for path in Path('mine_phalanx/labels').iterdir():
        np.testing.assert_array_equal(np.array(Image.open(path)), drawn.mask_of(int(path.stem[-1])))


def test_lines_of_pages_stay_with_their_page() -> None:
    drawn.pages_paddle(Path('mine'))
    assert new() == 0
    rows = Path('mine_phalanx/train.txt').read_text().splitlines()
    assert len(rows) == 8
    texts = {row.split('\t')[0].rpartition('part_')[2][0]: row.split('\t')[1] for row in rows}
    assert all(drawn.text_of(int(number)) == text for number, text in texts.items())
    characters = set(Path('mine_phalanx/characters.txt').read_text().split('\n')) - {''}
    assert characters == set(''.join(texts.values())) - {' '}


# Texts on pages.


def outlines_in(folder: str) -> dict[str, list[tuple[str, list[list[float]]]]]:
    """The texts and outlines that the label files of a folder have of each image."""
    found = {}
    for split in ('train', 'val'):
        for row in Path(folder, f'{split}.txt').read_text().splitlines():
            image, entries = row.split('\t')
            found[Path(image).stem] = [(one['transcription'], one['points']) for one in json.loads(entries)]
    return dict(sorted(found.items()))


def test_pages_of_ppocrlabel_keep_their_outlines_and_ignored_texts(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.ppocrlabel(Path('mine'))
    assert new('--family', 'text_detection') == 0
    small = drawn.corners((1, 1, 9, 5))
    assert outlines_in('mine_phalanx') == {
        f'part {n}': [(drawn.text_of(n), drawn.curved(n)), ('###', small)] for n in range(drawn.COUNT)
    }
    assert '8 texts in training, 8 more are ignored' in capsys.readouterr().out
    assert open_job('mine_phalanx/mine.yml').task.survey('eval').count(0)[1]['text'] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ('drawing', 'words', 'text'),
    [
        (drawn.label_studio, ('label_studio', 'mine'), False),
        (drawn.pages_icdar, ('text_files', 'mine'), True),
        (drawn.labelme, ('labelme', 'mine'), False),
        (drawn.coco, ('coco', 'mine/instances_train.json', '--images', 'mine/pictures'), False),
    ],
)
def test_a_set_of_pages_is_prepared_from_each_tool(drawing: Callable[[Path], None], words: tuple[str, ...], text: bool) -> None:
    drawing(Path('mine'))
    assert run_here('data', 'prepare', *words, '--family', 'text_detection', '--out', 'pages') == 0
    found = outlines_in('pages')
    numbers = {name: int(name.split()[-1]) for name in found}
    assert len(found) == (8 if drawing is drawn.coco else drawn.COUNT)
    for name, entries in found.items():
        n = numbers[name]
        corners = np.array(drawn.corners(drawn.box_of(n)))
        assert [entry[0] for entry in entries] == [drawn.text_of(n) if text else '']
        np.testing.assert_allclose(entries[0][1], corners, atol=0.01)
    LabelFiles(root=Path('pages'), train=('train.txt',)).split('train').check_files()


def test_a_page_without_text_is_a_sample(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.pages_icdar(Path('mine'))
    Path('mine/gt/gt_part 3.txt').write_text('')
    assert new('--family', 'text_detection') == 0
    assert outlines_in('mine_phalanx')['part 3'] == []
    assert 'left out' not in capsys.readouterr().out


def test_lines_that_are_written_from_the_right_cause_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(4):
        drawn.draw(Path(f'mine/{number}.png'), number)
    drawn.write(Path('mine/list.txt'), ''.join(f'{number}.png\t\u05e9\u05dc{number}\n' for number in range(4)))
    assert new() == 0
    assert 'warning: 3 training lines with letters that are written from the right: ' in capsys.readouterr().out


def test_characters_of_validation_alone_cause_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    for split, texts in {'train': ('ab', 'a b'), 'val': ('a\u00e9', 'b a', 'ax\u00e9')}.items():
        for text in texts:
            drawn.draw(Path(f'mine/{text}.png'), ord(text[-1]))
        drawn.write(Path(f'mine/{split}.txt'), ''.join(f'{text}.png\t{text}\n' for text in texts))
    assert new('--no_trial') == 0
    assert (
        '  warning: 2 validation lines with characters that no training line has (x \u00e9): these are neither read nor '
        'compared; move such lines there, or change --val or --seed\n'
    ) in capsys.readouterr().out


def test_illegible_lines_are_left_out_of_lists_too(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        drawn.draw(Path(f'mine/{number}.png'), number)
    drawn.write(Path('mine/list.txt'), ''.join(f'{number}.png\t{"###" if number == 4 else number}\n' for number in range(5)))
    assert new() == 0
    assert '4.png: its text is empty, illegible (###), or has a tab or several lines' in capsys.readouterr().out


def test_a_text_with_several_lines_is_left_out_however_they_end(capsys: pytest.CaptureFixture[str]) -> None:
    texts = ['one', 'two', 'three', 'four\rfive', 'six\nseven', 'eight']
    for number in range(len(texts)):
        drawn.draw(Path(f'mine/{number}.png'), number)
    lines = [json.dumps({'file_name': f'{number}.png', 'text': text}) for number, text in enumerate(texts)]
    drawn.write(Path('mine/metadata.jsonl'), '\n'.join(lines))
    assert new() == 0
    said = capsys.readouterr().out
    assert '3.png: its text is empty' in said and '4.png: its text is empty' in said
    assert len(Path('mine_phalanx/train.txt').read_text().splitlines()) == 3


def test_small_texts_need_a_larger_input() -> None:
    """16 pixels for a text that is 2 % of its page is 800; 640 is the most on a CPU, and no page is enlarged."""
    tall, low = (
        Written(Path(), {}, boxes=[0.05] * 9, sizes=[(900, 1200)]),
        Written(Path(), {}, boxes=[0.02], sizes=[(900, 1200)]),
    )
    assert text_sides(tall, CPU) == (320, 320)
    assert text_sides(low, CPU) == (640, 320)
    assert text_sides(low, Node('cuda', 8)) == (800, 640)
    assert text_sides(Written(Path(), {}, boxes=[0.02], sizes=[(200, 100)]), CPU) == (192, 192)


# HTML.


def test_spans_that_pubtabnet_lacks_extend_the_vocabulary_of_the_recipe(tmp_path: Path) -> None:
    written = Written(tmp_path, {})
    written.units.update(['<td', ' colspan="2"', 'colspan="11"', ' rowspan="12"', '>', '</td>'])
    assert _more_tokens(written) == ['more_tokens: [colspan="11", rowspan="12"]']
    assert _more_tokens(Written(tmp_path, {})) == []


def test_the_characters_of_published_weights_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that read b, a and the space; texts with a and c."""
    monkeypatch.setattr(keeping, 'load', lambda file: SimpleNamespace(guide={'reading': {'characters': ('b', 'a', ' ')}}))
    written = Written(tmp_path, {}, out=tmp_path)
    written.units.update('ac')
    keep_characters(written, tmp_path / 'w.onnx')
    assert (tmp_path / 'characters.txt').read_text() == 'b\na\nc\n'
    assert ' ' in written.units


def test_the_characters_of_unknown_weights_cannot_be_kept(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r'--keep_characters: the characters of .*w\.onnx are not known: .*no such file'):
        keep_characters(Written(tmp_path, {}, out=tmp_path), tmp_path / 'w.onnx')


def test_the_tokens_of_a_table_are_those_of_pubtabnet() -> None:
    html = '<html><body><table><thead><tr><th colspan="2">A</th></tr></thead><tr><td>1<td><b>x</b></tr></table></body></html>'
    table = json.loads(tokenize_table(html, 'x'))
    head = ['<thead>', '<tr>', '<td', ' colspan="2"', '>', '</td>', '</tr>', '</thead>']
    body = ['<tbody>', '<tr>', '<td>', '</td>', '<td>', '</td>', '</tr>', '</tbody>']
    assert table['structure']['tokens'] == head + body
    assert [cell['tokens'] for cell in table['cells']] == [['A'], ['1'], ['<b>', 'x', '</b>']]


@pytest.mark.parametrize(
    ('html', 'message'),
    [
        ('<p>nothing', 'x: has no table with cells'),
        ('<table><td>1</td></table>', 'x: has a cell outside of a row'),
        ('<table><tr><td><table></table></td></tr></table>', 'x: has a second table, or a table within a cell'),
        ('<table><tr><td colspan="0">1</td></tr></table>', "x: colspan='0' is not a number from 1 to 100"),
        ('<table><tr><td><img></td></tr></table>', 'x: has a tag <img>'),
    ],
)
def test_html_that_is_no_table_is_reported(html: str, message: str) -> None:
    with pytest.raises(AnnotationError, match=message):
        tokenize_table(html, 'x')


# What is left out.


def test_annotations_that_cannot_be_used_are_left_out_and_reported(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.voc(Path('mine'))
    Path('mine/JPEGImages/part 2.JPG').write_bytes(b'no image')
    Path('mine/Annotations/part 3.xml').write_text('<annotation><object>')
    Path('mine/Annotations/part 4.xml').write_text('<!DOCTYPE a [<!ENTITY b "c">]><annotation/>')
    Path('mine/JPEGImages/part 5.JPG').unlink()
    drawn.draw(Path('mine/JPEGImages/alone.png'), 1)
    assert new() == 0
    said = capsys.readouterr().out
    for words in (
        'part 2.JPG: is not an image that can be decoded',
        'part 3.xml: is not well-formed XML',
        'part 4.xml: has a document type',
        "part 5.xml: there is no image 'part 5.JPG'",
        'left out: 4',
        'boxes that reach out of their image, cut off at its edges: 1',
        '4 images without annotation: not used',  # 2, 3 and 4 among them
        'detection: 5 images in train, 1 image in val',
    ):
        assert words in said, words


def test_a_box_without_area_and_a_class_that_never_occurs_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.coco(Path('mine'))
    assert new() == 0
    said = capsys.readouterr().out
    assert 'boxes smaller than a pixel or outside their image, left out: 2' in said
    assert 'classes that never occur, left out: never' in said
    assert 'split as the annotations say' in said


def test_a_folder_without_annotations_is_a_wrong_request(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.images(Path('mine'))
    Path('mine/broken.json').write_text('{')
    assert new() == 2
    said = capsys.readouterr().err
    assert 'mine: 10 images, but no annotation that can be used' in said
    assert 'broken.json: is not JSON' in said and 'formats that are known: coco, voc' in said
    assert not Path('mine_phalanx').exists()


def test_images_sorted_into_folders_are_not_taken_for_texts_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.class_folders(Path('mine'))
    assert new() == 2
    assert 'classification of images, which is not a family of Phalanx' in capsys.readouterr().err


def test_a_recipe_names_many_classes_of_any_spelling() -> None:
    names = [f'class: number {number}, "so called"' for number in range(90)] + ['1', 'no', 'häßlich']
    images = drawn.images(Path('mine'))
    rows = [
        ','.join([images[n % 10].name, '2', '3', '30', '40', '"' + name.replace('"', '""') + '"'])
        for n, name in enumerate(names)
    ]
    Path('mine/boxes.csv').write_text('\n'.join(rows))
    assert new() == 0
    recipe = yaml.safe_load(Path('mine_phalanx/mine.yml').read_text())
    assert recipe['data']['classes'] == sorted(names)
    assert open_job('mine_phalanx/mine.yml').task.class_names == tuple(sorted(names))  # type: ignore[attr-defined]


def test_names_of_files_that_are_not_utf8_are_refused_where_a_list_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(5):
        drawn.draw(Path('mine') / os.fsdecode(b'%d\xff.png' % number), number)
        drawn.write(Path('mine') / os.fsdecode(b'%d\xff.txt' % number), f'text {number}')
    assert new() == 2
    assert (
        r"mine/0\udcff.png': has a name that is not UTF-8, and a list is; rename it (convmv) (5 in all)"
        in capsys.readouterr().err
    )


def test_an_archive_that_leads_out_of_its_folder_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    Path('mine').mkdir()
    with zipfile.ZipFile('mine/export.zip', 'w') as archive:
        archive.writestr('../outside.txt', 'x')
    assert new() == 2
    assert "'../outside.txt' leads out of it" in capsys.readouterr().err
    assert not Path('outside.txt').exists()


@pytest.mark.parametrize(
    ('place', 'after', 'value', 'reason'),
    [
        (6, 8, 1, 'is encrypted, password required'),
        (8, 10, 9, 'That compression method is not supported'),  # Deflate64, as the Explorer of Windows packs large files
        (14, 16, 1, "Bad CRC-32 for file 'a.txt'"),
    ],
)
def test_an_archive_that_cannot_be_unpacked_is_refused_with_a_cure(
    place: int, after: int, value: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A number in the header of a file in it, and again in the list of files."""
    Path('mine').mkdir()
    with zipfile.ZipFile('mine/export.zip', 'w') as archive:
        archive.writestr('a.txt', 'x')
    data = bytearray(Path('mine/export.zip').read_bytes())
    data[place] = data[data.find(b'PK\x01\x02') + after] = value
    Path('mine/export.zip').write_bytes(data)
    assert new() == 2
    said = capsys.readouterr().err
    assert reason in said and said.endswith('; unpack it with another program, and give the folder\n')


def test_an_archive_is_unpacked_once() -> None:
    drawn.roboflow_zip(Path('mine'))
    assert new('--format', 'voc') == 2
    assert sorted(path.name for path in Path('mine_phalanx').iterdir()) == ['unpacked']
    assert new() == 0
    assert len(json.loads(Path('mine_phalanx/train.json').read_text())['images']) == 16


def test_existing_files_are_not_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.csv_boxes(Path('mine'))
    assert new() == 0
    assert new() == 2
    assert '--out mine_phalanx: exists already' in capsys.readouterr().err


# Splits.


def samples(count: int) -> list[Sample]:
    found = []
    for number in range(count):
        Path(f'{number:03}.png').write_bytes(b'%d' % number)
        found.append(Sample(Path(f'{number:03}.png')))
    return found


def test_each_class_is_dealt_out_by_the_shares() -> None:
    """Of 40 images 4 show a rare class: one of them, and 10 of all, are to evaluate with."""
    names = [('common', 'rare') if number % 10 == 3 else ('common',) for number in range(40)]
    given = [
        replace(sample, instances=tuple(Instance(name, (0, 0, 9, 9)) for name in labels))
        for sample, labels in zip(samples(40), names, strict=True)
    ]
    for seed in range(5):
        train, val = deal(given, [0.75, 0.25], seed, None)
        assert (len(train), len(val)) == (30, 10)
        assert sum(len(sample.instances) == 2 for sample in val) == 1
    assert deal(given, [0.75, 0.25], 0, None) != deal(given, [0.75, 0.25], 1, None)


def test_equal_files_copies_of_an_image_and_named_groups_stay_together() -> None:
    given = samples(12)
    shutil.copyfile('000.png', '011.png')
    for name in ('a_jpg.rf.0123abcd.jpg', 'a_jpg.rf.ffff0000.jpg'):
        Path(name).write_bytes(name.encode())
        given.append(Sample(Path(name)))
    for seed in range(8):
        train, val = deal(given, [0.5, 0.5], seed, None)
        for pair in (('000.png', '011.png'), ('a_jpg.rf.0123abcd.jpg', 'a_jpg.rf.ffff0000.jpg')):
            assert len({sample in train for sample in given if sample.image.name in pair}) == 1
    train, val = deal(given[:12], [0.5, 0.5], 0, r'0(\d)\d\.png')
    assert sorted(map(len, (train, val))) == [2, 10]
    with pytest.raises(ValueError, match='12 images in 1 group, too few for 2 lists: --groups folder puts them together'):
        deal(given[:12], [0.5, 0.5], 0, 'folder')


def test_test_images_stay_apart_and_training_images_are_dealt_out() -> None:
    """PaddleOCR's names of lists; there is none for validation."""
    rows = [f'crops/{image.name}\t{drawn.text_of(n)}\n' for n, image in enumerate(drawn.lines(Path('mine/crops')))]
    Path('mine/rec_gt_train.txt').write_text(''.join(rows[:8]))
    Path('mine/rec_gt_test.txt').write_text(''.join(rows[8:]))
    assert new() == 0
    lists = {split: Path(f'mine_phalanx/{split}.txt').read_text().splitlines() for split in ('train', 'val', 'test')}
    assert {split: len(rows) for split, rows in lists.items()} == {'train': 6, 'val': 2, 'test': 2}
    assert [row.split('\t')[0].rpartition('/')[2] for row in lists['test']] == ['8.png', '9.png']
    assert 'data.eval=[mine_phalanx/test.txt]' in Path('mine_phalanx/mine.yml').read_text()


def test_large_sets_need_no_fifth_to_evaluate_with() -> None:
    assert [val_share(count) for count in (100, 2500, 10_000, 1_000_000)] == [0.2, 0.2, 0.05, 0.02]


# Sizes.


def test_two_equal_characters_need_a_place_between_them() -> None:
    assert [count_ctc_steps(text) for text in ('abc', 'hello', 'aaa')] == [3, 6, 5]


def test_a_line_has_four_columns_for_each_place() -> None:
    """Words of 12 characters and 60 x 30 pixels want 4 * (12 + 2) = 56 columns, so the least, 96; lines keep their shape."""
    words = line_size(Written(Path(), {}, sizes=[(60, 30)] * 9, texts=['abcdefghijkl'] * 9), CPU)
    assert (words.width, words.keep_ratio) == (96, False)
    lines = line_size(Written(Path(), {}, sizes=[(300, 30)] * 9, texts=['ab' * 15] * 9), CPU)
    assert (lines.width, lines.keep_ratio) == (320, True)


def test_weights_of_classes_are_those_of_enet() -> None:
    """1 / ln(1.1 + share): 1.4427 and 5.4848 for shares of 0.9 and 0.1; an average pixel weighs 1.8469."""
    written = Written(Path(), {}, class_names=('road', 'sign'), units=Counter(road=90, sign=10))
    assert compute_class_weights(written) == [0.78, 2.97]


def test_one_odd_image_does_not_make_all_inputs_small() -> None:
    """480 x 360, as most are: crops of 256 on a CPU, 384 (360 rounded up to a multiple of 32) on a GPU."""
    written = Written(Path(), {}, sizes=[(480, 360)] * 9 + [(3000, 20)])
    assert segmentation_sides(written, CPU) == (480, 256)
    assert segmentation_sides(written, Node('cuda', 8)) == (480, 384)
    small = Written(Path(), {}, sizes=[(64, 48)])
    assert segmentation_sides(small, CPU) == (64, 64)


def test_small_objects_need_a_larger_input() -> None:
    """Boxes of a tenth of the image have 32 pixels on 320; larger ones need less."""
    small = Written(Path(), {}, sizes=[(2000, 1000)], boxes=[0.1] * 50)
    assert (detection_side(small, CPU), detection_side(small, Node('cuda', 8))) == (320, 320)
    large = Written(Path(), {}, sizes=[(2000, 1000)], boxes=[0.5] * 50)
    assert detection_side(large, CPU) == 192
    tiny = Written(Path(), {}, sizes=[(2000, 1000)], boxes=[0.01] * 50)
    assert (detection_side(tiny, CPU), detection_side(tiny, Node('cuda', 8))) == (320, 640)


def test_few_samples_are_seen_often_and_a_short_run_has_no_average() -> None:
    few = length_of('detection', 20, CPU)
    assert (few.batch, few.epochs) == (5, 400)
    many = length_of('segmentation', 100_000, CPU)
    assert many.epochs == 5
    short = length_of('table', 100, CPU, seen=800)
    assert (short.steps, short.ema_decay) == (100, None)  # 8 epochs of 12.5 steps
    assert length_of('detection', 200, CPU).ema_decay == pytest.approx(1 - 20 / 900, abs=1e-3)


def test_a_training_with_its_evaluations_fits_into_the_time_it_is_given_if_an_epoch_does() -> None:
    """An epoch takes 10 s, an evaluation 5 s: 15 s per epoch of 1 to 4.

    From 24 epochs (300 steps) on there is an EMA, beside which every other evaluation and the last are made of the raw weights.
    51 epochs are evaluated after 5, 10 ... 50 and 51: 510 + 17 x 5 = 595 s. 52 take 605 s.
    """

    def choose(seen: int) -> Length:
        return length_of('table', 100, CPU, seen)

    lengths = {seconds: longest_within(seconds, choose, 100, 100, Pace(10.0, 0.5)) for seconds in (3, 46, 60, 600)}
    assert [length.epochs for length in lengths.values()] == [1, 3, 4, 51]
    assert lengths[600].evaluations(100) == 17
    assert [length.seconds(100, Pace(10.0, 0.5)) <= seconds for seconds, length in lengths.items()] == [False, True, True, True]


def test_the_pictures_of_evaluations_and_the_start_of_the_run_count_too() -> None:
    """24 epochs (300 steps) of 10 s, 12 evaluations of 5 s with pictures of 2 s, 3 of raw weights without, a start of 7 s."""
    length = length_of('table', 100, CPU, 2400)
    assert (length.pictured, length.evaluations(100)) == (12, 15)
    assert length.seconds(100, Pace(10.0, 0.5, pictures=2.0, start=7.0)) == 240 + 75 + 24 + 7


def test_the_start_of_fine_tuning_is_evaluated_too() -> None:
    """2 epochs of 4 batches of 25, evaluated before the first and after each: 200 + 3 x 40 x 0.5 samples at 10 per second."""
    length = length_on(Start(Path(), 'SLANet', 'slanet_icdar2013', samples=200, batch=25), 100, None)
    assert (length.epochs, length.steps, length.evaluate_epochs) == (2, 8, 1)
    assert length.seconds(40, Pace(10.0, 0.5)) == 26


# Variants of formats.


def instances_of(content: object, file: str) -> list[Instance]:
    """The annotation in a file beside an image of 64 x 48 pixels."""
    drawn.draw(Path('mine/images/a 1.png'), 1)
    drawn.write(Path('mine') / file, content)
    held = find_annotations(Tree(Path('mine').absolute()))
    (found,) = [found for found in held.values() if found.samples]
    return list(found.samples[0].instances)


def test_label_studio_turns_rectangles_about_their_upper_left_corner_and_joins_texts() -> None:
    """32 x 24 pixels from (32, 12), turned by a quarter: the corner that was on the upper right is below."""
    value = {'x': 50, 'y': 25, 'width': 25, 'height': 50, 'rotation': 90}
    results = [
        {'id': 'a', 'type': 'rectangle', 'value': value},
        {'id': 'a', 'type': 'labels', 'value': value | {'labels': ['Line']}},
        {'id': 'a', 'type': 'textarea', 'value': value | {'text': ['twelve']}},
    ]
    task = {'data': {'ocr': '/data/local-files/?d=images/a%201.png'}, 'annotations': [{'result': results}]}
    (instance,) = instances_of([task], 'export.json')
    assert (instance.label, instance.text) == ('Line', 'twelve')
    np.testing.assert_allclose(instance.corners, [[32, 12], [32, 28], [8, 28], [8, 12]], atol=1e-9)
    np.testing.assert_allclose(instance.box, (8, 12, 32, 28), atol=1e-9)


def test_the_short_format_of_label_studio_is_read() -> None:
    label = {'x': 25, 'y': 25, 'width': 50, 'height': 50, 'rotation': 0, 'rectanglelabels': ['nut']}
    (instance,) = instances_of([{'id': 1, 'image': '/data/upload/0123abcd-a 1.png', 'label': [label]}], 'min.json')
    assert instance.label == 'nut'
    np.testing.assert_allclose(instance.box, (16, 12, 48, 36))


def test_texts_of_labelme_and_cvat_are_read() -> None:
    shape = {'label': 'line', 'points': [[2, 3], [20, 12]], 'shape_type': 'rectangle', 'description': 'abc'}
    (instance,) = instances_of({'imagePath': 'a 1.png', 'imageWidth': 64, 'imageHeight': 48, 'shapes': [shape]}, 'a.json')
    assert (instance.label, instance.text, instance.box) == ('line', 'abc', (2, 3, 20, 12))
    shutil.rmtree('mine')
    (instance,) = instances_of(
        '<annotations><image id="0" name="a 1.png"><polygon label="line" points="2,3;20,3;20,12;2,12">'
        '<attribute name="text">abc</attribute></polygon></image></annotations>',
        'annotations.xml',
    )
    assert (instance.label, instance.text, instance.box) == ('line', 'abc', (2, 3, 20, 12))


@pytest.mark.parametrize('limit', [1000, 1520])  # bytes per file: too few for a list, for the recipe
def test_a_full_disk_leaves_no_half_made_folder(limit: int, capsys: pytest.CaptureFixture[str]) -> None:
    drawn.csv_boxes(Path('mine'))
    before, ignored = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        assert new() == 1
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert 'mine_phalanx was not written: File too large' in capsys.readouterr().err
    assert not Path('mine_phalanx').exists()
    assert new() == 0


@pytest.mark.parametrize(
    'lines',
    [
        'image;x;y;width;height;class\na 1.png;8;6;16;12;nut',
        'ImageID,XMin,XMax,YMin,YMax,LabelName\na 1,0.125,0.375,0.125,0.375,nut',
        'path,bbox_x,bbox_y,bbox_w,bbox_h,category\nimages/a 1.png,8,6,16,12,nut',
        'filename,width,height,class,xmin,ymin,xmax,ymax\na 1.png,64,48,nut,8,6,24,18',
    ],
)
def test_boxes_in_csv_are_read_in_each_of_their_forms(lines: str) -> None:
    (instance,) = instances_of(lines, 'boxes.csv')
    assert (instance.label, instance.box) == ('nut', (8, 6, 24, 18))


@pytest.mark.parametrize(
    ('lines', 'boxes', 'problem'),
    [  # of images of 64 x 48 pixels; the last ones leave theirs a little, or are smaller than a pixel
        ('8,6,24,18 0.1,0.2,0.5,0.4 1,1,9,9', ['8,6,24,18', '1,1,9,9'], 'boxes.csv:3: the box 0.1, 0.2, 0.5, 0.4 is in shares'),
        ('0,0,0.5,0.5 8,6,24,18 0,0,1,1', ['0,0,32,24', '0,0,64,48'], 'boxes.csv:3: the box 8, 6, 24, 18 is in pixels'),
        ('0,0,0.5,0.5 0,0,1,1 0.25,0,1.003,1', ['0,0,32,24', '0,0,64,48', '16,0,64,48'], ''),
        ('8,6,24,18 0,0,0,0 1,1,9,9', ['8,6,24,18', '1,1,9,9'], ''),
    ],
)
def test_a_box_in_another_unit_than_the_file_leaves_its_image_out(lines: str, boxes: list[str], problem: str) -> None:
    for name in 'abc':
        drawn.draw(Path(f'mine/{name}.png'), 1)
    rows = [f'{name}.png,{line},nut' for name, line in zip('abc', lines.split(), strict=True)]
    drawn.write(Path('mine/boxes.csv'), '\n'.join(['filename,xmin,ymin,xmax,ymax,class', *rows]))
    found = found_in('mine', 'csv')
    read = np.clip([one.box for sample in found.samples for one in sample.instances], 0, (64, 48, 64, 48))
    assert [','.join(f'{value:g}' for value in box) for box in read] == boxes
    assert [problem in text for text in found.left_out] == [True] * bool(problem)


def test_lines_of_a_page_may_have_four_numbers_before_them() -> None:
    (instance,) = instances_of('8,6,24,18,"two, three"', 'gt/gt_a 1.txt')
    assert (instance.text, instance.box, len(instance.corners)) == ('two, three', (8, 6, 24, 18), 4)


def test_folders_of_roboflow_and_lists_of_voc_give_the_split() -> None:
    for split, name in (('train', 'a'), ('valid', 'b'), ('test', 'c')):
        drawn.draw(Path(f'yolo/{split}/images/{name}.png'), 1)
        drawn.write(Path(f'yolo/{split}/labels/{name}.txt'), drawn.yolo_line(1))
    assert [sample.split for sample in found_in('yolo', 'yolo').samples] == ['test', 'train', 'val']
    drawn.voc(Path('voc'))
    for name, numbers in {'trainval': range(8), 'val': range(6, 8), 'test': range(8, 10)}.items():
        rows = [f'JPEGImages/part_{number}.JPG Annotations/part_{number}.xml' for number in numbers]
        drawn.write(Path(f'voc/ImageSets/Main/{name}.txt'), '\n'.join(rows))
    for path in [*Path('voc').rglob('*.xml'), *Path('voc').rglob('*.JPG')]:
        path.rename(path.with_name(path.name.replace(' ', '_')))
    assert Counter(sample.split for sample in found_in('voc', 'voc').samples) == {'train': 6, 'val': 2, 'test': 2}


def test_annotations_that_name_images_of_another_folder_or_suffix_find_them() -> None:
    drawn.draw(Path('mine/photos/x.JPG'), 1)
    drawn.draw(Path('mine/other/x.JPG'), 1)
    tree = Tree(Path('mine').absolute())
    label = Path('mine/photos/labels/x.xml').absolute()
    assert tree.image('C:\\data\\photos\\x.png', label, '') == Path('mine/photos/x.JPG').absolute()
    assert tree.image('other/x.jpg', label, '') == Path('mine/other/x.JPG').absolute()
    assert tree.image('x.JPG', label, '') == Path('mine/photos/x.JPG').absolute()
    with pytest.raises(AnnotationError, match=r"here: 'x' may be .*x.JPG or .*x.JPG"):
        tree.image('x', Path('mine/labels.json').absolute(), 'here')


def test_numbers_of_palettes_that_differ_from_file_to_file_mean_nothing_but_their_colours_do() -> None:
    """Masks that were each reduced to a palette of its own; classes are named by their colour."""
    colours = np.array([(0, 0, 0), (255, 0, 0), (0, 0, 255)], np.uint8)
    for number, image in enumerate(drawn.images(Path('mine/images'))):
        order = np.array([0, 1, 2] if number % 2 else [2, 1, 0], np.uint8)  # its own inverse
        mask = Image.fromarray(order[drawn.mask_of(number)])
        mask.putpalette(colours[order].tobytes())
        Path('mine/masks').mkdir(exist_ok=True)
        mask.save(f'mine/masks/{image.stem}.png')
    assert new() == 0
    assert yaml.safe_load(Path('mine_phalanx/mine.yml').read_text())['data']['classes'] == ['background', '#0000ff', '#ff0000']
    for path in Path('mine_phalanx/labels').iterdir():
        expected = np.array([0, 2, 1])[drawn.mask_of(int(path.stem[-1]))]
        np.testing.assert_array_equal(np.array(Image.open(path)), expected)


# Annotations as exporters write them.


def coco_of(**changes: Any) -> None:
    """`mine`, with a COCO file for six images; `changes` replaces keys of its annotations."""
    for number in range(6):
        drawn.draw(Path(f'mine/{number}.png'), number)
    images = [{'id': n, 'file_name': f'{n}.png', 'width': None, 'height': 0} for n in range(6)]
    box = {'bbox': [4, 5, 12, 10], 'category_id': 1}
    content = {
        'images': images,
        'annotations': [{'id': n, 'image_id': n, **box, **changes} for n in range(6)],
        'categories': [{'id': 0, 'name': 'background'}, {'id': 1, 'name': 'nut '}, {'id': '1', 'name': 7}],
    }
    Path('mine/a.json').write_text(json.dumps(content))


@pytest.mark.parametrize(
    ('changes', 'label', 'note'),
    [
        ({}, 'nut', ''),
        ({'bbox': ['4', '5.0', '12', '10']}, 'nut', ''),
        ({'category_id': '1'}, '7', ''),
        ({'segmentation': [[4, 5, 16, 15]]}, 'nut', 'outlines that cannot be used, of boxes that can: 6'),
        ({'segmentation': [[4, 5, 9000, 15, 4, 9]]}, 'nut', 'points far outside the image'),
    ],
)
def test_a_coco_box_is_used_with_any_outline_and_any_type_of_numbers(changes: dict[str, Any], label: str, note: str) -> None:
    coco_of(**changes)
    found = found_in('mine', 'coco')
    assert boxes_in(found) == {str(n): [(label, (4, 5, 16, 15))] for n in range(6)}
    assert note in ' '.join(found.notes)


@pytest.mark.parametrize('encoding', ['GB2312', 'gbk', 'utf-16', 'UTF-8', 'iso-8859-5', 'none'])
def test_xml_is_read_in_the_encoding_that_it_declares(encoding: str) -> None:
    drawn.voc(Path('mine'))
    label = 'Б' if encoding == 'iso-8859-5' else '猫'
    for path in Path('mine/Annotations').iterdir():
        text = path.read_text().replace('>bolt<', f'>{label}<')
        head = '' if encoding == 'none' else f'<?xml version="1.0" encoding="{encoding}"?>\n'
        path.write_bytes((head + text).encode('utf-8' if encoding == 'none' else encoding))
    assert label in found_in('mine', 'voc').class_names


def test_xml_that_is_not_in_its_encoding_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.voc(Path('mine'))
    for path in Path('mine/Annotations').iterdir():
        path.write_bytes(b'<?xml version="1.0" encoding="klingon"?><annotation>\xe9</annotation>')
    assert new() == 2
    said = capsys.readouterr().err
    assert 'voc: ' in said and 'is not klingon text' in said and '(and 9 more like it)' in said


@pytest.mark.parametrize('folder', ['Ground_Truth', 'ground-truth', 'GroundTruth', 'groundtruth', 'mask_images', 'Masks'])
def test_folders_of_masks_are_found_by_usual_names(folder: str) -> None:
    drawn.masks_binary(Path('mine'))
    Path('mine/masks').rename(Path('mine') / folder)
    Path('mine/images').rename('mine/Training_Images')
    found = found_in('mine', 'masks')
    assert len(found.samples) == drawn.COUNT
    assert {sample.image.parent.name for sample in found.samples} == {'Training_Images'}


def test_masks_are_not_counted_as_images_and_a_value_without_a_name_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.masks_palette(Path('mine'))
    Path('mine/labels.txt').write_text('background\nbolt\n')
    assert new() == 0
    said = capsys.readouterr().out
    assert f'mine: {drawn.COUNT} images, masks' in said
    assert 'labels.txt names 2 classes, but masks have values up to 2' in said


@pytest.mark.parametrize('suffix', ['nrm', 'bin'])
def test_lines_as_ocropus_writes_them_are_found(suffix: str) -> None:
    drawn.text_files(Path('mine'))
    for image in Path('mine').glob('*.png'):
        image.rename(image.with_suffix(f'.{suffix}.png'))
    if suffix == 'nrm':  # with the same lines in black and white beside them
        for image in [*Path('mine').glob('*.png')]:
            shutil.copyfile(image, str(image).replace('.nrm.', '.bin.'))
    assert sum(sample.text is not None for sample in found_in('mine', 'text_files').samples) == drawn.COUNT


@pytest.mark.parametrize('names', ['[no, yes]', '{0: no, 1: yes}', "{'0': no, '1': yes}", "['no', 'yes ']"])
def test_names_of_yolo_are_as_written_under_numbers_quoted_or_not(names: str) -> None:
    drawn.yolo(Path('mine'))
    Path('mine/data.yaml').write_text(f'names: {names}\n')
    assert found_in('mine', 'yolo').class_names == ('no', 'yes')


def test_a_time_limit_holds_without_the_trial(capsys: pytest.CaptureFixture[str]) -> None:
    """One epoch is the least; an hour is enough for more, on any machine."""
    drawn.coco(Path('mine'))
    epochs = []
    for minutes in ('0.0001', '60'):
        assert new('--minutes', minutes, '--out', minutes) == 0
        epochs.append(yaml.safe_load(next(Path(minutes).glob('*.yml')).read_text())['train']['epochs'])
    assert epochs[0] == 1 < epochs[1]
    assert 'one epoch, the least, takes longer than --minutes 0.0001' in capsys.readouterr().out


def test_tables_with_more_tokens_than_the_network_learns_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Two of eight; a cell of a table without spans is one token."""
    drawn.pubtabnet(Path('mine'))
    lines = [json.loads(line) for line in Path('mine/tables.jsonl').read_text().splitlines()]
    for line in lines[:2]:
        tokens = ['<tbody>', *(['<tr>', '<td>', '</td>', '</tr>'] * 200), '</tbody>']
        line['html'] = {'structure': {'tokens': tokens}, 'cells': [{'tokens': []}] * 200}
    Path('mine/tables.jsonl').write_text('\n'.join(map(json.dumps, lines)))
    assert new() == 0
    assert 'warning: 2 training tables (25%) with more than ' in capsys.readouterr().out


@pytest.mark.parametrize(('drawing', 'metric'), [(drawn.pubtabnet, 'teds'), (drawn.html_files, 'teds_structure')])
def test_the_best_table_network_is_that_of_boxes_too_where_there_are_some(drawing: Callable[[Path], None], metric: str) -> None:
    drawing(Path('mine'))
    assert new() == 0
    assert yaml.safe_load(Path('mine_phalanx/mine.yml').read_text())['main_metric'] == metric


def test_other_families_that_annotations_suit_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    drawn.coco(Path('mine'))
    assert new('--family', 'detection') == new('--out', 'other') == 0
    assert capsys.readouterr().out.count('  also suited to: ') == 1
