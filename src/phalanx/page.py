"""The report of a run as one HTML page without network or script.

It is built from the files of the run folder and nothing else, so it can be rebuilt at any time, in the middle of a run too.
"""

from __future__ import annotations

import base64
import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import chain
from pathlib import Path
from typing import Any, Self

from phalanx.charts import Line, Points, chart, confusion_table, smoothed
from phalanx.disk import write_whole
from phalanx.readable import duration, mebibytes, number, percent

NOT_METRICS = ('kind', 'step', 'samples', 'seconds')


class PageError(OSError):
    """A run folder whose files somebody else wrote, or changed."""


def write_page(folder: Path) -> Path:
    """`folder`/report.html, newly built. Raises OSError when it cannot be written, and PageError when the files of the folder
    are not those of a run; an earlier page then stays as it was."""
    try:
        run = Run.read(folder)
        parts = (_head(run), _tiles(run), _curves(run), _pictures(run), _detail(run), _events(run), _facts(run), _recipe(run))
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise PageError(f'{folder}: its files do not say what a run writes ({type(error).__name__}: {error})') from None
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>{escape(run.name)}</title><style>{CSS}</style></head><body>{"".join(parts)}</body></html>\n'
    )
    write_whole(folder / 'report.html', page.encode())
    return folder / 'report.html'


# What is in a run folder.


