"""Formats of boxes and regions that other tools and data sets have, against values by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import drawn
from phalanx.curation.prepare.formats import choose_format, find_annotations
from phalanx.curation.prepare.label_maps import paint_labels
from phalanx.curation.prepare.samples import AnnotationSet, LeftOut
from phalanx.curation.prepare.tree import Tree
from running import run_here

Row = tuple[str, tuple[int, ...], bool]  # label, box, whether it is ignored


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(files: dict[str, object], *images: str) -> tuple[str, AnnotationSet] | str:
    """Format and samples of `files` beside images of 64 x 48 pixels, or the reasons why there is none."""
    for image in images:
        drawn.draw(Path('mine', image), 1)
    for name, content in files.items():
        drawn.write(Path('mine', name), content)
    refused: dict[str, LeftOut] = {}
    picked = choose_format(find_annotations(Tree(Path('mine').absolute()), refused=refused), None)
    return (picked[0], picked[1]) if picked else str(refused)


def rows(found: AnnotationSet) -> dict[str, list[Row]]:
    return {
        sample.image.stem: [(t.label, tuple(round(value) for value in t.box), t.ignored) for t in sample.instances]
        for sample in found.samples
    }


def via(**attributes: str) -> dict[str, object]:
    shape = {'name': 'rect', 'x': 1, 'y': 2, 'width': 3, 'height': 4}
    regions = [{'shape_attributes': shape, 'region_attributes': attributes}]
    return {'a.png1': {'filename': 'a.png', 'regions': regions}}


MIDDLE = {'x': 5, 'y': 6, 'width': 4, 'height': 2}
CAR = 'Car 0.00 0 -1.57 1.0 2.0 30.0 40.0 1.5 1.6 3.9 -2.7 1.7 8.5 -1.6'
DATUMARO = {
    'categories': {'label': {'labels': [{'name': 'x'}, {'name': 'y'}]}},
    'items': [
        {'id': 'a', 'image': {'path': 'a.png'}, 'annotations': [{'type': 'bbox', 'label_id': 1, 'bbox': [1, 2, 3, 4]}]},
        {'id': 'b', 'image': {'path': 'b.png'}, 'annotations': []},
    ],
}


@pytest.mark.parametrize(
    ('name', 'files', 'expected'),
    [
        (
            'dota',
            {'labelTxt/a.txt': 'imagesource:GoogleEarth\ngsd:0.1\n1 2 9 2 9 8 1 8 small-vehicle 1\n', 'labelTxt/b.txt': ''},
            {'a': [('small-vehicle', (1, 2, 9, 8), True)], 'b': []},
        ),
        ('kitti', {'label_2/a.txt': f'{CAR}\n'}, {'a': [('Car', (1, 2, 30, 40), False)]}),
        (
            'kitti',
            {'label_2/a.txt': f'{CAR}\nDontCare -1 -1 -10 5.0 6.0 7.0 8.0 -1 -1 -1 -1000 -1000 -1000 -10\n'},
            {'a': [('Car', (1, 2, 30, 40), False), ('Car', (5, 6, 7, 8), True)]},
        ),
        (
            'wider_face',
            {'wider_face_train_bbx_gt.txt': 'x/a.png\n2\n1 2 3 4 0 0 0 0 0 0\n5 6 7 8 0 0 0 1 0 0\nb.png\n0\n0 0 0 0 0 0\n'},
            {'a': [('face', (1, 2, 4, 6), False), ('face', (5, 6, 12, 14), True)], 'b': []},
        ),
        ('datumaro', {'annotations/train.json': DATUMARO}, {'a': [('y', (1, 2, 4, 6), False)], 'b': []}),
        (
            'createml',
            {'x.json': [{'image': 'a.png', 'annotations': [{'label': 'x', 'coordinates': MIDDLE}]}]},
            {'a': [('x', (3, 5, 7, 7), False)]},
        ),
        (
            'via',
            {'via.json': via(**{'class': 'x'})},
            {'a': [('x', (1, 2, 4, 6), False)]},
        ),
        (
            'csv',
            {'x.csv': 'filename,region_shape_attributes,region_attributes\n'
                      'a.png,"{""name"":""circle"",""cx"":20,""cy"":20,""r"":5}","{""kind"":""x""}"\nb.png,{},{}\n'},
            {'a': [('x', (15, 15, 25, 25), False)]},  # b: perhaps nobody looked at it
        ),
        ('csv', {'x.csv': 'image_id,bbox\na,"[1.0, 2.0, 3, 4]"\n'}, {'a': [('object', (1, 2, 4, 6), False)]}),
        (
            'csv',
            {
                'o.csv': 'ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax,IsGroupOf\na,x,/m/01,1,0,0.5,0,0.5,1\n',
                'class-descriptions-boxable.csv': '/m/01,Tree\n',
            },
            {'a': [('Tree', (0, 0, 32, 24), True)]},
        ),
        (
            'voc',
            {'a.xml': '<annotation><filename>a.png</filename><object><name>x</name><robndbox><cx>20</cx><cy>20</cy><w>20</w>'
                      '<h>10</h><angle>1.5707963</angle></robndbox></object></annotation>'},
            {'a': [('x', (15, 10, 25, 30), False)]},
        ),
        (
            'voc',
            {'a.xml': '<annotation><filename>a.png</filename><object><name>x</name><polygon><pt><x>1</x><y>2</y></pt><pt>'
                      '<x>9</x><y>2</y></pt><pt><x>9</x><y>8</y></pt></polygon></object><object><name>y</name>'
                      '<deleted>1</deleted></object>'
                      '</annotation>'},
            {'a': [('x', (1, 2, 9, 8), False)]},
        ),
    ],
)  # fmt: skip
def test_boxes_are_those_of_the_files(name: str, files: dict[str, object], expected: dict[str, list[Row]]) -> None:
    picked = read(files, 'a.png', 'b.png')
    assert not isinstance(picked, str), picked
    assert (picked[0], rows(picked[1])) == (name, expected)


def test_frames_of_a_sequence_have_the_objects_of_their_tracks() -> None:
    lines = '1,1,1,2,3,4,1,1,1.0\n1,2,5,6,7,8,0,1,0.2\n2,1,2,2,3,4,1,3,1.0\n'
    picked = read(
        {'MOT17-02/gt/gt.txt': lines}, 'MOT17-02/img1/000001.jpg', 'MOT17-02/img1/000002.jpg', 'MOT17-02/img1/000003.jpg'
    )
    assert not isinstance(picked, str), picked
    assert rows(picked[1]) == {
        '000001': [('pedestrian', (1, 2, 4, 6), False), ('pedestrian', (5, 6, 12, 14), True)],
        '000002': [('car', (2, 2, 5, 6), False)],
    }


def test_kaggles_run_lengths_go_down_the_columns_from_pixel_1() -> None:
    """Pixels 2 to 4 of the first column of 48, 49 is the first of the second; an image without run lengths shows nothing."""
    picked = read({'train.csv': 'ImageId,EncodedPixels\na.png,2 3 49 1\nb.png,\n'}, 'a.png', 'b.png')
    assert not isinstance(picked, str), picked
    one, other = picked[1].samples
    labels = paint_labels(one, ['background', 'object'])
    assert {(int(x), int(y)) for y, x in np.argwhere(labels)} == {(0, 1), (0, 2), (0, 3), (1, 0)}
    assert not other.instances


def test_run_lengths_of_sartorius_go_along_the_rows() -> None:
    """Two cells in one image of 64 x 48: pixels 1 to 3 of the first row and of the second; pixel 6 of the first."""
    head = 'id,annotation,width,height,cell_type,plate_time\n'
    picked = read({'train.csv': f'{head}a,1 3 65 3,64,48,cort,11h\na,6 1,64,48,astro,11h\n'}, 'train/a.png')
    assert not isinstance(picked, str), picked
    assert rows(picked[1]) == {'a': [('cort', (0, 0, 3, 2), False), ('astro', (5, 0, 6, 1), False)]}
    other = read({'train.csv': f'{head}a,1 3,48,64,cort,11h\n'}, 'train/a.png')
    assert 'was made for 48 x 64 pixels' in str(other)


def test_classes_have_the_order_of_retinanets_file() -> None:
    lines = 'mine/a.png,1,2,9,9,nut\nmine/b.png,1,2,9,9,bolt\n'
    picked = read({'annotations.csv': lines, 'classes.csv': 'nut,0\nbolt,1\n'}, 'a.png', 'b.png')
    assert not isinstance(picked, str), picked
    assert picked[1].class_names == ('nut', 'bolt')


def test_a_video_without_frames_is_refused_with_the_command_that_writes_them() -> None:
    Path('mine').mkdir()
    Path('mine/a b.mp4').touch()
    box = '<box frame="0" outside="0" xtl="1" ytl="2" xbr="9" ybr="9"/>'
    drawn.write(Path('mine/a.xml'), f'<annotations><track id="0" label="a">{box}</track></annotations>')
    refused: dict[str, LeftOut] = {}
    assert not find_annotations(Tree(Path('mine').absolute()), refused=refused)
    assert "a b.mp4' -start_number 0" in refused['cvat'][0]


def test_segments_of_a_panoptic_image_are_found_by_their_colours() -> None:
    """The number of a pixel is red + 256 green: here 300 = 44 + 256."""
    pixels = np.zeros((48, 64, 3), np.uint8)
    pixels[2:4, 5:9] = (44, 1, 0)
    Path('mine/annotations/panoptic_train').mkdir(parents=True)
    Image.fromarray(pixels).save('mine/annotations/panoptic_train/a.png')
    segment = {'id': 300, 'category_id': 7, 'iscrowd': 0}
    content = {
        'images': [{'id': 1, 'file_name': 'a.png', 'width': 64, 'height': 48}],
        'annotations': [{'image_id': 1, 'file_name': 'a.png', 'segments_info': [segment]}],
        'categories': [{'id': 7, 'name': 'sky', 'isthing': 0}],
    }
    picked = read({'annotations/panoptic_train.json': content}, 'images/train/a.png')
    assert not isinstance(picked, str), picked
    assert rows(picked[1]) == {'a': [('sky', (5, 2, 9, 4), False)]}
    assert picked[1].samples[0].split == 'train'


@pytest.mark.parametrize(
    ('files', 'reason'),
    [
        ({'labels/a.txt': '0 0.5 0.5\n', 'labels/b.txt': '0 0.5 0.5 0.1 0.1 0.9 0.1\n'}, 'expected class x y width height'),
        ({'a.txt': '7 1.0 2.0 30.0 40.0 zebra x\n', 'b.txt': '7 1.0 2.0 30.0 40.0 zebra x\n'}, 'hold numbers, as boxes do'),
        ({'label_2/a.txt': f'{CAR}\nCar 0.00 0\n'}, 'is not a line like the others'),
        ({'captions.json': {'images': [{'id': 1, 'file_name': 'a.png'}], 'categories': [],
                            'annotations': [{'image_id': 1, 'caption': 'a tree'}]}}, 'is a caption of the image'),
        ({'sam.json': {'image': {'file_name': 'a.png'}, 'annotations': []}}, 'masks without classes'),
        ({'via.json': via(p='1', q='2')},
         'which of p, q is the class'),
        ({'instances.json': {'images': [{'id': 1, 'file_name': 'a.png'}], 'categories': [{'id': 1, 'name': 'x'}],
                             'annotations': []}}, 'lists 1 images and no annotation'),
        ({'a.xml': '<annotation><object><name>x</name></object></annotation>'}, 'has no bndbox'),
    ],
)  # fmt: skip
def test_annotations_that_cannot_be_used_are_refused_with_the_reason(files: dict[str, object], reason: str) -> None:
    assert reason in str(read(files, 'a.png', 'b.png'))


def test_an_object_that_cannot_be_read_takes_its_image_out_also_if_another_file_has_the_image_too() -> None:
    good = {
        'images': [{'id': 1, 'file_name': 'a.png'}, {'id': 2, 'file_name': 'b.png'}],
        'categories': [{'id': 1, 'name': 'x'}],
    }
    boxes = [{'image_id': number, 'category_id': 1, 'bbox': [1, 2, 3, 4]} for number in (1, 2)]
    bad = good | {'annotations': [{'image_id': 1, 'category_id': 1, 'bbox': [1, 2, 'three', 4]}, boxes[1]]}
    picked = read({'x.json': good | {'annotations': boxes}, 'y.json': bad}, 'a.png', 'b.png')
    assert not isinstance(picked, str), picked
    assert [*rows(picked[1])] == ['b']
    assert 'annotations[0]: bbox' in picked[1].left_out[0]
    csv = read({'z.csv': 'image,xmin,ymin,xmax,ymax,class\na.png,1,2,3,4,x\na.png,1,2,three,4,x\nb.png,1,2,3,4,x\n'})
    assert not isinstance(csv, str), csv
    held = find_annotations(Tree(Path('mine').absolute()), ['csv'])['csv']
    assert [*rows(held)] == ['b']


def test_masks_of_cityscapes_and_camvid_belong_to_their_images() -> None:
    for number, name in enumerate(('aachen_000000', 'aachen_000001')):
        drawn.draw(Path(f'mine/leftImg8bit/train/{name}_leftImg8bit.png'), 1)
        for kind in ('labelIds', 'labelTrainIds', 'instanceIds', 'color'):
            path = Path(f'mine/gtFine/train/{name}_gtFine_{kind}.png')
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((48, 64), number, np.uint8)).save(path)
    picked = read({})
    assert not isinstance(picked, str), picked
    assert {(sample.image.parent.parent.name, str(sample.mask)[-17:]) for sample in picked[1].samples} == {
        ('leftImg8bit', 'labelTrainIds.png')
    }


def test_words_between_quotes_are_the_names_of_images_with_blanks() -> None:
    mask = Image.fromarray(np.ones((48, 64), np.uint8))
    for name in ('a 1', 'a 2'):
        drawn.draw(Path(f'mine/train/{name}.png'), 1)
        Path('mine/other').mkdir(exist_ok=True)
        mask.save(f'mine/other/{name}.png')
    picked = read({'train.txt': '"/train/a 1.png" "other/a 1.png"\n/train/a 2.png other/a 2.png\n', 'c.json': json.dumps([])})
    assert not isinstance(picked, str), picked
    assert [(s.image.parent.name, s.mask and s.mask.parent.name) for s in picked[1].samples] == [('train', 'other')] * 2


def test_folders_of_images_and_labels_can_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(8):
        drawn.draw(Path(f'mine/pics/{number}.png'), number)
        drawn.draw(Path(f'mine/previews/{number}.png'), number + 3)
        drawn.write(Path(f'mine/notes/{number}.txt'), drawn.yolo_line(number))
    assert run_here('new', 'mine', '--no_trial') == 2
    assert '8 files *.txt are named like images, --labels FOLDER takes them for labels' in capsys.readouterr().err
    assert run_here('new', 'mine', '--no_trial', '--labels', 'note', '--images', 'pics') == 2
    assert "--labels note: mine has no such folder with files in it; did you mean 'notes'?" in capsys.readouterr().err
    assert run_here('new', 'mine', '--no_trial', '--labels', 'notes', '--images', 'mine/pics') == 0
    content = json.loads(Path('mine_phalanx/train.json').read_text())
    assert all(image['file_name'].startswith('mine/pics/') for image in content['images'])
    assert len(content['annotations']) == len(content['images'])


@pytest.mark.parametrize(
    ('shape', 'box'),
    [
        ({'type': 'polygon', 'points': [1, 2, 9, 2, 9, 8]}, (1, 2, 9, 8)),
        ({'type': 'ellipse', 'points': [10, 12, 20, 18]}, (10, 12, 20, 18)),
        ({'type': 'bbox', 'bbox': [10, 10, 20, 10], 'attributes': {'rotation': 90}}, (15, 5, 25, 25)),
        ({'type': 'rotated_bbox', 'bbox': [20, 15, 20, 10, 90]}, (15, 5, 25, 25)),
        ({'type': 'mask', 'rle': {'size': [48, 64], 'counts': [48, 2, 46, 2, 48 * 62 - 2]}}, (1, 0, 3, 2)),
    ],
)
def test_shapes_of_datumaro_have_the_boxes_around_them(shape: dict[str, object], box: tuple[int, ...]) -> None:
    """The mask: the first two pixels of the second and the third column."""
    item = {'id': 'a', 'image': {'path': 'a.png'}, 'annotations': [{'label_id': 1, **shape}, {'type': 'caption'}]}
    picked = read({'annotations/train.json': {**DATUMARO, 'items': [item]}}, 'a.png')
    assert not isinstance(picked, str), picked
    assert rows(picked[1]) == {'a': [('y', box, False)]}


@pytest.mark.parametrize(
    ('shape', 'reason'),
    [
        ({'type': 'polygon', 'points': [1, 2, 9, 2, 9]}, 'has an odd number of coordinates'),
        ({'type': 'points', 'points': [1, 2]}, 'has no area, so the image is not used'),
        ({'type': 'bbox', 'label_id': 7, 'bbox': [1, 2, 3, 4]}, 'label_id 7 is not one of 0 to 1'),
    ],
)
def test_an_image_with_a_shape_of_datumaro_that_cannot_be_used_is_left_out(shape: dict[str, object], reason: str) -> None:
    item = {'id': 'a', 'image': {'path': 'a.png'}, 'annotations': [{'label_id': 1, **shape}]}
    good = {'id': 'b', 'image': {'path': 'b.png'}, 'annotations': [{'type': 'bbox', 'label_id': 0, 'bbox': [1, 2, 3, 4]}]}
    picked = read({'annotations/train.json': {**DATUMARO, 'items': [item, good]}}, 'a.png', 'b.png')
    assert not isinstance(picked, str), picked
    assert list(rows(picked[1])) == ['b'] and reason in picked[1].left_out[0]
