"""Report of a run as one HTML page without network access or script.

It is built from the files of the run folder alone, so it can be rebuilt at any time, also during a run.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from jinja2 import Environment, PackageLoader, StrictUndefined, TemplateError

from phalanx.data.image import PILLOW_ERRORS, size_of
from phalanx.report.charts import Chart, Line, Points, chart, confusion, smooth
from phalanx.report.history import TERM, History, Log
from phalanx.report.readable import format_duration, format_mebibytes, format_number, format_percent, pluralize, shorten_paths
from phalanx.system.disk import write_atomically

FEWEST = 3  # points of a chart about speed, memory or learning rate
NOT_METRICS = ('kind', 'step', 'samples', 'seconds', 'raw')


class PageError(OSError):
    """Files of a run folder that were written or changed by something else."""


def write_page(folder: Path, log: Log | None = None, page: Path | None = None) -> Path:
    """Build `folder`/report.html, or `page`, and return its path. `log`: content of metrics.jsonl, which is read without it.

    Raises OSError if it cannot be written, and PageError if the files of the folder are not those of a run; an earlier page
    then stays.
    """
    try:
        content = _page(Run.read(folder, log)).encode()
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError, TemplateError) as error:
        raise PageError(f'{folder}: its files are not those of a run ({type(error).__name__}: {error})') from None
    page = page or folder / 'report.html'
    write_atomically(page, content)
    return page


def _page(run: Run) -> str:
    return render(
        'report.html',
        {
            'title': run.name,
            'run': run,
            'pills': _pills(run),
            'tiles': _tiles(run),
            'metric_rows': _metric_rows(run),
            'charts': _charts(run),
            'pictures': [{'caption': '', 'cells': row} for row in (_embed(run.folder, row) for row in run.pictures) if row],
            **detail_values(run.folder, run.table.get('rows', []), run.table.get('figures', [])),
            'events': _events(run),
            'facts': _facts(run),
            'time_spent': _time_spent(run),
            'ranks': run.start.get('ranks', []),
            'weights': [_weights(line) for line in run.journal if line['kind'] == 'weights'],
        },
    )


def render(template: str, values: Mapping[str, Any]) -> str:
    """Render a template of the package with `values`, which are escaped."""
    return _environment().get_template(template).render(values)


@cache
def _environment() -> Environment:
    """Templates of the package, each compiled once per process: compiling takes longer than rendering."""
    environment = Environment(loader=PackageLoader('phalanx.report', 'templates'), autoescape=True, undefined=StrictUndefined)
    environment.trim_blocks = environment.lstrip_blocks = True
    environment.filters |= {'number': format_number, 'pluralize': pluralize, 'clock': _clock}
    return environment


# Content of a run folder.


@dataclass(frozen=True)
class Run:
    """Content of the files of a run folder; empty for missing files."""

    folder: Path
    log: Log  # content of metrics.jsonl
    journal: list[dict[str, Any]]  # events: starts, notes, warnings, checkpoints, each with its time
    summary: dict[str, Any]
    table: dict[str, Any]  # step, rows and figures of the latest evaluation
    pictures: list[list[dict[str, str]]]  # rows of captions and file names
    recipe: str

    @classmethod
    def read(cls, folder: Path, log: Log | None = None) -> Self:
        log = log or History.read(folder).log()
        summary = _read_json(folder / 'summary.json', {})
        recipe = folder / 'config.yml'
        return cls(
            folder,
            log,
            read_lines(folder / 'journal.jsonl'),
            summary if summary.get('steps', 0) >= log.last.get('step', 0) else {},  # one of a shorter run is out of date
            _read_json(folder / 'table.json', {}),
            _read_json(folder / 'pictures' / 'index.json', []),
            recipe.read_text(encoding='utf-8') if recipe.is_file() else '',
        )

    @property
    def start(self) -> dict[str, Any]:
        """Latest start of the run."""
        return next((line for line in reversed(self.journal) if line['kind'] == 'start'), {})

    @property
    def name(self) -> str:
        return str(self.start.get('name', self.folder.resolve().name))

    @property
    def evaluations(self) -> list[dict[str, Any]]:
        return self.log.evaluations


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file with one JSON object per line; a line cut off by a crash is left out."""
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        with contextlib.suppress(ValueError):
            found.append(json.loads(line))
    return found


