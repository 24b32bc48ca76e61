"""Conversion of a data set: copied images, and boxes in the format of COCO, Pascal VOC or YOLO."""

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import PIL.Image
import yaml

from phalanx.data.samples import Draw, Split
from phalanx.data.shapes import DIGITS
from phalanx.data.voc import voc_tree
from phalanx.families.detection.data.source import Objects, Source


class CopiedImage(NamedTuple):
    """Copied image with its objects."""

    path: str  # below the new data set
    size: tuple[int, int]  # width, height
    objects: Objects


def write(source: Source, class_names: Sequence[str], out: Path, split: Split, *, form: str) -> dict[str, str]:
    """Write one split of a data set below the folder `out`; return the keys of `data` in a recipe that read it.

    YOLO cannot mark crowds and difficult objects: they are left out. Raises SampleError for an image that cannot
    be read, and OSError if a file cannot be written.
    """
    folder = f'{"JPEGImages" if form == "voc" else "images"}/{NAMES[split]}'
    return WRITERS[form](list(_copy_images(source, out, folder)), class_names, out, split)


NAMES: dict[Split, str] = {'train': 'train', 'eval': 'val'}


def _copy_images(source: Source, out: Path, folder: str) -> Iterator[CopiedImage]:
    """Copy the images of `source` to `folder` under their own names, with the index appended to names that are taken."""
    (out / folder).mkdir(parents=True, exist_ok=True)
    stems: set[str] = set()
    for index in range(len(source)):
        image, objects = source.read(Draw(index))
        file = Path(source.name(index))
        stem = file.stem.replace(' ', '_')  # lists of VOC have spaces between their fields
        stem = stem if stem not in stems else f'{stem}_{index}'
        stems.add(stem)
        path = f'{folder}/{stem}{file.suffix if file.is_file() else ".png"}'
        if file.is_file():
            shutil.copyfile(file, out / path)
        # Drawn samples have no file: write them without loss.
        else:
            PIL.Image.fromarray(image).save(out / path)
        yield CopiedImage(path, (image.shape[1], image.shape[0]), objects)


def _coco(copied: Sequence[CopiedImage], class_names: Sequence[str], out: Path, split: Split) -> dict[str, str]:
    images: list[dict[str, object]] = []
    annotations: list[dict[str, object]] = []
    for number, image in enumerate(copied, 1):
        images.append({'id': number, 'file_name': image.path, 'width': image.size[0], 'height': image.size[1]})
        # COCO: ids from 1, boxes as x, y, width, height.
        for (x0, y0, x1, y1), label, ignored, area in image.objects.rows():
            box = [round(value, DIGITS) for value in (x0, y0, x1 - x0, y1 - y0)]
            own = {'id': len(annotations) + 1, 'image_id': number, 'category_id': label + 1, 'iscrowd': int(ignored)}
            annotations.append(own | {'bbox': box, 'area': round(area, DIGITS)})
    categories = [{'id': number, 'name': name} for number, name in enumerate(class_names, 1)]
    file = f'annotations/instances_{NAMES[split]}.json'
    (out / file).parent.mkdir(exist_ok=True)
    (out / file).write_text(json.dumps({'images': images, 'categories': categories, 'annotations': annotations}))
    return {'name': 'coco', split: file, f'{split}_images': ''}


def _voc(copied: Sequence[CopiedImage], class_names: Sequence[str], out: Path, split: Split) -> dict[str, str]:
    """In the layout of PaddleDetection: lists of images with their annotations, and a list of the classes."""
    folder = f'Annotations/{NAMES[split]}'
    (out / folder).mkdir(parents=True, exist_ok=True)
    lines = []
    for image in copied:
        file = f'{folder}/{Path(image.path).stem}.xml'
        objects = ((class_names[label], box, ignored) for box, label, ignored, _ in image.objects.rows())
        ElementTree.ElementTree(voc_tree(Path(image.path).name, image.size, objects)).write(out / file, encoding='utf-8')
        lines.append(f'{image.path} {file}\n')
    listed = {'train': 'trainval.txt', 'eval': 'test.txt'}[split]
    (out / listed).write_text(''.join(lines), encoding='utf-8')
    (out / 'label_list.txt').write_text(''.join(f'{name}\n' for name in class_names), encoding='utf-8')
    return {'name': 'pascal_voc', split: listed, 'classes': 'label_list.txt'}


def _yolo(copied: Sequence[CopiedImage], class_names: Sequence[str], out: Path, split: Split) -> dict[str, str]:
    folder = out / 'labels' / NAMES[split]
    folder.mkdir(parents=True, exist_ok=True)
    for image in copied:
        lines = []
        # YOLO: centre and sides as fractions of the image.
        for (x0, y0, x1, y1), label, _, _ in image.objects.at(~image.objects.ignored).rows():
            W, H = image.size
            values = ((x0 + x1) / 2 / W, (y0 + y1) / 2 / H, (x1 - x0) / W, (y1 - y0) / H)
            lines.append(' '.join([str(label), *(f'{value:.7f}' for value in values)]) + '\n')
        (folder / f'{Path(image.path).stem}.txt').write_text(''.join(lines))
    names = {'train': 'images/train', 'val': 'images/val', 'names': dict(enumerate(class_names))}
    (out / 'data.yaml').write_text(yaml.safe_dump(names, sort_keys=False, allow_unicode=True), encoding='utf-8')
    return {'name': 'yolo', split: f'images/{NAMES[split]}', 'classes': 'data.yaml'}


Writer = Callable[[Sequence[CopiedImage], Sequence[str], Path, Split], dict[str, str]]
WRITERS: dict[str, Writer] = {'coco': _coco, 'voc': _voc, 'yolo': _yolo}
