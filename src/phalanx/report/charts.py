"""Charts for pages without script. A plot is an SVG that stretches with the page; its labels are HTML, of one size everywhere.

The style classes that they use stand in the style sheet of `page`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import accumulate, pairwise

from phalanx.report.readable import number

COLOURS = 6
FINE = 400  # points of a curve that a page can show
COUNTED = ('step', 'ranks')  # what an axis has whole numbers of

MOST_CLASSES = 30  # that a table can show so that a person sees them

Points = Sequence[tuple[float, float | None]]  # (step, value); None is a gap


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    name: str
    points: Points
    colour: int
    faint: bool = False  # drawn thin, behind the others, and not in the legend


@dataclass(frozen=True)
class Axis:
    """From values to per cent of the plot's side."""

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def place(self, value: float) -> float:
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return 100 * (value - low) / (high - low)

    def label(self, tick: float) -> str:
        """A tick as text, with the decimals that its neighbours need."""
        largest = max(abs(tick) for tick in self.ticks)
        for size, letter in ((1e6, 'M'), (1e4, 'k')):
            if largest >= size:
                return f'{tick / (1000 if letter == "k" else size):g}{letter}' if tick else '0'
        apart = min((b - a for a, b in pairwise(self.ticks)), default=1.0)
        if self.log or tick == 0 or apart < 1e-4:
            return f'{tick:g}'
        return f'{tick:.{max(0, -math.floor(math.log10(apart) + 1e-9))}f}'


