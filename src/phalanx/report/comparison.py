"""Page that compares runs: their curves, their recipes, and their models on the same images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.families.figures import Figure
from phalanx.report.charts import Chart, Line, Points, chart, smooth
from phalanx.report.figures import embed
from phalanx.report.page import NOT_METRICS, Run, render
from phalanx.system.disk import write_atomically

SMOOTHED_FROM = 30  # points of a curve, as on the page of a run


@dataclass(frozen=True)
class Section:
    """Comparison of the models of two runs: rows of tables, and figures."""

    title: str
    metrics: Sequence[Mapping[str, Any]]
    classes: Sequence[Mapping[str, Any]]
    figures: Sequence[Figure]


def write_comparison(
    file: Path,
    runs: Mapping[str, Run],
    facts: Sequence[Mapping[str, Any]],
    keys: Sequence[Mapping[str, Any]],
    sections: Sequence[Section],
) -> None:
    """Write the page. `runs` by name, the first being the baseline; `facts` are rows, one per run; `keys` one per key that
    differs. Raises OSError.
    """
    shown = [{**vars(section), 'figures': embed((), section.figures)['figures']} for section in sections]
    values = {'title': ' and '.join(runs), 'facts': facts, 'keys': keys, 'charts': _charts(runs), 'sections': shown}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, render('comparison.html', values).encode())


def _charts(runs: Mapping[str, Run]) -> list[Chart]:
    """Return one chart of each quantity, with a curve of each run that has it."""
    last = max([1, *(run.log.step for run in runs.values())])
    charts = list[Chart]()
    names = dict.fromkeys(key for run in runs.values() for line in run.evaluations for key in line if key not in NOT_METRICS)
    for name in names:
        curves = {run: _points(of.evaluations, name) for run, of in runs.items()}
        if any(value for points in curves.values() for _, value in points):
            charts += chart(name, [Line(run, points, colour) for colour, (run, points) in enumerate(curves.items())], last)
    for title, key in (('Loss', 'loss'), ('Learning rate', 'lr'), ('Samples per second', 'samples_per_s')):
        lines = list[Line]()
        for colour, (name, run) in enumerate(runs.items()):
            points = run.log.means.get(key, ())
            is_long = len(points) >= SMOOTHED_FROM and key == 'loss'
            lines.append(Line(name, smooth(points, len(points) // 40 + 1) if is_long else points, colour))
        charts += chart(title, lines, last)
    return charts


def _points(lines: Sequence[Mapping[str, Any]], key: str) -> Points:
    return [(line['step'], line[key]) for line in lines if key in line]
