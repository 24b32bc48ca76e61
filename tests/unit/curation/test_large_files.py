"""Memory that large annotation files take in `phalanx new`, counted in bytes, and lines that cells and texts break."""

import csv
import json
import os
import tracemalloc
from pathlib import Path

import pytest
from PIL import Image

import drawn
from phalanx.curation.prepare.csv_files import find_csv
from phalanx.curation.prepare.foreign import name_foreign
from phalanx.curation.prepare.formats import find_annotations
from phalanx.curation.prepare.samples import AnnotationSet
from phalanx.curation.prepare.tree import Tree, read_bytes
from phalanx.data.checks import AnnotationError


def found_in(folder: Path, name: str) -> AnnotationSet:
    return find_annotations(Tree(folder), [name])[name]


def peak_of(folder: Path, name: str) -> tuple[AnnotationSet, int]:
    """Annotations found in a folder, and the most bytes that the search held at once."""
    tracemalloc.start()
    try:
        return found_in(folder, name), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_boxes_of_a_csv_file_take_no_more_memory_than_its_text_and_the_objects(tmp_path: Path) -> None:
    lines, other = 8000, ',0' * 13  # as many columns as Open Images has
    drawn.draw(tmp_path / 'a.png', 1)
    rows = [f'a,x,/m/0k4j,1,0.1{n:04},0.5,0.25,0.75{other}' for n in range(lines)]
    header = 'ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax' + ''.join(f',Other{n}' for n in range(13))
    (tmp_path / 'boxes.csv').write_text('\n'.join([header, *rows]))
    found, peak = peak_of(tmp_path, 'csv')
    assert len(found.samples[0].instances) == lines
    # the text twice while it is decoded; an object is two tuples, of six and of four places, and four numbers
    assert peak / lines < 2 * len(rows[0]) + 500


def test_tables_take_as_much_memory_as_their_lines(tmp_path: Path) -> None:
    cell = {'tokens': list('a cell of forty characters and a micro \u00b5 '), 'bbox': [1, 2, 3, 4]}
    html = {'structure': {'tokens': ['<tr>', *['<td>', '</td>'] * 50, '</tr>']}, 'cells': [cell] * 50}
    names = [f'{n}.png' for n in range(40)]
    for name in names:
        drawn.draw(tmp_path / name, 1)
    lines = [json.dumps({'filename': name, 'split': 'train', 'html': html}, ensure_ascii=False) for name in names]
    (tmp_path / 'tables.jsonl').write_text('\n'.join(lines), encoding='utf-8')
    found, peak = peak_of(tmp_path, 'pubtabnet')
    assert [json.loads(sample.table or '') for sample in found.samples] == [html] * 40
    assert peak < 4 * sum(map(len, lines))


def test_lines_of_tables_in_utf_16_are_read(tmp_path: Path) -> None:
    drawn.draw(tmp_path / 'a.png', 1)
    line = json.dumps({'filename': 'a.png', 'html': '<table><tr><td>\u010a</td></tr></table>'}, ensure_ascii=False)
    (tmp_path / 'tables.jsonl').write_text(line, encoding='utf-16')  # of the letter, a byte is the end of a line in UTF-8
    (sample,) = found_in(tmp_path, 'pubtabnet').samples
    assert json.loads(sample.table or '')['cells'] == [{'tokens': ['\u010a']}]


@pytest.mark.parametrize(('name', 'mebibytes'), [('a.xml', 512), ('a.csv', 8192)])
def test_a_file_too_large_to_be_read_is_named_with_the_cure(name: str, mebibytes: int, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    os.truncate(tmp_path / name, (mebibytes << 20) + 1)  # sparse: takes no place on the disk
    with pytest.raises(AnnotationError, match=rf'{name}: has more than {mebibytes} MiB; split it into several files'):
        read_bytes(tmp_path / name)


def test_a_csv_file_that_ends_in_a_damaged_record_gives_no_boxes(tmp_path: Path) -> None:
    drawn.draw(tmp_path / 'a.png', 1)
    rows = ['image,xmin,ymin,xmax,ymax,label', *['a,1,2,5,4,cat'] * 1500, f'"a{"," * 200_000}']
    (tmp_path / 'boxes.csv').write_text('\n'.join(rows))
    found = AnnotationSet()
    find_csv(Tree(tmp_path), found)
    assert 'boxes.csv:1502: is not CSV: unexpected end of data' in found.left_out[0]
    assert found.by_image() == []


def test_a_text_in_csv_may_hold_ends_of_lines(tmp_path: Path) -> None:
    for name in 'abc':
        drawn.draw(tmp_path / f'{name}.png', 1)
    rows = ['filename,text', 'a.png,one\u2028two', '"b.png","three', 'four"', 'c.png,five', 'd.png,six']
    (tmp_path / 'texts.csv').write_text('\n'.join(rows), encoding='utf-8')
    found = found_in(tmp_path, 'csv')
    assert [sample.text for sample in found.samples] == ['one\u2028two', 'three\nfour', 'five']
    assert [why.partition('texts.csv')[2] for why in found.left_out] == [":6: there is no image 'd.png'"]


@pytest.mark.parametrize('after', ['', '"c.png","three"\n'])
def test_a_quote_that_is_not_closed_takes_no_other_lines_into_its_text(after: str, tmp_path: Path) -> None:
    for name in 'abc':
        drawn.draw(tmp_path / f'{name}.png', 1)
    (tmp_path / 'texts.csv').write_text(f'filename,text\na.png,"one\nb.png,two\n{after}')
    found = AnnotationSet()
    find_csv(Tree(tmp_path), found)
    assert (found.by_image(), len(found.left_out)) == ([], 1)
    assert f'{tmp_path}/texts.csv:2: is not CSV: ' in found.left_out[0]


def test_a_cell_of_csv_may_be_longer_than_the_limit_of_python(tmp_path: Path) -> None:
    Image.new('L', (512, 512)).save(tmp_path / 'a.png')
    pixels = ' '.join(f'{n} 1' for n in range(1, 512 * 512, 8))
    assert len(pixels) > 2**17
    (tmp_path / 'runs.csv').write_text(f'filename,rle\na.png,{pixels}\n')
    (instance,) = found_in(tmp_path, 'csv').samples[0].instances
    assert sum(shape.area for shape in instance.outline) == 512 * 512 / 8


def test_a_cell_of_label_studio_may_be_longer_than_the_limit_of_python(tmp_path: Path) -> None:
    drawn.draw(tmp_path / 'a.png', 1)
    points = [[10 + n % 100 / 10, 10 + n // 100 / 10] for n in range(10_000)]
    label = json.dumps([{'points': points, 'polygonlabels': ['cat'], 'original_width': 64, 'original_height': 48}])
    assert len(label) > 2**17
    with (tmp_path / 'export.csv').open('w', newline='') as file:
        csv.writer(file).writerows([['annotation_id', 'annotator', 'image', 'label'], ['1', '2', 'a.png', label]])
    (instance,) = found_in(tmp_path, 'label_studio').samples[0].instances
    assert (instance.label, len(instance.outline)) == ('cat', 1)


def test_the_tool_that_wrote_lines_is_known_by_the_first_one(tmp_path: Path) -> None:
    (tmp_path / 'list.jsonl').write_text('{"source-ref": "a.png"}\n' + '{"x": 1}\n' * 1_000_000)
    tree = Tree(tmp_path)
    tracemalloc.start()
    try:
        said, (_, peak) = name_foreign(tree), tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 'is a manifest of SageMaker Ground Truth' in said[0]
    assert peak < 1_000_000
