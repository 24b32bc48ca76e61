"""Catalog of annotation formats, and detection of those in a folder."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from phalanx.curation.prepare.coco import find_coco
from phalanx.curation.prepare.csv_files import find_csv
from phalanx.curation.prepare.cvat import read_cvat
from phalanx.curation.prepare.foreign import name_foreign
from phalanx.curation.prepare.hocr import find_hocr
from phalanx.curation.prepare.html_tables import find_html, find_pubtabnet, find_scitsr
from phalanx.curation.prepare.json_files import find_createml, find_datumaro, find_via
from phalanx.curation.prepare.label_studio import find_label_studio
from phalanx.curation.prepare.labelme import find_labelme
from phalanx.curation.prepare.lists import find_class_folders, find_lists, find_text_files
from phalanx.curation.prepare.masks import find_masks
from phalanx.curation.prepare.number_lines import find_dota, find_kitti, find_mot, find_wider_face
from phalanx.curation.prepare.samples import AnnotationSet, Family, LeftOut, Packed, Sample, SplitName, join
from phalanx.curation.prepare.splits import Splits, listed_splits, settle_splits
from phalanx.curation.prepare.supervisely import find_supervisely
from phalanx.curation.prepare.tesseract_boxes import find_tesseract_boxes
from phalanx.curation.prepare.text_json import find_text_json
from phalanx.curation.prepare.text_xml import find_alto, find_page_xml
from phalanx.curation.prepare.tree import Tree
from phalanx.curation.prepare.xml_files import read_voc
from phalanx.curation.prepare.yolo import read_yolo
from phalanx.data.checks import FRACTIONS, AnnotationError, are_fractions

OUTSIDE = 'boxes that reach out of their image, cut off at its edges'
FEW = 10  # boxes: fewer say nothing about a data set


class Format(NamedTuple):
    about: str
    find: Callable[[Tree, AnnotationSet], None]  # adds the samples of this format
    suffix: str = ''  # of its files about several images


# In order of trust: of two formats that annotate equally many images, the first wins.
FORMATS = {
    'coco': Format('COCO (JSON with images, annotations and categories)', find_coco, '.json'),
    'voc': Format('Pascal VOC (an XML file for each image)', read_voc),
    'cvat': Format('CVAT (XML)', read_cvat, '.xml'),
    'labelme': Format('LabelMe (a JSON file for each image)', find_labelme, '.json'),
    'label_studio': Format('Label Studio (JSON)', find_label_studio, '.json'),
    'supervisely': Format('Supervisely (ann/NAME.json)', find_supervisely),
    'pubtabnet': Format('tables in the format of PubTabNet (JSON lines)', find_pubtabnet),
    'scitsr': Format('tables of SciTSR (JSON, the cells of each image)', find_scitsr, '.json'),
    'html': Format('tables as HTML (a file for each image)', find_html),
    'datumaro': Format('Datumaro (JSON with categories and items)', find_datumaro, '.json'),
    'createml': Format('CreateML (JSON, a list of images)', find_createml, '.json'),
    'via': Format('VGG Image Annotator (JSON)', find_via, '.json'),
    'text_json': Format('texts in JSON (docTR, MMOCR, an object of an image and its text)', find_text_json, '.json'),
    'page_xml': Format('PAGE-XML (a file for each page)', find_page_xml),
    'alto': Format('ALTO (an XML file for each page)', find_alto),
    'hocr': Format('hOCR (HTML)', find_hocr),
    'wider_face': Format('WIDER FACE (lists *_bbx_gt.txt)', find_wider_face),
    'mot': Format('MOT (gt/gt.txt of each sequence)', find_mot),
    'dota': Format('DOTA (a text file of rotated boxes for each image)', find_dota),
    'kitti': Format('KITTI (a text file of boxes for each image)', find_kitti),
    'csv': Format('CSV (a line for each box or image)', find_csv, '.csv'),
    'lists': Format('lists (lines of an image and its text, lines or label map)', find_lists),
    'yolo': Format('YOLO (a text file for each image)', read_yolo),
    'text_files': Format('text files (one for each image)', find_text_files),
    'tesseract_boxes': Format('boxes of Tesseract (a file for each page)', find_tesseract_boxes),
    'masks': Format('masks (an image for each image)', find_masks),
    'class_folders': Format('folders by class', find_class_folders),
}


def find_annotations(
    tree: Tree, names: Iterable[str] = FORMATS, refused: dict[str, LeftOut] | None = None
) -> dict[str, AnnotationSet]:
    """Return the samples of each format in a folder, formats with most images first; formats without samples are omitted.

    For formats whose annotations cannot be used, the reasons are added to `refused`.
    """
    held, refused = dict[str, AnnotationSet](), {} if refused is None else refused
    splits = listed_splits(tree)
    for name in names:
        if name == 'class_folders' and (held or refused):  # any other annotation is more specific
            continue
        found = AnnotationSet()
        with tree.unreadable.catch():  # an error in a file about all images, such as the class names
            FORMATS[name].find(tree, found)
        if found.samples:
            _drop_doubtful(found, tree.doubtful[FORMATS[name].suffix])
            found = keep_usable(found, tree, splits)
        if found.families():
            held[name] = found
        elif found.samples or found.left_out or found.notes:
            empty = [f'names {len(found.samples)} images, but not one object on them'] if found.samples else []
            refused[name] = LeftOut([*found.left_out, *found.notes, *empty])
    tree.unreadable += name_foreign(tree)
    return dict(sorted(held.items(), key=lambda item: -len({sample.image for sample in item[1].samples})))


def _drop_doubtful(found: AnnotationSet, doubtful: set[Path]) -> None:
    """Drop the images that a damaged file names, too: it may have held objects on them."""
    lost = sorted({sample.image for sample in found.samples} & doubtful)
    if lost:
        found.dropped.update(lost)
        found.left_out.append(f'{lost[0]} (and {len(lost) - 1} more): a file that cannot be read may have objects on it, too')


def keep_usable(found: AnnotationSet, tree: Tree, splits: Splits) -> AnnotationSet:
    """Return one sample per image, without unreadable images and boxes without area, with boxes cut at the image edges.

    Where `splits` names images to train on, only images that it names are used, as its author does.
    """
    counts, samples, own = Counter[str](), list[Sample](), dict[Path, Collection[SplitName]]()
    labels = {label for sample in found.samples for label in sample.labels}
    if any(name != name.strip() for name in labels.union(found.class_names)):  # `cat` and `cat ` are one class
        stripped = tuple(dict.fromkeys(name.strip() for name in found.class_names))
        found = replace(found, samples=[_strip(sample) for sample in found.samples], class_names=stripped)
    if are_fractions(instance.box for sample in found.samples for instance in sample.instances):
        return replace(found, samples=[], left_out=LeftOut([*found.left_out, FRACTIONS]))
    if {label.strip() for label in labels} == {''}:
        found = replace(found, samples=[_relabel(sample, 'object') for sample in found.samples])
    for same in found.by_image():
        with found.left_out.catch():
            sample = join(same, f'{same[0].image}')
            counts['images that are annotated more than once, whose annotations are joined'] += len(same) > len(
                {one.split for one in same}
            )
            width, height = sample.size or tree.size(sample.image)
            if any(not instance.label for instance in sample.instances):
                raise AnnotationError(f'{sample.image}: an object on it has no label, while others have one')
            if any(break_ in str(sample.image) for break_ in '\t\r\n'):
                raise AnnotationError(f'{str(sample.image)!r}: has a tab or a line break in its name')
            instances = []
            for instance in sample.instances:
                x0, y0, x1, y1 = instance.box
                if x1 < x0 or y1 < y0:  # drawn from right to left, or upwards
                    x0, y0, x1, y1 = min(x0, x1), min(y0, y1), max(x0, x1), max(y0, y1)
                    counts['boxes whose corners were exchanged'] += 1
                box = max(0.0, x0), max(0.0, y0), min(float(width), x1), min(float(height), y1)
                if box[2] - box[0] < 1 or box[3] - box[1] < 1:
                    counts['boxes smaller than a pixel or outside their image, left out'] += 1
                    continue
                slack = max(1.0, 0.005 * max(width, height))
                if any(abs(one - other) > slack for one, other in zip(box, (x0, y0, x1, y1), strict=True)):
                    counts[OUTSIDE] += 1
                instances.append(instance._replace(box=box))
            own[sample.image] = splits.get(sample.image) or {one.split for one in same}
            kept = Packed(instances) if isinstance(sample.instances, Packed) else tuple(instances)
            samples.append(replace(sample, instances=kept, size=(width, height)))
    outside = counts[OUTSIDE]
    if outside > max(FEW, sum(len(sample.instances) for sample in samples) / 2):
        counts[f'{OUTSIDE} - most of all: are corners written where width and height are expected?'] = counts.pop(OUTSIDE)
    settled, split_notes = settle_splits(own)
    samples = [replace(sample, split=split) for sample in samples for split in settled[sample.image]]
    if any('train' in splits.get(sample.image, ()) for sample in samples):
        unlisted = [sample for sample in samples if not sample.split]
        counts['images that no list of the splits names, not used'] = len(unlisted)
        samples = [sample for sample in samples if sample.split]
    samples.sort(key=lambda sample: str(sample.image))
    if unused := +found.unused:
        split_notes.append('not used: ' + ', '.join(f'{count} {what}' for what, count in unused.most_common(8)))
    notes = [f'{what}: {count}' for what, count in counts.items() if count] + split_notes
    used = {label for sample in samples for label in sample.labels}
    empty = [name for name in found.class_names if name not in used]
    if used and empty:
        notes.append(f'classes that never occur, left out: {", ".join(empty[:10])}{" ..." if len(empty) > 10 else ""}')
    names = tuple(name for name in found.class_names if name in used) + tuple(sorted(used - {*found.class_names}))
    return replace(found, samples=samples, class_names=names, notes=[*found.notes, *notes])


def _strip(sample: Sample) -> Sample:
    """The sample without blanks around its labels."""
    return replace(sample, instances=tuple(one._replace(label=one.label.strip()) for one in sample.instances))


def _relabel(sample: Sample, label: str) -> Sample:
    return replace(sample, instances=tuple(instance._replace(label=label) for instance in sample.instances))


def choose_format(held: dict[str, AnnotationSet], family: Family | None) -> tuple[str, AnnotationSet, Family] | None:
    """Choose the format that annotates most images for `family` (None: any); return format, samples and family, or None.

    For segmentation, formats with masks or outlines come before boxes.
    """
    ordered = [*held.items()] if family != 'segmentation' else sorted(held.items(), key=lambda item: not item[1].has_outlines())
    for name, found in ordered:
        possible = found.families()
        if possible and (family is None or family in possible):
            if family == 'text_detection':  # an image of a single line is no page
                found = replace(found, samples=[sample for sample in found.samples if sample.text is None])
            if (family or possible[0]) == 'segmentation' and found.without_outline:  # its box would be painted
                kept = [sample for sample in found.samples if sample.image not in found.without_outline]
                found = replace(found, samples=kept, left_out=LeftOut([*found.left_out, *found.without_outline.values()]))
            return name, found, family or possible[0]
    return None
