"""Write the data set of truth.py by the annotation tools' own libraries: `python write.py FOLDER`, a folder per format in it.

Runs in an environment of its own, made by test_other_writers.py, without Phalanx. `FOLDER/failed.json` names the formats
whose writer raised an error.
"""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import datumaro as dm
import numpy as np
import supervision as sv
import truth
from datumaro.components.annotation import AnnotationType, LabelCategories, MaskCategories, RotatedBbox
from label_studio_sdk.converter import Converter, brush
from labelme import LabelFile
from pycocotools import mask as coco_mask

Images = dict[str, Path]
ATTRIBUTES = {'is_crowd': False, 'occluded': False}
NAMES = ('background', *truth.CLASSES)  # of datumaro: masks need a class 0


def number_of(shape: truth.Shape) -> int:
    return NAMES.index(shape.label)


def boxes(picture: truth.Picture) -> list[dm.Annotation]:
    found: list[dm.Annotation] = []
    for number, shape in enumerate(picture.shapes, 1):
        x0, y0, x1, y1 = truth.box(shape)
        found.append(dm.Bbox(x0, y0, x1 - x0, y1 - y0, label=number_of(shape), id=number, group=number))
    return found


def rotated(picture: truth.Picture) -> list[dm.Annotation]:
    """Boxes of the other shape, turned by a quarter: read without the rotation, they are others."""
    found: list[dm.Annotation] = []
    for number, shape in enumerate(picture.shapes, 1):
        x0, y0, x1, y1 = truth.box(shape)
        middle, size = ((x0 + x1) / 2, (y0 + y1) / 2), (y1 - y0, x1 - x0)
        found.append(RotatedBbox(*middle, *size, 90, label=number_of(shape), id=number, group=number))
    return found


def polygons(picture: truth.Picture) -> list[dm.Annotation]:
    """Outlines without their holes."""
    return [
        dm.Polygon([float(value) for corner in truth.corners(shape) for value in corner], label=number_of(shape), id=n, group=n)
        for n, shape in enumerate(picture.shapes, 1)
    ]


def masks(picture: truth.Picture) -> list[dm.Annotation]:
    return [
        dm.Mask(
            truth.mask(shape, picture.size) > 0, label=number_of(shape), id=n, group=n, attributes=ATTRIBUTES | {'track_id': n}
        )
        for n, shape in enumerate(picture.shapes, 1)
    ]


def text_boxes(picture: truth.Picture) -> list[dm.Annotation]:
    found: list[dm.Annotation] = []
    for shape in picture.shapes:
        x0, y0, x1, y1 = truth.box(shape)
        found.append(dm.Bbox(x0, y0, x1 - x0, y1 - y0, attributes={'text': shape.label}))
    return found


def words(picture: truth.Picture) -> list[dm.Annotation]:
    return [dm.Caption(shape.label) for shape in picture.shapes[:1]]


DATUMARO: dict[str, tuple[Callable[[truth.Picture], list[dm.Annotation]], tuple[str, ...]]] = {
    'boxes': (
        boxes,
        (
            *('coco_instances', 'voc', 'voc_detection', 'yolo', 'yolo_ultralytics', 'cvat', 'datumaro', 'label_me'),
            *('kitti_detection', 'open_images', 'wider_face', 'mot_seq_gt', 'mvtec_detection'),
        ),
    ),
    'rotated': (rotated, ('cvat', 'dota')),
    'polygons': (polygons, ('coco_instances', 'cvat', 'datumaro', 'label_me')),
    'masks': (
        masks,
        (
            *('coco', 'coco_instances', 'coco_panoptic', 'coco_stuff', 'voc', 'voc_segmentation', 'voc_instance_segmentation'),
            *('cvat', 'datumaro', 'label_me', 'cityscapes', 'camvid', 'kitti_segmentation', 'mots_png', 'open_images'),
            *('mvtec_segmentation', 'segment_anything'),
        ),
    ),
    'texts': (text_boxes, ('icdar_text_localization',)),
    'words': (words, ('icdar_word_recognition', 'coco_captions')),
}


def by_datumaro(annotate: Callable[[truth.Picture], list[dm.Annotation]], name: str, out: Path, images: Images) -> None:
    items = [
        dm.DatasetItem(
            id=picture.stem,
            subset=picture.split,
            media=dm.Image.from_file(path=str(images[picture.stem])),
            annotations=annotate(picture),
            attributes={'frame': number},
        )
        for number, picture in enumerate(truth.PICTURES, 1)
    ]
    categories = {AnnotationType.label: LabelCategories.from_iterable(NAMES), AnnotationType.mask: MaskCategories.generate(4)}
    dm.Dataset.from_iterable(items, categories=categories).export(str(out), name, save_media=True)


