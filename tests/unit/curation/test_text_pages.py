"""Lines of pages as programs lay them out, smaller: kraken 7.1.1 (PAGE-XML, ALTO, hOCR), Tesseract 5.3.0 (ALTO, hOCR, boxes),
docTR 1.1.0 (hOCR), OCR-D (words of PAGE-XML), docWorks and Gallica (units and hyphens of ALTO), Transkribus (its unit), and
pero-ocr 0.7.0 (words of ALTO that touch)."""

import re
from pathlib import Path

import cv2
import numpy as np
import pytest

import drawn
from phalanx.curation.prepare.formats import choose_format, find_annotations
from phalanx.curation.prepare.samples import AnnotationSet, LeftOut
from phalanx.curation.prepare.targets import write
from phalanx.curation.prepare.tree import Tree

PAGE_XML = """<?xml version="1.0" encoding="UTF-8"?>
<PcGts xmlns="http://schema.primaresearch.org/PAGE/gts/pagecontent/2019-07-15">
<Metadata><Creator>kraken 7.1.1</Creator></Metadata>
<Page imageFilename="images/page.png" imageWidth="80" imageHeight="60"><TextRegion id="r0">
<Coords points="4,4 70,4 70,50 4,50"/>{}</TextRegion></Page></PcGts>"""
LINE = '<TextLine id="l0"><Coords points="5,6 60,6 60,20 5,20"/>{}</TextLine>'
TEXT = '<TextEquiv{}><Unicode>{}</Unicode></TextEquiv>'
ALTO = """<?xml version="1.0" encoding="UTF-8"?>
<alto xmlns="http://www.loc.gov/standards/alto/ns-v3#"><Description><MeasurementUnit>{unit}</MeasurementUnit>
<sourceImageInformation><fileName>{name}</fileName></sourceImageInformation></Description>
<Layout><Page WIDTH="{width}" HEIGHT="{height}" PHYSICAL_IMG_NR="0" ID="page_0"><PrintSpace>
<ComposedBlock><TextBlock ID="block_0">
{lines}</TextBlock></ComposedBlock></PrintSpace></Page></Layout></alto>"""
ALTO_LINE = '<TextLine ID="line_0" HPOS="5" VPOS="6" WIDTH="55" HEIGHT="14">{}</TextLine>'
STRING = '<String CONTENT="{}" HPOS="{}" VPOS="6" WIDTH="{}" HEIGHT="14"/>'
HOCR = """<?xml version="1.0" encoding="UTF-8"?>
<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Transitional//EN" "http://www.w3.org/TR/xhtml1/DTD/xhtml1-transitional.dtd">
<html xmlns="http://www.w3.org/1999/xhtml"><head><title></title><meta name='ocr-system' content='tesseract 5.3.0' /></head>
<body>
<div class='ocr_page' id='page_1' title='image "{}"; bbox 0 0 80 60; ppageno 0; scan_res 70 70'>
 <div class='ocr_carea' id='block_1_1' title="bbox 5 6 60 20"><p class='ocr_par' id='par_1_1' lang='eng' title="bbox 5 6 60 20">
{}</p></div></div></body></html>"""
HOCR_LINE = """<span class='ocr_header' id='line_1_1' title="bbox 5 6 60 20; baseline 0 -5; x_size 24; x_descenders 5">
 <span class='ocrx_word' id='word_1_1' title='bbox 5 6 30 20; x_wconf 96'><strong>&quot;a&quot;</strong></span>
 <span class='ocrx_word' id='word_1_2' title='bbox 40 6 60 20; x_wconf 96'>&amp;</span></span>"""


def alto(lines: str, unit: str = 'pixel', name: str = 'page.png', size: tuple[int, int] = (80, 60)) -> str:
    return ALTO.format(lines=lines, unit=unit, name=name, width=size[0], height=size[1])


def find(
    root: Path, files: dict[str, str], image: str = 'images/page.png'
) -> tuple[dict[str, AnnotationSet], dict[str, LeftOut]]:
    drawn.draw(root / image, 0, (80, 60))
    for name, content in files.items():
        drawn.write(root / name, content)
    refused: dict[str, LeftOut] = {}
    return find_annotations(Tree(root), refused=refused), refused


