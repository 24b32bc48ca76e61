"""`phalanx data prepare`: annotations of tools, written by hand, become images and label maps."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as coco_masks

import phalanx.cli.main as cli
from phalanx.curation.prepare import label_maps
from phalanx.data.checks import AnnotationError
from phalanx.data.samples import Draw
from phalanx.data.shapes import polygon, runs
from phalanx.families.segmentation.data.file_list import FileList
from phalanx.families.segmentation.labels import VOID

H, W = 6, 8


def picture(path: Path, height: int = H, width: int = W) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)).save(path)


def paint(shape: Any, height: int = H, width: int = W) -> np.ndarray:
    canvas = np.zeros((height, width), np.uint8)
    shape.paint(canvas, 1)
    return canvas


def test_void_means_the_same_as_in_segmentation() -> None:
    assert label_maps.VOID == VOID


# Shapes.


def test_a_pixel_belongs_to_a_polygon_when_its_centre_does() -> None:
    """By hand: a triangle with the corners (0, 0), (4, 0), (0, 4) holds the centres (x + 0.5, y + 0.5) with x + y + 1 <= 4."""
    assert paint(polygon([[0, 0], [4, 0], [0, 4]], (W, H), ''), 4, 4).tolist() == [
        [1, 1, 1, 0],
        [1, 1, 0, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 0],
    ]


def test_polygons_that_share_a_side_share_no_pixel_and_leave_none() -> None:
    left = paint(polygon([[0, 0], [2.5, 0], [5.5, H], [0, H]], (W, H), ''))
    right = paint(polygon([[2.5, 0], [W, 0], [W, H], [5.5, H]], (W, H), ''))
    assert (left + right == 1).all()


def test_a_polygon_may_reach_beyond_the_image() -> None:
    assert (paint(polygon([[-3, -2], [20, -2], [20, 9], [-3, 9]], (20, 9), ''), H, W) == 1).all()
    assert not paint(polygon([[-3, 0], [-1, 0], [-1, 5]], (W, H), '')).any()


@pytest.mark.parametrize('seed', range(5))
def test_polygons_are_those_of_pycocotools_up_to_their_outline(seed: int) -> None:
    """It draws outlines on a grid five times as fine, so pixels on the outline may differ, and only those."""
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, 9))
    points = np.stack([64 + rng.uniform(20, 60, 9) * np.cos(angles), 48 + rng.uniform(20, 45, 9) * np.sin(angles)], 1)
    ours = paint(polygon(points.tolist(), (128, 96), ''), 96, 128)
    theirs = coco_masks.decode(coco_masks.frPyObjects([points.reshape(-1).tolist()], 96, 128))[..., 0]
    neighbours = np.ones((3, 3), np.uint8)
    assert (ours <= cv2.dilate(theirs, neighbours)).all()
    assert (ours >= cv2.erode(theirs, neighbours)).all()
    assert (ours & theirs).sum() / (ours | theirs).sum() > 0.98


def test_a_polygon_on_whole_pixels_is_exactly_that_of_pycocotools() -> None:
    flat = [2, 1, 7, 1, 7, 5, 2, 5]
    theirs = coco_masks.decode(coco_masks.frPyObjects([flat], H, W))[..., 0]
    np.testing.assert_array_equal(paint(polygon(np.reshape(flat, (-1, 2)).tolist(), (W, H), '')), theirs)


@pytest.mark.parametrize('density', [0.0, 0.02, 0.5, 1.0])
def test_run_lengths_are_read_as_pycocotools_reads_them(density: float) -> None:
    """Both as text and as numbers."""
    mask = (np.random.default_rng(1).random((90, 130)) < density).astype(np.uint8)
    text = coco_masks.encode(np.asfortranarray(mask))['counts'].decode()
    np.testing.assert_array_equal(paint(runs(text, (130, 90), ''), 90, 130), mask)
    flat = mask.flatten(order='F')
    edges = np.flatnonzero(np.diff(np.concatenate([[0], flat, [flat[-1] ^ 1]])))
    numbers = np.diff(np.concatenate([[0], edges])).tolist()
    shape = runs(numbers, (130, 90), '')
    np.testing.assert_array_equal(paint(shape, 90, 130), mask)
    assert shape.area == mask.sum()


@pytest.mark.parametrize(
    ('make', 'message'),
    [
        (lambda: polygon([[0, 0], [1, 1]], (W, H), 'x'), 'x: a polygon needs 3 points, got 2'),
        (lambda: polygon([[0, 0], [1, 1], [float('nan'), 1]], (W, H), 'x'), 'x: has points far outside the image of 8 x 6'),
        (lambda: polygon([[0, 0], [1, 1], [10**400, 1]], (W, H), 'x'), 'x: has points far outside the image of 8 x 6'),
        (lambda: polygon([[0, 0], [1, 1], ['1', 1]], (W, H), 'x'), 'x: has a coordinate that is not a number'),
        (lambda: polygon([[0, 0], [1, 1], [1]], (W, H), 'x'), 'x: expected a list of points x, y'),
        (lambda: runs([1, 2], (W, H), 'x'), 'x: run lengths add up to 3, but the image has 8 x 6 pixels'),
        (lambda: runs([-1, 49], (W, H), 'x'), 'x: expected run lengths, got [-1, 49]'),
        (lambda: runs(None, (W, H), 'x'), 'x: expected run lengths, got None'),
        (lambda: runs('é', (W, H), 'x'), "x: 'é' is not a text of run lengths"),
        (lambda: runs('oooooooooooo', (W, H), 'x'), 'is not a text of run lengths'),
        (lambda: runs('o', (W, H), 'x'), 'x: the text of run lengths is cut off'),
    ],
)
def test_a_shape_that_cannot_be_is_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(AnnotationError, match=re.escape(message)):
        make()


# labelme.


def labelme(path: Path, image: str, *shapes: tuple[str, list[list[float]], str], **more: Any) -> None:
    content = {
        'imagePath': image,
        'imageWidth': W,
        'imageHeight': H,
        'shapes': [{'label': label, 'points': points, 'shape_type': kind} for label, points, kind in shapes],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content | more))


def box(x0: float, y0: float, x1: float, y1: float) -> list[list[float]]:
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two images with labelme files: a road with a hole and a car over its end; a pool and a region to ignore."""
    monkeypatch.chdir(tmp_path)
    source = tmp_path / 'source'
    picture(source / 'images/a 1.png')
    picture(source / 'images/b.jpg')
    road, hole = ('road', box(0, 0, 6, 4), 'polygon'), ('_background_', [[1, 1], [3, 3]], 'rectangle')
    labelme(source / 'json/a 1.json', '..\\images\\a 1.png', road, hole, ('car', box(5, 0, 8, 2), 'polygon'))
    labelme(
        source / 'json/b.json',
        '../images/b.jpg',
        ('pool', [[4, 3], [4, 5]], 'circle'),
        ('__ignore__', box(0, 0, 1, 6), 'polygon'),
    )
    return source