def by_supervision(kind: str, what: str, out: Path, images: Images) -> None:
    """A folder per split, as Roboflow has them."""
    for split in ('train', 'val', 'test'):
        pictures = {str(images[one.stem]): one for one in truth.PICTURES if one.split == split}
        annotations = {}
        for path, picture in pictures.items():
            found = np.array([truth.box(shape) for shape in picture.shapes], np.float32).reshape(-1, 4)
            shown = np.array([truth.mask(shape, picture.size) > 0 for shape in picture.shapes], bool)
            classes = np.array([truth.CLASSES.index(shape.label) for shape in picture.shapes], int)
            masks_of = shown if what == 'masks' and len(shown) else None
            annotations[path] = sv.Detections(xyxy=found, class_id=classes, mask=masks_of)
        data = sv.DetectionDataset(list(truth.CLASSES), list(pictures), annotations)
        folder = out / split
        if kind == 'coco':
            data.as_coco(str(folder), str(folder / '_annotations.coco.json'))
        elif kind == 'pascal_voc':
            data.as_pascal_voc(str(folder), str(folder))
        elif kind == 'yolo':
            data.as_yolo(str(folder / 'images'), str(folder / 'labels'), str(out / 'data.yaml'))
        elif kind == 'createml':
            data.as_createml(str(folder), str(folder / '_annotations.createml.json'))
        else:
            data.as_labelme(str(folder), str(folder))


def by_labelme(out: Path, images: Images) -> None:
    """Shapes of all kinds; masks as labelme's AI tools write them."""
    from labelme import utils

    for picture in truth.PICTURES:
        folder = out / picture.split
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(images[picture.stem], folder)
        shapes = []
        for shape in picture.shapes:
            points = [list(map(float, point)) for point in shape.points]
            kind = 'rectangle' if len(points) == 2 else 'polygon'
            own = {'label': shape.label, 'points': points, 'shape_type': kind, 'flags': {}, 'group_id': None, 'description': ''}
            if shape.hole:
                x0, y0, x1, y1 = truth.box(shape)
                part = truth.mask(shape, picture.size)[y0:y1, x0:x1] > 0
                own |= {'shape_type': 'mask', 'points': [[x0, y0], [x1 - 1, y1 - 1]], 'mask': utils.img_arr_to_b64(part)}
            shapes.append(own)
        width, height = picture.size
        LabelFile().save(str(folder / f'{picture.stem}.json'), shapes, images[picture.stem].name, height, width)


CONFIG = f"""<View><Image name="image" value="$image"/><RectangleLabels name="label" toName="image">
{''.join(f'<Label value="{name}"/>' for name in truth.CLASSES)}</RectangleLabels></View>"""


def tasks(kind: str, images: Images) -> list[dict[str, object]]:
    """All tasks as Label Studio's interface saves them, one of them open."""
    found: list[dict[str, object]] = []
    for number, picture in enumerate(truth.PICTURES, 1):
        width, height = picture.size
        results = []
        for shape in picture.shapes:
            x0, y0, x1, y1 = truth.box(shape)
            value: dict[str, object]
            if kind == 'brush':
                pixels = np.repeat(truth.mask(shape, picture.size)[..., None] * 255, 4, 2)
                value = {'format': 'rle', 'rle': brush.encode_rle(pixels.flatten()), 'brushlabels': [shape.label]}
            else:
                value = {'x': 100 * x0 / width, 'y': 100 * y0 / height, 'rotation': 0, 'rectanglelabels': [shape.label]}
                value |= {'width': 100 * (x1 - x0) / width, 'height': 100 * (y1 - y0) / height}
            own = {'original_width': width, 'original_height': height, 'image_rotation': 0, 'value': value, 'to_name': 'image'}
            own |= {
                'id': f'r{len(results)}',
                'from_name': 'label',
                'type': 'brushlabels' if kind == 'brush' else 'rectanglelabels',
            }
            results.append(own)
        data = {'image': f'/data/upload/1/0a1b2c3d-{images[picture.stem].name}'}
        made = {'id': number, 'result': results, 'was_cancelled': False, 'completed_by': 1, 'created_at': '2026-01-01'}
        found.append({'id': number, 'data': data, 'annotations': [made], 'predictions': [], 'created_at': '2026-01-01'})
    image = {'image': f'/data/upload/1/0a1b2c3d-{truth.UNANNOTATED}.png'}
    found.append({'id': 99, 'data': image, 'annotations': [], 'predictions': [], 'created_at': '2026-01-01'})
    return found


