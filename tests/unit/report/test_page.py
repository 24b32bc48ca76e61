"""The report page: the numbers of the run folder, escaped, in one file that needs nothing else."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.report.charts import Line, chart, confusion, log_ticks, nice_ticks, smooth, thin_out
from phalanx.report.page import PageError, write_page
from phalanx.report.readable import format_duration, format_number, shorten_paths
from run_folder import NAUGHTY, finish, train_line, write_lines, write_run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_run(tmp_path)
    return tmp_path


class Balance(HTMLParser):
    """Reads a page as a browser does; notes what it loads, which elements it has, and whether they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.loads += [value or '' for name, value in attrs if name in ('src', 'href', 'xlink:href')]
        if tag not in ('meta', 'img'):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: Path) -> Balance:
    reader = Balance()
    reader.feed(page.read_text())
    assert reader.open == []
    return reader


def test_the_page_holds_the_numbers_of_the_run(folder: Path) -> None:
    finish(folder)
    text = write_page(folder).read_text()
    for shown in ('finished', 'step 40 of 40', '0.6875', '0.8125', 'step 20', '99.5', '1 min 15 s', '0.6250', '51,234', '4321'):
        assert shown in text, shown
    for title in ('Loss', 'Loss terms', 'mean_iou', 'psnr', 'Learning rate', 'Throughput', 'Peak memory'):
        assert f'<h3>{title}<' in text, title


def test_the_page_can_be_built_in_the_middle_of_a_run(folder: Path) -> None:
    with (folder / 'metrics.jsonl').open('a') as log:
        log.write('{"kind": "tra')
    text = write_page(folder).read_text()
    assert 'not finished' in text
    assert re.search(r'best mean_iou</p><strong>0\.8125</strong><p class="muted">step 20', text)


def test_a_summary_of_a_shorter_run_is_out_of_date(folder: Path) -> None:
    finish(folder)
    with (folder / 'metrics.jsonl').open('a') as log:
        log.write(json.dumps(train_line(41, 0.5)) + '\n')
    assert 'not finished' in write_page(folder).read_text()


def test_an_empty_folder_has_a_page(tmp_path: Path) -> None:
    page = write_page(tmp_path)
    parsed(page)
    assert 'Nothing is logged yet' in page.read_text()


def test_charts_handle_one_logged_step_and_a_missing_loss(tmp_path: Path) -> None:
    write_lines(tmp_path / 'metrics.jsonl', [train_line(1, None)])
    parsed(write_page(tmp_path))


def figures(folder: Path, *drawn: dict[str, Any]) -> str:
    """The page of a run whose last evaluation drew these, and of what else it has only the step."""
    (folder / 'table.json').write_text(json.dumps({'step': 40, 'rows': [], 'figures': drawn}))
    return write_page(folder).read_text()


def test_curves_of_a_metric_have_the_axis_they_name(folder: Path) -> None:
    """A line from (0, 1) over (0.5, 1) to (1, 0.25), on axes from 0 to 1: in per cent, with y downwards."""
    lines = {NAUGHTY: [[0.0, 1.0], [0.5, 1.0], [1.0, 0.25]]}
    page = figures(folder, {'kind': 'curves', 'title': 'Precision', 'x': 'recall', 'y': 'precision', 'lines': lines})
    assert '<h3>Precision<small>precision, over recall</small></h3>' in page
    assert 'd="M0.00 0.00L50.00 0.00L100.00 75.00"' in page
    assert 'recall 0.5000' in page


def test_a_confusion_table_has_the_shares_of_each_row(folder: Path) -> None:
    """Of four, three right; of a thousand, one wrong, which no whole per cent shows; nothing of the third."""
    counts = [[3, 1, 0], [1, 999, 0], [0, 0, 0]]
    page = figures(folder, {'kind': 'matrix', 'title': 'Taken', 'names': ['a', 'b', NAUGHTY], 'counts': counts})
    assert '<td class=deep style="--v:75" title="a taken for a: 3 of 4">75</td>' in page
    assert '<td style="--v:25" title="a taken for b: 1 of 4">25</td>' in page
    assert '<td style="--v:0" title="b taken for a: 1 of 1,000">·</td>' in page
    assert '0 of 0' not in page  # a class without samples has no row


