"""Writers of the lists and annotation files that the data sets of recipes read."""

import json
import os
import re
import shutil
import unicodedata
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, MutableSequence, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np

from phalanx.curation.prepare.label_maps import BACKGROUND, MEANING, MOST, paint_labels, save_labels
from phalanx.curation.prepare.mask_values import Meaning, infer_meaning, read_label_map
from phalanx.curation.prepare.samples import AnnotationSet, Family, Instance, LeftOut, Sample, SplitName
from phalanx.data.bands import find_bands
from phalanx.data.checks import AnnotationError, size_of
from phalanx.data.image import find_background, read_image
from phalanx.data.samples import SampleError
from phalanx.data.shapes import Corners, Polygon, arrange_corners, corners_of
from phalanx.data.texts import ILLEGIBLE
from phalanx.report.terminal import track
from phalanx.runtime.reading import cut_out
from phalanx.system.paths import normalise_path

LONG = 2  # length / height of a text whose direction its outline shows


@dataclass
class Written:
    """Written data set, and the statistics that its recipe depends on."""

    root: Path
    data: dict[str, Any]  # the keys of `data` in a recipe
    out: Path = Path()  # the folder of what was written
    meaning: Meaning | None = None  # of masks
    separator: str = '\t'  # in the lists of segmentation
    files: dict[SplitName, str] = field(default_factory=dict)  # of annotations, below `root`
    class_names: tuple[str, ...] = ()
    counts: dict[SplitName, int] = field(default_factory=dict)  # samples
    copies: int = 0  # validation images whose files are equal to training images
    sizes: list[tuple[int, int]] = field(default_factory=list)  # (width, height) of training images
    units: Counter[str] = field(default_factory=Counter)  # boxes or pixels of each class in training
    objects: dict[SplitName, Counter[str]] = field(
        default_factory=dict
    )  # boxes, texts or pixels of what is evaluated, by class
    boxes: MutableSequence[float] = field(
        default_factory=lambda: array('d')
    )  # the shorter side of each box, as a share of the longer side of its image
    lengths: MutableSequence[float] = field(default_factory=lambda: array('d'))  # the longer side of each box, in pixels
    shown: Counter[str] = field(default_factory=Counter)  # training images with each class
    texts: list[str] = field(default_factory=list)  # of training
    unseen: list[str] = field(default_factory=list)  # texts of validation with characters that no text of training has
    longest: int = 0  # characters of the longest text of all splits
    tokens: list[int] = field(default_factory=list)  # of each table
    cell_boxes: int = 0
    names: set[str] = field(default_factory=set)  # of files made from images
    left_out: LeftOut = field(default_factory=LeftOut)
    mean: list[float] = field(default_factory=list)  # of other bands than RGB, as shares of the largest value
    std: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def below(self, path: Path) -> str:
        """Path of a file relative to the root of the data set."""
        return path.relative_to(self.root).as_posix()

    def free_name(self, image: Path) -> str:
        """Name for files made from an image, which no other image has; that of the image, where it is a copy."""
        if image.is_relative_to(self.out / 'images'):
            name = image.relative_to(self.out / 'images').with_suffix('').as_posix()
        else:
            name = re.sub(r'[^\w.-]', '_', '_'.join((*image.parts[-3:-1], image.stem)))
        while name in self.names:
            name += '_'
        self.names.add(name)
        return name


def write(
    family: Family,
    found: AnnotationSet,
    lists: Mapping[SplitName, Sequence[Sample]],
    out: Path,
    *,
    meaning: Meaning | None,
    separator: str = '\t',
) -> Written:
    """Write the files that `family` reads into `out`; images stay where they are. Raises ValueError for too many classes."""
    images = [sample.image for samples in lists.values() for sample in samples]
    odd = [path for path in images if os.fsencode(path).decode(errors='ignore') != str(path)]
    if odd and family != 'detection':  # whose JSON can hold it
        raise ValueError(
            f'{str(odd[0])!r}: has a name that is not UTF-8, and a list is; rename it (convmv) ({len(odd)} in all)'
        )
    try:
        bands = find_bands([sample.image for sample in lists['train']]) if family in ('detection', 'segmentation') else None
    except SampleError as error:
        raise ValueError(str(error)) from None
    written = Written(Path(os.path.commonpath([out, *(path.parent for path in images)])), {}, out, meaning, separator)
    # class names, and notes about objects that lose their shape in this family
    if family == 'detection':
        written.class_names = found.class_names
    elif family == 'segmentation':
        drawn = (name for name in found.class_names if name not in MEANING)
        written.class_names = meaning.class_names if meaning else (BACKGROUND, *drawn)
        if len(written.class_names) > MOST:
            raise ValueError(f'{len(written.class_names)} classes do not fit a label map of 8 bits; {MOST} do')
        written.notes += meaning.notes if meaning else ()
        if bare := sum(
            not instance.outline for samples in lists.values() for sample in samples for instance in sample.instances
        ):
            written.notes.append(f'boxes without an outline, painted as rectangles: {bare}')
    # one list or annotation file per split
    texts_of, suffix = WRITERS[family]
    for split, samples in lists.items():
        texts, written.counts[split] = texts_of(written, split, track(samples, f'writing {split}'))
        file = out / f'{split}{suffix}'
        with file.open('w', encoding='utf-8') as opened:
            opened.writelines(texts)
        written.files[split] = written.below(file)
    written.data = {'root': str(written.root), **_keys(family, written)}
    if bands:
        about, written.mean, written.std = bands
        written.data['bands'] = {'count': about.count, 'bits': about.bits}
        written.notes.append(
            f'images of {about.count} band{"s" * (about.count > 1)} of {about.bits} bits, used as stored (data.bands)'
        )
    return written


