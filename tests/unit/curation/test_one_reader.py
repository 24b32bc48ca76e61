"""`phalanx new` and the data sets of recipes read a file alike: the same objects, or the same reason why there are none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import drawn
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.html_tables import find_pubtabnet
from phalanx.curation.prepare.lists import find_lists
from phalanx.curation.prepare.samples import AnnotationSet, LeftOut
from phalanx.curation.prepare.tree import Tree
from phalanx.data.samples import Draw, SampleError
from phalanx.families.detection.data.coco import CocoJson
from phalanx.families.detection.data.source import Source
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.table.data.pubtabnet import PubTabNet
from phalanx.families.text_detection.data.label_files import LabelFiles

Objects = dict[str, list[tuple[str, tuple[float, ...], bool]]]  # label, box and whether it is ignored, by image
SIZE = (64, 48)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ('a.png', 'b.png'):
        drawn.draw(tmp_path / 'JPEGImages' / name, 1, SIZE)
    return tmp_path


def rounded(box: Sequence[float]) -> tuple[float, ...]:
    return tuple(round(value, 3) for value in box)


def of_new(root: Path, name: str) -> Objects | str:
    """Objects as `phalanx new` finds them, or the first reason why some cannot be used."""
    refused: dict[str, LeftOut] = {}
    found = find_annotations(Tree(root), [name], refused).get(name)
    if found is None or found.left_out:
        return (found.left_out if found else refused[name])[0]
    return {
        sample.image.name: sorted((one.label, rounded(one.box), one.ignored) for one in sample.instances)
        for sample in found.samples
    }


def of_training(source: Source, class_names: tuple[str, ...]) -> Objects:
    """Objects in the order in which batches get them: clipped to their image. Raises SampleError."""
    found: Objects = {}
    for number in range(len(source)):
        image, objects = source.read(Draw(number))
        rows = objects.clipped(image.shape[1], image.shape[0]).rows()
        found[Path(source.name(number)).name] = sorted(
            (class_names[label], rounded(box), ignored) for box, label, ignored, _ in rows
        )
    return found


def check(root: Path, name: str, train: Callable[[], Objects], expected: Objects | str) -> None:
    """Both find the `expected` objects, or refuse the file for that reason."""
    if isinstance(expected, str):
        assert expected in of_new(root, name)
        with pytest.raises((ValueError, SampleError)) as refused:
            train()
        assert expected in str(refused.value)
    else:
        assert of_new(root, name) == train() == expected


def coco(**changes: Any) -> dict[str, Any]:
    """A box on `a.png` and one on `b.png`; `changes` by kind: (place in the list, changed keys), or a whole entry to add."""
    content: dict[str, list[Any]] = {
        'images': [{'id': n, 'file_name': f'{name}.png', 'width': 64, 'height': 48} for n, name in enumerate('ab', 1)],
        'annotations': [{'id': 10 + n, 'image_id': n, 'category_id': 3, 'bbox': [5, 6, 20, 10]} for n in (1, 2)],
        'categories': [{'id': 3, 'name': 'nut'}, {'id': 4, 'name': 'bolt'}],
    }
    for kind, entry in changes.items():
        if isinstance(entry, dict) and kind.removesuffix('_') in content and kind.endswith('_'):
            content[kind.removesuffix('_')].append(entry)
        else:
            content[kind][0] |= entry
    return content


PLAIN = ('nut', (5.0, 6.0, 25.0, 16.0), False)
BOTH = {'a.png': [PLAIN], 'b.png': [PLAIN]}


def with_a(*objects: tuple[str, tuple[float, ...], bool]) -> Objects:
    return {'a.png': sorted(objects), 'b.png': [PLAIN]}


@pytest.mark.parametrize(
    ('content', 'expected'),
    [
        (coco(), BOTH),
        (coco(images={'id': '1'}), BOTH),
        (coco(annotations={'image_id': '1', 'category_id': '3'}), BOTH),
        (coco(annotations={'image_id': 1.0, 'category_id': 3.0}), BOTH),
        (coco(images={'width': 0, 'height': 0}), BOTH),
        (coco(images={'width': None}), 'got only one of them'),
        (coco(images={'width': '64', 'height': '48'}), BOTH),
        (coco(images={'file_name': '.\\a.png'}), BOTH),
        (coco(annotations={'iscrowd': 1}), with_a(('nut', (5, 6, 25, 16), True))),
        (coco(annotations={'iscrowd': '0'}), BOTH),
        (coco(annotations={'iscrowd': 'perhaps'}), "annotation 11: iscrowd: expected 0 or 1, got 'perhaps'"),
        (coco(annotations={'bbox': ['5', '6.0', 20, 10]}), BOTH),
        (coco(annotations={'bbox': [25, 16, -20, -10]}), BOTH),
        (coco(annotations={'bbox': [50, 40, 90, 90]}), with_a(('nut', (50, 40, 64, 48), False))),
        (coco(annotations={'bbox': [5, 6, 'wide', 10]}), 'annotation 11: bbox: expected x, y, width and height'),
        (coco(annotations={'bbox': [], 'segmentation': [[5, 6, 25, 6, 25, 16]]}), BOTH),
        (
            coco(annotations={'bbox': None, 'segmentation': {'size': [48, 64], 'counts': [5 * 48 + 6, 10, 48 * 64 - 256]}}),
            with_a(('nut', (5, 6, 6, 16), False)),
        ),
        (coco(annotations={'bbox': None}), 'annotation 11 has no `bbox`'),
        (coco(annotations={'segmentation': [[5, 6, 7]]}), BOTH),
        (coco(annotations={'keypoints': [1, 1, 2]}), BOTH),
        (coco(annotations={'attributes': {'rotation': 90.0}}), with_a(('nut', (10, 1, 20, 21), False))),
        (coco(annotations={'category_id': 7}), 'annotation 11: category_id 7 is not the id of a category (they are 3, 4)'),
        (coco(annotations={'image_id': 7}), 'annotation 11: image_id 7 is not the id of an image'),
        (coco(annotations_={'image_id': 1, 'caption': 'two nuts'}), 'annotations[2]: is a caption of the image'),
        (coco(categories_={'id': 3, 'name': 'washer'}), "category 3, 'washer': the id or the name is used twice"),
        (coco(images={'id': 2}, annotations={'image_id': 2}), 'image 2: the id is used twice'),
        (
            coco(images_={'id': 9, 'file_name': 'a.png'}, annotations_={'image_id': 9, 'category_id': 4, 'bbox': [1, 2, 9, 9]}),
            with_a(PLAIN, ('bolt', (1, 2, 10, 11), False)),
        ),
        (
            coco(images_={'id': 9, 'file_name': 'a.png'}, annotations_={'image_id': 9, 'category_id': 3, 'bbox': PLAIN[1]}),
            with_a(PLAIN, ('nut', (5, 6, 30, 22), False)),
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize('encoding', ['utf-8', 'utf-8-sig', 'utf-16'])
def test_coco(root: Path, content: dict[str, Any], expected: Objects | str, encoding: str) -> None:
    (root / 'a.json').write_text(json.dumps(content), encoding=encoding)
    data = CocoJson(root=root, train='a.json', eval='a.json', train_images='JPEGImages', eval_images='JPEGImages')
    check(root, 'coco', lambda: of_training(data.split('eval'), data.class_names), expected)


def voc(name: str, inner: str, size: str = '<size><width>64</width><height>48</height></size>') -> str:
    return f'<annotation><filename>{name}</filename>{size}{inner}</annotation>'


def voc_object(inner: str) -> str:
    return f'<object><name> nut </name>{inner}</object>'


CORNERS = '<bndbox><xmin>5</xmin><ymin>6.0</ymin><xmax>25</xmax><ymax>16</ymax></bndbox>'
NUT = voc_object(CORNERS)
ROTATED = '<robndbox><cx>15</cx><cy>11</cy><w>10</w><h>20</h><angle>1.5707963267948966</angle></robndbox>'
TURNED = '<attributes><attribute><name>rotation</name><value>180</value></attribute></attributes>'
POLYGON = f'<polygon>{"".join(f"<pt><x>{x}</x><y>{y}</y></pt>" for x, y in ((5, 6), (25, 6), (9, 16)))}</polygon>'


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (voc('a.png', NUT), BOTH),
        (voc('before renaming.jpg', NUT), BOTH),
        (voc('a.png', NUT, ''), BOTH),
        (voc('a.png', NUT, '<size><width>0</width><height>0</height></size>'), BOTH),
        (voc('a.png', NUT, '<size><width/><height/></size>'), BOTH),
        (voc('a.png', NUT, '<size><width>32</width><height>24</height></size>'), '32 x 24'),
        (voc('a.png', voc_object(f'<difficult>1</difficult>{CORNERS}')), with_a(('nut', (5, 6, 25, 16), True))),
        (voc('a.png', voc_object(f'<difficult>Unspecified</difficult>{CORNERS}')), BOTH),
        (voc('a.png', voc_object(f'<difficult>3</difficult>{CORNERS}')), "object 1: difficult: expected 0 or 1, got '3'"),
        (voc('a.png', NUT + NUT.replace('nut', 'bolt').replace('<object>', '<object><deleted>1</deleted>')), BOTH),
        (voc('a.png', voc_object(CORNERS.replace('>5<', '>25<').replace('xmax>25', 'xmax>5'))), BOTH),
        (voc('a.png', voc_object(CORNERS.replace('6.0', 'six'))), 'object 1: bndbox: expected xmin, ymin, xmax and ymax'),
        (voc('a.png', voc_object('')), 'object 1: has no bndbox, robndbox, polygon or segm'),
        (voc('a.png', f'<object>{CORNERS}</object>'), 'object 1: has no name'),
        (voc('a.png', voc_object(ROTATED)), BOTH),
        (voc('a.png', voc_object(CORNERS + TURNED)), BOTH),
        (voc('a.png', voc_object(POLYGON)), BOTH),
    ],
)  # fmt: skip
@pytest.mark.parametrize('encoding', ['utf-8', 'utf-16', 'gb2312'])
def test_voc(root: Path, text: str, expected: Objects | str, encoding: str) -> None:
    (root / 'Annotations').mkdir()
    declaration = f'<?xml version="1.0" encoding="{encoding}"?>\n'
    (root / 'Annotations/a.xml').write_text(declaration + text, encoding=encoding)
    (root / 'Annotations/b.xml').write_text(voc('b.png', NUT))
    (root / 'all.txt').write_text('a\nb\n')

    data = PascalVOC(root=root, train='all.txt', eval='all.txt', classes=('nut', 'bolt'))
    check(root, 'voc', lambda: of_training(data.split('eval'), data.class_names), expected)


@pytest.mark.parametrize(('given', 'expected'), [((64, 48), 2), ((48, 64), 2), ((32, 24), 0)])
def test_a_tool_that_exchanges_width_and_height_is_known_by_its_boxes(
    root: Path, given: tuple[int, int], expected: int
) -> None:
    """The box on a reaches over the right edge of an image of 48 x 64; that on b fits both."""
    (root / 'Annotations').mkdir()
    size = '<size><width>{}</width><height>{}</height></size>'.format(*given)
    (root / 'Annotations/a.xml').write_text(voc('a.png', NUT.replace('>25<', '>60<'), size))
    (root / 'Annotations/b.xml').write_text(voc('b.png', NUT, size))
    (root / 'all.txt').write_text('a\nb\n')
    source = PascalVOC(root=root, train='all.txt', eval='all.txt', classes=('nut',)).split('eval')
    found = find_annotations(Tree(root), ['voc'])
    assert sum(len(each.samples) for each in found.values()) == expected
    for number in range(2):
        if expected:
            assert source.read(Draw(number))[1].boxes.tolist() == [[5, 6, 25 if number else 60, 16]]
        else:
            with pytest.raises(SampleError, match='was annotated as 32 x 24'):
                source.read(Draw(number))


PAGES = {
    'difficult': ('[{"transcription": "a", "points": [[1, 1], [9, 1], [9, 5], [1, 5]], "difficult": true}]', [True]),
    'difficult as a number': ('[{"transcription": "a", "points": [[1, 1], [9, 1], [9, 5]], "difficult": 1}]', [True]),
    'difficult as a word': ('[{"transcription": "a", "points": [[1, 1], [9, 1], [9, 5]], "difficult": "true"}]', None),
    'curved': ('[{"transcription": "a", "points": [[1, 1], [9, 1], [5, 5]]}]', [False]),
    'empty': ('[]', []),
    'two points': ('[{"transcription": "a", "points": [[1, 1], [9, 9]]}]', None),
    'a number': ('[{"transcription": 7, "points": [[1, 1], [9, 1], [9, 5]]}]', None),
    'cut off': ('[{"transcription": "a", "points": [[1, 1], [9', None),
}


@pytest.mark.parametrize('name', PAGES)
def test_label_files_of_pages_are_read_alike(name: str, tmp_path: Path) -> None:
    """`ignored` of each text, or None if the line is refused, with file and line, in training and in `phalanx new`."""
    entries, ignored = PAGES[name]
    drawn.draw(tmp_path / 'a.png', 1)
    (tmp_path / 'train.txt').write_text(f'a.png\t{entries}\n')
    data, found = LabelFiles(root=tmp_path, train=('train.txt',)), AnnotationSet()
    find_lists(Tree(tmp_path), found)
    if ignored is None:
        assert not found.samples
        assert f'{tmp_path}/train.txt:1: ' in found.left_out[0]
        with pytest.raises(ValueError, match=re.escape(found.left_out[0])):
            data.split('train')
    else:
        assert [instance.ignored for instance in found.samples[0].instances] == ignored
        assert [*data.split('train').truths[0].ignored] == ignored


@pytest.mark.parametrize(
    ('lines', 'texts', 'reasons'),
    [
        ('a.png\t\nb.png\ttwo\nc.png\tthree\n', ['two', 'three'], []),
        ('# by hand\na.png\tone\nb.png\ttwo\n', ['one', 'two'], []),
        ('filename,text\na.png,one\nb.png,two\n', ['one', 'two'], ["train.txt:1: there is no image 'filename'"]),
        ('a.png\tone\n["b.png", "c.png"]\ttwo\n', ['one'], ['train.txt:2: names a list of images']),
        ('a.png\t[ {"transcription": "one", "points": [[1, 1], [9, 1], [9, 9]]} ]\nb.png\t[ ]\n', [None, None], []),
        (
            'a.png\tone\nb.png\t{"transcription": "two", "points": [[1, 1], [9, 1], [9, 9]]}\n',
            ['one'],
            ['expected a list of texts'],
        ),
        ('name,x0,y0,x1,y1,class\na.png,1,2,3,4,x\nb.png,1,2,3,4,y\n', [], []),
        ('What is shown:\na.png has a cat\nb.png has a dog\n', [], []),
    ],
)
def test_the_first_line_does_not_decide_alone_what_a_list_is(
    lines: str, texts: list[str], reasons: list[str], tmp_path: Path
) -> None:
    for name in 'abc':
        drawn.draw(tmp_path / f'{name}.png', 1)
    (tmp_path / 'train.txt').write_text(lines)
    found = AnnotationSet()
    find_lists(Tree(tmp_path), found)
    assert [sample.text for sample in found.samples] == texts
    assert len(found.left_out) == len(reasons)
    assert all(reason in said for reason, said in zip(reasons, found.left_out, strict=True))


TABLES: dict[str, tuple[Any, bool]] = {
    'plain': ({'structure': {'tokens': ['<tr>', '<td>', '</td>', '</tr>']}, 'cells': [{'tokens': ['a']}]}, True),
    'a cell with spans as one token': (
        {'structure': {'tokens': ['<td colspan="2">', '</td>']}, 'cells': [{'tokens': []}]},
        False,
    ),
    'too few cells': ({'structure': {'tokens': ['<tr>', '<td>', '</td>', '</tr>']}, 'cells': []}, False),
    'a cell without keys': ({'structure': {'tokens': ['<td>', '</td>']}, 'cells': [7]}, False),
    'a box of three numbers': (
        {'structure': {'tokens': ['<td>', '</td>']}, 'cells': [{'tokens': ['a'], 'bbox': [1, 2, 3]}]},
        False,
    ),
    'no structure': ({'structure': {'tokens': []}}, False),
}


@pytest.mark.parametrize('name', TABLES)
def test_lines_of_tables_are_read_alike(name: str, tmp_path: Path) -> None:
    html, is_table = TABLES[name]
    drawn.draw(tmp_path / 'train/a.png', 1)
    file = tmp_path / 'tables.jsonl'
    file.write_text(json.dumps({'filename': 'a.png', 'html': html}) + '\n')
    found, source = AnnotationSet(), PubTabNet(root=tmp_path, train=file.name).split('train')
    find_pubtabnet(Tree(tmp_path), found)
    if is_table:
        assert [json.loads(sample.table or '') for sample in found.samples] == [html]
        assert len(source.read(Draw(0))[1].cells) == 1
    else:
        assert not found.samples
        assert f'{file}:1: its annotation cannot be used: ' in found.left_out[0]
        with pytest.raises(SampleError, match=re.escape(found.left_out[0].partition('used: ')[2])):
            source.read(Draw(0))