@pytest.mark.parametrize(
    ('name', 'content', 'text'),
    [
        ('page.xml', PAGE_XML.format(LINE.format(TEXT.format('', 'a &amp; b\n'))), 'a & b'),
        (
            'x.xml',
            PAGE_XML.format(LINE.format(TEXT.format(' index="1" conf="0.9"', 'ab') + TEXT.format(' index="0"', 'a b'))),
            'a b',
        ),
        (
            'page.xml',  # words of OCR-D, of which the last touches
            PAGE_XML.format(
                LINE.format(
                    ''.join(
                        f'<Word><Coords points="{x0},6 {x1},6 {x1},20 {x0},20"/>{TEXT.format("", text)}</Word>'
                        for x0, x1, text in ((5, 20, 'a'), (30, 50, 'b'), (50, 60, '.'))
                    )
                )
            ),
            'a b.',
        ),
        ('page.xml', PAGE_XML.replace('images/page.png', 'tmp_4711.png').format(LINE.format(TEXT.format('', 'a'))), 'a'),
        ('page.xml', alto(ALTO_LINE.format(STRING.format('a', 5, 20) + '<SP/>' + STRING.format('b', 30, 20))), 'a b'),
        (
            'page.xml',
            alto(ALTO_LINE.format(STRING.format('a', 5, 20) + STRING.format('b', 30, 20) + STRING.format('.', 50, 9))),
            'a b.',
        ),
        ('page.xml', alto(ALTO_LINE.format(STRING.format('Disgra-', 5, 40) + '<HYP CONTENT="-"/>'), name='-'), 'Disgra-'),
        ('page.xml', alto(ALTO_LINE.format(STRING.format('Disgra', 5, 40) + '<HYP CONTENT="\u00ad"/>')), 'Disgra-'),
        ('page.xml', alto(ALTO_LINE.format(STRING.format('a', 5, 20)), unit='mm10'), 'a'),  # Transkribus: pixels
        ('page.xml', alto(ALTO_LINE.format(STRING.format('ab', 5, 20) + STRING.format('c', 25, 20))), 'ab c'),
        ('page.hocr', HOCR.replace('image "{}"', 'image').format(re.sub(r'\s*\n\s*', '', HOCR_LINE)), '"a" &'),
        ('page.hocr', HOCR.format('page.png', HOCR_LINE), '"a" &'),
        ('a.html', HOCR.format('/data/page.png', HOCR_LINE), '"a" &'),
    ],
)
def test_lines_are_read(tmp_path: Path, name: str, content: str, text: str) -> None:
    held, refused = find(tmp_path, {name: content})
    ((_, found),) = held.items()
    (sample,) = found.samples
    assert [(one.text, one.box, one.ignored) for one in sample.instances] == [(text, (5, 6, 60, 20), False)]
    assert found.families()[:2] == ['recognition', 'text_detection']
    assert not found.left_out
    assert not refused


def test_other_units_are_scaled_by_the_size_of_the_page(tmp_path: Path) -> None:
    line = '<TextLine ID="l" HPOS="20" VPOS="24" WIDTH="220" HEIGHT="56">' + STRING.format('a', 20, 80) + '</TextLine>'
    held, _ = find(tmp_path / 'a', {'page.xml': alto(line, 'inch1200', size=(320, 240))})
    assert held['alto'].samples[0].instances[0].box == (5, 6, 60, 20)
    _, refused = find(tmp_path / 'b', {'page.xml': alto(line, 'mm10', size=(320, 300))})
    assert 'measured in mm10, on a page of 320 x 300' in refused['alto'][0]


def test_lines_without_text_and_texts_without_lines(tmp_path: Path) -> None:
    """Lines are there for detection; a region of text that is not divided is not taken for background."""
    region = f'<TextRegion id="r1"><Coords points="4,52 70,52 70,58 4,58"/>{TEXT.format("", "two lines")}</TextRegion>'
    held, _ = find(tmp_path, {'page.xml': PAGE_XML.replace('</Page>', f'{region}</Page>').format(LINE.format(''))})
    assert [(one.text, one.ignored) for one in held['page_xml'].samples[0].instances] == [('', False), ('two lines', True)]
    assert held['page_xml'].families()[0] == 'recognition'