@dataclass(frozen=True)
class Run:
    """What the files of a run folder say; empty where there is no file yet."""

    folder: Path
    train: list[dict[str, Any]]  # lines of metrics.jsonl, by step
    evaluations: list[dict[str, Any]]
    journal: list[dict[str, Any]]  # what happened: starts, notes, warnings, checkpoints, each with its time
    summary: dict[str, Any]
    table: dict[str, Any]  # step, rows and figures of the latest evaluation
    pictures: list[list[dict[str, str]]]  # rows of captions and file names
    recipe: str

    @classmethod
    def read(cls, folder: Path) -> Self:
        lines = read_lines(folder / 'metrics.jsonl')
        train = [line for line in lines if line['kind'] == 'train']
        summary = _read_json(folder / 'summary.json', {})
        recipe = folder / 'config.yml'
        return cls(
            folder,
            train,
            [line for line in lines if line['kind'] == 'eval'],
            read_lines(folder / 'journal.jsonl'),
            summary if not train or summary.get('steps', 0) >= train[-1]['step'] else {},  # one of a shorter run is out of date
            _read_json(folder / 'table.json', {}),
            _read_json(folder / 'pictures' / 'index.json', []),
            recipe.read_text(encoding='utf-8') if recipe.is_file() else '',
        )

    @property
    def start(self) -> dict[str, Any]:
        """The latest start of the run."""
        return next((line for line in reversed(self.journal) if line['kind'] == 'start'), {})

    @property
    def name(self) -> str:
        return str(self.start.get('name', self.folder.resolve().name))

    @property
    def step(self) -> int:
        """The step that the run has reached, as far as it is logged."""
        return max((line['step'] for line in (*self.train, *self.evaluations)), default=0)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one JSON object a line; a line that a crash cut off is left out."""
    found = []
    for line in path.read_bytes().splitlines() if path.is_file() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def _read_json(path: Path, otherwise: Any) -> Any:
    try:
        return json.loads(path.read_bytes()) if path.is_file() else otherwise
    except (ValueError, RecursionError) as error:
        raise PageError(f'{path}: is not JSON ({error})') from None


# The sections of the page, from top to bottom.


def _head(run: Run) -> str:
    total = run.start.get('total_steps') or run.summary.get('steps')
    of = f' of {total:,}' if total else ''
    warnings = len({line['text'] for line in run.journal if line['kind'] == 'warning'})
    pills = [('good', 'finished') if run.summary else ('', 'not finished'), ('', f'step {run.step:,}{of}')]
    if warnings:
        pills.append(('bad', f'{warnings} warning{"s" if warnings > 1 else ""}'))
    shown = ''.join(f'<span class="pill {kind}">{escape(text)}</span>' for kind, text in pills)
    begun = f'<p class="muted">begun {_clock(run.journal[0]["time"])}</p>' if run.journal else ''
    return f'<header><p class="brand">Phalanx</p><h1>{escape(run.name)}</h1>{begun}<p>{shown}</p></header>'


def _tiles(run: Run) -> str:
    """The result in numbers: those of the summary, or of the latest lines while there is none."""
    said = run.summary
    last = run.train[-1] if run.train else {}
    final = said.get('metrics') or _metrics(run.evaluations[-1] if run.evaluations else {})
    judged_by = said.get('judged_by') or next(iter(final), '')
    tiles = []
    if judged_by:
        tiles.append((judged_by, number(final.get(judged_by)), f'final, step {number(said.get("steps", run.step))}'))
        scored = [(line[judged_by], line['step']) for line in run.evaluations if line.get(judged_by) is not None]
        best, step = max(scored, key=lambda pair: pair[0], default=(None, None))  # the first of equals, as in training
        best, step = said.get('best', best), said.get('best_step', step)
        tiles.append((f'best {judged_by}', number(best), f'step {number(step)}'))
    tiles += [(name, number(value), 'final') for name, value in final.items() if name != judged_by]
    tiles.append(('loss', number(last.get('loss')), f'step {number(last.get("step"))}'))
    speed, wait = (said.get(key, last.get(key)) for key in ('samples_per_s', 'data_wait'))
    ranks = said.get('world_size', len(run.start.get('ranks', [])) or None)
    tiles.append(('samples/s', number(speed), f'{number(ranks)} rank{"" if ranks == 1 else "s"}'))
    tiles.append(('data wait', percent(wait), 'of the training time'))
    if 'seconds' in said:
        epochs = f'{said["epochs"]:.2f} epochs' if 'epochs' in said else ''
        tiles.append(('time', duration(said['seconds']), epochs))
    tiles.append(('peak memory', mebibytes(said.get('peak_memory_mb', last.get('memory_mb'))), 'of one rank'))
    return '<section class="tiles">' + ''.join(_tile(*tile) for tile in tiles) + '</section>'


def _tile(name: str, value: str, note: str) -> str:
    return f'<div class="tile"><p>{escape(name)}</p><strong>{escape(value)}</strong><p class="muted">{escape(note)}</p></div>'


def _curves(run: Run) -> str:
    if not run.train and not run.evaluations:
        return _section('Curves over steps', '<p class="muted">Nothing is logged yet.</p>')
    terms = list(dict.fromkeys(name for line in run.train for name in line['terms']))
    last = max(run.step, 1)
    loss = chart('Loss', _smoothed('loss', _points(run.train, 'loss'), 0), last, tall=True)
    charts = []
    if len(terms) > 1:
        by_step = [{'step': line['step'], **line['terms']} for line in run.train]
        lines = [line for colour, term in enumerate(terms) for line in _smoothed(term, _points(by_step, term), colour)]
        charts.append(chart('Loss terms', lines, last))
    charts += _metric_charts(run.evaluations, last)
    for title, name, key, unit, scale in (
        ('Learning rate', 'lr', 'lr', '', 1),
        ('Throughput', 'samples/s', 'samples_per_s', 'samples/s', 1),
        ('Time spent waiting for data', 'data wait', 'data_wait', '%', 100),
        ('Peak memory', 'memory', 'memory_mb', 'GiB', 1 / 1024),
    ):
        points = [(step, None if value is None else scale * value) for step, value in _points(run.train, key)]
        charts.append(chart(title, [Line(name, points, 0)], last, unit=unit, zero=True))
    return _section('Curves over steps', f'{loss}<div class="charts">{"".join(charts)}</div>')


def _smoothed(name: str, points: Points, colour: int) -> list[Line]:
    """A curve as it is, and over it its running mean when it has points enough for one."""
    if len(points) < 30:
        return [Line(name, points, colour)]
    return [Line(name, points, colour, faint=True), Line(f'{name}, smoothed', smoothed(points, len(points) // 40 + 1), colour)]


def _points(lines: Iterable[Mapping[str, Any]], key: str) -> Points:
    return [(line['step'], line[key]) for line in lines if key in line]


def _metric_charts(evaluations: Sequence[Mapping[str, Any]], last: int) -> list[str]:
    """Those that lie between -1 and 1 in one chart, each other in its own; whole numbers are counts."""
    names = list(dict.fromkeys(name for line in evaluations for name in _metrics(line)))
    curves = {name: _points(evaluations, name) for name in names}
    shares = [
        name
        for name in names
        if all(isinstance(value, float) and -1 <= value <= 1 for _, value in curves[name] if value is not None)
    ]
    together = [Line(name, curves[name], colour) for colour, name in enumerate(shares)]
    alone = [chart(name, [Line(name, curves[name], 0)], last) for name in names if name not in shares]
    return ([chart('Metrics', together, last, linear=True)] if together else []) + alone


def _metrics(line: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in line.items() if name not in NOT_METRICS}


def _pictures(run: Run) -> str:
    """A row a sample; where each has one picture, side by side."""
    if all(len(row) == 1 for row in run.pictures):
        rows = [_thumbs(run, chain.from_iterable(run.pictures))] if run.pictures else []
    else:
        rows = [f'<div class="pictures" style="--n:{max(len(row), 1)}">{_captioned(run, row)}</div>' for row in run.pictures]
    return _section('Evaluation samples', ''.join([*_legends(run), *rows])) if rows else ''


def _legends(run: Run) -> list[str]:
    """What the colours in the pictures stand for."""
    return [
        '<p class="legend chips">'
        + ''.join(f'<span style="--c:{escape(colour)}">{escape(name)}</span>' for name, colour in figure['colours'].items())
        + '</p>'
        for figure in run.table.get('figures', [])
        if figure['kind'] == 'legend'
    ]


def _thumbs(run: Run, cells: Iterable[Mapping[str, str]]) -> str:
    return f'<div class="thumbs">{_captioned(run, cells)}</div>'


def _captioned(run: Run, cells: Iterable[Mapping[str, str]]) -> str:
    """Pictures, as far as their files are there."""
    return ''.join(
        f'<figure><img src="{_embedded(run.folder / "pictures" / cell["file"])}" alt="{escape(cell["caption"])}">'
        f'<figcaption>{escape(cell["caption"])}</figcaption></figure>'
        for cell in cells
        if _is_own(run.folder / 'pictures', cell['file'])
    )


def _is_own(folder: Path, name: str) -> bool:
    """Whether `name` is that of a picture in `folder` itself: who sends a run folder must not name others."""
    file = folder / name
    return (
        file.name == name
        and file.suffix in ('.png', '.jpg')
        and file.is_file()
        and not any(map(Path.is_symlink, (folder, file)))
    )


def _embedded(path: Path) -> str:
    kind = 'png' if path.suffix == '.png' else 'jpeg'
    return f'data:image/{kind};base64,{base64.b64encode(path.read_bytes()).decode()}'


def _detail(run: Run) -> str:
    """What the latest evaluation says besides its metrics."""
    figures = [figure for figure in run.table.get('figures', []) if figure['kind'] != 'legend']
    parts = [_classes(run.table.get('rows', [])), *(_figure(run, figure) for figure in figures)]
    return _section(f'In detail, step {number(run.table.get("step"))}', ''.join(parts)) if any(parts) else ''


def _classes(rows: Sequence[Mapping[str, Any]]) -> str:
    """A table; a number between 0 and 1 has a bar behind it where all of its column are."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if not rows:
        return ''
    shares = [
        column
        for column in columns
        if all(value is None or (isinstance(value, float) and 0 <= value <= 1) for value in (row.get(column) for row in rows))
    ]
    body = []
    for row in rows:
        cells = []
        for column in columns:
            value = row.get(column)
            bar = f' class="bar" style="--v:{100 * value:.1f}%"' if column in shares and value is not None else ''
            word = ' class="word"' if isinstance(value, str) else ''
            cells.append(f'<td{bar or word}>{escape(number(value))}</td>')
        body.append(f'<tr>{"".join(cells)}</tr>')
    words = {column for column in columns if isinstance(rows[0].get(column), str)}
    head = ''.join(f'<th{" class=word" if column in words else ""}>{escape(column)}</th>' for column in columns)
    return f'<div class="scroll"><table class="numbers"><tr>{head}</tr>{"".join(body)}</table></div>'


