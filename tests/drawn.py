"""Small folders of images, annotated in every format that `phalanx new` reads; all but texts say the same of each image."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

COUNT = 10
CLASSES = ('bolt', 'nut')
Box = tuple[int, int, int, int]


def size_of(number: int) -> tuple[int, int]:
    """Every other image stands upright."""
    return (64, 48) if number % 2 else (48, 72)


def box_of(number: int) -> Box:
    return (4 + number, 6, 24 + number, 30)


def label_of(number: int) -> str:
    return CLASSES[number % 3 == 0]


def draw(path: Path, number: int, size: tuple[int, int] | None = None) -> Path:
    """Noise with a rectangle in it."""
    width, height = size or size_of(number)
    pixels = np.random.default_rng(number).integers(0, 120, (height, width, 3), dtype=np.uint8)
    x0, y0, x1, y1 = box_of(number)
    pixels[y0:y1, x0:x1] = (250, 40, 40) if label_of(number) == 'bolt' else (40, 250, 40)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)
    return path


def images(folder: Path, suffix: str = '.png') -> list[Path]:
    return [draw(folder / f'part {number}{suffix}', number) for number in range(COUNT)]


def mask_of(number: int) -> np.ndarray:
    """[H, W] 0, or 1 and 2 for the classes."""
    width, height = size_of(number)
    x0, y0, x1, y1 = box_of(number)
    mask = np.zeros((height, width), np.uint8)
    mask[y0:y1, x0:x1] = 1 + CLASSES.index(label_of(number))
    return mask


def corners(box: Box) -> list[list[int]]:
    x0, y0, x1, y1 = box
    return [[x0, y0], [x1, y0], [x1, y1], [x0, y1]]


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


# Boxes.


def voc(folder: Path) -> None:
    """Upper-case suffixes, blanks in names, a box that reaches out of its image."""
    for number, image in enumerate(images(folder / 'JPEGImages', '.JPG')):
        width, height = size_of(number)
        x0, y0, x1, y1 = box_of(number)
        write(
            folder / f'Annotations/{image.stem}.xml',
            f'<annotation><filename>{image.name}</filename><size><width>{width}</width><height>{height}</height></size>'
            f'<object><name>{label_of(number)}</name><bndbox><xmin>{x0}</xmin><ymin>{y0}</ymin>'
            f'<xmax>{x1 + 80 * (number == 1)}</xmax><ymax>{y1}</ymax></bndbox></object></annotation>',
        )


def coco(folder: Path) -> None:
    """Two files, one for each split; category numbers with gaps; a box without area."""
    for split, numbers in {'train': range(8), 'val': range(8, COUNT)}.items():
        entries, annotations = [], []
        for number in numbers:
            draw(folder / f'pictures/{number}.png', number)
            width, height = size_of(number)
            x0, y0, x1, y1 = box_of(number)
            entries.append({'id': number, 'file_name': f'{number}.png', 'width': width, 'height': height})
            category = 7 if label_of(number) == 'nut' else 3
            annotations.append({'image_id': number, 'category_id': category, 'bbox': [x0, y0, x1 - x0, y1 - y0]})
        annotations.append({'image_id': numbers[0], 'category_id': 3, 'bbox': [5, 5, 0, 4]})
        categories = [{'id': 7, 'name': 'nut'}, {'id': 3, 'name': 'bolt'}, {'id': 1, 'name': 'never'}]
        write(folder / f'instances_{split}.json', {'images': entries, 'annotations': annotations, 'categories': categories})


def yolo_line(number: int) -> str:
    (x0, y0, x1, y1), (width, height) = box_of(number), size_of(number)
    values = ((x0 + x1) / 2 / width, (y0 + y1) / 2 / height, (x1 - x0) / width, (y1 - y0) / height)
    return f'{CLASSES.index(label_of(number))} ' + ' '.join(f'{value:.6f}' for value in values)


def yolo(folder: Path) -> None:
    """A confidence behind the boxes, and an empty file."""
    for number, image in enumerate(images(folder / 'train/images')):
        write(folder / f'train/labels/{image.stem}.txt', f'{yolo_line(number)} 0.75\n')
    draw(folder / 'train/images/none.png', 3)
    write(folder / 'train/labels/none.txt', '')
    write(folder / 'data.yaml', 'names: {0: bolt, 1: nut}\n')


def roboflow_zip(folder: Path) -> None:
    """An archive with copies of each image, which must not be on both sides of the split."""
    folder.mkdir()
    with zipfile.ZipFile(folder / 'export.zip', 'w') as archive:
        for number in range(COUNT):
            for copy in 'ab':
                name = f'p{number}_png.rf.{hashlib.md5(f"{number}{copy}".encode()).hexdigest()}'
                memory = io.BytesIO()
                pixels = np.random.default_rng([number, ord(copy)]).integers(
                    0, 255, (*size_of(number)[::-1], 3), dtype=np.uint8
                )
                Image.fromarray(pixels).save(memory, 'PNG')
                archive.writestr(f'train/images/{name}.png', memory.getvalue())
                archive.writestr(f'train/labels/{name}.txt', yolo_line(number))
        archive.writestr('data.yaml', 'names: [bolt, nut]\nnc: 2\n')


def csv_boxes(folder: Path) -> None:
    lines = ['filename,width,height,class,xmin,ymin,xmax,ymax']
    for number, image in enumerate(images(folder)):
        lines.append(','.join(map(str, (image.name, *size_of(number), label_of(number), *box_of(number)))))
    write(folder / 'labels.csv', '\n'.join(lines))


def csv_without_header(folder: Path) -> None:
    lines = [f'{image.name},{",".join(map(str, box_of(n)))},{label_of(n)}' for n, image in enumerate(images(folder))]
    write(folder / 'annotations.csv', '\n'.join(lines))


def cvat(folder: Path) -> None:
    elements = []
    for number, image in enumerate(images(folder / 'images')):
        x0, y0, x1, y1 = box_of(number)
        (width, height), label = size_of(number), label_of(number)
        elements.append(
            f'<image id="{number}" name="{image.name}" width="{width}" height="{height}">'
            f'<box label="{label}" xtl="{x0}" ytl="{y0}" xbr="{x1}" ybr="{y1}"/></image>'
        )
    write(folder / 'annotations.xml', f'<annotations>{"".join(elements)}</annotations>')


def label_studio(folder: Path) -> None:
    """Hundredths of the image; names with what Label Studio puts before them."""
    tasks = []
    for number, image in enumerate(images(folder / 'images')):
        (x0, y0, x1, y1), (width, height) = box_of(number), size_of(number)
        value = {
            'x': 100 * x0 / width,
            'y': 100 * y0 / height,
            'width': 100 * (x1 - x0) / width,
            'height': 100 * (y1 - y0) / height,
        }
        result = {'id': 'a', 'type': 'rectanglelabels', 'value': value | {'rotation': 0, 'rectanglelabels': [label_of(number)]}}
        address = f'/data/upload/1/0a1b2c3d-{image.name}'
        tasks.append({'id': number, 'data': {'image': address}, 'annotations': [{'result': [result]}]})
    write(folder / 'project-1.json', tasks)


# Outlines and masks.


def labelme(folder: Path) -> None:
    for number, image in enumerate(images(folder)):
        shape = {'label': label_of(number), 'points': corners(box_of(number)), 'shape_type': 'polygon'}
        width, height = size_of(number)
        write(
            folder / f'{image.stem}.json',
            {'imagePath': image.name, 'imageWidth': width, 'imageHeight': height, 'shapes': [shape]},
        )


def supervisely(folder: Path) -> None:
    """A polygon with a hole, and a bitmap."""
    for number, image in enumerate(images(folder / 'ds/img')):
        x0, y0, x1, y1 = box_of(number)
        width, height = size_of(number)
        if number % 2:
            hole = corners((x0 + 4, y0 + 4, x0 + 8, y0 + 8))
            drawn: dict[str, Any] = {
                'geometryType': 'polygon',
                'points': {'exterior': corners(box_of(number)), 'interior': [hole]},
            }
        else:
            memory = io.BytesIO()
            Image.fromarray(np.full((y1 - y0, x1 - x0), 255, np.uint8)).save(memory, 'PNG')
            data = base64.b64encode(zlib.compress(memory.getvalue())).decode()
            drawn = {'geometryType': 'bitmap', 'bitmap': {'origin': [x0, y0], 'data': data}}
        objects = [drawn | {'classTitle': label_of(number)}]
        write(folder / f'ds/ann/{image.name}.json', {'size': {'width': width, 'height': height}, 'objects': objects})
    write(folder / 'meta.json', {'classes': [{'title': 'bolt'}, {'title': 'nut'}]})


def yolo_polygons(folder: Path) -> None:
    for number, image in enumerate(images(folder / 'images')):
        width, height = size_of(number)
        points = ' '.join(f'{x / width:.5f} {y / height:.5f}' for x, y in corners(box_of(number)))
        write(folder / f'labels/{image.stem}.txt', f'{CLASSES.index(label_of(number))} {points}\n')
    write(folder / 'classes.txt', 'bolt\nnut\n')


def masks_binary(folder: Path) -> None:
    """0 and 255, half as large as the image for one of them."""
    for number, image in enumerate(images(folder / 'images', '.jpg')):
        mask = Image.fromarray(np.where(mask_of(number) > 0, 255, 0).astype(np.uint8))
        (folder / 'masks').mkdir(exist_ok=True)
        (mask.reduce(2).point(lambda value: 255 * (value > 127)) if number == 4 else mask).save(
            folder / f'masks/{image.stem}.png'
        )


def masks_palette(folder: Path) -> None:
    for number, image in enumerate(images(folder / 'JPEGImages')):
        mask = Image.fromarray(mask_of(number))
        mask.putpalette([0, 0, 0, 128, 0, 0, 0, 128, 0])
        (folder / 'SegmentationClass').mkdir(exist_ok=True)
        mask.save(folder / f'SegmentationClass/{image.stem}.png')
    write(folder / 'labels.txt', 'background\nbolt\nnut\n')


def masks_coloured(folder: Path) -> None:
    """Named by CVAT's labelmap.txt, beside their images."""
    colours = np.array([(0, 0, 0), (255, 0, 0), (0, 0, 255)], np.uint8)
    for number, image in enumerate(images(folder)):
        Image.fromarray(colours[mask_of(number)]).save(folder / f'{image.stem}_mask.png')
    write(folder / 'labelmap.txt', '# label:color_rgb:parts:actions\nbackground:0,0,0::\nbolt:255,0,0::\nnut:0,0,255::\n')


