"""Summary of a run, and warnings at its end."""

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from phalanx.engine.progress import Progress
from phalanx.report.readable import format_number
from phalanx.weights.reading import LoadedWeights

LOST = 0.01  # fall of a metric below that of the initial weights from which there is a warning


def summarise(
    progress: Progress,
    *,
    main_metric: str,
    names: Sequence[str],
    epochs: float,
    global_batch_size: int,
    throughput: Mapping[str, Any],
    initial: Sequence[LoadedWeights],
    bad: Mapping[int, str],
) -> dict[str, Any]:
    """Return the content of summary.json, from the progress at the end of the run.

    `names` are the metrics that grow with quality, `epochs` are passes over the training samples, `throughput` comes from
    `meters.measure_throughput`, `initial` are the initial weights, `bad` the reasons for skipped samples.
    """
    # The keys are a contract with scripts (docs).
    return {
        'metrics': progress.metrics,
        'main_metric': main_metric,
        'best': progress.best,
        'best_step': progress.best_step,
        'start': progress.start_metrics.get(main_metric),
        'since_start': {
            name: progress.best_metrics[name] - first
            for name, first in progress.start_metrics.items()
            if name in names and progress.best_step and not math.isnan(progress.best_metrics[name] - first)
        },
        'steps': progress.step,
        'epochs': epochs,
        'global_batch_size': global_batch_size,
        'world_size': progress.ranks,
        'seconds': progress.seconds,
        'training_seconds': progress.training_seconds,
        'waiting_seconds': progress.waiting_seconds,
        **throughput,
        'initial_weights': [loaded.facts() for loaded in initial],
        'skipped_samples': sorted(set(bad.values())),
    }


def read_summary(folder: Path, progress: Progress) -> dict[str, Any] | None:
    """Return the content of summary.json in a run folder; None if it is missing, damaged or of another progress."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        summary = dict(json.loads((folder / 'summary.json').read_text(encoding='utf-8')))
        # A summary of an earlier end of this run, before it was prolonged, does not count.
        if (summary['steps'], summary['best_step'], summary['best']) == (progress.step, progress.best_step, progress.best):
            return summary
    return None


def final_warnings(summary: Mapping[str, Any]) -> Iterator[str]:
    """Yield warnings about a completed run, from its summary."""
    yield from summary['slow_ranks']
    start, best = summary['start'], summary['best']
    if lower := [f'{name} by {-gain:.4f}' for name, gain in summary['since_start'].items() if gain < -LOST]:
        yield (
            f'the best checkpoint has a higher {summary["main_metric"]} than the initial weights, but is lower in '
            f'{", ".join(lower)}; a longer training or a lower optimizer.lr may keep what they could do, and main_metric=NAME '
            'chooses the best checkpoint by another metric'
        )
    # Main metrics grow with quality in all families.
    if start is not None and best is not None and best <= start:
        yield (
            f'no evaluation was better than the initial weights: {summary["main_metric"]} {format_number(start)} at the start, '
            f'{format_number(summary["metrics"][summary["main_metric"]])} at the end; the best checkpoint, which predict and '
            f'export use, is that of step {summary["best_step"]}; try a lower optimizer.lr, norm_sync=frozen, or train.freeze'
        )