def _read_json(path: Path, otherwise: Any) -> Any:
    try:
        return json.loads(path.read_bytes()) if path.is_file() else otherwise
    except (ValueError, RecursionError) as error:
        raise PageError(f'{path}: is not JSON ({error})') from None


# Sections of the page, from top to bottom.


def _pills(run: Run) -> list[tuple[str, str]]:
    total = run.start.get('total_steps') or run.summary.get('steps')
    of = f' of {total:,}' if total else ''
    warnings = len({line['text'] for line in run.journal if line['kind'] == 'warning'})
    pills = [('good', 'finished') if run.summary else ('', 'not finished'), ('', f'step {run.log.step:,}{of}')]
    return [*pills, *([('bad', pluralize(warnings, 'warning'))] if warnings else [])]


def _tiles(run: Run) -> list[tuple[str, str, str]]:
    """Return the result in numbers: from the summary, or from the latest lines while there is none."""
    summary = run.summary
    # while a run is going on there is no summary: use the latest lines
    last = run.log.last
    final = summary.get('metrics') or _metrics(run.evaluations[-1] if run.evaluations else {})
    main_metric = summary.get('main_metric') or next(iter(final), '')
    tiles = []
    if main_metric:
        best, step = _best(run, main_metric)
        note = f'step {format_number(step)}, used by predict and export'
        tiles.append((f'best {main_metric}', format_number(best), note))
        at = f'final, step {format_number(summary.get("steps", run.log.step))}'
        tiles.append((main_metric, format_number(final.get(main_metric)), at))
    # Loss, speed, time and memory; all other metrics are in a table.
    tiles.append(('loss', format_number(last.get('loss')), f'step {format_number(last.get("step"))}'))
    if 'seconds' in summary:
        epochs = f', {summary["epochs"]:.2f} epochs' if 'epochs' in summary else ''
        tiles.append(('time', format_duration(summary['seconds']), f'of all starts{epochs}'))
    speed, wait = (summary.get(key, last.get(key)) for key in ('samples_per_s', 'data_wait'))
    ranks = summary.get('world_size', len(run.start.get('ranks', [])) or None)
    waited = f'{format_percent(wait)} of the time waiting for data'
    tiles.append(('samples/s', format_number(speed), waited if ranks is None else f'{pluralize(ranks, "rank")}, {waited}'))
    tiles.append(('peak memory', format_mebibytes(summary.get('peak_memory_mb', last.get('memory_mb'))), 'of one rank'))
    return tiles


def _best(run: Run, main_metric: str) -> tuple[float | None, int | None]:
    """Return the best value and its step: from the summary, or the last of equal evaluations, as in training."""
    scored = [(line[main_metric], line['step']) for line in run.evaluations if line.get(main_metric) is not None]
    best, step = max(scored, default=(None, None))
    return run.summary.get('best', best), run.summary.get('best_step', step)


def _metric_rows(run: Run) -> list[dict[str, Any]]:
    """Return a row for each metric: of the initial weights, if they were evaluated, at the best evaluation, at the last one
    and, with an EMA, without it.
    """
    if not run.evaluations:
        return []
    final = run.evaluations[-1]
    main_metric = run.summary.get('main_metric') or next(iter(_metrics(final)), '')
    best_step = final['step'] if (step := _best(run, main_metric)[1]) is None else step
    best: dict[str, Any] = next((line for line in reversed(run.evaluations) if line['step'] == best_step), {})
    raw: dict[str, Any] = next((line['raw'] for line in reversed(run.evaluations) if line.get('raw')), {})
    start = next((line for line in run.evaluations if line['step'] == 0 != best_step), None)
    columns = {'start': start} if start else {}
    columns |= {f'best, step {best_step:,}': best, f'last, step {final["step"]:,}': final}
    columns |= {'last without EMA': raw} if raw else {}
    return [{'metric': name, **{title: line.get(name) for title, line in columns.items()}} for name in _metrics(final)]


