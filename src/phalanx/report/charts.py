"""Charts for pages without script: data for the templates. Positions are per cent of the plot, from its left and bottom."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

from phalanx.report.readable import format_number

COLOURS = 8
GREY = 7  # the colour for what is no curve
FINE = 400  # maximum number of points per curve
DOTTED = 40  # up to this number of points a curve has dots: a single point would be invisible
STRIPS = 100  # maximum number of positions at which the pointer shows values
INTEGER_AXES = ('step', 'ranks', 'trial')  # quantities with integer ticks
MOST_CLASSES = 30  # maximum size of a readable confusion matrix

Points = Sequence[tuple[float, float | None]]  # (step, value); None is a gap
Chart = dict[str, Any]  # for the macro `chart` of templates/parts.html


@dataclass(frozen=True)
class Line:
    """One curve of a chart."""

    name: str
    points: Points
    colour: int
    faint: bool = False  # drawn thin, behind the others, and not in the legend


@dataclass(frozen=True)
class Axis:
    """Mapping from values to per cent of the plot's side."""

    low: float
    high: float
    ticks: Sequence[float]
    log: bool = False

    def place(self, value: float) -> float:
        """Position of `value` on the axis."""
        low, high, value = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return 100 * (value - low) / (high - low)

    def labels(self) -> list[tuple[float, str]]:
        """Positions and texts of the ticks."""
        return [(self.place(tick), self.label(tick)) for tick in self.ticks]

    def label(self, tick: float) -> str:
        """Text of a tick, with the decimals that its neighbours need."""
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
    x: Axis | None = None,
) -> list[Chart]:
    """Return a titled chart of `lines` over steps (or the quantity `over`) from 0 to `last`; empty without a value.

    `x`: another axis than from 0 to `last`.

    With `zero` the value axis starts at 0; it is logarithmic for a wide range of values, unless `linear`. Raises ValueError for
    a value that is not finite: a run writes none.
    """
    # a chart without values is left out
    values = [value for line in lines for _, value in line.points if value is not None]
    if not values:
        return []
    if not all(map(math.isfinite, values)):
        raise ValueError(f'{title}: a value is not finite')
    # axes, then curves with faint ones below, then labels
    ticks = [tick for tick in nice_ticks(0, last) if tick <= last and (tick.is_integer() or over not in INTEGER_AXES)]
    x, y = x or Axis(0, last, ticks), _value_axis(min(values), max(values), zero, linear)
    notes = ', '.join(filter(None, (unit, 'log scale' if y.log else '', f'over {over}' if over != 'step' else '')))
    curves = [_curve(line, x, y) for line in sorted(lines, key=lambda line: not line.faint)]
    labels = {'x': x.labels(), 'y': y.labels(), 'strips': _readings(lines, x, over)}
    return [{'title': title, 'notes': notes, 'tall': tall, 'curves': curves, **labels}]


def log_axis(low: float, high: float) -> Axis:
    """Return the axis of powers of ten from `low` to `high`, both above 0."""
    return Axis(low, high, [tick for tick in log_ticks(low, high) if low <= tick <= high], log=True)


def parallel_coordinates(title: str, axes: Mapping[str, Sequence[float | None]], labels: Sequence[str], best: int) -> Chart:
    """Return a chart with one upright axis per quantity and one curve per row, the first `best` ones strong.

    `axes`: position of each row on the axis, 0 .. 100; None where a row has no value. `labels` of the rows, the best first, of
    which the legend has the strong ones.
    """
    places = [100 * number / max(len(axes) - 1, 1) for number in range(len(axes))]
    upright = [{'line': Line('', (), GREY, faint=True), 'colour': GREY, 'path': f'M{x:.2f} 0V100', 'dots': ()} for x in places]
    curves = []
    for row, label in enumerate(labels):
        points = [(x, values[row]) for x, values in zip(places, axes.values(), strict=True) if values[row] is not None]
        path = ''.join(f'{"L" if number else "M"}{x:.2f} {100 - (y or 0):.2f}' for number, (x, y) in enumerate(points))
        line = Line(label, (), int(row >= best), faint=row >= best)
        curves.append({'line': line, 'colour': line.colour, 'path': path, 'dots': ()})
    # Names do not fit under the axes of a narrow page: they have numbers there.
    names = ', '.join(f'{number}: {name}' for number, name in enumerate(axes, 1))
    numbers = [(place, str(number)) for number, place in enumerate(places, 1)]
    notes = f'{names}; strong: the best {best} of {len(labels)}'
    chart = {'title': title, 'notes': notes, 'tall': True, 'curves': [*upright, *curves[::-1]]}
    return {**chart, 'x': numbers, 'y': (), 'strips': ()}


