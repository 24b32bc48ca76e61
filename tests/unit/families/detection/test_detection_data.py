"""Data sets of detection, written by hand into an empty folder, and what is said when something is wrong with them."""

import copy
import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from phalanx.curation.census import Census
from phalanx.data.samples import Draw, SampleError
from phalanx.engine.job import open_job
from phalanx.families.detection.data import DATA, Objects
from phalanx.families.detection.data.coco import CocoJson, Objects365
from phalanx.families.detection.data.digit_scenes import DigitScenes
from phalanx.families.detection.data.voc import PascalVOC
from phalanx.families.detection.data.yolo import YoloText, label_path
from phalanx.families.detection.survey import BoxSurvey

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


def write_image(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(PICTURE).save(path)


def rows(objects: Objects) -> list[tuple[list[float], int, bool]]:
    """Box, class, ignored of each object."""
    found = zip(objects.boxes.tolist(), objects.classes.tolist(), objects.ignored.tolist(), strict=True)
    return [(box, label, ignored) for box, label, ignored in found]


def annotation(number: int, image: Any, category: Any, bbox: Any, **more: Any) -> dict[str, Any]:
    return {'id': number, 'image_id': image, 'category_id': category, 'bbox': bbox, 'iscrowd': 0, **more}


def coco() -> dict[str, Any]:
    """Three images of 60 x 40: one with two objects and a crowd, one with a crowd only, one with nothing."""
    return {
        'images': [{'id': n, 'file_name': f'{n}.png', 'width': 60, 'height': 40} for n in (7, 3, 9)],
        'categories': [{'id': 90, 'name': 'toothbrush'}, {'id': 13, 'name': 'stop sign'}],
        'annotations': [
            annotation(1, 7, 13, [10, 20, 30, 10], area=123.5),
            annotation(2, 3, 90, [0, 0, 60, 40], iscrowd=1, area=2000),
            annotation(3, 7, 90, [0.5, 0, 2, 4]),
            annotation(4, 7, 13, [1, 1, 50, 0]),
            annotation(5, 7, 13, [50, 30, 20, 5], iscrowd=1),
        ],
    }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in (3, 7, 9):
        write_image(tmp_path / f'pictures/{number}.png')
    (tmp_path / 'boxes.json').write_text(json.dumps(coco()))
    return tmp_path


def coco_data(root: Path, **options: Any) -> CocoJson:
    named = {'train': 'boxes.json', 'eval': 'boxes.json', 'train_images': 'pictures', 'eval_images': 'pictures'}
    return CocoJson(**{'root': root, **named, **options})


def test_several_files_of_a_split_are_read_as_one(root: Path) -> None:
    """Ids mean something within their file only; an object in two files counts once."""
    own, other = coco(), coco()
    own['annotations'] = [annotation(1, 7, 90, [0.5, 0, 2, 4])]
    other['images'] = [{'id': 90, 'file_name': '7.png', 'width': 60, 'height': 40}]
    other['categories'] = [{'id': 1, 'name': 'stop sign'}, {'id': 2, 'name': 'toothbrush'}]
    other['annotations'] = [annotation(1, 90, 1, [10, 20, 30, 10]), annotation(2, 90, 2, [0.5, 0, 2, 4])]
    (root / 'a.json').write_text(json.dumps(own))
    (root / 'b.json').write_text(json.dumps(other))
    data = coco_data(root, train=('a.json', 'b.json'), eval=('a.json', 'b.json'))
    assert data.class_names == ('toothbrush', 'stop sign')
    _, objects = data.split('train').read(Draw(0, 0, 0, 0))
    assert rows(objects) == [([0.5, 0, 2.5, 4], 0, False), ([10, 20, 40, 30], 1, False)]
    assert len(data.split('eval')) == 3


def test_files_that_disagree_about_the_size_of_an_image_are_refused(root: Path) -> None:
    (root / 'b.json').write_text(json.dumps(coco() | {'images': [{'id': 7, 'file_name': '7.png', 'width': 6, 'height': 4}]}))
    with pytest.raises(ValueError, match=r'b\.json: image 7: 7\.png is listed before, with 60 x 40 pixels'):
        coco_data(root, train=('boxes.json', 'b.json')).split('train')


def test_category_ids_with_gaps_become_classes_in_the_order_of_the_file(root: Path) -> None:
    data = coco_data(root)
    assert data.class_names == ('toothbrush', 'stop sign')
    source = data.split('eval')
    image, objects = source.read(Draw(0))
    assert_array_equal(image, PICTURE)
    assert (len(source), source.name(0)) == (3, str(root / 'pictures/7.png'))
    assert rows(objects) == [([10, 20, 40, 30], 1, False), ([0.5, 0, 2.5, 4], 0, False), ([50, 30, 70, 35], 1, True)]
    assert objects.areas.tolist() == [123.5, 8, 100]  # as annotated, and otherwise that of the box


def test_what_was_odd_is_counted(root: Path) -> None:
    assert coco_data(root).split('eval').notes == {
        'boxes without area, left out': 1,
        'crowds or difficult objects, neither trained on nor evaluated': 2,
        'boxes that reach out of their image, cut off in training': 1,
        'images without objects': 2,
    }


def test_corners_in_the_place_of_width_and_height_are_suspected(root: Path) -> None:
    """Twelve boxes in the lower right quarter of an image of 60 x 40, written as x0, y0, x1, y1."""
    boxes = [annotation(n, 7, 90, [35, 25, 45, 35]) for n in range(12)]
    (root / 'boxes.json').write_text(json.dumps({**coco(), 'annotations': boxes}))
    (note,) = (what for what in coco_data(root).split('train').notes if 'reach out' in what)
    assert note.endswith('are corners written where width and height are expected?')


def test_images_with_nothing_to_learn_are_evaluated_but_trained_on_only_on_request(root: Path) -> None:
    names = [[Path(s.name(n)).stem for n in range(len(s))] for s in map(coco_data(root).split, ('train', 'eval'))]
    assert names == [['7'], ['7', '3', '9']]
    assert len(coco_data(root, empty_images=True).split('train')) == 3
    crowd_only = coco_data(root).split('eval').read(Draw(1))[1]
    assert rows(crowd_only) == [([0, 0, 60, 40], 0, True)]
    assert len(coco_data(root).split('eval').read(Draw(2))[1]) == 0


def test_classes_may_be_named_in_another_order(root: Path) -> None:
    (root / 'names.txt').write_text('stop sign\ntoothbrush\ncomb\n')
    data = coco_data(root, classes='names.txt')
    assert data.class_names == ('stop sign', 'toothbrush', 'comb')
    assert data.split('eval').read(Draw(0))[1].classes.tolist() == [0, 1, 0]


def test_named_classes_need_no_files_before_samples_are_read(tmp_path: Path) -> None:
    """A trained run is to predict on a node without its training data."""
    nowhere = tmp_path / 'nowhere'
    assert coco_data(nowhere, classes=('a', 'b')).class_names == ('a', 'b')
    assert len(PascalVOC(root=nowhere).class_names) == 20
    assert YoloText(root=nowhere, classes=('a',)).class_names == ('a',)


def test_what_a_source_holds_is_small(root: Path) -> None:
    """A loader worker gets a copy of it: numbers in a few arrays, no object for each box."""
    content = coco()
    content['annotations'] = [annotation(n, 7, 13, [1, 1, 2, 3]) for n in range(5000)]
    (root / 'boxes.json').write_text(json.dumps(content))
    source = coco_data(root).split('train')
    assert len(pickle.dumps(source)) < 5000 * 40
    assert len(copy.deepcopy(source).read(Draw(0))[1]) == 5000


def change(*path: Any, to: Any) -> Callable[[dict[str, Any]], None]:
    def do(content: dict[str, Any]) -> None:
        place: Any = content
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return do


@pytest.mark.parametrize(
    ('spoil', 'message'),
    [
        (
            change('annotations', 2, 'category_id', to=5),
            'annotation 3: category_id 5 is not the id of a category (they are 90, 13)',
        ),
        (change('annotations', 0, 'image_id', to=8), 'annotation 1: image_id 8 is not the id of an image; fix or remove'),
        (change('annotations', 0, 'bbox', to=[1, 2, 3]), 'annotation 1: bbox: expected x, y, width and height, got 1 2 3'),
        (change('annotations', 0, 'bbox', to='wide'), 'annotation 1: bbox: expected x, y, width and height, got wide'),
        (change('annotations', 0, 'bbox', to=[1, 2, 3, float('nan')]), 'annotation 1: bbox: expected x, y, width and height'),
        (change('annotations', 0, to={'id': 77}), 'annotation 77 has no `image_id`'),
        (change('annotations', 0, 'image_id', to={'a': 1}), 'annotation 1 has an invalid `image_id`'),
        (change('images', 1, 'id', to=7), 'image 7: the id is used twice; give 3.png another'),
        (
            change('images', 1, 'file_name', to='../../secret.png'),
            "image 3: file_name: '../../secret.png' lies outside the data",
        ),
        (change('images', 1, 'file_name', to='/etc/passwd'), "image 3: file_name: '/etc/passwd' lies outside the data set"),
        (change('images', 1, 'width', to='wide'), 'image 3: expected height and width, got 40 wide'),
        (change('categories', 1, 'id', to=90), "category 90, 'stop sign': the id or the name is used twice"),
        (change('annotations', to={}), 'is not in the format of COCO: it needs lists `images`, `annotations` and `categories`'),
        (change('annotations', to=[]), 'boxes.json: not one of 3 images has an object; check the annotations'),
    ],
)
def test_a_malformed_annotation_is_reported_before_any_sample_is_read(
    root: Path, spoil: Callable[[dict[str, Any]], None], message: str
) -> None:
    content = coco()
    spoil(content)
    (root / 'boxes.json').write_text(json.dumps(content))
    with pytest.raises(ValueError, match=re.escape(message)):
        coco_data(root).split('train')


def test_an_annotation_file_is_read_again_when_it_has_changed(root: Path) -> None:
    """A cached file is read again after it changed, and oddities are not counted twice."""
    data = coco_data(root)
    first, again = data.split('train'), data.split('train')
    assert first.notes == again.notes
    path = root / data.files['train'][0]
    content = json.loads(path.read_text())
    content['annotations'] = content['annotations'][:1]
    path.write_text(json.dumps(content))
    assert len(data.split('train').read(Draw(0))[1]) == 1 < len(first.read(Draw(0))[1])


def test_categories_that_are_no_classes_are_reported(root: Path) -> None:
    with pytest.raises(ValueError, match='has categories that are not classes: stop sign; name them'):
        coco_data(root, classes=('toothbrush',)).split('train')


def test_missing_files_are_reported_with_what_names_them(root: Path) -> None:
    (root / 'pictures/3.png').unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f'1 file is missing in {root}: pictures/3.png')):
        coco_data(root).split('eval').check_files()
    (root / 'boxes.json').write_text('{"images": [')
    with pytest.raises(ValueError, match=re.escape(f'{root}/boxes.json: is not JSON')):
        coco_data(root).split('eval')
    with pytest.raises(FileNotFoundError, match='there is no such file'):
        coco_data(root, eval='other.json').split('eval')
    with pytest.raises(ValueError, match=re.escape("data.eval: '../boxes.json' lies outside the data set")):
        coco_data(root, eval='../boxes.json')


