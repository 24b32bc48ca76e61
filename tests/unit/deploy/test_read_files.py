"""Many pages: stopped readings continue, processes share the work, a summary shows the least certain pages."""

from __future__ import annotations

import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import PIL.Image
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
    assert '4 lines on 2 pages, mean confidence' in capsys.readouterr().out
    assert read() == 0
    assert '4 lines on 2 pages' in (output := capsys.readouterr().out) and '(2 of them read before)' in output
    (tmp_path / 'out' / 'a.txt').unlink()
    assert read() == 0
    assert '(1 of them read before)' in capsys.readouterr().out
    assert (tmp_path / 'out' / 'a.txt').read_text() == 'ba\ta\nb\t\n'


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


@pytest.mark.long
def test_processes_give_the_same_results(read: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert read('--workers', '2') == 0
    assert '4 lines on 2 pages' in capsys.readouterr().out
    assert (tmp_path / 'out' / 'a.txt').read_text() == 'ba\ta\nb\t\n'
    assert read() == 0
    assert '(2 of them read before)' in capsys.readouterr().out
