"""Exports that say a little more than usual: what they say is used, or the image is left out with the reason."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import drawn
from phalanx.curation.prepare.formats import choose_format, find_annotations
from phalanx.curation.prepare.label_maps import paint_labels
from phalanx.curation.prepare.samples import AnnotationSet, Family, LeftOut
from phalanx.curation.prepare.targets import find_meaning
from phalanx.curation.prepare.tree import Tree
from phalanx.families.detection.data.coco import read_annotations

Rows = dict[str, tuple[str, list[tuple[Any, ...]]]]  # path of an image: split, objects
BOX = {'id': 1, 'image_id': 1, 'category_id': 1, 'bbox': [1, 2, 3, 4]}
CAR = ('car', 1, 2, 4, 6)
FIRST = 'images/a.png'
RECTANGLE = {'x': 25, 'y': 25, 'width': 50, 'height': 50, 'rectanglelabels': ['car']}
HALF = ('car', 16, 12, 48, 36)  # of an image of 64 x 48
TRACK = '<box frame="{}" outside="{}" xtl="1" ytl="2" xbr="4" ybr="6"/>'


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(files: dict[str, object], *images: str, family: Family | None = None) -> tuple[Rows, AnnotationSet, str]:
    """Samples of `files` beside images of 64 x 48 pixels, and all that is reported about them."""
    for number, image in enumerate(images):
        drawn.draw(Path('mine', image), number, (64, 48))
    for name, content in files.items():
        drawn.write(Path('mine', name), content)
    root, refused = Path('mine').absolute(), dict[str, LeftOut]()
    picked = choose_format(find_annotations(Tree(root), refused=refused), family)
    if picked is None:
        return {}, AnnotationSet(), str(refused)
    found = picked[1]
    rows: Rows = {
        sample.image.relative_to(root).as_posix(): (
            sample.split,
            [(one.label, *(round(value) for value in one.box)) for one in sample.instances],
        )
        for sample in found.samples
    }
    return rows, found, '\n'.join([*found.left_out, *found.notes])


def coco(*annotations: dict[str, Any], **image: Any) -> dict[str, Any]:
    first = {'id': 1, 'file_name': 'a.png', 'width': 64, 'height': 48} | image
    return {'images': [first], 'annotations': [*annotations], 'categories': [{'id': 1, 'name': 'car'}]}


def voc(inside: str) -> str:
    return f'<annotation><filename>a.png</filename><object><name>car</name>{inside}</object></annotation>'


def task(image: object, *results: dict[str, Any], **own: Any) -> dict[str, Any]:
    data = image if isinstance(image, dict) else {'image': image}
    return {'id': 1, 'data': data, 'annotations': [{'result': [*results]}]} | own


def region(**own: Any) -> dict[str, Any]:
    return {'id': 'r', 'type': 'rectanglelabels', 'to_name': 'image', 'value': RECTANGLE} | own


def test_a_class_that_data_yaml_does_not_number_is_named_as_unknown() -> None:
    files = {'data.yaml': 'nc: 2\nnames: {1: cat, 2: dog}\n', 'labels/a.txt': '0 .5 .5 .5 .5', 'labels/b.txt': '2 .5 .5 .5 .5'}
    rows, _, said = read(files, FIRST, 'images/b.png')
    assert rows == {'images/b.png': ('', [('dog', 16, 12, 48, 36)])}
    assert 'a.txt: object 1: class 0 is not one of 1, 2' in said


def test_a_line_that_is_repeated_in_a_label_file_is_one_object() -> None:
    rows, _, _ = read({'labels/a.txt': '0 .5 .5 .5 .5\n0  .5 .5 .5 .5 \n0 .5 .5 .25 .5\n'}, FIRST)
    assert rows == {FIRST: ('', [('class_0', 16, 12, 48, 36), ('class_0', 24, 12, 40, 36)])}


def test_names_of_data_yaml_are_words_whatever_yaml_makes_of_them() -> None:
    files = {'data.yaml': 'nc: 3\nnames: [no, 010, ~]\n', 'labels/a.txt': '\n'.join(f'{n} .5 .5 .5 .5' for n in range(3))}
    _, found, _ = read(files, FIRST)
    assert found.class_names == ('no', '010', '~')


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('names:\n\t0: car\n', 'data.yaml:2: is not YAML'),
        ('nc: 2\nnames: [car, car]\n', "'car' occurs twice"),
        ('nc: 1\nnames: [[car]]\n', 'names: expected a list of names'),
    ],
)
def test_labels_of_a_damaged_data_yaml_are_not_used(text: str, reason: str) -> None:
    rows, _, said = read({'data.yaml': text, 'labels/a.txt': '0 .5 .5 .5 .5'}, FIRST)
    assert not rows
    assert reason in said


def test_more_classes_announced_than_named_are_reported() -> None:
    _, _, said = read({'data.yaml': 'nc: 3\nnames: [car]\n', 'labels/a.txt': '0 .5 .5 .5 .5'}, FIRST)
    assert 'data.yaml: nc is 3, but there are 1 names' in said


def test_labels_without_an_image_are_reported() -> None:
    _, _, said = read({'labels/a.txt': '0 .5 .5 .5 .5', 'labels/b.txt': '0 .5 .5 .5 .5'}, FIRST)
    assert "labels/b.txt: there is no image 'b'" in said


def test_labels_belong_to_images_in_a_folder_that_is_a_link() -> None:
    drawn.draw(Path('mine/JPEGImages/a.png'), 0, (64, 48))
    Path('mine/images').symlink_to('JPEGImages')
    rows, _, _ = read({'labels/a.txt': '0 .5 .5 .5 .5', 'data.yaml': 'nc: 1\nnames: [car]'})
    assert rows == {'JPEGImages/a.png': ('', [HALF])}


def test_of_images_with_one_name_that_of_the_split_of_the_file_is_meant() -> None:
    files: dict[str, object] = {f'annotations/instances_{split}.json': coco(BOX) for split in ('train', 'val')}
    rows, _, _ = read(files, 'images/train/a.png', 'images/val/a.png')
    assert rows == {f'images/{split}/a.png': (split, [CAR]) for split in ('train', 'val')}


def test_umlauts_match_whether_they_are_composed_or_not() -> None:
    rows, _, _ = read({'x.json': coco(BOX, file_name='gro\u0308\u00dfe.png')}, 'images/gr\u00f6\u00dfe.png')
    assert [*rows.values()] == [('', [CAR])]


@pytest.mark.parametrize('image', [{'split': 'val'}, {'file_name': None, 'coco_url': 'http://x/val2017/a.png'}])
def test_an_entry_of_coco_may_name_the_split_or_only_an_address(image: dict[str, Any]) -> None:
    rows, _, _ = read({'x.json': coco(BOX, **image)}, FIRST)
    assert rows == {FIRST: ('val' if 'split' in image else '', [CAR])}


def test_a_box_does_not_stand_in_for_an_outline_that_cannot_be_read() -> None:
    good, bad = [[1, 2, 9, 2, 9, 8]], [1, 2, 9, 2, 9, 8]
    content = coco(BOX | {'segmentation': good}, BOX | {'id': 2, 'image_id': 2, 'segmentation': bad})
    content['images'].append({'id': 2, 'file_name': 'b.png'})
    rows, _, said = read({'x.json': content}, FIRST, 'images/b.png', family='segmentation')
    assert [*rows] == [FIRST]
    assert "annotation 2 ('car'): expected lists x0, y0, x1, y1, ... of its polygons" in said
    assert len(read({'x.json': content}, FIRST, 'images/b.png', family='detection')[0]) == 2


def test_a_size_with_sides_exchanged_is_not_blamed_on_exif_data() -> None:
    _, _, said = read({'x.json': coco(BOX, width=48, height=64)}, FIRST)
    assert 'are width and height exchanged' in said
    assert 'EXIF' not in said


def test_roboflow_numbers_the_corners_of_polygons_in_voc() -> None:
    corners = ''.join(f'<x{n}>{x}</x{n}><y{n}>{y}</y{n}>' for n, (x, y) in enumerate([(1, 2), (4, 2), (4, 6)], 1))
    rows, found, _ = read({'a.xml': voc(f'<polygon>{corners}</polygon>')}, FIRST)
    assert rows == {FIRST: ('', [CAR])}
    assert found.samples[0].instances[0].outline


def test_an_image_of_cvat_that_was_reduced_afterwards_is_not_used() -> None:
    box = '<box label="car" xtl="1" ytl="2" xbr="4" ybr="6"/>'
    entry = '<image id="0" name="a.png" width="640" height="480">{}</image>'
    rows, _, said = read({'x.xml': f'<annotations>{entry.format(box)}</annotations>'}, FIRST)
    assert not rows
    assert 'was made for 640 x 480 pixels' in said


def test_a_frame_on_which_a_track_has_no_shape_is_not_used() -> None:
    one = f'<track id="0" label="car">{TRACK.format(0, 0)}{TRACK.format(2, 0)}{TRACK.format(3, 1)}</track>'
    other = f'<track id="1" label="car">{TRACK.format(1, 0)}{TRACK.format(2, 1)}</track>'
    rows, _, said = read({'x.xml': f'<annotations>{one}{other}</annotations>'}, *(f'frame_{n:06}.png' for n in range(4)))
    assert [*rows] == ['frame_000000.png', 'frame_000002.png']
    assert 'track 0 has no shape on it' in said


def test_the_ground_truth_of_a_task_counts() -> None:
    other = region(value=RECTANGLE | {'rectanglelabels': ['bus']})
    both = [{'result': [other]}, {'result': [region()], 'ground_truth': True}]
    rows, _, said = read({'x.json': [task('a.png', annotations=both)]}, FIRST)
    assert rows == {FIRST: ('', [HALF])}
    assert 'tasks with several annotations, of which one is used: 1' in said


@pytest.mark.parametrize(
    ('own', 'reason'),
    [
        ({'image_rotation': 90}, 'rotated by 90 degrees'),
        ({'value': RECTANGLE | {'rectanglelabels': ['car', 'bus']}}, 'has several labels'),
    ],
)
def test_a_region_of_label_studio_that_says_more_is_not_half_read(own: dict[str, Any], reason: str) -> None:
    rows, _, said = read({'x.json': [task('a.png', region(**own))]}, FIRST)
    assert not rows
    assert reason in said


@pytest.mark.parametrize(
    ('data', 'own'),
    [({'left': 'a.png', 'right': 'b.png'}, {'to_name': 'right'}), ({'pages': ['a.png', 'b.png']}, {'item_index': 1})],
)
def test_a_region_belongs_to_the_image_of_its_task_that_it_names(data: dict[str, Any], own: dict[str, Any]) -> None:
    rows, _, _ = read({'x.json': [task(data, region(**own))]}, FIRST, 'images/b.png')
    assert rows == {FIRST: ('', []), 'images/b.png': ('', [HALF])}


def test_a_region_that_may_be_on_two_images_is_not_used() -> None:
    rows, _, said = read({'x.json': [task({'left': 'a.png', 'right': 'b.png'}, region())]}, FIRST, 'images/b.png')
    assert not rows
    assert 'a region on none of them (image)' in said


def test_choices_relations_and_ratings_of_label_studio_are_reported_as_unused() -> None:
    others = [{'type': 'choices', 'value': {'choices': ['day']}}, {'type': 'relation', 'from_id': 'r', 'to_id': 'r'}]
    rows, _, said = read({'x.json': [task('a.png', region(), *others, {'type': 'rating', 'value': {'rating': 3}})]}, FIRST)
    assert rows == {FIRST: ('', [HALF])}
    assert 'not used: 1 results choices, 1 results relation, 1 results rating' in said


@pytest.mark.parametrize(
    ('name', 'content', 'unused'),
    [
        ('x.xml', '<annotations><image id="0" name="a.png" width="64" height="48"><tag label="dark"/><box label="car" xtl="1" '
         'ytl="2" xbr="4" ybr="6"><attribute name="colour">red</attribute></box></image></annotations>',
         "not used: 1 tags, 1 attributes 'colour'"),
        ('a.json', {'shapes': [{'label': 'car', 'points': [[1, 2], [4, 6]], 'shape_type': 'rectangle', 'group_id': 1}],
                    'imagePath': 'a.png', 'imageWidth': 64, 'imageHeight': 48, 'flags': {'dark': True}},
         'not used: 1 flags, 1 group_id of shapes, each of which is an object'),
        ('ann/a.png.json', {'size': {'width': 64, 'height': 48}, 'tags': [{'name': 'dark'}], 'objects': [
            {'classTitle': 'car', 'geometryType': 'rectangle', 'points': {'exterior': [[1, 2], [4, 6]], 'interior': []}}]},
         'not used: 1 tags'),
        ('x.json', coco({**BOX, 'attributes': {'colour': 'red', 'occluded': False, 'rotation': 0.0}}),
         "not used: 1 attributes 'colour'"),
        ('a.xml', '<annotation><filename>a.png</filename><object><name>car</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>4'
         '</xmax><ymax>6</ymax></bndbox><attributes><attribute><name>colour</name><value>red</value></attribute><attribute>'
         '<name>rotation</name><value>0.0</value></attribute></attributes></object></annotation>',
         "not used: 1 attributes 'colour'"),
        ('x.json', {'categories': {'label': {'labels': [{'name': 'car'}]}}, 'items': [
            {'id': 'a', 'image': {'path': 'a.png'}, 'annotations': [
                {'type': 'bbox', 'label_id': 0, 'bbox': [1, 2, 3, 4], 'attributes': {'colour': 'red', 'occluded': False}}]}]},
         "not used: 1 attributes 'colour'"),
    ],
)  # fmt: skip
def test_tags_attributes_and_flags_are_reported_as_unused(name: str, content: object, unused: str) -> None:
    rows, _, said = read({name: content}, 'a.png')
    assert rows == {'a.png': ('', [CAR])}
    assert unused in said


@pytest.mark.parametrize('name', ['images/1234abcd-my%20photo.png', '../../media/upload/1/1234abcd-my%20photo.png'])
def test_names_of_label_studio_are_addresses_with_a_prefix(name: str) -> None:
    for image in ('images/my photo.png', 'images/1234abcd-my photo.png'):
        rows, _, _ = read({'result.json': coco(BOX, file_name=name)}, image)
        assert rows == {image: ('', [CAR])}
        shutil.rmtree('mine')
    rows, _, _ = read({'labels/1234abcd-my%20photo.txt': '0 0.5 0.5 0.5 0.5\n'}, 'images/my photo.png')
    assert [*rows] == ['images/my photo.png']


def test_labels_of_images_that_are_elsewhere_are_named() -> None:
    _, _, said = read({'labels/b.txt': '0 0.5 0.5 0.5 0.5\n'}, 'images/a.png')
    assert "labels/b.txt: there is no image 'b'" in said


@pytest.mark.parametrize(
    ('text', 'split'),
    [
        ('car,1,2,3,4,a.png,64,48\n', ''),  # makesense.ai
        ('VALIDATION,gs://x/a.png,car,0.015625,0.0416667,,,0.0625,0.125,,\n', 'val'),  # Vertex AI
    ],
)
def test_csv_without_a_header_is_known_by_its_columns(text: str, split: str) -> None:
    rows, _, _ = read({'x.csv': text}, 'a.png')
    assert rows == {'a.png': (split, [CAR])}


def test_boxes_in_fractions_are_not_boxes_of_a_pixel() -> None:
    content = coco(BOX | {'bbox': [0, 0, 1, 1]}, BOX | {'id': 2, 'bbox': [0.1, 0.1, 0.5, 0.5]})
    rows, _, said = read({'x.json': content}, 'a.png')
    assert not rows
    assert 'all boxes lie within one pixel: are they fractions of the image?' in said
    _, annotations = read_annotations([Path('mine/x.json').absolute()], Path('mine').absolute())
    with pytest.raises(ValueError, match='all boxes lie within one pixel'):
        annotations.source(keep_empty=True)


@pytest.mark.parametrize('double', ['<name>bus</name>', '<bndbox><xmin>9</xmin></bndbox>'])
def test_an_object_of_voc_with_two_names_or_boxes_is_not_half_read(double: str) -> None:
    box = '<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>4</xmax><ymax>6</ymax></bndbox>'
    rows, _, said = read({'a.xml': voc(box + double)}, 'a.png')
    assert not rows
    assert 'a.xml: object 1: has several' in said


def test_corners_in_the_place_of_sizes_are_suspected() -> None:
    corners = [BOX | {'id': n, 'bbox': [40, 30, 50 + n, 40]} for n in range(12)]
    _, _, said = read({'x.json': coco(*corners)}, 'a.png')
    assert 'are corners written where width and height are expected?: 12' in said


def test_a_task_about_a_text_has_no_image() -> None:
    about_text = task({'text': 'no name of a file'}, region())
    rows, _, said = read({'x.json': [about_text, task('a.png', region())]}, FIRST)
    assert rows == {FIRST: ('', [HALF])}
    assert said == f'{Path("mine").absolute()}/x.json: task 1: has no image'


def test_an_annotation_in_a_connected_storage_has_its_task_in_it() -> None:
    content = {
        'id': 7,
        'result': [region()],
        'task': {'id': 1, 'data': {'image': '/data/upload/1/0a1b2c3d-a.png', 'split': 'val'}},
    }
    rows, _, _ = read({'7.json': content}, FIRST)
    assert rows == {FIRST: ('val', [HALF])}


def test_blanks_around_a_label_do_not_make_a_class() -> None:
    shapes = [{'label': label, 'points': [[1, 2], [4, 6]], 'shape_type': 'rectangle'} for label in ('car', 'car ')]
    _, found, _ = read({'a.json': {'imagePath': 'a.png', 'shapes': shapes}}, FIRST)
    assert found.class_names == ('car',)


def test_a_datumaro_item_of_another_size_is_not_used() -> None:
    item = {'id': 'a', 'image': {'path': 'a.png', 'size': [480, 640]}}
    item['annotations'] = [{'type': 'bbox', 'label_id': 0, 'bbox': [1, 2, 3, 4]}]
    rows, _, said = read({'x.json': {'categories': {'label': {'labels': [{'name': 'car'}]}}, 'items': [item]}}, FIRST)
    assert not rows
    assert 'was made for 640 x 480 pixels' in said


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        ('ImageId,ClassId,EncodedPixels\na.png,3,1 2\n', ('class_3', 0, 0, 1, 2)),
        ('id,organ,rle\na,lung,1 2\n', ('object', 0, 0, 1, 2)),
        ('image,x_center,y_center,width,height,label\na.png,0.5,0.5,0.5,0.5,car\n', HALF),
        ('filename;xmin;ymin;xmax;ymax;class\na.png;1,0;2;4;6;car\n', CAR),
        ('"filename", "xmin", "ymin", "xmax", "ymax", "class"\n"a.png", "1", "2", "4", "6", "car"\n', CAR),
        ('patientId,x,y,width,height,Target\na,1,2,3,4,1\n', ('object', 1, 2, 4, 6)),
    ],
)
def test_columns_of_csv_files_are_known(text: str, expected: tuple[Any, ...]) -> None:
    assert read({'x.csv': text}, FIRST)[0] == {FIRST: ('', [expected])}


@pytest.mark.parametrize(
    ('text', 'reason'),
    [
        ('filename,width,height,class,xmin,ymin,xmax,ymax\na.png,640,480,car,1,2,4,6\n', 'was made for 640 x 480 pixels'),
        ('filename,xmin,ymin,xmax,ymax,class\na.png,,,,,car\n', "is of class 'car', but has no box"),
        ('car,a.png,0.1,0.1\n', 'its first line names an image and no columns'),
        ('filename,polygon\na.png,1 2 3\n', 'xmin, ymin, xmax, ymax, class; it has filename, polygon'),
    ],
)
def test_lines_of_csv_files_that_cannot_be_used_are_explained(text: str, reason: str) -> None:
    rows, _, said = read({'x.csv': text}, FIRST)
    assert not rows
    assert reason in said


def test_labels_of_whole_images_do_not_disturb_boxes_beside_them() -> None:
    files = {'x.csv': 'filename,xmin,ymin,xmax,ymax,class\na.png,1,2,4,6,car\n', 'y.csv': 'filename,author,label\na.png,me,x\n'}
    rows, _, said = read(files, FIRST)
    assert rows == {FIRST: ('', [CAR])}
    assert 'columns that are not used: author' in said


def test_classes_of_whole_images_are_recognised_as_such() -> None:
    text = 'filename,label\n' + ''.join(f'{n}.png,{n % 2}\n' for n in range(6))
    assert read({'x.csv': text}, *(f'{n}.png' for n in range(6)))[1].are_classes


def test_icdar_puts_a_backslash_before_quotes() -> None:
    found = read({'gt.txt': 'a.png, "say \\"a\\", b"\n'}, FIRST)[1]
    assert [sample.text for sample in found.samples] == ['say "a", b']


def test_a_line_of_icdar_that_lost_a_number_is_no_box_of_another_text() -> None:
    rows, _, said = read({'gt_a.txt': '1,1,9,1,9,9,1,9,fine\n10,10,60,12,60,30,10,text\n'}, 'a.png', family='text_detection')
    assert not rows
    assert 'gt_a.txt:2: expected x1,y1,x2,y2,x3,y3,x4,y4,text with coordinates in pixels' in said


def texts_of(found: AnnotationSet) -> list[tuple[str | None, bool]]:
    return [(one.text, one.ignored) for sample in found.samples for one in sample.instances]


def test_the_script_in_files_of_mlt_is_no_part_of_the_text() -> None:
    lines = '1,1,9,1,9,9,1,9,Latin,fine, 3\n1,1,9,1,9,9,1,9,None,###\n'
    assert texts_of(read({'gt_a.txt': lines}, 'a.png', family='text_detection')[1]) == [('fine, 3', False), ('###', True)]


def test_the_polygons_of_totaltext_are_read() -> None:
    word = "x: [[1 9 9 5 1]], y: [[1 1 9 12 9]], ornt: [u'c'], transcriptions: [u'{}']\n"
    files = {'gt/poly_gt_a.txt': word.format('fine') + word.format('#')}
    found = read(files, FIRST, family='text_detection')[1]
    assert texts_of(found) == [('fine', False), ('###', True)]
    assert len(found.samples[0].instances[0].corners) == 5


def test_the_polygons_of_totaltext_are_read_from_matlab_files_where_there_is_no_text_file() -> None:
    io = pytest.importorskip('scipy.io')
    xs, ys = np.array([[1, 9, 9, 5, 1]], np.uint8), np.array([[1, 1, 9, 12, 9]], np.uint8)
    cells = np.empty((2, 6), object)
    for row, word in zip(cells, ('fine', '#'), strict=True):
        row[:] = ['x:', xs, 'y:', ys, np.array([word]), 'c']
    Path('mine').mkdir()
    for name in 'ab':
        io.savemat(f'mine/poly_gt_{name}.mat', {'polygt': cells})
    line = "x: [[1 9 9]], y: [[1 1 9]], ornt: [u'c'], transcriptions: [u'text']\n"
    found = read({'txt/poly_gt_b.txt': line}, 'a.png', 'b.png', family='text_detection')[1]
    assert texts_of(found) == [('fine', False), ('###', True), ('text', False)]
    assert found.samples[0].instances[0].corners == [[1, 1], [9, 1], [9, 9], [5, 12], [1, 9]]


def test_a_box_of_ppocrlabel_without_a_text_has_none() -> None:
    """The tool fills in a word, which is a text in files of others."""
    texts = ['TEMPORARY', '\u5f85\u8bc6\u522b', 'here']
    page = json.dumps([{'transcription': text, 'points': [[1, 1], [9, 1], [9, 9], [1, 9]]} for text in texts])
    found = read({'Label.txt': f'mine/a.png\t{page}\n'}, 'a.png', family='text_detection')[1]
    assert [text for text, _ in texts_of(found)] == ['', '', 'here']
    Path('mine/Label.txt').rename('mine/train.txt')
    found = read({}, family='text_detection')[1]
    assert [text for text, _ in texts_of(found)] == texts


def test_pages_of_one_name_in_both_splits_have_their_own_texts() -> None:
    """The archives of ICDAR 2015 have such pages."""
    line = '1,1,9,1,9,9,1,9,{}\n'
    files = {'Challenge4_Test_Task1_GT/gt_a.txt': line.format('test'), 'ch4_training_gt/gt_a.txt': line.format('train')}
    found = read(files, 'ch4_test_images/a.png', 'ch4_training_images/a.png', family='text_detection')[1]
    assert [(sample.split, *texts_of(replace(found, samples=[sample]))) for sample in found.samples] == [
        ('test', ('test', False)),
        ('train', ('train', False)),
    ]


def test_a_page_with_two_text_files_that_may_be_its_own_is_not_used() -> None:
    files = {'one/gt_a.txt': '1,1,9,1,9,9,1,9,x\n', 'two/gt_a.txt': '1,1,9,1,9,9,1,9,y\n'}
    rows, _, said = read(files, 'images/a.png', family='text_detection')
    assert not rows
    assert 'images/a.png: its text may be in ' in said


def test_the_words_of_mjsynth_are_in_the_names_of_images() -> None:
    found = read(
        {'annotation_train.txt': './1/2/3_Half_way_77.jpg 77\n./1/2/4_77_5.jpg 77\n'}, '1/2/3_Half_way_77.jpg', '1/2/4_77_5.jpg'
    )[1]
    assert sorted(sample.text for sample in found.samples if sample.text) == ['77', 'Half_way']


def test_a_price_is_a_text_and_no_fifth_point() -> None:
    found = read({'gt_a.txt': '40,30,60,30,60,40,40,40,1,99\n'}, 'a.png', family='text_detection')[1]
    assert texts_of(found) == [('1,99', False)]
    found = read({'gt_a.txt': '40,30,60,30,60,40,50,44,40,40\n'}, 'a.png', family='text_detection')[1]
    assert texts_of(found) == [('', False)] and len(found.samples[0].instances[0].corners) == 5


def test_a_short_export_of_label_studio_does_not_tell_the_texts_of_regions() -> None:
    box = {'x': 25, 'y': 25, 'width': 50, 'height': 50}
    task = {
        'id': 1,
        'ocr': 'a.png',
        'bbox': [box],
        'label': [box | {'labels': ['Text']}],
        'transcription': ['x'],
        'annotator': 1,
    }
    rows, _, said = read({'x.json': [task]}, FIRST)
    assert not rows
    assert 'has no label: ' in said and 'export JSON, since JSON-MIN does not say which label and text belong to it' in said


def test_points_of_ctw1500_are_relative_to_the_box_before_them() -> None:
    offsets = '0,0,3,0,6,0,9,0,12,0,15,0,18,0,18,8,15,8,12,8,9,8,6,8,3,8,0,8'
    found = read({'a.txt': f'20,10,38,18,{offsets}\n'}, 'a.png', family='text_detection')[1]
    (one,) = found.samples[0].instances
    assert one.box == (20, 10, 38, 18) and len(one.corners) == 14


def test_outlines_of_more_than_four_corners_are_refused_with_a_cure() -> None:
    rows, _, said = read({'a.txt': '1,1,9,1,9,9,1,9,0,5,1,4,2,3,####text\n'}, 'a.png', family='text_detection')
    assert not rows
    assert 'a.txt:1: has more than four corners; write outlines as PaddleOCR does' in said


def test_boxes_of_visdrone_are_not_taken_for_corners_of_texts() -> None:
    rows, _, said = read({'annotations/a.txt': '20,8,27,16,1,4,0,1\n3,5,9,9,0,0,0,0\n'}, 'images/a.png')
    assert not rows
    assert 'annotations/a.txt: holds boxes of VisDrone, which are not read; convert them to COCO or YOLO' in said


def test_an_image_with_a_second_mask_is_not_used() -> None:
    rows, _, said = read({}, 'a.png', 'a_mask.png', 'a_mask_1.png', 'b.png', 'b_mask.png')
    assert [*rows] == ['b.png']
    assert 'paint the masks of an image into one' in said


def save_mask(pixels: np.ndarray, name: str, **options: Any) -> None:
    path = Path('mine/masks', name)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **options)


@pytest.mark.parametrize(
    ('pixels', 'reason'),
    [
        (np.linspace(0, 1, 48 * 64, dtype=np.float32).reshape(48, 64), 'fractions'),
        (np.dstack([np.zeros((48, 64, 3), np.uint8), np.eye(48, 64, dtype=np.uint8)]), 'only by its transparency'),
    ],
)
def test_masks_that_hold_no_classes_are_refused(pixels: np.ndarray, reason: str) -> None:
    save_mask(pixels, 'a.tif')
    _, found, _ = read({}, FIRST)
    with pytest.raises(ValueError, match=reason):
        find_meaning('segmentation', found)


def test_a_class_named_twice_is_not_guessed() -> None:
    save_mask(np.eye(48, 64, dtype=np.uint8), 'a.png')
    _, found, _ = read({'classes.txt': 'sky\ncar\ncar\n'}, FIRST)
    with pytest.raises(ValueError, match="'car' occurs twice"):
        find_meaning('segmentation', found)


def test_an_image_inside_a_labelme_file_is_explained() -> None:
    drawn.draw(Path('mine/other.png'), 0)
    content = {'imagePath': 'a.png', 'imageData': 'AAAA', 'shapes': []}
    assert 'labelme_export_json' in read({'a.json': json.dumps(content)})[2]


# Written by Supervisely's SDK 6.
SUPERVISELY: list[dict[str, Any]] = [
    {'classTitle': 'tilted', 'points': [[20, 10], [44, 30]], 'angle': 1.5707963267948966, 'geometryType': 'oriented_bbox'},
    {
        'classTitle': 'parts',
        'parts': [
            {'exterior': [[2, 2], [12, 2], [12, 12], [2, 12]], 'interior': [[[4, 4], [8, 4], [8, 8], [4, 8]]]},
            {'exterior': [[20, 2], [24, 2], [24, 6], [20, 6]], 'interior': []},
        ],
        'geometryType': 'multipolygon',
    },
    {
        'classTitle': 'glow',
        'bitmap': {
            'origin': [30, 10],
            'data': 'eJzrDPBz5+WS4mJgYOD19HAJAtIiQMzFASQYJtopWgEpppIgv2AGhrLJZy2APHFPF8eQijnJf843cM7Y0GG4wURodVECK6PebsZpb+6/9'
            'wZp9HT1c1nnlNAEAJH0GJo=',
        },
        'geometryType': 'alpha_mask',
    },
]


def test_turned_boxes_several_polygons_and_alpha_masks_of_supervisely_are_objects() -> None:
    files = {'ann/a.png.json': {'size': {'height': 48, 'width': 64}, 'tags': [], 'objects': SUPERVISELY}}
    rows, found, _ = read(files, 'img/a.png')
    assert rows == {'img/a.png': ('', [('tilted', 22, 8, 42, 32), ('parts', 2, 2, 24, 12), ('glow', 30, 10, 50, 20)])}
    parts = replace(found.samples[0], instances=found.samples[0].instances[1:2])
    assert (paint_labels(parts, ('background', 'parts')) == 1).sum() == 100 - 16 + 16


def test_a_shape_of_supervisely_without_an_area_is_named() -> None:
    graph = {'classTitle': 'pose', 'nodes': {'a': {'loc': [10, 10]}, 'b': {'loc': [30, 40]}}, 'geometryType': 'graph'}
    files = {'ann/a.png.json': {'size': {'height': 48, 'width': 64}, 'tags': [], 'objects': [graph]}}
    assert "objects[0] ('pose'): is a graph, so the image is not used; rectangle, " in read(files, 'img/a.png')[2]


def test_flags_of_fiftyone_in_kitti_files_are_words() -> None:
    rows, _, _ = read({'labels/a.txt': 'traffic_light 0 True 0 16 12 48 36 0 0 0 0 0 0 0'}, 'data/a.png')
    assert rows == {'data/a.png': ('', [('traffic_light', *HALF[1:])])}


def test_attributes_of_fiftyone_beside_the_keys_of_coco_are_counted_as_unused() -> None:
    box = BOX | {'area': 12.0, 'iscrowd': 0, 'color': 'red', 'occluded': True}
    said = read({'labels.json': coco(box)}, 'data/a.png')[2]
    assert "1 attributes 'color'" in said and "1 attributes 'occluded'" in said and 'area' not in said


def test_the_classes_of_open_images_have_their_names_in_the_folders_of_fiftyone() -> None:
    head = 'ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsOccluded,IsTruncated,IsGroupOf,IsDepiction,IsInside'
    files = {
        'train/labels/detections.csv': f'{head}\na,xclick,/m/0k4j,1,0.25,0.75,0.25,0.75,0,0,0,0,0\n',
        'train/metadata/classes.csv': '/m/0k4j,car\n/m/07yv9,Vehicle\n',
    }
    assert read(files, 'train/data/a.png')[0] == {'train/data/a.png': ('train', [HALF])}


def test_masks_are_paired_without_the_word_behind_their_names_and_preferred_to_boxes() -> None:
    """Files like those of Supervisely's Pascal VOC, which does not name black in its colors.txt."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[10:20, 10:30] = (15, 138, 28)
    pixels[20:22, 10:30] = (224, 224, 192)
    path = Path('mine/SegmentationClass/a_class.png')
    path.parent.mkdir(parents=True)
    Image.fromarray(pixels).save(path)
    files = {'Annotations/a.xml': voc('<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>4</xmax><ymax>6</ymax></bndbox>')}
    _, found, _ = read(
        files | {'colors.txt': 'neutral 224 224 192\ncat 15 138 28\n'}, 'JPEGImages/a.png', family='segmentation'
    )
    meaning = find_meaning('segmentation', found)
    assert meaning and meaning.class_names == ('background', 'cat') and meaning.values == {(0, 0, 0): 0, (15, 138, 28): 1}