def _charts(run: Run) -> list[Chart]:
    """Return the charts; the first one, the loss, is large."""
    terms = [key for key in run.log.curves if key.startswith(TERM)]
    last = max(run.log.step, 1)
    charts = chart('Loss', _smooth('loss', run.log, 'loss', 0), last, tall=True)
    charts += _metric_charts(run.evaluations, last, run.summary.get('main_metric'))
    if len(terms) > 1:
        lines = [line for n, term in enumerate(terms) for line in _smooth(term.removeprefix(TERM), run.log, term, n)]
        charts += chart('Loss terms', lines, last)
    for title, name, key, unit, scale in (
        ('Learning rate', 'lr', 'lr', '', 1),
        ('Throughput', 'samples/s', 'samples_per_s', 'samples/s', 1),
        ('Time spent waiting for data', 'data wait', 'data_wait', '%', 100),
        ('Reading from buckets', 'MB/s', 'bucket_mb_per_s', 'MB/s', 1),
        ('Peak memory', 'memory', 'memory_mb', 'GiB', 1 / 1024),
    ):
        points = [(step, None if value is None else scale * value) for step, value in run.log.curves.get(key, ())]
        drawn = chart(title, [Line(name, points, 0)], last, unit=unit, zero=True)
        charts += drawn if len(points) >= FEWEST else []
    return charts


