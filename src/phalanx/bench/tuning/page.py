"""Page about a search: its best trial, how much each key matters, and all trials."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from phalanx.bench.tuning.space import Dimension
from phalanx.report.charts import Line, chart, parallel_coordinates
from phalanx.report.page import render
from phalanx.report.readable import format_number
from phalanx.system.disk import write_atomically

STATES = {TrialState.COMPLETE: 'complete', TrialState.PRUNED: 'ended early', TrialState.FAIL: 'failed'}  # others: running
LEAST_FOR_IMPORTANCE = 4  # complete trials


def write_page(
    folder: Path, study: optuna.Study, trials: Sequence[FrozenTrial], metric: str, space: Sequence[Dimension]
) -> Path:
    """Write `folder`/search.html and return its path. Raises OSError."""
    complete = sorted(
        (trial for trial in trials if trial.state == TrialState.COMPLETE), key=lambda trial: (-(trial.value or 0), trial.number)
    )
    charts = [*_history(complete, metric), *([_coordinates(complete, metric, space)] if complete else [])]
    values = {
        'title': f'Search of {" and ".join(dimension.key for dimension in space)}',
        'tiles': _tiles(trials, complete, metric),
        'importance': _importance(study, complete),
        'charts': charts,
        'rows': [_row(folder, trial, metric) for trial in [*complete, *(one for one in trials if one not in complete)]],
    }
    file = folder / 'search.html'
    write_atomically(file, render('search.html', values).encode())
    return file


def _tiles(trials: Sequence[FrozenTrial], complete: Sequence[FrozenTrial], metric: str) -> list[tuple[str, str, str]]:
    counts = [sum(trial.state == state for trial in trials) for state in (TrialState.PRUNED, TrialState.FAIL)]
    others = ', '.join(f'{count} {name}' for count, name in zip(counts, ('ended early', 'failed'), strict=True) if count)
    tiles = [('trials', format_number(len(trials)), ', '.join(filter(None, [f'{len(complete)} complete', others])))]
    if complete:
        best = complete[0]
        tiles.insert(0, (f'best {metric}', format_number(best.value), f'trial {best.number}'))
    return tiles


def _importance(study: optuna.Study, complete: Sequence[FrozenTrial]) -> list[dict[str, Any]]:
    """Return one row per key: its share in the differences between good trials and all (PED-ANOVA, Watanabe et al. 2023)."""
    if len(complete) < LEAST_FOR_IMPORTANCE or len({trial.value for trial in complete}) == 1:
        return []
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return [{'key': key, 'importance': share} for key, share in shares.items()]


def _history(complete: Sequence[FrozenTrial], metric: str) -> list[dict[str, Any]]:
    points = sorted((trial.number, trial.value) for trial in complete if trial.value is not None)
    best, so_far = [], -math.inf
    for number, value in points:
        so_far = max(so_far, value)
        best.append((number, so_far))
    last = max([1, *(number for number, _ in points)])
    return chart(f'{metric} of each trial', [Line('trial', points, 1), Line('best so far', best, 0)], last, over='trial')


def _coordinates(complete: Sequence[FrozenTrial], metric: str, space: Sequence[Dimension]) -> dict[str, Any]:
    axes: dict[str, list[float | None]] = {}
    for dimension in space:
        place = _placer(dimension)
        name = f'{dimension.key.rpartition(".")[2]} {dimension.ends()[0]} .. {dimension.ends()[-1]}'
        axes[name] = [place(trial.params[dimension.key]) if dimension.key in trial.params else None for trial in complete]
    values = [trial.value or 0.0 for trial in complete]
    low, high = min(values), max(values)
    axes[f'{metric} {format_number(low)} .. {format_number(high)}'] = [
        100 * (value - low) / (high - low) if high > low else 50.0 for value in values
    ]
    labels = [f'trial {trial.number}' for trial in complete]
    return parallel_coordinates('Settings and result, one line per trial', axes, labels, math.ceil(len(complete) / 4))


def _placer(dimension: Dimension) -> Callable[[Any], float]:
    """Return the function from a value of the dimension to its position on the axis, 0 .. 100."""
    if dimension.choices:
        return lambda value: 100 * dimension.choices.index(value) / (len(dimension.choices) - 1)
    scale = math.log if dimension.is_log else float
    low, high = scale(dimension.low), scale(dimension.high)
    return lambda value: 100 * (scale(value) - low) / (high - low)


def _row(folder: Path, trial: FrozenTrial, metric: str) -> dict[str, Any]:
    seconds = trial.duration.total_seconds() if trial.duration else None
    state = STATES.get(trial.state, 'running')
    reason = trial.user_attrs.get('reason')
    return {
        'trial': str(trial.number),
        metric: trial.value if trial.state == TrialState.COMPLETE else None,
        **{text.partition('=')[0]: text.partition('=')[2] for text in trial.user_attrs.get('assigned', ())},
        'state': f'{state}: {reason}' if reason else state,
        'minutes': None if seconds is None else seconds / 60,
    }
