"""One data set, written by the libraries of other annotation tools, is read as their authors meant it, or refused."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import truth
from filelock import FileLock

from phalanx.curation.new.near_misses import describe_near_misses
from phalanx.curation.prepare.formats import FORMATS, choose_format, find_annotations
from phalanx.curation.prepare.label_maps import paint_labels
from phalanx.curation.prepare.mask_values import read_label_map
from phalanx.curation.prepare.samples import AnnotationSet, Family, LeftOut, Sample
from phalanx.curation.prepare.targets import find_meaning
from phalanx.curation.prepare.tree import Tree
from phalanx.data.image import read_image
from phalanx.data.samples import Draw, Split
from phalanx.engine.job import open_job
from phalanx.families.segmentation.draw import build_writers
from running import run_here

pytestmark = pytest.mark.long

PACKAGES = ('datumaro==1.13.12', 'supervision==0.31.2', 'label-studio-sdk==2.1.2', 'labelme==6.3.1', 'pycocotools==2.0.11')
HERE = Path(__file__).parent
ORIENTATION = 0x112  # of EXIF
EMPTY, SPLITS = 'empty', 'splits'  # what a format can carry besides its objects: images without any, and the split

READ: dict[str, tuple[Family, set[str]]] = {
    **{
        f'datumaro {name} boxes': ('detection', {EMPTY, SPLITS})
        for name in ('coco_instances', 'yolo', 'yolo_ultralytics', 'cvat', 'datumaro', 'label_me', 'wider_face')
    },
    **{
        f'datumaro {name} boxes': ('detection', {SPLITS}) for name in ('voc', 'voc_detection', 'kitti_detection', 'open_images')
    },
    'datumaro mot_seq_gt boxes': ('detection', set()),
    'datumaro cvat rotated': ('detection', {EMPTY, SPLITS}),
    'datumaro dota rotated': ('detection', {EMPTY, SPLITS}),
    **{
        f'datumaro {name} polygons': ('segmentation', {EMPTY, SPLITS})
        for name in ('coco_instances', 'cvat', 'datumaro', 'label_me')
    },
    **{
        f'datumaro {name} masks': ('segmentation', {EMPTY, SPLITS})
        for name in ('coco', 'coco_instances', 'coco_panoptic', 'coco_stuff', 'cvat', 'datumaro', 'label_me')
    },
    **{
        f'datumaro {name} masks': ('segmentation', {SPLITS})
        for name in (
            *('voc', 'voc_segmentation', 'voc_instance_segmentation', 'cityscapes', 'camvid', 'kitti_segmentation'),
            'open_images',
        )
    },
    **{
        f'supervision {name} boxes': ('detection', {EMPTY, SPLITS})
        for name in ('coco', 'yolo', 'createml', 'pascal_voc', 'labelme')
    },
    **{f'label_studio {name} boxes': ('detection', {EMPTY}) for name in ('JSON', 'JSON_MIN', 'CSV', 'TSV')},
    'label_studio VOC boxes': ('detection', set()),
    **{f'label_studio {name} masks': ('segmentation', {EMPTY}) for name in ('JSON', 'JSON_MIN')},
    'label_studio BRUSH_TO_COCO masks': ('segmentation', set()),
    **{f'pycocotools {form} masks': ('segmentation', {EMPTY, SPLITS}) for form in ('compressed', 'plain')},
    'labelme json masks': ('segmentation', {EMPTY, SPLITS}),
}
REFUSED = {  # why
    'datumaro coco_captions words': 'is a caption of the image',
    'datumaro segment_anything masks': 'without classes',
    'datumaro mots_png masks': "--masks 'instances'",
    'label_studio BRUSH_TO_PNG masks': 'task-1-annotation-1',
}
READ |= {f'supervision {name} masks': ('segmentation', {EMPTY, SPLITS}) for name in ('coco', 'yolo', 'labelme')}
# Pixels of an image that may differ: these trace masks through the centres of their pixels, Datumaro without holes.
NEARLY = {
    **dict.fromkeys(['datumaro coco masks', 'datumaro coco_instances masks', 'supervision coco masks'], 280),
    **dict.fromkeys(['supervision labelme masks', 'supervision yolo masks'], 250),  # and have no holes
    **dict.fromkeys(['label_studio BRUSH_TO_COCO masks'], 280),
    'labelme json masks': 60,  # a triangle
}
FROM_1 = 'supervision pascal_voc boxes'  # counts pixels from 1, as VOC did, and others do not


@pytest.fixture(scope='module')
def tools() -> Path:
    """The environment of the tools. It is kept between runs, below PHALANX_WRITERS or the user's cache."""
    key = hashlib.sha256(' '.join((sys.version, *PACKAGES)).encode()).hexdigest()[:12]
    cache = Path(os.environ.get('PHALANX_WRITERS') or Path.home() / '.cache/phalanx') / f'writers-{key}'
    cache.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f'{cache}.lock'):
        if not (cache / 'ready').is_file():
            for words in (['-m', 'venv', '--clear', str(cache)], [str(cache / 'bin/pip'), 'install', '-q', *PACKAGES]):
                command = [sys.executable, *words] if words[0] == '-m' else words
                done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
                if done.returncode:
                    pytest.skip(f'the tools of others cannot be installed: {done.stderr[-300:]}')
            (cache / 'ready').touch()
    return cache


