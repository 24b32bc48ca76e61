"""Splits that files of a data set name are kept, and random ones leave objects to evaluate with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import drawn
from phalanx.curation.prepare.dealing import deal
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.samples import AnnotationSet, Family, Instance, LeftOut, Sample
from phalanx.curation.prepare.tree import Tree
from phalanx.data.samples import Draw
from phalanx.families.detection.data.yolo import YoloText
from running import run_here

EXPECTED = {'0': 'train', '1': 'train', '2': 'val', '3': 'test'}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def found_in(name: str) -> AnnotationSet:
    return find_annotations(Tree(Path('mine').absolute()), [name])[name]


def splits_in(name: str) -> dict[str, str]:
    return {sample.image.stem: sample.split for sample in found_in(name).samples}


def yolo_in(folder: str, names: str = '0123') -> None:
    for name in names:
        drawn.draw(Path(f'mine/{folder}/{name}.png'), 1)
        drawn.write(Path(f'mine/{folder}/{name}.txt'), drawn.yolo_line(1))


def write(file: str, *lines: str) -> None:
    drawn.write(Path('mine') / file, '\n'.join(lines) + '\n')


def data_yaml_with_lists() -> None:
    yolo_in('pictures')
    write('one.txt', './pictures/0.png', 'D:\\data\\pictures\\1.png')
    write('two.txt', 'pictures/2.png')
    write('three.txt', '/home/me/pictures/3.png')
    write('data.yaml', 'train: ../mine/one.txt', 'val: two.txt', 'test: [three.txt]', 'names: [bolt, nut]')


def data_yaml_with_folders() -> None:
    yolo_in('a/images', '01')
    yolo_in('b/images', '2')
    yolo_in('c/images', '3')
    write('data.yaml', 'train: ../a/images', 'val: b/images', 'test: c/images', 'names: [bolt, nut]')


def darknet() -> None:
    yolo_in('obj_train_data')
    write('train.txt', 'data/obj_train_data/0.png', 'data/obj_train_data/1.png')
    write('test.txt', 'data/obj_train_data/2.png')
    write('last.txt', 'data/obj_train_data/3.png')
    write('obj.data', 'classes = 2', 'train = data/train.txt', 'valid = data/test.txt', 'test = last.txt')


def lists_beside_the_images() -> None:
    yolo_in('my pictures')
    write('train.txt', 'my pictures/0.png', 'my pictures/1.png', 'my pictures/2.png')
    write('valid.txt', 'my pictures/2.png')
    write('test.txt', 'my pictures/3.png')


@pytest.mark.parametrize('layout', [data_yaml_with_lists, data_yaml_with_folders, darknet, lists_beside_the_images])
def test_the_split_of_a_yolo_set_is_kept(layout: Callable[[], None]) -> None:
    layout()
    assert splits_in('yolo') == EXPECTED


def test_the_lists_and_class_order_of_paddledetection_are_kept() -> None:
    drawn.voc(Path('mine'))
    row = './JPEGImages/part {0}.JPG ./Annotations/part {0}.xml'
    write('train.txt', *(row.format(number) for number in range(6)))
    write('valid.txt', *(row.format(number) for number in range(6, 10)))
    write('label_list.txt', 'nut', 'bolt')
    assert [split for _, split in sorted(splits_in('voc').items())] == ['train'] * 6 + ['val'] * 4
    assert found_in('voc').class_names == ('nut', 'bolt')


def test_an_image_that_no_list_names_is_not_used() -> None:
    yolo_in('pictures')
    write('train.txt', 'pictures/0.png', 'pictures/1.png')
    write('val.txt', 'pictures/2.png')
    assert set(splits_in('yolo')) == {'0', '1', '2'}
    assert 'images that no list of the splits names, not used: 1' in found_in('yolo').notes


def test_labels_of_an_image_called_train_are_no_list() -> None:
    yolo_in('pictures', '01')
    drawn.draw(Path('mine/pictures/train.png'), 1)
    write('pictures/train.txt', drawn.yolo_line(1))
    assert splits_in('yolo') == {'0': '', '1': '', 'train': ''}


# Poses.


def pose_set(keypoints: int, *settings: str) -> None:
    for number, image in enumerate(drawn.images(Path('mine/images/train'))):
        row = f'{drawn.yolo_line(number)} ' + ' '.join(['0.5'] * keypoints)
        drawn.write(Path(f'mine/labels/train/{image.stem}.txt'), row)
    write('data.yaml', 'names: [bolt, nut]', *settings)


def test_the_boxes_of_a_pose_are_taken_not_a_polygon_of_its_keypoints() -> None:
    pose_set(8, 'kpt_shape: [4, 2]')
    found = found_in('yolo')
    expected = {f'part {number}': drawn.box_of(number) for number in range(drawn.COUNT)}
    assert {s.image.stem: tuple(round(value) for value in s.instances[0].box) for s in found.samples} == expected
    assert '10 objects have keypoints (kpt_shape), which are not used: their boxes are' in found.notes
    source = YoloText(root=Path('mine'), train='images/train', eval='images/train').split('train')
    boxes = source.read(Draw(0))[1].boxes
    assert [tuple(round(float(value)) for value in box) for box in boxes] == [drawn.box_of(0)]


def test_a_pose_of_another_shape_is_refused() -> None:
    pose_set(6, 'kpt_shape: [4, 2]')
    refused: dict[str, LeftOut] = {}
    assert find_annotations(Tree(Path('mine').absolute()), ['yolo'], refused) == {}
    assert 'expected class, box and 8 numbers of keypoints' in refused['yolo'][0]
    with pytest.raises(ValueError, match='box and 8 numbers of keypoints'):
        YoloText(root=Path('mine'), train='images/train', eval='images/train').split('train')


def test_an_even_number_of_fields_points_to_the_shape_of_keypoints() -> None:
    pose_set(51)
    refused: dict[str, LeftOut] = {}
    assert find_annotations(Tree(Path('mine').absolute()), ['yolo'], refused) == {}
    assert 'Then data.yaml needs kpt_shape' in refused['yolo'][0]


@pytest.mark.parametrize(('keypoints', 'shape'), [('0.5 0.5 0.5 0.5', '[2, 2]'), ('0.5 0.5 2 0.5 0.5 1', '[2, 3]')])
def test_keypoints_without_their_shape_are_not_taken_for_polygons(keypoints: str, shape: str) -> None:
    for number, image in enumerate(drawn.images(Path('mine/images/train'))):
        x, y, width, height = drawn.yolo_line(number).split()[1:]
        row = f'0 {x} {y} {width} {height} {keypoints.replace("0.5 0.5", f"{x} {y}")}'
        drawn.write(Path(f'mine/labels/train/{image.stem}.txt'), row)
    write('data.yaml', 'names: [bolt, nut]')
    refused: dict[str, LeftOut] = {}
    assert find_annotations(Tree(Path('mine').absolute()), ['yolo'], refused) == {}
    assert f'`kpt_shape: {shape}` for keypoints, `kpt_shape: []` for polygons' in refused['yolo'][0]
    with pytest.raises(ValueError, match='may be a polygon, or a box with 2 keypoints in it'):
        YoloText(root=Path('mine'), train='images/train', eval='images/train').split('train')
    write('data.yaml', 'names: [bolt, nut]', 'kpt_shape: []')
    assert all(instance.outline for sample in found_in('yolo').samples for instance in sample.instances)


def test_rotated_boxes_are_polygons() -> None:
    for number, image in enumerate(drawn.images(Path('mine/images/train'))):
        corners = drawn.corners(drawn.box_of(number))
        width, height = drawn.size_of(number)
        row = ' '.join(f'{x / width} {y / height}' for x, y in corners)
        drawn.write(Path(f'mine/labels/train/{image.stem}.txt'), f'0 {row}')
    write('data.yaml', 'names: [bolt, nut]')
    assert all(instance.outline for sample in found_in('yolo').samples for instance in sample.instances)


# Random splits.


def with_boxes(name: str, count: int) -> Sample:
    path = Path(f'{name}.png')
    path.write_bytes(name.encode())  # so that no two files are equal
    return Sample(path, instances=(Instance('a', (0, 0, 9, 9)),) * count)


@pytest.mark.parametrize('count', range(2, 6))
def test_both_lists_have_objects_when_there_are_two_images_with_some(count: int) -> None:
    samples = [with_boxes(f'{number}', int(number < count)) for number in range(12)]
    for seed in range(20):
        train, val = deal(samples, [0.8, 0.2], seed, None)
        assert any(sample.instances for sample in train) and any(sample.instances for sample in val)
        assert len(train) + len(val) == 12 and len(val) in (2, 3)


def test_a_validation_set_without_objects_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    yolo_in('train', '012')
    drawn.draw(Path('mine/val/3.png'), 1)
    drawn.write(Path('mine/val/3.txt'), '')
    assert run_here('new', 'mine', '--no_trial') == 0
    assert 'warning: no image in val shows an object, so nothing can be measured' in capsys.readouterr().out


@pytest.mark.parametrize('family', ['detection', 'segmentation'])
def test_a_class_that_validation_lacks_is_reported(family: Family, capsys: pytest.CaptureFixture[str]) -> None:
    """Validation has a bolt, and a nut that is a crowd, which no metric counts."""
    for number in range(4):
        drawn.draw(Path(f'mine/{number}.png'), number, (48, 48))
    points = [[4, 6, 24, 6, 24, 30]]
    boxes = [{'image_id': n, 'bbox': [4, 6, 20, 24], 'segmentation': points, 'category_id': n % 2} for n in range(4)]
    boxes.append({**boxes[1], 'image_id': 2, 'iscrowd': 1})
    for split, numbers in (('train', (0, 1, 3)), ('val', (2,))):
        found = {
            'images': [{'id': n, 'file_name': f'{n}.png', 'width': 48, 'height': 48} for n in numbers],
            'categories': [{'id': 0, 'name': 'bolt'}, {'id': 1, 'name': 'nut'}],
            'annotations': [{'id': n, **box} for n, box in enumerate(boxes) if box['image_id'] in numbers],
        }
        write(f'{split}.json', json.dumps(found))
    assert run_here('new', 'mine', '--family', family, '--no_trial') == 0
    said = 'warning: nothing in validation is nut, so the metric does not measure it; move images with it there'
    assert capsys.readouterr().out.count(said) == 1


# Files as people keep them.


def test_linked_folders_are_read_once_and_compressed_files_are_named() -> None:
    """`mine/data` lies elsewhere, and has links back to the whole and to itself."""
    drawn.yolo(Path('elsewhere'))
    Path('mine').mkdir()
    Path('mine/data').symlink_to(Path('elsewhere').absolute())
    Path('elsewhere/back').symlink_to(Path('mine').absolute())
    Path('elsewhere/again').symlink_to(Path('elsewhere/train').absolute())
    Path('mine/more.json.gz').touch()
    tree = Tree(Path('mine').absolute())
    assert len(tree.images) == 11
    assert len(find_annotations(tree, ['yolo'])['yolo'].samples) == 11
    assert 'more.json.gz: is compressed, so it was not read; unpack it' in tree.unreadable[0]


def test_prepare_keeps_the_split_unless_shares_are_given() -> None:
    for number in range(8):
        split = 'val' if number > 5 else 'train'
        drawn.draw(Path(f'mine/{split}/images/{number}.png'), number)
        drawn.write(Path(f'mine/{split}/labels/{number}.txt'), drawn.yolo_line(number))
    for words, counts in (((), [6, 2]), (('--split', '0.5,0.5'), [4, 4])):
        out = Path(f'out{len(words)}')
        assert run_here('data', 'prepare', 'yolo', 'mine', '--out', str(out), *words) == 0
        assert [len(json.loads((out / f'{split}.json').read_text())['images']) for split in ('train', 'val')] == counts


def lists_in(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> tuple[list[set[str]], str]:
    """Images of the training and validation lists of a recipe, and the report."""
    shutil.rmtree('mine_phalanx', ignore_errors=True)
    assert run_here('new', 'mine', '--no_trial', *words) == 0
    files = (json.loads(Path(f'mine_phalanx/{split}.json').read_text()) for split in ('train', 'val'))
    return [{Path(image['file_name']).stem for image in content['images']} for content in files], capsys.readouterr().out


def yolo_of_one_folder() -> None:
    yolo_in('images/train')
    for number in range(4):  # images that differ
        drawn.draw(Path(f'mine/images/train/{number}.png'), number)
    write('data.yaml', 'train: images/train', 'val: images/train', 'test: images/train', 'names: [bolt, nut]')


def two_equal_coco_files() -> None:
    for number in range(4):
        drawn.draw(Path(f'mine/{number}.png'), number, (48, 48))
    content = {
        'images': [{'id': number, 'file_name': f'{number}.png'} for number in range(4)],
        'annotations': [{'image_id': number, 'category_id': 1, 'bbox': [4, 6, 20, 24]} for number in range(4)],
        'categories': [{'id': 1, 'name': 'nut'}],
    }
    write('train.json', json.dumps(content))
    write('val.json', json.dumps(content))


@pytest.mark.parametrize('layout', [yolo_of_one_folder, two_equal_coco_files])
def test_training_images_are_evaluated_with_a_note_where_the_author_says_so(
    layout: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    layout()
    lists, said = lists_in((), capsys)
    assert lists == [{*'0123'}, {*'0123'}]
    assert 'training and validation are given the same images' in said
    lists, said = lists_in(('--val', '0.25'), capsys)
    assert sorted(map(len, lists)) == [1, 3] and not lists[0] & lists[1]


def test_copies_of_images_in_two_splits_are_made_once(capsys: pytest.CaptureFixture[str]) -> None:
    yolo_of_one_folder()
    assert run_here('data', 'prepare', 'yolo', 'mine', '--out', 'out') == 0
    assert [len(json.loads(Path(f'out/{split}.json').read_text())['images']) for split in ('train', 'val')] == [4, 4]
    assert len([*Path('out/images').rglob('*.png')]) == 4
    assert 'note: training and validation are given the same images' in capsys.readouterr().err


def test_a_test_set_of_the_validation_images_leaves_these_for_validation(capsys: pytest.CaptureFixture[str]) -> None:
    yolo_in('a', '01')
    yolo_in('b', '23')
    write('data.yaml', 'train: a', 'val: b', 'test: b', 'names: [bolt, nut]')
    lists, said = lists_in((), capsys)
    assert lists == [{*'01'}, {*'23'}]
    assert 'the test images are those of validation' in said


def test_a_folder_of_data_yaml_that_is_missing_is_not_another_one() -> None:
    yolo_in('train/images', '01')
    write('data.yaml', 'train: ../train/images', 'val: ../valid/images', 'names: [bolt, nut]')
    tree = Tree(Path('mine').absolute())
    assert [sample.split for sample in find_annotations(tree, ['yolo'])['yolo'].samples] == ['train', 'train']
    assert 'data.yaml: val: ../valid/images: there is no such folder or list with images in it' in str(tree.unreadable)


def via(name: str) -> dict[str, object]:
    shape = {
        'shape_attributes': {'name': 'rect', 'x': 1, 'y': 2, 'width': 3, 'height': 4},
        'region_attributes': {'class': 'nut'},
    }
    return {name: {'filename': name, 'regions': [shape]}}


def label_studio(name: str) -> list[object]:
    value = {'x': 25, 'y': 25, 'width': 50, 'height': 50, 'rectanglelabels': ['nut']}
    return [{'data': {'image': name}, 'annotations': [{'result': [{'type': 'rectanglelabels', 'value': value}]}]}]


def createml(name: str) -> list[object]:
    box = {'label': 'nut', 'coordinates': {'x': 10, 'y': 10, 'width': 5, 'height': 5}}
    return [{'image': name, 'annotations': [box]}]


def datumaro(name: str) -> dict[str, object]:
    box = {'type': 'bbox', 'label_id': 0, 'bbox': [1, 2, 3, 4]}
    item = {'id': name, 'image': {'path': name}, 'annotations': [box]}
    return {'categories': {'label': {'labels': [{'name': 'nut'}]}}, 'items': [item]}


def labelme(name: str) -> dict[str, object]:
    return {'imagePath': name, 'shapes': [{'label': 'nut', 'points': [[1, 2], [4, 6]], 'shape_type': 'rectangle'}]}


@pytest.mark.parametrize('content', [via, label_studio, createml, datumaro, labelme])
def test_files_folders_and_lists_give_the_split_of_every_format(content: Callable[[str], object]) -> None:
    drawn.draw(Path('mine/0.png'), 0)
    drawn.draw(Path('mine/1.png'), 1)
    expected = {'0': 'train', '1': 'val'}
    for files in (('x_train.json', 'x_val.json'), ('train/a.json', 'valid/a.json')):
        for number, file in enumerate(files):
            write(file, json.dumps(content(f'{number}.png')))
        assert splits_in(content.__name__) == expected
        for file in files:
            Path('mine', file).unlink()
    for number, split in enumerate(('train', 'val')):
        write(f'{number}.json', json.dumps(content(f'{number}.png')))
        write(f'{split}.txt', f'{number}.png')
    assert splits_in(content.__name__) == expected


def test_lists_of_ultralytics_are_splits() -> None:
    yolo_in('pictures', '01')
    write('autosplit_train.txt', './pictures/0.png')
    write('autosplit_val.txt', './pictures/1.png')
    assert splits_in('yolo') == {'0': 'train', '1': 'val'}


def test_a_single_image_cannot_be_split() -> None:
    with pytest.raises(ValueError, match=r'a\.png: is the only image with an annotation'):
        deal([Sample(drawn.draw(Path('a.png'), 0))], [0.8, 0.2], 0, None)


def test_validation_images_that_are_training_images_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Files are compared, whatever their names: a metric on such images says how well they are remembered."""
    for name in 'abcdef':
        drawn.draw(Path(f'mine/images/train/{name}.png'), ord(name))
        drawn.write(Path(f'mine/labels/train/{name}.txt'), drawn.yolo_line(1))
    for name, source in {'copy': 'a', 'same': 'b', 'new': None}.items():
        place = Path(f'mine/images/val/{name}.png')
        if source:
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(f'mine/images/train/{source}.png', place)
        else:
            drawn.draw(place, 7)
        drawn.write(Path(f'mine/labels/val/{name}.txt'), drawn.yolo_line(1))
    write('data.yaml', 'train: images/train', 'val: images/val', 'names: [bolt, nut]')
    assert run_here('new', 'mine', '--no_trial') == 0
    assert '2 validation images are copies of training images' in capsys.readouterr().out
    assert run_here('new', 'mine', '--no_trial', '--val', '0.3', '--out', 'again') == 0
    assert 'of training images' not in capsys.readouterr().out
