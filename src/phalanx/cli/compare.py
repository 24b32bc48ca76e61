"""`phalanx compare`: compares runs on one page: curves, recipes, and their models on the same images."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import Any

from rich.progress import Progress

from phalanx.cli.run_options import compare_parser
from phalanx.config.arguments import Assignments, collect_assignments, repeat_options
from phalanx.engine.comparison import Difference, Measured, check_comparable, compare, measure, picture_differences
from phalanx.engine.job import open_job
from phalanx.engine.loader import BadSampleError
from phalanx.engine.overview import RunFacts, read_facts
from phalanx.report.comparison import Section, write_comparison
from phalanx.report.page import Run
from phalanx.report.readable import MISSING, format_duration, format_number, make_finite
from phalanx.report.terminal import make_table, terminal
from phalanx.system.errors import RequestError, describe_error

LEAST_RESAMPLES = 40  # 2.5 % of them is one


def command(words: Sequence[str]) -> int:
    """Write the page and print the differences; status 1 if data cannot be read. Raises RequestError, CheckpointError."""
    given = compare_parser().parse_args(words)
    runs = _read([given.first, *given.others])
    if 0 < given.resamples < LEAST_RESAMPLES or given.resamples < 0:
        raise RequestError(
            f'--resamples {given.resamples}: an interval needs {LEAST_RESAMPLES} or more; 0 leaves intervals out'
        )
    differences = dict[str, tuple[list[Difference], list[Difference]]]()
    sections = list[Section]()
    try:
        if not given.no_eval:
            first, *others = _measure(runs, collect_assignments(given))
            for other in others:
                check_comparable(first, other)
            for other in others:
                with _progress(f'resampling {other.name}', given.resamples) as advance:
                    differences[other.name] = metrics, classes = compare(first, other, given.resamples, advance=advance)
                title, names = f'{other.name} next to {first.name}', (first.name, other.name)
                rows = [make_row(one, *names) for one in metrics], [make_row(one, *names) for one in classes]
                sections.append(Section(title, *rows, figures=picture_differences(first, other)))
        keys = _differing_keys(runs)
        pages = {name: Run.read(run.folder) for name, run in runs.items()}
        write_comparison(given.page, pages, [_facts(name, run) for name, run in runs.items()], keys, sections)
    except (BadSampleError, OSError, ValueError) as error:
        print(f'comparison failed: {describe_error(error)}', file=sys.stderr)
        return 1
    if given.json:
        found = {
            name: {'metrics': [one._asdict() for one in metrics], 'classes': [one._asdict() for one in classes]}
            for name, (metrics, classes) in differences.items()
        }
        facts = {'runs': [run.as_json() for run in runs.values()], 'keys': keys, 'differences': found}
        print(json.dumps(make_finite(facts)))
        return 0
    for section in sections:
        terminal().print(make_table([*section.metrics, *section.classes], section.title))
    if keys:
        terminal().print(make_table(keys, 'Keys of the recipes that differ'))
    print(f'page: {given.page}')
    scored = [(run.score, run.folder) for run in runs.values() if run.score]
    if len({score.metric for score, _ in scored}) == 1:  # values of different metrics cannot be compared
        _, best = max(scored, key=lambda each: each[0].value)
        print(f'next: phalanx export {quote(str(best))}{repeat_options()}')
    return 0


def _read(folders: Sequence[Path]) -> dict[str, RunFacts]:
    """Return the runs by the shortest name that tells them apart. Raises RequestError."""
    found = [read_facts(folder) for folder in folders]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise RequestError('compare: a run is given twice')
    names = [folder.resolve().name for folder in folders]
    is_unique = len(set(names)) == len(names)
    return {name if is_unique else str(folder): run for name, folder, run in zip(names, folders, found, strict=True)}


def _measure(runs: Mapping[str, RunFacts], assignments: Assignments) -> list[Measured]:
    """Evaluate the best weights of each run."""
    measured = []
    for name, run in runs.items():
        job = open_job(str(run.folder), assignments)
        dataset = job.task.dataset('eval')
        with _progress(f'evaluating {name}', len(dataset)) as advance:
            measured.append(measure(name, job, dataset, advance))
    return measured


@contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], None]]:
    """Progress bar on standard error; yields the function that advances it."""
    console = terminal()
    console.stderr = True
    with Progress(*Progress.get_default_columns(), console=console, transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(what, total=total)
        yield lambda: bar.advance(task)


def _differing_keys(runs: Mapping[str, RunFacts]) -> list[dict[str, str]]:
    """Return one row per key that the runs do not have in common."""
    names = dict.fromkeys(key for run in runs.values() for key in run.keys)
    rows = [{'key': key, **{name: str(run.keys.get(key, 'not set')) for name, run in runs.items()}} for key in names]
    return [row for row in rows if len({value for column, value in row.items() if column != 'key'}) > 1]


def _facts(name: str, run: RunFacts) -> dict[str, Any]:
    score = run.score
    return {
        'run': name,
        'recipe': run.recipe,
        'best': f'{score.metric} {format_number(score.value)}, step {format_number(score.step)}' if score else '',
        'state': f'{run.state}, step {format_number(run.step)}',
        'time': format_duration(run.seconds),
        'ranks': str(run.world_size),
    }


def make_row(one: Difference, first: str, second: str) -> dict[str, Any]:
    """Return a row of a table; a star marks an interval without 0."""
    interval = '' if math.isnan(one.low) else f'{one.low:+.4f} to {one.high:+.4f}{" *" if one.is_clear else ""}'
    gap = one.second - one.first
    difference = MISSING if math.isnan(gap) else f'{gap:+.4f}'
    return {'value': one.name, first: one.first, second: one.second, 'difference': difference, '95 % interval': interval}