def _keys(family: Family, written: Written) -> dict[str, Any]:
    """Keys of `data` in a recipe besides its root."""
    train, val, classes = written.files['train'], written.files['val'], list(written.class_names)
    lists, images = {'train': train, 'eval': val}, {'train_images': '', 'eval_images': ''}
    match family:
        case 'detection':
            return {'name': 'coco', **lists, **images, 'classes': classes, 'empty_images': True}
        case 'segmentation':
            return {'name': 'file_list', **lists, 'classes': classes, 'separator': written.separator}
        case 'table':
            return {'name': 'pubtabnet', **lists, **images}
        case _:
            return {'name': 'label_files', 'train': [train], 'eval': [val]}


def write_copies(
    family: Family,
    found: AnnotationSet,
    lists: Mapping[SplitName, Sequence[Sample]],
    out: Path,
    source: Path,
    meaning: Meaning | None,
    *,
    skip: bool,
) -> Written:
    """Write a self-contained data set with copies of the images; the folder `out` appears as a whole or not at all.

    It does not appear if a split has no samples, nor, without `skip`, if an image of segmentation is left out.
    """
    out, keeps_masks = normalise_path(out), meaning is not None and meaning.is_plain
    out.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=out.parent, prefix=f'.{out.name}-') as aside:
        place = Path(aside) / 'data'

        @cache  # images may be in two splits
        def copied(path: Path, folder: str) -> Path:
            name = str(path.relative_to(source))
            if family == 'segmentation':  # in its lists, a blank ends the path
                name = re.sub(r'\s', '_', name)
            target = place / folder / name
            if target.exists():
                raise AnnotationError(f'{path}: an image before it is named {target.stem} too')
            target.parent.mkdir(parents=True, exist_ok=True)
            return Path(shutil.copyfile(path, target))

        moved, doubled, pixels = dict[SplitName, list[Sample]](), LeftOut(), dict[Path, Mapping[Any, int]]()
        for split, samples in lists.items():
            moved[split] = []
            for sample in samples:
                with doubled.catch():
                    mask = copied(sample.mask, 'masks') if sample.mask and keeps_masks else sample.mask
                    if mask and sample.mask and meaning and sample.mask in meaning.pixels:
                        pixels[mask] = meaning.pixels[sample.mask]
                    moved[split].append(replace(sample, image=copied(sample.image, 'images'), mask=mask))
        meaning = replace(meaning, pixels=pixels) if meaning else None
        written = write(family, found, moved, place, meaning=meaning, separator=' ')
        if family == 'segmentation':  # as `data: {name: file_list}` reads them by default
            for name in written.class_names:
                if not name or name != ' '.join(name.split()):
                    raise ValueError(f'{name!r} cannot be the name of a class, which is one line without blanks around it')
            (place / 'classes.txt').write_text(''.join(f'{name}\n' for name in written.class_names), encoding='utf-8')
        for folder in ('images', 'masks'):  # messages name the user's own files, not the copies
            written.left_out[:] = [why.replace(str(place / folder), str(source)) for why in written.left_out]
        written.left_out += doubled
        loses_samples = family == 'segmentation' and bool(written.left_out)  # others leave out only lines without a text
        if all(written.counts.values()) and (skip or not loses_samples):
            place.rename(out)
    return written