def test_a_file_with_none_of_the_colours_in_the_masks_is_refused() -> None:
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[10:20, 10:30] = (15, 90, 138)
    save_mask(pixels, 'a.png')
    _, found, _ = read({'colors.txt': 'neutral 224 224 192\ncat 15 138 28\n'}, FIRST)
    with pytest.raises(ValueError, match=r'colors\.txt: names none of the colours in the masks, #0f5a8a'):
        find_meaning('segmentation', found)


def test_classes_numbered_from_1_beside_names_from_0_are_refused() -> None:
    """Files as sahi makes them of COCO: without this, all classes would be the next ones, and the last one unknown."""
    files = {
        'data.yml': 'names: [cat, traffic light]\nnc: 2\ntrain: train\n',
        'train/a.txt': '1 0.5 0.725 0.5 0.45\n',
        'train/b.txt': '2 0.3 0.5 0.3 0.6\n',
    }
    rows, _, said = read(files, 'train/a.png', 'train/b.png')
    assert not rows and 'the labels have classes 1 to 2, but the names are numbered 0 to 1; number them from 1' in said


@pytest.mark.parametrize(
    ('numbers', 'mapping', 'values'),
    [
        ((0, 85, 255), '__background__,0\ncat,85\ntraffic light,255\n', {0: 0, 85: 1, 255: 2}),  # semantic_mask_grey
        ((0, 1, 2), '__background__,0\ncat,1\ntraffic light,2\n', {0: 0, 1: 1, 2: 2}),  # semantic_mask_index
        (
            ((0, 0, 0), (255, 50, 50), (50, 255, 255)),
            '__background__,0 0 0\ncat,255 50 50\ntraffic light,50 255 255\n',
            {(0, 0, 0): 0, (255, 50, 50): 1, (50, 255, 255): 2},
        ),
    ],
)
def test_masks_of_v7_have_the_classes_of_their_mapping(numbers: tuple[Any, ...], mapping: str, values: dict[Any, int]) -> None:
    save_mask(np.array(numbers, np.uint8).repeat(16, 0)[:, None].repeat(64, 1), 'a.png')
    _, found, _ = read({'class_mapping.csv': f'class_name,class_color\n{mapping}'}, FIRST)
    meaning = find_meaning('segmentation', found)
    assert meaning and meaning.class_names == ('background', 'cat', 'traffic light') and meaning.values == values


