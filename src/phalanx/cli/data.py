"""`phalanx data check|prepare|rewrite`: checks a data set, makes one from annotations, or writes one in another format."""

import argparse
import json
import sys
from collections.abc import Sequence
from shlex import quote

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from phalanx.cli.data_options import data_parser
from phalanx.cli.notes import open_with_notes
from phalanx.config.arguments import collect_assignments, repeat_options
from phalanx.curation.census import SPLITS, Census, Problem, take_census
from phalanx.curation.page import render_page
from phalanx.curation.prepare.command import prepare
from phalanx.curation.tables import print_census
from phalanx.data.samples import Draw, SampleError, Split
from phalanx.engine.checks import check_parts
from phalanx.engine.job import Job
from phalanx.families.curated import Rewritable, Surveyed
from phalanx.report.terminal import terminal
from phalanx.system.cores import count_cores
from phalanx.system.disk import check_writable, write_atomically
from phalanx.system.errors import RequestError, describe_error

TRIAL_SAMPLES = 8  # collated as one trial batch, of different sizes if there are any


def command(words: Sequence[str]) -> int:
    """Exit status: 0 done, 1 the data have problems, 2 the request was wrong."""
    given = data_parser().parse_args(words)
    return {'check': check, 'prepare': prepare, 'rewrite': rewrite}[given.command](given)


def check(given: argparse.Namespace) -> int:
    """Check a data set; exit status 1 if it has problems. Raises ConfigError or RequestError."""
    if any(number is not None and number < least for number, least in ((given.limit, 1), (given.workers, 0))):
        raise RequestError('--limit must be at least 1 and --workers at least 0')
    # read everything, write the page, then print
    assigned = collect_assignments(given)
    job = open_with_notes(given.recipe, assigned)
    workers = min(8, count_cores()) if given.workers is None else given.workers
    place = given.page or job.folder / 'data.html'
    check_writable(place, '--page FILE writes the page elsewhere')
    try:
        census = _census(job, given.limit, workers)
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(place, render_page(census, job.name).encode())
    except (OSError, RuntimeError) as error:  # the page cannot be written, or a worker was killed
        print(f'the check failed: {describe_error(error)}', file=sys.stderr)
        return 1
    if given.json:
        print(json.dumps(census.record() | {'page': str(place)}))
    else:
        console = terminal()
        print_census(census, console)
        console.print(f'page: {place}', soft_wrap=True)
        advice = _next(census, job, f'{quote(given.recipe)}{repeat_options(assigned)}')
        console.print(f'next: {advice}', soft_wrap=True, markup=False, highlight=False)
    return 1 if census.problems else 0


def _next(census: Census, job: Job, recipe: str) -> str:
    """Next step after the check of `recipe`, with its options: single samples that cannot be used may be skipped, but not all
    of a split.
    """
    wrong, train = census.problems, f'phalanx train {recipe}'
    if not all(problem.name for problem in wrong) or not all(split.indices for split in census.splits.values()):
        return f'repair what is wrong, and check again: phalanx data check {recipe}'
    if len(wrong) > job.recipe.train.bad_samples:
        return f'repair or remove what is wrong, or skip it: {train} --set train.bad_samples={len(wrong)}'
    return train


def _census(job: Job, limit: int | None, workers: int) -> Census:
    task: object = job.task
    if not isinstance(task, Surveyed):
        raise RequestError(f'{job.name}: the data of {type(task).__name__} cannot be checked yet')
    # the progress bar goes to standard error, so that --json stays parseable
    columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        lines = {}

        def advance(split: Split, done: int, total: int) -> None:
            if split not in lines:
                lines[split] = progress.add_task(f'reading {split}', total=total)
            progress.update(lines[split], completed=done)

        census = take_census(task, limit=limit, workers=workers, advance=advance)
    # problems beyond single samples: batches that cannot be built, a recipe that does not fit
    census.problems += check_batches(job, census)
    if not census.problems:
        try:
            check_parts(job, 1)
        except RequestError as error:  # the data set does not fit the recipe
            census.problems.append(Problem('train', '', f'train: {error}'))
    return census


def check_batches(job: Job, census: Census) -> list[Problem]:
    """Problems of collating samples of different sizes, for each split with more than one sample per batch."""
    train, problems = job.recipe.train, []
    batch_sizes = {'train': train.global_batch(1) // train.least_micro_batches, 'eval': job.recipe.evaluate.batch_size}
    for split, found in census.splits.items():
        indices = list(dict.fromkeys([*found.first.values(), *found.indices]))[:TRIAL_SAMPLES]
        if not indices:  # reported already
            continue
        try:
            dataset = job.task.dataset(split)
            samples = [dataset[Draw(index, 0, 0, train.seed)] for index in indices]
            job.task.collate(samples if batch_sizes[split] > 1 else samples[:1])
        except (SampleError, OSError):  # a bad sample is reported already
            continue
        except ValueError as error:
            problems.append(Problem(split, '', f'{split}: {error}'))
    return problems


def rewrite(given: argparse.Namespace) -> int:
    """Rewrite a data set; exit status 1 if a sample cannot be read or a file cannot be written.

    Raises ConfigError or RequestError.
    """
    # not every family can be rewritten, nor in every format
    job = open_with_notes(given.recipe, collect_assignments(given))
    task: object = job.task
    if not isinstance(task, Rewritable):
        raise RequestError(f'{job.name}: the data of {type(task).__name__} cannot be written in another format')
    if given.form not in task.rewritten_as:
        formats = ', '.join(task.rewritten_as)
        raise RequestError(f'--as {given.form}: the data of {type(task).__name__} can be written as {formats}')
    if given.out.exists():
        raise RequestError(f'--out {given.out}: exists already; give a new folder')
    keys: dict[str, object] = {}
    try:
        for split in SPLITS:
            keys |= task.rewrite(split, given.out, form=given.form)
    except (OSError, ValueError, SampleError) as error:
        print(f'the data set cannot be rewritten: {describe_error(error)}', file=sys.stderr)
        return 1
    data = json.dumps({'root': str(given.out)} | keys)
    print(f'in a recipe: data: {data}')
    print(f'next: phalanx train {quote(given.recipe)} --set {quote(f"data={data}")}')
    return 0