@pytest.fixture(scope='module')
def written(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set by all writers."""
    out = tmp_path_factory.mktemp('written')
    subprocess.run([tools / 'bin/python', HERE / 'write.py', out], check=True, capture_output=True, timeout=1800)
    assert json.loads((out / 'failed.json').read_text()) == {}
    return out


def read(folder: Path, family: Family | None) -> tuple[AnnotationSet, Family]:
    refused: dict[str, LeftOut] = {}
    picked = choose_format(find_annotations(Tree(folder), refused=refused), family)
    assert picked, refused
    return picked[1], picked[2]


def stem_of(image: str | Path) -> str:
    """The stem in truth.py: Label Studio puts eight characters before it, Cityscapes a word behind, MOT has only numbers."""
    stem = re.sub(r'^[0-9a-f]{8}-|_leftImg8bit$', '', Path(image).stem)
    return truth.PICTURES[int(stem) - 1].stem if stem.isdigit() else stem


def expected(carried: set[str]) -> dict[str, truth.Picture]:
    return {picture.stem: picture for picture in truth.PICTURES if picture.shapes or EMPTY in carried}


def label_map_of(sample: Sample, found: AnnotationSet) -> np.ndarray:
    """[H, W] 0, or 1 + the number of the class in truth.py."""
    meaning = find_meaning('segmentation', found)
    if meaning and sample.mask:
        names, labels = meaning.class_names, read_label_map(sample.mask, meaning, sample.image)
    else:
        names = ('background', *found.class_names)
        labels = paint_labels(sample, names)
    numbers = [0 if name == 'background' else 1 + truth.CLASSES.index(name) for name in names]
    return np.array(numbers)[labels]


@pytest.mark.parametrize('name', READ)
def test_samples_splits_and_objects_are_those_that_were_written(written: Path, name: str) -> None:
    family, carried = READ[name]
    found, _ = read(written / name, family)
    pictures = expected(carried)
    samples = {stem_of(sample.image): sample for sample in found.samples}
    assert samples.keys() == pictures.keys()
    assert not found.left_out
    if SPLITS in carried:
        assert {stem: sample.split for stem, sample in samples.items()} == {stem: one.split for stem, one in pictures.items()}
    for stem, picture in pictures.items():
        sample = samples[stem]
        if family == 'detection':
            boxes = sorted((instance.label, *(round(value) for value in instance.box)) for instance in sample.instances)
            assert boxes == boxes_of(picture, name)
        else:
            check_label_map(label_map_of(sample, found), picture, name)


def boxes_of(picture: truth.Picture, name: str) -> list[tuple[str, int, int, int, int]]:
    shift = 1 if name == FROM_1 else 0
    corners = [(shape.label, *truth.box(shape)) for shape in picture.shapes]
    return sorted((label, x0 + shift, y0 + shift, x1, y1) for label, x0, y0, x1, y1 in corners)


def check_label_map(labels: np.ndarray, picture: truth.Picture, name: str) -> None:
    off = int((labels != truth.label_map(picture, holes='polygons' not in name)).sum())
    assert off <= NEARLY.get(name, 60 if 'polygons' in name else 0), f'{picture.stem}: {off} pixels'


def check_training(task: Any, split: Split, name: str, own_split: str = '') -> None:
    """The data set of a recipe has the samples of `own_split` (default: those of all splits) with their objects."""
    family, carried = READ[name]
    data, source = task.data(), task.dataset(split).source
    names, seen = data.class_names, []
    pictures = expected(carried)
    for number in range(len(source)):
        _, target = source.read(Draw(number))
        stem = stem_of(source.name(number))
        picture = pictures[stem if stem in pictures else stem.replace('_', ' ')]  # a blank ends the paths of label maps
        seen.append(picture.stem)
        if family == 'detection':
            boxes = [(names[label], *(round(value) for value in box)) for box, label, _, _ in target.rows()]
            assert sorted(boxes) == boxes_of(picture, name)
        else:
            numbers = [0 if each == 'background' else 1 + truth.CLASSES.index(each) for each in names]
            check_label_map(np.array(numbers)[target], picture, name)
    assert sorted(seen) == sorted(stem for stem, one in pictures.items() if own_split in ('', one.split))


def check_recipe(place: str, name: str, settings: Sequence[str] = ()) -> None:
    """The data of a recipe has the splits that were written, or splits all images if the format has none."""
    if SPLITS in READ[name][1]:
        for split, own in (('train', 'train'), ('eval', 'val')):
            check_training(open_job(place).task, split, name, own)
        check_training(open_job(place, [(each, 'the test') for each in settings]).task, 'eval', name, 'test')
    else:
        task = open_job(place).task
        assert sum(len(task.dataset(split).source) for split in ('train', 'eval')) == len(expected(READ[name][1]))


@pytest.mark.parametrize('name', READ)
def test_new_and_prepare_write_what_trains_on_these_samples(
    written: Path, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, _ = READ[name]
    assert run_here('new', str(written / name), '--family', family, '--no_trial', '--out', str(tmp_path / 'out')) == 0
    recipe = tmp_path / 'out/out.yml'
    check_recipe(str(recipe), name, re.findall(r'--set (data\.eval=\S+)', recipe.read_text()))
    # `data prepare coco` takes one file, for which the user names the images
    printed = capsys.readouterr().out
    (kind,) = {kind for kind, each in FORMATS.items() if f', {each.about}' in printed}
    if kind != 'coco':
        assert run_here('data', 'prepare', kind, str(written / name), '--family', family, '--out', str(tmp_path / 'copy')) == 0
        _, _, data = capsys.readouterr().out.partition('in a recipe: data: ')
        base = 'ppyoloe_digits' if family == 'detection' else 'pp_liteseg_digits'
        prepared = tmp_path / 'prepared.yml'
        prepared.write_text(json.dumps({'_base_': [base], 'data': json.loads(data)}))
        tests = [file.name for file in (tmp_path / 'copy').glob('test.*')]
        check_recipe(str(prepared), name, [f'data.eval={file}' for file in tests])


DATA: dict[str, tuple[dict[str, Any], dict[str, str]]] = {  # keys of `data`, and those that name a split
    'supervision coco boxes': ({'name': 'coco'}, {'train': '{}/_annotations.coco.json', 'train_images': '{}'}),
    'datumaro coco_instances boxes': (
        {'name': 'coco', 'classes': [*truth.CLASSES, 'background']},
        {'train': 'annotations/instances_{}.json', 'train_images': 'images/{}'},
    ),
    'supervision yolo boxes': ({'name': 'yolo'}, {'train': '{}/images'}),
    'datumaro yolo_ultralytics boxes': ({'name': 'yolo'}, {'train': 'images/{}'}),
    'datumaro yolo boxes': ({'name': 'yolo', 'classes': 'obj.names'}, {'train': 'obj_{}_data'}),
    'datumaro voc_detection boxes': (
        {'name': 'pascal_voc', 'classes': list(truth.CLASSES)},
        {'train': 'ImageSets/Main/{}.txt'},
    ),
}


@pytest.mark.parametrize('name', DATA)
def test_data_sets_of_recipes_read_these_folders_as_they_are(written: Path, name: str, tmp_path: Path) -> None:
    keys, of_split = DATA[name]
    base = 'ppyoloe_digits' if READ[name][0] == 'detection' else 'pp_liteseg_digits'
    # VOC's list names the image without objects, and datumaro writes no annotation of it: refused as missing
    for split in ('train', 'val', 'test') if EMPTY in READ[name][1] else ('val', 'test'):
        places = {key.replace('train', 'eval'): place.format(split) for key, place in of_split.items()}
        places |= {key: place.format('train') for key, place in of_split.items()}
        recipe = tmp_path / f'{split}.yml'
        recipe.write_text(json.dumps({'_base_': [base], 'data': {'root': str(written / name), **keys, **places}}))
        check_training(open_job(str(recipe)).task, 'eval', name, split)


@pytest.mark.parametrize('name', ['label_studio YOLO boxes', 'label_studio COCO boxes', 'label_studio YOLO_OBB boxes'])
def test_formats_that_cannot_say_what_nobody_annotated_have_all_objects(written: Path, name: str) -> None:
    """These list the open task of Label Studio as an image without objects: a loss of their writer."""
    found, _ = read(written / name, 'detection')
    samples = {stem_of(sample.image): sample for sample in found.samples}
    assert samples.keys() == {*expected({EMPTY}), truth.UNANNOTATED}
    for stem, picture in expected(set()).items():
        boxes = sorted((instance.label, *(round(value) for value in instance.box)) for instance in samples[stem].instances)
        assert boxes == sorted((shape.label, *truth.box(shape)) for shape in picture.shapes)


def test_texts_of_icdar_are_read(written: Path) -> None:
    found, _ = read(written / 'datumaro icdar_text_localization texts', 'text_detection')
    texts = {
        sample.image.stem: sorted((instance.text, *map(round, instance.box)) for instance in sample.instances)
        for sample in found.samples
    }
    assert texts == {one.stem: sorted((shape.label, *truth.box(shape)) for shape in one.shapes) for one in truth.PICTURES}
    words, family = read(written / 'datumaro icdar_word_recognition words', None)
    assert family == 'recognition'
    assert {sample.image.stem: sample.text for sample in words.samples} == {
        one.stem: one.shapes[0].label for one in truth.PICTURES if one.shapes
    }


@pytest.mark.parametrize('name', REFUSED)
def test_what_no_family_learns_is_refused_with_the_reason(written: Path, name: str) -> None:
    refused: dict[str, LeftOut] = {}
    tree = Tree(written / name)
    assert choose_format(find_annotations(tree, refused=refused), None) is None
    assert REFUSED[name] in str(refused) + '\n'.join(describe_near_misses(tree, None))


LOAD = """
import json, sys
from labelme import LabelFile, utils
file = LabelFile(sys.argv[1])
shapes = [(shape['label'], shape['shape_type'], shape['points']) for shape in file.shapes]
print(json.dumps([shapes, utils.img_data_to_pil(file.image_data).size, file.image_path]))
"""


def test_labelme_shows_what_was_written_for_it_on_the_upright_image(tools: Path, tmp_path: Path) -> None:
    """labelme turns images by their EXIF data, and refuses a file with another size."""
    labels = np.zeros((40, 60), np.uint8)
    labels[10:30, 20:50], labels[15:20, 25:30] = 1, 0
    exif = PIL.Image.Exif()
    exif[ORIENTATION] = 6  # stored turned to the left
    turned = PIL.Image.new('RGB', (60, 40)).transpose(PIL.Image.Transpose.ROTATE_90)
    turned.save(tmp_path / 'b ü.1.jpg', exif=exif)
    writers = build_writers(['_background_', 'Straße €'])
    upright = read_image(tmp_path / 'b ü.1.jpg')
    (file,) = writers.write(labels, upright, tmp_path / 'b ü.1', ['labelme'], tmp_path / 'b ü.1.jpg')
    loaded = subprocess.run([tools / 'bin/python', '-c', LOAD, file], check=True, capture_output=True, text=True, timeout=600)
    shapes, size, name = json.loads(loaded.stdout)
    assert (size, name) == ([60, 40], 'b ü.1.jpg')
    road, hole = [[[20, 10], [50, 30]], [[25, 15], [30, 20]]]
    assert [(label, kind, [np.min(points, 0).tolist(), np.max(points, 0).tolist()]) for label, kind, points in shapes] == [
        ('Straße €', 'polygon', road),
        ('_background_', 'polygon', hole),
    ]