@pytest.mark.parametrize('name', ['coco', 'objects365', 'pascal_voc', 'yolo'])
def test_a_missing_root_is_reported_with_the_key_that_names_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(FileNotFoundError, match=r'there is no such folder; data\.root must name the folder'):
        DATA[name](root=tmp_path / 'nowhere', classes=('a',)).split('train')  # type: ignore[operator]


def test_an_image_of_another_size_than_annotated_is_no_sample(root: Path) -> None:
    content = coco()
    content['images'][0] |= {'width': 40, 'height': 60}
    (root / 'boxes.json').write_text(json.dumps(content))
    with pytest.raises(
        SampleError, match=re.escape('7.png is 60 x 40 pixels, but was annotated as 40 x 60: its boxes may not')
    ):
        coco_data(root).split('train').read(Draw(0))


@pytest.mark.parametrize('place', ['images/v1/patch8/x.png', 'patch8/x.png', 'x.png'])
def test_objects365_images_are_found_in_each_usual_layout(tmp_path: Path, place: str) -> None:
    write_image(tmp_path / 'train' / place)
    content = coco() | {'images': [{'id': 7, 'file_name': 'images/v1/patch8/x.png', 'width': 60, 'height': 40}]}
    content['annotations'] = content['annotations'][:1]
    (tmp_path / 'annotations').mkdir()
    (tmp_path / 'annotations/zhiyuan_objv2_train.json').write_text(json.dumps(content))
    data = Objects365(root=tmp_path)
    source = data.split('train')
    assert data.class_names == ('toothbrush', 'stop sign')
    assert (len(source), source.name(0)) == (1, str(tmp_path / 'train' / place))