def nice_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten that cover `low` to `high` (`low` < `high`), at most `about` + 2 of
    them.
    """
    assert low < high
    raw_step = (high - low) / about
    power = math.floor(math.log10(raw_step))
    digit, power = next(((digit, power) for digit in (1, 2, 5) if digit * 10.0**power >= raw_step * (1 - 1e-9)), (1, power + 1))
    step = digit * 10.0**power
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    # Division by an integer power of ten rounds once: 3 / 10 is 0.3, 3 * 0.1 is not.
    return [n * digit * 10.0**power if power >= 0 else n * digit / 10.0**-power for n in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times powers of ten (powers alone if those are many) that cover `low` to `high`, both above 0."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in ((1, 2, 5) if len(powers) <= 4 else (1,))]
    first = max(n for n, tick in enumerate(ticks) if tick <= low * (1 + 1e-9))
    last = min(n for n, tick in enumerate(ticks) if tick >= high * (1 - 1e-9))
    return ticks[first : last + 1]


def thin_out(points: Points, most: int = FINE) -> Points:
    """Reduce to at most `most` points that draw the same picture: the minimum and maximum of each stretch of steps, in
    order.
    """
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


def smooth(points: Points, reach: int) -> Points:
    """Replace each point by the mean over `reach` points on either side, as far as available; gaps stay gaps."""
    sums = list(accumulate((value or 0.0 for _, value in points), initial=0.0))
    counts = list(accumulate((value is not None for _, value in points), initial=0))
    means: list[tuple[float, float | None]] = []
    for n, (step, value) in enumerate(points):
        first, last = max(0, n - reach), min(len(points), n + reach + 1)
        mean = None if value is None else (sums[last] - sums[first]) / (counts[last] - counts[first])
        means.append((step, mean))
    return means


def _value_axis(low: float, high: float, zero: bool, linear: bool) -> Axis:
    """Return the axis for values from `low` to `high`."""
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low > 0 and high > 30 * low and not linear:
        ticks = log_ticks(low, high)
        return Axis(ticks[0], ticks[-1], ticks, log=True)
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a flat curve runs through the middle, or along the axis at 0
        margin = 0.05 * abs(high) or 1.0
        low, high = (0.0 if low == 0 else low - margin), high + margin
    ticks = nice_ticks(low, high)
    return Axis(ticks[0], ticks[-1], ticks)


def _curve(line: Line, x: Axis, y: Axis) -> dict[str, Any]:
    """Return path and dots of a curve."""
    pen, path = 'M', ''
    for step, value in thin_out(line.points):
        if value is not None:
            path += f'{pen}{x.place(step):.2f} {100 - y.place(value):.2f}'
        pen = 'M' if value is None else 'L'
    dotted = line.points if len(line.points) <= DOTTED and not line.faint else ()
    dots = [(x.place(step), y.place(value)) for step, value in dotted if value is not None]
    return {'line': line, 'colour': line.colour % COLOURS, 'path': path, 'dots': dots}


def _readings(lines: Sequence[Line], x: Axis, over: str) -> list[tuple[float, float, str]]:
    """Return vertical strips over the plot, each with the values there, to show under the pointer."""
    steps = sorted({step for line in lines if not line.faint for step, _ in line.points})  # faint ones have a smoothed line
    steps = steps[:: math.ceil(len(steps) / STRIPS)]
    values = [(line.name, dict(line.points)) for line in lines]
    edges = [x.place(edge) for edge in (x.low, *((a + b) / 2 for a, b in pairwise(steps)), x.high)]
    strips = []
    for step, left, right in zip(steps, edges[:-1], edges[1:], strict=True):
        there = [f'{name} {format_number(at[step])}' for name, at in values if at.get(step) is not None]
        strips.append((left, right - left, '\n'.join([f'{over} {format_number(step)}', *there])))
    return strips


def confusion(names: Sequence[str], counts: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Return a confusion matrix as row percentages; of many classes, only the most confused ones."""
    mistakes = [sum(own) + sum(row[n] for row in counts) - 2 * own[n] for n, own in enumerate(counts)]
    shown = sorted(sorted(range(len(counts)), key=lambda n: -mistakes[n])[:MOST_CLASSES])
    rows = []
    for truth in (n for n in shown if any(counts[n])):  # a class without samples has no shares
        total, cells = sum(counts[truth]), []
        for n in shown:
            count = counts[truth][n]
            share = 100 * count / total
            text = f'{share:.0f}' if share >= 0.5 else ('·' if count else '')
            cells.append((share, text, f'{names[truth]} taken for {names[n]}: {count:,} of {total:,}'))
        rows.append((names[truth], cells))
    note = f'{len(shown)} of {len(names)}, those most often mistaken' if len(shown) < len(names) else ''
    return {'note': note, 'names': [names[n] for n in shown], 'rows': rows}
