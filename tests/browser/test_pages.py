"""Pages of runs, data, comparisons and texts fit the screen, without errors, at every width."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser.conftest import WIDTHS, Open
from phalanx.bench import scaling
from phalanx.bench.tuning.rates import Point, write_rates
from phalanx.bench.tuning.space import parse_dimension
from phalanx.cli.compare import make_row
from phalanx.curation.census import take_census
from phalanx.curation.page import render_page
from phalanx.deploy.read_files import ReadPage, write_summary
from phalanx.engine.comparison import Difference
from phalanx.engine.job import open_job
from phalanx.families.figures import Curves, Matrix, Table
from phalanx.report.comparison import Section, write_comparison
from phalanx.report.evaluation import Evaluation
from phalanx.report.page import Run, write_page
from phalanx.report.single import write_evaluation
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


@pytest.mark.parametrize('width', WIDTHS)
def test_the_page_of_a_search_fits_the_screen(tmp_path: Path, visit: Open, width: int) -> None:
    """Trials that are complete, ended early or failed, of keys with long names and values."""
    optuna = pytest.importorskip('optuna')
    from phalanx.bench.tuning.page import write_page as write_search

    optimizer = 'optimizer={name: adamw, weight_decay: 0.05}|{name: momentum, momentum: 0.9, nesterov: true}'
    space = [parse_dimension(text) for text in ('optimizer.lr=log:1e-4..1e-1', optimizer, 'train.global_batch_size=4..64')]
    study = optuna.create_study(direction='maximize', sampler=optuna.samplers.RandomSampler(0))
    failed = {'reason': f'{LONG}: cannot be read'}
    states = ['COMPLETE'] * 8 + ['PRUNED', 'FAIL']
    for number, state in enumerate(states):
        trial = study.ask()
        trial.set_user_attr('assigned', [f'{dimension.key}={dimension.suggest(trial)}' for dimension in space])
        if state == 'FAIL':
            trial.set_user_attr('reason', failed['reason'])
        study.tell(trial, 0.1 * number if state == 'COMPLETE' else None, state=optuna.trial.TrialState[state])
    with visit(write_search(tmp_path, study, study.trials, 'mean_iou', space).as_uri(), width) as page:
        assert page.locator('svg').count() >= 2
        assert page.locator('td[data-column=state]').all_inner_texts()[-1].startswith(f'failed: {LONG}')


@pytest.mark.parametrize('width', WIDTHS)
def test_the_page_of_a_learning_rate_range_test_fits_the_screen(tmp_path: Path, visit: Open, width: int) -> None:
    """The loss falls until a rate of 0.01, then diverges."""
    rates = [10 ** (-5 + step / 10) for step in range(41)]
    losses = [2.3 - 0.05 * step if rate < 0.01 else 0.8 * (rate / 0.01) ** 2 for step, rate in enumerate(rates)]
    write_rates(tmp_path / 'rates.html', 'a_recipe_with_a_long_name', [*map(Point, rates, losses)])
    with visit((tmp_path / 'rates.html').as_uri(), width) as page:
        assert page.locator('.tile').count() == 3


@pytest.mark.parametrize('width', WIDTHS)
def test_the_page_of_a_scaling_report_fits_the_screen(tmp_path: Path, visit: Open, width: int) -> None:
    curves = [(step, 2 / step) for step in range(1, 20)], [(10, 0.5), (20, 0.8)]
    runs = [scaling.TrainingRun(n, 1000, 16, 9000 / n, 11.0 * n, 50_000.0, 0.8, *curves) for n in (1, 2, 4, 8)]
    facts = {'recipe': 'toy', 'nodes': LONG, 'versions': 'torch 2.14.1+cu130, python 3.11.7'}
    scaling.write(tmp_path, facts, 'mean_iou', runs)
    with visit((tmp_path / 'scaling.html').as_uri(), width) as page:
        assert page.locator('.numbers tr').count() == 5


@pytest.mark.parametrize('width', WIDTHS)
def test_the_page_of_an_evaluation_fits_the_screen(tmp_path: Path, visit: Open, width: int) -> None:
    classes = ('background', 'a class with a long name', 'car', 'road')
    found = Evaluation(
        metrics={'mean_iou': 0.5, 'accuracy_of_all_pixels': 0.987654321},
        samples=12_345,
        seconds=98.7,
        table=[{'class': name, **{f'metric {n}': 0.123456 for n in range(9)}} for name in classes],
        figures=[
            Matrix('Confusion', classes, [[12_345] * 4] * 4),
            Curves('Precision over recall', 'recall', 'precision', {name: [(0.0, 1.0), (1.0, 0.5)] for name in classes}),
            Table('Causes', [{'cause': 'localization', 'ap50': 0.123456, 'errors': 12_345}]),
        ],
    )
    write_evaluation(tmp_path / 'eval.html', LONG, f'weights: {LONG}', found)
    with visit((tmp_path / 'eval.html').as_uri(), width) as page:
        assert '0.9877' in page.locator('body').inner_text()