def prepared(out: Path) -> dict[str, np.ndarray]:
    """The label maps of a prepared data set, read as training reads them, by the names of their images."""
    data = FileList(root=out)
    found = {}
    for split in ('train', 'eval'):
        pairs = data.split(split)  # type: ignore[arg-type]
        found |= {Path(pairs.name(index)).name: pairs.read(Draw(index))[1] for index in range(len(pairs))}
    return found


def prepare(*words: object) -> int:
    return cli.main(['data', 'prepare', *map(str, words)])


def test_later_labelme_shapes_lie_over_earlier_ones(source: Path) -> None:
    """Classes are background, car, pool, road; the hole is 2 x 2 pixels, the car hides the last column of the road."""
    assert prepare('labelme', source, '--out', 'out', '--split', '0.5,0.5') == 0
    assert FileList(root=Path('out')).class_names == ('background', 'car', 'pool', 'road')
    maps = prepared(Path('out'))
    assert maps['a_1.png'].tolist() == [
        [3, 3, 3, 3, 3, 1, 1, 1],
        [3, 0, 0, 3, 3, 1, 1, 1],
        [3, 0, 0, 3, 3, 3, 0, 0],
        [3, 3, 3, 3, 3, 3, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0, 0, 0, 0],
    ]
    circle = maps['b.jpg']
    assert (circle[:, 0] == VOID).all()
    distance = np.hypot(*np.meshgrid(np.arange(H) + 0.5 - 3, np.arange(W) + 0.5 - 4, indexing='ij'))
    np.testing.assert_array_equal(circle[:, 1:] == 2, (distance < 2)[:, 1:])
    assert Path('out/images/images/b.jpg').read_bytes() == (source / 'images/b.jpg').read_bytes()
    assert sorted(path.name for path in Path('out/labels/images').iterdir()) == ['a_1.png', 'b.png']  # named like their images