def voc_object(name: str, box: tuple[float, ...], difficult: str = '') -> str:
    corners = ''.join(f'<{key}>{value}</{key}>' for key, value in zip(('xmin', 'ymin', 'xmax', 'ymax'), box, strict=False))
    return f'<object><name>{name}</name>{difficult}<bndbox>{corners}</bndbox></object>'


SIZE = '<size><width>60</width><height>40</height><depth>3</depth></size>'
DOG = voc_object('dog', (8, 12, 35.5, 40))
HARD_CAT = voc_object('cat', (1, 1, 20, 30), '<difficult>1</difficult>')


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """VOC's own layout, with one image."""
    write_image(tmp_path / 'JPEGImages/000005.jpg')
    (tmp_path / 'Annotations').mkdir()
    (tmp_path / 'Annotations/000005.xml').write_text(f'<annotation>{SIZE}{DOG}{HARD_CAT}</annotation>')
    (tmp_path / 'ImageSets/Main').mkdir(parents=True)
    for split in ('trainval', 'test'):
        (tmp_path / f'ImageSets/Main/{split}.txt').write_text('000005\n')
    return tmp_path


def test_voc_difficult_objects_are_trained_on_but_not_evaluated(voc: Path) -> None:
    """The dog ends at row 40, as VOC counts from 1; PaddleDetection cuts it off at 39."""
    data = PascalVOC(root=voc)
    dog, cat = [8, 12, 35.5, 39], [1, 1, 20, 30]
    assert rows(data.split('train').read(Draw(0))[1]) == [(dog, 11, False), (cat, 7, False)]
    assert rows(data.split('eval').read(Draw(0))[1]) == [(dog, 11, False), (cat, 7, True)]
    assert rows(PascalVOC(root=voc, learn_difficult=False).split('train').read(Draw(0))[1])[1] == (cat, 7, True)


