"""Small data sets in the layout of every `data.name`, below the folder `data`: four samples to train with and two to evaluate.

Images differ in size. Each function says what a recipe adds to `name` and `root`.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from PIL import Image

import drawn
from phalanx.families.recognition.data import label_files as text_lines
from phalanx.families.recognition.data.lmdb_sets import write_lmdb

ROOT = Path('data')
SPLITS = {'train': range(4), 'val': range(4, 6)}
Settings = dict[str, Any]
TABLE = {  # as in PubTabNet
    'structure': {'tokens': ['<tbody>', '<tr>', '<td>', '</td>', '<td', ' rowspan="2"', '>', '</td>', '</tr>', '</tbody>']},
    'cells': [{'tokens': list('ab'), 'bbox': [4, 6, 20, 18]}, {'tokens': []}],
}


def write(path: str, lines: list[str]) -> None:
    drawn.write(ROOT / path, ''.join(f'{line}\n' for line in lines))


def lists(path: str, line: str, train: str = 'train', val: str = 'val') -> None:
    """A list for each split, with a line for each number."""
    for split, named in (('train', train), ('val', val)):
        write(path.format(split=named), [line.format(split=split, number=number) for number in SPLITS[split]])


def masks(image: str, mask: str, values: tuple[int, int, int], train: str = 'train', val: str = 'val') -> None:
    """Images and label maps, where `values` stand for nothing and for the two classes."""
    for split, named in (('train', train), ('val', val)):
        for number in SPLITS[split]:
            drawn.draw(ROOT / image.format(split=named, number=number), number)
            path = ROOT / mask.format(split=named, number=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.array(values, np.uint8)[drawn.mask_of(number)]).save(path)


def file_list() -> Settings:
    masks('{split}/{number}.jpg', '{split}/{number}.png', (0, 1, 2))
    lists('{split}.txt', '{split}/{number}.jpg {split}/{number}.png')
    return {'classes': ['background', *drawn.CLASSES]}


def pack(split: str, files: list[Path]) -> None:
    """Two shards of WebDataset with the files of a split, in this order; those of a sample have one stem."""
    for number, part in enumerate((files[:4], files[4:])):
        file = ROOT / f'{split} shards' / f'{number}.tar'
        file.parent.mkdir(exist_ok=True)
        with tarfile.open(file, 'w') as tar:
            for path in part:
                tar.add(path, path.name)


def shards_of_masks() -> Settings:
    settings = file_list()
    for split in SPLITS:
        pack(split, sorted((ROOT / split).iterdir()))
    return settings | {'train': 'train shards', 'eval': 'val shards'}


def cityscapes() -> Settings:
    stem = '{split}/ulm/ulm_{number:06}_000019'
    masks(f'leftImg8bit/{stem}_leftImg8bit.png', f'gtFine/{stem}_gtFine_labelIds.png', (0, 7, 26))
    return {}


def ade20k() -> Settings:
    stem = '{split}/ADE_{number:08}'
    masks(f'images/{stem}.jpg', f'annotations/{stem}.png', (0, 1, 150), 'training', 'validation')
    return {}


def voc_masks() -> Settings:
    masks('VOC2012/JPEGImages/{number}.jpg', 'VOC2012/SegmentationClass/{number}.png', (0, 1, 20))
    lists('VOC2012/ImageSets/Segmentation/{split}.txt', '{number}')
    return {}


def oxford_pet() -> Settings:
    masks('images/cat_{number}.jpg', 'annotations/trimaps/cat_{number}.png', (2, 1, 3))
    lists('annotations/{split}.txt', 'cat_{number} 1 1 1', 'trainval', 'test')
    return {}


def json_boxes(file: str, image: str, names: str) -> None:
    """Annotations as in COCO, in `file`, of images that they know as `names`."""
    for split, numbers in SPLITS.items():
        images, annotations = [], []
        for number in numbers:
            drawn.draw(ROOT / image.format(split=split, number=number), number)
            (x0, y0, x1, y1), (width, height) = drawn.box_of(number), drawn.size_of(number)
            name = names.format(split=split, number=number)
            images.append({'id': number, 'file_name': name, 'width': width, 'height': height})
            category = drawn.CLASSES.index(drawn.label_of(number))
            annotations.append({'image_id': number, 'category_id': category, 'bbox': [x0, y0, x1 - x0, y1 - y0]})
        categories = [{'id': number, 'name': name} for number, name in enumerate(drawn.CLASSES)]
        content = {'images': images, 'annotations': annotations, 'categories': categories}
        drawn.write(ROOT / file.format(split=split), content)


def coco() -> Settings:
    json_boxes('{split}.json', '{split}/{number}.jpg', '{number}.jpg')
    return {
        'train': 'train.json',
        'eval': 'val.json',
        'train_images': 'train',
        'eval_images': 'val',
        'classes': [*drawn.CLASSES],
    }


def objects365() -> Settings:
    json_boxes('annotations/zhiyuan_objv2_{split}.json', '{split}/patch0/{number}.jpg', 'images/v1/patch0/{number}.jpg')
    return {'classes': [*drawn.CLASSES]}


def voc_boxes() -> Settings:
    drawn.voc(ROOT)
    lists('{split}.txt', 'part {number}')
    return {'train': 'train.txt', 'eval': 'val.txt', 'classes': [*drawn.CLASSES]}


def yolo() -> Settings:
    for split, numbers in SPLITS.items():
        for number in numbers:
            drawn.draw(ROOT / f'images/{split}/{number}.jpg', number)
            write(f'labels/{split}/{number}.txt', [drawn.yolo_line(number)])
    write('data.yaml', ['names: [bolt, nut]'])
    return {}


def texts() -> Settings:
    drawn.lines(ROOT)
    for split, numbers in SPLITS.items():
        write(f'{split}.txt', [f'{number}.png\t{drawn.text_of(number)}' for number in numbers])
    return {'train': ['train.txt'], 'eval': ['val.txt']}


def shards_of_texts() -> Settings:
    texts()
    for split, numbers in SPLITS.items():
        for number in numbers:
            drawn.write(ROOT / f'{number}.txt', drawn.text_of(number))
        pack(split, [ROOT / f'{number}{suffix}' for number in numbers for suffix in ('.png', '.txt')])
    return {'train': 'train shards', 'eval': 'val shards'}


def lmdb_sets() -> Settings:
    lines = {split: (f'{split}.txt',) for split in SPLITS}
    texts()
    source = text_lines.LabelFiles(root=ROOT, train=lines['train'], eval=lines['val'])
    write_lmdb(source.split('train'), ROOT / 'training')
    write_lmdb(source.split('eval'), ROOT / 'validation')
    return {}


def text_mixture() -> Settings:
    return {'parts': [{'name': 'label_files', 'root': 'data', **texts()}, {'name': 'digit_lines', 'train_lines': 4}]}


def shards_of(split: str, annotations: dict[int, str], suffix: str) -> None:
    """Shards of images and their annotations, by number."""
    for number, text in annotations.items():
        drawn.draw(ROOT / split / f'{number}.jpg', number)
        (ROOT / split / f'{number}.{suffix}').write_text(text)
    pack(split, sorted((ROOT / split).iterdir()))


def shards_of_boxes() -> Settings:
    for split, numbers in SPLITS.items():
        shards_of(split, {number: drawn.yolo_line(number) for number in numbers}, 'txt')
    return {'train': 'train shards', 'eval': 'val shards', 'classes': [*drawn.CLASSES]}


def shards_of_pages() -> Settings:
    for split, numbers in SPLITS.items():
        rows = {
            number: [{'transcription': drawn.text_of(number), 'points': drawn.corners(drawn.box_of(number))}]
            for number in numbers
        }
        shards_of(split, {number: json.dumps(row) for number, row in rows.items()}, 'json')
    return {'train': 'train shards', 'eval': 'val shards'}


def shards_of_tables() -> Settings:
    for split, numbers in SPLITS.items():
        shards_of(split, dict.fromkeys(numbers, json.dumps({'html': TABLE})), 'json')
    return {'train': 'train shards', 'eval': 'val shards'}


def mixture(name: str, layout: Callable[[], Settings]) -> Callable[[], Settings]:
    """One data set twice: its classes are the same."""
    return lambda: {'parts': [{'name': name, 'root': 'data', **layout()}] * 2}


def tables(file: str, images: str) -> None:
    rows = []
    for split, numbers in SPLITS.items():
        for number in numbers:
            drawn.draw(ROOT / images.format(split=split) / f'{number}.png', number)
            rows.append(json.dumps({'filename': f'{number}.png', 'split': split, 'html': TABLE}))
    write(file, rows)


def pubtabnet() -> Settings:
    tables('PubTabNet_2.0.0.jsonl', '{split}')
    return {}


def icdar2013_tables() -> Settings:
    tables('icdar2013.jsonl', 'images')
    return {}


def page_labels() -> Settings:
    for split, numbers in SPLITS.items():
        rows = []
        for number in numbers:
            drawn.draw(ROOT / f'{number}.jpg', number)
            entry = {'transcription': drawn.text_of(number), 'points': drawn.corners(drawn.box_of(number))}
            rows.append(f'{number}.jpg\t{json.dumps([entry])}')
        write(f'{split}.txt', rows)
    return {'train': ['train.txt'], 'eval': ['val.txt']}


def icdar2015() -> Settings:
    folders = {
        'train': ('ch4_training_images', 'ch4_training_localization_transcription_gt'),
        'val': ('ch4_test_images', 'Challenge4_Test_Task1_GT'),
    }
    for split, (images, labels) in folders.items():
        for number in SPLITS[split]:
            drawn.draw(ROOT / f'{images}/{number}.jpg', number)
            flat = [value for corner in drawn.corners(drawn.box_of(number)) for value in corner]
            write(f'{labels}/gt_{number}.txt', [','.join(map(str, [*flat, drawn.text_of(number)]))])
    return {}


def total_text() -> Settings:
    for split, numbers in SPLITS.items():
        for number in numbers:
            drawn.draw(ROOT / f'{split}/{number}.jpg', number)
            xs, ys = (' '.join(map(str, axis)) for axis in zip(*drawn.corners(drawn.box_of(number)), strict=True))
            word = f"x: [[{xs}]], y: [[{ys}]], ornt: [u'h'], transcriptions: [u'{drawn.text_of(number)}']"
            write(f'{split}_labels/poly_gt_{number}.txt', [word])
    return {'train_images': 'train', 'train_labels': 'train_labels', 'eval_images': 'val', 'eval_labels': 'val_labels'}


def coco_text() -> Settings:
    images, annotations = {}, {}
    for split, numbers in SPLITS.items():
        for number in numbers:
            drawn.draw(ROOT / f'train2014/{number}.jpg', number)
            width, height = drawn.size_of(number)
            name = f'{number}.jpg'
            images[str(number)] = {'id': number, 'set': split, 'file_name': name, 'width': width, 'height': height}
            flat = [value for corner in drawn.corners(drawn.box_of(number)) for value in corner]
            text = drawn.text_of(number)
            annotations[str(number)] = {'image_id': number, 'mask': flat, 'utf8_string': text, 'legibility': 'legible'}
    drawn.write(ROOT / 'cocotext.v2.json', {'imgs': images, 'anns': annotations})
    return {}


LAYOUTS: dict[str, dict[str, Callable[[], Settings]]] = {  # family -> name -> function; those of the package draw themselves
    'segmentation': {
        'digit_scenes': lambda: {'train_scenes': 4, 'eval_scenes': 2, 'size': [48, 64], 'digit_height': [16, 24]},
        'file_list': file_list,
        'cityscapes': cityscapes,
        'ade20k': ade20k,
        'pascal_voc': voc_masks,
        'oxford_pet': oxford_pet,
        'shards': shards_of_masks,
        'mixture': mixture('file_list', file_list),
    },
    'detection': {
        'digit_scenes': lambda: {'train_scenes': 4, 'eval_scenes': 2, 'size': [64, 64], 'digit_height': [24, 44]},
        'coco': coco,
        'objects365': objects365,
        'pascal_voc': voc_boxes,
        'yolo': yolo,
        'shards': shards_of_boxes,
        'mixture': mixture('yolo', yolo),
    },
    'recognition': {
        'digit_lines': lambda: {'train_lines': 4, 'eval_lines': 2},
        'label_files': texts,
        'lmdb_sets': lmdb_sets,
        'shards': shards_of_texts,
        'rendered': lambda: {'train_lines': 4, 'eval_lines': 2, 'dictionary': 'digits'},
        'mixture': text_mixture,
    },
    'table': {
        'rendered_tables': lambda: {'train_tables': 4, 'eval_tables': 2, 'rows': [1, 2], 'columns': [1, 2]},
        'pubtabnet': pubtabnet,
        'icdar2013_tables': icdar2013_tables,
        'shards': shards_of_tables,
        'mixture': mixture('pubtabnet', pubtabnet),
    },
    'text_detection': {
        'drawn_pages': lambda: {'train_pages': 4, 'eval_pages': 2, 'page_size': [64, 96], 'lines': [1, 2], 'heights': [12, 20]},
        'label_files': page_labels,
        'icdar2015': icdar2015,
        'total_text': total_text,
        'coco_text': coco_text,
        'shards': shards_of_pages,
        'mixture': mixture('label_files', page_labels),
    },
}
WITHOUT_ROOT = {'digit_scenes', 'digit_lines', 'rendered', 'rendered_tables', 'drawn_pages', 'mixture'}


def write_recipe(family: str, base: str, data: str) -> None:
    """mine.yml, of `_base_` and `data` alone, in an empty folder, and what that names."""
    settings = {'name': data, **({} if data in WITHOUT_ROOT else {'root': str(ROOT)}), **LAYOUTS[family][data]()}
    Path('mine.yml').write_text(yaml.safe_dump({'_base_': base, 'data': settings}))