def test_named_classes_have_the_order_in_which_they_are_named(source: Path) -> None:
    assert prepare('labelme', source, '--out', 'out', '--split', '0.5,0.5', '--classes', 'road', 'car', 'pool') == 0
    assert FileList(root=Path('out')).class_names == ('background', 'road', 'car', 'pool')
    assert prepared(Path('out'))['a_1.png'][0].tolist() == [1, 1, 1, 1, 1, 2, 2, 2]


def test_images_whose_names_differ_in_the_suffix_alone_have_label_maps_of_their_own(source: Path) -> None:
    picture(source / 'images/b.png')
    labelme(source / 'json/c.json', '../images/b.png', ('pool', box(0, 0, 8, 6), 'polygon'))
    assert prepare('labelme', source, '--out', 'out', '--split', '0.5,0.5') == 0
    maps = prepared(Path('out'))
    assert (maps['b.png'] == 2).all() and (maps['b.jpg'][:, 0] == VOID).all()


FAULTS = [
    ({'imagePath': '../../secret.png'}, "bad.json: imagePath: '../../secret.png' lies outside"),
    ({'imagePath': '/etc/hostname'}, "bad.json: imagePath: '/etc/hostname' lies outside"),
    ({'imagePath': '../images/none.png'}, "bad.json: imagePath: '../images/none.png': no such file"),
    ({'imagePath': 7}, 'bad.json: imagePath: expected str, got 7'),
    ({'imageWidth': 80}, 'bad.json: was made for 80 x 6 pixels, but'),
    ({'shapes': [{'label': 'car', 'points': [[1, 1]], 'shape_type': 'point'}]}, "bad.json: shapes[0] ('car'): is a point"),
    ({'shapes': [{'label': 'car', 'points': [[1, 1], [2, 2]]}]}, "bad.json: shapes[0] ('car'): a polygon needs 3 points"),
    ({'shapes': ['car']}, 'bad.json: shapes[0]: label: expected str'),
    ({'shapes': [{'label': 'cat', 'points': box(0, 0, 1, 1)}]}, "shapes[0] ('cat'): is not a class; did you mean 'car'?"),
]


@pytest.mark.parametrize(('change', 'message'), FAULTS)
def test_a_labelme_file_that_cannot_be_used_is_reported_and_can_be_left_out(
    source: Path, capsys: pytest.CaptureFixture[str], change: dict[str, Any], message: str
) -> None:
    picture(source / 'images/c.png')
    labelme(source / 'json/bad.json', '../images/c.png', **change)
    words = ('labelme', source, '--out', 'out', '--split', '0.5,0.5', '--classes', 'road', 'car', 'pool')
    assert prepare(*words) == 1
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in source.parent.iterdir()) == ['source']  # nothing half done is left
    assert prepare(*words, '--skip') == 0
    assert f'left out: {source}/json/bad.json' in capsys.readouterr().err
    assert set(prepared(Path('out'))) == {'a_1.png', 'b.jpg'}