def _figure(run: Run, figure: Mapping[str, Any]) -> str:
    """One of `task.Figure`, as it was written."""
    if figure['kind'] == 'curves':
        lines = [Line(name, points, colour) for colour, (name, points) in enumerate(figure['lines'].items())]
        last = max((x for line in lines for x, _ in line.points), default=1)
        return chart(figure['title'], lines, last, over=figure['x'], unit=figure['y'], zero=True, tall=True)
    title = f'<h3>{escape(figure["title"])}</h3>'
    if figure['kind'] == 'matrix':
        return title + confusion_table(figure['names'], figure['counts'])
    return title + _thumbs(run, figure['cells'])


def _events(run: Run) -> str:
    """Notes and warnings, each text once: a resumed run meets the same bad sample again."""
    seen = {line['text']: line for line in reversed(run.journal) if line['kind'] in ('note', 'warning')}
    rows = ''.join(
        f'<tr class="{line["kind"]}"><td class="when">{_clock(line["time"])}</td>'
        f'<td class="when">step {escape(number(line["step"]))}</td><td>{escape(text)}</td></tr>'
        for text, line in sorted(seen.items(), key=lambda item: item[1]['time'])
    )
    return _section('Notes and warnings', f'<div class="scroll"><table>{rows}</table></div>') if rows else ''


