"""Pages are read: texts are found, cut out, read, put in order, and written as JSON, text, hOCR and a picture."""

from __future__ import annotations

import json
import math
import random
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import PIL.Image
import pytest

import phalanx
from phalanx.data.samples import Draw, Image
from phalanx.deploy.pages import as_hocr, as_picture, as_text, draw_page
from phalanx.runtime import Line, Reading, TextRegion, lines_of, rows_of
from phalanx.runtime.reading import angle_of, cut_out, find_within
from phalanx.runtime.text_detection import quad
from running import run_here

KEPT = 'reading.jsonl', 'reading.html'  # journal and summary of the pages


def box(x0: float, y0: float, x1: float, y1: float) -> tuple[tuple[float, float], ...]:
    return (x0, y0), (x1, y0), (x1, y1), (x0, y1)


def spans(file: Path, kind: str) -> list[ET.Element]:
    """The elements of a kind in a file of hOCR."""
    return [each for each in ET.parse(file).iter('{http://www.w3.org/1999/xhtml}span') if each.get('class') == kind]


def line(text: str, *where: float) -> Line:
    return Line(text, 0.9, 0.8, box(*where))


def test_texts_are_found_read_and_put_in_order(det: Path, rec: Path, page: Image) -> None:
    lines = phalanx.read(page, det=det, rec=rec)
    assert [line.text for line in lines] == ['ba', 'a', 'b']
    np.testing.assert_allclose(lines[0].points, box(20, 20, 99, 39), atol=1)
    assert [line.score for line in lines] == pytest.approx([0.65, 0.8, 0.5], abs=0.02)
    assert all(line.confidence > 0.9 for line in lines)


