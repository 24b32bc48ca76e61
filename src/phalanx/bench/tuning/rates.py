"""Learning-rate range test (Smith, Cyclical Learning Rates, 2017): one short run whose rate rises, and its loss."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from phalanx.bench.tuning.space import Assignments
from phalanx.engine.job import Job, open_job
from phalanx.launch.from_python import run_command
from phalanx.report.charts import Line, chart, log_axis, smooth
from phalanx.report.page import read_lines, render
from phalanx.report.readable import format_number
from phalanx.system.disk import write_atomically
from phalanx.system.errors import RequestError, RunError

DIVERGED = 4.0  # the loss, as a multiple of its minimum: higher rates show nothing


class Point(NamedTuple):
    """Learning rate of a step, and the loss at it, smoothed."""

    rate: float
    loss: float


def parse_range(text: str) -> tuple[float, float]:
    """Parse `1e-6..1`. Raises RequestError."""
    try:
        low, high = map(float, text.split('..'))
    except ValueError:
        low = high = 0.0
    if not 0 < low < high:
        raise RequestError(f'--lr_range {text}: expected a lower and a higher rate above 0, such as 1e-6..1')
    return low, high


def check_rates(recipe: str, assignments: Assignments, rates: tuple[float, float], steps: int) -> tuple[Job, Assignments]:
    """Return the job of the test and its assignments. Raises ConfigError."""
    low, high = rates
    origin = f'--lr_range {low:g}..{high:g}'
    keys = {
        'optimizer.lr': repr(low),
        'schedule': f'{{name: exponential, factor: {high / low!r}}}',
        'scaling.rule': 'none',  # the rate is the one of the axis
        'train.steps': str(steps),
        'train.epochs': 'null',
        'evaluate.enabled': 'false',
        'report.every': '1',
        'report.trackers': '[]',
    }
    assigned = [*assignments, *((f'{key}={value}', origin) for key, value in keys.items())]
    return open_job(recipe, assigned), assigned


def run_rates(recipe: str, assignments: Assignments, folder: Path, flags: Sequence[str]) -> list[Point]:
    """Train with rising rate, and return the smoothed losses. Raises RequestError, StoppedError, and RunError without any."""
    words = ['train', recipe, '--save_dir', str(folder), '--fresh', *flags, '--set', *(text for text, _ in assignments)]
    try:
        run_command(words, lambda line: None, lambda: False, quiet=True)
    except RunError:
        # The loss of a rate that is too high ends the run; what it logged until then is the result.
        if not (folder / 'metrics.jsonl').is_file():
            raise
    lines = [line for line in read_lines(folder / 'metrics.jsonl') if line['kind'] == 'train']
    losses = [(float(number), line['loss']) for number, line in enumerate(lines)]
    smoothed = smooth(losses, max(1, len(losses) // 40))
    points = [Point(line['lr'], loss) for line, (_, loss) in zip(lines, smoothed, strict=True) if loss is not None]
    if len(points) < 3:
        raise RunError(f'{folder}: the run logged {len(points)} losses; see {folder}/log')
    return points


def suggest_rate(points: Sequence[Point]) -> float:
    """Return a tenth of the rate with the lowest smoothed loss: a usual choice, with a margin below divergence."""
    return min(points, key=lambda point: point.loss).rate / 10


def write_rates(file: Path, name: str, points: Sequence[Point]) -> None:
    """Write the page: loss over learning rate. Raises OSError."""
    best = min(points, key=lambda point: point.loss)
    above = (n for n, point in enumerate(points) if point.rate > best.rate and point.loss > DIVERGED * best.loss)
    cut = next(above, None)
    shown = points[:cut]
    axis = log_axis(shown[0].rate, shown[-1].rate)
    curve = Line('loss', shown, 0)
    charts = chart('Loss, smoothed', [curve], 1, over='learning rate, log scale', tall=True, x=axis)
    tiles = [
        ('suggested rate', format_number(suggest_rate(points)), 'a tenth of the rate with the lowest loss'),
        ('lowest loss', format_number(best.loss), f'at a rate of {format_number(best.rate)}'),
    ]
    if cut is not None:
        tiles.append(('diverged', format_number(points[cut].rate), f'loss above {DIVERGED:g} times the lowest'))
    values = {'title': f'Learning rates of {name}', 'tiles': tiles, 'charts': charts}
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, render('rates.html', values).encode())