def test_voc_lists_may_name_images_and_annotations(voc: Path) -> None:
    (voc / 'pairs.txt').write_text('JPEGImages/000005.jpg Annotations/000005.xml\n')
    source = PascalVOC(root=voc, train='pairs.txt', classes=('cat', 'dog')).split('train')
    assert source.read(Draw(0))[1].classes.tolist() == [1, 0]


def test_a_missing_voc_annotation_is_reported_before_training_and_is_one_bad_sample_to_a_check(voc: Path) -> None:
    """In training, too, where images without objects are left out: who knows what it shows?"""
    (voc / 'ImageSets/Main/trainval.txt').write_text('000005\n000006\n')
    write_image(voc / 'JPEGImages/000006.jpg')
    source = PascalVOC(root=voc).split('train')
    with pytest.raises(FileNotFoundError, match=re.escape(f'1 file is missing in {voc}: Annotations/000006.xml')):
        source.check_files()
    assert len(source.read(Draw(0))[1]) == 2
    with pytest.raises(SampleError, match=re.escape(f'{voc}/Annotations/000006.xml: there is no such file')):
        source.read(Draw(1))


@pytest.mark.parametrize('file', ['a b.JPG', 'ä  c.png', 'a.b.JPEG', 'x.webp'])
def test_voc_names_may_have_spaces_and_images_any_suffix(voc: Path, file: str) -> None:
    (voc / f'JPEGImages/{file}').write_bytes((voc / 'JPEGImages/000005.jpg').read_bytes())
    name = Path(file).stem
    (voc / f'Annotations/{name}.xml').write_text((voc / 'Annotations/000005.xml').read_text())
    (voc / 'ImageSets/Main/trainval.txt').write_text(f'{name}\n')
    (voc / 'pairs.txt').write_text(f'JPEGImages/{file} Annotations/{name}.xml\n')
    for listed in ('ImageSets/Main/trainval.txt', 'pairs.txt'):
        source = PascalVOC(root=voc, train=listed).split('train')
        source.check_files()
        assert (source.name(0), len(source.read(Draw(0))[1])) == (f'{voc}/JPEGImages/{file}', 2)