def test_files_and_pictures_show_the_texts(
    det: Path, rec: Path, page: Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    PIL.Image.fromarray(page).save(tmp_path / 'page.png')
    (tmp_path / 'bad.png').write_bytes(b'no image')
    words = [str(tmp_path / 'page.png'), str(tmp_path / 'bad.png'), '--det', str(det), '--rec', str(rec)]
    out = tmp_path / 'texts'
    assert run_here('read', *words, '--out', str(out)) == 1
    printed = capsys.readouterr()
    assert '3 lines on 1 page' in printed.out
    assert '1 page could not be read' in printed.out
    assert 'skipped: ' in printed.err
    assert 'bad.png' in printed.err
    assert {file.name for file in out.iterdir()} == {'page.json', 'page.txt', 'page.hocr', 'page_read.jpg', *KEPT}
    assert (out / 'page.txt').read_text() == 'ba\ta\nb\t\n'
    assert [row['text'] for row in json.loads((out / 'page.json').read_text())] == ['ba', 'a', 'b']
    with PIL.Image.open(out / 'page_read.jpg') as picture:
        assert picture.size == (600, 200)
    assert run_here('read', words[0], *words[2:], '--out', str(tmp_path / 'alone'), '--save', 'text') == 0
    assert {file.name for file in (tmp_path / 'alone').iterdir()} == {'page.txt', *KEPT}


def test_the_picture_of_a_large_page_is_reduced_by_an_integer(tmp_path: Path) -> None:
    """2100 pixels are halved, and so is the place of the text."""
    page = np.full((300, 2100, 3), 255, np.uint8)
    line = Line('a', 0.9, 0.9, ((1000.0, 100.0), (1400.0, 100.0), (1400.0, 200.0), (1000.0, 200.0)))
    (file,) = as_picture([line], page, tmp_path / 'page')
    with PIL.Image.open(file) as picture:
        assert picture.size == (2 * 1050, 150)
        changed = np.argwhere(np.asarray(picture.convert('L'))[:, :1050] < 200)
    assert np.allclose(changed.min(0), (50, 500), atol=4) and np.allclose(changed.max(0), (100, 700), atol=4)


@pytest.mark.parametrize(
    ('words', 'reason'),
    [
        (
            ('--det', 'rec.onnx', '--rec', 'rec.onnx'),
            '--det rec.onnx: is a model for recognition, and text_detection is needed',
        ),
        (
            ('--det', 'det.onnx', '--rec', 'det.onnx'),
            '--rec det.onnx: is a model for text_detection, and recognition is needed',
        ),
        (('--det', 'det.onnx', '--rec', 'rec.onnx', '--save', 'json,docx'), "'docx' is not one of json, text, hocr, picture"),
        (('--det', 'det.onnx', '--rec', 'rec.onnx', '--threshold', '2'), 'a confidence is between 0 and 1, got 2'),
        (('--det', 'absent', '--rec', 'rec.onnx'), 'absent: no such file or shipped recipe'),
    ],
)
def test_a_model_that_cannot_read_is_refused_with_the_reason(
    words: tuple[str, ...],
    reason: str,
    det: Path,
    rec: Path,
    page: Image,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    PIL.Image.fromarray(page).save('page.png')
    assert run_here('read', 'page.png', *words, '--out', 'texts') == 2
    assert reason in capsys.readouterr().err
    assert not Path('texts').exists()


def test_rows_go_from_the_top_and_each_from_the_left() -> None:
    """A row may slope, and its texts may differ in height; the next row begins where a middle is a quarter further down."""
    lines = [line('right', 200, 12, 260, 32), line('below', 20, 40, 80, 60), line('left', 20, 10, 80, 30)]
    lines += [line('small', 100, 14, 120, 26), line('apart', 100, 51, 160, 71), line('under', 30, 46, 70, 66)]
    assert [[each.text for each in row] for row in rows_of(lines)] == [
        ['left', 'small', 'right'],
        ['below'],
        ['under', 'apart'],
    ]


def test_rows_of_a_curled_page_stay_whole() -> None:
    """Three texts of 20 pixels per row, whose middle ones are 9 pixels lower: rows are 40 pixels apart."""
    rows = [
        [line(f'{n}{x}', x, 40 * n + sag, x + 80, 40 * n + sag + 20) for x, sag in ((0, 0), (200, 9), (400, 0))] for n in (1, 2)
    ]
    assert rows_of([text for row in rows for text in row]) == rows


@pytest.mark.parametrize('quarter', [0, 90, 180, 270])
@pytest.mark.parametrize('degrees', [-20, -7, -2, 0, 1, 3, 8, 20])
def test_rows_follow_the_slope_of_the_lines(degrees: int, quarter: int) -> None:
    """A delivery note: quantity, article and price of five rows, turned about the upper left corner of the page."""
    angle = math.radians(degrees + quarter)
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    expected = [[f'{row} {column}' for column in range(3)] for row in range(5)]
    lines = []
    for row, names in enumerate(expected):
        for name, (left, width) in zip(names, ((20, 30), (150, 400), (900, 80)), strict=True):
            corners = np.array(box(left, 40 * row, left + width, 40 * row + 24)) @ turn
            lines.append(Line(name, 1.0, 1.0, tuple((float(x), float(y)) for x, y in corners)))
    random.Random(degrees).shuffle(lines)
    assert [[each.text for each in row] for row in rows_of(lines)] == expected


def test_rows_of_a_page_upside_down_stay_whole_where_rectangles_slant_by_chance() -> None:
    """Corners that PP-OCRv4 gave for a page turned by exactly 180 degrees: the short texts seem to slope by 3 degrees."""
    rows = {
        'three': [
            ((1255, 739), (1147, 733), (1149, 682), (1258, 687)),
            ((952, 738), (754, 736), (754, 691), (953, 694)),
            ((405, 737), (317, 737), (317, 693), (405, 693)),
        ],
        'seven': [
            ((1256, 628), (1147, 623), (1149, 573), (1257, 577)),
            ((951, 625), (677, 623), (677, 582), (952, 584)),
            ((404, 627), (295, 625), (296, 581), (405, 584)),
        ],
        'one': [
            ((1252, 407), (1165, 401), (1168, 353), (1255, 359)),
            ((951, 406), (738, 403), (738, 362), (952, 365)),
            ((403, 406), (273, 406), (273, 364), (403, 364)),
        ],
    }
    lines = [Line(name, 1.0, 1.0, points) for name, row in rows.items() for points in row]
    assert [[each.text for each in row] for row in rows_of(lines)] == [[name] * 3 for name in rows]


def test_empty_cells_of_a_table_stay_tabs(page: Image, tmp_path: Path) -> None:
    """Quantity, article and price; a title above stays as it is, and a line across all columns ends the table.

    Every row of the table has all columns, also where the last ones are empty.
    """
    lines = [line('Note', 110, 0, 200, 20), line('3', 10, 40, 30, 60), line('bolt', 100, 40, 300, 60)]
    lines += [line('9.5', 400, 40, 440, 60), line('nut', 100, 80, 180, 100), line('4.2', 400, 80, 440, 100)]
    lines += [line('(galvanised)', 100, 120, 250, 140), line('7', 10, 160, 30, 180), line('1.1', 400, 160, 440, 180)]
    lines += [line('delivered without packaging', 10, 200, 430, 220)]
    (file,) = as_text(lines, page, tmp_path / 'a')
    assert file.read_text().splitlines() == [
        *('Note', '3\tbolt\t9.5', '\tnut\t4.2', '\t(galvanised)\t', '7\t\t1.1', 'delivered without packaging')
    ]


def test_columns_of_prose_are_read_one_after_the_other() -> None:
    """Two columns of five and four lines below a title, and a footer across both."""
    left = [line(f'left {n}', 20, 40 + 30 * n, 320 if n < 4 else 90, 60 + 30 * n) for n in range(5)]
    right = [line(f'right {n}', 360, 41 + 30 * n, 660 - n, 61 + 30 * n) for n in range(4)]
    title, footer = line('title', 200, 0, 500, 24), line('footer', 20, 400, 660, 420)
    ordered = [title, *left, *right, footer]
    assert rows_of(sorted(ordered, key=lambda each: each.points[0][::-1])) == [[each] for each in ordered]


@pytest.mark.parametrize('quarter', [0, 1, 2, 3])
def test_a_page_on_its_side_is_read_like_an_upright_one(quarter: int) -> None:
    """Lines brighter towards their end, found where the page is not black, and read with confidence only that way round."""
    upright = np.zeros((60, 120, 3), np.uint8)
    upright[10:20, 10:50] = np.linspace(50, 150, 40)[None, :, None]
    upright[40:50, 10:110] = np.linspace(50, 250, 100)[None, :, None]

    def find(page: Image) -> list[TextRegion]:
        contours, _ = cv2.findContours((page[..., 0] > 20).astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        places = [cv2.boundingRect(contour) for contour in contours]
        return [TextRegion(points=box(x, y, x + width, y + height), score=0.8) for x, y, width, height in places]

    def recognise(cuts: Sequence[Image]) -> list[Reading]:
        sure = [cut[:, -5:].mean() > cut[:, :5].mean() for cut in cuts]
        return [Reading(f'{cut.shape[1]}', 0.95 if good else 0.1) for cut, good in zip(cuts, sure, strict=True)]

    page = np.ascontiguousarray(np.rot90(upright, -quarter))
    first, second = lines_of(page, find, recognise)
    assert [(line.text, line.confidence) for line in (first, second)] == [('40', 0.95), ('100', 0.95)]
    assert (
        first.points[0] == {0: (10, 10), 1: (50, 10), 2: (110, 50), 3: (10, 110)}[quarter]
    )  # the upper left corner of the first line
    assert [[line.text for line in row] for row in rows_of([second, first])] == [['40'], ['100']]


def test_single_lines_upside_down_are_read_on_request() -> None:
    """A line that becomes brighter towards its end, and one upside down; each has its confidence only one way round."""
    page = np.zeros((60, 120, 3), np.uint8)
    page[10:20, 10:50] = np.linspace(150, 50, 40)[None, :, None]
    page[40:50, 10:110] = np.linspace(50, 250, 100)[None, :, None]
    places = (10, 10, 50, 20), (10, 40, 110, 50)

    def recognise(cuts: Sequence[Image]) -> list[Reading]:
        sure = [cut[:, -5:].mean() > cut[:, :5].mean() for cut in cuts]
        return [Reading(f'{cut.shape[1]}', 0.95 if good else 0.6) for cut, good in zip(cuts, sure, strict=True)]

    def read(**options: Any) -> list[Line]:
        regions = [TextRegion(points=box(*place), score=0.8) for place in places]
        return lines_of(page, lambda _: regions, recognise, **options)

    assert [(each.text, each.confidence) for each in read()] == [('40', 0.6), ('100', 0.95)]
    assert read(classify=lambda cuts: [0.4] * len(cuts)) == read()
    # A classifier that calls both lines upside down: the higher confidence counts.
    for options in ({'upside_down': True}, {'classify': lambda cuts: [0.6] * len(cuts)}):
        first, second = read(**options)
        assert [(each.text, each.confidence) for each in (first, second)] == [('40', 0.95), ('100', 0.95)]
        assert first.points == ((50, 20), (10, 20), (10, 10), (50, 10))


def test_a_line_of_a_page_is_cut_out_by_its_corners() -> None:
    """A line that is turned by a quarter, from the upper left of its text clockwise."""
    page = np.zeros((40, 40, 3), np.uint8)
    page[5:35, 10:20] = np.arange(30, dtype=np.uint8)[:, None, None] * 8
    cut = cut_out(page, ((10, 35), (10, 5), (20, 5), (20, 35)))
    assert cut.shape == (10, 30, 3)
    assert (np.diff(cut[5, 1:-1, 0].astype(int)) < 0).all()  # it reads from the bottom of the page to its top
    upright = cut_out(page, box(10, 5, 20, 12))
    np.testing.assert_array_equal(upright[1:-1, 1:-1], page[6:11, 11:19])


def test_of_a_curved_outline_the_rectangle_around_it_is_cut_out() -> None:
    page = np.random.default_rng(0).integers(0, 256, (60, 120, 3), np.uint8)
    cut = cut_out(page, ((10, 20), (50, 10), (90, 20), (90, 40), (50, 30), (10, 40)))
    np.testing.assert_array_equal(cut[2:-2, 2:-2], page[12:38, 12:88])


@pytest.mark.parametrize('degrees', [-80, -60, -30, 0, 30, 60, 80])
def test_a_line_that_is_turned_by_less_than_a_quarter_is_read_from_its_beginning(degrees: float) -> None:
    """A strip of 120 x 20 that becomes brighter along its length, found on the page as a network's map would show it."""
    strip = np.repeat(np.linspace(60, 250, 120).round().astype(np.uint8)[None, :, None], 20, 0).repeat(3, 2)
    turn = cv2.getRotationMatrix2D((60, 10), degrees, 1)
    turn[:, 2] += (40, 90)
    page = cv2.warpAffine(strip, turn, (200, 200))
    (contour,), _ = cv2.findContours((page[..., 0] > 0).astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    corners = quad(contour, 3)
    assert corners is not None
    points = tuple((float(x), float(y)) for x, y in corners)
    cut = cut_out(page, points)
    assert cut.shape[:2] == (pytest.approx(20, abs=3), pytest.approx(120, abs=3))
    along = cut[4:-4, 6:-6, 0].mean(0)
    assert (np.diff(along[::4]) > 0).all()
    assert angle_of(points) == pytest.approx(degrees, abs=2)


@pytest.mark.parametrize('quarter', [0, 1])
def test_a_strip_gets_margins_and_is_one_line_where_the_detector_finds_none(quarter: int) -> None:
    """A strip of 80 x 4 gets margins of 28 pixels along both longer sides, so that it is 60 wide."""
    strip = np.rot90(np.full((4, 80, 3), 200, np.uint8), quarter)
    H, W = strip.shape[:2]
    seen: list[tuple[int, ...]] = []

    def nothing(page: Image) -> list[TextRegion]:
        seen.append(page.shape[:2])
        return []

    assert [region.points for region in find_within(strip, nothing, 4000)] == [box(0, 0, W, H)]
    assert seen == [(60, 80) if quarter == 0 else (80, 60)]
    x, y = (20, 28) if quarter == 0 else (28, 20)  # in the page with margins
    found = TextRegion(0.9, box(x, y, x + W // 2, y + H // 2))
    in_margin = TextRegion(0.9, box(0, 0, W + 10, 20) if quarter == 0 else box(0, 0, 20, H + 10))
    place = box(20, 0, 20 + W // 2, H // 2) if quarter == 0 else box(0, 20, W // 2, 20 + H // 2)
    assert find_within(strip, lambda page: [found, in_margin], 4000) == [TextRegion(0.9, place)]
    assert find_within(np.full((60, 80, 3), 200, np.uint8), nothing, 4000) == []


def test_hocr_has_the_angle_of_a_text(page: Image, tmp_path: Path) -> None:
    """Counter-clockwise, as hOCR counts: 45 degrees upwards, and 270 for a text that goes from top to bottom."""
    rising = Line('up', 0.9, 0.8, ((10.0, 60.0), (60.0, 10.0), (70.0, 20.0), (20.0, 70.0)))
    (file,) = as_hocr([rising, line('down', 0, 0, 10, 60), line('level', 0, 0, 60, 10)], page, tmp_path / 'a')
    titles = {''.join(each.itertext()): each.get('title', '').partition('; textangle ')[2] for each in spans(file, 'ocr_line')}
    assert titles == {'up': '45', 'down': '270', 'level': ''}


def test_hocr_has_the_words_of_a_line_which_tools_lay_over_a_scan(page: Image, tmp_path: Path) -> None:
    """Boxes by hand: nine characters in 90 pixels, along the line, which may go down the page."""
    (file,) = as_hocr([line('ab cde fg', 10, 20, 100, 40), line('ab cde fg', 10, 20, 30, 110)], page, tmp_path / 'a')
    assert [(word.text, word.get('title')) for word in spans(file, 'ocrx_word')] == [
        ('ab', 'bbox 10 20 30 40; x_wconf 90'),
        ('cde', 'bbox 40 20 70 40; x_wconf 90'),
        ('fg', 'bbox 80 20 100 40; x_wconf 90'),
        ('ab', 'bbox 10 20 30 40; x_wconf 90'),
        ('cde', 'bbox 10 50 30 80; x_wconf 90'),
        ('fg', 'bbox 10 90 30 110; x_wconf 90'),
    ]


def test_hocr_escapes_texts(page: Image, tmp_path: Path) -> None:
    (file,) = as_hocr([line('a < b & "c"', 20, 20, 99, 39)], page, tmp_path / 'a"b')
    (found,) = spans(file, 'ocr_line')
    assert ''.join(found.itertext()) == 'a < b & "c"'
    assert found.get('title') == 'bbox 20 20 99 39'


def test_texts_stand_beside_the_page_where_they_were_found(page: Image) -> None:
    beside = draw_page(page, [line('abc', 20, 120, 100, 150)])[:, 300:]
    rows, columns = np.nonzero(beside.min(2) < 128)
    assert 120 <= rows.min() <= rows.max() <= 150
    assert 20 <= columns.min() <= columns.max() <= 100


@pytest.mark.skipif(
    find_spec('rapidocr_onnxruntime') is None, reason='rapidocr_onnxruntime, which has the weights, is not here'
)
def test_published_weights_read_a_page_as_rapidocr_does(tmp_path: Path) -> None:
    """PP-OCRv4, line by line: in a batch, rapidocr fills up each line to the longest one, and reads some differently."""
    import rapidocr_onnxruntime

    from phalanx.families.text_detection.data.drawn_pages import DrawnPages

    models = Path(rapidocr_onnxruntime.__file__).parent / 'models'
    read = phalanx.Reader(*(models / f'ch_PP-OCRv4_{part}_infer.onnx' for part in ('det', 'rec')))
    rapid = rapidocr_onnxruntime.RapidOCR(rec_batch_num=1)
    pages = DrawnPages(page_size=(640, 640), lines=(8, 12)).split('eval')
    for index in range(2):
        page, _ = pages.read(Draw(index))
        theirs, _ = rapid(np.ascontiguousarray(page[..., ::-1]), use_cls=False)
        ours = {each.points: each.text for each in read(page)}
        assert ours == {tuple((float(x), float(y)) for x, y in corners): text for corners, text, _ in theirs}
        assert len(ours) > 3
        read.upside_down = True
        turned = read(np.ascontiguousarray(page[::-1, ::-1]))
        read.upside_down = False
        assert [each.text for each in turned] == [each.text for each in read(page)]