def test_of_many_classes_the_most_mistaken_are_shown() -> None:
    """40 classes, of which only 7 and 11 are mistaken for one another."""
    counts = np.diag(np.full(40, 5))
    counts[7, 11] = 2
    shown = confusion([f'class{n}' for n in range(40)], counts.tolist())
    assert shown['note'] == '30 of 40, those most often mistaken'
    cells = dict(shown['rows'])['class7']
    assert 'class7 taken for class11: 2 of 7' in [meaning for _, _, meaning in cells]
    assert len(cells) == len(shown['names']) == 30 and 'class39' not in shown['names']


def test_words_of_a_table_stand_at_the_left_and_numbers_at_the_right(folder: Path) -> None:
    rows = [{'true': 'n', 'read': NAUGHTY, 'times': 4}]
    (folder / 'table.json').write_text(json.dumps({'step': 40, 'rows': rows}))
    page = write_page(folder).read_text()
    assert '<th class="word short">read</th><th>times</th>' in page
    assert '<td class="word short">n</td>' in page
    assert '<td>4</td>' in page


def test_pictures_of_a_metric_are_in_the_page(folder: Path) -> None:
    """One whose file is not there is left out."""
    rows = [
        {'caption': caption, 'cells': [{'caption': 'image', 'file': file}]}
        for caption, file in (("read '1'", '00_0.png'), ('lost', 'absent.png'))
    ]
    page = figures(folder, {'kind': 'pictures', 'title': 'Read wrongly', 'rows': rows})
    assert 'Read wrongly' in page
    assert '<figcaption>read &#39;1&#39;</figcaption>' in page
    assert 'lost' not in page


def test_a_legend_of_colours_is_above_the_pictures(folder: Path) -> None:
    page = figures(folder, {'kind': 'legend', 'colours': {NAUGHTY: '#102030'}})
    _, title, below = page.partition('Evaluation samples')
    assert title
    assert below.index('<span style="--c:#102030">') < below.index('<img')


def test_an_axis_of_ranks_has_whole_numbers() -> None:
    (drawn,) = chart('Speed-up', [Line('measured', [(1, 1.0), (2, 1.9)], 0)], 2, over='ranks', zero=True)
    assert drawn['x'] == [(0, '0'), (50, '1'), (100, '2')]


def test_shares_have_a_linear_axis_without_counts(folder: Path) -> None:
    shares = [{'kind': 'eval', 'step': step, 'iou': iou, 'too_long': 1} for step, iou in ((20, 0.001), (40, 0.5))]
    write_lines(folder / 'metrics.jsonl', shares)
    page = write_page(folder).read_text()
    assert '<h3>iou<small></small></h3>' in page
    assert '<h3>too_long<small></small></h3>' in page


def test_names_are_text_and_never_markup(folder: Path) -> None:
    page = write_page(folder)
    assert parsed(page).seen.count('b') == page.read_text().count('class="strip')  # the only <b> are the readings of curves
    assert NAUGHTY not in page.read_text()
    assert '&lt;b&gt;&#34;truck&#34; &amp; co&lt;/b&gt;' in page.read_text()


def test_the_page_needs_no_other_file_no_network_and_no_script(folder: Path) -> None:
    page = write_page(folder)
    reader = parsed(page)
    assert reader.loads and all(load.startswith('data:image/') for load in reader.loads)
    assert not {'script', 'link', 'iframe', 'object'} & set(reader.seen)
    assert 'url(' not in page.read_text() and '@import' not in page.read_text()


def test_a_warning_that_is_repeated_is_shown_once(folder: Path) -> None:
    text = write_page(folder).read_text()
    assert '1 warning<' in text
    assert text.count('<tr class="warning">') == 1


def test_the_same_folder_gives_the_same_page(folder: Path) -> None:
    assert write_page(folder).read_bytes() == write_page(folder).read_bytes()


def test_a_long_run_gives_a_page_of_bounded_size(tmp_path: Path) -> None:
    write_lines(tmp_path / 'metrics.jsonl', [train_line(step, 1 / step) for step in range(1, 5001)])
    assert write_page(tmp_path).stat().st_size < 300_000


