"""`phalanx report` of a folder that somebody else sent: nothing but its own pictures gets into the page, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import phalanx.cli.main as cli

START = {'kind': 'start', 'name': 'run', 'total_steps': 2, 'facts': {}, 'ranks': [], 'step': 0, 'time': 1.0}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / 'run'
    (folder / 'pictures').mkdir(parents=True)
    (folder / 'journal.jsonl').write_text(json.dumps(START) + '\n')
    Image.fromarray(np.zeros((4, 4, 3), np.uint8)).save(folder / 'pictures' / 'own.png')
    Image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / 'secret.png')
    (tmp_path / 'secret.txt').write_text('secret')
    return folder


@pytest.mark.parametrize(
    'name', ['../../secret.png', '../../secret.txt', '/etc/passwd', 'link.png', 'sub/own.png', '', '.', '..']
)
def test_only_its_own_pictures_are_shown(folder: Path, name: str) -> None:
    (folder / 'pictures' / 'link.png').symlink_to(folder.parent / 'secret.png')
    (folder / 'pictures' / 'sub').symlink_to(folder.parent)
    (folder / 'pictures' / 'index.json').write_text(
        json.dumps([[{'caption': 'a', 'file': 'own.png'}, {'caption': 'b', 'file': name}]])
    )
    row = {'caption': 'c', 'cells': [{'caption': 'd', 'file': name}]}
    figure = {'kind': 'pictures', 'title': 'c', 'rows': [row]}
    (folder / 'table.json').write_text(json.dumps({'step': 1, 'rows': [], 'figures': [figure]}))
    assert cli.main(['report', str(folder)]) == 0
    assert (folder / 'report.html').read_text().count('<img') == 1


@pytest.mark.parametrize('file', ['table.json', 'pictures/index.json', 'summary.json', 'metrics.jsonl', 'journal.jsonl'])
@pytest.mark.parametrize(
    'content', ['{', '5', '[5]', '{"a": 5}', '[[5]]', '{"kind": "train"}', '{"rows": 5, "figures": 7}', '[' * 100_000, '\udcff']
)
def test_files_that_no_run_writes_are_an_error_of_one_line_or_left_out(
    folder: Path, file: str, content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / file).write_text(content, errors='surrogateescape')
    status, output = cli.main(['report', str(folder)]), capsys.readouterr()
    if status == 0:
        assert output.out == f'{folder}/report.html\n'
    else:
        assert status == 1 and output.err.startswith(f'the page could not be written: {folder}') and output.err.count('\n') == 1


def test_words_of_the_folder_are_text_in_the_page(folder: Path) -> None:
    bad = '<script>alert(1)</script>'
    note = {'kind': 'note', 'text': bad, 'step': bad, 'time': 1.0}
    (folder / 'journal.jsonl').write_text(
        json.dumps({**START, 'name': bad, 'facts': {bad: bad}}) + '\n' + json.dumps(note) + '\n'
    )
    (folder / 'table.json').write_text(json.dumps({'step': bad, 'rows': [{bad: bad}], 'figures': []}))
    assert cli.main(['report', str(folder)]) == 0
    assert '<script' not in (folder / 'report.html').read_text()


def test_the_page_of_a_folder_that_cannot_be_written_to_goes_elsewhere(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / 'report.html').mkdir()  # in its place, nothing can be written by root either
    assert cli.main(['report', str(folder)]) == 1
    assert capsys.readouterr().err == (
        f'the page could not be written: {folder}/report.html: Is a directory; --page FILE writes it elsewhere\n'
    )
    assert cli.main(['report', str(folder), '--page', str(tmp_path / 'run.html')]) == 0
    assert '<html' in (tmp_path / 'run.html').read_text()
