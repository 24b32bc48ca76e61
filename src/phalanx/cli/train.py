"""`phalanx train`: checks the request, then trains in this process or as several ranks."""

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import record

from phalanx.cli.ranks import build_cluster, launch_ranks, read_launch, run_as_rank
from phalanx.cli.train_options import train_parser, translate_options
from phalanx.config.arguments import Assignments, fill_flag_values, parse_recipe_words
from phalanx.engine import worker
from phalanx.engine.checks import check_initial, check_parts
from phalanx.engine.device import pick_device
from phalanx.engine.folder import check_folder, set_aside
from phalanx.engine.job import Job, find_recipe, open_job
from phalanx.engine.loader import BadSampleError
from phalanx.engine.parts import Parts
from phalanx.engine.samples import NodeSamples
from phalanx.launch.from_python import EVENTS
from phalanx.launch.preflight import warn_about_this_node
from phalanx.launch.remote import run_on_all_nodes
from phalanx.launch.start import OURS, once_per_node
from phalanx.paddle.configs import dialect_of
from phalanx.paddle.options import CHECKPOINTS, FOLDERS, TAKEN_ALONG, take_assigned
from phalanx.parallel import dist
from phalanx.report.report import Callback
from phalanx.report.trackers import check_trackers
from phalanx.system.errors import CheckpointError, RunError, describe_error
from phalanx.system.paths import parse_path
from phalanx.system.process import fast_imports


def command(words: Sequence[str]) -> int:
    """Train a recipe, on one rank or several."""
    # the request: recipe, flags, and how this process was started
    given, recipe, assigned = parse_command(words)
    flags, start = read_launch(given)
    with once_per_node(start):
        job = build_job(given, recipe, assigned)
    for option, reason in TAKEN_ALONG.items():
        if getattr(given, option) and not dist.is_launched():
            print(f'--{option} is ignored: {reason}')

    # a rank trains; the other cases below prepare or start ranks
    if dist.is_launched():
        train = partial(_as_rank, job, given.resume, given.fresh, is_checked=start.by == OURS)
        return run_as_rank(start, flags, job.folder, train, fresh=given.fresh)
    cluster = build_cluster(flags, start, job)
    if flags.ssh:
        return run_on_all_nodes(flags, 'train', words, job.folder)
    if given.finetune and cluster is not None:
        from phalanx.engine.finetune import check_ranks  # here: other runs do not need it

        check_ranks(job, cluster.ranks_per_node * cluster.max_nodes)
    # check data, devices, the run folder and initial weights here, before ranks start
    parts = check_parts(job, cluster.ranks_per_node * cluster.max_nodes if cluster else 1)
    pick_device(job.recipe.device, cluster.ranks_per_node - 1 if cluster else 0)  # of the last rank on this node
    if cluster is None or cluster.rendezvous is None or cluster.hosts_rendezvous:  # the node of rank 0 owns the run folder
        check_folder(job, given.resume, given.fresh)
        check_trackers(job.recipe.report.tracker_builders())
        if given.fresh and (aside := set_aside(job.folder)):
            print(f'the earlier run was moved to {aside}')
    check_initial(job, parts, given.resume, given.fresh)
    # one rank trains in this process, with the parts that were built for the checks
    if cluster is None:
        return _as_rank(job, given.resume, parts=parts)
    samples = NodeSamples(job, parts.train, parts.evaluation)
    del parts  # the ranks build their own network
    words = [word for word in words if word != '--fresh']
    return launch_ranks('train', words, cluster, flags, job.folder / 'log', samples)


def parse_command(words: Sequence[str]) -> tuple[argparse.Namespace, str, Assignments]:
    """Parse a command line of `phalanx train`: options, recipe and assignments."""
    given, recipe, assigned = parse_recipe_words(
        train_parser(), fill_flag_values(words, ('--use_gpu', '--use_vdl', '--use_wandb', '--use_ema'))
    )
    checkpoints, assigned = take_assigned(assigned, CHECKPOINTS)
    given.resume = given.resume or next(reversed(checkpoints), None)
    folders, assigned = take_assigned(assigned, FOLDERS)
    given.save_dir = given.save_dir or next(map(parse_path, reversed(folders)), None)
    return given, recipe, assigned


def build_job(given: argparse.Namespace, recipe: str, assigned: Assignments) -> Job:
    """Job of a command line. Raises ConfigError."""
    assigned = translate_options(given, dialect_of(find_recipe(recipe)), assigned)
    if not given.finetune:
        return open_job(recipe, assigned, given.save_dir)
    from phalanx.engine.finetune import check_ranks, format_settings, open_finetune_job

    job, chosen = open_finetune_job(recipe, assigned, given.save_dir)
    if dist.is_launched():
        check_ranks(job, int(os.environ['WORLD_SIZE']))
    else:
        print('\n'.join(format_settings(chosen)))
    return job


def _as_rank(job: Job, resume: str | None, fresh: bool = False, parts: Parts | None = None, *, is_checked: bool = True) -> int:
    """Train as one rank. The cause of a failure is one line here, and the last line of the launcher."""
    if 'torch._dynamo' not in sys.modules:
        with fast_imports():  # torch's optimizers import it at the first step, where the collector slows it down
            import_module('torch._dynamo')
    if not dist.is_launched():
        warn_about_this_node(job.folder)
    try:
        train = record(worker.train) if dist.is_launched() else worker.train  # for the launcher, which reports it
        return train(job, resume, fresh, parts=parts, is_checked=is_checked, callback=event_writer(os.environ)) or 0
    except (RunError, BadSampleError, CheckpointError, OSError) as error:
        print(f'the run failed: {describe_error(error)}', file=sys.stderr)
        return 1


def event_writer(environment: Mapping[str, str]) -> Callback | None:
    """Callback that appends each event to the file of EVENTS, for the program that started the run; None without one."""
    if EVENTS not in environment:
        return None
    file = Path(environment[EVENTS])

    def write(event: Mapping[str, Any]) -> None:
        with file.open('a', encoding='utf-8') as lines:
            lines.write(json.dumps(event, default=dict) + '\n')

    return write
