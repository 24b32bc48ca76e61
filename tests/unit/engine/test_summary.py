"""Result of a run in numbers, and the warnings about it."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.engine.progress import Progress
from phalanx.engine.summary import final_warnings, summarise
from phalanx.report.report import _result

NAMES = ('teds', 'teds_structure', 'cell_recall')


def fine_tuned(*metrics: tuple[float, float, float]) -> dict[str, Any]:
    """Summary of a run whose evaluations had these metrics, the first one before step 0; `too_long` is a count."""
    progress = Progress()
    for progress.step, values in enumerate(metrics):
        progress.record_evaluation({**dict(zip(NAMES, values, strict=True)), 'too_long': 3 - progress.step}, NAMES)
        progress.start_metrics = progress.start_metrics or progress.metrics
    facts = {'epochs': 1.0, 'global_batch_size': 8, 'initial': (), 'bad': {}, 'throughput': {'slow_ranks': []}}
    return summarise(progress, main_metric='teds', names=NAMES, **facts)  # type: ignore[arg-type]


def test_the_best_checkpoint_is_compared_with_the_start_in_every_metric_of_quality() -> None:
    summary = fine_tuned((0.75, 0.875, 0.5), (0.875, 0.9375, 0.25), (0.5, 0.5, 0.5))
    assert (summary['start'], summary['best'], summary['best_step']) == (0.75, 0.875, 1)
    assert summary['since_start'] == {'teds': 0.125, 'teds_structure': 0.0625, 'cell_recall': -0.25}
    assert _result(summary)['best against start'] == 'teds +0.1250, teds_structure +0.0625, cell_recall -0.2500'


def test_a_metric_that_fell_while_the_main_one_rose_is_a_warning() -> None:
    (warning,) = final_warnings(fine_tuned((0.75, 0.875, 0.5), (0.875, 0.9375, 0.25)))
    assert 'a higher teds than the initial weights, but is lower in cell_recall by 0.2500;' in warning
    assert not [*final_warnings(fine_tuned((0.75, 0.875, 0.5), (0.875, 0.9375, 0.4921875)))]


@pytest.mark.parametrize('later', [(), ((0.7, 0.9, 0.9),)])
def test_where_the_start_is_the_best_there_is_nothing_to_compare(later: tuple[tuple[float, float, float], ...]) -> None:
    summary = fine_tuned((0.75, 0.875, 0.5), *later)
    assert summary['since_start'] == {}
    (warning,) = final_warnings(summary)
    assert warning.startswith('no evaluation was better than the initial weights: teds 0.7500 at the start, ')
