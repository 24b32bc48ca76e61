"""Log of a run, metrics.jsonl, in bounded memory: curves of any length, thinned without losing extremes.

A curve is kept in at most MOST stretches of steps, each with its lowest, highest and mean value. While a run has no more steps
than that, a stretch is one step and nothing is lost. A long log is not read as a whole either: a summary of its beginning lies
beside it, in curves.json.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Self

from phalanx.report.charts import Points
from phalanx.system.disk import write_atomically

MOST = 1024  # stretches of steps per curve
NOT_NUMBERS = ('kind', 'step', 'epoch', 'terms')
TERM = 'terms/'  # prefix of the curves of loss terms
SUMMARISED = 5000  # lines after which the summary is written again
TAIL = 4096  # bytes before its end by which the summary recognises the log


class Stretch:
    """Values of one curve in a stretch of steps."""

    __slots__ = ('count', 'gap', 'high', 'low', 'total')

    def __init__(self) -> None:
        self.low: tuple[float, int] | None = None  # lowest value, and its step
        self.high: tuple[float, int] | None = None
        self.total, self.count = 0.0, 0  # sum and number of values
        self.gap: int | None = None  # first step with a value that is not finite

    def add(self, step: int, value: float | None) -> None:
        if value is None:
            self.gap = step if self.gap is None else self.gap
            return
        self.low = min(self.low or (value, step), (value, step))
        self.high = max(self.high or (value, step), (value, step))
        self.total += value
        self.count += 1

    def merge(self, later: Stretch) -> None:
        """Add the values of the stretch behind this one."""
        if later.low is not None and later.high is not None:
            self.low, self.high = min(self.low or later.low, later.low), max(self.high or later.high, later.high)
        self.total += later.total
        self.count += later.count
        self.gap = later.gap if self.gap is None else self.gap

    def points(self) -> Points:
        """Extremes, in order; a step without a finite value is a gap."""
        known: set[tuple[float, float | None]] = {(step, value) for value, step in filter(None, (self.low, self.high))}
        gaps: set[tuple[float, float | None]] = {(self.gap, None)} if self.gap is not None else set()
        return sorted(known | gaps, key=lambda point: point[0])

    def mean(self) -> float | None:
        return self.total / self.count if self.count else None


@dataclass(frozen=True)
class Log:
    """Content of a log, for the page: evaluations whole, curves thinned."""

    last: Mapping[str, Any]  # latest training line; empty before the first
    step: int  # latest one
    evaluations: list[dict[str, Any]]
    curves: Mapping[str, Points]  # by key; loss terms begin with TERM
    means: Mapping[str, Points]  # of each stretch, by key


@dataclass
class History:
    """Lines of a log, added one by one."""

    width: int = 1  # steps per stretch, a power of two
    lines: int = 0
    step: int = 0
    last: dict[str, Any] = field(default_factory=dict)
    evaluations: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, dict[int, Stretch]] = field(default_factory=dict)

    def add(self, line: dict[str, Any]) -> None:
        """Add a line. Raises LookupError, TypeError or ValueError for one that no run writes."""
        self.lines += 1
        self.step = max(self.step, line['step'])
        if line['kind'] == 'eval':
            self.evaluations.append(line)
        elif line['kind'] == 'train':
            self.last = line
            numbers = {key: value for key, value in line.items() if key not in NOT_NUMBERS}
            numbers |= {TERM + name: value for name, value in line['terms'].items()}
            while line['step'] // self.width >= MOST:
                self._widen()
            number = line['step'] // self.width
            for key, value in numbers.items():
                curve = self.curves.setdefault(key, {})
                if number not in curve:
                    curve[number] = Stretch()
                curve[number].add(line['step'], value)

    def _widen(self) -> None:
        """Make each pair of stretches one."""
        self.width *= 2
        for key, curve in self.curves.items():
            wider: dict[int, Stretch] = {}
            for number, stretch in curve.items():
                if number // 2 in wider:
                    wider[number // 2].merge(stretch)
                else:
                    wider[number // 2] = stretch
            self.curves[key] = wider

    def log(self) -> Log:
        """Content so far, which later lines do not change."""
        curves = {key: [point for each in curve.values() for point in each.points()] for key, curve in self.curves.items()}
        means = {
            key: curves[key]
            if self.width == 1
            else [((number + 0.5) * self.width, each.mean()) for number, each in curve.items()]
            for key, curve in self.curves.items()
        }
        return Log(self.last, self.step, [*self.evaluations], curves, means)

    def cut(self, file: BinaryIO, step: int) -> int:
        """Forget what comes after `step`; return where that begins in `file`, the log.

        Stretches that reach beyond it are built again, from the lines of `file`.
        """
        end = _find_after(file, step)
        whole = max((number for number in self.curves.get('loss', {}) if number * self.width <= step), default=0)
        first = whole * self.width
        self.width = self.width if whole else 1  # all of it is built again
        for curve in self.curves.values():
            for number in [number for number in curve if number >= whole]:
                del curve[number]
        self.evaluations = [line for line in self.evaluations if line['step'] < first]
        self.step, self.last = 0, {}
        for line in _lines(file, _find_after(file, first - 1), end):
            self.add(line)
        self.step = max([self.step, *(line['step'] for line in self.evaluations[-1:])])
        return end

    # The summary beside the log.

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read the log of a run folder: from its summary, and the lines behind what that covers."""
        path, history, begin = folder / 'metrics.jsonl', cls(), 0
        if not path.is_file():
            return history
        with path.open('rb') as file:
            with contextlib.suppress(OSError, LookupError, TypeError, ValueError):  # damaged, or of another version
                history, begin = cls._summary(json.loads((folder / 'curves.json').read_bytes()), file)
            for line in _lines(file, begin):
                history.add(line)
        return history

    @classmethod
    def _summary(cls, state: dict[str, Any], file: BinaryIO) -> tuple[Self, int]:
        """History of a summary, and the end of the lines in it. Raises ValueError if it is not that of `file`."""
        if state.pop('tail') != _tail(file, end := state.pop('end')):
            raise ValueError('the log is another one')
        history = cls(**state)
        for key, curve in state['curves'].items():
            history.curves[key] = {}
            for number, low, high, total, count, gap in curve:
                stretch = history.curves[key][number] = Stretch()
                stretch.low, stretch.high = tuple(low) if low else None, tuple(high) if high else None
                stretch.total, stretch.count, stretch.gap = total, count, gap
        return history, end

    def summary(self, file: BinaryIO) -> dict[str, Any]:
        """Content of curves.json, when all lines of `file` are in this history."""
        end = file.seek(0, 2)
        curves = {
            key: [(number, each.low, each.high, each.total, each.count, each.gap) for number, each in curve.items()]
            for key, curve in self.curves.items()
        }
        return {**vars(self), 'evaluations': [*self.evaluations], 'curves': curves, 'end': end, 'tail': _tail(file, end)}