def _facts(run: Run) -> str:
    facts = dict(run.start.get('facts', {}))
    if saved := [line for line in run.journal if line['kind'] == 'saved']:
        mean = math.fsum(line['seconds'] for line in saved) / len(saved)
        facts['checkpoints'] = f'{len(saved)} written, {duration(mean)} each; the last at step {number(saved[-1]["step"])}'
    if not facts:
        return ''
    rows = ''.join(f'<tr><th>{escape(key)}</th><td>{escape(str(value))}</td></tr>' for key, value in facts.items())
    table = f'<div class="scroll"><table>{rows}</table></div>'
    return _section('The run', table + _ranks(run.start.get('ranks', [])))


def _ranks(ranks: Sequence[Mapping[str, Any]]) -> str:
    if not ranks:
        return ''
    head = ''.join(f'<th>{escape(key)}</th>' for key in ranks[0])
    rows = ''.join('<tr>' + ''.join(f'<td>{escape(str(value))}</td>' for value in rank.values()) + '</tr>' for rank in ranks)
    table = f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'
    summary = f'{len(ranks)} rank{"" if len(ranks) == 1 else "s"}'
    return f'<details{" open" if len(ranks) <= 8 else ""}><summary>{summary}</summary>{table}</details>'


def _recipe(run: Run) -> str:
    if not run.recipe:
        return ''
    summary = 'Recipe, each value with its origin'
    return f'<section><details><summary>{summary}</summary><pre>{escape(run.recipe)}</pre></details></section>'


def _section(title: str, content: str) -> str:
    return f'<section><h2>{escape(title)}</h2>{content}</section>'


def _clock(seconds: float) -> str:
    return time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(seconds))