def _detection(written: Written, split: SplitName, samples: Iterable[Sample]) -> tuple[list[str], int]:
    """Compose a COCO file; return its text in pieces and the number of samples."""
    numbers = {name: number for number, name in enumerate(written.class_names, 1)}
    objects = written.objects.setdefault(split, Counter())
    images, annotations, count = list[str](), list[str](), 0
    for number, sample in enumerate(samples, 1):
        width, height = sample.size or size_of(sample.image)
        image = {'id': number, 'file_name': written.below(sample.image), 'width': width, 'height': height}
        images.append(', ' * (number > 1) + json.dumps(image))
        rows, learned = list[dict[str, Any]](), list[str]()
        for instance in sample.instances:
            x0, y0, x1, y1 = (round(value, 2) for value in instance.box)
            own = {'id': count + len(rows) + 1, 'image_id': number, 'category_id': numbers[instance.label]}
            box = {'bbox': [x0, y0, round(x1 - x0, 2), round(y1 - y0, 2)], 'area': round((x1 - x0) * (y1 - y0), 2)}
            rows.append(own | box | {'iscrowd': int(instance.ignored)})
            if not instance.ignored:
                learned.append(instance.label)
            if split == 'train':
                written.units[instance.label] += 1
                written.boxes.append(min(x1 - x0, y1 - y0) / max(width, height))
                written.lengths.append(max(x1 - x0, y1 - y0))
        if rows:
            annotations.append(', ' * (count > 0) + json.dumps(rows)[1:-1])
            count += len(rows)
        objects.update(learned)
        if split == 'train':
            written.sizes.append((width, height))
            written.shown.update(sorted(set(learned)))
    categories = json.dumps([{'id': number, 'name': name} for name, number in numbers.items()])
    return ['{"images": [', *images, f'], "categories": {categories}, "annotations": [', *annotations, ']}'], len(images)


def _segmentation(written: Written, split: SplitName, samples: Iterable[Sample]) -> tuple[list[str], int]:
    """Compose lines of images and label maps; label maps are painted unless the masks can be used as they are."""
    lines, background, objects = [], find_background(written.class_names), written.objects.setdefault(split, Counter())
    for sample in samples:
        with written.left_out.catch():
            counts, path = _labels(sample, written)
            lines.append(f'{written.below(sample.image)}{written.separator}{written.below(path)}\n')
            pixels = {name: counts.get(number, 0) for number, name in enumerate(written.class_names)}
            objects.update({name: pixels[name] for number, name in enumerate(pixels) if number != background})
            if split == 'train':
                written.sizes.append(size_of(sample.image))
                written.units.update(pixels)
    return lines, len(lines)


def _labels(sample: Sample, written: Written) -> tuple[Mapping[Any, int], Path]:
    """Pixels of each number in the label map of a sample, and its file: the user's mask, or a written one."""
    mask, meaning = sample.mask, written.meaning
    if mask and meaning and meaning.is_plain and mask in meaning.pixels and size_of(mask) == size_of(sample.image):
        return meaning.pixels[mask], mask
    path = written.out / 'labels' / f'{written.free_name(sample.image)}.png'
    if mask and meaning:
        labels = read_label_map(mask, meaning, sample.image)
    else:
        labels = paint_labels(sample, written.class_names)
    save_labels(labels, path)
    return dict(enumerate(np.bincount(labels.reshape(-1)).tolist())), path


def _recognition(written: Written, split: SplitName, samples: Iterable[Sample]) -> tuple[list[str], int]:
    """Compose lines of images and texts; text lines are cut out of pages."""
    lines = []
    for sample in samples:
        for image, text, size in _texts(sample, written):
            if any(apart in text for apart in '\t\r\n') or text.strip() in ('', ILLEGIBLE):
                written.left_out.append(f'{image}: its text is empty, illegible ({ILLEGIBLE}), or has a tab or several lines')
                continue
            lines.append(f'{written.below(image)}\t{text}\n')
            written.longest = max(written.longest, len(text))
            learned = unicodedata.normalize('NFC', text)
            if split == 'train':
                written.sizes.append(size)
                written.texts.append(text)
                written.units.update(learned)
            elif split == 'val' and any(one not in written.units for one in learned if one != ' '):
                written.unseen.append(learned)
    if split == 'train':
        characters = ''.join(f'{one}\n' for one in sorted(written.units) if one != ' ')
        (written.out / 'characters.txt').write_text(characters, encoding='utf-8')
    return lines, len(lines)