def pairs(folder: Path) -> None:
    for split, numbers in {'train': range(8), 'val': range(8, COUNT)}.items():
        lines = []
        for number in numbers:
            draw(folder / f'{split}/{number}.jpg', number)
            Image.fromarray(mask_of(number)).save(folder / f'{split}/{number}_L.png')
            lines.append(f'{split}/{number}.jpg {split}/{number}_L.png\n')
        write(folder / f'{split}.txt', ''.join(lines))
    write(folder / 'classes.txt', 'background\nbolt\nnut\n')


# Texts.


def text_of(number: int) -> str:
    return f'{number * 37 % 1000:03} Kg'


def lines(folder: Path) -> list[Path]:
    return [draw(folder / f'{number}.png', number, (90 + number, 24 + number % 3)) for number in range(COUNT)]


def label_file(folder: Path) -> None:
    rows = [f'crops/{image.name}\t{text_of(number)}\n' for number, image in enumerate(lines(folder / 'crops'))]
    write(folder / 'gt.txt', ''.join(rows))


def csv_texts(folder: Path) -> None:
    rows = [f'{image.name};"{text_of(number)}"' for number, image in enumerate(lines(folder))]
    write(folder / 'texts.csv', '\n'.join(['image;text', *rows]))


def text_files(folder: Path) -> None:
    for number, image in enumerate(lines(folder)):
        write(folder / f'{image.stem}.gt.txt', text_of(number) + '\n')


