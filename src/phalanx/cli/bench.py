"""`phalanx bench train|data|memory|comm|scaling`: parses the command line, measures, and prints the figures."""

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from shlex import quote

from phalanx.bench import comm, train
from phalanx.bench.data import measure_pipeline
from phalanx.bench.memory import format_memory, predict_memory
from phalanx.cli.bench_options import ON_OFF, bench_parser
from phalanx.cli.bench_scaling import bench_cluster, bench_scaling
from phalanx.cli.notes import open_with_notes, print_notes
from phalanx.cli.ranks import launch_ranks
from phalanx.config.arguments import collect_assignments, repeat_options
from phalanx.engine.checks import check_parts
from phalanx.engine.device import pick_device
from phalanx.engine.fit import agree_on_micro_batches, memory_of_device, predict_fit
from phalanx.engine.job import Job, open_job
from phalanx.engine.loader import BadSampleError
from phalanx.engine.precision import DTYPES
from phalanx.engine.samples import NodeSamples
from phalanx.engine.worker import process_group
from phalanx.parallel import dist
from phalanx.system.errors import RequestError, RunError, describe_error

LOG = Path('runs/bench/log')


def command(words: Sequence[str]) -> int:
    """Exit status: 0 done, 1 a measurement failed, 2 the request was wrong."""
    given = bench_parser().parse_args(words)
    commands = {'train': bench_train, 'data': bench_data, 'memory': bench_memory, 'comm': bench_comm, 'scaling': bench_scaling}
    status = commands[given.command](given, words)
    if status == 0 and not given.json and not dist.is_launched():
        recipe = quote(given.recipe) + repeat_options(collect_assignments(given)) if 'recipe' in given else 'RECIPE'
        print(f'next: phalanx train {recipe}')
    return status


def bench_train(given: argparse.Namespace, words: Sequence[str]) -> int:
    """Measure each variant in its own process, so that none reuses memory or compiled code of another."""
    if given.steps < 1 or given.warmup < 1:
        raise RequestError('--steps and --warmup must be at least 1')
    variants = _variants(given)
    if len(variants) == 1:
        return _train_variant(given, words, variants[0])
    if given.profile:
        raise RequestError('--profile is of one variant: give one --precision, --channels_last and --compile')
    found, failed = train.measure_apart(words, variants)
    if found:
        _print_figures(found, given.json)
    return int(failed)


def _variants(given: argparse.Namespace) -> list[tuple[str, str, str]]:
    """(precision, channels last, compile) of each variant; '' for the value of the recipe."""
    precisions = given.precision.split(',') if given.precision else ['']
    if wrong := set(precisions) - {'', *DTYPES}:
        raise RequestError(f'--precision {",".join(sorted(wrong))}: give one or more of {", ".join(DTYPES)}')
    switches = (ON_OFF[switch] if switch else ('',) for switch in (given.channels_last, given.compile))
    return list(product(precisions, *switches))


def _train_variant(given: argparse.Namespace, words: Sequence[str], variant: tuple[str, str, str]) -> int:
    # a variant is the recipe with other values of these keys
    keys = ('precision.dtype', 'train.channels_last', 'train.compile')
    chosen = [f'{key}={value}' for key, value in zip(keys, variant, strict=True) if value]
    job = open_job(given.recipe, [*collect_assignments(given), *((text, f'--set {text}') for text in chosen)])
    status = _as_ranks(given, words, job)
    if status is not None:
        return status
    if given.profile and dist.is_launched():
        raise RequestError('--profile is measured on one rank: leave out the flags of the launch')
    if given.profile and not given.profile.absolute().parent.is_dir():
        raise RequestError(f'--profile {given.profile}: there is no such folder')
    try:
        micro_batches = predict_fit(job)
        with process_group(job.recipe.device) as device:
            job = agree_on_micro_batches(job, micro_batches)
            # this rank measures; only rank 0 prints
            figures, profile = train.measure(job, device, steps=given.steps, warmup=given.warmup)
            gc.collect()  # DDP holds the process group
    except (RunError, BadSampleError, OSError) as error:
        if dist.is_launched():
            raise  # the launcher reports it
        print(f'the measurement failed: {describe_error(error)}', file=sys.stderr)
        return 1
    if given.profile:
        profile.write(given.profile)
    if dist.rank_of_environment() == 0:
        _print_figures([figures], given.json)
    return 0


def _print_figures(figures: list[train.Figures], as_json: bool) -> None:
    print(json.dumps({'variants': figures}) if as_json else train.format_table(figures))


def bench_data(given: argparse.Namespace, _: Sequence[str]) -> int:
    job = open_with_notes(given.recipe, collect_assignments(given))
    if given.samples < 1 or (given.rate is not None and given.rate <= 0):
        raise RequestError('--samples must be at least 1 and --rate above 0')
    check_parts(job, 1)
    figures = measure_pipeline(job, samples=given.samples)
    print(json.dumps(figures.record(given.rate)) if given.json else figures.table(given.rate))
    return 0


def bench_memory(given: argparse.Namespace, _: Sequence[str]) -> int:
    job = open_with_notes(given.recipe, collect_assignments(given))
    if given.ranks < 1:
        raise RequestError('--ranks must be at least 1')
    device = pick_device(job.recipe.device)
    device_mb, is_gpu = given.device or memory_of_device(device), bool(given.device) or device.type == 'cuda'
    figures = predict_memory(job, check_parts(job, given.ranks), ranks=given.ranks, device_mb=device_mb, is_gpu=is_gpu)
    print(json.dumps(figures) if given.json else format_memory(figures))
    return 0


def bench_comm(given: argparse.Namespace, words: Sequence[str]) -> int:
    if (status := _as_ranks(given, words)) is not None:
        return status
    if not dist.is_launched():
        raise RequestError(
            'one rank has no peers to communicate with: give --nproc_per_node, --gpus or --ips, or use `phalanx launch`'
        )
    with process_group(given.device) as device:
        ranks, exchanges = dist.world_size(), comm.measure_exchanges(device, given.repeats)
        in_work = comm.measure_in_work(device)
    if dist.rank_of_environment() == 0:
        name = train.device_name(device)
        found = (exchanges, in_work, ranks)
        print(json.dumps(comm.record(*found)) if given.json else comm.format_table(*found, name))
    return 0


def _as_ranks(given: argparse.Namespace, words: Sequence[str], job: Job | None = None) -> int | None:
    """Launch this command as the ranks that the flags request; None if this process is a rank already, or the only one."""
    flags, _, cluster = bench_cluster(given, job)
    samples = None
    if job is not None and not dist.is_launched():
        print_notes(job)
        parts = check_parts(job, cluster.ranks_per_node * cluster.max_nodes if cluster else 1)
        samples = NodeSamples(job, parts.train, parts.evaluation) if cluster else None
    return None if cluster is None else launch_ranks('bench', words, cluster, flags, LOG, samples)
