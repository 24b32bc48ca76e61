"""Shapes of annotation tools, against values by hand: read as their author meant them, or their image is not used."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import drawn
from phalanx.curation.prepare.bitmaps import decode_brush
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.label_maps import paint_labels
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree
from phalanx.data.checks import AnnotationError


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def read(name: str, content: object, file: str, *images: str) -> AnnotationSet:
    """The reading of `content` beside images of 64 x 48 pixels."""
    for image in images or ('a.png',):
        drawn.draw(Path(f'mine/{image}'), 1)
    drawn.write(Path('mine') / file, content)
    tree, refused = Tree(Path('mine').absolute()), {}
    return find_annotations(tree, [name], refused).get(name) or AnnotationSet(left_out=refused.get(name, []))


def pixels_of(found: AnnotationSet) -> set[tuple[int, int]]:
    """(column, row) of the pixels that are not background on the only image."""
    (sample,) = found.samples
    labels = paint_labels(sample, ['background', *found.class_names])
    return {(int(x), int(y)) for y, x in np.argwhere(labels)}


def cvat(shapes: str, name: str = 'a.png') -> str:
    return f'<annotations><image id="0" name="{name}" width="64" height="48">{shapes}</image></annotations>'


def label_studio(*results: dict[str, Any], **task: Any) -> list[dict[str, Any]]:
    return [{'data': {'image': 'a.png'}, 'annotations': [{'result': list(results)}], **task}]


def test_a_rotated_box_of_cvat_turns_about_its_centre() -> None:
    """20 x 10 pixels about (20, 15), turned by a quarter, are 10 x 20; a rotated rectangle is painted as one."""
    found = read('cvat', cvat('<box label="a" rotation="90" xtl="10" ytl="10" xbr="30" ybr="20"/>'), 'a.xml')
    np.testing.assert_allclose(found.samples[0].instances[0].box, (15, 5, 25, 25), atol=1e-9)
    assert pixels_of(found) == {(x, y) for x in range(15, 25) for y in range(5, 25)}


def test_a_rectangle_turned_by_an_eighth_is_not_painted_as_the_box_around_it() -> None:
    found = read('cvat', cvat('<box label="a" rotation="45" xtl="20" ytl="14" xbr="40" ybr="34"/>'), 'a.xml')
    assert len(pixels_of(found)) == pytest.approx(400, rel=0.05)


def test_a_mask_of_cvat_has_run_lengths_along_its_rows() -> None:
    """2 outside, 2 inside; then 1 outside, 1 inside, of a rectangle of 3 x 2 at (5, 7)."""
    found = read('cvat', cvat('<mask label="a" rle="2, 2, 1, 1" left="5" top="7" width="3" height="2"/>'), 'a.xml')
    assert pixels_of(found) == {(7, 7), (5, 8), (7, 8)}
    assert found.samples[0].instances[0].box == (5, 7, 8, 9)


@pytest.mark.parametrize('degrees', [0, 90])
def test_an_ellipse_of_cvat_has_the_area_of_one(degrees: int) -> None:
    shape = f'<ellipse label="a" cx="30" cy="20" rx="15" ry="8" rotation="{degrees}"/>'
    found = read('cvat', cvat(shape), 'a.xml')
    rx, ry = (8, 15) if degrees else (15, 8)
    np.testing.assert_allclose(found.samples[0].instances[0].box, (30 - rx, 20 - ry, 30 + rx, 20 + ry), atol=0.1)
    assert len(pixels_of(found)) == pytest.approx(np.pi * 15 * 8, rel=0.02)


@pytest.mark.parametrize(
    ('name', 'content', 'file', 'reason'),
    [
        ('cvat', cvat('<box label="a" xtl="1" ytl="1" xbr="9" ybr="9"/><points label="b" points="3,4"/>'), 'a.xml', '1 points'),
        ('cvat', cvat('<box label="" xtl="1" ytl="1" xbr="9" ybr="9"/>'), 'a.xml', 'has no label'),
        (
            'label_studio',
            label_studio({'id': 'k', 'type': 'keypointlabels', 'value': {'x': 1, 'y': 2, 'keypointlabels': ['a']}}),
            'a.json',
            'keypointlabels cannot be used, so the image is not',
        ),
        (
            'labelme',
            {'imagePath': 'a.png', 'shapes': [{'label': 'a', 'points': [[1, 2]], 'shape_type': 'point'}]},
            'a.json',
            'is a point, which has no area, so the image is not used',
        ),
    ],
)
def test_an_image_with_a_shape_that_cannot_be_read_is_not_used(name: str, content: object, file: str, reason: str) -> None:
    found = read(name, content, file)
    assert not found.samples
    assert reason in ' '.join(found.left_out)


def test_frames_of_a_video_are_read_by_their_number() -> None:
    box = '<box frame="{}" outside="{}" xtl="1" ytl="2" xbr="{}" ybr="9"/>'
    track = ''.join(box.format(frame, int(frame == 2), 10 + frame) for frame in range(4))
    content = f'<annotations><track id="0" label="a">{track}</track></annotations>'
    found = read('cvat', content, 'a.xml', *(f'images/frame_00000{frame}.PNG' for frame in range(3)))
    assert [(sample.image.name, sample.instances) for sample in found.samples] == [
        ('frame_000000.PNG', (Instance('a', (1, 2, 10, 9)),)),
        ('frame_000001.PNG', (Instance('a', (1, 2, 11, 9)),)),
    ]
    assert 'frame 3: of a video, and there is no image frame_000003: export' in found.left_out[0]


def test_images_of_one_name_are_distinguished_by_their_subset() -> None:
    image = '<image id="{}" name="a.png" subset="{}"><box label="{}" xtl="1" ytl="2" xbr="9" ybr="9"/></image>'
    content = f'<annotations>{image.format(0, "Train", "x")}{image.format(0, "Validation", "y")}</annotations>'
    found = read('cvat', content, 'a.xml', 'images/Train/a.png', 'images/Validation/a.png')
    assert [(sample.split, sample.instances[0].label) for sample in found.samples] == [('train', 'x'), ('val', 'y')]


def test_an_ellipse_of_label_studio_is_in_hundredths_of_the_image() -> None:
    value = {'x': 50, 'y': 50, 'radiusX': 25, 'radiusY': 25, 'rotation': 0, 'ellipselabels': ['a']}
    found = read('label_studio', label_studio({'id': 'e', 'type': 'ellipselabels', 'value': value}), 'a.json')
    np.testing.assert_allclose(found.samples[0].instances[0].box, (16, 12, 48, 36), atol=0.1)


def test_a_brush_of_label_studio_is_decoded_bit_by_bit() -> None:
    """8 values of 8 bits, lengths of 4 bits: a run of 4 zeros, then 4 literals of which the last, alpha, is 255."""
    bits = f'{8:032b}{7:05b}' + f'{3:04b}' * 4 + '1' + '00' + f'{3:04b}' + f'{0:08b}' + '0' + '00' + f'{3:04b}'
    bits += ''.join(f'{value:08b}' for value in (9, 9, 9, 255))
    packed = list(int(bits.ljust(-(-len(bits) // 8) * 8, '0'), 2).to_bytes(-(-len(bits) // 8), 'big'))
    assert decode_brush(packed, (2, 1), '').tolist() == [[False, True]]
    with pytest.raises(AnnotationError, match='cut off'):
        decode_brush(packed[:-1], (2, 1), '')
    with pytest.raises(AnnotationError, match='another size than 3 x 1'):
        decode_brush(packed, (3, 1), '')


@pytest.mark.parametrize(
    'task',
    [{'annotations': []}, {'annotations': [{'result': [], 'was_cancelled': True}]}, {'annotations': [], 'predictions': [1]}],
)
def test_a_task_that_nobody_annotated_is_not_an_image_without_objects(task: dict[str, Any]) -> None:
    found = read('label_studio', label_studio(**task), 'a.json')
    assert not found.samples
    assert 'tasks without an annotation (not begun, or skipped), not used: 1' in found.left_out


def test_a_submitted_annotation_without_regions_is_an_image_without_objects() -> None:
    value = {'x': 1, 'y': 1, 'width': 50, 'height': 50, 'rectanglelabels': ['a']}
    one = {'data': {'image': 'b.png'}, 'annotations': [{'result': [{'type': 'rectanglelabels', 'value': value}]}]}
    found = read('label_studio', [*label_studio(), one], 'a.json', 'a.png', 'b.png')
    assert [len(sample.instances) for sample in found.samples] == [0, 1]


def test_a_mask_of_labelme_lies_at_its_first_point() -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.array([[255, 0], [255, 255]], np.uint8)).save(buffer, 'PNG')
    mask = base64.b64encode(buffer.getvalue()).decode()
    shape = {'label': 'a', 'points': [[10, 20], [11, 21]], 'shape_type': 'mask', 'mask': mask}
    found = read('labelme', {'imagePath': 'a.png', 'shapes': [shape]}, 'a.json')
    assert pixels_of(found) == {(10, 20), (10, 21), (11, 21)}


def coco_file(file: str, label: str, box: list[int], *, twice: bool = False) -> None:
    images = [{'id': number, 'file_name': 'a.png'} for number in range(1 + twice)]
    annotations = [
        {'image_id': number, 'category_id': 1, 'bbox': [*box[:2], box[2] + number, box[3]]} for number in range(1 + twice)
    ]
    drawn.write(Path('mine') / file, {'images': images, 'annotations': annotations, 'categories': [{'id': 1, 'name': label}]})


def test_annotations_of_an_image_in_a_file_per_class_are_joined() -> None:
    drawn.draw(Path('mine/a.png'), 1)
    coco_file('x.json', 'x', [1, 2, 10, 10])
    coco_file('x_copy.json', 'x', [1, 2, 10, 10])
    coco_file('y.json', 'y', [3, 4, 20, 10])
    (found,) = find_annotations(Tree(Path('mine').absolute()), ['coco']).values()
    assert [(instance.label, instance.box) for instance in found.samples[0].instances] == [
        ('x', (1, 2, 11, 12)),
        ('y', (3, 4, 23, 14)),
    ]
    assert found.notes == ['images that are annotated more than once, whose annotations are joined: 1']


def test_an_image_that_a_coco_file_lists_twice_has_the_objects_of_both() -> None:
    drawn.draw(Path('mine/a.png'), 1)
    coco_file('x.json', 'x', [1, 2, 10, 10], twice=True)
    (found,) = find_annotations(Tree(Path('mine').absolute()), ['coco']).values()
    assert [instance.box for instance in found.samples[0].instances] == [(1, 2, 11, 12), (1, 2, 12, 12)]


def test_an_image_with_two_texts_is_not_used() -> None:
    found = read('lists', 'a.png\tone\na.png\ttwo\n', 'gt.txt')
    assert not found.samples
    assert 'is annotated 2 times, with different texts' in found.left_out[0]


def test_of_masks_beside_pictures_to_look_at_those_of_classes_are_used() -> None:
    drawn.masks_palette(Path('mine'))
    folder = Path('mine/SegmentationClass')
    for other in ('SegmentationObject', 'SegmentationClassVisualization'):
        Path('mine', other).mkdir()
        for path in folder.iterdir():
            Image.open(path).save(Path('mine', other, path.name))
    (found,) = find_annotations(Tree(Path('mine').absolute()), ['masks']).values()
    assert {sample.mask.parent.name for sample in found.samples if sample.mask} == {'SegmentationClass'}
    assert all(isinstance(sample, Sample) for sample in found.samples) and len(found.samples) == drawn.COUNT