def class_folders(folder: Path) -> None:
    for number in range(COUNT):
        draw(folder / f'{number % 5}/{number}.png', number, (90, 24))


def pages_paddle(folder: Path) -> None:
    """Two lines a page; the second is illegible."""
    rows = []
    for number, image in enumerate(images(folder / 'pages')):
        entries = [
            {'transcription': text_of(number), 'points': corners(box_of(number))},
            {'transcription': '###', 'points': corners((1, 1, 9, 5))},
        ]
        rows.append(f'pages/{image.name}\t{json.dumps(entries)}\n')
    write(folder / 'Label.txt', ''.join(rows))


def ppocrlabel(folder: Path) -> None:
    """A folder as the tool leaves it: a curved text, one marked as difficult, images that were looked at, lines cut out."""
    rows, seen, cuts = [], [], []
    for number, image in enumerate(images(folder)):
        entries = [
            {'transcription': text_of(number), 'points': curved(number), 'difficult': False},
            {'transcription': 'blurred', 'points': corners((1, 1, 9, 5)), 'difficult': True},
        ]
        rows.append(f'mine/{image.name}\t{json.dumps(entries)}\n')
        seen.append(f'{image}\t1\n')
        draw(folder / f'crop_img/{image.stem}_crop_0.jpg', number, (40, 20))
        cuts.append(f'crop_img/{image.stem}_crop_0.jpg\t{text_of(number)}\n')
    for name, lines in (('Label.txt', rows), ('fileState.txt', seen), ('rec_gt.txt', cuts)):
        write(folder / name, ''.join(lines))


