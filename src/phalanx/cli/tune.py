"""`phalanx tune`: searches settings of a recipe, or shows its loss over the learning rate."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

from phalanx.bench.tuning.rates import check_rates, parse_range, run_rates, suggest_rate, write_rates
from phalanx.bench.tuning.space import check_space, parse_dimension
from phalanx.cli.tune_options import tune_parser
from phalanx.config.arguments import collect_assignments, repeat_options
from phalanx.engine.job import Job
from phalanx.launch.names import split_list
from phalanx.report.readable import format_number
from phalanx.system.cores import count_cores
from phalanx.system.errors import RequestError, RunError, StoppedError, describe_error
from phalanx.system.paths import parse_path

Say = Callable[[str], object]


def command(words: Sequence[str]) -> int:
    """Exit status: 0 done, 1 no trial succeeded, 2 the request was wrong, 130 stopped."""
    given = tune_parser().parse_args(words)
    if bool(given.search) == bool(given.lr_range):
        raise RequestError('tune needs --search KEY=VALUES, or --lr_range LOW..HIGH')
    for name, least in (('trials', 1), ('parallel', 1), ('steps', 10)):
        if getattr(given, name) < least:
            raise RequestError(f'--{name} {getattr(given, name)}: must be at least {least}')

    def say(text: str) -> None:
        print(text, file=sys.stderr if given.json else sys.stdout, flush=True)

    try:
        return _test_rates(given, say) if given.lr_range else _search(given, say)
    except (StoppedError, KeyboardInterrupt):
        print('stopped; the same command continues', file=sys.stderr)
        return 130
    except (RunError, OSError) as error:
        print(f'tune failed: {describe_error(error)}', file=sys.stderr)
        return 1


def _search(given: argparse.Namespace, say: Say) -> int:
    """Run the trials that are missing, here, and report the best of all."""
    try:
        from phalanx.bench.tuning.search import Request, Search, run_in_parallel
    except ModuleNotFoundError as error:
        if error.name != 'optuna':
            raise
        raise RequestError('--search needs the package optuna: pip install "phalanx-vision[tune]"') from None
    flags = split_devices(given)
    space = [parse_dimension(text) for text in given.search]
    assigned = collect_assignments(given)
    job = check_space(given.recipe, assigned, space)
    folder = _folder(given, job, 'search')
    if given.parallel > 1:
        os.environ.setdefault('OMP_NUM_THREADS', str(max(1, count_cores() // given.parallel)))
    for name in [name for name in os.environ if name.startswith('SLURM_STEP_')]:
        del os.environ[name]  # each task of srun runs trials of its own, on its node
    request = Request(given.recipe, assigned, space, given.trials, given.seed, prunes=not given.no_prune)
    search = Search(request, job, folder, say)
    try:
        run_in_parallel(search, flags)
    finally:
        page = search.write_page()
        say(f'page: {page}')
    best = search.best()
    if given.json:
        print(json.dumps({'folder': str(folder), 'metric': search.metric, 'trials': search.records()}))
    else:
        say('\n'.join(search.describe_best()))
    return 0 if best else 1


def _test_rates(given: argparse.Namespace, say: Say) -> int:
    """Train once with a rising rate, and write the plot."""
    assigned = collect_assignments(given)
    options = repeat_options(assigned)
    job, assigned = check_rates(given.recipe, assigned, parse_range(given.lr_range), given.steps)
    folder = _folder(given, job, 'rates')
    say(f'{given.steps} steps with a learning rate that rises from step to step')
    points = run_rates(given.recipe, assigned, folder / 'run', split_devices(given)[0])
    page = folder / 'rates.html'
    write_rates(page, job.name, points)
    rate = suggest_rate(points)
    if given.json:
        print(json.dumps({'page': str(page), 'rate': rate, 'points': points}))
        return 0
    say(f'suggested rate: {format_number(rate)}, a tenth of the one with the lowest loss\npage: {page}')
    say(f'next: phalanx train {quote(given.recipe)}{options} --set optimizer.lr={rate:.2g}')
    return 0


def split_devices(given: argparse.Namespace) -> list[list[str]]:
    """Return the flags of `phalanx train` for each of the parallel trials. Raises RequestError."""
    ranks = ['--nproc_per_node', str(given.nproc_per_node)] if given.nproc_per_node is not None else []
    if given.gpus is None:
        return [ranks] * given.parallel
    gpus = split_list(given.gpus)
    if len(set(gpus)) < len(gpus):
        raise RequestError(f'--gpus {given.gpus}: a device is named twice')
    if len(gpus) % given.parallel:
        raise RequestError(f'--gpus {given.gpus}: {len(gpus)} devices do not divide into --parallel {given.parallel}')
    each = len(gpus) // given.parallel
    return [['--gpus', ','.join(gpus[n * each : (n + 1) * each]), *ranks] for n in range(given.parallel)]


def _folder(given: argparse.Namespace, job: Job, kind: str) -> Path:
    return given.save_dir or parse_path(f'runs/{job.name}-{kind}')