def test_nothing_is_written_if_every_sample_is_left_out(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ('a 1', 'b'):
        (source / f'json/{name}.json').write_text('{')
    assert prepare('labelme', source, '--out', 'out', '--skip') == 1
    said = capsys.readouterr().err
    assert f'{source}/json/a 1.json: is not JSON' in said and '2 problems, nothing was made' in said
    assert not Path('out').exists()


# COCO.


@pytest.fixture
def coco(source: Path) -> dict[str, Any]:
    """A crowd of cats (category 7) over the whole of a, a dog (3) over it, and on the dog a cat's two parts."""
    crowd = np.ones((H, W), np.uint8, order='F')
    dog = np.zeros((H, W), np.uint8, order='F')
    dog[2:5, 1:7] = 1
    text = coco_masks.encode(dog)['counts'].decode()
    return {
        'images': [
            {'id': 1, 'file_name': 'a 1.png', 'width': W, 'height': H},
            {'id': 2, 'file_name': 'b.jpg', 'width': W, 'height': H},
        ],
        'categories': [{'id': 7, 'name': 'cat'}, {'id': 3, 'name': 'dog'}],
        'annotations': [
            {'image_id': 1, 'category_id': 7, 'segmentation': [[1, 2, 3, 2, 3, 4, 1, 4], [6, 4, 8, 4, 8, 6, 6, 6]]},
            {'image_id': 1, 'category_id': 3, 'segmentation': {'size': [H, W], 'counts': text}},
            {'image_id': 1, 'category_id': 7, 'iscrowd': 1, 'segmentation': {'size': [H, W], 'counts': [0, int(crowd.sum())]}},
        ],
    }


def from_coco(content: dict[str, Any], *more: str) -> int:
    Path('instances.json').write_text(json.dumps(content))
    return prepare('coco', 'instances.json', '--images', 'source/images', '--out', 'out', '--split', '0.5,0.5', *more)


def test_small_coco_objects_lie_over_large_ones_and_all_over_crowds(coco: dict[str, Any]) -> None:
    """Classes are background, dog (3), cat (7)."""
    assert from_coco(coco) == 0
    assert FileList(root=Path('out')).class_names == ('background', 'dog', 'cat')
    maps = prepared(Path('out'))
    assert not maps['b.jpg'].any()  # an image without annotations is background
    assert maps['a_1.png'].tolist() == [
        [2, 2, 2, 2, 2, 2, 2, 2],
        [2, 2, 2, 2, 2, 2, 2, 2],
        [2, 2, 2, 1, 1, 1, 1, 2],
        [2, 2, 2, 1, 1, 1, 1, 2],
        [2, 1, 1, 1, 1, 1, 2, 2],
        [2, 2, 2, 2, 2, 2, 2, 2],
    ]


@pytest.mark.parametrize(
    ('place', 'value', 'message'),
    [
        (('images', 0, 'file_name'), '../json/b.json', "image 1: '../json/b.json' lies outside"),
        (('images', 0, 'height'), 60, 'image 1: was made for 8 x 60 pixels'),
        (('annotations', 0, 'category_id'), 9, 'annotations[0]: category_id 9 is not the id of a category (they are 3, 7)'),
        (('annotations', 0, 'image_id'), 9, 'annotations[0]: image_id 9 is not the id of an image'),
        (('annotations', 0, 'segmentation'), [], 'annotations[0] has no `bbox`'),
        (
            ('annotations', 0, 'segmentation'),
            [[1, 2, 3]],
            'annotations[0]: has no `bbox`, and no `segmentation` to take it from',
        ),
        (('annotations', 1, 'segmentation', 'size'), [W, H], "annotations[1] ('dog'): its run lengths are for a size"),
        (('annotations', 1, 'segmentation', 'counts'), [5], 'annotations[1]: segmentation: run lengths add up to 5'),
    ],
)
def test_a_coco_entry_that_cannot_be_used_is_reported(
    coco: dict[str, Any], capsys: pytest.CaptureFixture[str], place: tuple[Any, ...], value: Any, message: str
) -> None:
    entry = coco
    for key in place[:-1]:
        entry = entry[key]
    entry[place[-1]] = value
    assert from_coco(coco) == 1
    assert f'instances.json: {message}' in capsys.readouterr().err
    assert not Path('out').exists()


def test_a_coco_file_without_its_parts_is_a_wrong_request(coco: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    for content, message in (
        (coco | {'categories': coco['categories'] * 2}, "category 7, 'cat': the id or the name is used twice"),
        ({}, 'is not in the format of COCO: it needs lists'),
    ):
        assert from_coco(content) == 2
        assert f'instances.json: {message}' in capsys.readouterr().err


# Colours.


@pytest.fixture
def colours(source: Path) -> Path:
    """Masks of a and b: grass, water with a void corner; b's as a palette image."""
    (source.parent / 'masks').mkdir()
    mask = np.full((H, W, 3), (0, 128, 0), np.uint8)
    mask[:, 4:] = (0, 0, 255)
    mask[0, 0] = (0, 0, 0)
    Image.fromarray(mask).save(source.parent / 'masks/a 1.png')
    Image.fromarray(mask).quantize(16).save(source.parent / 'masks/b.png')
    (source.parent / 'colors.txt').write_text('# r g b name\n0 128 0 grass\n0 0 255 deep water\n0 0 0 void\n')
    return source.parent / 'masks'


SPLIT = ('--images', 'source/images', '--out', 'out', '--split', '0.5,0.5')


@pytest.mark.parametrize(
    'how', [('--colors', 'colors.txt'), ('--classes', 'grass=#008000', 'deep water=#0000ff', 'void=#000000')]
)
def test_colours_become_classes_in_their_order(colours: Path, how: tuple[str, ...]) -> None:
    assert prepare('colours', colours, *SPLIT, *how) == 0
    assert FileList(root=Path('out')).class_names == ('grass', 'deep water')
    expected = [[0, 0, 0, 0, 1, 1, 1, 1]] * H
    for labels in prepared(Path('out')).values():
        assert labels[0, 0] == VOID
        assert labels[1:].tolist() == expected[1:]


def test_a_colour_without_a_name_is_reported_with_the_nearest(colours: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mask = np.full((H, W, 3), (0, 128, 0), np.uint8)
    mask[0, :2] = (0, 126, 3)
    Image.fromarray(mask).save(colours / 'b.png')
    assert prepare('colours', colours, *SPLIT, '--colours', 'colors.txt') == 1
    said = f'{colours}/b.png: 2 pixels are #007e03, which is not a class (nearest: grass #008000)'
    assert said in capsys.readouterr().err
    assert not Path('out').exists()


def test_masks_need_an_image_of_their_size(colours: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / 'images/b.jpg').unlink()
    picture(source / 'images/a 1.png', 3, 4)
    assert prepare('colours', colours, *SPLIT, '--colours', 'colors.txt') == 1
    assert 'masks/b.png: there is no image source/images/b.*' in capsys.readouterr().err
    (colours / 'b.png').unlink()
    assert prepare('colours', colours, *SPLIT, '--colours', 'colors.txt') == 1
    assert 'masks/a 1.png: was made for 8 x 6 pixels, but source/images/a 1.png has 4 x 3' in capsys.readouterr().err


@pytest.mark.parametrize(
    ('how', 'message'),
    [
        (('--classes', 'grass=008'), "--classes: expected NAME=#RRGGBB, got 'grass=008'"),
        (('--classes', 'a=#000000', 'b=#000000'), "--classes: #000000 is 'a' already, so it cannot be 'b'"),
        (('--colours', 'lines.txt'), "lines.txt:2: expected three numbers from 0 to 255 and a name, got '0 0 256 sea'"),
        (('--classes', 'a=#000000', '--split', '0.5,0.6'), '--split 0.5,0.6: give two or three shares that add up to 1'),
        (('--classes', 'a=#000000', '--out', 'source'), '--out source: exists'),
    ],
)
def test_a_wrong_request_writes_nothing(
    colours: Path, capsys: pytest.CaptureFixture[str], how: tuple[str, ...], message: str
) -> None:
    Path('lines.txt').write_text('0 0 255 lake\n0 0 256 sea\n')
    assert prepare('colours', colours, *SPLIT, *how) == 2
    assert message in capsys.readouterr().err
    assert not Path('out').exists()


def test_two_images_of_one_name_are_reported(colours: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture(source / 'images/a_1.png')
    Image.open(colours / 'a 1.png').save(colours / 'a_1.png')
    assert prepare('colours', colours, *SPLIT, '--colours', 'colors.txt') == 1
    assert 'a_1.png: an image before it is named a_1 too' in capsys.readouterr().err


# Any other format.


def test_boxes_in_csv_become_a_self_contained_data_set(source: Path) -> None:
    (source / 'boxes.csv').write_text('image,xmin,ymin,xmax,ymax,label\na 1.png,1,1,5,4,cat\nb.jpg,2,0,8,6,dog\n')
    assert prepare('csv', source, '--out', 'out', '--split', '0.5,0.5') == 0
    found = []
    for split in ('train', 'val'):
        content = json.loads(Path(f'out/{split}.json').read_text())
        assert (Path('out') / content['images'][0]['file_name']).is_file()
        found += [one['bbox'] for one in content['annotations']]
    assert sorted(found) == [[1, 1, 4, 3], [2, 0, 6, 6]]


def test_labelme_polygons_become_boxes_where_detection_is_asked_for(source: Path) -> None:
    assert prepare('labelme', source, '--out', 'out', '--split', '0.5,0.5', '--family', 'detection') == 0
    contents = [json.loads(Path(f'out/{split}.json').read_text()) for split in ('train', 'val')]
    names = [one['name'] for one in contents[0]['categories']]
    found = sorted((names[one['category_id'] - 1], one['bbox']) for content in contents for one in content['annotations'])
    assert ('car', [5, 0, 3, 2]) in found and ('road', [0, 0, 6, 4]) in found


def test_a_format_that_a_folder_does_not_contain_writes_nothing(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert prepare('voc', source, '--out', 'out') == 2
    assert 'holds nothing of the format voc' in capsys.readouterr().err
    assert not Path('out').exists()


def test_a_box_in_csv_whose_number_is_none_is_reported(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN compares with nothing: such a box once became one around the whole image."""
    lines = ('a 1.png,1,1,5,4,cat', 'b.jpg,2,0,8,6,dog', 'b.jpg,nan,0,8,6,dog', 'b.jpg,2,0,inf,6,dog')
    (source / 'boxes.csv').write_text('\n'.join(('image,xmin,ymin,xmax,ymax,label', *lines)))
    assert prepare('csv', source, '--out', 'out', '--split', '0.5,0.5') == 1
    said = capsys.readouterr().err
    assert "boxes.csv:4: x0: 'nan' is not a number" in said and "boxes.csv:5: x1: 'inf' is not a number" in said
    assert not Path('out').exists()


def test_a_folder_that_cannot_be_written_is_named(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (source / 'boxes.csv').write_text('image,xmin,ymin,xmax,ymax,label\na 1.png,1,1,5,4,cat\nb.jpg,2,0,8,6,dog\n')
    Path('file').touch()
    assert prepare('csv', source, '--out', 'file/out', '--split', '0.5,0.5') == 1
    assert 'file/out cannot be written: ' in capsys.readouterr().err


def test_a_mask_of_another_shape_is_reported_by_the_name_that_it_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, shape, highest in (('images', (40, 60, 3), 256), ('masks', (40, 60), 3)):
        (tmp_path / 'set' / folder).mkdir(parents=True)
        for number in range(4):
            drawing = np.random.default_rng(number).integers(0, highest, shape, dtype=np.uint8)
            Image.fromarray(drawing).save(file := tmp_path / 'set' / folder / f'{number}.png')
    Image.fromarray(drawing[:20]).save(file)
    words = ('masks', tmp_path / 'set', '--out', tmp_path / 'out', '--split', '0.5,0.5')
    assert prepare(*words) == 1
    assert '1 problems, nothing was made' in capsys.readouterr().err and not (tmp_path / 'out').exists()
    assert prepare(*words, '--skip') == 0
    image = tmp_path / 'set/images/3.png'
    said = capsys.readouterr().err.splitlines()
    assert [line for line in said if not line.startswith('note: ')] == [
        f'left out: {file}: is 60 x 20 pixels, but {image} is 60 x 40'
    ]