def curved(number: int) -> list[list[int]]:
    """The upper side of the box, bent downwards."""
    x0, y0, x1, y1 = box_of(number)
    return [[x0, y0], [(x0 + x1) // 2, y0 + 3], [x1, y0], [x1, y1], [x0, y1]]


def pages_icdar(folder: Path) -> None:
    for number, image in enumerate(images(folder / 'pages')):
        flat = ','.join(str(value) for corner in corners(box_of(number)) for value in corner)
        write(folder / f'gt/gt_{image.stem}.txt', f'\ufeff{flat},{text_of(number)}\n')


# Tables.


def page_xml(folder: Path) -> None:
    """A line with alternatives, one of two words, one that nobody transcribed, and a region that is not divided."""
    for number, image in enumerate(images(folder / 'images')):
        width, height = size_of(number)
        x0, y0, x1, y1 = box_of(number)
        coords = f'<Coords points="{x0},{y0} {x1},{y0} {x1},{y1} {x0},{y1}"/>'
        text = '<TextEquiv index="{}"><Unicode>{}</Unicode></TextEquiv>'
        words = f'<Word>{coords}{text.format(0, "a")}</Word>' * 2
        lines = f'<TextLine id="l0">{coords}{text.format(1, "x")}{text.format(0, text_of(number))}</TextLine>'
        lines += f'<TextLine id="l1">{coords}{words}</TextLine><TextLine id="l2">{coords}</TextLine>'
        write(
            folder / f'page/{image.stem}.xml',
            '<PcGts xmlns="http://schema.primaresearch.org/PAGE/gts/pagecontent/2019-07-15"><Page '
            f'imageFilename="{image.name}" imageWidth="{width}" imageHeight="{height}"><TextRegion id="r0">{lines}</TextRegion>'
            f'<TextRegion id="r1">{coords}{text.format(0, "y")}</TextRegion></Page></PcGts>',
        )


def alto(folder: Path) -> None:
    for number, image in enumerate(images(folder)):
        width, height = size_of(number)
        x0, y0, x1, y1 = box_of(number)
        box = f'HPOS="{x0}" VPOS="{y0}" WIDTH="{x1 - x0}" HEIGHT="{y1 - y0}"'
        shape = f'<Shape><Polygon POINTS="{x0} {y0} {x1} {y0} {x1} {y1}"/></Shape>'
        write(
            folder / f'{image.stem}.xml',
            '<alto xmlns="http://www.loc.gov/standards/alto/ns-v4#"><Description><MeasurementUnit>mm10</MeasurementUnit></Description>'
            f'<Layout><Page WIDTH="{width}" HEIGHT="{height}"><PrintSpace><TextBlock><TextLine {box}><String CONTENT="'
            f'{text_of(number)}" {box}/><SP/><String CONTENT="b"/><HYP CONTENT="-"/></TextLine><TextLine>{shape}<String {box} '
            f'CONTENT="a"/><String {box} CONTENT="."/></TextLine></TextBlock></PrintSpace></Page></Layout></alto>',
        )


def hocr(folder: Path) -> None:
    for number, image in enumerate(images(folder)):
        (width, height), box = size_of(number), 'bbox {} {} {} {}'.format(*box_of(number))
        write(
            folder / f'{image.stem}.hocr',
            f"<!DOCTYPE html><html><body><div class='ocr_page' title='image \"{image.name}\"; bbox 0 0 {width} {height}'>"
            f"<p class='ocr_par'><span class='ocr_line' title='{box}; x_size 9'><span class='ocrx_word' title='{box}'>"
            f"{text_of(number)}</span> <span class='ocrx_word'>&amp;</span></span></p></div></body></html>",
        )


def tesseract_boxes(folder: Path) -> None:
    for number, image in enumerate(images(folder)):
        x0, y0, x1, y1 = box_of(number)
        box = f'{x0} {size_of(number)[1] - y1} {x1} {size_of(number)[1] - y0} 0'
        write(folder / f'{image.stem}.box', f'WordStr {box} #{text_of(number)}\n\t {box}\na {box}\n  {box}\n\t {box}\n')


def scitsr(folder: Path) -> None:
    for number, image in enumerate(images(folder / 'img')):
        places = ((0, 0, 0, 1, ['Year', 'x']), (1, 2, 0, 0, [f'{number}']), (1, 1, 1, 1, []))
        keys = ('start_row', 'end_row', 'start_col', 'end_col', 'content')
        cells = [{'id': n, 'tex': '', **dict(zip(keys, place, strict=True))} for n, place in enumerate(places)]
        write(folder / f'structure/{image.stem}.json', {'cells': cells})


def html_of(number: int) -> str:
    return (
        f'<table><tr><th colspan=2>Year {number}</th></tr><tr><td>{number}<td><b>x</b>&amp;y</tr>'
        '<tr><td>1</td><td></td></tr></table>'
    )


def html_files(folder: Path) -> None:
    for number, image in enumerate(images(folder)):
        write(folder / f'{image.stem}.html', html_of(number))


def csv_html(folder: Path) -> None:
    quoted = [(image.name, html_of(n).replace('"', '""')) for n, image in enumerate(images(folder / 'images'))]
    write(folder / 'tables.csv', 'image,html\n' + ''.join(f'{name},"{html}"\n' for name, html in quoted))


def pubtabnet(folder: Path) -> None:
    rows = []
    for number, image in enumerate(images(folder / 'images')):
        tokens = ['<tbody>', '<tr>', '<td>', '</td>', '<td', ' rowspan="2"', '>', '</td>', '</tr>', '</tbody>']
        cells = [{'tokens': list('ab'), 'bbox': [4, 6, 20, 18]}, {'tokens': []}]
        html = {'structure': {'tokens': tokens}, 'cells': cells}
        rows.append({'filename': image.name, 'split': 'val' if number > 7 else 'train', 'html': html})
    write(folder / 'tables.jsonl', '\n'.join(map(json.dumps, rows)))
