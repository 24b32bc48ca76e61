"""Pages of runs, data, comparisons and texts fit the screen, without errors, at every width."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser.conftest import WIDTHS, Open
from phalanx.cli.compare import make_row
from phalanx.curation.census import take_census
from phalanx.curation.page import render_page
from phalanx.deploy.read_files import ReadPage, write_summary
from phalanx.engine.comparison import Difference
from phalanx.engine.job import open_job
from phalanx.report.comparison import Section, write_comparison
from phalanx.report.page import Run, write_page
from run_folder import finish, write_lines, write_run

LONG = '/data/a_folder_with_a_long_name/' + 20 * 'and_more_' + '.png'

pytestmark = pytest.mark.long


@pytest.mark.parametrize('width', WIDTHS)
def test_the_report_fits_the_screen(tmp_path: Path, visit: Open, width: int) -> None:
    """Small and large pictures, long names, wide tables."""
    write_run(tmp_path)
    finish(tmp_path)
    for name, size in (('large', (700, 500)), ('small', (90, 60)), ('line', (640, 48))):
        Image.fromarray(np.full((size[1], size[0], 3), 99, np.uint8)).save(tmp_path / 'pictures' / f'{name}.png')
    rows = [[{'caption': 'image', 'file': f'{name}.png'} for name in names] for names in (['large'] * 3, ['small'] * 2)]
    (tmp_path / 'pictures' / 'index.json').write_text(json.dumps(rows))
    worst = [{'caption': f'{LONG}: read wrongly', 'cells': [{'caption': '', 'file': 'line.png'}]}] * 3
    classes = ['background', 'a class with a long name', 'car', 'road']
    figures = [
        {'kind': 'matrix', 'title': 'Confusion', 'names': classes, 'counts': [[5, 1, 2, 3]] * 4},
        {'kind': 'pictures', 'title': 'Worst', 'rows': worst},
        {'kind': 'legend', 'colours': dict.fromkeys(classes, '#225577')},
    ]
    table = [{'class': name, **{f'metric {n}': 0.123456 for n in range(9)}} for name in classes]
    (tmp_path / 'table.json').write_text(json.dumps({'step': 40, 'rows': table, 'figures': figures}))
    with (tmp_path / 'journal.jsonl').open('a') as journal:
        journal.write(json.dumps({'kind': 'warning', 'text': f'{LONG}: cannot be read', 'step': 1234567, 'time': 4.0}) + '\n')
    first, raw = {'kind': 'eval', 'step': 0, 'mean_iou': 0.5, 'psnr': 30.0}, {'raw': {'mean_iou': 0.6875, 'psnr': 32.5}}
    lines = [json.loads(line) for line in (tmp_path / 'metrics.jsonl').read_text().splitlines()]
    write_lines(tmp_path / 'metrics.jsonl', [first, *lines[:-1], lines[-1] | raw])
    with visit(write_page(tmp_path).as_uri(), width) as page:
        tables = page.locator('.scroll:has(.numbers)').evaluate_all('all => all.map(one => one.scrollWidth - one.clientWidth)')
        assert set(tables) == {0}  # no number hides behind an edge
        widths = page.locator('.pictures img').evaluate_all('images => images.map(image => image.width)')
        assert all(now <= own for now, own in zip(widths, (700, 700, 700, 90, 90), strict=True))  # never enlarged
        assert widths[3:] == [90, 90]  # a small picture has its own size


@pytest.mark.parametrize('width', WIDTHS)
def test_the_data_page_fits_the_screen(tmp_path: Path, visit: Open, width: int) -> None:
    job = open_job('unet_digits', [('data.size=[64,96]', '--set')])
    census = take_census(job.task, limit=3, workers=1, advance=lambda split, done, total: None)
    (tmp_path / 'data.html').write_text(render_page(census, 'digits with a name that is rather long'))
    with visit((tmp_path / 'data.html').as_uri(), width) as page:
        assert page.locator('img').count() == 6


@pytest.mark.parametrize('width', WIDTHS)
def test_the_page_of_a_comparison_fits_the_screen(tmp_path: Path, visit: Open, width: int) -> None:
    names = ('first_try', 'a_second_try_with_a_long_name')
    for name in names:
        (tmp_path / name).mkdir()
        write_run(tmp_path / name)
        finish(tmp_path / name)
    facts = [
        {'run': name, 'recipe': 'mine', 'best': 'mean_iou 0.8', 'state': 'finished', 'time': '1 s', 'ranks': '1'}
        for name in names
    ]
    keys = [{'key': 'data.train', names[0]: LONG, names[1]: 'train.txt'}]
    rows = [make_row(Difference(f'ap of class {n}', 0.5, value, 0.1, 0.2), *names) for n, value in enumerate((0.7, math.nan))]
    runs = {name: Run.read(tmp_path / name) for name in names}
    write_comparison(tmp_path / 'page.html', runs, facts, keys, [Section('one next to the other', rows, rows, [])])
    with visit((tmp_path / 'page.html').as_uri(), width) as page:
        assert page.locator('table').count() == 4


@pytest.mark.parametrize('width', WIDTHS)
def test_the_page_of_texts_that_were_read_fits_the_screen(tmp_path: Path, visit: Open, width: int) -> None:
    files = tuple(f'invoice{suffix}' for suffix in ('.json', '.txt', '.hocr', '_read.jpg'))
    read = ReadPage('key', 'invoice', LONG, 13, 0.998, 'Two boxes of nuts and bolts', files)
    empty = ReadPage('other', 'empty', 'empty.png', 0, None, '', ())
    write_summary(tmp_path, [read, empty], [f'{LONG}: cannot be read'])
    with visit((tmp_path / 'reading.html').as_uri(), width) as page:
        heights = page.locator('a').evaluate_all('all => all.map(link => link.getClientRects().length)')
        assert heights == [1] * 4  # no link is broken over lines