CSS = """
:root{color-scheme:light dark;--paper:#f6f7f9;--card:#fff;--ink:#1a2230;--muted:#667085;--line:#e3e7ee;--good:#12805c;
--bad:#b54708;--tint:#a9c6f3;--c0:#2563c9;--c1:#d97706;--c2:#0f8a6d;--c3:#8b5cc7;--c4:#c73e5c;--c5:#5f7d95}
@media (prefers-color-scheme:dark){:root{--paper:#0f141b;--card:#171e28;--ink:#e6eaf1;--muted:#93a0b4;--line:#2a3442;
--good:#4cc79a;--bad:#f0a04b;--tint:#33588f;--c0:#6ea3f5;--c1:#f0a94a;--c2:#45c4a0;--c3:#b692ea;--c4:#ee7d95;--c5:#94b1c8}}
*{box-sizing:border-box}
body{margin:0 auto;padding:28px clamp(12px,3vw,40px) 60px;max-width:1320px;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Noto Sans","DejaVu Sans",sans-serif;font-variant-numeric:tabular-nums}
p{margin:0}.muted{color:var(--muted)}
.brand{font-size:12px;letter-spacing:.14em;text-transform:uppercase;color:var(--c0);font-weight:600}
h1{margin:2px 0 4px;font-size:clamp(22px,4vw,32px);line-height:1.2;overflow-wrap:anywhere}
h2{margin:0 0 12px;font-size:18px}
h3{margin:0;font-size:14px;font-weight:600}h3 small{color:var(--muted);font-weight:400;margin-left:8px}
section{margin-top:36px}section>h3{margin:22px 0 8px}section>.chart{margin-top:14px}
.pill{display:inline-block;margin:8px 8px 0 0;padding:1px 11px;border:1px solid var(--line);border-radius:99px;
background:var(--card);font-size:13px}.pill.good{color:var(--good);border-color:currentColor}.pill.bad{color:var(--bad);border-color:currentColor}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(clamp(142px,17vw,200px),1fr));gap:12px;margin-top:22px}
.tile,.chart,table,pre{background:var(--card);border:1px solid var(--line);border-radius:10px}
.tile{padding:12px 14px;font-size:13px}
.tile strong{display:block;font-size:clamp(18px,2vw,23px);line-height:1.4;font-weight:650}
.tile:first-child strong{color:var(--c0)}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,380px),1fr));gap:14px;margin-top:14px}
.chart{padding:14px 16px 8px;min-width:0}
.legend{min-height:20px;font-size:12px;color:var(--muted)}.legend span{margin-right:14px;white-space:nowrap}
.legend span:before{content:"";display:inline-block;width:14px;height:3px;border-radius:2px;margin-right:6px;vertical-align:3px;
background:var(--c)}.chips{margin-bottom:10px}.chips span{display:inline-block}
.chips span:before{height:12px;vertical-align:-2px}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
.plot{position:relative;height:190px;margin:8px 6px 26px 46px}.tall .plot{height:280px}
svg{position:absolute;inset:0;width:100%;height:100%;overflow:visible}
path{fill:none;vector-effect:non-scaling-stroke}.grid{stroke:var(--line);stroke-width:1}
.curve{stroke:var(--c);stroke-width:2;stroke-linejoin:round;stroke-linecap:round}.faint{stroke-width:1;opacity:.45}
.x,.y{position:absolute;font-size:11.5px;line-height:1;color:var(--muted);white-space:nowrap}
.x{top:calc(100% + 9px);transform:translateX(-50%)}.y{right:calc(100% + 8px);transform:translateY(50%)}
.dot{position:absolute;width:7px;height:7px;margin:0 0 -3.5px -3.5px;border-radius:50%;background:var(--c)}
.strip{position:absolute;top:0;bottom:0;font-style:normal}.strip b{display:none;position:absolute;z-index:2;top:4px;left:100%;
margin:0 8px;padding:5px 9px;border-radius:6px;background:var(--ink);color:var(--paper);font-weight:400;font-size:12px;
line-height:1.45;white-space:pre;pointer-events:none}.strip.r b{left:auto;right:100%}
.strip:hover{background:linear-gradient(var(--muted),var(--muted)) center/1px 100% no-repeat}.strip:hover b{display:block}
.pictures{display:grid;grid-template-columns:repeat(var(--n),minmax(0,1fr));gap:8px;margin-bottom:12px}
.thumbs{display:grid;grid-template-columns:repeat(auto-fill,minmax(180px,1fr));gap:12px}
.thumbs img{height:72px;object-fit:contain;background:var(--card)}
figure{margin:0}img{display:block;width:100%;height:auto;border-radius:6px;border:1px solid var(--line)}
figcaption{padding:3px 2px;font-size:12px;color:var(--muted);overflow-wrap:anywhere}
.scroll{overflow:auto;max-height:780px;border-radius:10px}table{border-collapse:separate;border-spacing:0;width:100%;font-size:14px}
th,td{padding:6px 12px;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}tr:last-child>*{border-bottom:0}
th{font-weight:500;color:var(--muted);white-space:nowrap}td{overflow-wrap:anywhere}
.numbers tr:first-child th{position:sticky;top:0;background:var(--card);z-index:1}
.numbers td,.numbers th{text-align:right;white-space:nowrap}
.numbers td:first-child,.numbers th:first-child,.numbers .word{text-align:left}
.bar{background:linear-gradient(var(--tint),var(--tint)) left bottom -4px/var(--v) 3px no-repeat content-box border-box}
.matrix{width:auto;font-size:12.5px}.matrix td,.matrix th{padding:4px 7px;text-align:right;white-space:nowrap;border:0}
.matrix thead th{vertical-align:bottom}.matrix thead th span.long{writing-mode:vertical-rl;transform:rotate(180deg)}
.matrix td{min-width:38px;background:color-mix(in srgb,var(--c) calc(var(--v)*1%),transparent)}.matrix td.deep{color:#fff}
.warning td{color:var(--bad)}td.when{white-space:nowrap;width:1px;color:var(--muted)}
details{margin-top:12px}summary{cursor:pointer;color:var(--muted)}
pre{margin:10px 0 0;padding:14px 16px;overflow:auto;font:12.5px/1.55 ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace}
@media print{body{background:none}.strip{display:none}}
"""