def test_voc_boxes_outside_of_the_image_are_counted(voc: Path) -> None:
    """Of 60 x 40 pixels. One that ends at the width, as VOC counts, does not reach out."""
    boxes = [voc_object('dog', box) for box in ((1, 1, 60, 40), (50, 10, 90, 20), (-9, 10, 20, 20), (70, 10, 90, 20))]
    (voc / 'Annotations/000005.xml').write_text(f'<annotation>{SIZE}{"".join(boxes)}</annotation>')
    notes = PascalVOC(root=voc).split('train').notes
    assert notes == {'boxes that reach out of their image, cut off in training': 3}


def test_a_wrong_size_in_voc_is_reported_and_drops_no_box_silently(voc: Path) -> None:
    """The box lies outside of the size that the annotation says, and inside the image."""
    small = SIZE.replace('60', '20').replace('40', '5')
    (voc / 'Annotations/000005.xml').write_text(f'<annotation>{small}{voc_object("dog", (30, 10, 50, 30))}</annotation>')
    with pytest.raises(SampleError, match='is 60 x 40 pixels, but was annotated as 20 x 5'):
        PascalVOC(root=voc).split('train').read(Draw(0))


BOMB = '<!DOCTYPE a [<!ENTITY b "bbbb"><!ENTITY c "&b;&b;">]>'


@pytest.mark.parametrize(
    ('file', 'content', 'message'),
    [
        ('Annotations/000005.xml', f'{BOMB}<annotation>{SIZE}</annotation>', '000005.xml: has a document type'),
        ('Annotations/000005.xml', '<annotation>', '000005.xml: is not well-formed XML (no element found'),
        (
            'Annotations/000005.xml',
            f'<annotation>{voc_object("cow", (1, 2, 3))}</annotation>',
            'object 1: bndbox: expected xmin',
        ),
        (
            'Annotations/000005.xml',
            f'<annotation>{DOG}{voc_object("cou", (1, 2, 3, 4))}</annotation>',
            "object 2: 'cou' is not a class",
        ),
        (
            'ImageSets/Main/trainval.txt',
            'a b.xml c.xml',
            'trainval.txt:1: expected a name, or the paths of an image and of its',
        ),
        ('ImageSets/Main/trainval.txt', '../../secret', "trainval.txt:1: 'JPEGImages/../../secret.jpg' lies outside"),
    ],
)
def test_a_malformed_voc_annotation_is_reported(voc: Path, file: str, content: str, message: str) -> None:
    (voc / file).write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        PascalVOC(root=voc).split('train')


