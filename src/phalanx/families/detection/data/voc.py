"""One XML file of annotations per image, as in Pascal VOC (Everingham et al., IJCV 2010)."""

import re
from pathlib import Path

from phalanx.data.bands import Bands
from phalanx.data.checks import AnnotationError, is_file
from phalanx.data.folders import Problems, check_folder, check_inside, read_class_names, read_lines
from phalanx.data.samples import Split
from phalanx.data.shapes import Box
from phalanx.data.voc import VocFile, correct_sizes, read_voc_file
from phalanx.families.detection.data.annotated import POLYGONS, ROTATED, UNKNOWN, AnnotatedImages, Annotations

IMAGES, SUFFIXES = 'JPEGImages', ('.jpg', '.jpeg', '.png', '.bmp', '.webp', '.tif', '.tiff', '.gif')
MOST_SPACES = 100  # in a line of a list: each space costs a look at the disk
SHIFT = 1  # VOC counts from 1, so that a box may end at `width`
CLASSES = (
    'aeroplane bicycle bird boat bottle bus car cat chair cow diningtable dog horse motorbike person pottedplant sheep sofa '
    'train tvmonitor'
)


class PascalVOC:
    """Images and XML files named by one list per split, relative to `root`.

    A line is the common name of both in the folders JPEGImages and Annotations (`000005`, as in ImageSets/Main; the image may
    have any known suffix), or the paths of image and annotation (as in PaddleDetection). `classes`: names, or a file below
    `root` with one name per line; by default the 20 of VOC. Difficult objects are not evaluated; `learn_difficult` trains on
    them, as PaddleDetection does. Corners are used as written, without a shift for VOC's counting from 1, and clipped to the
    last column and row, width - 1 and height - 1, as in PaddleDetection. `empty_images`: train also on images without objects.
    `bands`: of the images, if they are not RGB.
    """

    def __init__(
        self,
        *,
        root: Path,
        train: str = 'ImageSets/Main/trainval.txt',
        eval: str = 'ImageSets/Main/test.txt',
        classes: str | tuple[str, ...] = tuple(CLASSES.split()),
        learn_difficult: bool = True,
        empty_images: bool = False,
        bands: Bands | None = None,
    ) -> None:
        self.root, self.learn_difficult, self.empty_images, self.bands = root, learn_difficult, empty_images, bands
        self.lists: dict[Split, str] = {'train': train, 'eval': eval}
        for key, path in self.lists.items():
            check_inside(path, root, f'data.{key}')
        self.class_names = read_class_names(classes, root)

    def split(self, split: Split) -> AnnotatedImages:
        check_folder(self.root)
        listed = self.root / self.lists[split]
        labels = {name: label for label, name in enumerate(self.class_names)}
        annotations, problems, images = Annotations(self.root, listed), Problems(), _images_in(self.root / IMAGES)
        listing: list[tuple[str, str, VocFile | None]] = []  # image, annotation and its content, if it exists
        for number, line in read_lines(listed):
            with problems:
                image, xml = self._pair(line.strip(), images, f'{listed}:{number}')
                path = self.root / xml
                listing.append((image, xml, read_voc_file(path, path.read_bytes()) if path.is_file() else None))
                if path.is_file() and listing[-1][2] is None:
                    raise AnnotationError(f'{path}: is not an annotation of VOC, whose root element is `annotation`')
        corrected, count = correct_sizes(file for _, _, file in listing if file)
        annotations.notes['sizes with width and height exchanged, as the boxes show'] = count
        known = iter(corrected)
        for image, xml, file in listing:
            with problems:
                if file is None:
                    annotations.add_missing(image, xml)
                else:
                    is_learned = self.learn_difficult and split == 'train'
                    add_voc(image, next(known), annotations, labels, learn_difficult=is_learned)
        problems.check()
        return annotations.source(keep_empty=split == 'eval' or self.empty_images, bands=self.bands)

    def _pair(self, line: str, images: dict[str, str], where: str) -> tuple[str, str]:
        """Image and annotation of a line; names may have spaces in them."""
        if line.lower().endswith('.xml'):
            pairs = [(line[: space.start()], line[space.end() :]) for space in re.finditer(r'\s+', line)]
        else:
            pairs = [(f'{IMAGES}/{images.get(line, f"{line}.jpg")}', f'Annotations/{line}.xml')]
        if len(pairs) > 1:  # names may contain spaces: split where the image exists
            pairs = [pair for pair in pairs[:MOST_SPACES] if is_file(self.root / check_inside(pair[0], self.root, where))]
        if len(pairs) != 1:
            raise ValueError(f'{where}: expected a name, or the paths of an image and of its annotation, got {line[:200]!r}')
        image, xml = pairs[0]
        return check_inside(image, self.root, where), check_inside(xml, self.root, where)


def _images_in(folder: Path) -> dict[str, str]:
    """Name without suffix -> name of each image in a folder, `.jpg` before others of the same name."""
    names = [file.name for file in folder.iterdir() if file.suffix.lower() in SUFFIXES] if folder.is_dir() else []
    return {Path(name).stem: name for name in sorted(names, key=lambda name: (name.endswith('.jpg'), name))}


def add_voc(image: str, file: VocFile, annotations: Annotations, labels: dict[str, int], *, learn_difficult: bool) -> None:
    """Add an image and the boxes of its annotation file. Raises AnnotationError."""
    annotated = file.size[::-1]
    number = annotations.add_image(image, annotated)
    for one in file.objects:
        if one.label not in labels:
            first = ', '.join(list(labels)[:5])
            raise AnnotationError(f'{one.where}: {one.label!r} is not a class; data.classes names {len(labels)}: {first} ...')
        if one.box is None:
            raise AnnotationError(f'{one.where}: is a bitmap without a box; `phalanx data prepare voc` reads it')
        # VOC counts from 1: a box that ends one pixel too far is not a mistake of the annotator.
        inside = _inside(one.box, annotated)
        annotations.cut_off += max(abs(a - b) for a, b in zip(one.box, inside, strict=True)) > 1 + SHIFT
        annotations.notes[ROTATED] += bool(one.corners)
        annotations.notes[POLYGONS] += bool(one.outline)
        # Difficult objects may be trained on, but are never evaluated.
        annotations.add_box(number, inside, labels[one.label], ignored=one.difficult and not learn_difficult)


def _inside(box: Box, size: tuple[int, int]) -> Box:
    """`box` clipped to the last column and row of an image of that size (height, width).

    A box that lies outside as a whole stays as it is: the size may be wrong, which is reported when the image is read.
    """
    x0, y0, x1, y1 = max(0.0, box[0]), max(0.0, box[1]), min(size[1] - 1.0, box[2]), min(size[0] - 1.0, box[3])
    return (x0, y0, x1, y1) if size != UNKNOWN and x1 > x0 and y1 > y0 else box