values = st.floats(-1e12, 1e12)


@given(values, st.floats(1e-9, 1e12), st.integers(3, 10))
def test_nice_ticks_cover_the_range_at_equal_round_distances(low: float, span: float, about: int) -> None:
    span = max(span, 1e-6 * abs(low))
    ticks = nice_ticks(low, low + span, about)
    step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
    assert ticks[0] <= low + 1e-6 * span and low + span <= ticks[-1] + 1e-6 * span
    assert 2 <= len(ticks) <= about + 2
    assert np.allclose(np.diff(ticks), step, rtol=1e-3)
    digit = step / 10 ** math.floor(math.log10(step) + 1e-3)
    assert min(abs(digit - round_one) for round_one in (1, 2, 5)) < 1e-2


@pytest.mark.parametrize(('value', 'ends'), [(-2.0, ('-2.0', '0')), (0.0, ('0', '1.0')), (2.0, ('0', '2.0'))])
def test_an_axis_from_zero_holds_flat_curves_of_any_sign(value: float, ends: tuple[str, str]) -> None:
    (drawn,) = chart('Bias', [Line('bias', [(0, value), (1, value)], 0)], 1, zero=True)
    assert (drawn['y'][0][1], drawn['y'][-1][1]) == ends


def test_ticks_of_tenths_are_the_floats_that_people_write() -> None:
    assert nice_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert nice_ticks(0.05, 0.31) == [0.0, 0.1, 0.2, 0.3, 0.4]


@given(st.floats(1e-8, 1e8), st.floats(1.5, 1e9))
def test_log_ticks_cover_the_range(low: float, factor: float) -> None:
    ticks = log_ticks(low, low * factor)
    assert ticks[0] <= low * (1 + 1e-6) and low * factor <= ticks[-1] * (1 + 1e-6)
    assert ticks == sorted(set(ticks))


def test_a_thinned_curve_keeps_its_spikes() -> None:
    points = [(float(step), 0.0) for step in range(5000)]
    points[1234] = (1234.0, 9.0)
    kept = thin_out(points, most=100)
    assert len(kept) <= 100 and (1234.0, 9.0) in kept
    assert [step for step, _ in kept] == sorted(step for step, _ in kept)


def test_smoothing_is_the_mean_of_the_neighbours_and_keeps_gaps() -> None:
    """By hand: 1, 2, gap, 6 with one neighbour on either side."""
    assert smooth([(1, 1.0), (2, 2.0), (3, None), (4, 6.0)], 1) == [(1, 1.5), (2, 1.5), (3, None), (4, 6.0)]


@pytest.mark.parametrize(
    ('value', 'text'),
    [
        (0.81251, '0.8125'),
        (51234.0, '51,234'),
        (12.0, '12'),
        (211.6, '211.6'),
        (1.25e-5, '1.250e-05'),
        (7, '7'),
        (None, '–'),
        ('car', 'car'),
    ],
)
def test_numbers_keep_four_digits(value: object, text: str) -> None:
    assert format_number(value) == text


