"""Files for documents of several pages, and searchable PDF: the picture of a page below its invisible text.

PDF 1.7 as in ISO 32000-1; the text is set in a font without glyphs (rendering mode 3), as by Tesseract.
"""

import io
import re
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path

import numpy as np
import PIL.Image

from phalanx.data.pdf import DOTS_PER_INCH, POINTS_PER_INCH
from phalanx.data.samples import Image
from phalanx.deploy.words import words_of
from phalanx.runtime.results import Line
from phalanx.system.disk import remove_own, replace_atomically, write_atomically

QUALITY = 85  # of the JPEG picture
MOST_ENTRIES = 100  # of a block in a map of characters: ISO 32000-1, 9.7.5.4
PAGE_DIVISION = re.compile(r'<div class="ocr_page".*?</div>', re.DOTALL)
IDENTITY = re.compile(r'\bid="(page|line|word)_')
TO_UNICODE = """/CIDInit /ProcSet findresource begin
12 dict begin
begincmap
/CMapName /Characters def
/CMapType 2 def
1 begincodespacerange
<0000> <FFFF>
endcodespacerange
{blocks}endcmap
CMapName currentdict /CMap defineresource pop
end
end"""


def as_pdf(lines: Sequence[Line], page: Image, stem: Path) -> list[Path]:
    """Write a page as searchable PDF, at DOTS_PER_INCH."""
    H, W = page.shape[:2]
    scale = POINTS_PER_INCH / DOTS_PER_INCH
    codes = {character: code for code, character in enumerate(sorted({' '}.union(*(line.text for line in lines))), 1)}
    content = [f'q {W * scale:.2f} 0 0 {H * scale:.2f} 0 0 cm /Picture Do Q', 'BT 3 Tr /Text 1 Tf']
    for line in lines:
        for word, corners in words_of(line):
            # PDF has its origin at the lower left. A character fills one unit square, which the matrix maps to its part of the
            # word: along the text, and from its lower to its upper side.
            upper, lower, upper_end, _ = (np.array([x, H - y]) * scale for x, y in corners)
            matrix = ' '.join(f'{value:.4f}' for value in (*((upper_end - upper) / len(word)), *(upper - lower), *lower))
            text = ''.join(f'{codes[character]:04X}' for character in f'{word} ')  # the space keeps words apart
            content.append(f'{matrix} Tm <{text}> Tj')
    content.append('ET')
    picture = io.BytesIO()
    PIL.Image.fromarray(page).save(picture, 'JPEG', quality=QUALITY)
    box = f'[0 0 {W * scale:.2f} {H * scale:.2f}]'
    image = f'/Type /XObject /Subtype /Image /Width {W} /Height {H} /ColorSpace /DeviceRGB /BitsPerComponent 8'
    font = '/Type /Font /Subtype /CIDFontType2 /BaseFont /GlyphLess /FontDescriptor 8 0 R /DW 1000'
    system = '/CIDSystemInfo << /Registry (Adobe) /Ordering (Identity) /Supplement 0 >>'
    objects = [
        b'<< /Type /Catalog /Pages 2 0 R >>',
        b'<< /Type /Pages /Kids [3 0 R] /Count 1 >>',
        f'<< /Type /Page /Parent 2 0 R /MediaBox {box} /Contents 4 0 R '
        '/Resources << /XObject << /Picture 5 0 R >> /Font << /Text 6 0 R >> >> >>'.encode(),
        _stream('', '\n'.join(content).encode()),
        _stream(f'{image} /Filter /DCTDecode', picture.getvalue()),
        b'<< /Type /Font /Subtype /Type0 /BaseFont /GlyphLess /Encoding /Identity-H '
        b'/DescendantFonts [7 0 R] /ToUnicode 9 0 R >>',
        f'<< {font} {system} >>'.encode(),
        b'<< /Type /FontDescriptor /FontName /GlyphLess /Flags 4 /FontBBox [0 0 1000 1000] /ItalicAngle 0 /Ascent 1000 '
        b'/Descent 0 /CapHeight 1000 /StemV 80 >>',
        _stream('', TO_UNICODE.format(blocks=_map_blocks(codes)).encode()),
    ]
    file = stem.with_name(f'{stem.name}.pdf')
    write_atomically(file, _assemble(objects))
    return [file]