def write_summary(folder: Path, summary: Mapping[str, Any]) -> None:
    """Write curves.json. Raises OSError."""
    write_atomically(folder / 'curves.json', json.dumps(summary).encode())


def _tail(file: BinaryIO, end: int) -> str:
    """Digest of the TAIL bytes of a file before `end`."""
    begin = max(0, end - TAIL)
    file.seek(begin)
    return hashlib.sha256(file.read(end - begin)).hexdigest()


def _lines(file: BinaryIO, begin: int, end: int | None = None) -> Iterator[dict[str, Any]]:
    """Lines between two places of a file; one that was cut off by a crash is left out."""
    file.seek(begin)
    while (end is None or file.tell() < end) and (line := file.readline()):
        with contextlib.suppress(ValueError):
            yield json.loads(line)


def _find_after(file: BinaryIO, step: int) -> int:
    """Place of the first line after `step`, or the end of the file: found by bisection, as steps never decrease.

    A line that was cut off by a crash counts as later.
    """
    low, high = 0, file.seek(0, 2)  # a line begins at `low`; the one that is sought begins in low .. high
    while low < high:
        middle = (low + high) // 2
        file.seek(middle)
        begin = middle + len(file.readline()) if middle > low else low  # of a line, unless it is at `low`
        if begin >= high:  # the rest is one line, or a part of one that ends at `high`
            begin = low
        file.seek(begin)
        line = file.readline()
        try:
            is_later = not line.endswith(b'\n') or json.loads(line)['step'] > step
        except ValueError:
            is_later = True
        if is_later and begin == low:
            return low
        low, high = (low, begin) if is_later else (begin + len(line), high)
    return low