@pytest.mark.parametrize(
    'content',
    [
        'WordStr 5 40 60 54 0 #a #1\n\t 61 40 65 54 0\n',  # wordstrbox
        'a 5 40 60 54 0\n  5 40 60 54 0\n# 5 40 60 54 0\n1 5 40 60 54 0\n\t 5 40 60 54 0\n',  # lstmbox
        'a 5 40 20 54 0\n  20 40 30 54 0\n# 30 42 44 54 0\n1 46 42 60 54 0\n\t 80 60 81 61 0\n',  # text2image
    ],
)
def test_boxes_of_tesseract_are_read(tmp_path: Path, content: str) -> None:
    held, _ = find(tmp_path, {'images/page.box': content})
    (line,) = held['tesseract_boxes'].samples[0].instances
    assert (line.text, line.box) == ('a #1', (5, 6, 60, 20))


@pytest.mark.parametrize(
    ('files', 'reason'),
    [
        ({'page.xml': PAGE_XML.format('')}, 'has regions, but not one line'),
        (
            {'page.xml': PAGE_XML.format('<TextLine id="l"><Baseline points="5,18 60,18"/></TextLine>')},
            'TextLine l: has no outline',
        ),
        ({'page.xml': PAGE_XML.format(LINE.format('')).replace('imageWidth="80"', 'imageWidth="90"')}, 'for 90 x 60 pixels'),
        (
            {'a/page.xml': PAGE_XML.format(LINE.format('')), 'b/page.xml': PAGE_XML.format(LINE.format(''))},
            'keep one of the files',
        ),
        ({'multi.xml': PAGE_XML.format('').replace('images/page', 'else')}, 'there is no image'),
        ({'page.xml': alto('').replace('</Layout>', '<Page WIDTH="80" HEIGHT="60"/></Layout>')}, 'has several pages'),
        ({'page.box': 'a 5 40 20 54 0\nb 22 40 30 54 0\n'}, 'write lines with wordstrbox'),
        ({'page.box': 'WordStr 5 40 60 54 1 #a\n'}, 'is about page 2'),
        ({'page.hocr': HOCR.format('page.png', '<span class="ocrx_word">a</span>')}, 'has text outside of lines'),
        ({'page.hocr': HOCR.format('page.png', "<span class='ocrx_cinfo' id='lstm_choices_1_1_1'>")}, 'several texts'),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, files: dict[str, str], reason: str) -> None:
    held, refused = find(tmp_path, files)
    assert not held
    assert any(reason in problem for problem in (*refused.values(),)[0])


def test_lines_are_cut_out_upright(tmp_path: Path) -> None:
    """Slanted, with outlines that begin anywhere, in either direction: dark above, light below; a short text by its box."""
    image = np.full((60, 80, 3), 128, np.uint8)
    cv2.fillConvexPoly(image, np.array([[10, 10], [70, 20], [69, 26], [9, 16]]), (0, 0, 0))
    cv2.fillConvexPoly(image, np.array([[9, 17], [69, 27], [68, 33], [8, 23]]), (255, 255, 255))
    outlines = ('8,23 68,33 70,20 10,10', '10,10 8,23 68,33 70,20', '70,20 40,15 10,10 8,23 68,33')
    outlines += ('40,36 48,42 56,52 48,58 38,50',)
    lines = ''.join(
        LINE.replace('5,6 60,6 60,20 5,20', points).format(TEXT.format('', f'a{number}'))
        for number, points in enumerate(outlines)
    )
    held, _ = find(tmp_path, {'page.xml': PAGE_XML.format(lines)})
    cv2.imwrite(str(tmp_path / 'images/page.png'), image)
    picked = choose_format(held, 'recognition')
    assert picked is not None
    (tmp_path / 'out').mkdir()
    samples = picked[1].samples
    write('recognition', picked[1], {'train': samples, 'val': samples}, tmp_path / 'out', meaning=None)
    cut = [cv2.imread(str(path)) for path in sorted((tmp_path / 'out/lines').glob('*_[012].png'))]
    assert len(cut) == 6
    assert {cv2.imread(str(path)).shape for path in (tmp_path / 'out/lines').glob('*_3.png')} == {(22, 18, 3)}
    for one in cut:
        assert one.shape[1] > 4 * one.shape[0]
        assert one[1:5, 10:50].mean() < 60
        assert one[-5:-1, 10:50].mean() > 195


@pytest.mark.parametrize('turns', [0, 1, 2, 3])
@pytest.mark.parametrize('kind', ['page.hocr', 'page.xml', 'ROTATION', 'orientation'])
def test_turned_lines_are_cut_out_as_they_are_read(tmp_path: Path, turns: int, kind: str) -> None:
    """Angles of Tesseract 5.3.0 (textangle) and baselines of 5.5.4 for a page turned counter-clockwise: its start is dark."""
    image = np.full((60, 80, 3), 128, np.uint8)
    image[10:20, 10:30], image[10:20, 30:60] = 0, 255
    drawn.draw(tmp_path / 'images/page.png', 0)
    turned = np.rot90(image, turns)
    rows, columns = np.nonzero((turned != 128).any(2))
    x0, y0, x1, y1 = columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
    lower, right = y1 - 2, x1 - 2
    ends = [(x0, lower, x1, lower), (right, y1, right, y0), (x1, y0 + 2, x0, y0 + 2), (x0 + 2, y0, x0 + 2, y1)][turns]
    height, width = turned.shape[:2]
    if kind == 'page.hocr':
        line = f"<span class='ocr_line' title='bbox {x0} {y0} {x1} {y1}; textangle {90 * turns}'>a</span>"
        content = HOCR.format('page.png', line).replace('0 0 80 60', f'0 0 {width} {height}')
    elif kind == 'ROTATION':
        line = f'<TextLine HPOS="{x0}" VPOS="{y0}" WIDTH="{x1 - x0}" HEIGHT="{y1 - y0}"><String CONTENT="a"/></TextLine>'
        content = alto(line, size=(width, height)).replace('<TextBlock', f'<TextBlock ROTATION="{90 * turns}.0"')
    else:
        line = LINE.replace('5,6 60,6 60,20 5,20', f'{x0},{y0} {x1},{y0} {x1},{y1} {x0},{y1}')
        baseline = '<Baseline points="{},{} {},{}"/>'.format(*ends) if kind == 'page.xml' else ''
        content = PAGE_XML.format(line.format(baseline + TEXT.format('', 'a')))
        content = content.replace('imageWidth="80" imageHeight="60"', f'imageWidth="{width}" imageHeight="{height}"')
        angle = {3: -90}.get(turns, 90 * turns)
        content = content if baseline else content.replace('<TextRegion', f'<TextRegion orientation="{angle}"')
    drawn.write(tmp_path / (kind if '.' in kind else 'page.xml'), content)
    cv2.imwrite(str(tmp_path / 'images/page.png'), turned)
    ((_, found),) = find_annotations(Tree(tmp_path)).items()
    (tmp_path / 'out').mkdir()
    write('recognition', found, {'train': found.samples, 'val': []}, tmp_path / 'out', meaning=None)
    (path,) = (tmp_path / 'out/lines').iterdir()
    cut = cv2.imread(str(path))
    assert cut.shape == (10, 50, 3)
    assert cut[1:-1, 1:19].mean() < 10
    assert cut[1:-1, 21:-1].mean() > 245


def test_a_baseline_from_the_right_does_not_turn_a_text_from_the_right(tmp_path: Path) -> None:
    line = LINE.format('<Baseline points="60,18 5,18"/>' + TEXT.format('', '\u05d0\u05d1'))
    held, _ = find(tmp_path, {'page.xml': PAGE_XML.format(line)})
    assert not held['page_xml'].samples[0].instances[0].corners
