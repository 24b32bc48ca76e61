"""Labels that a model writes for annotation tools are those that the tools show, and are read back as they were written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np
import PIL.Image
import pytest
from numpy.testing import assert_array_equal

from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.label_maps import paint_labels
from phalanx.curation.prepare.tree import Tree
from phalanx.data.samples import Image, SampleError
from phalanx.deploy.pages import WRITERS
from phalanx.families.detection.draw import build_writers as boxes_of
from phalanx.families.segmentation.draw import build_writers as regions_of
from phalanx.families.segmentation.outlines import find_regions
from phalanx.runtime.results import Found, Line
from phalanx.system.errors import RequestError
from phalanx.system.paths import parse_path
from stores import Store

PICTURE = np.random.default_rng(0).integers(0, 256, (40, 60, 3), dtype=np.uint8)
CARS = [Found('road sign <€>', 1, 0.75, (1.25, 2.0, 30.5, 38.1256)), Found('car', 0, 0.25, (10.0, 10.0, 20.0, 20.0))]
QUAD = ((1.0, 2.0), (30.0, 2.0), (30.0, 9.5), (1.0, 9.5))


def image(file: Path, pixels: Image = PICTURE) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    PIL.Image.fromarray(pixels).save(file)
    return file


def test_labelme_gets_boxes_above_the_threshold_and_the_path_of_the_image(tmp_path: Path) -> None:
    """The keys are those that `read_label_file` of labelme 6.3.1 demands."""
    file = image(tmp_path / 'Fotos 1/a.jpg')
    (tmp_path / 'link').symlink_to(tmp_path / 'far/labels')
    (tmp_path / 'far/labels').mkdir(parents=True)
    for stem, path in ((file.with_suffix(''), 'a.jpg'), (tmp_path / 'link/a', '../../Fotos 1/a.jpg')):
        (written,) = boxes_of(shown_from=0.5).write(CARS, PICTURE, stem, ['labelme'], file)
        shape = {'label': 'road sign <€>', 'points': [[1.25, 2.0], [30.5, 38.126]], 'group_id': None, 'description': ''}
        assert json.loads(written.read_text(encoding='utf-8')) == {
            'version': '6.3.1',
            'flags': {},
            'shapes': [shape | {'shape_type': 'rectangle', 'flags': {}}],
            'imagePath': path,
            'imageData': None,
            'imageHeight': 40,
            'imageWidth': 60,
        }
        assert (written.resolve().parent / path).samefile(file)


def class_maps() -> Sequence[np.ndarray]:
    """Speckles and regions of three classes; a ring around a hole with an island; single pixels that touch at corners."""
    rng = np.random.default_rng(0)
    waves = [np.stack([cv2.GaussianBlur(wave, (0, 0), 2) for wave in rng.normal(size=(3, 40, 60))]).argmax(0) for _ in range(4)]
    ring = np.zeros((40, 60), np.uint8)
    for value, margin in ((2, 4), (0, 10), (1, 15)):
        ring[margin:-margin, margin:-margin] = value
    chess = np.indices((40, 60)).sum(0) % 2
    return [labels.astype(np.uint8) for labels in (*waves, rng.integers(0, 3, (40, 60)), ring, chess)]


@pytest.mark.parametrize('number', range(7))
def test_outlines_of_a_class_map_are_painted_as_the_map(tmp_path: Path, number: int) -> None:
    class_map = class_maps()[number]
    file = image(tmp_path / 'a.png')
    regions_of(['background', 'Straße', 'road sign']).write(class_map, PICTURE, tmp_path / 'a', ['labelme'], file)
    found = find_annotations(Tree(tmp_path))['labelme']
    assert not found.left_out + found.notes
    (sample,) = found.samples
    assert_array_equal(paint_labels(sample, ('background', 'Straße', 'road sign')), class_map)


def test_of_the_background_only_holes_are_written() -> None:
    """By hand: the ring is filled, its hole lies over it, the island over the hole; the background around it is left out."""
    regions = find_regions(class_maps()[5])
    assert [(region.label, region.is_inside) for region in regions] == [(0, False), (2, True), (0, True), (1, True)]
    corners = {(10.0, 10.0), (50.0, 10.0), (50.0, 30.0), (10.0, 30.0)}
    assert {tuple(point) for point in regions[2].outline.tolist()} == corners


def test_texts_go_to_labelme_and_to_the_cache_of_ppocrlabel(tmp_path: Path) -> None:
    file = image(tmp_path / 'Seiten ä/a.jpg')
    stem, texts = file.with_suffix(''), ('true "false" \\ null €', '')
    WRITERS.write([], PICTURE, stem, ['ppocrlabel'], file)
    lines = [Line(text, 0.9, 0.9, QUAD) for text in texts]
    _, cache = WRITERS.write(lines, PICTURE, stem, ['labelme', 'ppocrlabel'], file)
    assert cache == tmp_path / 'Seiten ä/Cache.cach'
    found = find_annotations(Tree(tmp_path))['labelme']
    assert [(one.label, one.text) for one in found.samples[0].instances] == [('text', texts[0]), ('text', None)]
    # as `loadLabelFile` of PPOCRLabel 3.1.6, which takes the last line of an image
    read = {}
    for row in cache.read_text(encoding='utf-8').splitlines():
        name, label = row.split('\t')
        read[name] = eval(label.replace('false', 'False').replace('true', 'True').replace('null', 'None'))  # noqa: S307
    points = [[1.0, 2.0], [30.0, 2.0], [30.0, 9.5], [1.0, 9.5]]
    written = [{'transcription': text, 'points': points} for text in (texts[0], 'TEMPORARY')]
    assert read == {'Seiten ä/a.jpg': written}


def test_corrected_labels_are_kept(tmp_path: Path) -> None:
    file, writers = image(tmp_path / 'a.png'), boxes_of(shown_from=0.5)
    for way, ending in (('labelme', '.json'), ('voc', '.xml')):
        for _ in range(2):  # the same labels again
            (written,) = writers.write(CARS, PICTURE, tmp_path / 'a', [way], file)
        assert written == tmp_path / f'a{ending}'
        written.write_text('corrected')
        with pytest.raises(SampleError, match=rf'a{ending}: exists and may have been corrected; remove it'):
            writers.write(CARS, PICTURE, tmp_path / 'a', [way], file)
        assert written.read_text() == 'corrected'


def test_an_image_without_a_file_of_its_own_lies_beside_its_labels(tmp_path: Path, store: Store) -> None:
    image(tmp_path / 'set/c.png')
    store.put(tmp_path / 'set', 'tests/set')
    writers, out = boxes_of(shown_from=0.5), tmp_path / 'out'
    out.mkdir()
    picture, _ = writers.write(CARS, PICTURE, out / 'clip-000001', ['labelme'])
    copy, _ = writers.write(CARS, PICTURE, out / 'c', ['labelme'], parse_path('s3://tests/set/c.png'))
    assert [picture.name, copy.name] == ['clip-000001.jpg', 'c.png']
    assert copy.read_bytes() == (tmp_path / 'set/c.png').read_bytes()
    samples = find_annotations(Tree(out))['labelme'].samples
    assert [sample.image for sample in samples] == [copy, picture]


def test_two_formats_of_one_name_are_refused() -> None:
    with pytest.raises(RequestError, match='json and labelme are files of the same name'):
        boxes_of(shown_from=0.5).check(['json', 'labelme'])
    with pytest.raises(RequestError, match="'mask' is not one of masks, json, pictures, labelme"):
        regions_of(['road']).check(['mask'])
