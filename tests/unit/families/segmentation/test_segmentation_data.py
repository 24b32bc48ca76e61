"""Data sets of segmentation, written by hand into an empty folder, and what is said when something is wrong with them."""

import copy
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from PIL import Image

from phalanx.data.samples import Draw, SampleError
from phalanx.families.segmentation.data.ade20k import ADE20K
from phalanx.families.segmentation.data.cityscapes import CLASSES, Cityscapes
from phalanx.families.segmentation.data.digit_scenes import DigitScenes
from phalanx.families.segmentation.data.file_list import FileList
from phalanx.families.segmentation.data.oxford_pet import OxfordPet
from phalanx.families.segmentation.data.pascal_voc import PascalVOC
from phalanx.families.segmentation.labels import VOID
from phalanx.families.segmentation.survey import describe_presence

PICTURE = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
LABELS = np.array([[0, 1, 2, 0, 1, 2]] * 3 + [[VOID] * 6], np.uint8)


def write(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(array).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two pairs of files, the first for training, the second for evaluation."""
    root = tmp_path / 'data'
    for name in ('a', 'b'):
        write(root / f'images/{name}.png', PICTURE)
        write(root / f'labels/{name}.png', LABELS)
    (root / 'train.txt').write_text('images/a.png labels/a.png\n')
    (root / 'val.txt').write_text('images/b.png labels/b.png\n')
    (root / 'classes.txt').write_text('sky\nroad sign\n\ncar\n')
    return root


def test_a_list_names_images_and_label_maps(root: Path) -> None:
    data = FileList(root=root)
    assert data.class_names == ('sky', 'road sign', 'car')
    train, held_out = data.split('train'), data.split('eval')
    assert (len(train), train.name(0)) == (1, str(root / 'images/a.png'))
    assert held_out.name(0) == str(root / 'images/b.png')
    image, labels = train.read(Draw(0))
    assert_array_equal(image, PICTURE)
    assert_array_equal(labels, LABELS)


def test_a_tab_between_allows_spaces_in_paths(root: Path) -> None:
    write(root / 'my images/ü 1.png', PICTURE)
    (root / 'train.txt').write_bytes('\ufeffmy images/ü 1.png\tlabels/a.png\r\n\r\n'.encode())
    source = FileList(root=root, separator='\t').split('train')
    assert (len(source), source.name(0)) == (1, str(root / 'my images/ü 1.png'))
    assert_array_equal(source.read(Draw(0))[0], PICTURE)


def test_named_classes_need_no_files_before_samples_are_read(tmp_path: Path) -> None:
    """A trained run must predict on a node without its training data."""
    assert FileList(root=tmp_path / 'nowhere', classes=('sky', 'road')).class_names == ('sky', 'road')


def test_a_source_takes_little_memory_in_workers(root: Path) -> None:
    """Each loader worker gets a copy: a few arrays, no object per path."""
    (root / 'train.txt').write_text('images/a.png labels/a.png\n' * 5000)
    source = FileList(root=root).split('train')
    assert len(pickle.dumps(source)) < 5000 * 45
    assert_array_equal(copy.deepcopy(source).read(Draw(4999))[1], LABELS)


def spoil(*steps: tuple[str, str | None]) -> Callable[[Path], None]:
    def do(root: Path) -> None:
        for name, text in steps:
            if text is None:
                (root / name).unlink()
            else:
                (root / name).write_text(text)

    return do


LINE = 'images/a.png labels/a.png\n'


@pytest.mark.parametrize(
    ('change', 'error', 'message'),
    [
        (spoil(('train.txt', None)), FileNotFoundError, '{root}/train.txt: there is no such file'),
        (spoil(('train.txt', '\n \n')), ValueError, '{root}/train.txt: is empty'),
        (spoil(('classes.txt', None)), FileNotFoundError, '{root}/classes.txt: there is no such file'),
        (spoil(('classes.txt', 'sky\nroad\nsky\n')), ValueError, '{root}/classes.txt: sky is named twice'),
        (
            spoil(('train.txt', f'{LINE}\nimages/a.png\n')),
            ValueError,
            "{root}/train.txt:3: expected an image and a label map with ' ' between them, got 'images/a.png'; "
            'set data.separator if they are separated differently',
        ),
        (
            spoil(('train.txt', 'images/my a.png labels/a.png')),
            ValueError,
            "{root}/train.txt:1: expected an image and a label map with ' ' between them, got 'images/my a.png labels/a.png'",
        ),
        (
            spoil(('train.txt', f'images/a.png\n{LINE}images/b.png\n')),
            ValueError,
            "{root}/train.txt:1: expected an image and a label map with ' ' between them, got 'images/a.png'; "
            'set data.separator if they are separated differently\n'
            "{root}/train.txt:3: expected an image and a label map with ' ' between them, got 'images/b.png'",
        ),
        (
            spoil(('train.txt', f'{LINE}images/../../secret.png labels/a.png\n')),
            ValueError,
            "{root}/train.txt:2: 'images/../../secret.png' lies outside the data set {root}; paths must be relative to it",
        ),
        (
            spoil(('train.txt', '/etc/passwd labels/a.png\n')),
            ValueError,
            "{root}/train.txt:1: '/etc/passwd' lies outside the data set {root}",
        ),
        (
            spoil(('train.txt', LINE + ''.join(f'images/{n}.png labels/a.png\n' for n in range(7)))),
            FileNotFoundError,
            '7 files are missing in {root}: images/0.png, images/1.png, images/2.png, images/3.png, images/4.png and 2 more '
            '({root}/train.txt:2)',
        ),
        (
            spoil(('train.txt', 'images/a.png masks/a.png\n')),
            FileNotFoundError,
            '1 file is missing in {root}: masks/a.png ({root}/train.txt:1)',
        ),
        (
            spoil(('train.txt', 'images\\a.png labels\\a.png\n')),
            FileNotFoundError,
            '2 files are missing in {root}: images\\a.png, labels\\a.png ({root}/train.txt:1); folders are divided by '
            '/, not by \\',
        ),
    ],
)
def test_a_broken_list_is_reported_before_any_sample_is_read(
    root: Path, change: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    change(root)
    with pytest.raises(error, match=re.escape(message.format(root=root))):
        FileList(root=root).split('train').check_files()


def test_a_list_that_is_not_text_is_reported(root: Path) -> None:
    (root / 'train.txt').write_bytes(b'images/\xff.png labels/a.png\n')
    with pytest.raises(ValueError, match=re.escape(f'{root}/train.txt: is not UTF-8 text (byte 7)')):
        FileList(root=root).split('train')


@pytest.mark.parametrize('build', [FileList, Cityscapes, ADE20K, PascalVOC, OxfordPet])
def test_a_missing_root_is_reported_with_the_key_that_names_it(tmp_path: Path, build: Callable[..., object]) -> None:
    with pytest.raises(FileNotFoundError, match=r'there is no such folder; data\.root must name the folder'):
        build(root=tmp_path / 'nowhere').split('train')  # type: ignore[attr-defined]


def test_the_number_of_classes_is_limited_to_254(root: Path) -> None:
    with pytest.raises(ValueError, match='300 classes do not fit a label map of 8 bits, which holds up to 254'):
        FileList(root=root, classes=tuple(map(str, range(300))))
    with pytest.raises(ValueError, match='names no class'):
        FileList(root=root, classes=())


@pytest.mark.parametrize(
    ('file', 'content', 'message'),
    [
        ('labels/a.png', LABELS[:2], '{root}/labels/a.png: is 6 x 2 pixels, but its image is 6 x 4'),
        (
            'labels/a.png',
            LABELS.T,
            'is 4 x 6 pixels, but its image is 6 x 4; are width and height exchanged in the annotation?',
        ),
        (
            'labels/a.png',
            np.where(LABELS == 2, 7, LABELS).astype(np.uint8),
            '{root}/labels/a.png: has pixels of value 7; allowed are 0 to 2, 255',
        ),
        ('labels/a.png', PICTURE, '{root}/labels/a.png: has colour mode RGB'),
        ('images/a.png', b'', '{root}/images/a.png: is empty'),
    ],
)
def test_an_unusable_sample_is_reported_with_the_reason(
    root: Path, file: str, content: np.ndarray | bytes, message: str
) -> None:
    if isinstance(content, bytes):
        (root / file).write_bytes(content)
    else:
        write(root / file, content)
    source = FileList(root=root).split('train')
    with pytest.raises(SampleError, match=re.escape(message.format(root=root))):
        source.read(Draw(0))


@pytest.fixture
def cityscapes(tmp_path: Path) -> Path:
    for split, city in (('train', 'aachen'), ('train', 'bochum'), ('val', 'lindau')):
        stem = f'{split}/{city}/{city}_000000_000019'
        write(tmp_path / f'leftImg8bit/{stem}_leftImg8bit.png', PICTURE)
        values = np.array([[7, 8, 33, 0, 26, 1]] * 4, np.uint8)  # road, sidewalk, bicycle, unlabeled, car, ego vehicle
        write(tmp_path / f'gtFine/{stem}_gtFine_labelIds.png', values)
    return tmp_path


def test_cityscapes_label_ids_become_train_ids(cityscapes: Path) -> None:
    """The numbers are those of the official table (cityscapesScripts, labels.py)."""
    data = Cityscapes(root=cityscapes)
    train = data.split('train')
    assert (len(data.class_names), len(train), len(data.split('eval'))) == (19, 2, 1)
    assert train.name(1).endswith('leftImg8bit/train/bochum/bochum_000000_000019_leftImg8bit.png')
    assert train.read(Draw(0))[1][0].tolist() == [0, 1, 18, VOID, 13, VOID]
    assert list(CLASSES)[13] == 'car'


def test_cityscapes_train_ids_are_preferred_and_must_be_complete(cityscapes: Path) -> None:
    first = 'train/aachen/aachen_000000_000019_gtFine_labelTrainIds.png'
    write(cityscapes / 'gtFine' / first, np.full((4, 6), 18, np.uint8))
    with pytest.raises(FileNotFoundError, match=f'1 file is missing in {cityscapes}: gtFine/train/bochum'):
        Cityscapes(root=cityscapes).split('train').check_files()
    write(cityscapes / 'gtFine' / first.replace('aachen', 'bochum'), np.full((4, 6), 19, np.uint8))
    source = Cityscapes(root=cityscapes).split('train')
    assert set(source.read(Draw(0))[1].flat) == {18}
    with pytest.raises(SampleError, match='has pixels of value 19; allowed are 0 to 18, 255'):
        source.read(Draw(1))


def test_cityscapes_without_images_is_reported(tmp_path: Path) -> None:
    (tmp_path / 'leftImg8bit/train/aachen').mkdir(parents=True)
    with pytest.raises(FileNotFoundError, match=re.escape('leftImg8bit/train: holds no */*_leftImg8bit.png')):
        Cityscapes(root=tmp_path).split('train')


def test_ade20k_classes_start_at_zero_and_other_objects_are_void(tmp_path: Path) -> None:
    """Of the official list, objectInfo150.txt: 1 is wall, 2 building, 13 person, 150 flag."""
    for folder, value in (('training', 1), ('training', 13), ('validation', 150)):
        stem = f'{folder}/ADE_{value:08}'
        write(tmp_path / f'images/{stem}.jpg', PICTURE)
        write(tmp_path / f'annotations/{stem}.png', np.array([[0, value, 2, 0, value, 2]] * 4, np.uint8))
    data = ADE20K(root=tmp_path)
    assert (len(set(data.class_names)), len(data.split('train')), len(data.split('eval'))) == (150, 2, 1)
    labels = data.split('train').read(Draw(1))[1]
    assert labels[0].tolist() == [VOID, 12, 1, VOID, 12, 1]
    assert [data.class_names[label] for label in (0, 1, 12, 149)] == ['wall', 'building', 'person', 'flag']
    assert data.split('eval').read(Draw(0))[1][0, 1] == 149
    write(tmp_path / 'annotations/validation/ADE_00000150.png', np.full((4, 6), 151, np.uint8))
    with pytest.raises(SampleError, match='has pixels of value 151; allowed are 0 to 150, 255'):
        data.split('eval').read(Draw(0))


@pytest.fixture
def voc(tmp_path: Path) -> Path:
    """One image in each of the lists train, val and aug; label maps are palette images, as in the archive."""
    place = tmp_path / 'VOC2012'
    for name, folder in (('train', 'SegmentationClass'), ('val', 'SegmentationClass'), ('aug', 'SegmentationClassAug')):
        write(place / f'JPEGImages/2007_{name}.jpg', PICTURE)
        labels = Image.fromarray(np.array([[0, 20, VOID, 15, 0, 0]] * 4, np.uint8))
        labels.putpalette([value for value in range(256) for _ in 'rgb'])
        (place / folder).mkdir(parents=True, exist_ok=True)
        labels.save(place / folder / f'2007_{name}.png')
        (place / 'ImageSets/Segmentation').mkdir(parents=True, exist_ok=True)
        (place / f'ImageSets/Segmentation/{name}.txt').write_text(f'2007_{name}\n')
    return tmp_path


def test_voc_label_maps_hold_class_ids(voc: Path) -> None:
    data = PascalVOC(root=voc)
    assert (len(data.class_names), data.class_names[15], data.class_names[20]) == (21, 'person', 'tvmonitor')
    assert data.split('train').read(Draw(0))[1][0].tolist() == [0, 20, VOID, 15, 0, 0]
    assert data.split('eval').name(0).endswith('VOC2012/JPEGImages/2007_val.jpg')


def test_the_augmented_voc_list_adds_to_the_training_list(voc: Path) -> None:
    source = PascalVOC(root=voc, train='trainaug').split('train')
    assert [Path(source.name(index)).stem for index in range(len(source))] == ['2007_train', '2007_aug']
    assert source.path(1, 1) == voc / 'VOC2012/SegmentationClassAug/2007_aug.png'
    assert source.read(Draw(1))[1][0, 3] == 15
    with pytest.raises(FileNotFoundError, match=r'trainval\.txt: there is no such file'):
        PascalVOC(root=voc, train='trainval').split('train')


def test_a_voc_list_must_not_name_files_elsewhere(voc: Path) -> None:
    (voc / 'VOC2012/ImageSets/Segmentation/val.txt').write_text('../../secret\n')
    with pytest.raises(ValueError, match=re.escape('../../secret is not the name of an image')):
        PascalVOC(root=voc).split('eval')


def test_pet_trimaps_become_three_classes(tmp_path: Path) -> None:
    write(tmp_path / 'images/Abyssinian_1.jpg', PICTURE)
    write(tmp_path / 'annotations/trimaps/Abyssinian_1.png', np.array([[1, 2, 3, 1, 2, 3]] * 4, np.uint8))
    (tmp_path / 'annotations/trainval.txt').write_text('Abyssinian_1 1 1 1\n')
    (tmp_path / 'annotations/test.txt').write_text('../Abyssinian_1 1 1 1\n')
    data = OxfordPet(root=tmp_path)
    assert data.class_names == ('pet', 'background', 'border')
    image, labels = data.split('train').read(Draw(0))
    assert image.shape == (4, 6, 3)
    assert labels[0].tolist() == [0, 1, 2, 0, 1, 2]
    with pytest.raises(ValueError, match=re.escape('../Abyssinian_1 is not the name of an image')):
        data.split('eval')


def test_digit_scenes_label_ink_with_its_digit() -> None:
    data = DigitScenes(train_scenes=7, eval_scenes=3, size=(64, 96))
    train = data.split('train')
    assert (len(train), len(data.split('eval')), len(data.class_names)) == (7, 3, 11)
    assert train.name(2) == 'train digit scene 2'
    image, labels = train.read(Draw(2))
    assert (image.shape, labels.shape) == ((64, 96, 3), (64, 96))
    assert set(labels.flat) <= {*range(11), VOID}


def test_classes_without_pixels_are_named_at_the_start(root: Path) -> None:
    """In training, no map has `car`; in evaluation, all pixels are void."""
    write(root / 'labels/a.png', np.where(LABELS == 2, 0, LABELS).astype(np.uint8))
    write(root / 'labels/b.png', np.full_like(LABELS, VOID))
    data, names = FileList(root=root), ('background', 'road sign', 'car')
    (learned,) = describe_presence(data.split('train'), names, 'train')
    assert learned == 'train data: no label map has a pixel of car, which cannot be learned'
    (measured,) = describe_presence(data.split('eval'), names, 'eval')
    assert measured == 'eval data: no label map has a pixel of a class besides background, so nothing can be measured'


def test_complete_label_maps_need_no_remark(root: Path) -> None:
    assert describe_presence(FileList(root=root).split('train'), FileList(root=root).class_names, 'train') == []


def test_more_values_than_classes_are_refused_before_the_start(root: Path) -> None:
    data = FileList(root=root, classes=('sky', 'road sign'))
    problem = r'1 of 1 label maps cannot be used: .*a\.png: has pixels of value 2; allowed are 0 to 1, 255: .* names 2 classes'
    with pytest.raises(ValueError, match=problem):
        describe_presence(data.split('train'), data.class_names, 'train')
