"""Many pages: stopped readings continue, processes share the work, a summary shows the least certain pages."""

from __future__ import annotations

import errno
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import parse

import PIL.Image
import pypdfium2
import pytest

from phalanx.data.samples import Image
from phalanx.deploy import read_files
from phalanx.deploy.read_files import Page, ReadPage, describe_pages, results_of
from running import run_here


@pytest.fixture
def read(det: Path, rec: Path, page: Image, tmp_path: Path) -> Any:
    """`phalanx read` for two pages, `a` with three lines and `b` with one."""
    scans = tmp_path / 'scans'
    scans.mkdir()
    PIL.Image.fromarray(page).save(scans / 'a.png')
    PIL.Image.fromarray(page[:70, 150:]).save(scans / 'b.png')
    words = ('--det', str(det), '--rec', str(rec), '--out', str(tmp_path / 'out'), '--save', 'text')
    return partial(run_here, 'read', str(scans), *words)


def test_finished_pages_are_not_read_again(read: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read() == 0
    output = capsys.readouterr().out
    assert '4 lines on 2 pages, mean confidence' in output
    assert output.splitlines()[-1].startswith('next: if lines are read wrongly, phalanx new ')
    assert read() == 0
    assert '4 lines on 2 pages' in (output := capsys.readouterr().out) and '(2 of them read before)' in output
    (tmp_path / 'out' / 'a.txt').unlink()
    assert read() == 0
    assert '(1 of them read before)' in capsys.readouterr().out
    assert (tmp_path / 'out' / 'a.txt').read_text() == 'ba\ta\nb\t\n'


def test_a_name_with_a_line_separator_of_unicode_is_found_in_the_journal(
    read: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / 'scans' / 'b.png').rename(tmp_path / 'scans' / 'b\u2028.png')
    read()
    capsys.readouterr()
    assert read() == 0
    assert '(2 of them read before)' in capsys.readouterr().out


def test_changed_pages_and_other_options_are_read_again(
    read: Any, page: Image, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    read()
    PIL.Image.fromarray(page).save(tmp_path / 'scans' / 'b.png')
    capsys.readouterr()
    read()
    assert '6 lines on 2 pages' in (output := capsys.readouterr().out) and '(1 of them read before)' in output
    read('--threshold', '0.4')
    assert 'read before' not in capsys.readouterr().out


def test_a_stopped_reading_resumes(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C at the second page, and a journal whose last line is cut off, as by a loss of power."""
    whole = read_files.read_page

    def stop(options: read_files.Options, page: Page) -> dict[str, Any] | str:
        if page.stem == 'b':
            raise KeyboardInterrupt
        return whole(options, page)

    with monkeypatch.context() as patch:
        patch.setattr(read_files, 'read_page', stop)
        assert read() == 128 + signal.SIGINT
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last == 'phalanx: stopped by SIGINT; the same command goes on from there'
    with (tmp_path / 'out' / 'reading.jsonl').open('a') as journal:
        journal.write('{"key": "0b')
    assert read() == 0
    assert '(1 of them read before)' in capsys.readouterr().out
    assert read() == 0
    assert '(2 of them read before)' in capsys.readouterr().out


def test_a_full_disk_stops_the_reading(
    read: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second page does not fit: no further page is read for nothing."""
    write, written = read_files.WRITERS.write, []

    def fill(lines: Any, image: Image, stem: Path, *ways: Any) -> list[Path]:
        written.append(stem.name)
        if stem.name == 'a':
            raise OSError(errno.ENOSPC, 'No space left on device', str(stem))
        return write(lines, image, stem, *ways)

    monkeypatch.setattr(type(read_files.WRITERS), 'write', lambda self, *values: fill(*values))
    assert read() == 1
    assert written == ['a']
    assert 'a: No space left on device' in capsys.readouterr().err


def test_labels_of_pages_lie_beside_them(read: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes append to one file."""
    words = ('--save', 'ppocrlabel,labelme', '--out', str(tmp_path / 'scans'), '--workers', '2')
    assert read(*words) == 0
    rows = dict(line.split('\t') for line in (tmp_path / 'scans/Cache.cach').read_text().splitlines())
    texts = {name: [text['transcription'] for text in json.loads(row)] for name, row in rows.items()}
    assert texts.keys() == {'scans/a.png', 'scans/b.png'} and len(texts['scans/a.png']) == 3
    shapes = json.loads((tmp_path / 'scans/a.json').read_text())['shapes']
    assert [shape['description'] for shape in shapes] == texts['scans/a.png']
    assert read(*words) == 0 and '(2 of them read before)' in capsys.readouterr().out


def test_results_in_a_file_are_refused(read: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / 'out').touch()
    assert read() == 2
    assert 'is a file; results need a folder' in capsys.readouterr().err


def test_the_summary_lists_failures_and_the_least_certain_pages_first(read: Any, tmp_path: Path) -> None:
    PIL.Image.new('RGB', (60, 60), 'white').save(tmp_path / 'scans' / 'empty.png')
    (tmp_path / 'scans' / 'bad.png').write_bytes(b'no image')
    assert read() == 1
    rows = [json.loads(line) for line in (tmp_path / 'out' / 'reading.jsonl').read_text().splitlines()]
    order = sorted((row for row in rows if row['lines']), key=lambda row: row['confidence'])
    summary = (tmp_path / 'out' / 'reading.html').read_text()
    places = [summary.index(f'{row["page"]}.png</td>') for row in order]
    assert places == sorted(places) and len(places) == 2
    assert summary.index('empty.png</td>') > places[-1]  # without lines it has no confidence
    assert 'bad.png' in summary and 'href="a.txt"' in summary


@pytest.fixture
def document(read: Any, page: Image, tmp_path: Path) -> Any:
    """`phalanx read` for a file of two pages with three lines and one; the folder has nothing else."""
    one, other = PIL.Image.fromarray(page), PIL.Image.fromarray(page[:70, 150:])
    for file in (tmp_path / 'scans').iterdir():
        file.unlink()
    one.save(tmp_path / 'scans' / 'note & more.tif', save_all=True, append_images=[other])
    return partial(read, '--save', 'text,hocr,pdf')


def test_a_file_of_several_pages_has_one_hocr_and_one_searchable_pdf(document: Any, tmp_path: Path) -> None:
    assert document() == 0
    out = tmp_path / 'out'
    names = {file.name for file in out.iterdir()}
    texts = {f'note & more-p000{number}.txt' for number in (1, 2)}
    assert names == {'note & more.hocr', 'note & more.pdf', *texts, 'reading.jsonl', 'reading.html'}
    page_divisions = parse(out / 'note & more.hocr').findall('.//{*}div')
    assert [len(division.findall('{*}span')) for division in page_divisions] == [3, 1]
    identities = [each.get('id') for each in parse(out / 'note & more.hocr').iter() if each.get('id')]
    assert len(set(identities)) == len(identities) == 2 + 4 + 4  # pages, lines, words

    # Places of characters in points from the lower left, at 200 dots per inch: the first line is 80 x 20 pixels at (20, 20).
    pages = list(pypdfium2.PdfDocument(out / 'note & more.pdf'))
    assert [page.get_textpage().get_text_bounded().split() for page in pages] == [['ba', 'a', 'b'], ['a']]
    assert pages[0].get_size() == pytest.approx((300 * 0.36, 200 * 0.36), abs=0.01)
    assert pages[0].get_textpage().get_charbox(1, loose=True) == pytest.approx(
        [60 * 0.36, 160 * 0.36, 100 * 0.36, 180 * 0.36], abs=1
    )


def test_a_merged_document_is_read_again_as_a_whole(document: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document()
    document()
    assert '(2 of them read before)' in capsys.readouterr().out
    (tmp_path / 'out' / 'note & more-p0002.txt').unlink()
    document()
    assert 'read before' not in capsys.readouterr().out


def test_the_last_line_names_the_least_certain_pages() -> None:
    """Two lines of 0.5 and one of 0.8: the mean of the lines is 0.6."""
    pages = [ReadPage('', 'a', 'a.png', 2, 0.5, '', ()), ReadPage('', 'b', 'b.png', 1, 0.8, '', ())]
    assert describe_pages(pages) == '3 lines on 2 pages, mean confidence 0.600'
    more = pages + [ReadPage('', f'c{n}', '', 1, 0.9 + n / 100, '', ()) for n in range(5)]
    assert describe_pages(more).endswith('least certain: a (0.500), b (0.800), c0 (0.900), c1 (0.910), c2 (0.920)')
    assert describe_pages([]) == '0 lines on 0 pages'


def die_of(name: str, page: Page) -> dict[str, Any] | str:
    if page.name == name:
        os.kill(os.getpid(), signal.SIGKILL)
    return page.name


@pytest.mark.long
def test_a_page_that_kills_its_process_fails_and_the_others_are_read(tmp_path: Path) -> None:
    """More pages than wait for two processes; results come in the order of the pages."""
    pages = [Page(tmp_path, number, str(number), tmp_path, str(number)) for number in range(10)]
    found = {page.name: result for page, result in results_of(partial(die_of, '1'), iter(pages), 2)}
    assert list(found) == [page.name for page in pages]
    assert 'was killed' in str(found.pop('1'))
    assert found == {name: name for name in '023456789'}


def test_processes_give_the_same_results(read: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read('--workers', '2') == 0
    assert '4 lines on 2 pages' in capsys.readouterr().out
    assert (tmp_path / 'out' / 'a.txt').read_text() == 'ba\ta\nb\t\n'
    assert read() == 0
    assert '(2 of them read before)' in capsys.readouterr().out
