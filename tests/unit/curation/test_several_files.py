"""Images annotated by several files: an object that cannot be read in one of them drops the image, whatever the others list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import drawn
from phalanx.curation.prepare.coco import read_coco
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.samples import AnnotationSet
from phalanx.curation.prepare.tree import Tree
from running import run_here

GOOD, BAD = ['a.png', 'b.png', 'c.png'], ['a.png']


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in GOOD:
        drawn.draw(Path('mine', name), 1)


def read(name: str) -> AnnotationSet:
    tree = Tree(Path('mine').absolute())
    found = find_annotations(tree, [name])[name]
    found.left_out[:0] = tree.unreadable
    return found


def coco(images: list[str], width: object) -> dict[str, Any]:
    return {
        'images': [{'id': n, 'file_name': name, 'width': 64, 'height': 48} for n, name in enumerate(images)],
        'annotations': [{'id': n, 'image_id': n, 'category_id': 1, 'bbox': [1, 1, width, 9]} for n, _ in enumerate(images)],
        'categories': [{'id': 1, 'name': 'one'}],
    }


def cvat(images: list[str], width: object) -> str:
    box = f'<box label="one" xtl="1" ytl="1" xbr="{width}" ybr="9"/>'
    shown = ''.join(f'<image id="{n}" name="{name}" width="64" height="48">{box}</image>' for n, name in enumerate(images))
    return f'<annotations>{shown}</annotations>'


def labelme(image: str, width: object) -> dict[str, Any]:
    shape = {'label': 'one', 'shape_type': 'rectangle', 'points': [[1, 1], [width, 9]]}
    return {'imagePath': image, 'imageWidth': 64, 'imageHeight': 48, 'shapes': [shape]}


def datumaro(images: list[str], width: object) -> dict[str, Any]:
    box = {'id': 1, 'type': 'bbox', 'label_id': 0, 'bbox': [1, 1, width, 9]}
    items = [{'id': name, 'image': {'path': name}, 'annotations': [box]} for name in images]
    return {'categories': {'label': {'labels': [{'name': 'one'}]}}, 'items': items}


def createml(images: list[str], width: object) -> list[dict[str, Any]]:
    box = {'label': 'one', 'coordinates': {'x': 10, 'y': 10, 'width': width, 'height': 9}}
    return [{'image': name, 'annotations': [box]} for name in images]


WRITERS = {'coco': (coco, 'json'), 'cvat': (cvat, 'xml'), 'datumaro': (datumaro, 'json'), 'createml': (createml, 'json')}


@pytest.mark.parametrize('name', WRITERS)
def test_an_object_that_cannot_be_read_in_one_file_drops_its_image(name: str) -> None:
    write, suffix = WRITERS[name]
    drawn.write(Path(f'mine/good.{suffix}'), write(GOOD, 20))
    drawn.write(Path(f'mine/bad.{suffix}'), write(BAD, 'wide'))
    found = read(name)
    assert [sample.image.name for sample in found.samples] == ['b.png', 'c.png']
    assert any('bad.' in problem and 'wide' in problem for problem in found.left_out), found.left_out


@pytest.mark.parametrize('name', WRITERS)
def test_images_that_a_damaged_file_names_are_not_used(name: str) -> None:
    """Its objects on them would become background; JSON writes umlauts as escapes."""
    write, suffix = WRITERS[name]
    drawn.draw(Path('mine/ü d.png'), 1)
    drawn.write(Path(f'mine/good.{suffix}'), write([*GOOD, 'ü d.png'], 20))
    whole = write(['C:\\data\\a.png' if suffix == 'xml' else 'x/a.png', 'ü d.png'], 20)
    text = whole if isinstance(whole, str) else json.dumps(whole)
    Path(f'mine/damaged.{suffix}').write_text(text[:-3])
    found = read(name)
    assert [sample.image.name for sample in found.samples] == ['b.png', 'c.png']
    assert any('damaged.' in problem for problem in found.left_out)
    assert any('a.png (and 1 more): a file that cannot be read may have objects on it' in why for why in found.left_out)


def test_a_labelme_shape_that_cannot_be_read_drops_its_image_in_all_files() -> None:
    for name in GOOD:
        drawn.write(Path(f'mine/{name}.json'), labelme(name, 20))
    drawn.write(Path('mine/again/a.json'), labelme('a.png', 'wide'))
    assert [sample.image.name for sample in read('labelme').samples] == ['b.png', 'c.png']


def test_a_list_of_faces_that_is_cut_off_shows_no_image_without_faces() -> None:
    text = 'a.png\n1\n1 1 20 9 0 0 0 0 0 0\nb.png\n0\n0 0 0 0 0 0 0 0 0 0\nc.png\n'
    drawn.write(Path('mine/train_bbx_gt.txt'), text)
    found = read('wider_face')
    assert [(sample.image.name, len(sample.instances)) for sample in found.samples] == [('a.png', 1), ('b.png', 0)]
    assert 'train_bbx_gt.txt:7' in found.left_out[0]


@pytest.mark.parametrize('words', [['train.json', 'valid.json', '--images', 'mine'], ['mine']])
def test_coco_files_of_splits_are_prepared_together(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Files beside a folder of images, or in one folder with them; the split is that of the files."""
    for file, images in (('train.json', GOOD[:2]), ('valid.json', GOOD[2:])):
        content = coco(images, 20)
        drawn.write(Path('mine', file), content)
        Path(file).write_text(json.dumps(content))
    assert run_here('data', 'prepare', 'coco', *words, '--family', 'detection', '--out', 'out') == 0
    assert '2 in train, 1 in val; split as the annotations say' in capsys.readouterr().out


def test_coco_files_of_classes_are_joined() -> None:
    for label in ('one', 'two'):
        content = coco(GOOD, 20) | {'categories': [{'id': 1, 'name': label}]}
        Path(f'{label}.json').write_text(json.dumps(content))
    found = read_coco([Path('one.json'), Path('two.json')], Path('mine'), outlined=False)
    assert [[instance.label for instance in sample.instances] for sample in found.samples] == [['one', 'two']] * 3