def test_a_document_type_cannot_hide_in_another_encoding(voc: Path) -> None:
    (voc / 'Annotations/000005.xml').write_bytes(f'{BOMB}<annotation>{SIZE}</annotation>'.encode('utf-16'))
    with pytest.raises(ValueError, match='has a document type'):
        PascalVOC(root=voc).split('train')


YOLO_UNSEEN = 'images without a file of labels (an empty one: no object), left out'


@pytest.fixture
def yolo(tmp_path: Path) -> Path:
    """Three images for training, one of them without objects and one that nobody annotated."""
    for name in ('train/a', 'train/b', 'train/unseen', 'val/c'):
        write_image(tmp_path / f'images/{name}.png')
    for split in ('train', 'val'):
        (tmp_path / 'labels' / split).mkdir(parents=True)
    (tmp_path / 'labels/train/a.txt').write_text('1 0.5 0.5 0.2 0.5\n\n0 0.05 0.05 0.2 0.1\n')
    (tmp_path / 'labels/train/b.txt').touch()
    (tmp_path / 'labels/val/c.txt').write_text('1 0.5 0.5 0.2 0.5\n')
    (tmp_path / 'data.yaml').write_text('names: {0: cat, 1: dog}\n')
    return tmp_path


def test_other_images_that_data_yaml_names_are_reported_as_not_used(yolo: Path) -> None:
    names = (yolo / 'data.yaml').read_text()
    (yolo / 'data.yaml').write_text(f'path: ../sets\ntrain: [./images/train, images/more]\nval: ./images/val/\n{names}')
    expected = "entry of data.yaml (['./images/train', 'images/more']), not used: data.train is images/train"
    assert YoloText(root=yolo).split('train').notes[expected] == 1
    (yolo / 'data.yaml').write_text(f'train: ./images/train/\n{names}')
    assert not any('data.yaml' in note for note in YoloText(root=yolo).split('train').notes)


def test_a_line_that_is_repeated_is_one_object(yolo: Path) -> None:
    """Ultralytics drops it, too; merged exports write objects twice."""
    (yolo / 'labels/train/a.txt').write_text('1 0.5 0.5 0.2 0.5\n0 .1 .1 .1 .1\n1  0.5 0.5 0.2 0.5 \n')
    assert YoloText(root=yolo).split('train').read(Draw(0))[1].classes.tolist() == [1, 0]


def test_yolo_boxes_are_fractions_around_their_middle(yolo: Path) -> None:
    """Of 60 x 40 pixels: 30 +- 6 by 20 +- 10, and 3 +- 6 by 2 +- 2."""
    data = YoloText(root=yolo)
    train = data.split('train')
    assert (data.class_names, len(train)) == (('cat', 'dog'), 2)
    objects = train.read(Draw(0))[1]
    np.testing.assert_allclose(objects.boxes, [[24, 10, 36, 30], [-3, 0, 9, 4]], atol=1e-5)
    assert objects.classes.tolist() == [1, 0]
    np.testing.assert_allclose(objects.areas, [240, 48], rtol=1e-5)
    assert len(train.read(Draw(1))[1]) == 0
    assert train.notes == {
        YOLO_UNSEEN: 1,
        'boxes that reach out of their image, cut off in training': 1,
        'images without objects': 1,
    }
    assert len(YoloText(root=yolo, empty_images=False).split('train')) == 1


def test_of_a_yolo_polygon_the_bounding_box_is_taken_and_a_confidence_is_left_out(yolo: Path) -> None:
    """Of 60 x 40 pixels: a triangle from (6, 4) to (30, 20), as segmentation tools export; and a predicted box."""
    (yolo / 'labels/train/a.txt').write_text('1 0.1 0.3 0.5 0.5 0.3 0.1\n0 0.5 0.5 0.2 0.5 0.93\n')
    train = YoloText(root=yolo).split('train')
    objects = train.read(Draw(0))[1]
    np.testing.assert_allclose(objects.boxes, [[6, 4, 30, 20], [24, 10, 36, 30]], atol=1e-5)
    assert objects.classes.tolist() == [1, 0]
    assert train.notes['polygons, of which the bounding boxes are taken'] == 1
    assert train.notes['boxes with a confidence, which is left out'] == 1


