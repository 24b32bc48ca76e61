"""`phalanx eval`: metrics of the weights of a run, of other weights, or of an exported file."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote

from phalanx.cli.notes import print_notes
from phalanx.cli.options import eval_parser
from phalanx.cli.ranks import build_cluster, launch_ranks, read_launch, run_as_rank
from phalanx.config.arguments import Assignments, parse_recipe_words, repeat_options
from phalanx.engine import worker
from phalanx.engine.folder import describe_weights
from phalanx.engine.initial import load_trained
from phalanx.engine.job import Job, open_job
from phalanx.engine.loader import BadSampleError
from phalanx.engine.samples import NodeSamples
from phalanx.launch.flags import Flags
from phalanx.launch.remote import run_on_all_nodes
from phalanx.launch.start import once_per_node
from phalanx.paddle.options import take_weights
from phalanx.parallel import dist
from phalanx.report.readable import make_finite
from phalanx.report.single import PAGE_PICTURES, print_evaluation, write_evaluation
from phalanx.system.errors import CheckpointError, RequestError, RunError, describe_error


def command(words: Sequence[str]) -> int:
    """Evaluate the weights of a run, or others. Raises ConfigError, RequestError or CheckpointError."""
    given, recipe, assigned = parse_recipe_words(eval_parser(), words)
    if Path(recipe).suffix in ('.onnx', '.xml'):
        return _evaluate_exported(Path(recipe), given, assigned)
    if given.data is not None:
        raise RequestError(f'--data: is for an exported file; {recipe} names its own data, which --set changes')
    assigned = take_weights(given, assigned)
    if given.raw and given.weights is not None and not Path(given.weights).is_dir():
        raise RequestError(f'--raw: {given.weights} is no checkpoint with an EMA; leave --raw out')
    flags, start = read_launch(given)
    with once_per_node(start):
        job = open_job(recipe, assigned)
    if not dist.is_launched():
        cluster = build_cluster(flags, start, job)
        if flags.ssh:
            return run_on_all_nodes(flags, 'eval', words, job.folder)
        if cluster is not None:
            # before the ranks start: an unusable file is one line here, not one of each rank
            load_trained(job.task.model(), job.task, given.weights or job.folder, raw=_wants_raw(given, job))
            try:
                samples = NodeSamples(job, job.task.dataset('eval'))
            except (OSError, ValueError) as error:
                print(f'evaluation failed: {describe_error(error)}', file=sys.stderr)
                return 1
            return launch_ranks('eval', words, cluster, flags, job.folder / 'log', samples)
    return run_as_rank(start, flags, job.folder, lambda: _evaluate_rank(job, given, recipe, repeat_options(assigned)))


def _evaluate_rank(job: Job, given: argparse.Namespace, recipe: str, options: str) -> int:
    """Evaluate as one rank; rank 0 prints the metrics, and the next command with the `options` of this one."""
    print_notes(job)
    try:
        # the weights are announced before an evaluation that may take long
        raw = _wants_raw(given, job)
        description = describe_weights(job, given.weights, raw=raw)
        if dist.rank_of_environment() == 0:
            print(f'weights: {description}', file=sys.stderr)
        result = worker.evaluate(job, given.weights, raw=raw, pictures=PAGE_PICTURES if given.page else 0)
        if given.page and dist.rank_of_environment() == 0:
            write_evaluation(given.page, job.name, description, result)
    except (BadSampleError, RunError, OSError, RuntimeError, ValueError) as error:
        print(f'evaluation failed: {describe_error(error)}', file=sys.stderr)
        return 1
    if dist.rank_of_environment() != 0:
        return 0
    if given.json:
        worst = [{'sample': one.name, 'grade': one.grade.value, 'reason': one.grade.reason} for one in result.worst]
        facts = {'samples': result.samples, 'seconds': result.seconds, 'table': result.table, 'worst': worst}
        print(json.dumps(make_finite({**result.metrics, **facts})))
    else:
        print_evaluation(result)
        weights = f' --weights {quote(given.weights)}' if given.weights else ''
        command = f'predict {quote(recipe)} IMAGES' if given.page else f'eval {quote(recipe)} --page eval.html'
        print(f'next: phalanx {command}{weights}{options}')
    return 0


def _wants_raw(given: argparse.Namespace, job: Job) -> bool:
    """True if the weights as trained are requested; `--set ema=null` does so, too."""
    return given.raw or job.recipe.ema is None


def _evaluate_exported(file: Path, given: argparse.Namespace, assigned: Assignments) -> int:
    """Print the metrics of an exported file beside those of the weights of its run; `--page` shows its worst samples."""
    from phalanx.deploy import deployed
    from phalanx.deploy.exported import find_exported
    from phalanx.runtime import ArtifactError

    if Flags.of(given).asks_for_ranks:
        raise RequestError(f'{file}: is evaluated in this process, on its CPU; leave out the options for devices and nodes')
    try:
        file = find_exported(file)
        job, model, before = deployed.open_pair(file, given.data, assigned)
        result, cost = deployed.evaluate(job, model, file, before)
        if given.page:
            write_evaluation(given.page, job.name, str(file), deployed.add_pictures(result, job, model))
        try:
            raw = _wants_raw(given, job)
            print(f'checkpoint: {describe_weights(job, given.weights, raw=raw)}', file=sys.stderr)
            own: Mapping[str, float] | None = worker.evaluate(job, given.weights, raw=raw).metrics
        except CheckpointError:  # a recipe, or a run without weights
            own = None
    except (ArtifactError, BadSampleError, OSError, ValueError) as error:
        print(f'evaluation failed: {describe_error(error)}', file=sys.stderr)
        return 1
    if given.json:
        differences = {name: value - own[name] for name, value in result.metrics.items()} if own else None
        facts = {'metrics': result.metrics, 'samples': result.samples, 'cost': asdict(cost)}
        print(json.dumps(make_finite({**facts, 'checkpoint': own, 'differences': differences})))
        return 0
    width = max(map(len, result.metrics))
    print(f'{"":<{width}}  {"exported":>10}' + (f'  {"checkpoint":>10}  {"difference":>10}' if own else ''))
    for name, value in result.metrics.items():
        print(f'{name:<{width}}  {value:>10.4f}' + (f'  {own[name]:>10.4f}  {value - own[name]:>+10.4f}' if own else ''))
    print(
        f'{result.samples} samples; {cost.median_ms:.1f} ms per image (median; 95 % within {cost.p95_ms:.1f} ms), '
        f'{cost.best_batch_ms:.1f} ms in batches of {cost.best_batch}; '
        f'{cost.memory_mib:.0f} MiB of memory, a file of {cost.size_mib:.1f} MiB'
    )
    print(f'next: phalanx serve {quote(str(file))}')
    return 0