def test_a_mask_for_each_object_of_v7_belongs_to_the_class_of_its_line() -> None:
    for number, rows in enumerate((slice(10, 20), slice(20, 30))):
        pixels = np.zeros((48, 64), np.uint8)
        pixels[rows, 10:30] = 255
        save_mask(pixels, f'a_0000{number}.png')
    lines = 'image_id,mask_id,class_name\na,a_00000,cat\na,a_00001,traffic light\n'
    rows, _, _ = read({'instance_mask_annotations.csv': lines}, FIRST, family='segmentation')
    assert rows == {FIRST: ('', [('cat', 10, 10, 30, 20), ('traffic light', 10, 20, 30, 30)])}


def test_v7_names_the_classes_of_yolo_in_darknet_labels() -> None:
    files = {'labels/darknet.labels': 'cat\ntraffic light\n', 'labels/a.txt': '1 0.5 0.5 0.5 0.5\n'}
    assert read(files, FIRST)[0] == {FIRST: ('', [('traffic light', *HALF[1:])])}


def test_an_object_that_pylabel_lists_again_is_one() -> None:
    box = BOX | {'bbox': [16.0, 12.0, 32.0, 24.0], 'area': 768.0, 'iscrowd': 0.0}
    rows, _, said = read({'labels.json': coco(box, box, box | {'id': 2, 'bbox': [16.0, 12.0, 30.0, 24.0]})}, FIRST)
    assert rows == {FIRST: ('', [('car', *HALF[1:]), ('car', 16, 12, 46, 36)])}
    assert 'objects that are listed again with their id, used once: 1' in said


def test_boxes_of_encord_are_turned_with_their_outlines_and_images_found_by_their_titles() -> None:
    """Encord's SDK writes the box and an outline before the rotation, and file names of hashes."""
    turned = {
        'id': 0,
        'image_id': 0,
        'category_id': 1,
        'bbox': [20.0, 10.0, 20.0, 10.0],
        'area': 200.0,
        'iscrowd': 0,
        'segmentation': [[20.0, 10.0, 40.0, 10.0, 40.0, 20.0, 20.0, 20.0]],
        'keypoints': None,
        'attributes': {'rotation': 90.0, 'classifications': {}},
    }
    image = {'id': 0, 'image_title': 'a.png', 'file_name': 'images/ff566c47-e2ea-dab4-69fe-785a6b1ecc4e.png'}
    rows, found, _ = read({'labels.json': coco(turned, **image)}, 'photos/a.png')
    assert rows == {'photos/a.png': ('', [('car', 25, 5, 35, 25)])}
    painted = paint_labels(found.samples[0], ('background', 'car'))
    assert painted[5:25, 25:35].all() and painted.sum() <= 200 + 60  # edges
