"""Annotations of Pascal VOC: an XML file per image."""

from pathlib import Path, PurePosixPath
from xml.etree import ElementTree

from phalanx.curation.prepare.bitmaps import bitmap_instance, decode_png
from phalanx.curation.prepare.class_files import read_class_file
from phalanx.curation.prepare.label_maps import BACKGROUND
from phalanx.curation.prepare.samples import AnnotationSet, Instance, Sample
from phalanx.curation.prepare.tree import Tree, read_bytes
from phalanx.data import folders
from phalanx.data.checks import AnnotationError, check_size
from phalanx.data.shapes import polygon
from phalanx.data.voc import VocFile, VocObject, correct_sizes, read_voc_file


def read_voc(tree: Tree, found: AnnotationSet) -> None:
    """Add the samples of XML files with root `annotation`, by VOC's tools, roLabelImg, or LabelMe's web tool.

    The classes are in the order of PaddleDetection's label_list.txt, or of CVAT's labelmap.txt.
    """
    for path in tree.files:
        if path.name.lower() in ('label_list.txt', 'labelmap.txt'):
            names = read_class_file(path).names
            found.class_names = tuple(dict.fromkeys(name for name in names if name != BACKGROUND))
    files: dict[Path, VocFile] = {}
    for path in tree.having('.xml'):
        with found.left_out.catch():
            try:
                file = read_voc_file(path, read_bytes(path))
            except AnnotationError:
                found.dropped.update(tree.images_named(path.stem, path))
                raise
            if file is not None:
                files[path] = file
    corrected, exchanged = correct_sizes(files.values())
    if exchanged:
        found.notes.append(f'sizes with width and height exchanged, as the boxes show: {exchanged} or more')
    for path, file in zip(files, corrected, strict=True):
        with found.left_out.catch():
            own = f'{path.stem}{Path(file.name).suffix}'  # files get renamed without their content
            is_named = not tree.has_image(own) and (tree.has_image(file.name) or tree.has_stem(PurePosixPath(file.name).stem))
            image = tree.image(file.name if is_named else own, path, f'{path}')
            with found.dropping(image):
                size = check_size(file.size if any(file.size) else (None, None), image, f'{path}: size')
                instances = [_voc_instance(one, tree, path, size) for one in file.objects]
                found.samples.append(Sample(image, tree.split_of(path), tuple(instances)))
                for attributes in file.attributes:
                    found.count_attributes(attributes)


def _voc_instance(one: VocObject, tree: Tree, file: Path, size: tuple[int, int]) -> Instance:
    """Object with a box, a rotated one (roLabelImg, CVAT), or a polygon or bitmap (LabelMe's web tool)."""
    if one.box is None:
        mask = tree.image(f'{file.parent.name}/{one.mask}', file, one.where)
        return bitmap_instance(one.label, decode_png(read_bytes(mask), size, one.where), 0, 0, size, one.where)
    outline = (polygon(one.outline, size, one.where),) if one.outline else ()
    return Instance(one.label, one.box, outline, one.corners, ignored=one.difficult)


def parse_xml(tree: Tree, tag: str, found: AnnotationSet) -> list[tuple[Path, ElementTree.Element]]:
    """Parse the XML files whose root has the tag; files with other roots are not of this format."""
    files = []
    for path in tree.having('.xml'):
        with found.left_out.catch(), tree.doubting(path):
            root = folders.parse_xml(read_bytes(path), path)
            if root.tag == tag:
                files.append((path, root))
    return files