@pytest.mark.parametrize(
    'row', ['1 0.1 0.3 0.5 0.5 0.3', '1 0.1 0.3 0.5 0.5 0.3 0.1 0.2', '1 0.5 0.5 0.2 0.5 x', '1 30 20 40 30 50 60']
)
def test_a_yolo_row_of_another_length_is_reported(yolo: Path, row: str) -> None:
    (yolo / 'labels/train/a.txt').write_text(row + '\n')
    if len(row.split()) == 6 and 'x' not in row:  # a confidence may be any number
        assert len(YoloText(root=yolo).split('train').read(Draw(0))[1]) == 1
    else:
        with pytest.raises(ValueError, match=r'labels/train/a\.txt:1: expected class x y width height'):
            YoloText(root=yolo).split('train')


def test_yolo_images_may_be_listed_and_classes_be_lines(yolo: Path) -> None:
    (yolo / 'obj.names').write_text('cat\ndog\n')
    (yolo / 'train.txt').write_text('./images/train/a.png\n')
    source = YoloText(root=yolo, train='train.txt', classes='obj.names').split('train')
    assert (len(source), source.name(0)) == (1, str(yolo / 'images/train/a.png'))


@pytest.mark.parametrize(
    ('image', 'labels'),
    [
        ('images/train/a.jpg', 'labels/train/a.txt'),
        ('train/images/a.b.jpg', 'train/labels/a.b.txt'),
        ('images/images/a.jpg', 'images/labels/a.txt'),
        ('pictures/a.jpg', 'pictures/a.txt'),
    ],
)
def test_yolo_labels_stand_in_the_sibling_folder(image: str, labels: str) -> None:
    assert label_path(image) == labels


@pytest.mark.parametrize(
    ('file', 'content', 'message'),
    [
        ('labels/train/a.txt', '2 0.5 0.5 0.2 0.5', 'labels/train/a.txt:1: class 2 is not one of 0 to 1'),
        ('labels/train/a.txt', '0.5 0.5 0.5 0.2 0.5', 'labels/train/a.txt:1: expected class x y width height'),
        ('labels/train/a.txt', '\n1 0.5 0.5 0.2', 'labels/train/a.txt:2: expected class x y width height, the last four'),
        ('labels/train/a.txt', '1 30 20 6 10', 'labels/train/a.txt:1: expected class x y width height'),
        ('data.yaml', 'nc: 2', 'data.yaml: needs `names`: a list of the names of the classes'),
        ('data.yaml', 'names: {1: cat, 2: dog}', 'data.yaml: needs `names`'),
        ('data.yaml', 'names: [cat, cat]', "data.yaml: names: 'cat' occurs twice"),
        ('data.yaml', 'names: [', 'data.yaml:1: is not YAML'),
        ('train.txt', '../a.png', "train.txt:1: '../a.png' lies outside the data set"),
    ],
)
def test_a_malformed_yolo_file_is_reported(yolo: Path, file: str, content: str, message: str) -> None:
    (yolo / file).write_text(content)
    with pytest.raises(ValueError, match=re.escape(message)):
        YoloText(root=yolo, train='train.txt' if file == 'train.txt' else 'images/train').split('train')