def _map_blocks(codes: dict[str, int]) -> str:
    """Blocks that map codes to characters, in UTF-16."""
    rows = [f'<{code:04X}> <{character.encode("utf-16-be").hex()}>\n' for character, code in codes.items()]
    parts = [rows[first : first + MOST_ENTRIES] for first in range(0, len(rows), MOST_ENTRIES)]
    return ''.join(f'{len(part)} beginbfchar\n{"".join(part)}endbfchar\n' for part in parts)


def _stream(entries: str, content: bytes) -> bytes:
    return f'<< {entries} /Length {len(content)} >>\nstream\n'.encode() + content + b'\nendstream'


def _assemble(objects: Sequence[bytes]) -> bytes:
    """PDF file of `objects`, numbered from 1, of which the first is the catalog."""
    content, places = b'%PDF-1.7\n%\xe2\xe3\xcf\xd3\n', []
    for number, body in enumerate(objects, 1):
        places.append(len(content))
        content += b'%d 0 obj\n%s\nendobj\n' % (number, body)
    # Each entry of the table has 20 bytes.
    table = b'0000000000 65535 f \n' + b''.join(b'%010d 00000 n \n' % place for place in places)
    size = len(objects) + 1
    trailer = b'trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n' % (size, len(content))
    return content + b'xref\n0 %d\n%s%s' % (size, table, trailer)


def merge_hocr(parts: Sequence[Path], whole: Path) -> None:
    """Write hOCR files of single pages as one; identities and numbers of pages become those in the document."""
    pages, frame = [], ''
    for number, part in enumerate(parts):
        frame = part.read_text(encoding='utf-8')
        (division,) = PAGE_DIVISION.findall(frame)
        division = IDENTITY.sub(lambda match, number=number: f'id="{match[1]}_{number + 1}_', division)  # type: ignore[misc]
        pages.append(division.replace('; ppageno 0"', f'; ppageno {number}"', 1))
    text = PAGE_DIVISION.sub(lambda _: '\n'.join(pages), frame)
    title = re.compile(r'<title>.*?</title>')
    write_atomically(whole, title.sub(lambda _: f'<title>{escape(whole.stem)}</title>', text, count=1).encode())


def merge_pdf(parts: Sequence[Path], whole: Path) -> None:
    """Write PDF files of single pages as one."""
    import pypdfium2

    document = pypdfium2.PdfDocument.new()
    for part in parts:
        document.import_pages(pypdfium2.PdfDocument(part))
    with replace_atomically(whole) as temporary:
        document.save(temporary)


MERGERS: dict[str, Callable[[Sequence[Path], Path], None]] = {'.hocr': merge_hocr, '.pdf': merge_pdf}


def merge_pages(out: Path, document: str, pages: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Merge hOCR and PDF files of the pages of a document into one file each; return the files of each page afterwards.

    `pages` are files below `out`, per page. The caller records the result and then removes the parts (`remove_parts`).
    """
    merged = [tuple(files) for files in pages]
    for ending, merge in MERGERS.items():
        whole = f'{document}{ending}'
        parts = [file for files in merged for file in files if file.endswith(ending)]
        if parts and whole not in parts:
            merge([out / part for part in parts], out / whole)
            merged = [tuple(whole if file in parts else file for file in files) for files in merged]
    return merged


def remove_parts(out: Path, before: Sequence[Sequence[str]], after: Sequence[Sequence[str]]) -> None:
    """Remove files of single pages that `merge_pages` merged; only this command writes files of these names."""
    for name in {file for files in before for file in files} - {file for files in after for file in files}:
        remove_own(out / name)