def by_label_studio(kind: str, name: str, out: Path, images: Images) -> None:
    """The tasks by the converter that exports of Label Studio use; the images beside them."""
    file = out.parent / f'{out.name}.tasks.json'
    file.write_text(json.dumps(tasks(kind, images)))
    config = CONFIG.replace('RectangleLabels', 'BrushLabels') if kind == 'brush' else CONFIG
    out.mkdir(parents=True)
    Converter(config, str(out), download_resources=False).convert(str(file), str(out), name, is_dir=False)
    (out / 'images').mkdir(exist_ok=True)
    for image in images.values():
        shutil.copy(image, out / 'images' / (f'0a1b2c3d-{image.name}'))


def by_pycocotools(form: str, out: Path, images: Images) -> None:
    """Compressed or plain run lengths, holes among them; a file per split."""
    for split in ('train', 'val', 'test'):
        content: dict[str, list[dict[str, object]]] = {'images': [], 'annotations': [], 'categories': []}
        content['categories'] = [{'id': 10 * n, 'name': name} for n, name in enumerate(truth.CLASSES, 1)]
        for picture in truth.PICTURES:
            if picture.split != split:
                continue
            folder = out / split
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(images[picture.stem], folder)
            own = len(content['images']) + 1
            width, height = picture.size
            content['images'].append({'id': own, 'file_name': images[picture.stem].name, 'width': width, 'height': height})
            for shape in picture.shapes:
                shown = truth.mask(shape, picture.size)
                packed = coco_mask.encode(np.asfortranarray(shown))
                plain = np.diff(np.flatnonzero(np.diff(np.concatenate([[2], shown.flatten('F'), [2]]))))
                counts = packed['counts'].decode() if form == 'compressed' else [*([0] if shown[0, 0] else []), *plain.tolist()]
                content['annotations'].append({
                    'id': len(content['annotations']) + 1, 'image_id': own, 'iscrowd': 0,
                    'category_id': 10 * (1 + truth.CLASSES.index(shape.label)), 'area': float(coco_mask.area(packed)),
                    'bbox': coco_mask.toBbox(packed).tolist(), 'segmentation': {'size': [height, width], 'counts': counts},
                })  # fmt: skip
        (out / f'{split}.json').write_text(json.dumps(content))


def writers() -> dict[str, Callable[[Path, Images], None]]:
    found: dict[str, Callable[[Path, Images], None]] = {}
    for kind, (annotate, names) in DATUMARO.items():
        found |= {f'datumaro {name} {kind}': partial(by_datumaro, annotate, name) for name in names}
    for kind in ('coco', 'pascal_voc', 'yolo', 'createml', 'labelme'):
        found[f'supervision {kind} boxes'] = partial(by_supervision, kind, 'boxes')
    for kind in ('coco', 'yolo', 'labelme'):
        found[f'supervision {kind} masks'] = partial(by_supervision, kind, 'masks')
    for name in ('JSON', 'JSON_MIN', 'COCO', 'VOC', 'YOLO', 'YOLO_OBB', 'CSV', 'TSV'):
        found[f'label_studio {name} boxes'] = partial(by_label_studio, 'rectangle', name)
    for name in ('JSON', 'JSON_MIN', 'BRUSH_TO_PNG', 'BRUSH_TO_COCO'):
        found[f'label_studio {name} masks'] = partial(by_label_studio, 'brush', name)
    for form in ('compressed', 'plain'):
        found[f'pycocotools {form} masks'] = partial(by_pycocotools, form)
    found['labelme json masks'] = by_labelme
    return found


def main(out: Path) -> None:
    logging.disable(logging.WARNING)
    images = truth.draw(out / 'source')
    failed = {}
    for name, write in writers().items():
        try:
            write(out / name, images)
        except Exception as error:  # noqa: BLE001 - of a library of others, reported by the test
            failed[name] = f'{type(error).__name__}: {error}'
    (out / 'failed.json').write_text(json.dumps(failed))


if __name__ == '__main__':
    main(Path(sys.argv[1]))