def test_all_that_is_wrong_with_labels_is_reported_at_once(yolo: Path, voc: Path) -> None:
    (yolo / 'labels/train/a.txt').write_text('7 0.5 0.5 0.2 0.5\n1 0.5 0.5\n')
    (yolo / 'labels/train/b.txt').write_bytes(b'\xff')
    with pytest.raises(ValueError, match=r'(?s)a\.txt:1: class 7 .*\n.*a\.txt:2: expected class x y.*\n.*b\.txt: is not UTF-8'):
        YoloText(root=yolo).split('train')
    (voc / 'Annotations/000006.xml').write_text('<annotation>')
    (voc / 'Annotations/000007.xml').write_text(f'<annotation>{SIZE}{DOG.replace("dog", "dgo")}</annotation>')
    (voc / 'ImageSets/Main/test.txt').write_text('000005\n000006\n000007\n')
    with pytest.raises(
        ValueError, match=r"000006\.xml: is not well-formed XML.*\n.*000007\.xml: object 1: 'dgo' is not a class"
    ):
        PascalVOC(root=voc).split('eval')


def test_a_check_of_the_data_reports_what_was_odd_about_the_boxes(yolo: Path) -> None:
    survey = BoxSurvey(YoloText(root=yolo).split('train'), ('cat', 'dog'), lambda image: (1.0, 1.0))
    assert survey.notes == [
        f'1 {YOLO_UNSEEN}',
        '1 boxes that reach out of their image, cut off in training',
        '1 images without objects',
    ]
    assert Census({'train': survey}, {}, [], []).remarks()[0] == f'train: 1 {YOLO_UNSEEN}'


def test_a_missing_folder_of_images_is_reported_with_the_keys_that_name_it(yolo: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r'images/test: there is no such folder; data\.train and data\.eval name'):
        YoloText(root=yolo, eval='images/test').split('eval')
    (yolo / 'images/none').mkdir()
    with pytest.raises(FileNotFoundError, match=r'images/none: holds no image \(\.jpg, \.jpeg'):
        YoloText(root=yolo, eval='images/none').split('eval')


def test_yolo_labels_in_the_wrong_place_are_reported(yolo: Path) -> None:
    (yolo / 'labels').rename(yolo / 'label')
    with pytest.raises(ValueError, match=r'no image has a file of labels; that of images/train/unseen.png is expected at'):
        YoloText(root=yolo).split('train')


def test_boxes_are_cut_off_at_the_edges_and_those_outside_are_gone() -> None:
    boxes = np.array([[-5, 2, 10, 50], [61, 0, 70, 9], [10, 10, 20, 20]], np.float32)
    clipped = Objects.plain(boxes, np.array([4, 5, 6])).clipped(60, 40)
    assert rows(clipped) == [([0, 2, 10, 40], 4, False), ([10, 10, 20, 20], 6, False)]


def test_digit_scenes_have_a_box_for_each_digit() -> None:
    data = DigitScenes(train_scenes=7, eval_scenes=3, size=(64, 96))
    train = data.split('train')
    assert (len(train), len(data.split('eval')), data.class_names) == (7, 3, tuple('0123456789'))
    image, objects = train.read(Draw(2))
    assert image.shape == (64, 96, 3)
    assert len(objects) and not objects.ignored.any()
    assert (objects.boxes >= 0).all() and (objects.boxes[:, 2:] <= [96, 64]).all()


def test_a_class_without_objects_is_reported_before_training(root: Path) -> None:
    """No box is of `cat`; a crowd alone is nothing to learn a class from."""
    content = coco()
    content['categories'].append({'id': 5, 'name': 'cat'})
    content['annotations'] = [content['annotations'][0], annotation(2, 3, 5, [0, 0, 60, 40], iscrowd=1)]
    (root / 'boxes.json').write_text(json.dumps(content))
    files = 'train: boxes.json, eval: boxes.json, train_images: pictures, eval_images: pictures'
    task = open_job('ppyoloe_digits', [(f'data={{name: coco, root: {root}, {files}}}', 'here')]).task
    *_, train = task.dataset('train').notes
    assert train.startswith('train data: no object of toothbrush, cat, so it is not learned; is its name spelled as in')
    *_, evaluation = task.dataset('eval').notes
    assert evaluation == 'eval data: no object of toothbrush, cat, so the metric does not measure it'