def chart(
    title: str,
    lines: Sequence[Line],
    last: float,
    *,
    over: str = 'step',
    unit: str = '',
    zero: bool = False,
    linear: bool = False,
    tall: bool = False,
) -> str:
    """A titled chart of `lines` over steps (or what `over` names) from 0 to `last`; empty without a value.

    With `zero` the value axis begins at 0; it is logarithmic where values differ much, unless it is to be `linear`.
    """
    values = [value for line in lines for _, value in line.points if value is not None]
    if not values:
        return ''
    x, y = _across(last, whole=over in COUNTED), _value_axis(min(values), max(values), zero, linear)
    grid = ''.join(f'<path class="grid" d="M0 {100 - y.place(tick):.2f}H100"/>' for tick in y.ticks)
    curves = ''.join(_curve(line, x, y) for line in sorted(lines, key=lambda line: not line.faint))
    labels = ''.join(f'<span class="y" style="bottom:{y.place(t):.2f}%">{y.label(t)}</span>' for t in y.ticks)
    labels += ''.join(f'<span class="x" style="left:{x.place(t):.2f}%">{x.label(t)}</span>' for t in x.ticks)
    shown = [line for line in lines if not line.faint]
    dots = ''.join(_dots(line, x, y) for line in shown)
    legend = ''.join(f'<span class="c{line.colour % COLOURS}">{escape(line.name)}</span>' for line in shown)
    notes = ', '.join(filter(None, (unit, 'log scale' if y.log else '', f'over {over}' if over != 'step' else '')))
    return (
        f'<div class="chart{" tall" if tall else ""}"><h3>{escape(title)}<small>{escape(notes)}</small></h3>'
        f'<p class="legend">{legend if len(lines) > 1 else ""}</p><div class="plot">'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="{escape(title)}">{grid}{curves}</svg>'
        f'{labels}{dots}{_readings(lines, x, over)}</div></div>'
    )


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten that cover `low` to `high` (below it), no more than `about` + 2 of them."""
    assert low < high
    wanted = (high - low) / about
    power = math.floor(math.log10(wanted))
    digit, power = next(((digit, power) for digit in (1, 2, 5) if digit * 10.0**power >= wanted * (1 - 1e-9)), (1, power + 1))
    step = digit * 10.0**power
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Division by a whole power of ten rounds once: 3 / 10 is 0.3, 3 * 0.1 is not.
    return [n * digit * 10.0**power if power >= 0 else n * digit / 10.0**-power for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten (powers alone when those are many) that cover `low` to `high`, both above 0."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in ((1, 2, 5) if len(powers) <= 4 else (1,))]
    first = max(n for n, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    last = min(n for n, tick in enumerate(ticks) if tick >= high * (1 - 1e-9))
    return ticks[first : last + 1]


def thinned(points: Points, most: int = FINE) -> Points:
    """At most `most` points that draw the same picture: of each stretch of steps the lowest and the highest, in order."""
    if len(points) <= most:
        return points
    stretches = most // 2
    kept = []
    for n in range(stretches):
        stretch = points[n * len(points) // stretches : (n + 1) * len(points) // stretches]
        known = [point for point in stretch if point[1] is not None] or stretch[:1]
        ends = (min(known, key=lambda point: point[1] or 0), max(known, key=lambda point: point[1] or 0))
        kept += sorted(set(ends), key=lambda point: point[0])
    return kept


def smoothed(points: Points, reach: int) -> Points:
    """The mean of each point and of `reach` points on either side, as far as there are any; gaps stay gaps."""
    sums = list(accumulate((value or 0.0 for _, value in points), initial=0.0))
    counts = list(accumulate((value is not None for _, value in points), initial=0))
    means: list[tuple[float, float | None]] = []
    for n, (step, value) in enumerate(points):
        first, last = max(0, n - reach), min(len(points), n + reach + 1)
        mean = None if value is None else (sums[last] - sums[first]) / (counts[last] - counts[first])
        means.append((step, mean))
    return means


def _across(last: float, *, whole: bool) -> Axis:
    return Axis(0, last, [tick for tick in nice_ticks(0, last) if tick <= last and (tick.is_integer() or not whole)])


def _value_axis(low: float, high: float, zero: bool, linear: bool) -> Axis:
    if zero:
        low = min(low, 0.0)
    if low > 0 and high > 30 * low and not linear:
        ticks = log_ticks(low, high)
        return Axis(ticks[0], ticks[-1], ticks, log=True)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a flat curve runs through the middle, or along the axis at 0
        margin = 0.05 * abs(high) or 1.0
        low, high = (0.0 if zero or low == 0 else low - margin), high + margin
    ticks = nice_ticks(low, high)
    return Axis(ticks[0], ticks[-1], ticks)


def _curve(line: Line, x: Axis, y: Axis) -> str:
    pen, path = 'M', []
    for step, value in thinned(line.points):
        if value is None:
            pen = 'M'
            continue
        path.append(f'{pen}{x.place(step):.2f} {100 - y.place(value):.2f}')
        pen = 'L'
    return f'<path class="curve c{line.colour % COLOURS}{" faint" if line.faint else ""}" d="{"".join(path)}"/>'


def _dots(line: Line, x: Axis, y: Axis) -> str:
    """A dot at each point of a curve that has few: one alone would not be seen."""
    if len(line.points) > 40:
        return ''
    return ''.join(
        f'<span class="dot c{line.colour % COLOURS}" style="left:{x.place(step):.2f}%;bottom:{y.place(value):.2f}%"></span>'
        for step, value in line.points
        if value is not None
    )


def _readings(lines: Sequence[Line], x: Axis, over: str) -> str:
    """Upright strips over the plot, each with the values there, which show under the pointer."""
    steps = sorted({step for line in lines for step, _ in line.points})
    steps = steps[:: math.ceil(len(steps) / 100)]
    values = [(line.name, dict(line.points)) for line in lines]
    edges = [x.low, *((a + b) / 2 for a, b in pairwise(steps)), x.high]
    strips = []
    for step, left, right in zip(steps, edges[:-1], edges[1:], strict=True):
        text = '\n'.join(
            [f'{over} {number(step)}', *(f'{name} {number(at[step])}' for name, at in values if at.get(step) is not None)]
        )
        side = ' r' if x.place(step) > 50 else ''
        place = f'left:{x.place(left):.2f}%;width:{x.place(right) - x.place(left):.2f}%'
        strips.append(f'<i class="strip{side}" style="{place}"><b>{escape(text)}</b></i>')
    return ''.join(strips)


# What is taken for what.


def confusion_table(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """A table of the shares of each row, in per cent and as shades; of many classes those most often mistaken."""
    shown = _most_mistaken(counts)
    head = ''.join(f'<th><span{" class=long" if len(names[n]) > 4 else ""}>{escape(names[n])}</span></th>' for n in shown)
    body = ''.join(f'<tr><th>{escape(names[n])}</th>{_shares(names[n], names, counts[n], shown)}</tr>' for n in shown)
    left_out = (
        f'<p class="muted">{len(shown)} of {len(names)}, those most often mistaken</p>' if len(shown) < len(names) else ''
    )
    return (
        f'{left_out}<div class="scroll"><table class="matrix c0"><thead><tr><th>truth \\ prediction, %</th>{head}</tr></thead>'
        f'{body}</table></div>'
    )


def _most_mistaken(counts: Sequence[Sequence[int]]) -> list[int]:
    """The places of the classes with most mistakes, of their own or of others for them, in order."""
    mistakes = [sum(own) + sum(row[n] for row in counts) - 2 * own[n] for n, own in enumerate(counts)]
    return sorted(sorted(range(len(counts)), key=lambda n: -mistakes[n])[:MOST_CLASSES])


def _shares(truth: str, names: Sequence[str], counts: Sequence[int], shown: Sequence[int]) -> str:
    """The cells of a row."""
    total = sum(counts)
    cells = []
    for n in shown:
        share = 100 * counts[n] / total if total else 0.0
        text = f'{share:.0f}' if share >= 0.5 else ('·' if counts[n] else '')
        told = escape(f'{truth} taken for {names[n]}: {counts[n]:,} of {total:,}')
        cells.append(f'<td{" class=deep" if share > 55 else ""} style="--v:{share:.0f}" title="{told}">{text}</td>')
    return ''.join(cells)