def _texts(sample: Sample, written: Written) -> list[tuple[Path, str, tuple[int, int]]]:
    """Image, text and size of each text line of a sample."""
    if sample.text is not None:
        return [(sample.image, sample.text.strip(), size_of(sample.image))]
    lines = []
    try:
        page = read_image(sample.image)
    except SampleError as error:
        written.left_out.append(str(error))
        return []
    name = written.free_name(sample.image)
    for number, instance in enumerate(sample.instances):
        if instance.ignored or not (instance.text or '').strip():
            written.left_out.append(f'{sample.image}: text {number + 1} has nothing that can be read')
            continue
        cut = cut_out(page, tuple((x, y) for x, y in _corners(instance)))
        path = written.out / 'lines' / f'{name}_{number}.png'
        path.parent.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(path), cut[..., ::-1])
        lines.append((path, (instance.text or '').strip(), (cut.shape[1], cut.shape[0])))
    return lines


def _corners(instance: Instance) -> Corners:
    """Outline that a text is cut out by. The smallest rectangle around a short text may stand on a corner: its box is taken."""
    outline = _outline(instance)
    _, sides, _ = cv2.minAreaRect(np.array(outline, np.float32))
    return outline if len(outline) == 4 or max(sides) >= LONG * min(sides) else corners_of(*instance.box)


def _text_detection(written: Written, split: SplitName, samples: Iterable[Sample]) -> tuple[list[str], int]:
    """Compose lines in the format of PaddleOCR."""
    lines, objects = [], written.objects.setdefault(split, Counter())
    for sample in samples:
        width, height = size_of(sample.image)
        objects['text'] += sum(not instance.ignored for instance in sample.instances)
        texts = []
        for instance in sample.instances:
            points = [[round(float(x), 2), round(float(y), 2)] for x, y in _outline(instance)]
            texts.append({'transcription': ILLEGIBLE if instance.ignored else instance.text or '', 'points': points})
            if split == 'train':
                written.units['ignored' if instance.ignored else 'text'] += 1
                written.boxes.append(min(cv2.minAreaRect(np.array(points, np.float32))[1]) / max(width, height))
        lines.append(f'{written.below(sample.image)}\t{json.dumps(texts, ensure_ascii=False)}\n')
        if split == 'train':
            written.sizes.append((width, height))
    return lines, len(lines)


def _outline(instance: Instance) -> Corners:
    """Corners of the annotated outline, or of the box; of four, clockwise from the upper left."""
    polygons = [shape for shape in instance.outline if isinstance(shape, Polygon)]
    drawn = max(polygons, key=lambda shape: shape.area).points.tolist() if polygons else corners_of(*instance.box)
    return instance.corners or (arrange_corners(drawn) if len(drawn) == 4 else drawn)


def _table(written: Written, split: SplitName, samples: Iterable[Sample]) -> tuple[list[str], int]:
    """Compose JSON lines in the format of PubTabNet."""
    lines = []
    for number, sample in enumerate(samples):
        table = json.loads(sample.table or '{}')
        line = {'filename': written.below(sample.image), 'split': split, 'imgid': number, 'html': table}
        lines.append(json.dumps(line, ensure_ascii=False) + '\n')
        if split == 'train':
            written.sizes.append(size_of(sample.image))
            tokens = table['structure']['tokens']
            written.tokens.append(len(tokens) - tokens.count('<td>'))
            written.units.update(tokens)
            written.cell_boxes += sum('bbox' in cell for cell in table['cells'])
    return lines, len(lines)


# Writer of a split's file, which returns its text in pieces and the number of samples; and the suffix of the file.
WRITERS: dict[Family, tuple[Callable[[Written, SplitName, Iterable[Sample]], tuple[list[str], int]], str]] = {
    'detection': (_detection, '.json'),
    'segmentation': (_segmentation, '.txt'),
    'recognition': (_recognition, '.txt'),
    'table': (_table, '.jsonl'),
    'text_detection': (_text_detection, '.txt'),
}


def find_meaning(family: Family, found: AnnotationSet) -> Meaning | None:
    """The meaning of the masks, where there are some. Raises AnnotationError."""
    pairs = [(sample.image, sample.mask) for sample in found.samples if sample.mask]
    if family != 'segmentation' or not pairs:
        return None
    try:
        return infer_meaning([mask for _, mask in pairs], found.classes_from)
    except AnnotationError as error:
        images = [image for image, _ in pairs]
        try:
            infer_meaning(images, None)  # a photograph has too many colours for that
        except AnnotationError:
            raise error from None
        image, mask = pairs[0]
        swapped = f'{mask.parent.name}/ holds photographs, {image.parent.name}/ the masks: swapped? Rename the folders'
        raise AnnotationError(f'{swapped} ({error})') from None