@pytest.mark.parametrize(('seconds', 'text'), [(4.26, '4.3 s'), (75, '1 min 15 s'), (7390, '2 h 03 min'), (None, '–')])
def test_durations_have_two_units(seconds: float | None, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize('changed', ['"loss": 1e999', '"loss": 1e308, "lr": -1e308', '"\\ud800": 0.5, "loss": 1.5'])
def test_a_log_that_no_run_writes_is_refused_and_the_page_stays(changed: str, tmp_path: Path) -> None:
    line = '{"kind": "train", "step": 1, "epoch": 0.5, "loss": 1.5, "terms": {}, "lr": 0.1}\n'
    (tmp_path / 'metrics.jsonl').write_text(line)
    page = write_page(tmp_path).read_bytes()
    bad = line.replace('"loss": 1.5', changed)
    (tmp_path / 'metrics.jsonl').write_text(line + bad + bad.replace('train', 'eval'))
    with pytest.raises(PageError, match=str(tmp_path)):
        write_page(tmp_path)
    assert (tmp_path / 'report.html').read_bytes() == page


def test_the_best_value_comes_first_and_other_metrics_are_in_a_table(folder: Path) -> None:
    finish(folder)
    page = write_page(folder).read_text()
    best, final = '<strong>0.8125</strong>', '<strong>0.6875</strong>'
    assert 0 < page.index(best) < page.index(final)
    assert '<strong>32.5' not in page
    assert re.search(r'<td class="word short">psnr</td><td>31.5</td><td>32.5</td>', page)


def test_curves_have_a_colour_each_and_the_main_metric_a_chart_of_its_own(folder: Path) -> None:
    names = ['iou', *(f'part{number}' for number in range(7))]
    lines = [{'kind': 'eval', 'step': step, **dict.fromkeys(names, 0.5), 'raw': {'iou': 0.25}} for step in (20, 40)]
    write_lines(folder / 'metrics.jsonl', lines)
    page = write_page(folder).read_text()
    for title in ('iou', 'Other metrics'):
        legend = page.partition(f'<h3>{title}<')[2].partition('</p>')[0]
        colours = re.findall(r'<span class="(c\d)">', legend)
        assert len(set(colours)) == len(colours) == (2 if title == 'iou' else 7)


def test_tables_have_no_rows_without_values(folder: Path) -> None:
    rows = [{'class': 'seen', 'iou': 0.5, 'pixels': 9}, {'class': 'absent', 'iou': None, 'pixels': 0}]
    (folder / 'table.json').write_text(json.dumps({'step': 40, 'rows': rows}))
    page = write_page(folder).read_text()
    assert 'seen' in page and 'absent' not in page


def test_paths_are_shown_below_the_folder_that_they_share() -> None:
    assert shorten_paths(['/data/a/1.png: bad', '/data/b/2.png: c/d']) == ['a/1.png: bad', 'b/2.png: c/d']
    assert shorten_paths(['/data/ab/1.png', '/data/ac/1.png']) == ['ab/1.png', 'ac/1.png']
    assert shorten_paths(['/1.png']) == ['1.png']
    assert shorten_paths(['train 1', '/data/1.png']) == ['train 1', '/data/1.png']
    assert shorten_paths([]) == []


def test_the_time_since_the_first_start_is_divided_into_parts(folder: Path) -> None:
    """Two starts in 200 s: 150 s of them with the run, of which 100 in training, 20 waiting and 2 x 2 in evaluations."""
    finish(folder)
    summary = json.loads((folder / 'summary.json').read_text())
    summary |= {'seconds': 150.0, 'training_seconds': 100.0, 'waiting_seconds': 20.0}
    (folder / 'summary.json').write_text(json.dumps(summary))
    start = {'kind': 'start', 'name': 'x', 'total_steps': 40, 'facts': {}, 'ranks': []}
    saved = {'kind': 'saved', 'step': 40, 'seconds': 1.0}
    moments = (({**start, 'step': 0}, 100.0), ({**start, 'step': 20}, 220.0), (saved, 300.0), ({**start, 'step': 40}, 9000.0))
    write_lines(folder / 'journal.jsonl', [{**line, 'time': moment} for line, moment in moments])
    text = write_page(folder).read_text()
    _, _, section = text.partition('Time since the first start')
    rows = re.findall(
        r'<tr>\s*<td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td><td[^>]*>([^<]*)</td></tr>', section.partition('</table>')[0]
    )
    assert rows == [
        ('steps (goodput)', '1 min 20 s', '0.4000'),
        ('waiting for data', '20.0 s', '0.1000'),
        ('evaluations', '4.0 s', '0.0200'),
        ('preparation, checkpoints', '46.0 s', '0.2300'),
        ('between starts, and steps made twice', '50.0 s', '0.2500'),
    ]


def test_a_run_without_an_end_has_no_division_of_its_time(folder: Path) -> None:
    assert 'Time since the first start' not in write_page(folder).read_text()


def test_the_page_shows_a_table_of_a_figure_with_its_title(folder: Path) -> None:
    page = figures(folder, {'kind': 'table', 'title': 'Errors', 'rows': [{'cause': NAUGHTY, 'lost': 0.25}]})
    assert '<h3>Errors</h3>' in page and '0.2500' in page
    assert NAUGHTY not in page
