"""A data set that was written again is read as the same data set, and so are detections."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from phalanx.data.samples import Draw
from phalanx.data.voc import VocObject, read_voc_file
from phalanx.families.detection.data import DATA, Objects
from phalanx.families.detection.data.write import write
from phalanx.families.detection.draw import build_writers
from phalanx.runtime.results import Found

CLASSES = ('cat', 'road sign <€>')
PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)


class Scenes:
    """Three images: two files of the same name with a plain object and a crowd, and a drawn one without any."""

    def __init__(self, folder: Path) -> None:
        self.files = [folder / 'a/my 1.png', folder / 'b/my 1.png']
        for file in self.files:
            file.parent.mkdir(parents=True)
            Image.fromarray(PICTURE).save(file)
        self.notes: dict[str, int] = {}

    def __len__(self) -> int:
        return 3

    def check_files(self) -> None:
        """Nothing is missing."""

    def name(self, index: int) -> str:
        return str(self.files[index]) if index < 2 else 'scene 2'

    def read(self, draw: Draw) -> tuple[np.ndarray, Objects]:
        if draw.index == 2:
            return PICTURE[:30], Objects.none()
        boxes = np.array([[1.25, 2, 30.5 + draw.index, 38.125], [10, 10, 20, 20]], np.float32)
        return PICTURE, Objects(boxes, np.array([1, 0]), np.array([False, True]), np.array([321.5, 100], np.float32))


@pytest.mark.parametrize('form', ['coco', 'voc', 'yolo'])
def test_what_was_written_is_read_back(tmp_path: Path, form: Any) -> None:
    scenes, keys = Scenes(tmp_path / 'from'), {}
    for split in ('train', 'eval'):
        keys |= write(scenes, CLASSES, tmp_path / 'to', split, form=form)  # type: ignore[arg-type]
    name = keys.pop('name')
    assert name == {'voc': 'pascal_voc'}.get(form, form)
    data: Any = DATA[name](root=tmp_path / 'to', **keys)
    assert data.class_names == CLASSES
    again = data.split('eval')
    assert len(again) == 3
    for index in range(3):
        image, objects = again.read(Draw(index))
        expected_image, expected = scenes.read(Draw(index))
        if form == 'yolo':
            expected = expected.at(~expected.ignored)
        assert_array_equal(image, expected_image)
        assert_allclose(objects.boxes, expected.boxes, atol=1e-3)
        assert_array_equal(objects.classes, expected.classes)
        assert_array_equal(objects.ignored, expected.ignored)
        if form == 'coco':
            assert_allclose(objects.areas, expected.areas)


def test_names_are_kept_as_far_as_they_differ(tmp_path: Path) -> None:
    write(Scenes(tmp_path / 'from'), CLASSES, tmp_path / 'to', 'train', form='yolo')
    assert sorted(file.name for file in (tmp_path / 'to/images/train').iterdir()) == ['my_1.png', 'my_1_1.png', 'scene_2.png']


def test_digit_scenes_become_files(tmp_path: Path) -> None:
    data = DATA['digit_scenes'](eval_scenes=2, size=(48, 64))  # type: ignore[operator]
    keys = write(data.split('eval'), data.class_names, tmp_path, 'eval', form='coco')
    assert keys == {'name': 'coco', 'eval': 'annotations/instances_val.json', 'eval_images': ''}
    read = DATA['coco'](root=tmp_path, classes=data.class_names, eval=keys['eval'], eval_images='')  # type: ignore[operator]
    for index in range(2):
        image, objects = read.split('eval').read(Draw(index))
        assert_array_equal(image, data.split('eval').read(Draw(index))[0])
        assert_array_equal(objects.boxes, data.split('eval').read(Draw(index))[1].boxes)


def test_detections_are_written_as_annotations_of_pascal_voc(tmp_path: Path) -> None:
    """With coordinates of three decimals."""
    detections = [
        Found(CLASSES[1], 1, 0.75, (1.2500001, 2.0, 30.5, 38.125)),
        Found(CLASSES[0], 0, 0.25, (10.0, 10.0, 20.0, 20.0)),
    ]
    (file,) = build_writers(shown_from=0.5).write(
        detections, PICTURE, tmp_path / 'street.1', ('voc',), tmp_path / 'street.1.jpg'
    )
    assert file == tmp_path / 'street.1.xml'
    annotation = read_voc_file(file, file.read_bytes())
    assert annotation is not None
    assert (annotation.name, annotation.size) == ('street.1.jpg', (60, 40))
    assert annotation.objects == [VocObject(f'{file}: object 1', 'road sign <€>', (1.25, 2.0, 30.5, 38.125))]