def _smooth(name: str, log: Log, key: str, colour: int) -> list[Line]:
    """Return a curve and, if it has enough points, its running mean."""
    points, means = log.curves.get(key, ()), log.means.get(key, ())
    if len(points) < 30:
        return [Line(name, points, colour)]
    return [Line(name, points, colour, faint=True), Line(f'{name}, smoothed', smooth(means, len(means) // 40 + 1), colour)]


def _points(lines: Iterable[Mapping[str, Any]], key: str) -> Points:
    return [(line['step'], line[key]) for line in lines if key in line]


def _metric_charts(evaluations: Sequence[Mapping[str, Any]], last: int, main_metric: str | None) -> list[Chart]:
    """Return one chart of the main metric (by default the first one), one of all others between -1 and 1, and one for each
    other metric that is not always 0; integers are counts.
    """
    curves = {name: _points(evaluations, name) for name in dict.fromkeys(key for line in evaluations for key in _metrics(line))}
    main_metric = main_metric or next(iter(curves), '')
    if raw := [line for line in evaluations if main_metric in line.get('raw', {})]:
        curves[f'{main_metric} as trained'] = [(line['step'], line['raw'][main_metric]) for line in raw]
    shares = [name for name, points in curves.items() if all(_is_share(value, -1) for _, value in points)]
    main = [name for name in shares if name.removesuffix(' as trained') == main_metric]
    charts = list[Chart]()
    for title, names in ((' '.join(main[:1]), main), ('Other metrics', [name for name in shares if name not in main])):
        charts += chart(title, [Line(name, curves[name], colour) for colour, name in enumerate(names)], last, linear=True)
    for name in [name for name in curves if name not in shares and any(map(_is_known, dict(curves[name]).values()))]:
        charts += chart(name, [Line(name, curves[name], 0)], last)
    return charts


def _is_known(value: object) -> bool:
    """True unless a value of a table is missing or 0."""
    return value is not None and value != 0


def _is_share(value: object, least: float) -> bool:
    return value is None or (isinstance(value, float) and least <= value <= 1)


def _metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in NOT_METRICS}


def detail_values(folder: Path, rows: Sequence[Mapping[str, Any]], figures: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the template values of an evaluation: its table, and its figures as in table.json of `folder`."""
    columns = dict.fromkeys(key for row in rows for key in row)
    return {
        'figures': [figure for figure in (_figure(folder, figure) for figure in figures) if figure['kind'] != 'none'],
        'rows': [
            {column: row.get(column) for column in columns} for row in rows if any(map(_is_known, list(row.values())[1:]))
        ],
        'bars': [column for column in columns if all(_is_share(row.get(column), 0) for row in rows)],
    }


def _embed(folder: Path, cells: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return pictures as data URLs, with their widths, without those whose files are missing."""
    found = []
    for cell in cells:
        path = folder / 'pictures' / cell['file']
        if _is_own(folder / 'pictures', cell['file']):
            kind, data = 'png' if path.suffix == '.png' else 'jpeg', base64.b64encode(path.read_bytes()).decode()
            with contextlib.suppress(*PILLOW_ERRORS):  # not a picture
                width, _ = size_of(path)
                found.append({'caption': cell['caption'], 'data': f'data:image/{kind};base64,{data}', 'width': width})
    return found


def _is_own(folder: Path, name: str) -> bool:
    """True if `name` is a picture directly in `folder`: a run folder from others must not refer to other files."""
    file = folder / name
    is_picture = file.name == name and file.suffix in ('.png', '.jpg')
    return is_picture and file.is_file() and not any(map(Path.is_symlink, (folder, file)))


def _figure(folder: Path, figure: Mapping[str, Any]) -> dict[str, Any]:
    """Return a figure (`families.figures.Figure`) with the values its template needs."""
    match figure['kind']:
        case 'curves':
            lines = [Line(name, points, colour) for colour, (name, points) in enumerate(figure['lines'].items())]
            last = max((x for line in lines for x, _ in line.points), default=1)
            drawn = chart(figure['title'], lines, last, over=figure['x'], unit=figure['y'], zero=True, tall=True)
            return {'kind': 'curves', 'charts': drawn}
        case 'matrix':
            matrix = confusion(figure['names'], figure['counts'])
            return {**figure, 'matrix': matrix} if len(matrix['rows']) > 1 else {**figure, 'kind': 'none'}
        case 'pictures':
            captions = shorten_paths([row['caption'] for row in figure['rows']])
            rows = [
                {'caption': caption, 'cells': _embed(folder, row['cells'])}
                for caption, row in zip(captions, figure['rows'], strict=True)
            ]
            return {**figure, 'rows': [row for row in rows if row['cells']]}
        case _:
            return dict(figure)


def _events(run: Run) -> list[dict[str, Any]]:
    """Return notes and warnings, each text once: a resumed run finds the same bad sample again."""
    seen = {line['text']: line for line in reversed(run.journal) if line['kind'] in ('note', 'warning')}
    return sorted(seen.values(), key=lambda line: line['time'])


def _facts(run: Run) -> dict[str, Any]:
    facts = dict(run.start.get('facts', {}))
    if saved := [line for line in run.journal if line['kind'] == 'saved']:
        mean = math.fsum(line['seconds'] for line in saved) / len(saved)
        facts['checkpoints'] = (
            f'{len(saved)} written, {format_duration(mean)} each; the last at step {format_number(saved[-1]["step"])}'
        )
    return facts


def _time_spent(run: Run) -> list[dict[str, Any]]:
    """Return the parts of the time between the first start and the end of the run; none before the end.

    The share of the steps is the goodput. Steps that were repeated after a crash are not in the times of the summary.
    """
    summary = run.summary
    if 'training_seconds' not in summary or not run.journal:
        return []
    # a finished run that is started again only adds lines behind its last checkpoint
    ends = (line['time'] for line in run.journal if line['kind'] == 'saved' and line['step'] == summary['steps'])
    whole = max(next(ends, run.journal[-1]['time']) - run.journal[0]['time'], summary['seconds'], 1e-9)
    training, waiting = summary['training_seconds'], summary['waiting_seconds']
    evaluating = min(math.fsum(line['seconds'] for line in run.evaluations), summary['seconds'] - training)
    seconds = {
        'steps (goodput)': training - waiting,
        'waiting for data': waiting,
        'evaluations': evaluating,
        'preparation, checkpoints': summary['seconds'] - training - evaluating,
        'between starts, and steps made twice': whole - summary['seconds'],
    }
    return [{'part': part, 'time': format_duration(size), 'share': size / whole} for part, size in seconds.items()]


def _weights(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return facts about the initial weights; a resumed run read them at its first start."""
    return {'facts': {key: value for key, value in line['facts'].items() if isinstance(value, str)}, 'rows': line['rows']}


def _clock(seconds: float) -> str:
    return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))
